"""A client of the delivery service.

    async with await DsClient.connect("ds.example.org", token=token, fingerprint=fingerprint) as client:
        await client.enqueue(recipient_key, b"...")
        async for payload in client.receive(own_key):
            ...

`receive` leases and acknowledges: each payload is yielded once, even across lost connections if the same
`DsClient` calls `reconnect`, and is removed from the service when the loop asks for the next one.
`fetch` is the older, simpler call: what it returned has left the queue.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from blindpost.ds import quic as quic_streams
from blindpost.ds.model import DS_PORT, WIRE_VERSION
from blindpost.ds.streams import client_context, is_pinned, keep_alive
from blindpost.wire.capnp.framing import Framer
from blindpost.wire.capnp.node import (
    METHODS,
    NODE_SERVICE,
    Ack,
    Auth,
    Deliveries,
    Delivery,
    Done,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    Fingerprint,
    KeyPackage,
    Lease,
    Payloads,
    Request,
    Result,
    UploadKeyPackage,
    read_result,
    write_request,
)
from blindpost.wire.capnp.rpc import (
    Abort,
    Canceled,
    ExceptionType,
    Offered,
    Raised,
    Results,
    RpcMessage,
    read_rpc,
    write_bootstrap,
    write_call,
    write_finish,
)
from blindpost.wire.errors import WireError

ANSWER_BYTES_MAX = 64 << 20
RECEIVE_WAIT_S = 30.0

_R = TypeVar("_R")


class DsError(Exception):
    """A call of the delivery service did not succeed."""


class RefusedError(DsError):
    """The service refused, with this text."""

    def __init__(self, reason: str, *, is_overloaded: bool) -> None:
        super().__init__(reason)
        self.is_overloaded = is_overloaded
        """Whether the same call may succeed later."""


class ConnectionLostError(DsError):
    """The connection ended before the answer; an enqueue may or may not have been stored."""


class _Wire(asyncio.Protocol):
    """Questions and answers over one stream."""

    def __init__(self) -> None:
        self._framer = Framer(ANSWER_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[int, asyncio.Future[Result]]] = {}
        self._numbers = itertools.count(1)
        self._why = "the connection is closed"
        self._room = asyncio.Event()
        self._room.set()
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(write_bootstrap(0))

    @property
    def certificate(self) -> bytes | None:
        assert self._transport is not None
        found: bytes | None = self._transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    async def ask(self, request: Request) -> Result:
        """One call; cancelling it tells the service."""
        await self._room.wait()
        transport = self._transport
        if transport is None or self.closed.is_set() or transport.is_closing():
            raise ConnectionLostError(self._why)
        method, question = METHODS.index(type(request)), next(self._numbers)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[question] = (method, future)
        transport.write(write_call(question, None, NODE_SERVICE, method, write_request(request), promised=0))
        try:
            return await future
        except asyncio.CancelledError:
            if question in self._waiting:
                transport.write(write_finish(question))
            raise

    def data_received(self, data: bytes) -> None:
        self._framer.feed(data)
        try:
            for message, _ in self._framer.messages():
                self._handle(read_rpc(message))
        except WireError as error:
            self._why = f"the service sent what cannot be read: {error}"
            self.close()

    def _handle(self, rpc: RpcMessage) -> None:
        match rpc:
            case Offered():
                pass
            case Results(question, content):
                method, future = self._answered(question)
                result = read_result(method, content)
                if not future.done():
                    self._finish(question)
                    future.set_result(result)
            case Raised(question, reason, type_):
                _, future = self._answered(question)
                if not future.done():
                    self._finish(question)
                    is_overloaded = type_ is ExceptionType.OVERLOADED
                    future.set_exception(RefusedError(reason, is_overloaded=is_overloaded))
            case Canceled(question):
                self._answered(question)
            case Abort(reason):
                self._why = f"the service ended the connection: {reason}"
                self.close()
            case _:
                raise WireError("an unexpected message")

    def _answered(self, question: int) -> tuple[int, asyncio.Future[Result]]:
        found = self._waiting.pop(question, None)
        if found is None:
            raise WireError("an answer to no question")
        return found

    def _finish(self, question: int) -> None:
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(write_finish(question))

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        self._room.set()
        waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLostError(self._why))

    async def flushed(self) -> None:
        """Until the service has what was said last, that an answer was taken for example. TCP sees to that
        itself, also when it is closed."""
        if isinstance(self._transport, quic_streams.QuicDialed):
            await self._transport.flushed()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class DsClient:
    """One connection to one delivery service, for one identity. Use `connect`."""

    def __init__(self, dial: Callable[[], Any], auth: Auth) -> None:
        self._dial = dial
        self._auth = auth
        self._wire: _Wire | None = None
        self._unconfirmed: dict[bytes, None] = {}

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int = DS_PORT,
        *,
        token: bytes | str = b"",
        device_id: bytes = b"",
        fingerprint: bytes | str | None = None,
        authorities: Path | None = None,
        quic: bool = False,
    ) -> DsClient:
        """Connect over TLS, or over QUIC.

        `token` is what `blindpost ds token` prints, `fingerprint` what `blindpost ds init` does: the SHA-256
        of the service's certificate, as bytes or in hexadecimal. Without it the certificate must be valid
        for `host`, by these authorities or the system's.
        """
        pinned = bytes.fromhex(fingerprint) if isinstance(fingerprint, str) else fingerprint
        access = token.encode() if isinstance(token, str) else token

        async def dial_quic() -> _Wire:
            wire = _Wire()
            try:
                await quic_streams.dial(wire, host, port, authorities=authorities, pinned=pinned)
            except (OSError, TimeoutError) as error:
                raise ConnectionLostError(
                    f"cannot connect: {str(error) or 'no answer, or another certificate than expected'}"
                ) from error
            return wire

        async def dial() -> _Wire:
            context = client_context(authorities, pinned=pinned is not None)
            loop = asyncio.get_running_loop()
            try:
                transport, wire = await loop.create_connection(_Wire, host, port, ssl=context)
                keep_alive(transport.get_extra_info("socket"))
            except OSError as error:
                raise ConnectionLostError(f"cannot connect: {error}") from error
            if pinned is not None and not is_pinned(wire.certificate, pinned):
                wire.close()
                raise DsError("the service has another certificate than expected")
            return wire

        client = cls(dial_quic if quic else dial, Auth(1, access, device_id))
        await client.reconnect()
        return client

    async def reconnect(self) -> None:
        """Replace the current or lost connection by a new one."""
        if self._wire is not None:
            await self._wire.flushed()
            self._wire.close()
        self._wire = cast(_Wire, await self._dial())

    async def close(self) -> None:
        if self._wire is not None:
            await self._wire.flushed()
            self._wire.close()
            await self._wire.closed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def enqueue(self, recipient_key: bytes, payload: bytes, channel_id: bytes = b"") -> None:
        """Store a payload for a recipient. When this returns, it is durable."""
        request = Enqueue(recipient_key, payload, channel_id, WIRE_VERSION, self._auth)
        await self._ask(request, Done)

    async def fetch(self, recipient_key: bytes, channel_id: bytes = b"") -> tuple[bytes, ...]:
        """Take what is in the queue, oldest first; there may be more. What is returned has left the queue."""
        return (
            await self._ask(Fetch(recipient_key, channel_id, WIRE_VERSION, self._auth), Payloads)
        ).payloads

    async def fetch_wait(
        self, recipient_key: bytes, channel_id: bytes = b"", *, timeout_s: float
    ) -> tuple[bytes, ...]:
        """As `fetch`, but wait until something arrives."""
        timeout_ms = int(timeout_s * 1000)
        request = FetchWait(recipient_key, channel_id, WIRE_VERSION, timeout_ms, self._auth)
        return (await self._ask(request, Payloads)).payloads

    async def lease(
        self,
        recipient_key: bytes,
        channel_id: bytes = b"",
        *,
        timeout_s: float = 0.0,
        lease_s: float = 0.0,
        max_payloads: int = 0,
    ) -> tuple[Delivery, ...]:
        """Lease what is in the queue; what is not acknowledged in time is delivered again."""
        request = Lease(
            recipient_key,
            channel_id,
            WIRE_VERSION,
            int(timeout_s * 1000),
            int(lease_s * 1000),
            max_payloads,
            self._auth,
        )
        return (await self._ask(request, Deliveries)).deliveries

    async def ack(self, recipient_key: bytes, ids: tuple[bytes, ...], channel_id: bytes = b"") -> None:
        """Remove deliveries permanently. May be repeated."""
        await self._ask(Ack(recipient_key, channel_id, WIRE_VERSION, ids, self._auth), Done)

    async def receive(
        self, recipient_key: bytes, channel_id: bytes = b"", *, lease_s: float = 0.0
    ) -> AsyncIterator[bytes]:
        """Payloads as they arrive, each once; ends with `ConnectionLostError` when the connection does.

        A payload counts as done when the loop asks for the next one. After `reconnect` a new `receive` of
        the same client does not yield again what an earlier one did.
        """
        while True:
            for delivery in await self.lease(
                recipient_key, channel_id, timeout_s=RECEIVE_WAIT_S, lease_s=lease_s
            ):
                if delivery.id not in self._unconfirmed:
                    self._unconfirmed[delivery.id] = None
                    yield delivery.payload
                await self.ack(recipient_key, (delivery.id,), channel_id)
                self._unconfirmed.pop(delivery.id, None)

    async def upload_key_package(self, identity_key: bytes, package: bytes) -> bytes:
        """Add a key package of this client's own; returns its SHA-256."""
        request = UploadKeyPackage(identity_key, package, self._auth)
        return (await self._ask(request, Fingerprint)).fingerprint

    async def fetch_key_package(self, identity_key: bytes) -> bytes | None:
        """Take one of somebody's key packages, which nobody else gets; None if there is none."""
        request = FetchKeyPackage(identity_key, self._auth)
        return (await self._ask(request, KeyPackage)).package or None

    async def _ask(self, request: Request, kind: type[_R]) -> _R:
        if self._wire is None:
            raise ConnectionLostError("not connected")
        result = await self._wire.ask(request)
        assert isinstance(result, kind)
        return result
