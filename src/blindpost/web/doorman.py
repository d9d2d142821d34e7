"""Who comes to a shared port: a browser for the site, or an SMP client for the router.

The session of the router is opened first, so that its address limits and timers cover peers that have
sent nothing yet; a browser is detached from it when its hello names one of the site's hosts.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Sequence
from typing import Any, cast

from blindpost.transport.network import TCP, Listener, Network, P
from blindpost.transport.session import Session
from blindpost.wire.client_hello import HELLO_MAX, ClientHello, read_client_hello
from blindpost.wire.errors import WireError
from blindpost.wire.proxy_header import read_proxy_header

HEADER_S = 10.0
"""How long a trusted proxy may take to name its client."""
_HELD_MAX = HELLO_MAX + 4_096
SMP_PROTOCOL = b"smp/1"

Trusted = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]

Guest = Callable[[ClientHello], asyncio.Protocol | None]
"""Who serves the peer with this hello; None for the router."""


class SharedNetwork:
    """TCP whose listeners tell browsers and SMP clients apart."""

    def __init__(
        self,
        guest: Guest,
        proxies: Trusted = (),
        below: Network = TCP,
    ) -> None:
        self._guest = guest
        self._proxies = proxies
        self._below = below

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        return await self._below.connect(factory, host, port)

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> Listener:
        def doorman() -> Doorman:
            return Doorman(factory, self._guest, self._proxies)

        return await self._below.listen(doorman, host, port)


class Doorman(asyncio.Protocol):
    """Holds the first bytes of one connection until it is known who they are for."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        guest: Guest,
        proxies: Trusted,
    ) -> None:
        self._factory = factory
        self._guest = guest
        self._proxies = proxies
        self._held = bytearray()
        self._session: Session | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        if self._from_proxy():
            self._timer = asyncio.get_running_loop().call_later(HEADER_S, transport.abort)
        else:
            self._open(transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        if self._session is None and not self._introduced():
            return
        if self._session is not None and not self._transport.is_closing():
            self._choose(self._session)

    def eof_received(self) -> bool:
        if self._session is not None:
            self._session.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume_writing()

    def _from_proxy(self) -> bool:
        peer = self._transport.get_extra_info("peername")
        if not self._proxies or not isinstance(peer, tuple):
            return False
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        return any(address in network for network in self._proxies)

    def _introduced(self) -> bool:
        """Whether the proxy has named its client; an invalid header ends the connection."""
        try:
            header = read_proxy_header(bytes(self._held))
        except WireError:
            self._transport.abort()
            return False
        if header is None:
            return False
        if self._timer is not None:
            self._timer.cancel()
        del self._held[: header.size]
        self._open(self._transport if header.address is None else Introduced(self._transport, header.address))
        return True

    def _open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        session = self._factory()
        assert isinstance(session, Session)
        self._session = session
        session.connection_made(transport)

    def _choose(self, session: Session) -> None:
        try:
            hello = read_client_hello(bytes(self._held))
        except WireError:
            hello, known = None, True
        else:
            known = hello is not None or len(self._held) > _HELD_MAX
        if not known:
            return
        held, self._session = bytes(self._held), None
        self._held.clear()
        guest = None if hello is None or SMP_PROTOCOL in hello.protocols else self._guest(hello)
        if guest is not None:
            session.divert()
            self._transport.set_protocol(guest)
            guest.connection_made(self._transport)
            guest.data_received(held)
        else:
            self._transport.set_protocol(session)
            _feed(session, held)


def _feed(session: Session, data: bytes) -> None:
    """Give a session the bytes that came before it."""
    view = memoryview(data)
    while view:
        buffer = memoryview(session.get_buffer(len(view))).cast("B")
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        view = view[count:]
        session.buffer_updated(count)


class Introduced(asyncio.Transport):
    """A proxy's connection, which has the address of the client that the proxy speaks for."""

    def __init__(self, below: asyncio.Transport, peer: tuple[str, int]) -> None:
        super().__init__()
        self._below = below
        self._peer = peer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else self._below.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def close(self) -> None:
        self._below.close()

    def abort(self) -> None:
        self._below.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._below.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._below.get_protocol()

    def is_reading(self) -> bool:
        return self._below.is_reading()

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._below.write(data)

    def write_eof(self) -> None:
        self._below.write_eof()

    def can_write_eof(self) -> bool:
        return self._below.can_write_eof()
