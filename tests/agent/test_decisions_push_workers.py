"""Notifications of connections, step by step: what routers are asked, and what becomes of their answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from blindpost.agent import AgentError, PushMode, StoreFailedError
from blindpost.agent.model import ConnMode, RcvQueue
from blindpost.agent.notifications.model import ACTIVE, CHECK, NotifierKeys, NtfSubscription, Step
from blindpost.agent.notifications.workers import BATCH, CHECK_EVERY_S, FIRST_CHECK_S, Workers
from blindpost.agent.routers.sessions import SessionKey
from blindpost.agent.store import connections, ntf_tokens, queues
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.store.database import AgentStore
from blindpost.client.calls import Call
from blindpost.client.errors import RefusedError
from blindpost.testing import virtual
from blindpost.transport.errors import ConnectError
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import SCHK, SNEW
from blindpost.wire.ntf.responses import IDSUB, SUB
from blindpost.wire.ntf.status import SubState, SubStatus
from blindpost.wire.smp.commands import NDEL, NKEY
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.smp.responses import NID, OK
from blindpost.wire.smp.values import ServerNtfCreds
from tests.support.agent.push_desk import CODE, NTF, OTHER, TOKEN_ID, PushDesk, away, digest, refusal
from tests.support.agent.rows import CONN, NOW, ROUTER, a_key, rcv_queue

ELSEWHERE = Server((Host("elsewhere.example"),), "5223", b"e" * 32)
ANSWERED = a_key("router's half", Algorithm.X25519)
NAMED = NID(ServerNtfCreds(b"notifier", ANSWERED.public))
KEYS = NotifierKeys(a_key("notifier"), a_key("notifier dh", Algorithm.X25519))
CREDS = KEYS.agreed(NAMED.creds)
SUBSCRIBED = IDSUB(b"subscription")
ALIVE = SUB(SubStatus(SubState.ACTIVE))

Answer = Any
Script = deque[Answer]


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


class SmpRouters:
    """Message routers, and the sessions with them."""

    def __init__(self) -> None:
        self.batches: list[tuple[SessionKey, list[Call[Any]]]] = []
        self.answers: Script = deque()
        self.on_asked: Callable[[], None] = lambda: None

    def key(self, user_id: int, server: Server, conn_id: str) -> SessionKey:
        return SessionKey(user_id, server, conn_id if conn_id.startswith("apart") else None)

    async def session(self, key: SessionKey) -> Any:
        async def send_many(calls: Sequence[Call[Any]]) -> list[Answer]:
            self.batches.append((key, list(calls)))
            await asyncio.sleep(0.01)
            self.on_asked()
            found = [self.answers.popleft() if self.answers else _usual(call) for call in calls]
            if isinstance(found[0], ConnectError):
                raise found[0]
            return found

        return SimpleNamespace(client=SimpleNamespace(send_many=send_many))

    def asked(self) -> list[Any]:
        """The commands since the last time."""
        found = [call.command for _, calls in self.batches for call in calls]
        self.batches.clear()
        return found


class NtfRouters:
    """Notification routers."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, Server, list[Call[Any]]]] = []
        self.answers: Script = deque()
        self.on_asked: Callable[[], None] = lambda: None

    async def send_many(self, server: Server, calls: Sequence[Call[Any]]) -> list[Answer]:
        self.batches.append((asyncio.get_running_loop().time(), server, list(calls)))
        await asyncio.sleep(0.01)
        self.on_asked()
        found = [self.answers.popleft() if self.answers else _usual(call) for call in calls]
        if isinstance(found[0], AgentError) and found[0].retried and len(found) == 1:
            raise found[0]
        return found

    def asked(self) -> list[str]:
        found = [call.command.TAG.decode() for _, _, calls in self.batches for call in calls]
        self.batches.clear()
        return found


def _usual(call: Call[Any]) -> Answer:
    """As well-behaved routers answer: the notifier of a queue is named like the queue."""
    named = NID(ServerNtfCreds(b"notifier of " + call.entity_id, ANSWERED.public))
    return {NKEY: named, NDEL: OK(), SNEW: SUBSCRIBED, SCHK: ALIVE}[type(call.command)]


class Plant(PushDesk):
    """The workers of an agent with an active token and a connection."""

    def __init__(self, store: AgentStore) -> None:
        super().__init__(store)
        self.receives()
        self.used = self.has(status=ACTIVE, action=CHECK, returned=digest(CODE), period=20)
        self.smp, self.ntf = SmpRouters(), NtfRouters()
        self.looked = 0
        self.workers = Workers(self.ground, cast(Any, self.smp), cast(Any, self.ntf), self._look)

    async def _look(self) -> None:
        self.looked += 1

    def connects(self, conn_id: str, *, user: int = 1, server: Server = ROUTER) -> RcvQueue:
        """One more connection with a queue to receive from."""
        place = conn_id.encode()[-8:]
        queue = replace(
            rcv_queue(),
            conn_id=conn_id,
            user_id=user,
            server=server,
            rcv_id=b"rcv" + place.ljust(21),
            snd_id=b"snd" + place.ljust(21),
        )
        with self.change() as tx:
            tx.sql.execute("INSERT OR IGNORE INTO users (user_id) VALUES (?)", (user,))
            connections.insert(tx, conn_id, user, ConnMode.INVITATION, agent_version=7, pq_support=False)
            queues.insert_rcv(tx, queue)
        return queue

    def stores(self, step: Step | None, conn_id: str = CONN, at: int = NOW, **fields: Any) -> NtfSubscription:
        """A row at this step. From N on its queue has a notifier."""
        sub = NtfSubscription(conn_id, ROUTER, None, NTF, None, "NEW", step)
        if step in (Step.NEW, Step.CHECK):
            sub = replace(sub.with_keys(CREDS), step=step)
        if step is Step.CHECK:
            sub = replace(sub, subscription_id=b"subscription", status="CREATED NEW")
        sub = replace(sub, **fields)
        with self.change() as tx:
            queue = rows.primary(tx, conn_id)
            if queue is not None and step is not Step.KEY and conn_id == CONN:
                rows.set_creds(tx, queue.queue, CREDS)
            rows.put(tx, sub, at, by_supervisor=False)
        return sub

    def wish(self, sub: NtfSubscription) -> None:
        """The supervisor wants something else meanwhile."""
        with self.change() as tx:
            rows.put(tx, sub, tx.now, by_supervisor=True)

    def due(self) -> int:
        """When the notification router is asked next, in seconds from the beginning."""
        due = rows.next_due(self.store.reading, NTF)
        assert due is not None
        return due - NOW

    async def goes_on(self, sub: NtfSubscription | None = None, for_s: float = 1.0) -> None:
        """The row's worker is woken, or all are."""
        if sub is None:
            self.workers.resume()
        else:
            self.workers.wake(sub)
        await asyncio.sleep(for_s)

    @property
    def creds(self) -> Any:
        found = rows.primary(self.store.reading, CONN)
        return None if found is None else found.creds

    @property
    def at_work(self) -> int:
        return len(self.workers._woken)


@pytest.fixture
def plant(store: AgentStore) -> Plant:
    return Plant(store)


# From a new row to one that is checked


@virtual
async def test_a_queue_gets_a_notifier_and_the_notification_router_subscribes_to_it(plant: Plant) -> None:
    plant.stores(Step.KEY)
    plant.smp.answers.append(NAMED)
    await plant.goes_on()
    ((session, (call,)),) = plant.smp.batches
    assert (session, call.entity_id, call.key) == (SessionKey(1, ROUTER), plant.queue.rcv_id, plant.queue.key)
    assert isinstance(call.command, NKEY)
    assert plant.creds.notifier_id == b"notifier"
    assert plant.creds.key.public == call.command.creds.notifier_key
    assert plant.creds.secret == ANSWERED.agree(call.command.creds.dh_key)
    ((_, server, (asked,)),) = plant.ntf.batches
    command = SNEW(TOKEN_ID, ROUTER, b"notifier", plant.creds.key.encoded)
    assert (server, asked) == (NTF, Call(command, b"", plant.used.key))
    named = replace(plant.row(), subscription_id=b"subscription", status="CREATED NEW", step=Step.CHECK)
    assert plant.row() == named
    assert plant.due() == FIRST_CHECK_S
    assert plant.at_work == 1, "the message router has nothing to do"


@virtual
async def test_a_subscription_is_checked_after_a_day_and_then_every_three(plant: Plant) -> None:
    sub = plant.stores(Step.NEW)
    await plant.goes_on(sub, 2 * FIRST_CHECK_S)
    assert [[type(call.command) for call in calls] for _, _, calls in plant.ntf.batches] == [[SNEW], [SCHK]]
    assert FIRST_CHECK_S < plant.ntf.batches[1][0] < FIRST_CHECK_S + 2
    assert plant.ntf.batches[1][2] == [Call(SCHK(), b"subscription", plant.used.key)]
    assert plant.row().status == "CREATED ACTIVE"
    await asyncio.sleep(CHECK_EVERY_S)
    assert CHECK_EVERY_S < plant.ntf.batches[2][0] - plant.ntf.batches[1][0] < CHECK_EVERY_S + 2
    assert plant.smp.asked() == []


@virtual
async def test_a_row_that_is_not_due_waits(plant: Plant) -> None:
    sub = plant.stores(Step.CHECK, at=NOW + 100)
    await plant.goes_on(sub, 99)
    assert plant.ntf.asked() == []
    await asyncio.sleep(3)
    assert plant.ntf.asked() == ["SCHK"]


@pytest.mark.parametrize(
    ("status", "tags"),
    [
        (SubStatus(SubState.INACTIVE), ["SCHK"]),
        (SubStatus(SubState.END), ["SCHK", "SNEW"]),
        (SubStatus.failed(b"AUTH"), ["SCHK", "SNEW"]),
    ],
)
@virtual
async def test_a_subscription_that_ended_is_made_anew(
    plant: Plant, status: SubStatus, tags: list[str]
) -> None:
    sub = plant.stores(Step.CHECK)
    plant.ntf.answers.append(SUB(status))
    await plant.goes_on(sub)
    assert plant.ntf.asked() == tags
    assert len(plant.smp.asked()) == len(tags) - 1
    assert plant.failed() == []
    text = "CREATED INACTIVE" if len(tags) == 1 else "CREATED NEW"
    assert (plant.row().step, plant.row().status) == (Step.CHECK, text)


# Taking back


@virtual
async def test_a_notifier_is_taken_back_with_its_row(plant: Plant) -> None:
    sub = plant.stores(Step.DELETE)
    assert plant.creds == CREDS
    plant.smp.on_asked = lambda: creds.append(plant.creds)
    creds: list[Any] = []
    await plant.goes_on(sub)
    ((_, calls),) = plant.smp.batches
    assert calls == [Call(NDEL(), plant.queue.rcv_id, plant.queue.key)]
    assert creds == [None], "no push is read from then on"
    assert plant.find() is None
    assert plant.at_work == 0


@virtual
async def test_who_wants_notifications_again_meanwhile_gets_them(plant: Plant) -> None:
    sub = plant.stores(Step.DELETE)
    plant.smp.on_asked = lambda: plant.wish(replace(sub, step=Step.KEY))
    await plant.goes_on(sub)
    plant.smp.on_asked = lambda: None
    assert plant.row().step is Step.KEY
    await plant.goes_on()
    assert plant.row().step is Step.CHECK


@pytest.mark.parametrize("token", ["none", "periodic", "not active"])
@virtual
async def test_without_an_active_token_for_each_message_notifiers_are_only_taken_back(
    plant: Plant, token: str
) -> None:
    plant.connects("other")
    plant.stores(Step.DELETE)
    plant.stores(Step.KEY, "other")
    if token == "none":
        with plant.change() as tx:
            ntf_tokens.delete(tx)
    elif token == "periodic":
        plant.has(status=ACTIVE, mode=PushMode.PERIODIC)
    else:
        plant.has()
    await plant.goes_on()
    assert [type(command) for command in plant.smp.asked()] == [NDEL]
    assert plant.row("other").step is Step.KEY
    assert plant.at_work == 0


@pytest.mark.parametrize("step", [Step.NEW, Step.CHECK])
@pytest.mark.parametrize("token", ["none", "periodic", "another router"])
@virtual
async def test_a_notification_router_is_asked_for_an_active_token_of_its_own_only(
    plant: Plant, step: Step, token: str
) -> None:
    before = plant.stores(step)
    if token == "none":
        with plant.change() as tx:
            ntf_tokens.delete(tx)
    elif token == "periodic":
        plant.has(status=ACTIVE, mode=PushMode.PERIODIC)
    else:
        plant.has(status=ACTIVE, server=ELSEWHERE)
    await plant.goes_on()
    assert plant.ntf.asked() == []
    assert plant.row() == before
    assert plant.at_work == 0, "nobody looks again and again"
    assert plant.failures() == []


# A queue that is not what it was


@virtual
async def test_a_connection_without_a_queue_needs_no_row(plant: Plant) -> None:
    with plant.change() as tx:
        connections.insert(tx, "bare", 1, ConnMode.INVITATION, agent_version=7, pq_support=False)
    plant.stores(Step.KEY, "bare")
    await plant.goes_on()
    assert (plant.find("bare"), plant.smp.asked()) == (None, [])


@virtual
async def test_a_queue_that_moved_is_known_at_its_new_router(plant: Plant) -> None:
    plant.connects("moved", server=ELSEWHERE)
    sub = plant.stores(Step.KEY, "moved")
    await plant.goes_on(sub)
    ((session, _),) = plant.smp.batches
    assert session.server == ELSEWHERE
    assert plant.row("moved").step is Step.CHECK
    assert plant.row("moved").smp_server == ELSEWHERE


@pytest.mark.parametrize("fate", ["another", "gone"])
@virtual
async def test_an_answer_for_a_queue_that_was_left_meanwhile_is_forgotten(plant: Plant, fate: str) -> None:
    sub = plant.stores(Step.KEY)

    def leave() -> None:
        plant.smp.on_asked = lambda: None
        with plant.change() as tx:
            queues.set_rcv_deleted(tx, plant.queue)
            if fate == "another":
                other = replace(plant.queue, number=2, rcv_id=b"2".ljust(24), snd_id=b"3".ljust(24))
                queues.insert_rcv(tx, other)
                queues.set_primary(tx, other)

    plant.smp.on_asked = leave
    await plant.goes_on(sub)
    assert plant.row() == sub
    assert plant.creds is None
    assert plant.ntf.asked() == []


@pytest.mark.parametrize("step", [Step.KEY, Step.NEW, Step.CHECK, Step.DELETE])
@virtual
async def test_a_connection_that_is_deleted_meanwhile_is_no_failure(
    plant: Plant, step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    sub = plant.stores(step)

    def delete() -> None:
        with plant.change() as tx:
            rows.delete(tx, CONN)

    plant.smp.on_asked = plant.ntf.on_asked = delete
    plant.ntf.answers.append(refusal())
    await plant.goes_on(sub)
    assert plant.find() is None
    assert (plant.failures(), caplog.records) == ([], [])


@pytest.mark.parametrize("what", ["notifier", "creds", "queue", "id"])
@virtual
async def test_a_row_that_does_not_fit_its_queue_begins_anew(plant: Plant, what: str) -> None:
    sub = plant.stores(Step.CHECK if what == "id" else Step.NEW)
    if what == "notifier":
        sub = plant.stores(Step.NEW, notifier_id=b"other")
    elif what == "id":
        sub = plant.stores(Step.CHECK, subscription_id=None)
    with plant.change() as tx:
        if what == "creds":
            rows.set_creds(tx, plant.queue, None)
        if what == "queue":
            queues.set_rcv_deleted(tx, plant.queue)
    plant.smp.answers.append(RefusedError(STORE("later")))
    await plant.goes_on(sub, 0.5)
    assert plant.ntf.asked() == []
    if what == "queue":
        assert plant.find() is None
        return
    assert plant.row() == replace(sub, notifier_id=None, subscription_id=None, status="NEW", step=Step.KEY)
    assert [type(command) for command in plant.smp.asked()] == [NKEY]


@virtual
async def test_what_the_supervisor_wants_meanwhile_is_done_next(plant: Plant) -> None:
    sub = plant.stores(Step.NEW)
    plant.ntf.on_asked = lambda: plant.wish(replace(sub, step=Step.DELETE))
    await plant.goes_on(sub)
    assert plant.row().step is Step.DELETE
    assert (plant.row().subscription_id, plant.row().status) == (b"subscription", "CREATED NEW")


@virtual
async def test_a_new_wish_while_the_message_router_is_asked_is_seen_at_once(plant: Plant) -> None:
    sub = plant.stores(Step.KEY)
    first = True

    def again() -> None:
        nonlocal first
        if first:
            first = False
            plant.wish(replace(sub, step=Step.DELETE))

    plant.smp.on_asked = again
    await plant.goes_on(sub)
    assert [type(command) for command in plant.smp.asked()] == [NKEY, NDEL]
    assert plant.find() is None


# Refusals


@pytest.mark.parametrize("step", [Step.KEY, Step.DELETE])
@virtual
async def test_what_a_message_router_refuses_is_told_and_not_asked_again(plant: Plant, step: Step) -> None:
    sub = plant.stores(step)
    plant.smp.answers.append(RefusedError(Code.AUTH))
    await plant.goes_on(sub, 600)
    assert len(plant.smp.asked()) == 1
    assert [conn for conn, why in plant.failed() if "AUTH" in why] == [CONN]
    assert plant.row() == replace(sub, step=None)
    assert (plant.at_work, plant.failures()) == (0, [])


@virtual
async def test_an_answer_of_a_message_router_to_something_else_is_a_refusal(plant: Plant) -> None:
    sub = plant.stores(Step.KEY)
    plant.smp.answers.append(OK())
    await plant.goes_on(sub, 600)
    ((conn_id, why),) = plant.failed()
    assert (conn_id, "UNEXPECTED" in why, plant.row().step) == (CONN, True, None)


@virtual
async def test_a_router_that_names_two_notifiers_alike_harms_no_other_connection(plant: Plant) -> None:
    plant.connects("other")
    plant.connects("third")
    plant.stores(Step.NEW)
    plant.stores(Step.KEY, "other")
    plant.stores(Step.KEY, "third")
    plant.smp.answers.append(NAMED)
    await plant.goes_on()
    ((conn_id, why),) = plant.failed()
    assert conn_id in ("other", "third")
    assert "UNEXPECTED" in why
    assert plant.row(conn_id).step is None
    assert plant.row("third" if conn_id == "other" else "other").step is Step.CHECK
    assert plant.row().step is Step.CHECK
    assert plant.creds == CREDS
    assert plant.failures() == []


@pytest.mark.parametrize("failure", [ConnectError("no way"), RefusedError(STORE("no room"))])
@virtual
async def test_what_a_message_router_cannot_do_now_is_tried_again(plant: Plant, failure: Exception) -> None:
    sub = plant.stores(Step.KEY)
    plant.smp.answers.extend([failure, failure])
    await plant.goes_on(sub, 0.9)
    assert len(plant.smp.batches) == 1, "not at once"
    await asyncio.sleep(60)
    assert len(plant.smp.batches) == 3
    assert plant.row().step is Step.CHECK
    assert (plant.failed(), plant.failures()) == ([], [])


@virtual
async def test_one_refusal_does_not_hold_up_others(plant: Plant) -> None:
    plant.connects("apart 1")
    plant.connects("apart 2", user=2)
    plant.connects("beside")
    for conn_id in ("apart 1", "apart 2", "beside", CONN):
        plant.stores(Step.KEY, conn_id)
    plant.smp.answers.append(RefusedError(STORE("later")))
    await plant.goes_on(for_s=0.9)
    asked = {(key.user_id, key.entity): len(calls) for key, calls in plant.smp.batches}
    assert asked == {(1, "apart 1"): 1, (1, None): 2, (2, "apart 2"): 1}
    steps = [plant.row(conn_id).step for conn_id in ("apart 1", "apart 2", "beside", CONN)]
    assert sorted(str(step) for step in steps) == ["Step.CHECK"] * 3 + ["Step.KEY"]
    await asyncio.sleep(60)
    assert all(plant.row(conn_id).step is Step.CHECK for conn_id in ("apart 1", "apart 2", "beside", CONN))


@pytest.mark.parametrize(
    ("step", "answer"), [(Step.NEW, ALIVE), (Step.CHECK, SUBSCRIBED), (Step.NEW, refusal(Code.QUOTA))]
)
@virtual
async def test_what_a_notification_router_refuses_is_told_and_not_asked_again(
    plant: Plant, step: Step, answer: Answer
) -> None:
    sub = plant.stores(step)
    plant.ntf.answers.append(answer)
    await plant.goes_on(sub, 2 * FIRST_CHECK_S)
    assert len(plant.ntf.asked()) == 1
    ((conn_id, why),) = plant.failed()
    assert (conn_id, "QUOTA" in why or "UNEXPECTED" in why) == (CONN, True)
    assert plant.row() == replace(sub, step=None)
    assert (plant.looked, plant.at_work) == (0, 0)


@pytest.mark.parametrize("failure", [away(), refusal(STORE("no room"))])
@virtual
async def test_what_a_notification_router_cannot_do_now_is_tried_again(
    plant: Plant, failure: AgentError
) -> None:
    sub = plant.stores(Step.NEW)
    plant.ntf.answers.extend([failure, failure])
    await plant.goes_on(sub, 0.9)
    assert len(plant.ntf.batches) == 1, "not at once"
    await asyncio.sleep(60)
    assert len(plant.ntf.batches) == 3
    assert plant.row().step is Step.CHECK
    assert (plant.failed(), plant.failures(), plant.looked) == ([], [], 0)


@virtual
async def test_pauses_grow_while_a_router_is_away_and_are_short_again_after_it_answered(plant: Plant) -> None:
    sub = plant.stores(Step.NEW)
    plant.ntf.answers.extend([away()] * 20)
    await plant.goes_on(sub, 3600)
    times = [at_s for at_s, _, _ in plant.ntf.batches]
    assert times[19] - times[18] > 3 * (times[1] - times[0])
    plant.ntf.batches.clear()
    plant.ntf.answers.append(away())
    began = asyncio.get_running_loop().time()
    plant.stores(Step.NEW)
    await plant.goes_on(sub, 10)
    assert plant.ntf.batches[1][0] - began < 4


# A token that changes meanwhile


@virtual
async def test_a_subscription_that_the_router_does_not_know_is_made_anew(plant: Plant) -> None:
    sub = plant.stores(Step.CHECK)
    plant.ntf.answers.append(refusal())
    await plant.goes_on(sub)
    assert plant.ntf.asked() == ["SCHK", "SNEW"]
    assert (plant.looked, plant.failed()) == (1, [])


@virtual
async def test_a_subscription_that_the_router_does_not_make_is_told(plant: Plant) -> None:
    sub = plant.stores(Step.NEW)
    plant.ntf.answers.append(refusal())
    await plant.goes_on(sub, 600)
    ((conn_id, why),) = plant.failed()
    assert (conn_id, "AUTH" in why, plant.row().step, plant.looked) == (CONN, True, None, 1)


@pytest.mark.parametrize("step", [Step.NEW, Step.CHECK])
@pytest.mark.parametrize("change", [{"device": OTHER}, {"returned": digest(b"another")}, {"action": None}])
@virtual
async def test_a_refusal_for_a_token_that_was_replaced_is_nobodys(
    plant: Plant, step: Step, change: dict[str, Any]
) -> None:
    sub = plant.stores(step)
    plant.ntf.answers.append(refusal())
    same = {"status": ACTIVE, "action": CHECK, "returned": digest(CODE), "period": 20}
    fields = {**same, **change} if "action" not in change else change

    def change_it() -> None:
        plant.has(**fields)

    plant.ntf.on_asked = change_it
    await plant.goes_on(sub, 0.5)
    assert (plant.row(), plant.failed(), plant.looked) == (sub, [], 1)


# Who works


@virtual
async def test_a_row_that_failed_for_good_is_nobodys_work(plant: Plant) -> None:
    plant.workers.wake(plant.stores(None))
    plant.workers.resume()
    assert plant.at_work == 0


@virtual
async def test_one_worker_for_each_router_and_none_after_closing(plant: Plant) -> None:
    sub = plant.stores(Step.KEY)
    plant.workers.wake(sub)
    plant.workers.wake(sub)
    plant.workers.wake(replace(sub, smp_server=ELSEWHERE))
    plant.workers.wake(replace(sub, step=Step.NEW))
    assert plant.at_work == 3
    await asyncio.sleep(1)
    assert len(plant.smp.batches) == 1
    await asyncio.sleep(2 * FIRST_CHECK_S)
    plant.workers.close()
    plant.workers.wake(sub)
    assert plant.at_work == 1, "the one that waits for the next check"


@virtual
async def test_many_rows_are_taken_some_at_a_time_without_a_pause(plant: Plant) -> None:
    names = [f"conn {number:03}" for number in range(BATCH + 5)]
    for name in names:
        plant.connects(name)
        plant.stores(Step.KEY, name)
    began = asyncio.get_running_loop().time()
    await plant.goes_on(for_s=0.5)
    assert [len(calls) for _, calls in plant.smp.batches] == [BATCH, 5]
    assert sum(len(calls) for _, _, calls in plant.ntf.batches) == BATCH + 5
    assert max(len(calls) for _, _, calls in plant.ntf.batches) <= BATCH
    assert plant.ntf.batches[-1][0] - began < 0.5
    assert all(plant.row(name).step is Step.CHECK for name in names)


@virtual
async def test_many_rows_that_begin_anew_hold_up_none_behind_them(plant: Plant) -> None:
    for number in range(BATCH):
        plant.connects(f"conn {number:03}")
        plant.stores(Step.CHECK, f"conn {number:03}", at=NOW - 1)
    plant.stores(Step.CHECK)
    plant.smp.answers.extend([RefusedError(STORE("later"))] * BATCH)
    await plant.goes_on(for_s=0.9)
    assert plant.ntf.asked() == ["SCHK"]


@virtual
async def test_a_full_disk_is_told_and_waited_for(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    sub = plant.stores(Step.KEY)
    with monkeypatch.context() as patched:
        patched.setattr(plant.store, "commit", failing(StoreFailedError("no room")))
        await plant.goes_on(sub, 10)
        assert plant.failures()[:1] == ["CRITICAL: no room"]
        assert plant.at_work == 1
        assert len(plant.failures()) > 1
    await asyncio.sleep(60)
    assert plant.row().step is Step.CHECK


@virtual
async def test_a_broken_disk_ends_the_work(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    sub = plant.stores(Step.KEY)
    monkeypatch.setattr(plant.store, "commit", failing(StoreFailedError("broken")))
    monkeypatch.setattr(plant.store, "_broken", StoreFailedError("broken"))
    await plant.goes_on(sub, 600)
    assert (plant.at_work, plant.failures()) == (0, [])


# Settled


@virtual
async def test_all_is_settled_when_each_connection_is_subscribed_or_failed_for_good(plant: Plant) -> None:
    plant.connects("failed")
    plant.stores(None, "failed")
    sub = plant.stores(Step.KEY)
    waiting = asyncio.create_task(plant.workers.settled())
    await asyncio.sleep(5)
    assert not waiting.done()
    plant.workers.wake(sub)
    async with asyncio.timeout(0.9):
        await waiting
    assert plant.row().step is Step.CHECK


@pytest.mark.parametrize("first", ["none", "not active"])
@virtual
async def test_nothing_is_settled_before_the_token_is_active(plant: Plant, first: str) -> None:
    with plant.change() as tx:
        ntf_tokens.delete(tx)
    if first == "not active":
        plant.has()
    waiting = asyncio.create_task(plant.workers.settled())
    await asyncio.sleep(30)
    assert not waiting.done()
    plant.has(status=ACTIVE)
    async with asyncio.timeout(1.5):
        await waiting
