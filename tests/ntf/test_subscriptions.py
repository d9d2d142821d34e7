"""What devices subscribe to, and how the statuses of subscriptions move, on both stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.crypto.credentials import make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import QueueSet
from blindpost.ntf.machines import SubEvent
from blindpost.ntf.ports import (
    SET_MAX,
    AssociatedChanged,
    ServiceKnown,
    ServiceMade,
    ServiceUnavailable,
    SubscriptionsChanged,
)
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Host, Server
from blindpost.wire.ntf.commands import SCHK, SDEL, SNEW, TVFY
from blindpost.wire.ntf.responses import ERR, OK
from blindpost.wire.smp.errors import SYNTAX, Code
from tests.support.ntf.routers import (
    ON_BOTH,
    SMP,
    START,
    Device,
    NotifiedQueue,
    RunningNtf,
    active_device,
    device_token,
    running_ntf,
    some_queue,
)
from tests.support.router.routers import new_credentials, new_key

AUTH = ERR(Code.AUTH)
OTHER_SMP = Server((Host("other.example.org"),), "", b"o" * 32)


async def tell(ntf: RunningNtf, event: SubEvent, *queues: NotifiedQueue, error: bytes = b"") -> None:
    notifier_ids = tuple(queue.notifier_id for queue in queues)
    await ntf.router.submit([SubscriptionsChanged(queues[0].server, notifier_ids, event, error)])


async def members(ntf: RunningNtf, server: Server = SMP) -> QueueSet:
    found = await ntf.router.router(server)
    assert found is not None
    return found.members


@pytest.mark.both_stores
@pytest.mark.claim("NTF-28", "NTF-55")
async def test_a_repeated_subscription_is_the_same_and_another_key_is_refused(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queue = some_queue()
    first = await device.subscribe(queue)
    assert len(first) == 24
    assert await device.subscribe(queue) == first
    assert ntf.router.store.counts()["subscriptions"] == 1
    assert [notifier.notifier_id for _, notifier in ntf.subscriber.subscribed] == [queue.notifier_id]
    assert await device.sub_status(first) == b"NEW"
    other = NotifiedQueue(queue.notifier_id, new_key())
    assert await device.subscribe_refused(other)
    elsewhere = NotifiedQueue(queue.notifier_id, queue.key, OTHER_SMP)
    assert await device.subscribe(elsewhere) != first


@pytest.mark.both_stores
@pytest.mark.claim("NTF-29")
async def test_only_the_owner_of_the_token_handles_its_subscriptions(ntf: RunningNtf) -> None:
    owner = await active_device(ntf)
    stranger = await active_device(ntf, device_token("cd"))
    queue, unclaimed = some_queue(1), some_queue(2)
    subscription_id = await owner.subscribe(queue)
    for command in (SCHK(), SDEL()):
        assert await stranger.ask(command, subscription_id) == AUTH
    assert await stranger.subscribe_refused(queue)
    snew = SNEW(owner.token_id, SMP, unclaimed.notifier_id, unclaimed.key.encoded)
    assert await stranger.ask(snew, b"") == AUTH
    unknown = SNEW(b"t" * 24, SMP, unclaimed.notifier_id, unclaimed.key.encoded)
    assert await owner.ask(unknown, b"") == AUTH
    assert await owner.sub_status(subscription_id) == b"NEW"
    assert ntf.router.store.counts()["subscriptions"] == 1


async def test_a_token_must_be_verified_before_it_subscribes(ntf: RunningNtf) -> None:
    device = Device(await ntf.connect())
    await device.register()
    _, push = await ntf.apple.next()
    assert await device.subscribe_refused(some_queue())
    assert await device.ask(TVFY(device.code(push))) == OK()
    await device.subscribe(some_queue())


@pytest.mark.both_stores
@pytest.mark.claim("NTF-31")
async def test_every_status_is_reported(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    expected = {
        SubEvent.TRIED: b"PENDING",
        SubEvent.CONFIRMED: b"ACTIVE",
        SubEvent.ASSOCIATED: b"ACTIVE",
        SubEvent.DISCONNECTED: b"INACTIVE",
        SubEvent.ENDED: b"END",
        SubEvent.QUEUE_DELETED: b"DELETED",
        SubEvent.REFUSED_AUTH: b"AUTH",
        SubEvent.REFUSED_SERVICE: b"SERVICE",
        SubEvent.REFUSED: b"ERR SMP error QUOTA",
        SubEvent.SERVICE_LOST: b"INACTIVE",
    }
    assert set(expected) == set(SubEvent)
    for number, (event, status) in enumerate(expected.items()):
        subscription_id = await device.subscribe(queue := some_queue(number))
        assert await device.sub_status(subscription_id) == b"NEW"
        await tell(ntf, event, queue, error=b"SMP error QUOTA")
        assert await device.sub_status(subscription_id) == status


async def test_the_longest_error_fits_into_a_block(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    subscription_id = await device.subscribe(queue := some_queue())
    await tell(ntf, SubEvent.REFUSED, queue, error=b"x" * 5000)
    assert await device.sub_status(subscription_id) == b"ERR " + b"x" * 250


@pytest.mark.both_stores
@pytest.mark.claim("NTF-34")
async def test_an_unsubscribed_queue_is_not_pushed_any_more(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    gone, kept = some_queue(1), some_queue(2)
    subscription_id = await device.subscribe(gone)
    await device.subscribe(kept)
    assert await device.ask(SDEL(), subscription_id) == OK()
    assert ntf.subscriber.forgotten == [(gone.server, gone.notifier_id)]
    assert await device.ask(SCHK(), subscription_id) == AUTH
    pushed = len(ntf.apple.pushed)
    await ntf.nmsg(gone, kept)
    await ntf.settled()
    assert len(ntf.apple.pushed) == pushed + 1
    items = device.items(ntf.apple.pushed[-1][1])
    assert [item.notifier_id for item in items] == [kept.notifier_id]
    again = await device.subscribe(gone)
    assert again != subscription_id


async def test_addresses_that_no_push_can_name_are_refused(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    for server in (Server(SMP.hosts, "port", SMP.key_hash), Server(SMP.hosts, "5223", b"")):
        snew = SNEW(device.token_id, server, b"n" * 24, new_key().encoded)
        assert await device.ask(snew, b"") == ERR(SYNTAX)
    snew = SNEW(device.token_id, SMP, b"", new_key().encoded)
    assert await device.ask(snew, b"") == ERR(SYNTAX)
    assert ntf.router.store.counts()["subscriptions"] == 0


@ON_BOTH
async def test_pages_list_the_queues_to_subscribe(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queues = [some_queue(number) for number in range(9)]
    ids = [await device.subscribe(queue) for queue in queues]
    await device.subscribe(elsewhere := some_queue(99, OTHER_SMP))
    await tell(ntf, SubEvent.ASSOCIATED, *queues[:3])
    await tell(ntf, SubEvent.ENDED, queues[8])
    await tell(ntf, SubEvent.TRIED, queues[7])

    async def all_pages(*, with_associated: bool) -> list[bytes]:
        found, after = [], b""
        while page := await ntf.router.page(SMP, after, 2, with_associated=with_associated):
            assert all(notifier.subscription_id > after for notifier in page)
            after = page[-1].subscription_id
            found += [notifier.notifier_id for notifier in page]
        return found

    def in_order(of: list[NotifiedQueue]) -> list[bytes]:
        named = {queue.notifier_id: subscription for queue, subscription in zip(queues, ids, strict=True)}
        return sorted((queue.notifier_id for queue in of), key=lambda notifier_id: named[notifier_id])

    assert await all_pages(with_associated=False) == in_order(queues[3:8])
    assert await all_pages(with_associated=True) == in_order(queues[:8])
    (notifier,) = await ntf.router.page(OTHER_SMP, b"", 2, with_associated=False)
    assert (notifier.notifier_id, notifier.key) == (elsewhere.notifier_id, elsewhere.key.encoded)
    assert {router.server for router in await ntf.router.routers()} == {SMP, OTHER_SMP}
    await tell(ntf, SubEvent.QUEUE_DELETED, elsewhere)
    assert {router.server for router in await ntf.router.routers()} == {SMP}
    assert await ntf.router.router(Server(SMP.hosts, "1", SMP.key_hash)) is None


@ON_BOTH
async def test_a_service_and_its_queues_are_stored_together(tmp_path: Path) -> None:
    network, credentials = MemoryNetwork(), new_credentials()
    service = make_service(START, system_entropy)
    queues = [some_queue(number) for number in range(5)]
    async with running_ntf(tmp_path, network=network, credentials=credentials) as ntf:
        device = await active_device(ntf)
        for queue in queues:
            await device.subscribe(queue)
        await ntf.router.submit([ServiceMade(SMP, service)])
        await tell(ntf, SubEvent.ASSOCIATED, *queues[:4])
        await ntf.router.submit([ServiceKnown(SMP, b"s" * 24)])
    async with running_ntf(tmp_path, network=network, credentials=credentials) as ntf:
        (router,) = await ntf.router.routers()
        assert router.service is not None
        assert router.service.credentials == service
        assert router.service.service_id == b"s" * 24
        assert router.members == QueueSet.of(queue.notifier_id for queue in queues[:4])
        await ntf.router.submit([ServiceKnown(SMP, b"s" * 24)])
        assert (await members(ntf)).count == 4, "the same id changes nothing"
        await tell(ntf, SubEvent.ENDED, queues[0])
        assert await members(ntf) == QueueSet.of(queue.notifier_id for queue in queues[1:4])
        await ntf.router.submit([ServiceKnown(SMP, b"t" * 24)])
        found = await ntf.router.router(SMP)
        assert found is not None
        assert found.service is not None
        assert found.service.service_id == b"t" * 24
        assert found.members == QueueSet()


@ON_BOTH
async def test_all_queues_of_a_service_move_together(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queues = [some_queue(number) for number in range(4)]
    ids = [await device.subscribe(queue) for queue in queues]
    await tell(ntf, SubEvent.ASSOCIATED, *queues[:2])
    await tell(ntf, SubEvent.CONFIRMED, queues[2])
    await tell(ntf, SubEvent.REFUSED_AUTH, queues[3])

    async def statuses() -> list[bytes]:
        return [await device.sub_status(subscription_id) for subscription_id in ids]

    await ntf.router.submit([AssociatedChanged(SMP, SubEvent.DISCONNECTED)])
    assert await statuses() == [b"INACTIVE", b"INACTIVE", b"ACTIVE", b"AUTH"]
    assert (await members(ntf)).count == 2
    await ntf.router.submit([AssociatedChanged(SMP, SubEvent.ASSOCIATED)])
    assert await statuses() == [b"ACTIVE", b"ACTIVE", b"ACTIVE", b"AUTH"]


@ON_BOTH
async def test_a_lost_service_leaves_nothing_associated(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queues = [some_queue(number) for number in range(5)]
    ids = [await device.subscribe(queue) for queue in queues]
    far = await device.subscribe(some_queue(9, OTHER_SMP))
    await ntf.router.submit([ServiceMade(SMP, make_service(START, system_entropy))])
    await ntf.router.submit([ServiceKnown(SMP, b"s" * 24)])
    await tell(ntf, SubEvent.ASSOCIATED, *queues[:3])
    await tell(ntf, SubEvent.ENDED, queues[3])
    await tell(ntf, SubEvent.REFUSED_SERVICE, queues[4])
    # In one batch: a queue is associated, and the service is lost.
    await ntf.router.submit(
        [
            SubscriptionsChanged(SMP, (queues[2].notifier_id,), SubEvent.ASSOCIATED),
            ServiceUnavailable(SMP),
            SubscriptionsChanged(SMP, (queues[1].notifier_id,), SubEvent.TRIED),
        ]
    )
    found = await ntf.router.router(SMP)
    assert found is not None
    assert (found.service, found.members) == (None, QueueSet())
    statuses = [await device.sub_status(subscription_id) for subscription_id in ids]
    assert statuses == [b"INACTIVE", b"PENDING", b"INACTIVE", b"END", b"INACTIVE"]
    assert await device.sub_status(far) == b"NEW"
    assert len(await ntf.router.page(SMP, b"", 10, with_associated=False)) == 4


@ON_BOTH
async def test_events_about_unknown_routers_and_queues_change_nothing(ntf: RunningNtf) -> None:
    before = ntf.router.store.counts()
    await ntf.router.submit(
        [
            ServiceMade(SMP, make_service(START, system_entropy)),
            ServiceKnown(SMP, b"s" * 24),
            ServiceUnavailable(SMP),
            AssociatedChanged(SMP, SubEvent.ASSOCIATED),
            SubscriptionsChanged(SMP, tuple(bytes((n % 256,)) * 24 for n in range(SET_MAX)), SubEvent.ENDED),
        ]
    )
    assert ntf.router.store.counts() == before
    assert await ntf.router.routers() == []
