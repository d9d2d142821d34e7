"""TLS of the standard library below strangers: what they send must say something.

OpenSSL takes any number of records that only change keys, and records of one byte, inside one call, and each
costs us as much as a full one. They cannot be counted from here: what came in is compared with what it said.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from typing import Any

FREE = 20 << 10
"""Bytes below TLS that need not say anything: more than a record that has not come whole."""
GOODBYE_S = 2.0
"""How long a connection that is closed waits for a peer that does not close TLS too."""
TIMES = 8
"""A record of four bytes is seven times as long as its content."""


class Overhead:
    """How much one peer may still send without saying anything."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = FREE

    def is_bearable(self, came: int, said: int) -> bool:
        """Whether a peer may go on that sent so much, in which there was so much."""
        self._left = min(self._left - came + TIMES * said, FREE)
        return self._left >= 0


class CountedObject(ssl.SSLObject):
    """Counts what was read from it."""

    said = 0

    def read(self, *arguments: Any) -> Any:
        found = super().read(*arguments)
        self.said += found if isinstance(found, int) else len(found)
        return found


class GuardedTls(sslproto.SSLProtocol):
    """TLS between a transport and a protocol that cuts off peers who send much and say nothing."""

    _transport: asyncio.Transport | None
    _sslobj: CountedObject | None
    _app_reading_paused: bool
    _state: sslproto.SSLProtocolState

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        waiter: asyncio.Future[None] | None = None,
        **options: Any,
    ) -> None:
        """`waiter` ends with the handshake."""
        context.sslobject_class = CountedObject
        super().__init__(
            asyncio.get_running_loop(),
            protocol,
            context,
            waiter,  # type: ignore[arg-type]  # as the library has it
            **options,
        )
        self._overhead = Overhead()
        self._heard = 0

    def buffer_updated(self, nbytes: int) -> None:
        was_shaken = self._state is sslproto.SSLProtocolState.WRAPPED
        super().buffer_updated(nbytes)
        if not was_shaken:
            return
        self._heard += nbytes
        tls = self._sslobj
        if tls is None or self._app_reading_paused:
            return  # what the protocol does not take yet is not read, and nothing more comes
        came, self._heard = self._heard, 0
        said, tls.said = tls.said, 0
        if not self._overhead.is_bearable(came, said) and self._transport is not None:
            self._transport.abort()


async def start_guarded(
    below: asyncio.Transport, protocol: asyncio.Protocol, context: ssl.SSLContext, host: str
) -> asyncio.Transport:
    """As the loop's `start_tls`, as a client, with a guard."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    guard = GuardedTls(
        protocol,
        context,
        waiter,
        server_side=False,
        server_hostname=host,
        call_connection_made=False,
        ssl_shutdown_timeout=GOODBYE_S,
    )
    below.pause_reading()
    below.set_protocol(guard)
    guard.connection_made(below)
    below.resume_reading()
    await waiter
    transport: asyncio.Transport = guard._app_transport
    return transport
