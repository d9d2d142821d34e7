"""The subscriber with message routers that answer what a test dictates, and stores that fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from blindpost.client.options import SmpOptions, Timing
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.loop import StoreFailedError
from blindpost.ntf.model import Service, SmpRouter
from blindpost.ntf.ports import Desk, NmsgReceived, Notifier, SubscriberEvent
from blindpost.ntf.subscriber.backoff import Backoff
from blindpost.ntf.subscriber.fresh import Fresh
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.testing.network import MemoryNetwork
from blindpost.transport import ends
from blindpost.transport.network import Network
from blindpost.wire.addresses import Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.pushes import MessagePush
from blindpost.wire.smp.commands import NSUB, NSUBS
from blindpost.wire.smp.errors import BLOCKED, BlockingReason, Code, SMPError
from blindpost.wire.smp.responses import DELD, END, ERR, NMSG, SOK, SOKS, Response
from blindpost.wire.smp.transmissions import Request
from tests.support.client.scripted_router import ScriptedRouter, listening, server_at, virtual
from tests.support.ntf.notified import SmpQueue, statuses, stock, subscriber_options, subscribing, until_all
from tests.support.ntf.routers import RunningNtf, active_device, running_ntf
from tests.support.serving.waiting import a_moment, until
from tests.support.transport.sessions import SERVICE_ID, at_now, service_credentials, smp_router

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)


def consent(request: Request) -> Response | None:
    """Answer like a message router that knows our queues and associates them."""
    match request.command:
        case NSUB():
            return SOK(SERVICE_ID)
        case NSUBS(count=count, ids_hash=ids_hash):
            return SOKS(count, ids_hash)
    return None


@asynccontextmanager
async def scripted(
    folder: Path, answer: Callable[[Request], Response | None] = consent, count: int = 3
) -> AsyncIterator[tuple[RunningNtf, ScriptedRouter, list[SmpQueue]]]:
    """A notification router with queues at a message router that answers like this."""
    network = MemoryNetwork()
    smp = ScriptedRouter(answer)
    async with listening(smp, smp_router(), network) as port, running_ntf(folder, network=network) as ntf:
        queues = queues_at(server_at(port), count)
        await stock(ntf.router.store, queues)
        yield ntf, smp, queues


def queues_at(server: Server, count: int) -> list[SmpQueue]:
    return [SmpQueue(b"notifier" + number.to_bytes(16, "big"), server=server) for number in range(count)]


def at_scripted(network: Network, response_s: float = 30.0) -> SmpOptions:
    return SmpOptions(network=network, now=at_now, timing=Timing(response_s=response_s))


async def members(ntf: RunningNtf, server: Server) -> SmpRouter:
    found = await ntf.router.store.router(server)
    assert found is not None
    return found


@pytest.mark.both_stores
@pytest.mark.claim("SVC-63")
@pytest.mark.parametrize("refusal", [Code.SERVICE, Code.AUTH])
async def test_a_lost_service_is_cleared_and_all_its_queues_are_asked_for(
    tmp_path: Path, refusal: SMPError
) -> None:
    async with scripted(tmp_path) as (ntf, smp, queues):
        server, store = queues[0].server, ntf.router.store
        async with subscribing(ntf, smp=at_scripted(ntf.network)):
            await until_all(store, queues, "ACTIVE", associated=True)
        before = await members(ntf, server)
        assert before.members == QueueSet.of(queue.notifier_id for queue in queues)
        assert before.service is not None
        seen: list[tuple[str, SmpRouter, list[tuple[str, bool]]]] = []
        other_id = b"another service id......"

        def refuse(request: Request) -> Response | None:
            return ERR(refusal) if isinstance(request.command, NSUBS) else SOK(other_id)

        async def look(what: str) -> None:
            seen.append((what, await members(ntf, server), await statuses(store, queues)))

        smp.answer = refuse
        smp.blocks.clear()
        sessions = len(smp.sessions)
        async with subscribing(ntf, smp=at_scripted(ntf.network)):
            await until(lambda: len(smp.reasons) > sessions)
            await look("cleared")
            smp.service_id = other_id
            await until_all(store, queues, "ACTIVE", associated=True)
            await look("associated again")
        (_, cleared, states), (_, after, _) = seen
        assert cleared.service is None
        assert cleared.members == QueueSet()
        assert states == [("INACTIVE", False)] * 3
        assert after.service is not None
        assert after.service.credentials.fingerprint != before.service.credentials.fingerprint
        assert after.service.service_id == other_id
        assert smp.tags == [b"NSUBS", b"NSUB", b"NSUB", b"NSUB"]
        assert {request.entity_id for request in smp.requests[1:]} == {queue.notifier_id for queue in queues}


@pytest.mark.both_stores
@pytest.mark.claim("SVC-72")
async def test_no_more_queues_than_a_batch_wait_for_their_answers(tmp_path: Path) -> None:
    """The message router is slow: unanswered requests never exceed the limit."""
    async with (
        scripted(tmp_path, lambda request: None, count=100) as (ntf, smp, queues),
        subscribing(ntf, smp=at_scripted(ntf.network), batch=16),
    ):
        for answered in range(0, 100, 16):
            asked = min(100, answered + 16)
            await smp.until_requests(asked)
            for _ in range(20):
                await a_moment()
            assert len(smp.requests) == asked
            for request in smp.requests[answered:]:
                smp.reply(request, SOK(SERVICE_ID))
        await until_all(ntf.router.store, queues, "ACTIVE", associated=True)


@pytest.mark.both_stores
@pytest.mark.claim("NTF-33")
async def test_each_end_of_a_subscription_has_its_own_status(tmp_path: Path) -> None:
    refusals: dict[bytes, SMPError] = {
        b"a": Code.AUTH,
        b"s": Code.SERVICE,
        b"b": BLOCKED(BlockingReason.SPAM),
    }

    def answer(request: Request) -> Response | None:
        error = refusals.get(request.entity_id[:1])
        if request.entity_id.startswith(b"x"):
            return DELD()
        return SOK(SERVICE_ID) if error is None else ERR(error)

    async with scripted(tmp_path, answer, count=1) as (ntf, smp, queues):
        device = await active_device(ntf)
        server = queues[0].server
        mine = {
            name: SmpQueue(name.encode().ljust(24, b"-"), server=server)
            for name in ("fine", "end", "deleted", "auth", "service", "blocked", "x-rated")
        }
        async with subscribing(ntf, smp=at_scripted(ntf.network)):
            ids = {name: await device.subscribe(queue) for name, queue in mine.items()}
            await until_all(ntf.router.store, [mine["end"], mine["deleted"]], "ACTIVE")
            smp.push(mine["end"].notifier_id, END())
            smp.push(mine["deleted"].notifier_id, DELD())
            await until_all(ntf.router.store, [mine["end"]], "END")
            await until_all(ntf.router.store, [mine["deleted"]], "DELETED")
            found = {name: await device.sub_status(subscription_id) for name, subscription_id in ids.items()}
            assert found == {
                "fine": b"ACTIVE",
                "end": b"END",
                "deleted": b"DELETED",
                "auth": b"AUTH",
                "service": b"SERVICE",
                "blocked": b"ERR SMP error BLOCKED reason=spam",
                "x-rated": b"ERR UnexpectedResponse DELD",
            }
            sent = len(smp.requests)
            await device.subscribe(mine["end"])
            await device.subscribe(mine["auth"])
            assert await device.sub_status(ids["end"]) == b"END"
            assert len(smp.requests) == sent
        async with subscribing(ntf, smp=at_scripted(ntf.network)):
            await until(lambda: smp.tags[-1] == b"NSUBS")
            assert b"NSUB" not in smp.tags[sent:]
        await device.client.close()


async def test_a_message_router_with_an_internal_error_is_asked_again(tmp_path: Path) -> None:
    """INTERNAL says nothing about the queue: it stays PENDING and is retried until answered."""
    failures = 3

    def answer(request: Request) -> Response | None:
        nonlocal failures
        if request.entity_id == b"notifier" + bytes(16) and failures:
            failures -= 1
            return ERR(Code.INTERNAL)
        return SOK(None)

    async with (
        scripted(tmp_path, answer) as (ntf, smp, queues),
        subscribing(ntf, smp=at_scripted(ntf.network)),
    ):
        await until_all(ntf.router.store, queues[1:], "ACTIVE")
        await until_all(ntf.router.store, queues, "ACTIVE", associated=False)
        assert len(smp.sessions) == 1
        assert smp.tags == [b"NSUB"] * 6


async def test_a_late_answer_counts(tmp_path: Path) -> None:
    async with scripted(tmp_path, lambda request: None, count=2) as (ntf, smp, queues):
        slow = Backoff(first_s=100)
        options = at_scripted(ntf.network, response_s=0.05)
        async with subscribing(ntf, smp=options, reconnect=slow) as subscriber:
            first, second = await smp.until_requests(2)
            await until_all(ntf.router.store, queues, "PENDING")
            await until(lambda: subscriber.states[0].waiting == 2 and not in_flight(subscriber))
            smp.reply(first, SOK(None))
            smp.reply(second, ERR(Code.AUTH))
            await until(lambda: subscriber.states[0].waiting == 0)
            wanted = {first.entity_id: ("ACTIVE", False), second.entity_id: ("AUTH", False)}
            found = await statuses(ntf.router.store, queues)
            assert found == [wanted[queue.notifier_id] for queue in queues]
            assert subscriber.states[0].active == 1


def in_flight(subscriber: SmpSubscriber) -> int:
    (link,) = subscriber._links.values()
    assert link.session is not None
    return len(link.session._in_flight)


async def test_nsubs_without_a_usable_answer_makes_a_new_session(tmp_path: Path) -> None:
    async with scripted(tmp_path) as (ntf, smp, queues):
        async with subscribing(ntf, smp=at_scripted(ntf.network)):
            await until_all(ntf.router.store, queues, "ACTIVE", associated=True)
        failures: list[Response] = [ERR(Code.INTERNAL), DELD()]

        def answer(request: Request) -> Response | None:
            if isinstance(request.command, NSUBS) and failures:
                return failures.pop()
            return consent(request)

        smp.answer = answer
        smp.blocks.clear()
        async with subscribing(ntf, smp=at_scripted(ntf.network)):
            await until(lambda: not failures and len(smp.tags) == 3)
            await until_all(ntf.router.store, queues, "ACTIVE", associated=True)
        assert smp.tags == [b"NSUBS"] * 3


class FailingDesk:
    """A desk whose store fails as often as it is told to."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.failures = 0
        self.bugs = 0
        self.submitted: list[SubscriberEvent] = []

    async def _sometimes(self, asked: Awaitable[T]) -> T:
        result = await asked
        if self.failures:
            self.failures -= 1
            raise StoreFailedError("full")
        if self.bugs:
            self.bugs -= 1
            raise RuntimeError("a bug")
        return result

    async def routers(self) -> Sequence[SmpRouter]:
        if self.failures:
            self.failures -= 1
            raise StoreFailedError("full")
        return await self._desk.routers()

    async def router(self, server: Server) -> SmpRouter | None:
        return await self._sometimes(self._desk.router(server))

    async def page(
        self, server: Server, after: bytes, count: int, *, with_associated: bool
    ) -> Sequence[Notifier]:
        return await self._sometimes(self._desk.page(server, after, count, with_associated=with_associated))

    async def submit(self, events: Sequence[SubscriberEvent]) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreFailedError("full")
        self.submitted += events
        await self._desk.submit(events)


@asynccontextmanager
async def subscribing_at(desk: FailingDesk, ntf: RunningNtf) -> AsyncIterator[SmpSubscriber]:
    options = subscriber_options(ntf.network, smp=at_scripted(ntf.network))
    subscriber = SmpSubscriber(desk, options, Random(7))
    task = asyncio.create_task(subscriber.run())
    try:
        yield subscriber
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_nothing_is_lost_while_the_store_fails(tmp_path: Path) -> None:
    async with scripted(tmp_path) as (ntf, smp, queues):
        desk = FailingDesk(ntf.router)
        desk.failures = 4
        async with subscribing_at(desk, ntf):
            await until_all(ntf.router.store, queues, "ACTIVE", associated=True)
            desk.failures = 3
            for number in range(30):
                smp.push(queues[number % 3].notifier_id, NMSG(bytes([number]) * 24, b"m" * 144))
            await until(lambda: sum(isinstance(event, NmsgReceived) for event in desk.submitted) == 30)
            nonces = [event.nonce[0] for event in desk.submitted if isinstance(event, NmsgReceived)]
            assert nonces == list(range(30))
        await ntf.settled()
        assert sum(ntf.ledger().values()) == 30


async def test_notifications_that_came_together_are_stored_together(tmp_path: Path) -> None:
    async with scripted(tmp_path) as (ntf, smp, queues):
        desk = FailingDesk(ntf.router)
        async with subscribing_at(desk, ntf):
            await until_all(ntf.router.store, queues, "ACTIVE", associated=True)
            calls: list[int] = []
            inner = desk.submit

            async def submit(events: Sequence[SubscriberEvent]) -> None:
                calls.append(len(events))
                await inner(events)

            desk.submit = submit  # type: ignore[method-assign]  # a tap
            smp.say(*((b"", queues[0].notifier_id, NMSG(bytes([n]) * 24, b"m" * 144)) for n in range(40)))
            await until(lambda: sum(calls) == 40)
            assert len(calls) <= 3


async def test_a_bug_of_ours_in_one_link_is_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path) as (ntf, _, queues):
        desk = FailingDesk(ntf.router)
        desk.bugs = 2
        async with subscribing_at(desk, ntf):
            await until_all(ntf.router.store, queues, "ACTIVE", associated=True)
    assert "a link to a message router failed" in caplog.text


async def test_a_session_that_ends_stores_what_it_heard_before(tmp_path: Path) -> None:
    async with scripted(tmp_path) as (ntf, smp, queues):
        async with subscribing(ntf, smp=at_scripted(ntf.network), reconnect=Backoff(first_s=100)):
            await until_all(ntf.router.store, queues, "ACTIVE", associated=True)
            smp.say(*((b"", queue.notifier_id, NMSG(b"n" * 24, b"m" * 144)) for queue in queues))
            smp.session.close()
            await until_all(ntf.router.store, queues, "INACTIVE", associated=True)
            await ntf.settled()
        assert sum(ntf.ledger().values()) == 3
        assert ntf.apple.of_kind(MessagePush)


@virtual
async def test_pauses_between_attempts_grow_until_a_session_lasts() -> None:
    """On a virtual clock: nobody listens, then somebody does for a while, then nobody again."""
    attempts: list[float] = []
    loop = asyncio.get_running_loop()

    class Noting(MemoryNetwork):
        async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
            attempts.append(loop.time())
            return await super().connect(factory, host, port)

    network = Noting()
    server = server_at(50_000)
    desk = NoDesk(queues_at(server, 2))
    reconnect = Backoff(first_s=1, factor=2, max_s=60, jitter=0.25)
    options = SubscriberOptions(smp=at_scripted(network), reconnect=reconnect)
    subscriber = SmpSubscriber(desk, options, Random(7))
    running = asyncio.create_task(subscriber.run())
    await asyncio.sleep(600)
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    for number, pause in enumerate(pauses):
        length = min(60, 2**number)
        assert length * 0.75 <= pause <= length * 1.25 + 0.01
    assert len(set(pauses)) == len(pauses)
    smp = ScriptedRouter(consent)
    listener = ends.Server(smp_router(), smp, connections_max=10)
    await listener.listen("localhost", 50_000, network)
    await smp.until(lambda: bool(smp.requests))
    await asyncio.sleep(100)
    await listener.stop()
    attempts.clear()
    ended = loop.time()
    await asyncio.sleep(20)
    assert 0.7 <= attempts[0] - ended <= 1.3
    assert 1.4 <= attempts[1] - attempts[0] <= 2.6
    running.cancel()
    await asyncio.wait([running])


class NoDesk:
    """Some queues and no store."""

    def __init__(self, queues: list[SmpQueue], router: SmpRouter | None = None) -> None:
        self._server = queues[0].server
        self._router = router
        self.submitted: list[SubscriberEvent] = []
        self._page = [Notifier(queue.notifier_id, queue.notifier_id, queue.key.encoded) for queue in queues]

    async def routers(self) -> Sequence[SmpRouter]:
        return [SmpRouter(self._server)]

    async def router(self, server: Server) -> SmpRouter | None:
        return self._router

    async def page(
        self, server: Server, after: bytes, count: int, *, with_associated: bool
    ) -> Sequence[Notifier]:
        if self._router is not None and not with_associated:
            return []
        return [notifier for notifier in self._page if notifier.subscription_id > after][:count]

    async def submit(self, events: Sequence[SubscriberEvent]) -> None:
        self.submitted += events


async def test_a_queue_forgotten_while_asked_for_is_not_counted(tmp_path: Path) -> None:
    async with (
        scripted(tmp_path, lambda request: None, count=3) as (ntf, smp, queues),
        subscribing(ntf, smp=at_scripted(ntf.network)) as subscriber,
    ):
        asked = list(await smp.until_requests(3))
        subscriber.forget(queues[0].server, [asked[0].entity_id, asked[1].entity_id])
        smp.reply(asked[0], SOK(None))
        smp.reply(asked[1], ERR(Code.INTERNAL))
        smp.reply(asked[2], SOK(None))
        await until(lambda: subscriber.states[0].active == 1)
        assert subscriber.states[0].waiting == 0


@virtual
async def test_associations_are_repaired_in_batches_with_pauses_that_differ() -> None:
    """On a virtual clock: twelve batches with a pause after each."""
    network, loop = MemoryNetwork(), asyncio.get_running_loop()
    times: list[float] = []

    def answer(request: Request) -> Response | None:
        if isinstance(request.command, NSUBS):
            return SOKS(7, bytes(16))
        times.append(loop.time())
        return SOK(SERVICE_ID)

    smp = ScriptedRouter(answer)
    async with listening(smp, smp_router(), network) as port:
        queues = queues_at(server_at(port), 48)
        own = QueueSet.of(queue.notifier_id for queue in queues)
        service = Service(service_credentials(), SERVICE_ID)
        desk = NoDesk(queues, SmpRouter(queues[0].server, service, own))
        options = SubscriberOptions(smp=at_scripted(network), batch=4, repair_pause_s=0.5)
        running = asyncio.create_task(SmpSubscriber(desk, options, Random(3)).run())
        await smp.until(lambda: smp.tags.count(b"NSUBS") == 3)
        running.cancel()
        await asyncio.wait([running])
    assert len(times) == 48
    starts = sorted(set(times))
    assert len(starts) == 12
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert all(0 < pause <= 1.0 for pause in pauses)
    assert max(pauses) - min(pauses) > 0.3


def test_new_subscriptions_are_sent_in_the_order_of_random_ids() -> None:
    fresh = Fresh(3)
    key = PrivateKey(Algorithm.ED25519, bytes(32)).encoded
    named = [Notifier(order, b"n" + order, key) for order in (b"c", b"a", b"b", b"d")]
    fresh.add(named)
    assert fresh.is_overflowed
    assert len(fresh) == 3
    assert [notifier.subscription_id for notifier in fresh.take(2)] == [b"a", b"b"]
    fresh.forget(b"nc")
    assert fresh.take(9) == []
    assert fresh
    fresh.clear()
    assert not fresh


async def test_hosts_that_do_not_answer_do_not_hold_up_known_routers(tmp_path: Path) -> None:
    """All slots for connecting are taken by made-up hosts."""
    async with scripted(tmp_path) as (ntf, _, queues):
        store = ntf.router.store
        async with subscribing(ntf, smp=at_scripted(ntf.network)):
            await until_all(store, queues, "ACTIVE", associated=True)
        network = ntf.network
        assert isinstance(network, MemoryNetwork)
        silent = await network.listen(asyncio.Protocol, "silent", 1)
        made_up = queues_at(server_at(1, None, "silent"), 1)
        await stock(store, made_up)
        options = at_scripted(network)
        async with subscribing(ntf, smp=options, connecting=1) as subscriber:
            await until(lambda: [state.members for state in subscriber.states if state.is_connected] == [3])
            await until(lambda: len(network.connections) >= 2)
            newcomer = queues_at(server_at(2, None, "nobody"), 1)
            await stock(store, newcomer)
            subscriber.subscribe(newcomer[0].server, [])
            for _ in range(20):
                await a_moment()
            assert await statuses(store, [*made_up, *newcomer]) == [("NEW", False)] * 2
        await silent.close()


@asynccontextmanager
async def leaving(count: int) -> AsyncIterator[tuple[ScriptedRouter, NoDesk, asyncio.Task[None]]]:
    """A subscriber that is to end, with one session, and its message router."""
    network, smp = MemoryNetwork(), ScriptedRouter(consent)
    async with listening(smp, smp_router(), network) as port:
        desk = NoDesk(queues_at(server_at(port), count))
        options = SubscriberOptions(smp=at_scripted(network))
        running = asyncio.create_task(SmpSubscriber(desk, options, Random(3)).run())
        await smp.until(lambda: smp.tags.count(b"NSUB") == count)
        await asyncio.sleep(1)
        yield smp, desk, running
        running.cancel()
        await asyncio.wait([running])


@virtual
async def test_what_a_message_router_says_until_it_knows_of_our_end_is_stored() -> None:
    """It says it to nobody else: each replacement of a notification router would lose some."""
    async with leaving(3) as (smp, desk, running):
        said = [NMSG(bytes([number]) * 24, b"m" * 144) for number in range(200)]
        smp.say(*((b"", bytes(24), each) for each in said))
        running.cancel()
        await asyncio.wait([running])
        stored = [event.nonce for event in desk.submitted if isinstance(event, NmsgReceived)]
        assert stored == [each.nonce for each in said]


@virtual
async def test_a_message_router_that_stands_still_does_not_hold_up_the_end() -> None:
    loop = asyncio.get_running_loop()
    async with leaving(1) as (smp, _, running):
        smp.session.pause_reading()
        began = loop.time()
        running.cancel()
        await asyncio.wait([running])
        assert loop.time() - began < 2
