"""Events on their way to the program: in order, once, and not more than it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

import pytest

from blindpost.agent import Connected, Connection, Event, Received, ReceivedMessage, Sent, Suspended, Up
from blindpost.agent.connection import Calls
from blindpost.agent.work import stream
from blindpost.agent.work.stream import EventStream
from blindpost.testing.clock import run_virtual
from tests.support.agent.rows import ROUTER


def conn(name: str = "one") -> Connection:
    return Connection(cast(Calls, None), name)


def message(number: int, name: str = "one") -> Received:
    return Received(conn(name), cast(ReceivedMessage, _Message(number)))


@dataclass(frozen=True)
class _Message:
    """All that is asked of a message here."""

    id: int


class Reader:
    """A stream of so many events, what it told, and what was taken from it."""

    def __init__(self, most: int = 4) -> None:
        self.stream = EventStream(most)
        self.settled: list[int] = []
        self.pressed: list[bool] = []
        self.stream.settled.listen(self.settled.append)
        self.stream.pressure.listen(self.pressed.append)

    async def take(self) -> Event | None:
        async with asyncio.timeout(1):
            return await self.stream.take()

    async def rest(self) -> list[Event]:
        """All that can be taken now."""
        found = []
        while self.stream._events:
            event = await self.take()
            assert event is not None
            found.append(event)
        return found


def with_reader(test: Callable[[Reader], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test(Reader()))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# One after the other


@with_reader
async def test_events_come_in_their_order(reader: Reader) -> None:
    events = [Suspended(), message(1), Connected(conn(), False)]
    for event in events:
        reader.stream.put(event)
    assert await reader.rest() == events


@with_reader
async def test_who_waits_is_given_the_next_one(reader: Reader) -> None:
    taking = asyncio.create_task(reader.take())
    await asyncio.sleep(0.5)
    assert not taking.done()
    reader.stream.put(Suspended())
    assert await taking == Suspended()
    with pytest.raises(TimeoutError):
        await reader.take()


@with_reader
async def test_an_event_is_settled_when_the_next_one_is_asked_for(reader: Reader) -> None:
    for row in (7, None, 8):
        reader.stream.put(Suspended(), row)
    assert reader.settled == []
    await reader.take()
    assert reader.settled == []
    await reader.take()
    assert reader.settled == [7]
    await reader.take()
    assert reader.settled == [7]
    reader.stream.settle()
    reader.stream.settle()
    assert reader.settled == [7, 8], "each once"


@with_reader
async def test_a_closed_stream_gives_what_is_left_and_settles_nothing(reader: Reader) -> None:
    for row in (7, 8):
        reader.stream.put(Suspended(), row)
    await reader.take()
    reader.stream.close()
    assert await reader.take() == Suspended()
    assert [await reader.take(), await reader.take()] == [None, None]
    assert reader.settled == []


@with_reader
async def test_who_waits_is_told_that_it_is_closed(reader: Reader) -> None:
    taking = asyncio.create_task(reader.take())
    await asyncio.sleep(0.5)
    reader.stream.close()
    assert await taking is None


# Not before the program knows the connection


@with_reader
async def test_what_is_about_a_connection_comes_after_it_was_given(reader: Reader) -> None:
    reader.stream.hold("one")
    about = [Connected(conn(), False), message(1)]
    other = Connected(conn("two"), False)
    for event in (about[0], other, about[1], Up(ROUTER, ())):
        reader.stream.put(event, 3 if event is about[0] else None)
    reader.stream.hold("one")
    assert await reader.rest() == [other, Up(ROUTER, ())]
    reader.stream.give("one")
    assert await reader.rest() == [], "the call returns first"
    await asyncio.sleep(0)
    assert await reader.rest() == about
    assert reader.settled == [3]
    reader.stream.put(about[0])
    assert await reader.rest() == [about[0]]


@with_reader
async def test_what_is_about_a_connection_that_was_not_made_is_forgotten(reader: Reader) -> None:
    reader.stream.hold("one")
    reader.stream.put(Connected(conn(), False))
    reader.stream.forget("one")
    reader.stream.forget("one")
    reader.stream.give("one")
    await asyncio.sleep(0)
    assert await reader.rest() == []


# A message that came again


@with_reader
async def test_copies_of_an_acknowledged_message_are_not_given(reader: Reader) -> None:
    others = [message(2), message(1, "two"), Suspended()]
    rows = iter(range(4))
    for event in (message(1), others[0], message(1), others[1], others[2]):
        reader.stream.put(event, next(rows) if event == message(1) else None)
    assert await reader.take() == message(1)
    reader.stream.put(message(1), next(rows))
    reader.stream.acknowledged("one", 1)
    assert reader.settled == [1, 2], "the first is in the program's hands"
    assert await reader.rest() == others
    assert reader.settled == [1, 2, 0]
    assert not reader.stream._messages


@with_reader
async def test_a_copy_that_waited_when_the_first_was_taken_is_not_given(reader: Reader) -> None:
    for _ in range(2):
        reader.stream.put(message(1))
    assert await reader.take() == message(1)
    reader.stream.acknowledged("one", 1)
    assert (await reader.rest(), reader.settled) == ([], [])


@with_reader
async def test_what_comes_after_the_acknowledgement_is_given(reader: Reader) -> None:
    """A router that has not heard of it delivers it once more; who receives it drops it, not this."""
    reader.stream.acknowledged("one", 1)
    reader.stream.put(message(1))
    assert len(await reader.rest()) == 1
    assert not reader.stream._messages


# Not more than it takes


@with_reader
async def test_it_is_told_when_too_many_wait_and_when_half_of_them_went(reader: Reader) -> None:
    for _ in range(3):
        reader.stream.put(Suspended())
    assert reader.pressed == []
    for _ in range(3):
        reader.stream.put(Suspended())
    assert reader.pressed == [True], "once"
    for left in (5, 4, 3):
        await reader.take()
        assert (len(reader.stream._events), reader.pressed) == (left, [True])
    await reader.take()
    assert reader.pressed == [True, False]
    await reader.take()
    for _ in range(3):
        reader.stream.put(Suspended())
    assert reader.pressed == [True, False, True]


@with_reader
async def test_copies_that_went_with_their_acknowledgement_are_no_pressure(reader: Reader) -> None:
    """Nothing else would be taken from routers, and the program would wait for the next event for ever."""
    for number in range(4):
        reader.stream.put(message(number, str(number)))
    assert reader.pressed == [True]
    reader.stream.acknowledged("0", 0)
    assert reader.pressed == [True]
    reader.stream.acknowledged("1", 1)
    assert reader.pressed == [True, False]
    for number in (2, 3):
        reader.stream.acknowledged(str(number), number)
    assert (await reader.rest(), reader.pressed) == ([], [True, False])


# Shown again


@with_reader
async def test_a_message_that_was_shown_again_is_dropped_once_when_its_router_brings_it(
    reader: Reader,
) -> None:
    reader.stream.put_again(message(1))
    assert await reader.rest() == [message(1)]
    for number in (1, 2, 1):
        reader.stream.put(message(number))
    assert await reader.rest() == [message(2), message(1)]


@with_reader
async def test_of_what_was_shown_again_and_acknowledged_nothing_is_known(reader: Reader) -> None:
    reader.stream.put_again(message(1))
    reader.stream.acknowledged("one", 1)
    reader.stream.put(message(1))
    assert await reader.rest() == [message(1)]


@with_reader
async def test_there_is_room_until_so_many_events_wait_and_when_half_of_them_went(reader: Reader) -> None:
    for number in range(4):
        await reader.stream.has_room()
        reader.stream.put(message(number))
    waiting = asyncio.create_task(reader.stream.has_room())
    for left in (3, 2):
        await asyncio.sleep(0.1)
        assert not waiting.done(), left + 1
        await reader.take()
    await waiting


def told(number: int) -> Sent:
    return Sent(conn(), number, None)


@pytest.mark.parametrize(("count", "dropped"), [(11, []), (12, [8]), (21, [8]), (24, [8, 10])])
def test_what_nobody_takes_is_dropped_in_the_end(
    count: int, dropped: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest that a restart would forget as well; messages and what is stored come."""
    monkeypatch.setattr(stream, "LEFT_MAX", 10)

    async def talk() -> None:
        reader = Reader(4)
        reader.stream.put(message(1))
        reader.stream.put(Connected(conn(), False), 7)
        for number in range(count):
            reader.stream.put(told(number))
        assert reader.pressed == [True]
        left = [told(number) for number in range(sum(dropped), count)]
        assert await reader.rest() == [message(1), Connected(conn(), False), *left]
        assert reader.pressed == [True, False]

    run_virtual(talk())
    assert caplog.messages == [
        f"nobody takes events: {some} that ask for nothing were dropped" for some in dropped
    ]


@with_reader
async def test_who_is_told_that_there_is_no_room_finds_none(reader: Reader) -> None:
    seen: list[bool] = []
    reader.stream.pressure.listen(lambda _: seen.append(reader.stream._has_room.is_set()))
    for number in range(4):
        reader.stream.put(told(number))
    await reader.rest()
    assert seen == [False, True]


@with_reader
async def test_what_must_not_be_lost_may_wait_without_end(reader: Reader) -> None:
    """It is looked through again only when as much as before has come."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "LEFT_MAX", 10)
        reader.stream = EventStream(4)
        looked, drop = [], reader.stream._drop

        def noted() -> None:
            drop()
            looked.append(len(reader.stream._events))

        patch.setattr(reader.stream, "_drop", noted)
        for number in range(34):
            reader.stream.put(message(number))
    assert looked == [14, 24, 34]
    assert [cast(Received, event).msg.id for event in await reader.rest()] == list(range(34))
