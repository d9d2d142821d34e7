"""Connections through a SOCKS5 proxy such as Tor (RFC 1928, RFC 1929).

Names are resolved by the proxy, never here: asking for an onion host, or for any host that a person
talks to, must not become a DNS query.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import TypeVar, cast

from blindpost.transport.network import TCP, Listener, Network
from blindpost.wire.frozen import dataclass

P = TypeVar("P", bound=asyncio.BaseProtocol)

VERSION = 5
AUTH_VERSION = 1
CONNECT = 1
NAME_MAX = 255
CREDENTIALS_MAX = 255


class Method(IntEnum):
    """Ways in which a proxy lets clients in."""

    NONE = 0
    PASSWORD = 2
    NO_ACCEPTABLE = 0xFF


class AddressType(IntEnum):
    """What a destination is written as."""

    IPV4 = 1
    DOMAIN = 3
    IPV6 = 4


_REPLIES = {
    1: "general failure",
    2: "connection not allowed",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "time to live expired",
    7: "command not supported",
    8: "address type not supported",
}


class SocksError(OSError):
    """The SOCKS proxy did not connect us."""


@dataclass(frozen=True, slots=True)
class SocksNetwork:
    """A network whose connections are made by a SOCKS5 proxy at `host` and `port`.

    With `user` and `password` the proxy must take them. Tor keeps connections with different user names on
    different circuits: see `isolated`.
    """

    host: str
    port: int
    user: str = ""
    password: str = ""
    through: Network = TCP
    names_circuit: bool = False
    """The user name only names a circuit: a proxy that asks for none may leave it aside."""

    def __post_init__(self) -> None:
        for text in (self.user, self.password):
            if len(text.encode()) > CREDENTIALS_MAX:
                raise ValueError(f"SOCKS5 has room for {CREDENTIALS_MAX} bytes of user name and of password")

    def isolated(self, user: str, password: str) -> SocksNetwork:
        """The same proxy for connections that must not share a circuit with others, where it takes names for
        circuits. Credentials that were given for the proxy itself stay."""
        if self.user and not self.names_circuit:
            return self
        return replace(self, user=user, password=password, names_circuit=True)

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        request = connect_request(host, port)
        negotiation = await self.through.connect(_Negotiation, self.host, self.port)
        try:
            await self._authenticate(negotiation)
            negotiation.write(request)
            await _read_reply(negotiation)
            return negotiation.hand_over(factory())
        except BaseException:
            negotiation.abort()
            raise

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Listener:
        raise SocksError("a SOCKS proxy is for outgoing connections only")

    async def _authenticate(self, negotiation: _Negotiation) -> None:
        methods = [Method.PASSWORD] if self.user else [Method.NONE]
        if self.names_circuit:
            methods = [Method.NONE, Method.PASSWORD]
        negotiation.write(bytes((VERSION, len(methods), *methods)))
        version, chosen = await negotiation.read(2)
        if version != VERSION:
            raise SocksError("the proxy does not speak SOCKS5")
        if chosen not in methods:
            raise SocksError("the SOCKS proxy does not accept our way to authenticate")
        if chosen == Method.PASSWORD:
            user, password = self.user.encode(), self.password.encode()
            negotiation.write(b"%c%c%b%c%b" % (AUTH_VERSION, len(user), user, len(password), password))
            _, status = await negotiation.read(2)
            if status != 0:
                raise SocksError("the SOCKS proxy refused user name and password")


def connect_request(host: str, port: int) -> bytes:
    """What asks a proxy for a connection; a host that is not a literal address travels as a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not (host.isascii() and 0 < len(host) <= NAME_MAX):
            raise SocksError(f"a host name of 1 to {NAME_MAX} ASCII characters expected") from None
        name = host.encode("ascii")
        written = b"%c%c%b" % (AddressType.DOMAIN, len(name), name)
    else:
        kind = AddressType.IPV4 if address.version == 4 else AddressType.IPV6
        written = b"%c%b" % (kind, address.packed)
    return bytes((VERSION, CONNECT, 0)) + written + port.to_bytes(2, "big")


async def _read_reply(negotiation: _Negotiation) -> None:
    version, reply, _, kind = await negotiation.read(4)
    if version != VERSION:
        raise SocksError("the proxy does not speak SOCKS5")
    if reply != 0:
        raise SocksError(f"the SOCKS proxy could not connect: {_REPLIES.get(reply, f'reply {reply}')}")
    match kind:
        case AddressType.IPV4:
            size = 4
        case AddressType.IPV6:
            size = 16
        case AddressType.DOMAIN:
            (size,) = await negotiation.read(1)
        case _:
            raise SocksError("the SOCKS proxy answered with an unknown kind of address")
    await negotiation.read(size + 2)


class _Negotiation(asyncio.Protocol):
    """The connection while it belongs to the proxy."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._wake()

    def eof_received(self) -> bool:
        self._end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def read(self, count: int) -> bytes:
        """Exactly that many bytes of the proxy's answer."""
        while len(self._received) < count:
            if self._over:
                raise SocksError("the SOCKS proxy closed the connection")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    def hand_over(self, protocol: P) -> P:
        """From now on the connection belongs to `protocol`, whose peer waits for it to speak first."""
        if self._received or self._over:
            raise SocksError("the SOCKS proxy did not leave the connection to us")
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        return protocol

    def abort(self) -> None:
        self._transport.abort()

    def _end(self) -> None:
        self._over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
