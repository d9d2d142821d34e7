"""SUBS and NSUBS: one command for all queues, what follows it, who is displaced, what may go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blindpost.crypto.ids_hash import NO_IDS, QueueSet
from blindpost.engine.loop import StoreFailedError
from blindpost.router import events, plan
from blindpost.router.changes import Change, Wanted
from blindpost.router.meters import Meter
from blindpost.router.model import NO_QUEUES, Domain
from blindpost.router.server import RETRY_S
from blindpost.router.state import ServiceSub, Walk
from blindpost.router.tables import MESSAGES as MESSAGE_TABLE
from blindpost.router.tables import QUEUES as QUEUE_TABLE
from blindpost.router.tables import LmdbTables
from blindpost.router.view import View
from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import ACK, DEL, SEND, SUB
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.smp.responses import ALLS, END, ENDS, ERR, MSG, NMSG, OK, SOK, SOKS, Response
from blindpost.wire.smp.transmissions import Received, parse_responses
from tests.support.router.lines import Line, Queue, Said, client_of, create, open_line, pushed, quiet
from tests.support.router.routers import RunningRouter, running_router
from tests.support.router.services import (
    NOTIFIER,
    ServiceLine,
    add_notifier,
    back,
    counter,
    left,
    new_service,
    notifiers_of,
    nsub,
    open_service,
    queue_record,
    service_queues,
    set_of,
    sub,
    total,
)
from tests.support.serving.waiting import until

MESSAGES, NOTIFICATIONS = Domain.MESSAGES, Domain.NOTIFICATIONS
NO_MSG = ERR(Code.NO_MSG)


async def heard_up_to(line: ServiceLine, last: type[Response]) -> list[Received]:
    """Everything in the order of the wire, up to the block with a response of this kind."""
    order: list[Received] = []
    while not any(isinstance(received.response, last) for received in order):
        payload = await line.stream.read_block()
        for received in parse_responses(Reader(payload), line.layout, line.version):
            assert isinstance(received, Received)
            order.append(received)
    return order


@pytest.mark.both_stores
@pytest.mark.claim("SVC-36", "SVC-37")
async def test_after_subs_come_the_first_messages_and_then_alls_once(
    running: RunningRouter, tmp_path: Path
) -> None:
    credentials, queues = await left(running, [0, 1, 2])
    line = await back(running, credentials)
    assert await line.subs() == set_of(queues)
    came = await line.all_delivered()
    assert sorted(received.entity_id for received in came) == sorted(
        queue.recipient_id for queue in queues[1:]
    )
    for queue in queues[1:]:
        assert await pushed(line, queue) == b"0"
    assert await line.settle() == [], "one MSG for each queue, one ALLS"
    assert queues[2].body(await queues[2].ask(line, ACK(queues[2].last_id))) == b"1"
    assert await queues[1].ask(line, ACK(queues[1].last_id)) == OK()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-30", "SVC-31", "SUB-52")
@pytest.mark.parametrize(
    ("more", "same_hash", "meter", "by"),
    [
        (0, True, Meter.RCV_DRIFT_OK, None),
        (0, False, Meter.RCV_DRIFT_DIFF, None),
        (2, True, Meter.RCV_DRIFT_FEWER, Meter.RCV_DRIFT_FEWER_TOTAL),
        (-2, True, Meter.RCV_DRIFT_MORE, Meter.RCV_DRIFT_MORE_TOTAL),
        (5, False, Meter.RCV_DRIFT_FEWER, Meter.RCV_DRIFT_FEWER_TOTAL),
        (-3, False, Meter.RCV_DRIFT_MORE, Meter.RCV_DRIFT_MORE_TOTAL),
    ],
)
async def test_a_clients_wrong_count_or_hash_is_metered_and_changes_nothing(
    running: RunningRouter, tmp_path: Path, more: int, same_hash: bool, meter: Meter, by: Meter | None
) -> None:
    """Counts and hashes are compared together; the answer is what is stored, and delivery starts."""
    credentials, queues = await left(running, [1, 0, 0])
    line, actual = await back(running, credentials), set_of(queues)
    believed = actual.ids_hash if same_hash else bytes(range(16))
    compared: list[tuple[bytes, Domain, bool]] = []
    running.router.plan.on_compare = lambda *said: compared.append(said)
    assert await line.subs(actual.count + more, believed) == actual
    assert await pushed(line, queues[0]) == b"0"
    assert (await line.event(b"")).response == ALLS()
    meters = running.router.plan.meters
    drifts = {
        Meter.RCV_DRIFT_OK,
        Meter.RCV_DRIFT_DIFF,
        Meter.RCV_DRIFT_FEWER,
        Meter.RCV_DRIFT_MORE,
    }
    assert {drift: meters[drift] for drift in drifts} == {drift: int(drift is meter) for drift in drifts}
    if by is not None:
        assert meters[by] == abs(more)
    assert compared == [(line.service_id, MESSAGES, meter is Meter.RCV_DRIFT_OK)]


async def test_queues_that_a_service_serves_already_are_not_counted_again(running: RunningRouter) -> None:
    line = await open_service(running, new_service())
    queues, meters = await service_queues(line, 2), running.router.plan.meters
    for queue in queues:
        await sub(line, queue)
    counted = meters[Meter.RCV_SERVICE_SUB_QUEUES]
    assert await line.subs() == set_of(queues)
    assert meters[Meter.RCV_SERVICE_SUB_QUEUES] == counted


async def test_a_hash_of_any_length_and_a_negative_count_are_accepted(running: RunningRouter) -> None:
    credentials, queues = await left(running, [0])
    for count, ids_hash in ((-5, b""), (1 << 40, bytes(40)), (-1, NO_IDS)):
        line, actual = await back(running, credentials), set_of(queues)
        said = b"".join((b"SUBS ", count.to_bytes(8, "big", signed=True), bytes([len(ids_hash)]), ids_hash))
        reply = await line.ask(said, line.service_id, line.session_key)
        assert reply == SOKS(actual.count, actual.ids_hash)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-32")
async def test_flag_and_counter_change_in_one_step(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every await of the router an observer sees both old values or both new ones."""
    credentials, queues = await left(running, [0, 0, 0])
    line = await back(running, credentials)
    assert await sub(line, queues[0]) == SOK(line.service_id)
    client, observed = client_of(running, line), list[ServiceSub]()
    store = running.router.store
    load, load_needed, commit = store.load, store.load_needed, store.commit

    async def loading(wanted: Wanted, view: View) -> None:
        observed.append(client.service_sub(MESSAGES))
        await load(wanted, view)
        observed.append(client.service_sub(MESSAGES))

    async def committing(changes: Sequence[Change]) -> None:
        observed.append(client.service_sub(MESSAGES))
        await commit(changes)
        observed.append(client.service_sub(MESSAGES))

    monkeypatch.setattr(store, "load", loading)
    monkeypatch.setattr(store, "commit", committing)
    assert store.load_needed == load_needed
    assert await line.subs() == set_of(queues)
    before, after = ServiceSub(False, set_of(queues[:1])), ServiceSub(True, set_of(queues))
    assert before in observed
    assert after in observed
    assert set(map(repr, observed)) == {repr(before), repr(after)}
    assert all(one in (before, after) for one in observed)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-33", "SVC-44", "SVC-45")
async def test_a_takeover_is_complete_when_subs_is_answered(running: RunningRouter, tmp_path: Path) -> None:
    credentials, queues = await left(running, [1, 0, 0])
    old, other = await back(running, credentials), await open_service(running, new_service())
    await create(other, subscribe=True)
    await old.subs()
    assert await pushed(old, queues[0]) == b"0"
    assert (await old.event(b"")).response == ALLS()
    assert total(running) == 4
    new = await back(running, credentials)
    assert await new.subs() == set_of(queues)
    client, state = client_of(running, old), running.router.plan.state
    assert state.services(MESSAGES).holder(old.service_id) is client_of(running, new)
    assert (counter(running, old), counter(running, new)) == (NO_QUEUES, set_of(queues))
    assert total(running) == 4
    assert (len(client.subs), len(client.waiting), len(client.walks)) == (0, 0, 0)
    assert await pushed(new, queues[0]) == b"0"
    assert (await new.event(b"")).response == ALLS()
    expected = set_of(queues)
    assert [received.response for received in await old.settle()] == [
        ENDS(expected.count, expected.ids_hash)
    ], "ENDS, with what it had, and no END for any queue"
    assert (await old.event(old.service_id)).response == ENDS(expected.count, expected.ids_hash)
    assert running.router.plan.meters[Meter.RCV_SERVICE_SUB_ENDS] == len(queues)
    assert running.router.plan.meters[Meter.SUB_ENDS] == 1
    await quiet(old, new, other)


async def test_a_walk_under_way_ends_with_a_takeover(running: RunningRouter) -> None:
    credentials, _ = await left(running, [0, 0])
    old = await back(running, credentials)
    await old.subs()
    walks = client_of(running, old).walks
    walks.put(MESSAGES, Walk())
    running.router.plan.undo.forget()
    await (await back(running, credentials)).subs()
    assert len(walks) == 0


async def test_a_queue_that_leaves_its_service_for_a_plain_connection_is_counted(
    running: RunningRouter,
) -> None:
    credentials, queues = await left(running, [0, 0])
    line = await back(running, credentials)
    await line.subs()
    await queues[0].ask(await open_line(running), SUB())
    assert (await line.event(queues[0].recipient_id)).response == END()
    assert running.router.plan.meters[Meter.SUB_ENDS] == 1


@pytest.mark.both_stores
@pytest.mark.claim("SVC-44")
async def test_no_ends_without_another_connection(running: RunningRouter, tmp_path: Path) -> None:
    credentials, queues = await left(running, [0, 0])
    line = await back(running, credentials)
    for _ in range(3):
        assert await line.subs() == set_of(queues)
    assert (await line.event(b"")).response == ALLS()
    await quiet(line)
    await line.stream.close()
    line = await back(running, credentials)
    assert await line.subs() == set_of(queues)
    assert running.router.plan.meters[Meter.RCV_SERVICE_SUB_ENDS] == 0


async def displaced(running: RunningRouter) -> tuple[list[Queue], ServiceLine, ServiceLine, Line]:
    """Two queues of a service, the connection that lost it, the one that took it, and a sender."""
    credentials, queues = await left(running, [0, 0])
    old, new = await back(running, credentials), await back(running, credentials)
    await old.subs()
    assert await new.subs() == set_of(queues)
    assert isinstance((await old.event(old.service_id)).response, ENDS)
    return queues, old, new, await open_line(running)


async def test_a_displaced_connection_takes_over_again_by_sub_but_not_by_subs(running: RunningRouter) -> None:
    queues, old, new, sender = await displaced(running)
    assert await old.subs() == NO_QUEUES
    await queues[0].send(sender, b"one")
    assert await pushed(new, queues[0]) == b"one"
    assert await sub(old, queues[1]) == SOK(old.service_id)
    assert (await new.event(new.service_id)).response == ENDS(2, set_of(queues).ids_hash)
    assert await pushed(old, queues[0]) == b"one", "what was in flight to the other one comes too"
    await queues[1].send(sender, b"two")
    assert await pushed(old, queues[1]) == b"two"
    assert await queues[0].ask(new, ACK(queues[0].last_id)) == NO_MSG


async def test_a_displaced_connection_gets_what_came_while_nobody_served(running: RunningRouter) -> None:
    """The other one is gone: with one queue that it subscribes it serves all of them again."""
    queues, old, new, sender = await displaced(running)
    await new.stream.close()
    await until(lambda: total(running) == 0)
    await queues[0].send(sender, b"one")
    assert await sub(old, queues[1]) == SOK(old.service_id)
    assert await pushed(old, queues[0]) == b"one"


@pytest.mark.both_stores
@pytest.mark.claim("SVC-34")
async def test_queues_are_not_counted_twice(running: RunningRouter, tmp_path: Path) -> None:
    credentials, queues = await left(running, [0, 0, 0])
    line, other = await back(running, credentials), await open_line(running)
    fresh = [await create(other) for _ in range(2)]
    for queue in (*queues, *fresh):
        assert await sub(line, queue) == SOK(line.service_id)
    assert await line.subs() == set_of([*queues, *fresh])
    assert total(running) == 5
    assert await sub(line, queues[0]) == SOK(line.service_id)
    assert await fresh[0].ask(line, DEL()) == OK()
    assert total(running) == 4
    await line.stream.close()
    await until(lambda: total(running) == 0)


@pytest.mark.parametrize("served", [0, 1])
async def test_subs_counts_what_the_connection_did_not_serve_yet(running: RunningRouter, served: int) -> None:
    """A connection that took a queue of its service by SUB is already subscribed and counted before SUBS."""
    credentials, queues = await left(running, [0, 0, 0])
    line, meters = await back(running, credentials), running.router.plan.meters
    before = meters[Meter.RCV_SERVICE_SUBS], meters[Meter.RCV_SERVICE_SUB_QUEUES]
    for queue in queues[:served]:
        assert await sub(line, queue) == SOK(line.service_id)
    assert await line.subs() == set_of(queues)
    now = meters[Meter.RCV_SERVICE_SUBS], meters[Meter.RCV_SERVICE_SUB_QUEUES]
    assert now == (before[0] + 1, before[1] + 3)
    assert await line.subs() == set_of(queues)
    assert (meters[Meter.RCV_SERVICE_SUBS], meters[Meter.RCV_SERVICE_SUB_QUEUES]) == now


def gated(
    running: RunningRouter, monkeypatch: pytest.MonkeyPatch, pages: int
) -> tuple[asyncio.Event, asyncio.Event]:
    """Let the store return `pages` pages of walks and hold the next; the events "held" and "release"."""
    store, held, gate, said = running.router.store, asyncio.Event(), asyncio.Event(), 0
    waiting = store.waiting

    async def paused(
        domain: Domain, service_id: bytes, start: bytes, limit: int
    ) -> tuple[tuple[bytes, ...], bytes | None]:
        nonlocal said
        said += 1
        if said > pages:
            held.set()
            await gate.wait()
        return await waiting(domain, service_id, start, limit)

    monkeypatch.setattr(store, "waiting", paused)
    return held, gate


@pytest.mark.both_stores
@pytest.mark.claim("SVC-35")
async def test_subs_is_answered_before_the_walk_begins(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials, queues = await left(running, [1, 1])
    line = await back(running, credentials)
    held, gate = gated(running, monkeypatch, 0)
    assert await line.subs() == set_of(queues)
    await held.wait()
    gate.set()
    for queue in queues:
        assert await pushed(line, queue) == b"0"


@pytest.mark.both_stores
@pytest.mark.claim("SVC-39")
async def test_messages_are_delivered_during_the_walk(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SERVE_STEP", 1)
    credentials, queues = await left(running, [1, 1, 1])
    queues.sort(key=lambda queue: queue.recipient_id)
    line = await back(running, credentials)
    held, gate = gated(running, monkeypatch, 1)
    await line.subs()
    await held.wait()
    assert await pushed(line, queues[0]) == b"0"
    assert line.left_over == []
    gate.set()
    for queue in queues[1:]:
        assert await pushed(line, queue) == b"0"
    assert (await line.event(b"")).response == ALLS()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-40")
async def test_a_second_subs_is_answered_and_nothing_more(running: RunningRouter, tmp_path: Path) -> None:
    credentials, queues = await left(running, [1, 2])
    line = await back(running, credentials)
    for _ in range(2):
        assert await line.subs() == set_of(queues)
    for queue in queues:
        assert await pushed(line, queue) == b"0"
    assert (await line.event(b"")).response == ALLS()
    assert await line.subs(7, bytes(16)) == set_of(queues)
    await quiet(line)
    assert running.router.plan.meters[Meter.RCV_SERVICE_SUB_DUPLICATE] == 2


@pytest.mark.both_stores
@pytest.mark.claim("SVC-42")
async def test_a_queue_that_joins_later_needs_no_walk(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials, queues = await left(running, [0])
    line, sender = await back(running, credentials), await open_line(running)
    await line.subs()
    assert (await line.event(b"")).response == ALLS()
    later = await create(line, subscribe=True)
    client = client_of(running, line)
    assert later.recipient_id not in client.subs
    for queue in (later, *queues):
        await queue.send(sender, b"at once")
        assert queue.recipient_id in client.subs, "the entry is made with the delivery"
        assert await pushed(line, queue) == b"at once"
        assert await queue.ask(line, ACK(queue.last_id)) == OK()
        assert queue.recipient_id not in client.subs


@pytest.mark.both_stores
@pytest.mark.claim("SVC-42", "SVC-43", "SVC-68")
async def test_a_message_that_arrives_before_the_walk_is_pushed_once(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk has not begun but the service is registered: the message goes out, and only once."""
    credentials, queues = await left(running, [0, 1])
    line, sender = await back(running, credentials), await open_line(running)
    put_own, serves = running.router.engine.put_own, list[events.Serve]()

    def without_walks(event: events.Event) -> None:
        if isinstance(event, events.Serve):
            serves.append(event)
        else:
            put_own(event)

    monkeypatch.setattr(running.router.engine, "put_own", without_walks)
    await line.subs()
    await queues[0].send(sender, b"early")
    assert await pushed(line, queues[0]) == b"early"
    await quiet(line)
    monkeypatch.undo()
    for serve in serves:
        put_own(serve)
    assert await pushed(line, queues[1]) == b"0"
    assert (await line.event(b"")).response == ALLS()
    await quiet(line)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-43")
async def test_sends_that_race_with_the_walk_are_delivered_once_each(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SERVE_STEP", 3)
    credentials, queues = await left(running, [index % 2 for index in range(40)])
    line, sender = await back(running, credentials), await open_line(running)
    said = [Said(SEND(False, b"live"), queue.sender_id) for queue in queues[::-1]]

    async def send_all() -> None:
        for number, one in enumerate(said):
            sender.send([sender.written(one)])
            for _ in range(number % 5):
                await asyncio.sleep(0)
        for one in said:
            assert (await sender.reply(one.corr_id)).response == OK()

    sending = asyncio.create_task(send_all())
    await line.subs()
    heard: dict[bytes, list[bytes]] = {queue.recipient_id: [] for queue in queues}
    for index, queue in reversed(list(enumerate(queues))):
        for _ in range(1 + index % 2):
            if not heard[queue.recipient_id]:
                heard[queue.recipient_id].append(await pushed(line, queue))
            else:
                reply = await queue.ask(line, ACK(queue.last_id))
                if reply == OK():
                    heard[queue.recipient_id].append(await pushed(line, queue))
                else:
                    heard[queue.recipient_id].append(queue.body(reply))
    await sending
    assert (await line.event(b"")).response == ALLS()
    await quiet(line)
    for index, queue in enumerate(queues):
        assert heard[queue.recipient_id] == ([b"0", b"live"] if index % 2 else [b"live"])


@pytest.mark.both_stores
@pytest.mark.claim("SVC-65", "SUB-52")
async def test_nsubs_registers_and_hands_over_what_waits_but_no_messages(
    running: RunningRouter, tmp_path: Path
) -> None:
    credentials, owner = new_service(), await open_line(running)
    line = await open_service(running, credentials, NOTIFIER)
    queues = [await create(owner, notifier=True) for _ in range(2)]
    for queue in queues:
        assert await nsub(line, queue) == SOK(line.service_id)
    gone = client_of(running, line)
    await line.stream.close()
    await until(lambda: gone.client_id not in running.router.connections)
    await queues[0].send(owner, b"no flag")
    await queues[0].send(owner, b"flagged", notify=True)
    line = await open_service(running, credentials, NOTIFIER)
    assert await line.subs(domain=NOTIFICATIONS) == notifiers_of(queues)
    assert isinstance((await line.event(queues[0].notifier_id)).response, NMSG)
    await quiet(line)
    holder = running.router.plan.state.services(NOTIFICATIONS).holder(line.service_id)
    assert holder is client_of(running, line)
    assert total(running, NOTIFICATIONS) == 2
    await queues[1].send(owner, b"flagged", notify=True)
    assert isinstance((await line.event(queues[1].notifier_id)).response, NMSG)
    await quiet(line)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-66")
async def test_a_takeover_stops_the_old_walk_and_late_acks_delete_nothing(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SERVE_STEP", 2)
    credentials, queues = await left(running, [1] * 20)
    queues.sort(key=lambda queue: queue.recipient_id)
    old = await back(running, credentials)
    new = await back(running, credentials)
    held, gate = gated(running, monkeypatch, 2)
    await old.subs()
    await held.wait()
    taking = asyncio.create_task(new.subs())
    await until(lambda: running.router.engine.waiting > 0)
    gate.set()
    assert await taking == set_of(queues)
    for queue in queues:
        assert await pushed(new, queue) == b"0"
    assert (await new.event(b"")).response == ALLS()
    came = [received.response for received in await heard_up_to(old, ENDS)]
    assert 2 <= len([response for response in came if isinstance(response, MSG)]) <= 8
    assert isinstance(came[-1], ENDS)
    assert ALLS() not in came
    await quiet(old)
    for queue in queues:
        assert await queue.ask(old, ACK(queue.last_id)) == NO_MSG
    assert running.router.store.counts()["messages"] == len(queues)
    for queue in queues:
        assert await queue.ask(new, ACK(queue.last_id)) == OK()
    assert running.router.store.counts()["messages"] == 0


@pytest.mark.both_stores
@pytest.mark.claim("SVC-74")
async def test_a_service_without_queues_gets_alls(running: RunningRouter, tmp_path: Path) -> None:
    line = await open_service(running, new_service())
    assert await line.subs() == NO_QUEUES
    assert (await line.event(b"")).response == ALLS()
    await quiet(line)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-74")
async def test_a_queue_deleted_during_the_walk_holds_up_nothing(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted after the store listed it and before its turn, in the same batch or an earlier one."""
    monkeypatch.setattr(plan, "SERVE_STEP", 2)
    credentials, queues = await left(running, [1] * 5)
    queues.sort(key=lambda queue: queue.recipient_id)
    line, plain = await back(running, credentials), await open_line(running)
    held, gate = gated(running, monkeypatch, 1)
    await line.subs()
    await held.wait()
    deleting = asyncio.create_task(plain.ask_many([queue.said(DEL()) for queue in queues[2:4]]))
    await until(lambda: running.router.engine.waiting > 0)
    gate.set()
    assert await deleting == [OK(), OK()]
    assert (await line.event(b"")).response == ALLS()
    for queue in (*queues[:2], queues[4]):
        assert await pushed(line, queue) == b"0"
    assert await line.subs() == set_of([*queues[:2], queues[4]])


@pytest.mark.both_stores
@pytest.mark.claim("SVC-74")
async def test_a_walk_that_the_store_interrupts_is_reported_and_continues_later(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.router.server.RETRY_S", 0.01)
    monkeypatch.setattr(plan, "SERVE_STEP", 2)
    credentials, queues = await left(running, [1] * 5)
    line, store, failing = await back(running, credentials), running.router.store, 3
    waiting = store.waiting

    async def sometimes(
        domain: Domain, service_id: bytes, start: bytes, limit: int
    ) -> tuple[tuple[bytes, ...], bytes | None]:
        nonlocal failing
        if start and failing:
            failing -= 1
            raise StoreFailedError("no luck")
        return await waiting(domain, service_id, start, limit)

    monkeypatch.setattr(store, "waiting", sometimes)
    assert await line.subs() == set_of(queues)
    assert (await line.event(b"")).response == ERR(STORE("no luck"))
    for queue in queues:
        assert await pushed(line, queue) == b"0"
    assert failing == 0
    await quiet(line)


@pytest.mark.claim("SVC-38", "SVC-37")
@pytest.mark.parametrize("damage", ["no message", "message", "record"])
async def test_a_failing_queue_is_reported_before_alls_and_stops_no_other(
    tmp_path_factory: pytest.TempPathFactory, damage: str
) -> None:
    """Rows of the embedded store are damaged behind the router's back, then it starts again."""
    folder = tmp_path_factory.mktemp("router")
    async with running_router(folder, network=MemoryNetwork()) as running:
        credentials, queues = await left(running, [1] * 4)
    queues.sort(key=lambda queue: queue.recipient_id)
    bad, good = queues[1], [queues[0], *queues[2:]]
    tables = LmdbTables(folder)
    with tables.store.read() as read:
        (key,) = (key for key, _ in read.page(MESSAGE_TABLE, b"", 10).rows if bad.recipient_id in key)
    change: dict[str, Callable[[], tuple[str, bytes, bytes | None]]] = {
        "no message": lambda: (MESSAGE_TABLE, key, None),
        "message": lambda: (MESSAGE_TABLE, key, b""),
        "record": lambda: (QUEUE_TABLE, bad.recipient_id, b"\1garbage"),
    }
    tables.store.commit([change[damage]()])
    tables.close()
    async with running_router(folder, network=MemoryNetwork()) as running:
        line = await back(running, credentials)
        assert await line.subs() == set_of(queues)
        came = await line.all_delivered()
        assert len(came) == len(queues)
        for queue in good:
            assert await pushed(line, queue) == b"0"
        told = (await line.event(bad.recipient_id)).response
        assert isinstance(told, ERR)
        assert (told.error is Code.INTERNAL) == (damage != "record")
        assert running.router.plan.meters[Meter.INTERNAL_ERRORS] == int(damage != "record")
        assert isinstance(told.error, STORE) == (damage == "record")
        reply = await bad.ask(line, ACK(b""))
        assert reply != ERR(Code.AUTH), "a queue that cannot be read is not a deleted one"
        if damage == "record":
            assert isinstance(reply, ERR)
            assert isinstance(reply.error, STORE)
        await line.stream.close()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-37")
async def test_alls_ends_a_walk_and_names_nothing(running: RunningRouter, tmp_path: Path) -> None:
    credentials, queues = await left(running, [1] * 40)
    line = await back(running, credentials)
    line.send([line.written(line.subs_said())])
    order = await heard_up_to(line, ALLS)
    kinds = [type(received.response) for received in order]
    assert kinds.count(SOKS) == kinds.count(ALLS) == 1
    assert kinds.count(MSG) == len(queues)
    assert kinds[-1] is ALLS
    assert (order[-1].corr_id, order[-1].entity_id) == (b"", b"")
    await quiet(line)


def test_a_walk_waits_out_a_store_that_fails_as_a_whole(tmp_path: Path) -> None:
    """Loading fails for everybody: commands get an error, and the walk is retried until it completes."""

    async def main() -> None:
        async with running_router(tmp_path, network=MemoryNetwork()) as running:
            credentials, queues = await left(running, [1, 1])
            line, store = await back(running, credentials), running.router.store
            load, failing = store.load, False

            async def sometimes(wanted: Wanted, view: View) -> None:
                if failing:
                    raise StoreFailedError("no disk")
                await load(wanted, view)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(store, "load", sometimes)
                _, gate = gated(running, patched, 0)
                await line.subs()
                failing = True
                gate.set()
                await asyncio.sleep(3 * RETRY_S)
                assert line.left_over == []
                failing = False
                await asyncio.sleep(2 * RETRY_S)
            for queue in queues:
                assert await pushed(line, queue) == b"0"
            assert (await line.event(b"")).response == ALLS()
            await line.stream.close()

    run_virtual(main())


async def test_a_walk_that_is_served_twice_in_one_batch_is_not_cut_short(running: RunningRouter) -> None:
    """Messages that arrive behind the walk are found by the next one, however often it is asked for."""
    credentials, queues = await left(running, [1, 1])
    line = await back(running, credentials)
    await line.subs()
    for queue in queues:
        assert await pushed(line, queue) == b"0"
    assert (await line.event(b"")).response == ALLS()
    client = client_of(running, line)
    engine = running.router.engine
    for queue in queues:
        client.subs.pop(queue.recipient_id)
    client.walks.put(MESSAGES, Walk(start=b"\xff" * 24, again=True))
    running.router.plan.undo.forget()
    engine.put_own(events.Serve(client))
    engine.put_own(events.Serve(client))
    for queue in queues:
        assert await pushed(line, queue) == b"0"
    await quiet(line)


async def test_a_plain_queue_taken_into_a_service_is_ended_for_its_owner(running: RunningRouter) -> None:
    line, owner = await open_service(running, new_service()), await open_line(running)
    queue = await create(owner, subscribe=True)
    await sub(line, queue)
    assert (await owner.event(queue.recipient_id)).response == END()
    assert await add_notifier(owner, queue)
    assert (await queue_record(running, queue)).service_id == line.service_id
    assert QueueSet.of([queue.recipient_id]) == counter(running, line)
