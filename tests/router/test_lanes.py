"""What waits for a front that is behind: nobody waits for all that was said to others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from blindpost.router.fronts import channel, fleet, frames
from blindpost.router.fronts.channel import HEADER, Channel
from blindpost.router.fronts.lanes import TURN_BYTES, Lanes
from blindpost.wire.value import Buffer
from tests.support.serving.waiting import until

HIGH, LOW = 1000, 250


def filled(*said: tuple[str, int, bytes]) -> Lanes:
    lanes = Lanes(HIGH, LOW)
    for lane, number, body in said:
        lanes.put(lane, number, [body[:1], body[1:]], len(body))
    return lanes


def taken(lanes: Lanes) -> bytes:
    out = deque[Buffer]()
    lanes.take_turn(out)
    return b"".join(out)


async def test_lanes_take_turns_and_so_do_the_connections_of_one() -> None:
    size = TURN_BYTES
    much, more, other, little = b"m" * size, b"n" * size, b"o" * size, b"little"
    lanes = filled(("a", 1, much), ("a", 1, more), ("a", 2, other), ("b", 3, little), ("b", 3, b"!"))
    assert lanes.size == 3 * size + 7
    assert [taken(lanes) for _ in range(4)] == [much, b"little!", other, more]
    assert lanes.size == 0


async def test_a_turn_of_short_frames_is_as_long_as_one_of_long_frames() -> None:
    half = bytes(TURN_BYTES // 2)
    lanes = filled(*[("a", number, half) for number in (1, 1, 2)], ("b", 3, b"other"))
    assert [len(taken(lanes)) for _ in range(3)] == [TURN_BYTES, len(b"other"), TURN_BYTES // 2]


async def test_what_waits_for_a_connection_that_ended_is_forgotten() -> None:
    lanes = filled(("a", 1, b"one"), ("a", 2, b"two"), ("a", 1, b"three"), ("b", 3, b"four"))
    assert lanes.drop("a", 7) == lanes.drop("c", 1) == 0
    assert lanes.drop("a", 1) == len(b"onethree")
    assert lanes.size == len(b"twofour")
    assert lanes.drop("a", 2) == len(b"two")
    assert taken(lanes) == b"four"
    assert lanes.size == lanes.drop("b", 3) == 0


async def test_a_lane_stalls_above_its_share_until_it_has_little_left() -> None:
    told: list[str] = []
    tells: dict[str, Callable[[], None]] = {
        name: lambda name=name: told.append(name)  # type: ignore[misc]
        for name in "ab"
    }
    lanes = filled(("a", 1, bytes(HIGH)))
    assert not lanes.stalls("a", tells["a"])
    assert not lanes.stalls("b", tells["b"])
    lanes.put("b", 2, [bytes(HIGH // 2)], HIGH // 2)
    assert lanes.stalls("a", tells["a"]), "two lanes share what all of them may hold"
    assert lanes.stalls("a", tells["a"])
    assert not lanes.stalls("b", tells["b"])
    lanes.put("b", 2, [b"!"], 1)
    assert lanes.stalls("b", tells["b"])
    taken(lanes)
    assert not told, "not in the middle of what relieved it"
    await asyncio.sleep(0)
    assert told == ["a"]
    lanes.put("c", 3, [bytes(LOW // 2)], LOW // 2)
    lanes.put("b", 4, [bytes(LOW // 2)], LOW // 2)
    lanes.drop("b", 2)
    await asyncio.sleep(0)
    assert told == ["a", "b"], "two lanes have little left if each has half of it"


class Narrow:
    """A line that takes so many bytes whenever its channel is told of room."""

    def __init__(self, coming: bytes = b"") -> None:
        self.free = 0
        self.sent = bytearray()
        self.coming = coming
        self.readable: Callable[[], None]
        self.writable: Callable[[], None]

    def begin(self, room: int, readable: Callable[[], None]) -> None:
        self.readable = readable

    def send(self, pieces: list[Buffer], descriptors: Sequence[int]) -> int:
        if not self.free:
            raise BlockingIOError
        data = b"".join(pieces)[: self.free]
        self.free -= len(data)
        self.sent += data
        return len(data)

    def wait_for_room(self, writable: Callable[[], None]) -> None:
        self.writable = writable

    def wait_no_more(self) -> None: ...

    def close(self) -> None: ...

    def takes(self, count: int) -> list[tuple[int, int, int]]:
        """The kind, number and size of all frames that it has taken, once it has taken so many bytes more."""
        self.free = count
        self.writable()
        found, at = [], 0
        while at + HEADER.size <= len(self.sent):
            size, kind, number = HEADER.unpack_from(self.sent, at)
            found.append((kind, number, size))
            at += HEADER.size + size
        return found

    def receive(self, room: memoryview) -> tuple[int, Sequence[int]]:
        part, self.coming = self.coming[: len(room)], self.coming[len(room) :]
        room[: len(part)] = part
        return len(part), ()


def channel_over(line: Any, *times: int, hear: Callable[..., None] = lambda *_: None) -> Channel:
    return Channel(line, hear, lambda: None, *times)


def stuffed(line: Narrow, count: int = 64) -> Channel:
    """A channel to a front that is behind: to ten connections of one address much was said."""
    near = channel_over(line)
    body = bytes(256 << 10)
    for number in range(count):
        near.put(frames.SAY, number % 10, [body], len(body), "flooder")
    near.flush()
    assert near.lags
    return near


async def test_nobody_waits_for_what_was_said_to_another_address() -> None:
    line = Narrow()
    near = stuffed(line)
    near.put(frames.SAY, 77, [b"an answer"], 9, "bystander")
    near.tell(frames.CLOSE, 77, lane="bystander")
    near.tell(frames.PING, 0)
    assert near.stalls("flooder", print)
    assert not near.stalls("bystander", print), "only who has much waiting is held"
    came = line.takes(2 * channel.LOW)
    assert [one for one in came if one[1] == 77] == [(frames.SAY, 77, 9), (frames.CLOSE, 77, 0)]
    assert (frames.PING, 0, 0) in came
    came = line.takes(1 << 30)
    assert sum(size for _, _, size in came) == 64 * (256 << 10) + 9
    assert near.backlog == 0
    await asyncio.sleep(0)
    assert not near.lags


async def test_answers_of_a_connection_stay_in_order_however_little_is_taken_at_once() -> None:
    line = Narrow()
    near = channel_over(line)
    sizes: dict[int, list[int]] = {number: [] for number in range(7)}
    for step in range(400):
        number, size = step % 7, 1 + step * 37 % 20_000
        sizes[number].append(size)
        near.put(frames.SAY, number, [bytes(size)], size, number % 3)
        if not step:
            near.flush()
        if step > 100:
            line.takes(step * 91 % 9_000 + 1)
    assert near.backlog > channel.LOW
    came = line.takes(1 << 30)
    assert {number: [size for _, one, size in came if one == number] for number in sizes} == sizes
    assert near.backlog == 0


async def test_what_waits_for_a_connection_that_is_cut_leaves_the_channel() -> None:
    line = Narrow()
    near = stuffed(line)
    before = near.backlog
    for number in range(10):
        near.drop("flooder", number)
    assert near.backlog <= channel.LOW + HEADER.size + (256 << 10) < before
    near.tell(frames.SAY, 77, b"an answer", lane="bystander")
    assert (frames.SAY, 77, 9) in line.takes(1 << 30)
    near.close()
    assert near.backlog == 0
    near.drop("bystander", 77)
    assert near.backlog == 0


async def test_an_engine_hears_all_that_waits_in_the_channel_before_it_decides() -> None:
    """Whose turn it is can only be seen there: in the channel a command waits behind all others."""
    body, heard = bytes(64 << 10), list[int]()
    count = 4 * 2 * channel.FRAME_MAX // len(body)
    coming = b"".join([HEADER.pack(len(body), frames.BLOCK, number) + body for number in range(count)])
    for times, most in ((1, count // 4), (8, count)):
        line = Narrow(coming)
        heard.clear()
        channel_over(line, times, hear=lambda kind, number, view: heard.append(number))
        line.readable()
        assert most - 1 <= len(heard) <= most
        assert heard == list(range(len(heard)))


def test_a_front_that_says_anything_does_not_stand_still() -> None:
    front = fleet.Front.__new__(fleet.Front)
    front.sessions, front.missed = {}, fleet.MISSED_MAX
    front._hear(frames.BLOCK, 1, memoryview(b""))
    assert front.missed == 0


async def test_relief_of_a_lane_comes_once() -> None:
    line, told = Narrow(), list[str]()
    near = stuffed(line)

    def tell() -> None:
        told.append("relieved")

    assert near.stalls("flooder", tell)
    line.takes(1 << 30)
    assert not told
    await until(lambda: bool(told))
    assert told == ["relieved"]
    assert not near.stalls("flooder", tell)
