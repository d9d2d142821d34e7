"""A visitor who asks a hundred times in one write is answered in turn with everybody else."""

from __future__ import annotations

import asyncio
from typing import Any

from blindpost.web.connection import Visitor, Visitors
from blindpost.web.http import REQUESTS_MAX
from blindpost.web.site import Reply

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Line(asyncio.Transport):
    """Counts answers; one that says whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0
        self.is_read = True
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.answers += bytes(data).count(b"HTTP/1.1 200")

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def close(self) -> None:
        self.is_closed = True


async def test_many_requests_in_one_write_take_turns() -> None:
    line, count = Line(), REQUESTS_MAX // 2
    visitor = Visitor(lambda method, target: Reply(200, "text/plain", b"hello"), Visitors(), None)
    visitor.connection_made(line)
    visitor.data_received(REQUEST * count)
    turns, most, before = 0, line.answers, line.answers
    assert most <= 3, "the rest waits for others"
    assert not line.is_read, "and nothing more is taken meanwhile"
    while line.answers < count:
        await asyncio.sleep(0)
        most, before, turns = max(most, line.answers - before), line.answers, turns + 1
        assert turns < 100 * count
    assert most <= 3
    await asyncio.sleep(0)
    assert line.is_read
    visitor.data_received(REQUEST)
    assert line.answers == count + 1, "one request alone is answered at once"
    visitor.connection_lost(None)


async def test_a_visitor_who_does_not_read_is_not_heard() -> None:
    line = Line()
    visitor = Visitor(lambda method, target: Reply(200, "text/plain", b"hello"), Visitors(), None)
    visitor.connection_made(line)
    visitor.pause_writing()
    visitor.data_received(REQUEST * 10)
    for _ in range(50):
        await asyncio.sleep(0)
    assert (line.answers, line.is_read) == (0, False)
    visitor.resume_writing()
    for _ in range(50):
        await asyncio.sleep(0)
    assert line.answers == 10
    visitor.connection_lost(None)
