"""Which queues belong to which service: the four cases, both domains, and everything that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from blindpost.router.association import SERVICE_METERS
from blindpost.router.changes import Change
from blindpost.router.meters import Meter
from blindpost.router.model import NO_QUEUES, Domain
from blindpost.router.state import PUSH_IDLE
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import ACK, DEL, GET, NDEL
from blindpost.wire.smp.errors import PROHIBITED
from blindpost.wire.smp.responses import DELD, END, ENDS, ERR, MSG, NMSG, OK, SOK
from tests.support.router.lines import client_of, create, open_line, pushed, quiet
from tests.support.router.routers import RunningRouter, new_credentials, running_router
from tests.support.router.services import (
    NOTIFIER,
    ServiceLine,
    add_notifier,
    counter,
    members,
    new_service,
    notifiers_of,
    nsub,
    open_service,
    queue_record,
    service_queues,
    service_record,
    set_of,
    sub,
    total,
    waiting_in,
)
from tests.support.serving.waiting import until

MESSAGES, NOTIFICATIONS = Domain.MESSAGES, Domain.NOTIFICATIONS


class Writes:
    """What the store was asked to write."""

    def __init__(self, running: RunningRouter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes: list[Change] = []
        commit = running.router.store.commit

        async def kept(changes: Sequence[Change]) -> None:
            self.changes += changes
            await commit(changes)

        monkeypatch.setattr(running.router.store, "commit", kept)


async def snapshot(running: RunningRouter, *lines: ServiceLine) -> list[object]:
    """Everything about these services: stored sets, counters of connections, counters of the router."""
    meters = running.router.plan.meters
    return [
        [(await service_record(running, line.service_id)) for line in lines],
        [counter(running, line, domain) for line in lines for domain in Domain],
        [meters[meter] for meter in Meter if "Services" in meter.value],
    ]


@pytest.mark.both_stores
@pytest.mark.claim("SVC-21")
async def test_a_queue_created_by_a_service_belongs_to_it_at_once(
    running: RunningRouter, tmp_path: Path
) -> None:
    credentials, sender = new_service(), await open_line(running)
    line = await open_service(running, credentials)
    queue = await create(line, subscribe=True)
    assert queue.ids.service_id == line.service_id
    await line.stream.close()
    await queue.send(sender, b"while away")
    line = await open_service(running, credentials)
    assert await line.subs() == set_of([queue])
    assert await pushed(line, queue) == b"while away"


@pytest.mark.both_stores
@pytest.mark.claim("SVC-22")
async def test_a_repeated_sub_writes_nothing_and_counts_only_what_was_not_counted(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = new_service()
    line = await open_service(running, credentials)
    queues = await service_queues(line, 2)
    await line.stream.close()
    line = await open_service(running, credentials)
    writes = Writes(running, monkeypatch)
    for queue in queues:
        assert await sub(line, queue) == SOK(line.service_id)
    assert counter(running, line) == set_of(queues[:1]), "the first only, as before SUBS"
    assert await line.subs() == set_of(queues)
    for queue in queues:
        assert await sub(line, queue) == SOK(line.service_id)
    assert counter(running, line) == set_of(queues)
    assert writes.changes == []
    assert running.router.plan.meters[Meter.RCV_ASSOC_DUPLICATE] == 4


@pytest.mark.both_stores
@pytest.mark.claim("SVC-23")
async def test_sub_takes_a_queue_into_the_service(running: RunningRouter, tmp_path: Path) -> None:
    line, owner = await open_service(running, new_service()), await open_line(running)
    queues = [await create(owner, subscribe=True) for _ in range(2)]
    for number, queue in enumerate(queues, 1):
        assert await sub(line, queue) == SOK(line.service_id)
        assert (await queue_record(running, queue)).service_id == line.service_id
        assert counter(running, line) == await members(running, line) == set_of(queues[:number])
        assert (await owner.event(queue.recipient_id)).response == END()
    assert running.router.plan.meters[Meter.RCV_ASSOC_NEW] == 2
    await quiet(owner, line)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-24")
async def test_sub_by_another_service_moves_a_queue(running: RunningRouter, tmp_path: Path) -> None:
    service_a, service_b = [await open_service(running, new_service()) for _ in range(2)]
    sender = await open_line(running)
    queues = await service_queues(service_a, 3)
    own = await create(service_b, subscribe=True)
    await queues[0].send(sender, b"in flight to A")
    assert await pushed(service_a, queues[0]) == b"in flight to A"
    assert await sub(service_b, queues[0]) == SOK(service_b.service_id)
    assert await pushed(service_b, queues[0]) == b"in flight to A"
    assert (await service_a.event(queues[0].recipient_id)).response == END()
    for line, left in ((service_a, queues[1:]), (service_b, [own, queues[0]])):
        assert await members(running, line) == counter(running, line) == set_of(left)
    assert await waiting_in(running, service_a.service_id) == set()
    assert await waiting_in(running, service_b.service_id) == {queues[0].recipient_id}
    late = await queues[0].ask(service_a, ACK(queues[0].last_id))
    assert isinstance(late, ERR), "nothing is in flight to A any more"
    assert await queues[0].ask(service_b, ACK(queues[0].last_id)) == OK()
    assert running.router.plan.meters[Meter.RCV_ASSOC_UPDATED] == 1
    await quiet(service_a, service_b)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-25")
async def test_a_plain_sub_takes_a_queue_out_of_its_service(running: RunningRouter, tmp_path: Path) -> None:
    line, plain, sender = (
        await open_service(running, new_service()),
        *[await open_line(running) for _ in range(2)],
    )
    queues = await service_queues(line, 2)
    assert await sub(plain, queues[0]) == SOK(None)
    assert (await queue_record(running, queues[0])).service_id is None
    assert await members(running, line) == counter(running, line) == set_of(queues[1:])
    assert (await line.event(queues[0].recipient_id)).response == END()
    for queue, receiver in ((queues[0], plain), (queues[1], line)):
        await queue.send(sender, b"hello")
        assert await pushed(receiver, queue) == b"hello"
    assert running.router.plan.meters[Meter.RCV_ASSOC_REMOVED] == 1
    await quiet(line, plain)


@pytest.mark.both_stores
@pytest.mark.claim("SVC-26")
async def test_a_plain_sub_on_a_plain_queue_does_not_affect_services(
    running: RunningRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, plain = await open_service(running, new_service()), await open_line(running)
    await service_queues(line, 2)
    queue = await create(plain)
    before, writes = await snapshot(running, line), Writes(running, monkeypatch)
    for _ in range(2):
        assert await sub(plain, queue) == SOK(None)
    assert await snapshot(running, line) == before
    assert writes.changes == []


@pytest.mark.both_stores
@pytest.mark.claim("SVC-28")
async def test_associations_outlive_connections_and_restarts(tmp_path: Path) -> None:
    identity, credentials, notifying = new_credentials(), new_service(), new_service()
    network = MemoryNetwork()
    async with running_router(tmp_path, credentials=identity, network=network) as running:
        line, sender = await open_service(running, credentials), await open_line(running)
        queues = await service_queues(line, 3)
        notifier = await open_service(running, notifying, NOTIFIER)
        await add_notifier(sender, queues[2])
        assert await nsub(notifier, queues[2]) == SOK(notifier.service_id)
        for one in (line, notifier):
            await one.stream.close()
        for queue in queues[:2]:
            await queue.send(sender, b"stored")
        await queues[2].send(sender, b"noticed", notify=True)
        await sender.stream.close()
    async with running_router(tmp_path, credentials=identity, network=network) as running:
        assert total(running) == 0
        line = await open_service(running, credentials)
        await until(lambda: bool(running.router.connections))
        assert counter(running, line) == NO_QUEUES, "only live state is gone"
        assert await line.subs() == set_of(queues)
        for queue, body in zip(queues, (b"stored", b"stored", b"noticed"), strict=True):
            assert await pushed(line, queue) == body
        notifier = await open_service(running, notifying, NOTIFIER)
        assert await notifier.subs(domain=NOTIFICATIONS) == notifiers_of(queues[2:])
        notice = (await notifier.event(queues[2].notifier_id)).response
        assert isinstance(notice, NMSG)
        assert queues[2].noticed(notice).msg_id == queues[2].last_id
        for one in (line, notifier):
            await one.stream.close()


# The same for notifications


async def test_nsub_by_a_service_another_service_and_a_plain_connection(running: RunningRouter) -> None:
    service_a, service_b = [await open_service(running, new_service(), NOTIFIER) for _ in range(2)]
    plain, owner = await open_line(running), await open_line(running)
    queues = [await create(owner, notifier=True) for _ in range(3)]
    meters = running.router.plan.meters

    for queue in queues:
        assert await nsub(service_a, queue) == SOK(service_a.service_id)
    assert await members(running, service_a, NOTIFICATIONS) == notifiers_of(queues)
    assert counter(running, service_a, NOTIFICATIONS) == notifiers_of(queues)
    assert await nsub(service_a, queues[0]) == SOK(service_a.service_id)
    assert counter(running, service_a, NOTIFICATIONS) == notifiers_of(queues)

    assert await nsub(service_b, queues[0]) == SOK(service_b.service_id)
    assert (await service_a.event(queues[0].notifier_id)).response == END()
    assert counter(running, service_a, NOTIFICATIONS) == notifiers_of(queues[1:])
    assert counter(running, service_b, NOTIFICATIONS) == notifiers_of(queues[:1])

    assert await nsub(plain, queues[0]) == SOK(None)
    assert (await service_b.event(queues[0].notifier_id)).response == END()
    assert await members(running, service_b, NOTIFICATIONS) == NO_QUEUES
    record = await queue_record(running, queues[0])
    assert record.notifier is not None
    assert record.notifier.service_id is None

    for queue, receiver in ((queues[0], plain), (queues[1], service_a)):
        await queue.send(owner, b"ping", notify=True)
        assert isinstance((await receiver.event(queue.notifier_id)).response, NMSG)
    assert await nsub(service_a, queues[0]) == SOK(service_a.service_id)
    assert (await plain.event(queues[0].notifier_id)).response == END()
    assert await nsub(service_b, queues[2]) == SOK(service_b.service_id)
    assert (await service_a.event(queues[2].notifier_id)).response == END()
    counted = (
        Meter.NTF_ASSOC_NEW,
        Meter.NTF_ASSOC_DUPLICATE,
        Meter.NTF_ASSOC_UPDATED,
        Meter.NTF_ASSOC_REMOVED,
    )
    assert [meters[meter] for meter in counted] == [4, 1, 2, 1]
    assert meters[SERVICE_METERS[NOTIFICATIONS].subscribed] == 3, "as often as one had none before"
    await quiet(service_a, service_b, plain)


async def test_a_second_connection_of_a_notification_service_takes_over(running: RunningRouter) -> None:
    credentials, owner = new_service(), await open_line(running)
    first = await open_service(running, credentials, NOTIFIER)
    queues = [await create(owner, notifier=True) for _ in range(2)]
    for queue in queues:
        await nsub(first, queue)
    second = await open_service(running, credentials, NOTIFIER)
    assert await nsub(second, queues[0]) == SOK(second.service_id)
    assert counter(running, second, NOTIFICATIONS) == notifiers_of(queues[:1]), "the first only"
    expected = notifiers_of(queues)
    assert (await first.event(first.service_id)).response == ENDS(expected.count, expected.ids_hash)
    assert counter(running, first, NOTIFICATIONS) == NO_QUEUES
    await queues[1].send(owner, b"ping", notify=True)
    assert isinstance((await second.event(queues[1].notifier_id)).response, NMSG)
    await quiet(first, second)


@pytest.mark.parametrize("own", [True, False], ids=["by the service", "by another connection"])
async def test_del_takes_a_queue_out_of_both_sets(running: RunningRouter, own: bool) -> None:
    line, notifier = (
        await open_service(running, new_service()),
        await open_service(running, new_service(), NOTIFIER),
    )
    plain = await open_line(running)
    queues = await service_queues(line, 2)
    for queue in queues:
        await add_notifier(plain, queue)
        await nsub(notifier, queue)
    for queue in queues:
        await queue.send(plain, b"pending")
        assert await pushed(line, queue) == b"pending"
    assert await waiting_in(running, line.service_id) == {queue.recipient_id for queue in queues}
    assert await queues[0].ask(line if own else plain, DEL()) == OK()
    if not own:
        assert (await line.event(queues[0].recipient_id)).response == DELD()
    assert (await notifier.event(queues[0].notifier_id)).response == DELD()
    assert await members(running, line) == counter(running, line) == set_of(queues[1:])
    assert await members(running, notifier, NOTIFICATIONS) == notifiers_of(queues[1:])
    assert counter(running, notifier, NOTIFICATIONS) == notifiers_of(queues[1:])
    assert await waiting_in(running, line.service_id) == {queues[1].recipient_id}
    assert set(client_of(running, line).subs) == {queues[1].recipient_id}
    await quiet(line, notifier, plain)


@pytest.mark.parametrize("command", ["NKEY", "NDEL"])
async def test_new_or_no_credentials_end_the_association_of_a_notifier(
    running: RunningRouter, command: str
) -> None:
    notifier, owner = await open_service(running, new_service(), NOTIFIER), await open_line(running)
    queues = [await create(owner, notifier=True) for _ in range(2)]
    for queue in queues:
        await nsub(notifier, queue)
    old = queues[0].notifier_id
    if command == "NKEY":
        assert await add_notifier(owner, queues[0]) != old
    else:
        assert await queues[0].ask(owner, NDEL()) == OK()
    assert (await notifier.event(old)).response == DELD()
    left = notifiers_of(queues[1:])
    assert await members(running, notifier, NOTIFICATIONS) == left
    assert counter(running, notifier, NOTIFICATIONS) == left
    await queues[0].send(owner, b"ping", notify=True)
    await quiet(notifier)


async def test_a_notifier_changes_service_with_its_waiting_notifications(running: RunningRouter) -> None:
    credentials, owner = new_service(), await open_line(running)
    notifier = await open_service(running, credentials, NOTIFIER)
    queue = await create(owner, notifier=True)
    await nsub(notifier, queue)
    service_id = notifier.service_id
    gone = client_of(running, notifier)
    await notifier.stream.close()
    await until(lambda: gone.client_id not in running.router.connections)
    await queue.send(owner, b"ping", notify=True)
    assert await waiting_in(running, service_id, NOTIFICATIONS) == {queue.notifier_id}
    other = await open_service(running, new_service(), NOTIFIER)
    assert await nsub(other, queue) == SOK(other.service_id)
    assert isinstance((await other.event(queue.notifier_id)).response, NMSG)
    for one in (service_id, other.service_id):
        assert await waiting_in(running, one, NOTIFICATIONS) == set()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-41")
async def test_a_message_of_an_associated_queue_goes_only_to_its_service(
    running: RunningRouter, tmp_path: Path
) -> None:
    line, other = [await open_service(running, new_service()) for _ in range(2)]
    plain, sender = await open_line(running), await open_line(running)
    queue = await create(line, subscribe=True)
    unrelated = await create(plain, subscribe=True)
    await create(other, subscribe=True)
    state = running.router.plan.state
    assert state.queues.holder(queue.recipient_id) is None
    await queue.send(sender, b"for the service")
    assert await pushed(line, queue) == b"for the service"
    await unrelated.send(sender, b"for the plain one")
    assert await pushed(plain, unrelated) == b"for the plain one"
    await quiet(line, other, plain)


async def test_a_service_reads_with_get_what_is_not_pushed_to_it(running: RunningRouter) -> None:
    line, sender = await open_service(running, new_service()), await open_line(running)
    queue = await create(line, subscribe=True)
    assert await queue.ask(line, GET()) == OK()
    await queue.send(sender, b"fetched")
    await quiet(line)
    reply = await queue.ask(line, GET())
    assert queue.body(reply) == b"fetched"
    assert await sub(line, queue) == ERR(PROHIBITED)
    assert await queue.ask(line, ACK(queue.last_id)) == OK()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-67")
async def test_a_takeover_leaves_the_old_connection_its_own_queues(
    running: RunningRouter, tmp_path: Path
) -> None:
    """Only queues it served are taken over; those it reads or subscribed to itself are not."""
    credentials, sender = new_service(), await open_line(running)
    old = await open_service(running, credentials)
    served, read, own = await create(old, subscribe=True), await create(sender), await create(sender)
    assert await read.ask(old, GET()) == OK()
    client, state = client_of(running, old), running.router.plan.state
    state.queues.take_over(own.recipient_id, client)
    client.subs.put(own.recipient_id, PUSH_IDLE)
    await served.send(sender, b"in flight")
    assert await pushed(old, served) == b"in flight"
    new = await open_service(running, credentials)
    assert await new.subs() == set_of([served])
    assert await pushed(new, served) == b"in flight"
    assert isinstance((await old.event(old.service_id)).response, ENDS)
    assert set(client.subs) == {read.recipient_id, own.recipient_id}
    await own.send(sender, b"to the old one")
    assert await pushed(old, own) == b"to the old one"
    assert await own.ask(old, ACK(own.last_id)) == OK()
    await read.send(sender, b"fetched")
    assert read.body(await read.ask(old, GET())) == b"fetched"
    assert await read.ask(old, ACK(read.last_id)) == OK()
    await served.send(sender, b"to the new one")
    second = await served.ask(new, ACK(served.last_id))
    assert served.body(second) == b"to the new one"
    assert isinstance(second, MSG)
    await quiet(old)
