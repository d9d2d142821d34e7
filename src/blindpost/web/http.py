"""HTTP/1.1 and HTTP/2 without input or output: bytes in, bytes out, every request answered by the site.

Both are bounded: a head has a size, a connection a number of requests, a peer that does not read gets no
more than one window.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Protocol

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import h11

from blindpost.web.site import Reply
from blindpost.wire.http2_allowance import Allowance

HEAD_MAX = 8 * 1024
"""How large the head of a request may be."""
REQUESTS_MAX = 200
"""A connection is closed after this many requests; a browser opens another."""
STREAMS_MAX = 16
"""How many requests of one HTTP/2 connection may be unfinished."""
RESETS_MAX = 50
"""A peer that cancels this many requests is disconnected."""
STEP = 1024
"""How much of what came is read before the bounds are looked at: a frame may be as short as nine bytes."""
_PREFACE = 24
PIECE = 16_384
"""How much of a body is handed on at once."""

Answer = Callable[[str, str], Reply]
"""What the site says to a method and a target."""


class Speaker(Protocol):
    """One end of a connection that speaks HTTP."""

    def received(self, data: bytes) -> None:
        """This came; nothing more will come after the empty string."""

    def more(self) -> bytes:
        """The next bytes to send, at most one piece of a body; empty when there are none for now."""

    @property
    def is_done(self) -> bool:
        """Whether the connection is to be closed once there is no more to send."""


class Silent:
    """For a peer that has seen all it came for once the handshake is over."""

    is_done = True

    def __init__(self, answer: Answer) -> None:
        pass

    def received(self, data: bytes) -> None:
        pass

    def more(self) -> bytes:
        return b""


class Http1:
    """One connection of HTTP/1.1, or of 1.0."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)
        self._heads: list[bytes] = []
        self._body = memoryview(b"")
        self._requests = 0
        self.is_done = False

    def received(self, data: bytes) -> None:
        try:
            self._connection.receive_data(data)
            self._read()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint)

    def more(self) -> bytes:
        if self._heads:
            heads = b"".join(self._heads)
            self._heads.clear()
            return heads
        if not self._body:
            return b""
        part, self._body = self._body[:PIECE], self._body[PIECE:]
        piece = self._sent(h11.Data(data=bytes(part)))
        if not self._body:
            piece += self._sent(h11.EndOfMessage())
            self._read_on()
        return piece

    def _read_on(self) -> None:
        try:
            self._read()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint)

    def _read(self) -> None:
        """One request after another, each when the one before is answered."""
        while not (self.is_done or self._body):
            event = self._connection.next_event()
            if isinstance(event, h11.Request):
                self._reply(event)
            elif isinstance(event, h11.Data | h11.EndOfMessage):
                continue
            elif event is h11.PAUSED and self._connection.our_state is h11.DONE:
                self._connection.start_next_cycle()
            else:
                must_close = self._connection.our_state is h11.MUST_CLOSE  # as the client asked
                self.is_done = must_close or isinstance(event, h11.ConnectionClosed)
                return

    def _reply(self, request: h11.Request) -> None:
        """Bodies are not read: a client that sends one is answered and disconnected."""
        self._requests += 1
        headers = dict(request.headers)
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        last = has_body or self._requests >= REQUESTS_MAX
        reply = self._answer(request.method.decode("latin-1"), request.target.decode("latin-1"))
        status, fields, body = _whole(reply, headers.get(b"if-none-match", b"").decode("latin-1"))
        if last:
            fields.append(("connection", "close"))
        self._heads.append(self._sent(h11.Response(status_code=status, headers=_raw(fields))))
        if request.method == b"HEAD" or not body:
            self._heads.append(self._sent(h11.EndOfMessage()))
        else:
            self._body = memoryview(body)
        self.is_done = last

    def _refuse(self, status: int) -> None:
        self.is_done = True
        self._body = memoryview(b"")
        if self._connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            fields = [("content-length", "0"), ("connection", "close")]
            self._heads.append(self._sent(h11.Response(status_code=status, headers=_raw(fields))))
            self._heads.append(self._sent(h11.EndOfMessage()))

    def _sent(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> bytes:
        return self._connection.send(event) or b""


class Http2:
    """One connection of HTTP/2."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="latin-1")
        )
        self._connection.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_MAX,
            },
        )
        self._connection.decoder.max_header_list_size = HEAD_MAX
        self._connection.initiate_connection()
        self._bodies: dict[int, memoryview] = {}
        self._requests = 0
        self._resets = 0
        self._allowance = Allowance(_PREFACE)
        self.is_done = False

    def received(self, data: bytes) -> None:
        if not data:
            self.is_done = True
        for at in range(0, len(data), STEP):
            if self.is_done:
                return
            try:
                self._take(data[at : at + STEP])
            except h2.exceptions.ProtocolError:
                self.is_done = True

    def _take(self, data: bytes) -> None:
        if not self._allowance.spend(data):
            self._end(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            return
        for event in self._connection.receive_data(data):
            # A request may have been taken back by what came right behind it.
            with contextlib.suppress(h2.exceptions.StreamClosedError):
                self._handle(event)

    def more(self) -> bytes:
        """Heads first, then a piece of the first body for which the peer has room."""
        waiting = self._connection.data_to_send()
        if waiting or self.is_done:
            return waiting
        for stream_id, body in self._bodies.items():
            room = min(
                self._connection.local_flow_control_window(stream_id),
                self._connection.max_outbound_frame_size,
                PIECE,
            )
            if room > 0:
                part, rest = body[:room], body[room:]
                self._connection.send_data(stream_id, bytes(part), end_stream=not rest)
                del self._bodies[stream_id]
                if rest:
                    self._bodies[stream_id] = rest
                self._end_when_enough()
                return self._connection.data_to_send()
        return b""

    def _handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._reply(event)
        elif isinstance(event, h2.events.DataReceived):
            self._connection.reset_stream(event.stream_id, h2.errors.ErrorCodes.NO_ERROR)
            self._bodies.pop(event.stream_id, None)
        elif isinstance(event, h2.events.StreamReset):
            self._bodies.pop(event.stream_id, None)
            self._resets += 1
            if self._resets >= RESETS_MAX:
                self._end(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.is_done = True

    def _reply(self, event: h2.events.RequestReceived) -> None:
        self._requests += 1
        if self._requests > REQUESTS_MAX:
            self._end(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            return
        headers = {_text(name): _text(value) for name, value in event.headers}
        method = headers.get(":method", "")
        reply = self._answer(method, headers.get(":path", ""))
        status, fields, body = _whole(reply, headers.get("if-none-match", ""))
        is_whole = method == "HEAD" or not body
        head = [(":status", str(status)), *fields]
        self._connection.send_headers(event.stream_id, head, end_stream=is_whole)
        if not is_whole:
            self._bodies[event.stream_id] = memoryview(body)
        self._end_when_enough()

    def _end_when_enough(self) -> None:
        if self._requests >= REQUESTS_MAX and not self._bodies and not self.is_done:
            self._end(h2.errors.ErrorCodes.NO_ERROR)

    def _end(self, code: h2.errors.ErrorCodes) -> None:
        self._connection.close_connection(code)
        self.is_done = True


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _whole(reply: Reply, known: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, fields and body; a body that the browser already has is not sent again."""
    fields = [*reply.headers, ("cache-control", "no-cache"), ("etag", reply.tag)]
    if reply.status == 200 and known == reply.tag:
        return 304, fields, b""
    fields += [("content-type", reply.content_type), ("content-length", str(len(reply.body)))]
    return reply.status, fields, reply.body


def _raw(fields: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
