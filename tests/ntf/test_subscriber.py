"""The subscriber with real message routers over TLS: services, drift, takeovers, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.ids_hash import QueueSet
from blindpost.engine.undo import Undo
from blindpost.ntf.model import SmpRouter
from blindpost.ntf.ports import SubscriberEvent
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.view import View, Wanted
from blindpost.router import services
from blindpost.transport.handshake import FindService
from blindpost.transport.session import Session
from blindpost.wire.addresses import Host, Server
from blindpost.wire.smp.commands import DEL, NSUB, NSUBS
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import SOK
from blindpost.wire.versions import VersionRange
from tests.support.ntf.notified import (
    SmpQueue,
    Watch,
    notified_queues,
    statuses,
    stock,
    subscribing,
    until_all,
)
from tests.support.ntf.routers import NotifiedQueue, RunningNtf, running_ntf
from tests.support.router.routers import RunningRouter, new_credentials, running_router
from tests.support.serving.waiting import a_moment, until


async def stored_router(store: NtfStore, server: Server) -> SmpRouter:
    found = await store.router(server)
    assert found is not None
    return found


async def service_of(store: NtfStore, server: Server) -> tuple[bytes, bytes | None]:
    """Fingerprint and id of our service at a message router."""
    service = (await stored_router(store, server)).service
    assert service is not None
    return service.credentials.fingerprint, service.service_id


async def plain_nsub(client: SmpClient, queue: SmpQueue) -> None:
    assert await client.send(NSUB(), queue.notifier_id, queue.key) == SOK(None)


async def until_members(store: NtfStore, queues: list[SmpQueue]) -> None:
    """Until exactly these are associated."""
    expected = QueueSet.of(queue.notifier_id for queue in queues)
    server = queues[0].server
    while (await stored_router(store, server)).members != expected:
        await a_moment()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-61")
async def test_one_certificate_for_each_message_router_is_made_stored_and_used_again(tmp_path: Path) -> None:
    presented: dict[int, list[bytes]] = {}

    def noting(running: RunningRouter) -> None:
        inner = running.router.service_requested

        def note(session: Session, request: FindService) -> None:
            presented.setdefault(running.port, []).append(request.fingerprint)
            inner(session, request)

        running.router.service_requested = note  # type: ignore[method-assign]  # a tap on a real router

    async with (
        running_router(tmp_path / "one") as one,
        running_router(tmp_path / "two") as two,
        running_ntf(tmp_path) as ntf,
        await one.connect() as at_one,
        await two.connect() as at_two,
    ):
        noting(one)
        noting(two)
        queues = [
            *await notified_queues(at_one, one.server, 2),
            *await notified_queues(at_two, two.server, 2),
        ]
        store = ntf.router.store
        await stock(store, queues)
        async with subscribing(ntf, use_services=False):
            await until_all(store, queues, "ACTIVE", associated=False)
        assert presented == {}
        assert (await stored_router(store, one.server)).service is None
        for _ in range(2):
            async with subscribing(ntf) as subscriber:
                await until(lambda: [state.members for state in subscriber.states] == [2, 2])
        await until_all(store, queues, "ACTIVE", associated=True)
        assert presented.keys() == {one.port, two.port}
        fingerprints = {port: set(shown) for port, shown in presented.items()}
        assert all(len(shown) == 2 for shown in presented.values())
        assert all(len(each) == 1 for each in fingerprints.values())
        assert fingerprints[one.port] != fingerprints[two.port]
        for running in (one, two):
            fingerprint, service_id = await service_of(store, running.server)
            assert {fingerprint} == fingerprints[running.port]
            assert service_id is not None


@pytest.mark.both_stores
@pytest.mark.claim("SVC-62")
async def test_at_start_nsubs_comes_before_any_nsub(tmp_path: Path) -> None:
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 60)
        old, new = queues[:40], queues[40:]
        async with running_ntf(tmp_path) as ntf:
            store = ntf.router.store
            await stock(store, old)
            async with subscribing(ntf):
                await until_members(store, old)
            await stock(store, new, tokens=3)
        watch = Watch(smp)
        async with running_ntf(tmp_path) as ntf, subscribing(ntf, batch=7):
            await until_members(ntf.router.store, queues)
        assert watch.tags == ["NSUBS", *["NSUB"] * 20]
        assert watch.batches == [1, 7, 7, 6]
        assert set(watch.subscribed) == {queue.notifier_id for queue in new}


@pytest.mark.both_stores
@pytest.mark.claim("SVC-71")
async def test_a_restart_costs_one_command_and_drift_costs_all_of_them(tmp_path: Path) -> None:
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 1000)
        async with running_ntf(tmp_path) as ntf:
            await stock(ntf.router.store, queues, tokens=50)
            async with subscribing(ntf):
                await until_members(ntf.router.store, queues)
        watch = Watch(smp)
        async with running_ntf(tmp_path) as ntf, subscribing(ntf) as subscriber:
            await until(lambda: [state.members for state in subscriber.states] == [1000])
            await queues[500].send(client)
            await ntf.apple.next()
            await until_all(ntf.router.store, queues[:10], "ACTIVE", associated=True)
        assert [tag for tag in watch.tags if tag.startswith("NSUB")] == ["NSUBS"]
        await plain_nsub(client, queues[0])
        watch.clear()
        async with running_ntf(tmp_path) as ntf, subscribing(ntf):
            await until(lambda: watch.nsubs == 3)
            await until_members(ntf.router.store, queues)
            await until_all(ntf.router.store, queues, "ACTIVE", associated=True)
        assert watch.tags[0] == "NSUBS"
        assert sorted(watch.subscribed) == sorted(queue.notifier_id for queue in queues)
        watch.clear()
        async with running_ntf(tmp_path) as ntf, subscribing(ntf) as subscriber:
            await until(lambda: [state.members for state in subscriber.states] == [1000])
        assert watch.tags == ["NSUBS"]


async def test_a_queue_deleted_only_here_is_drift_once_and_then_known(tmp_path: Path) -> None:
    """A message router cannot be told that a subscription ended, so it may count more than we do forever."""
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 5)
        watch = Watch(smp)
        async with running_ntf(tmp_path) as ntf:
            store = ntf.router.store
            await stock(store, queues)
            async with subscribing(ntf):
                await until_members(store, queues)
                await delete(ntf, queues[0])
                watch.clear()
                smp_session_lost(smp)
                await until(lambda: watch.nsubs == 3)
                await until_all(store, queues[1:], "ACTIVE", associated=True)
                assert len(watch.subscribed) == 4
                watch.clear()
                smp_session_lost(smp)
                await until(lambda: watch.nsubs == 1)
                await until_all(store, queues[1:], "ACTIVE", associated=True)
                await queues[1].send(client)
                await ntf.apple.next()
                assert watch.tags.count("NSUB") == 0


async def delete(ntf: RunningNtf, queue: NotifiedQueue) -> None:
    """As SDEL does, without the device."""
    view = View(Undo(), ntf.router.store.received)
    await ntf.router.store.load(Wanted(queues={(queue.server, queue.notifier_id)}), view)
    subscription = view.of_queue(queue.server, queue.notifier_id)
    assert subscription is not None
    view.delete_subscription(subscription)
    await ntf.router.store.commit(view)


def smp_session_lost(smp: RunningRouter) -> None:
    """The connections of services break; those of the test do not."""
    for connection in tuple(smp.router.connections.values()):
        if connection.session.agreed.service is not None:
            connection.session.abort()


async def test_a_crash_during_association_is_not_drift_of_all_queues(tmp_path: Path) -> None:
    """The message router knows associations we had not stored yet: asking for those is enough."""
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 30)
        async with running_ntf(tmp_path) as ntf:
            store = ntf.router.store
            await stock(store, queues[:20])
            async with subscribing(ntf):
                await until_members(store, queues[:20])
            fingerprint_and_key = (await stored_router(store, smp.server)).service
            assert fingerprint_and_key is not None
            service = (ServiceRole.NOTIFIER, fingerprint_and_key.credentials)
            async with await SmpClient.connect(smp.server, SmpOptions(service=service)) as ours:
                for queue in queues[20:]:
                    await ours.send(NSUB(), queue.notifier_id, queue.key)
            await stock(store, queues[20:])
            watch = Watch(smp)
            async with subscribing(ntf):
                await until_members(store, queues)
                await until(lambda: watch.nsubs == 2)
                await until_all(store, queues, "ACTIVE", associated=True)
            assert sorted(watch.subscribed) == sorted(queue.notifier_id for queue in queues[20:])


@pytest.mark.both_stores
@pytest.mark.claim("NTF-32")
async def test_statuses_follow_the_message_router_down_and_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NEW, PENDING while it cannot be reached, ACTIVE, INACTIVE when it is lost, ACTIVE again."""
    credentials = new_credentials()
    async with running_router(tmp_path / "smp", credentials=credentials) as smp:
        port = smp.port
        async with await smp.connect() as client:
            queues = await notified_queues(client, smp.server, 3)
    async with running_ntf(tmp_path) as ntf:
        store = ntf.router.store
        await stock(store, queues)
        seen: list[str] = ["NEW"]
        submit = ntf.router.submit

        async def noting(events: Sequence[SubscriberEvent]) -> None:
            """The statuses of all queues after each event that the subscriber learns of."""
            await submit(events)
            for state in {state for state, _ in await statuses(store, queues)}:
                if seen[-1] != state:
                    seen.append(state)

        monkeypatch.setattr(ntf.router, "submit", noting)
        assert await statuses(store, queues) == [("NEW", False)] * 3
        for use_services in (False, True):
            async with subscribing(ntf, use_services=use_services):
                await until_all(store, queues, "PENDING")
                for _ in range(2):
                    async with running_router(tmp_path / "smp", credentials=credentials, port=port):
                        await until_all(store, queues, "ACTIVE", associated=use_services)
                        await until(lambda: seen[-1] == "ACTIVE")
                    await until(lambda: seen[-2:] == ["INACTIVE", "PENDING"])
                    await until_all(store, queues, "PENDING", associated=use_services)
        assert seen == ["NEW", "PENDING", *["ACTIVE", "INACTIVE", "PENDING"] * 4]


async def test_a_restarting_message_router_gets_its_queues_back(tmp_path: Path) -> None:
    """Repeated restarts during NSUB: in the end all are subscribed, and notify."""
    credentials = new_credentials()
    async with running_router(tmp_path / "smp", credentials=credentials) as smp:
        port = smp.port
        async with await smp.connect() as client:
            queues = await notified_queues(client, smp.server, 200)
    async with running_ntf(tmp_path) as ntf:
        store = ntf.router.store
        await stock(store, queues, tokens=5)
        async with subscribing(ntf, batch=20):
            for stop_after in (1, 2, 3, 5):
                async with running_router(tmp_path / "smp", credentials=credentials, port=port) as smp:
                    await Watch(smp).until_blocks(stop_after)
            async with running_router(tmp_path / "smp", credentials=credentials, port=port) as smp:
                await until_members(store, queues)
                await until_all(store, queues, "ACTIVE", associated=True)
                async with await smp.connect() as client:
                    for queue in queues[::40]:
                        await queue.send(client)
                        await ntf.apple.next()


@pytest.mark.both_stores
@pytest.mark.claim("SVC-72")
async def test_recovery_is_bounded_and_survives_a_crash(tmp_path: Path) -> None:
    """The message router lost the service: state is cleared at once, queues return in batches."""
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 400)
        async with running_ntf(tmp_path) as ntf:
            store = ntf.router.store
            await stock(store, queues, tokens=10)
            async with subscribing(ntf):
                await until_members(store, queues)
            # Services are switched off and on again: all queues lose the service, then find a new one.
            async with subscribing(ntf, use_services=False):
                await until_all(store, queues, "ACTIVE", associated=False)
            assert (await stored_router(store, smp.server)).members == QueueSet()
            watch = Watch(smp)
            async with subscribing(ntf, batch=30):
                await until(lambda: len(watch.subscribed) >= 150)
        assert len(watch.subscribed) < 400
        async with running_ntf(tmp_path) as ntf:
            before = (await stored_router(ntf.router.store, smp.server)).members.count
            assert 0 < before < 400
            watch.clear()
            async with subscribing(ntf, batch=30):
                await until_members(ntf.router.store, queues)
                await until_all(ntf.router.store, queues, "ACTIVE", associated=True)
            assert watch.tags[0] == "NSUBS"
            assert len(watch.subscribed) < 400


async def test_a_queue_that_another_client_subscribes_ends_and_is_left_alone(tmp_path: Path) -> None:
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 4)
        for use_services in (False, True):
            async with running_ntf(tmp_path) as ntf, subscribing(ntf, use_services=use_services):
                store = ntf.router.store
                mine = queues[2 * use_services : 2 * use_services + 2]
                await stock(store, mine)
                running = ntf.router.subscriber
                assert isinstance(running, SmpSubscriber)
                running.subscribe(smp.server, [])
                await until_all(store, mine, "ACTIVE", associated=use_services)
                await plain_nsub(client, mine[0])
                await until_all(store, mine[:1], "END", associated=False)
                assert await statuses(store, mine[1:]) == [("ACTIVE", use_services)]
                (state,) = running.states
                assert (state.active, state.members) == ((0, 1) if use_services else (1, 0))
                await client.send(DEL(), mine[1].recipient_id, mine[1].recipient_key)
                await until_all(store, mine[1:], "DELETED", associated=False)
                (state,) = running.states
                assert (state.active, state.members) == (0, 0)


async def test_another_connection_with_our_certificate_is_noticed(tmp_path: Path) -> None:
    """ENDS: the whole subscription is lost, and taken back later."""
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 3)
        async with running_ntf(tmp_path) as ntf:
            store = ntf.router.store
            await stock(store, queues)
            async with subscribing(ntf) as subscriber:
                await until_members(store, queues)
                service = (await stored_router(store, smp.server)).service
                assert service is not None
                thief = SmpOptions(service=(ServiceRole.NOTIFIER, service.credentials))
                async with await SmpClient.connect(smp.server, thief) as other:
                    members = (await stored_router(store, smp.server)).members
                    await other.send(NSUBS(members.count, members.ids_hash))
                    await until_all(store, queues, "INACTIVE", associated=True)
                await until_all(store, queues, "ACTIVE", associated=True)
                await until(lambda: [state.members for state in subscriber.states] == [3])
                await queues[0].send(client)
                await ntf.apple.next()


async def test_a_message_router_without_services_gets_nsub_only(tmp_path: Path) -> None:
    """It is downgraded and upgraded again: every phase delivers."""
    credentials = new_credentials()
    async with running_router(tmp_path / "smp", credentials=credentials) as smp:
        port = smp.port
        async with await smp.connect() as client:
            queues = await notified_queues(client, smp.server, 5)
    async with running_ntf(tmp_path) as ntf:
        store = ntf.router.store
        await stock(store, queues)
        async with subscribing(ntf):
            for newest, associated in ((15, False), (20, True), (18, True), (15, False), (16, True)):
                versions = VersionRange(6, newest)
                async with running_router(
                    tmp_path / "smp", credentials=credentials, port=port, versions=versions
                ) as smp:
                    await until_all(store, queues, "ACTIVE", associated=associated)
                    async with await smp.connect() as client:
                        await queues[newest % 5].send(client)
                        await ntf.apple.next()
                    members = (await stored_router(store, smp.server)).members
                    assert members.count == (5 if associated else 0)


@pytest.mark.parametrize("same", [False, True])
async def test_a_message_router_that_lost_its_data_registers_our_service_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Under another id, as the reference does, or the same one: every queue is asked for again."""
    credentials = new_credentials()
    async with running_router(tmp_path / "smp", credentials=credentials) as smp:
        port = smp.port
        async with await smp.connect() as client:
            queues = await notified_queues(client, smp.server, 3)
        async with running_ntf(tmp_path) as ntf:
            await stock(ntf.router.store, queues)
            async with subscribing(ntf):
                await until_members(ntf.router.store, queues)
            first = await service_of(ntf.router.store, smp.server)
    if not same:
        monkeypatch.setattr(services, "service_id_of", lambda fingerprint: bytes(24))
    async with running_router(tmp_path / "empty", credentials=credentials, port=port) as smp:
        watch = Watch(smp)
        async with running_ntf(tmp_path) as ntf, subscribing(ntf):
            await until_all(ntf.router.store, queues, "AUTH", associated=False)
            second = await service_of(ntf.router.store, smp.server)
        assert watch.tags[:1] == (["NSUBS"] if same else ["NSUB"])
        assert set(watch.subscribed) == {queue.notifier_id for queue in queues}
    assert first[0] == second[0]
    assert (first[1] == second[1]) is same


async def test_a_certificate_that_is_known_in_another_role_is_replaced(tmp_path: Path) -> None:
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 2)
        async with running_ntf(tmp_path) as ntf:
            store = ntf.router.store
            await stock(store, queues)
            async with subscribing(ntf):
                await until_members(store, queues)
            first = await service_of(store, smp.server)
        smp.router.service_requested = lambda session, request: session.service_refused()  # type: ignore[method-assign]  # a router that wants no services
        async with running_ntf(tmp_path) as ntf, subscribing(ntf):
            store = ntf.router.store
            await until_all(store, queues, "ACTIVE", associated=False)
            assert (await stored_router(store, smp.server)).service is None
            await queues[0].send(client)
            await ntf.apple.next()
        del smp.router.service_requested
        async with running_ntf(tmp_path) as ntf, subscribing(ntf):
            await until_members(ntf.router.store, queues)
            assert (await service_of(ntf.router.store, smp.server))[0] != first[0]


async def test_hosts_that_cannot_be_reached_from_here_are_an_error(
    tmp_path: Path,
) -> None:
    onion = Server((Host("a" * 56 + ".onion"),), "5223", bytes(32))
    queue = SmpQueue(b"n" * 24, server=onion)
    async with running_ntf(tmp_path) as ntf:
        await stock(ntf.router.store, [queue])
        async with subscribing(ntf) as subscriber:
            await until_all(ntf.router.store, [queue], "ERR IncompatibleHost")
            await until(lambda: subscriber.states == [])


async def test_more_new_subscriptions_than_are_remembered_are_found_in_the_store(tmp_path: Path) -> None:
    async with running_router(tmp_path / "smp") as smp, await smp.connect() as client:
        queues = await notified_queues(client, smp.server, 50)
        async with running_ntf(tmp_path) as ntf, subscribing(ntf, fresh=5, batch=10) as subscriber:
            store = ntf.router.store
            await stock(store, queues[:1])
            subscriber.subscribe(smp.server, [])
            await until_all(store, queues[:1], "ACTIVE")
            await stock(store, queues[1:], tokens=2)
            subscriber.subscribe(smp.server, await store.page(smp.server, b"", 100, with_associated=False))
            await until_all(store, queues, "ACTIVE", associated=True)


async def test_a_forgotten_queue_is_not_subscribed_again(tmp_path: Path) -> None:
    credentials = new_credentials()
    async with running_router(tmp_path / "smp", credentials=credentials) as smp:
        port = smp.port
        async with await smp.connect() as client:
            queues = await notified_queues(client, smp.server, 2)
    async with running_ntf(tmp_path) as ntf:
        store = ntf.router.store
        await stock(store, queues)
        async with subscribing(ntf, use_services=False) as subscriber:
            subscriber.subscribe(smp.server, await store.page(smp.server, b"", 9, with_associated=False))
            await until_all(store, queues, "PENDING")
            await delete(ntf, queues[0])
            subscriber.forget(smp.server, [queues[0].notifier_id])
            async with running_router(tmp_path / "smp", credentials=credentials, port=port) as smp:
                watch = Watch(smp)
                await until_all(store, queues[1:], "ACTIVE")
                assert watch.subscribed == [queues[1].notifier_id]
                assert [(state.active, state.waiting) for state in subscriber.states] == [(1, 0)]
                await delete(ntf, queues[1])
                subscriber.forget(smp.server, [queues[1].notifier_id])
                assert [state.active for state in subscriber.states] == [0]
            await until(lambda: subscriber.states == [])
