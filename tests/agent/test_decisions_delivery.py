"""What waits in a store is delivered to a router that answers as it is told: order, pauses, what is noted."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from blindpost.agent import (
    AgentError,
    AgentFailed,
    ConnectionsDeleted,
    CriticalError,
    Event,
    Failed,
    SendDelayed,
    SendFailed,
    Sent,
    StoreFailedError,
)
from blindpost.agent.errors import BrokerError, SmpError
from blindpost.agent.messages import delivery
from blindpost.agent.messages.delivery import SOON_TRIES, DeliveryWorkers
from blindpost.agent.messages.layers import open_client_envelope
from blindpost.agent.messages.sending import enqueue, enqueue_confirmation, enqueue_ratchet_key
from blindpost.agent.model import QueueStatus, SndQueue
from blindpost.agent.routers.proxying import Answered
from blindpost.agent.store import connections, deletion, messages, queues, ratchets
from blindpost.agent.store.database import AgentStore
from blindpost.agent.work.ground import Ground
from blindpost.client.calls import Call
from blindpost.client.errors import NoHostError, RefusedError, ResponseTimeoutError
from blindpost.crypto.ratchet import encrypt_body
from blindpost.crypto.x3dh import proposed_params
from blindpost.store.contract import Durability
from blindpost.store.sqlite import SqliteStore
from blindpost.testing import virtual
from blindpost.wire.addresses import Host, Server
from blindpost.wire.agent.envelopes import (
    Confirmation,
    MessageEnvelope,
    RatchetKey,
    read_client_envelope,
)
from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentConnInfoReply,
    AgentMessage,
    AMsg,
    Hello,
    read_agent_message,
)
from blindpost.wire.primitives import Reader, decode_whole
from blindpost.wire.queue_addresses import QueueInfo
from blindpost.wire.smp.commands import SEND
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import OK
from blindpost.wire.smp.values import QueueMode
from tests.support.agent.desk import VERSION, Desk
from tests.support.agent.parties import RecordedPairs, joined
from tests.support.agent.ratchets import seeded
from tests.support.agent.rows import CONN, NOW, ROUTER, rcv_queue, snd_queue

OTHER = Server((Host("other.example"),), "5223", b"o" * 32)
KEY, TAKEN = (CONN, 1), None
INFO = AgentConnInfo(b"who we are")
REPLY = AgentConnInfoReply((QueueInfo(4, rcv_queue().address),), b"who I am")


def timeout() -> AgentError:
    return BrokerError(ROUTER, ResponseTimeoutError())


def refusal(code: Code) -> AgentError:
    return SmpError(ROUTER, RefusedError(code))


@dataclass
class Asked:
    """A SEND that came to the router."""

    at_s: float
    server: Server
    call: Call[SEND]
    entity: str
    is_durable: bool


class Router:
    """Answers what it is told, then takes everything."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: deque[AgentError | None] = deque()
        self.refuses: dict[bytes, AgentError] = {}
        """Queues for which it has always the same answer."""
        self.proxy: Server | None = None
        self.delay_s = 0.0
        self.delays: deque[float] = deque()
        """Of the next ones, if they differ."""
        self.open = asyncio.Event()
        self.open.set()

    async def send_to_queue(
        self, user_id: int, server: Server, call: Call[SEND], *, entity: str, is_durable: bool
    ) -> Answered:
        assert user_id == 1
        self.asked.append(Asked(asyncio.get_running_loop().time(), server, call, entity, is_durable))
        await self.open.wait()
        await asyncio.sleep(self.delays.popleft() if self.delays else self.delay_s)
        if call.entity_id in self.refuses:
            raise self.refuses[call.entity_id]
        error = self.answers.popleft() if self.answers else TAKEN
        if error is not None:
            raise error
        return Answered(OK(), self.proxy)

    @property
    def pauses(self) -> list[float]:
        times = [asked.at_s for asked in self.asked]
        return [round(later - before, 3) for before, later in itertools.pairwise(times)]


class Dispatch(Desk):
    """A connection that can send, and the workers that do."""

    def __init__(self, store: AgentStore, *queues_to: SndQueue, record: int = VERSION) -> None:
        super().__init__(store)
        self.router = Router()
        self._own, self.peer = joined()
        self.alarms: list[tuple[type[Event], str]] = []
        """What is told of the store, and of what should not happen."""
        with self.change() as tx:
            connections.set_version(tx, CONN, record)
            ratchets.set_ratchet(tx, CONN, self._own.ratchet)
            for queue in queues_to or (snd_queue(),):
                queues.insert_snd(tx, queue)
        self.workers = self.begin()

    def _put(self, event: Event, row: int | None = None) -> None:
        if isinstance(event, AgentFailed) or (
            isinstance(event, Failed) and isinstance(event.error, CriticalError)
        ):
            self.alarms.append((type(event), str(event.error)))

    def new_ground(self) -> Ground:
        ground = super().new_ground()
        ground.stream.put = self._put  # type: ignore[method-assign]
        return ground

    def start_again(self) -> None:
        """The agent has ended, and is opened again."""
        self.ground = self.new_ground()
        self.workers = self.begin()
        self.workers.resume()

    def begin(self) -> DeliveryWorkers:
        return DeliveryWorkers(self.ground, cast(Any, self.router))

    def say(self, *bodies: bytes) -> list[int]:
        with self.change() as tx:
            return [enqueue(tx, self.whole, AMsg(body), notify=True).internal_id for body in bodies]

    def opened(self, place: int = 0) -> Any:
        """The agent's envelope in one of the bodies that were sent."""
        envelope = read_client_envelope(Reader(self.router.asked[place].call.command.body))
        return open_client_envelope(snd_queue().e2e_secret, envelope)

    def read(self, place: int = 0) -> bytes:
        envelope = self.opened(place).envelope
        assert isinstance(envelope, MessageEnvelope)
        message = decode_whole(self.peer.read(envelope.encrypted_message), read_agent_message)
        assert isinstance(message, AgentMessage)
        assert isinstance(message.message, AMsg)
        return bytes(message.message.body)

    @property
    def numbers(self) -> list[int]:
        """Those that were sent and told."""
        return [event.msg_id for event in self.events if isinstance(event, Sent)]

    @property
    def waiting(self) -> int:
        query = "SELECT count(*) FROM snd_message_deliveries WHERE failed = 0"
        return int(self.store.reading.sql.execute(query).fetchone()[0])

    @property
    def errors(self) -> list[str]:
        failed = (event for event in self.events if isinstance(event, Failed | SendFailed))
        return [str(event.error) for event in failed]

    @property
    def is_idle(self) -> bool:
        return not self.workers.tasks and not self.workers.is_working(*KEY)


@pytest.fixture
def dispatch(store: AgentStore) -> Dispatch:
    return Dispatch(store)


# One message after the other


@virtual
async def test_a_message_is_sent_and_told(dispatch: Dispatch) -> None:
    numbers = dispatch.say(b"one")
    assert dispatch.workers.is_working(*KEY)
    await asyncio.sleep(1)
    (asked,) = dispatch.router.asked
    assert (asked.server, asked.entity, asked.call.entity_id) == (ROUTER, CONN, snd_queue().snd_id)
    assert (asked.call.command.notify, asked.call.key, asked.is_durable) == (True, snd_queue().key, True)
    assert dispatch.opened().envelope.agent_version == VERSION
    assert dispatch.read() == b"one"
    assert (dispatch.numbers, dispatch.waiting, dispatch.errors) == (numbers, 0, [])
    assert dispatch.is_idle
    assert dispatch.workers._lines[ROUTER]._places == delivery.AT_ONCE


@pytest.mark.parametrize("proxy", [OTHER, None])
@virtual
async def test_the_proxy_is_told(dispatch: Dispatch, proxy: Server | None) -> None:
    dispatch.router.proxy = proxy
    dispatch.say(b"one")
    await asyncio.sleep(1)
    (event,) = dispatch.events
    assert isinstance(event, Sent)
    assert event.proxy == proxy


@virtual
async def test_one_at_a_time_and_in_order(dispatch: Dispatch) -> None:
    dispatch.router.open.clear()
    numbers = dispatch.say(b"1", b"2", b"3")
    await asyncio.sleep(60)
    assert len(dispatch.router.asked) == 1
    numbers += dispatch.say(b"4")
    dispatch.router.open.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert len(dispatch.router.asked) == 4, "it is not waited for what notes that one was taken"
    await asyncio.sleep(1)
    assert [dispatch.read(place) for place in range(4)] == [b"1", b"2", b"3", b"4"]
    assert (dispatch.numbers, dispatch.waiting) == (numbers, 0)
    assert dispatch.is_idle


@virtual
async def test_one_that_comes_while_the_last_is_sent(dispatch: Dispatch) -> None:
    """It was not there when the worker looked for more."""
    dispatch.router.open.clear()
    numbers = dispatch.say(b"1")
    await asyncio.sleep(1)
    numbers += dispatch.say(b"2")
    dispatch.router.open.set()
    await asyncio.sleep(1)
    assert (dispatch.numbers, dispatch.is_idle) == (numbers, True)


@virtual
async def test_nothing_waits(dispatch: Dispatch) -> None:
    dispatch.workers.wake((KEY, ROUTER))
    await asyncio.sleep(1)
    assert (dispatch.router.asked, dispatch.alarms, dispatch.is_idle) == ([], [], True)


@virtual
async def test_what_was_taken_is_noted_soon_although_the_next_takes_long(dispatch: Dispatch) -> None:
    dispatch.router.delays.extend([0, 60])
    first, second = dispatch.say(b"1", b"2")
    await asyncio.sleep(0.1)
    assert dispatch.numbers == [first]
    await asyncio.sleep(60)
    assert dispatch.numbers == [first, second]


@virtual
async def test_what_is_taken_in_a_moment_is_noted_together(dispatch: Dispatch) -> None:
    dispatch.router.open.clear()
    dispatch.say(*(b"%d" % number for number in range(5)))
    await asyncio.sleep(1)
    disk = Disk(dispatch.store._file)
    dispatch.router.open.set()
    await asyncio.sleep(1)
    assert (len(dispatch.numbers), disk.commits) == (5, 1)


@pytest.mark.parametrize("count", [1, 2])
@virtual
async def test_what_agents_say_is_noted_before_the_next_is_sent(tmp_path: Path, count: int) -> None:
    """A rotation goes on, or a handshake: what follows must find that."""
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = Dispatch(store)
        dispatch.router.open.clear()
        with dispatch.change() as tx:
            for message in (Hello(), AMsg(b"1"))[:count]:
                enqueue(tx, dispatch.whole, message)
        await asyncio.sleep(1)
        disk = Disk(store._file, 1)
        dispatch.router.open.set()
        await asyncio.sleep(1)
        assert (disk.commits, len(dispatch.router.asked)) == (1, 1), "it waits until that can be stored"
        await asyncio.sleep(60)
        assert (len(dispatch.router.asked), dispatch.waiting) == (count, 0)


@pytest.mark.parametrize("code", [Code.QUOTA, Code.AUTH])
@virtual
async def test_what_is_refused_is_told_at_once(tmp_path: Path, code: Code) -> None:
    """Whatever else waits."""
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = Dispatch(store)
        dispatch.router.answers.append(refusal(code))
        dispatch.say(b"1", b"2")
        await asyncio.sleep(0.01)
        assert isinstance(dispatch.events[0], SendDelayed | SendFailed)


@virtual
async def test_what_was_taken_and_noted_is_forgotten(dispatch: Dispatch) -> None:
    dispatch.router.delay_s = 0.02
    dispatch.say(*(b"%d" % number for number in range(20)))
    worker, known = dispatch.workers._workers[KEY], []
    while dispatch.workers.is_working(*KEY):
        known.append(len(worker._taken))
        await asyncio.sleep(0.01)
    assert (len(dispatch.numbers), len(worker._taken)) == (20, 0)
    assert 1 < max(known) < 6


@virtual
async def test_what_waits_at_the_start(store: AgentStore) -> None:
    before = Dispatch(store)
    before.router.open.clear()
    numbers = before.say(b"1", b"2")
    await asyncio.sleep(1)
    await before.ground.stop()
    assert (before.waiting, before.is_idle) == (2, True)
    before.router.open.set()
    before.start_again()
    await asyncio.sleep(1)
    assert (before.numbers, before.waiting) == (numbers, 0)


@virtual
async def test_nothing_is_sent_while_the_agent_is_suspended(dispatch: Dispatch) -> None:
    await dispatch.ground.operations.suspend(1)
    dispatch.say(b"1")
    await asyncio.sleep(60)
    assert dispatch.router.asked == []
    dispatch.ground.operations.resume()
    await asyncio.sleep(1)
    assert len(dispatch.numbers) == 1


@virtual
async def test_the_answer_waits_for_others_who_are_busy_with_the_connection(dispatch: Dispatch) -> None:
    async with dispatch.ground.locked(CONN):
        dispatch.say(b"1")
        await asyncio.sleep(60)
        assert (len(dispatch.router.asked), dispatch.numbers) == (1, [])
    await asyncio.sleep(1)
    assert len(dispatch.numbers) == 1


# Many queues of one router


def three_queues(store: AgentStore, last: Server = ROUTER) -> Dispatch:
    numbered = [snd_queue(number, b"queue %d".ljust(24) % number) for number in (1, 2, 3)]
    return Dispatch(store, *numbered[:2], replace(numbered[2], server=last))


@pytest.mark.parametrize(("server", "at_once"), [(ROUTER, 2), (OTHER, 3)])
@virtual
async def test_a_router_has_so_many_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server, at_once: int
) -> None:
    monkeypatch.setattr(delivery, "AT_ONCE", 2)
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = three_queues(store, server)
        dispatch.router.open.clear()
        dispatch.say(b"1")
        await asyncio.sleep(60)
        assert len(dispatch.router.asked) == at_once
        dispatch.router.open.set()
        await asyncio.sleep(1)
        assert (len(dispatch.router.asked), dispatch.waiting, dispatch.is_idle) == (3, 0, True)
        assert [line._places for line in dispatch.workers._lines.values()] == [2] * len({ROUTER, server})


@pytest.mark.parametrize(
    ("error", "others"), [(refusal(Code.QUOTA), True), (timeout(), False)], ids=["full", "away"]
)
@virtual
async def test_a_queue_that_is_full_does_not_keep_others_from_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: AgentError, others: bool
) -> None:
    monkeypatch.setattr(delivery, "AT_ONCE", 1)
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = three_queues(store)
        dispatch.router.refuses = {queue.snd_id: error for queue in dispatch.whole.snd}
        dispatch.say(b"1")
        await asyncio.sleep(1)
        assert len(dispatch.router.asked) == (3 if others else 1)
        assert dispatch.workers._lines[ROUTER]._places == (1 if others else 0)
        dispatch.router.refuses.clear()
        await asyncio.sleep(400)
        assert (dispatch.waiting, dispatch.is_idle) == (0, True)
        assert dispatch.workers._lines[ROUTER]._places == 1


# Pauses


@virtual
async def test_a_router_that_is_away_is_tried_soon_then_less_often(dispatch: Dispatch) -> None:
    dispatch.router.answers.extend(timeout() for _ in range(8))
    numbers = dispatch.say(b"1")
    await asyncio.sleep(60)
    assert dispatch.router.pauses == [2, 2, 2, 2, 2, 3, 4.5, 6.75]
    assert (dispatch.numbers, dispatch.errors) == (numbers, [])


@virtual
async def test_a_queue_that_is_full_is_tried_after_minutes(dispatch: Dispatch) -> None:
    dispatch.router.answers.extend(refusal(Code.QUOTA) for _ in range(3))
    numbers = dispatch.say(b"1")
    await asyncio.sleep(3600)
    assert dispatch.router.pauses == [300, 450, 675]
    delayed = [event.error.word for event in dispatch.events if isinstance(event, SendDelayed)]
    assert delayed == ["SMP QUOTA"] * 3
    assert dispatch.numbers == numbers


@virtual
async def test_both_kinds_of_pauses_grow_by_themselves(dispatch: Dispatch) -> None:
    full, away = refusal(Code.QUOTA), timeout()
    dispatch.router.answers.extend([away, full, away, full, away, away, away, away])
    dispatch.say(b"1")
    await asyncio.sleep(3600)
    assert dispatch.router.pauses == [2, 300, 2, 450, 2, 2, 2, 3]


@virtual
async def test_pauses_go_on_growing_after_the_next_start(dispatch: Dispatch) -> None:
    """From where they were, whichever of the two it was."""
    full, away = refusal(Code.QUOTA), timeout()
    dispatch.router.answers.extend([*[away] * 6, full, full])
    dispatch.say(b"1")
    await asyncio.sleep(400)
    await dispatch.ground.stop()
    assert dispatch.router.pauses == [2, 2, 2, 2, 2, 3, 300]
    dispatch.router.asked.clear()
    dispatch.router.answers.extend([full, full, away, away])
    dispatch.start_again()
    await asyncio.sleep(7200)
    assert dispatch.router.pauses == [450, 675, 4.5, 6.75]


@virtual
async def test_a_reason_to_try_again(dispatch: Dispatch) -> None:
    """Then a full queue is tried at once, and a few times soon."""
    dispatch.router.answers.extend(refusal(Code.QUOTA) for _ in range(SOON_TRIES + 3))
    dispatch.say(b"1")
    await asyncio.sleep(100)
    dispatch.ground.work.hurry.tell(KEY)
    await asyncio.sleep(3600)
    pauses = dispatch.router.pauses
    assert pauses[0] == 100
    assert pauses[1 : SOON_TRIES + 1] == [2, 2, 2, 2, 2, 3, 4.5, 6.75]
    assert pauses[SOON_TRIES + 1 :] == [450, 675]


@pytest.mark.parametrize("signal", ["hurry", "room"])
@virtual
async def test_a_reason_to_try_again_is_gone_once_something_is_taken(tmp_path: Path, signal: str) -> None:
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = Dispatch(store)
        dispatch.router.answers.append(refusal(Code.QUOTA))
        dispatch.say(b"1", b"2")
        await asyncio.sleep(100)
        dispatch.router.answers.extend([TAKEN, refusal(Code.QUOTA)])
        getattr(dispatch.ground.work, signal).tell(KEY)
        await asyncio.sleep(3600)
        assert dispatch.router.pauses == [100, 0, 300]
        assert len(dispatch.numbers) == 2


@virtual
async def test_the_peer_says_that_there_is_room(dispatch: Dispatch) -> None:
    """It may say so too early, and says it once: the queue is tried soon until it takes something."""
    dispatch.router.answers.extend(refusal(Code.QUOTA) for _ in range(14))
    dispatch.say(b"1", b"2")
    await asyncio.sleep(100)
    dispatch.ground.work.room.tell(KEY)
    await asyncio.sleep(700)
    assert dispatch.router.pauses[0] == 100
    assert max(dispatch.router.pauses[1:14]) < 120
    assert len(dispatch.numbers) == 2
    dispatch.router.asked.clear()
    dispatch.router.answers.append(refusal(Code.QUOTA))
    dispatch.say(b"3")
    await asyncio.sleep(3600)
    assert dispatch.router.pauses == [300]


@virtual
async def test_signals_for_a_queue_that_nothing_waits_for(dispatch: Dispatch) -> None:
    dispatch.ground.work.room.tell(KEY)
    dispatch.ground.work.hurry.tell(KEY)
    dispatch.router.answers.append(refusal(Code.QUOTA))
    dispatch.say(b"1")
    await asyncio.sleep(3600)
    assert dispatch.router.pauses == [300]


@virtual
async def test_an_old_reason_does_not_shorten_a_new_pause(dispatch: Dispatch) -> None:
    dispatch.router.open.clear()
    dispatch.router.answers.append(timeout())
    dispatch.say(b"1")
    await asyncio.sleep(1)
    dispatch.workers._workers[KEY].hurry.set()
    dispatch.router.open.set()
    await asyncio.sleep(1)
    assert len(dispatch.router.asked) == 2, "it came while the attempt was under way"
    dispatch.router.answers.append(timeout())
    dispatch.say(b"2")
    await asyncio.sleep(60)
    assert dispatch.router.pauses[-1] == 2


@virtual
async def test_what_is_not_wanted_any_more_is_not_tried_again(dispatch: Dispatch) -> None:
    """Its receipt came, or its queue was left. A connection that only waited for that is deleted."""
    dispatch.router.answers.append(timeout())
    (number,) = dispatch.say(b"1")
    await asyncio.sleep(1)
    with dispatch.change() as tx:
        deletion.mark_waiting(tx, CONN, NOW)
        tx.sql.execute("DELETE FROM snd_message_deliveries WHERE internal_id = ?", (number,))
    await asyncio.sleep(60)
    assert (len(dispatch.router.asked), dispatch.is_idle) == (1, True)
    assert [type(event) for event in dispatch.events] == [ConnectionsDeleted]


@virtual
async def test_delays_are_logged_once_for_a_router(
    dispatch: Dispatch, caplog: pytest.LogCaptureFixture
) -> None:
    dispatch.router.answers.extend(timeout() for _ in range(4))
    dispatch.say(b"1", b"2", b"3")
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(60)
    assert [record.getMessage()[:38] for record in caplog.records] == [
        "messages for router.example wait, and ",
        "messages for router.example are taken ",
    ]


@virtual
async def test_a_host_that_is_wrong_is_told_once(dispatch: Dispatch) -> None:
    dispatch.router.answers.extend(BrokerError(ROUTER, NoHostError("none")) for _ in range(3))
    dispatch.say(b"1")
    await asyncio.sleep(60)
    assert [type(event) for event in dispatch.events] == [SendDelayed, Sent]


# What cannot be sent


@virtual
async def test_a_refused_message_is_told_and_the_next_is_sent(
    dispatch: Dispatch, caplog: pytest.LogCaptureFixture
) -> None:
    dispatch.router.answers.append(refusal(Code.AUTH))
    first, second = dispatch.say(b"1", b"2")
    await asyncio.sleep(1)
    assert caplog.text == "", "nothing is tried again"
    failed, _ = dispatch.events
    assert isinstance(failed, SendFailed)
    assert (failed.msg_id, failed.error.word) == (first, "SMP AUTH")
    assert dispatch.numbers == [second]


@virtual
async def test_a_bug_is_told_and_the_next_is_sent(
    dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def once(*args: Any) -> bytes:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("a bug")
        return encrypt_body(*args)

    monkeypatch.setattr(delivery, "encrypt_body", once)
    dispatch.say(b"1", b"2")
    await asyncio.sleep(1)
    assert dispatch.errors == ["INTERNAL: ValueError('a bug')"]
    assert len(dispatch.numbers) == 1
    assert "a message could not be made ready" in caplog.text


@virtual
async def test_a_row_that_cannot_be_read_is_put_aside(store: AgentStore) -> None:
    dispatch = Dispatch(store)
    dispatch.router.open.clear()
    first, second = dispatch.say(b"1", b"2")
    await asyncio.sleep(1)
    await dispatch.ground.stop()
    with dispatch.change() as tx:
        key = "UPDATE snd_messages SET msg_encrypt_key = x'00' WHERE internal_id = ?"
        tx.sql.execute(key, (first,))
        tx.sql.forget_message(messages._READ_AHEAD, KEY)
    dispatch.router.open.set()
    dispatch.start_again()
    await asyncio.sleep(1)
    failed, _ = dispatch.events
    assert isinstance(failed, SendFailed)
    assert (failed.msg_id, "a stored message cannot be read" in str(failed.error)) == (first, True)
    assert dispatch.numbers == [second]


@virtual
async def test_a_queue_that_is_gone_before_the_attempt(
    dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_durable = dispatch.store.is_durable

    async def left(name: Any = None) -> bool:
        with dispatch.change() as tx:
            queues.delete(tx, snd_queue())
        return await is_durable(name)

    monkeypatch.setattr(dispatch.store, "is_durable", left)
    dispatch.say(b"1")
    await asyncio.sleep(60)
    assert (dispatch.router.asked, dispatch.events, dispatch.is_idle) == ([], [], True)
    assert caplog.text == ""


@virtual
async def test_a_message_that_is_taken_back_before_it_is_durable_is_not_sent(
    dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_durable, asked = dispatch.store.is_durable, []

    async def taken_back(name: Any = None) -> bool:
        asked.append(name)
        return len(asked) > 1 and await is_durable(name)

    monkeypatch.setattr(dispatch.store, "is_durable", taken_back)
    (number,) = dispatch.say(b"1")
    await asyncio.sleep(1)
    assert asked == [(CONN, number)] * 2, "it is looked at again"
    assert dispatch.numbers == [number]


@pytest.mark.parametrize("whole", [True, False], ids=["connection", "queue"])
@pytest.mark.parametrize("error", [None, refusal(Code.AUTH)], ids=["taken", "refused"])
@virtual
async def test_what_is_gone_when_the_answer_comes(
    tmp_path: Path, whole: bool, error: AgentError | None
) -> None:
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = Dispatch(store)
        dispatch.router.open.clear()
        dispatch.say(b"1")
        await asyncio.sleep(1)
        with dispatch.change() as tx:
            if whole:
                connections.delete(tx, CONN)
            else:
                queues.delete(tx, snd_queue())
        dispatch.router.answers.extend([] if error is None else [error])
        dispatch.router.open.set()
        await asyncio.sleep(1)
        assert (dispatch.events, dispatch.alarms, dispatch.is_idle) == ([], [], True)


@virtual
async def test_a_connection_that_is_deleted_once_its_messages_are_delivered(dispatch: Dispatch) -> None:
    dispatch.router.open.clear()
    dispatch.say(b"1")
    await asyncio.sleep(1)
    with dispatch.change() as tx:
        deletion.mark_waiting(tx, CONN, NOW)
    dispatch.router.open.set()
    await asyncio.sleep(1)
    assert ConnectionsDeleted in [type(event) for event in dispatch.events]


# Confirmations


def confirming(store: AgentStore, mode: QueueMode | None, *, reply: bool = False) -> Dispatch:
    """One that waits to be confirmed."""
    dispatch = Dispatch(store, snd_queue(mode=mode, status=QueueStatus.NEW), record=6)
    if reply:
        own = proposed_params(3, pq=False, entropy=seeded("own"), kem=RecordedPairs())
        with dispatch.change() as tx:
            ratchets.set_sending(tx, CONN, dispatch._own.ratchet, own.public(3))
    with dispatch.change() as tx:
        enqueue_confirmation(tx, dispatch.whole.record, dispatch.whole.snd[0], REPLY if reply else INFO)
    return dispatch


@pytest.mark.parametrize("reply", [True, False])
@pytest.mark.parametrize("mode", [QueueMode.MESSAGING, None])
@virtual
async def test_a_confirmation(tmp_path: Path, mode: QueueMode | None, reply: bool) -> None:
    """Our half of the queue's secret goes along, and our key if its recipient secures the queue: then it is
    sent by anybody."""
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = confirming(store, mode, reply=reply)
        await asyncio.sleep(1)
        (asked,) = dispatch.router.asked
        secured = mode is QueueMode.MESSAGING
        assert (asked.call.key, asked.is_durable) == (snd_queue().key if secured else None, False)
        header = read_client_envelope(Reader(asked.call.command.body)).header
        assert header.dh_key == snd_queue().e2e_public
        inner = dispatch.opened()
        assert inner.sender_key == (None if secured else snd_queue().key.public)
        assert isinstance(inner.envelope, Confirmation)
        assert (inner.envelope.agent_version, inner.envelope.e2e is not None) == (6, reply)
        content = decode_whole(dispatch.peer.read(inner.envelope.encrypted_info), read_agent_message)
        assert content == (REPLY if reply else INFO)
        assert (dispatch.waiting, dispatch.errors) == (0, [])


@virtual
async def test_a_confirmation_that_was_taken_before_goes_with_our_key(store: AgentStore) -> None:
    """The queue takes it from nobody else any more: it was secured with our key."""
    dispatch = confirming(store, None)
    dispatch.router.answers.append(refusal(Code.AUTH))
    await asyncio.sleep(1)
    assert [asked.call.key for asked in dispatch.router.asked] == [None, snd_queue().key]
    bodies = {bytes(asked.call.command.body) for asked in dispatch.router.asked}
    assert (len(bodies), dispatch.errors, dispatch.waiting) == (1, [], 0)


@pytest.mark.parametrize(
    ("mode", "code", "tries"),
    [(None, Code.QUOTA, 1), (QueueMode.MESSAGING, Code.AUTH, 1), (None, Code.AUTH, 2)],
)
@virtual
async def test_a_confirmation_that_is_refused(
    tmp_path: Path, mode: QueueMode | None, code: Code, tries: int
) -> None:
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = confirming(store, mode)
        dispatch.router.answers.extend(refusal(code) for _ in range(2))
        await asyncio.sleep(1)
        assert len(dispatch.router.asked) == tries
        (error,) = dispatch.errors
        assert error.startswith("CONN NOT_AVAILABLE")


# What else is sent


@virtual
async def test_ratchet_keys_are_sent_as_they_are(dispatch: Dispatch) -> None:
    keys = proposed_params(3, pq=False, entropy=seeded("own"), kem=RecordedPairs()).public(3)
    with dispatch.change() as tx:
        enqueue_ratchet_key(tx, dispatch.whole, keys)
    await asyncio.sleep(1)
    envelope = dispatch.opened().envelope
    assert isinstance(envelope, RatchetKey)
    assert (envelope.e2e, dispatch.router.asked[0].is_durable) == (keys, False)


@pytest.mark.parametrize(
    ("status", "hello", "durable"),
    [
        (QueueStatus.ACTIVE, False, True),
        (QueueStatus.ACTIVE, True, False),
        (QueueStatus.SECURED, False, False),
    ],
)
@virtual
async def test_only_what_is_made_of_nothing_but_the_message_is_known_to_be_durable(
    tmp_path: Path, status: QueueStatus, hello: bool, durable: bool
) -> None:
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = Dispatch(store, snd_queue(status=status))
        with dispatch.change() as tx:
            enqueue(tx, dispatch.whole, Hello() if hello else AMsg(b"1"))
        await asyncio.sleep(1)
        assert [asked.is_durable for asked in dispatch.router.asked] == [durable]


# A disk without room


class Disk:
    """Refuses the commits whose numbers are named."""

    def __init__(self, file: SqliteStore, *refused: int) -> None:
        self.commits = 0
        self._file, self._commit, self._refused = file, file.commit, refused
        file.commit = self.commit  # type: ignore[method-assign]

    def commit(self) -> None:
        self.commits += 1
        if self.commits in self._refused:
            self._file.rollback()
            raise StoreFailedError("the disk is full")
        self._commit()


@pytest.mark.parametrize("count", [1, 2, 5])
@virtual
async def test_what_was_taken_is_noted_later(tmp_path: Path, count: int) -> None:
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = Dispatch(store)
        dispatch.router.open.clear()
        numbers = dispatch.say(*(b"%d" % number for number in range(count)))
        await asyncio.sleep(1)
        Disk(store._file, 1, 2)
        dispatch.router.open.set()
        await asyncio.sleep(60)
        assert len(dispatch.router.asked) == count, "and not sent again"
        assert (sorted(dispatch.numbers), dispatch.waiting, dispatch.is_idle) == (numbers, 0, True)
        assert dispatch.alarms
        assert {text for _, text in dispatch.alarms} == {"CRITICAL: the disk is full"}


@virtual
async def test_a_moment_without_room_is_told_for_the_connection(dispatch: Dispatch) -> None:
    dispatch.router.open.clear()
    dispatch.say(b"1")
    await asyncio.sleep(1)
    Disk(dispatch.store._file, 1)
    dispatch.router.open.set()
    await asyncio.sleep(60)
    assert dispatch.alarms == [(Failed, "CRITICAL: the disk is full")]
    assert (len(dispatch.numbers), len(dispatch.router.asked)) == (1, 1)


@pytest.mark.parametrize("refused", range(1, 5))
@pytest.mark.parametrize("count", [2, 7])
@virtual
async def test_what_was_left_to_others_and_not_stored_is_noted_again(
    tmp_path: Path, count: int, refused: int
) -> None:
    """Also if what came after it was stored."""
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        dispatch = Dispatch(store)
        dispatch.router.delay_s = 0.06 if count == 2 else 0.02
        numbers = dispatch.say(*(b"%d" % number for number in range(count)))
        Disk(store._file, refused)
        await asyncio.sleep(60)
        assert (sorted(dispatch.numbers), dispatch.waiting, dispatch.is_idle) == (numbers, 0, True)
        assert len(dispatch.router.asked) == count


@virtual
async def test_a_broken_store_ends_its_work(dispatch: Dispatch) -> None:
    dispatch.router.open.clear()
    dispatch.say(b"1")
    await asyncio.sleep(1)
    dispatch.store._break(StoreFailedError("the log cannot be synced"))
    assert len(dispatch.alarms) == 1
    dispatch.router.open.set()
    await asyncio.sleep(600)
    assert (len(dispatch.router.asked), dispatch.events, dispatch.is_idle) == (1, [], True)
    assert len(dispatch.alarms) == 1, "it was told when it broke"
