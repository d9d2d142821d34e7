"""One HTTP/2 connection over TLS for many small POSTs at once.

It is h2 with as little around it as pushes need: a general HTTP client spends ten times as much on a
request as the protocol itself does. Requests wait while the peer's stream limit, its window or the network
has no room; what the peer answers settles the one future that waits for it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error, ProtocolError
from h2.settings import SettingCodes, Settings

from blindpost.ntf.push.goodbyes import Goodbyes
from blindpost.wire.http2_allowance import Allowance

ALPN = "h2"
RESPONSE_MAX = 64 * 1024
"""Longer bodies are not read: the answers that matter here are short."""

GOODBYE_S = 2.0
"""How long to wait for the peer to close TLS too."""

_PING = b"are you?"
_STREAM_IDS_LAST = 2**31 - 1
_CONFIG = H2Configuration(
    client_side=True,
    header_encoding=None,
    normalize_outbound_headers=False,
    validate_outbound_headers=False,
)
"""Our own headers are valid and need not be checked for every request."""

_SETTINGS = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.MAX_CONCURRENT_STREAMS: 100,
    SettingCodes.MAX_HEADER_LIST_SIZE: 16 * 1024,
}
"""The peer may start no streams, and its answers have short headers."""
_TABLE_MAX = 4096
"""How many bytes of our headers the peer may have us remember: every entry is searched."""

Header = tuple[bytes, bytes]


class ConnectionFailedError(Exception):
    """The connection could not be made, broke, or the peer did not answer in time."""


class NotSentError(ConnectionFailedError):
    """The request was not sent, or the peer said that it will not look at it: another connection may be
    tried at once."""


@dataclass(frozen=True, slots=True)
class Response:
    """What the peer answered."""

    status: int
    body: bytes
    retry_after: bytes = b""
    """The header of this name, if there is one."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How long a silent peer is left alone before a PING, and how long it has to answer."""

    idle_s: float = 300.0
    answer_s: float = 25.0


WATCH = Watch()


@dataclass(eq=False, slots=True)
class _Exchange:
    """A request on its way."""

    headers: Sequence[Header]
    body: memoryview
    done: asyncio.Future[Response]
    stream_id: int = 0
    status: int = 0
    retry_after: bytes = b""
    received: bytearray = field(default_factory=bytearray)


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Verifies the peer's certificate and name against these authorities, or against the system's."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    return context


class Http2Connection(asyncio.Protocol):
    """A connection for as long as it is `usable`; then a new one is needed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._watching: asyncio.TimerHandle | None = None
        self._h2 = H2Connection(_CONFIG)
        self._h2.local_settings = Settings(client=True, initial_values=_SETTINGS)
        self._allowance = Allowance()
        self._goodbyes = Goodbyes()
        self._transport: asyncio.Transport
        self._waiting: OrderedDict[_Exchange, None] = OrderedDict()
        self._unfinished: OrderedDict[int, _Exchange] = OrderedDict()
        self._streams: dict[int, _Exchange] = {}
        self._are_settings_known = False
        self._writable = True
        self._pump_planned = False
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._retired = False
        self.closed = False

    @property
    def usable(self) -> bool:
        """Whether it takes another request."""
        return not (self.closed or self._retired)

    @property
    def busy(self) -> bool:
        """Whether requests wait for their answers."""
        return bool(self._waiting or self._streams)

    @classmethod
    async def connect(
        cls, host: str, port: int, context: ssl.SSLContext, timeout_s: float, watch: Watch = WATCH
    ) -> Http2Connection:
        """A connection whose TLS handshake is done, or `ConnectionFailedError`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: cls(watch), host, port, ssl=context, ssl_shutdown_timeout=GOODBYE_S
                )
        except (OSError, TimeoutError) as error:
            raise ConnectionFailedError(f"no connection: {type(error).__name__}") from error
        agreed = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        if agreed not in (ALPN, None):
            connection.abort()
            raise ConnectionFailedError("the peer does not speak HTTP/2")
        return connection

    async def post(self, headers: Sequence[Header], body: bytes, timeout_s: float) -> Response:
        """The response to one request, or `ConnectionFailedError`."""
        if not self.usable:
            raise NotSentError("the connection is closed")
        exchange = _Exchange(headers, memoryview(body), self._loop.create_future())
        self._waiting[exchange] = None
        self._plan_pump()
        timer = self._loop.call_later(timeout_s, self._timed_out, exchange)
        try:
            return await exchange.done
        except asyncio.CancelledError:
            self._take_back(exchange)
            raise
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Send GOAWAY and close. Requests that still wait fail."""
        if not self.closed:
            self._say_goodbye()
        await asyncio.shield(self._gone)

    def retire(self) -> None:
        """Take no more requests, and close when those under way have their responses."""
        self._retired = True
        self._plan_pump()

    def abort(self) -> None:
        self._end("the connection was given up")
        self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._h2.initiate_connection()
        transport.write(self._h2.data_to_send())
        self._watch_from(self._loop.time())

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._heard_at = self._loop.time()
        if not self._allowance.spend(data):
            self._end("the peer sends too much besides answers")
            self._transport.abort()
            return
        data, goodbyes = self._goodbyes.take_out(data)
        try:
            for event in self._h2.receive_data(data):
                self._received(event)
        except ProtocolError:
            self.abort()
        for last_stream_id in goodbyes:
            self._left_after(last_stream_id)
        if not self.closed:
            self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        self._end("the connection broke")
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        """Stop reading too: answers that the peer asks for, such as to PING, would pile up here."""
        self._writable = False
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable = True
        if not self.closed:
            self._transport.resume_reading()
        self._pump()

    # Whether the peer is there

    def _watch_from(self, heard_at: float) -> None:
        self._watching = self._loop.call_at(heard_at + self._watch.idle_s, self._ask)

    def _ask(self) -> None:
        """PING, unless something arrived meanwhile; anything that arrives after it counts as an answer."""
        now = self._loop.time()
        if now < self._heard_at + self._watch.idle_s:
            self._watch_from(self._heard_at)
            return
        self._h2.ping(_PING)
        self._transport.write(self._h2.data_to_send())
        self._watching = self._loop.call_at(now + self._watch.answer_s, self._judge, now)

    def _judge(self, asked_at: float) -> None:
        if self._heard_at < asked_at:
            self.abort()
        else:
            self._watch_from(self._heard_at)

    # Out

    def _plan_pump(self) -> None:
        """Requests of one turn of the event loop leave in one write."""
        if not self._pump_planned:
            self._pump_planned = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_planned = False
        if self.closed:
            return
        for exchange in tuple(self._unfinished.values()):
            self._send_body(exchange)
        while self._waiting and self._room():
            exchange, _ = self._waiting.popitem(last=False)
            if exchange.done.done():
                continue
            exchange.stream_id = stream_id = self._h2.get_next_available_stream_id()
            self._streams[stream_id] = exchange
            self._h2.send_headers(stream_id, exchange.headers, end_stream=not exchange.body)
            self._send_body(exchange)
            if stream_id >= _STREAM_IDS_LAST:
                self.abort()
                return
        data = self._h2.data_to_send()
        if data:
            self._transport.write(data)
        if self._retired and not self._streams and not self._waiting:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        self._end("the connection was closed on this side")
        self._h2.close_connection()
        self._transport.write(self._h2.data_to_send())
        self._transport.close()

    def _room(self) -> bool:
        """No new stream before the peer sent its settings, nor while the window is full for an older one."""
        if not self._are_settings_known or not self._writable or self._unfinished:
            return False
        return len(self._streams) < self._h2.remote_settings.max_concurrent_streams

    def _send_body(self, exchange: _Exchange) -> None:
        stream_id = exchange.stream_id
        while exchange.body:
            window = self._h2.local_flow_control_window(stream_id)
            size = min(window, self._h2.max_outbound_frame_size, len(exchange.body))
            if size <= 0:
                self._unfinished[stream_id] = exchange
                return
            part, exchange.body = exchange.body[:size], exchange.body[size:]
            self._h2.send_data(stream_id, part.tobytes(), end_stream=not exchange.body)
        self._unfinished.pop(stream_id, None)

    # In

    def _received(self, event: Event) -> None:
        match event:
            case ResponseReceived(stream_id=stream_id, headers=headers):
                exchange = self._streams.get(stream_id)
                if exchange is None:
                    raise ProtocolError("an answer to nothing")
                exchange.status = _status(headers)
                exchange.retry_after = dict(headers).get(b"retry-after", b"")
            case DataReceived(stream_id=stream_id, data=data):
                self._h2.acknowledge_received_data(event.flow_controlled_length, stream_id)
                open_exchange = self._streams.get(stream_id)
                if open_exchange is not None and len(open_exchange.received) < RESPONSE_MAX:
                    open_exchange.received += data
            case StreamEnded(stream_id=stream_id):
                self._answered(stream_id)
            case StreamReset(stream_id=stream_id):
                self._forget(stream_id, ConnectionFailedError("the peer reset the request"))
            case RemoteSettingsChanged():
                self._are_settings_known = True
                encoder = self._h2.encoder
                encoder.header_table_size = min(encoder.header_table_size, _TABLE_MAX)

    def _answered(self, stream_id: int) -> None:
        exchange = self._streams.pop(stream_id, None)
        if exchange is None:
            return
        self._allowance.earn()
        if self._unfinished.pop(stream_id, None) is not None:
            self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        if not exchange.done.done():
            response = Response(exchange.status, bytes(exchange.received), exchange.retry_after)
            exchange.done.set_result(response)

    def _left_after(self, last_stream_id: int) -> None:
        """GOAWAY: the peer answers requests up to this one and looks at no others."""
        self._retired = True
        for stream_id in tuple(self._streams):
            if stream_id > last_stream_id:
                self._forget(stream_id, NotSentError("the peer leaves"))
        for exchange in self._waiting:
            _fail(exchange, NotSentError("the peer leaves"))
        self._waiting.clear()

    def _forget(self, stream_id: int, error: ConnectionFailedError) -> None:
        exchange = self._streams.pop(stream_id, None)
        self._unfinished.pop(stream_id, None)
        if exchange is not None:
            _fail(exchange, error)

    def _take_back(self, exchange: _Exchange) -> None:
        """The caller left: unsent data is dropped, and the peer may stop with the rest."""
        if self._waiting.pop(exchange, exchange) is None or exchange.stream_id not in self._streams:
            return
        del self._streams[exchange.stream_id]
        self._unfinished.pop(exchange.stream_id, None)
        try:
            self._h2.reset_stream(exchange.stream_id, ErrorCodes.CANCEL)
        except H2Error:
            self.abort()
            return
        self._plan_pump()

    def _timed_out(self, exchange: _Exchange) -> None:
        """A peer that does not answer one request does not answer the others: they need a new connection."""
        self.abort()

    def _end(self, why: str) -> None:
        self.closed = True
        if self._watching is not None:
            self._watching.cancel()
        for exchange in (*self._waiting, *self._streams.values()):
            _fail(exchange, ConnectionFailedError(why))
        self._waiting.clear()
        self._streams.clear()
        self._unfinished.clear()


def _fail(exchange: _Exchange, error: ConnectionFailedError) -> None:
    if not exchange.done.done():
        exchange.done.set_exception(error)


def _status(headers: Sequence[Header]) -> int:
    for name, value in headers:
        if name == b":status":
            return int(value) if value.isdigit() and len(value) == 3 else 0
    return 0
