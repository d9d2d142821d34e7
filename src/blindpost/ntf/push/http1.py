"""One HTTP/1.1 connection for one POST at a time, for push services that do not speak HTTP/2.

Only the status and one header of an answer matter, so bodies are skipped, and an answer without a length
ends the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import cast

from blindpost.ntf.push.http2 import ConnectionFailedError, Header, NotSentError, Response

HEAD_MAX = 16 * 1024
BODY_MAX = 64 * 1024
INTERIM_MAX = 8
"""Answers such as 100 that may come before the one that counts."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?")


class Http1Connection(asyncio.Protocol):
    """A connection for as long as it is `usable`; then a new one is needed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._turn = asyncio.Lock()
        self._received = bytearray()
        self._response: Response | None = None
        """The answer whose body is on its way."""
        self._left = 0
        """How many bytes of the body, or how many interim answers, may still come."""
        self._is_last = False
        self._done: asyncio.Future[Response] | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.closed = False

    @property
    def usable(self) -> bool:
        """Whether it takes another request."""
        return not self.closed

    @property
    def busy(self) -> bool:
        """Whether requests wait for their answers."""
        return self._turn.locked()

    async def post(self, headers: Sequence[Header], body: bytes, timeout_s: float) -> Response:
        """The response to one request, or `ConnectionFailedError`.

        The timeout starts with its turn: a request that waits for others does not end them.
        """
        async with self._turn:
            if self.closed:
                raise NotSentError("the connection is closed")
            self._done = self._loop.create_future()
            self._left = INTERIM_MAX
            self._transport.writelines((_head(headers, len(body)), body))
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._done
            except TimeoutError:
                self._end("the push service did not answer in time")
                raise ConnectionFailedError("the push service did not answer in time") from None
            except asyncio.CancelledError:
                self._end("the request was given up")
                raise
            finally:
                self._done = None

    async def close(self) -> None:
        self._end("the connection was closed")
        await asyncio.shield(self._gone)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        if self._response is not None:
            self._take_body(self._response, len(data))
            return
        self._received += data
        while not self.closed and self._response is None:
            end = self._received.find(b"\r\n\r\n", 0, HEAD_MAX + 4)
            if end < 0:
                if len(self._received) > HEAD_MAX:
                    self._end("the push service sent too long a head")
                return
            head = bytes(self._received[:end])
            del self._received[: end + 4]
            self._answered(head)

    def _answered(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        status = _STATUS.fullmatch(first)
        if status is None or self._done is None or self._done.done():
            self._end("the push service does not speak HTTP/1.1")
            return
        fields = dict(_field(line) for line in lines)
        response = Response(int(status[1]), b"", fields.get(b"retry-after", b""))
        if response.status < 200:
            self._left -= 1
            if not self._left:
                self._end("the push service does not come to its answer")
            return
        length = 0 if response.status == 204 else _length(fields)
        self._is_last = fields.get(b"connection", b"").lower() == b"close"
        if length is None or length > BODY_MAX:
            self._done.set_result(response)
            self._end("the end of the answer is not known")
            return
        self._response, self._left, there = response, length, len(self._received)
        self._received.clear()
        self._take_body(response, there)

    def _take_body(self, response: Response, there: int) -> None:
        """Skip the received part of the body; the request ends with it."""
        if there < self._left:
            self._left -= there
            return
        self._response = None
        if self._done is not None and not self._done.done():
            self._done.set_result(response)
        if there > self._left or self._is_last:
            self._end("the push service closes the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection broke")
        if not self._gone.done():
            self._gone.set_result(None)

    def _end(self, why: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._transport.abort()
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionFailedError(why))


def _head(headers: Sequence[Header], length: int) -> bytes:
    fields = dict(headers)
    lines = [
        b"%b %b HTTP/1.1" % (fields[b":method"], fields[b":path"]),
        b"host: " + fields[b":authority"],
        *(name + b": " + value for name, value in headers if not name.startswith(b":")),
        b"content-length: %d" % length,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


def _length(fields: dict[bytes, bytes]) -> int | None:
    text = fields.get(b"content-length", b"")
    if b"transfer-encoding" in fields or not text.isdigit() or len(text) > 9:
        return None
    return int(text)
