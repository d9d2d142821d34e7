"""The RPC protocol of a connection, by hand: finished early, asked twice, split anywhere, or nonsense."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.ds.checks import Refusal
from blindpost.ds.connection import (
    IDLE_MESSAGES_MAX,
    MESSAGES_AT_ONCE,
    OUTBOX_BYTES_MAX,
    QUESTIONS_MAX,
    DsConnection,
)
from blindpost.ds.model import MESSAGE_BYTES_MAX
from blindpost.ds.plan import Called, Canceled, Event, Finished
from blindpost.ds.state import Peer
from blindpost.ds.turn import Answer
from blindpost.engine.inbox import FULL
from blindpost.engine.undo import Undo
from blindpost.wire.capnp.framing import SEGMENTS_MAX, Framer
from blindpost.wire.capnp.node import NODE_SERVICE, Auth, Done, Enqueue, Fetch, Payloads, write_request
from blindpost.wire.capnp.rpc import (
    Abort,
    Offered,
    Raised,
    Results,
    RpcMessage,
    read_rpc,
    write_bootstrap,
    write_call,
    write_finish,
    write_results,
)
from blindpost.wire.capnp.rpc import Canceled as CanceledReturn
from blindpost.wire.errors import WireError

FETCH = Fetch(b"r" * 32, b"c", 1, Auth(1, b"t", b"d"))
ENQUEUE = Enqueue(b"r" * 32, b"payload", b"c", 1, Auth(1, b"t", b"d"))


class Scripted:
    """A recording stream and the connection on top of it."""

    account = None

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = False
        self.reading = True
        self.unsent = 0
        self.events: list[Event] = []
        self.broken = 0
        self.peer = Peer(1, Undo())
        self.connection = DsConnection(self, self.peer, self._put, self._broke)

    def _put(self, connection: DsConnection, event: Event, size: int) -> None:
        self.events.append(event)

    def _broke(self) -> None:
        self.broken += 1

    def write(self, data: bytes | memoryview) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def said(self) -> list[RpcMessage]:
        framer = Framer(1 << 30)
        framer.feed(bytes(self.sent))
        self.sent.clear()
        return [read_rpc(message) for message, _ in framer.messages()]

    def call(self, question: int, request: Fetch | Enqueue = FETCH) -> None:
        ordinal = 3 if isinstance(request, Fetch) else 2
        self.connection.receive(write_call(question, 0, NODE_SERVICE, ordinal, write_request(request)))

    def answer(self, question: int, *, is_held: bool = True) -> None:
        self.connection.answer(Answer(self.peer, question, Payloads((b"x",)), is_held))


def test_a_finish_after_the_return_is_reported() -> None:
    one = Scripted()
    one.call(5)
    one.answer(1)
    assert [type(message) for message in one.said()] == [Results]
    one.connection.receive(write_finish(5))
    assert one.events == [Called(one.peer, 1, FETCH), Finished(one.peer, 1)]
    one.call(5)
    assert one.events[2:] == [Called(one.peer, 2, FETCH)], "its id may be used again, and is another question"
    one.answer(1)
    assert one.said() == [], "what is said about the one before does not concern it"
    one.answer(2)
    assert [type(message) for message in one.said()] == [Results]


def test_a_finish_before_the_return_cancels_the_call() -> None:
    one = Scripted()
    one.call(5)
    one.connection.receive(write_finish(5))
    assert one.events == [Called(one.peer, 1, FETCH), Canceled(one.peer, 1)]
    one.answer(1)
    assert one.said() == [CanceledReturn(5)]
    assert one.events[2:] == [Canceled(one.peer, 1)], "what came into its hands meanwhile goes back"
    one.call(5)
    assert not one.closed


def test_a_finish_of_a_call_that_holds_nothing_is_not_reported() -> None:
    one = Scripted()
    one.call(5, ENQUEUE)
    one.connection.answer(Answer(one.peer, 1, Done()))
    one.connection.receive(write_finish(5))
    assert one.events == [Called(one.peer, 1, ENQUEUE)]


def test_bootstrap_and_a_call_to_its_answer() -> None:
    one = Scripted()
    one.connection.receive(write_bootstrap(0))
    assert one.said() == [Offered(0, 0)]
    one.connection.receive(write_call(1, None, NODE_SERVICE, 3, write_request(FETCH), promised=0))
    assert one.events == [Called(one.peer, 1, FETCH)]


def test_other_methods_and_interfaces() -> None:
    one = Scripted()
    one.connection.receive(write_call(1, 0, NODE_SERVICE, 99, write_request(FETCH)))
    one.connection.receive(write_call(2, 0, NODE_SERVICE + 1, 3, write_request(FETCH)))
    assert [type(message) for message in one.said()] == [Raised, Raised]
    assert not one.events
    assert not one.closed


@pytest.mark.parametrize(
    "frames",
    [
        [write_finish(3)],
        [write_bootstrap(0), write_bootstrap(0)],
        [write_call(1, 7, NODE_SERVICE, 3, write_request(FETCH))],
        [write_call(1, None, NODE_SERVICE, 3, write_request(FETCH), promised=4)],
        [write_results(1, lambda parent, place: None)],
        [struct.pack("<II", SEGMENTS_MAX, 1)],
        [struct.pack("<II", 0, MESSAGE_BYTES_MAX // 8 + 1)],
        [struct.pack("<IIQ", 0, 1, 2 | 9 << 32)],
        [struct.pack("<IIQ", 0, 1, 0x0001_0001_0000_0004)],
        [write_bootstrap(number) for number in range(QUESTIONS_MAX + 1)],
    ],
)
def test_a_protocol_violation_ends_the_connection(frames: list[bytes]) -> None:
    one = Scripted()
    for frame in frames:
        one.connection.receive(frame)
    assert isinstance(one.said()[-1], Abort)
    assert one.closed
    assert one.broken == 1
    before = len(one.events)
    one.call(9)
    assert len(one.events) == before


def test_a_held_connection_takes_nothing_in_until_released() -> None:
    one = Scripted()
    one.connection.hold("outbox")
    one.connection.hold(FULL)
    one.call(1)
    one.connection.let_go(FULL)
    assert (one.events, one.reading) == ([], False)
    one.connection.let_go("outbox")
    assert (one.events, one.reading) == ([Called(one.peer, 1, FETCH)], True)


def test_a_caller_that_does_not_read_is_disconnected() -> None:
    one = Scripted()
    one.call(1)
    one.unsent = OUTBOX_BYTES_MAX + 1
    one.answer(1)
    assert one.closed


def test_refusals_keep_their_text() -> None:
    one = Scripted()
    one.call(1)
    one.connection.answer(Answer(one.peer, 1, Refusal("the very words")))
    (raised,) = one.said()
    assert isinstance(raised, Raised)
    assert raised.reason == "the very words"


STREAM = b"".join(
    (
        write_bootstrap(0),
        write_call(1, None, NODE_SERVICE, 3, write_request(FETCH), promised=0),
        write_call(2, 0, NODE_SERVICE, 2, write_request(ENQUEUE)),
        write_finish(0),
    )
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_split_anywhere_is_the_same_stream(cuts: list[int]) -> None:
    one = Scripted()
    places = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(places):
        one.connection.receive(STREAM[start:end])
    assert one.events == [Called(one.peer, 1, FETCH), Called(one.peer, 2, ENQUEUE)]


def test_one_changed_byte_anywhere_breaks_at_most_the_connection() -> None:
    source = random.Random(9)
    for place in range(len(STREAM)):
        for change in (1, 0x80, source.randrange(1, 256)):
            one = Scripted()
            changed = bytearray(STREAM)
            changed[place] ^= change
            one.connection.receive(bytes(changed))
            assert len(one.events) <= 3
            assert one.closed is bool(one.broken)


@given(st.binary(max_size=400), st.integers(0, 8))
def test_noise_breaks_at_most_the_connection(noise: bytes, words: int) -> None:
    one = Scripted()
    one.connection.receive(struct.pack("<II", 0, words) + noise)
    assert one.closed is bool(one.broken)


def test_many_pointers_to_one_object_do_not_amplify_it() -> None:
    """A list of a thousand ids that are all the same large one."""
    body = bytearray(8 * 3 + 1000 * 8 + 80_000)
    struct.pack_into("<Q", body, 0, 0 << 2 | 0 << 32 | 1 << 48)
    struct.pack_into("<Q", body, 8, 1 | 0 << 2 | 6 << 32 | 1000 << 35)
    for number in range(1000):
        at = 16 + number * 8
        struct.pack_into("<Q", body, at, 1 | (1000 - number - 1) << 2 | 2 << 32 | 80_000 << 35)
    framer = Framer(1 << 20)
    framer.feed(struct.pack("<II", 0, len(body) // 8) + body)
    ((message, _),) = framer.messages()
    with pytest.raises(WireError, match="too often"):
        list(message.root().datas(0))


EMPTY = struct.pack("<II", 0, 1) + bytes(8)
"""The shortest message: it rejects one that was never sent."""


async def test_many_messages_in_one_write_take_turns() -> None:
    one, count = Scripted(), 10 * MESSAGES_AT_ONCE
    asked = b"".join(write_bootstrap(number) + write_finish(number) for number in range(count // 2))
    one.connection.receive(asked)
    answered = len(one.said())
    assert answered == MESSAGES_AT_ONCE // 2, "others have their turn"
    assert not one.reading, "and nothing more is taken meanwhile"
    for _ in range(count):
        await asyncio.sleep(0)
    assert answered + len(one.said()) == count // 2
    assert one.reading


async def test_messages_that_ask_for_nothing_are_bounded() -> None:
    one = Scripted()
    for number in range(10):
        one.call(number)
    one.connection.receive(EMPTY * (IDLE_MESSAGES_MAX + 10))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not one.closed, "one for each call, and some"
    one.connection.receive(EMPTY)
    assert (one.closed, one.broken) == (True, 1)
