"""Notifications from NMSG to their single end: pushed, superseded, rejected, expired or dropped."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from blindpost.journal.schema import NOTIFICATION_STATES, TERMINAL_STATES
from blindpost.ntf.journaling import read_meters
from blindpost.ntf.meters import Meter
from blindpost.ntf.metrics import render
from blindpost.ntf.model import Carrier, LedgerState, NtfRules
from blindpost.ntf.ports import Accepted, Failed, NmsgReceived, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.ntf.tables import ledger_of
from blindpost.serving.prometheus import Text
from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Host, Server
from blindpost.wire.ntf.commands import SDEL, TCRN, TDEL, TRPL, TVFY
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, PushItem
from blindpost.wire.ntf.responses import OK
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.ntf.webpush import Subscription
from tests.support.ntf.routers import (
    ON_BOTH,
    SMP,
    START,
    Apple,
    Clock,
    Device,
    RunningNtf,
    active_device,
    device_token,
    open_tables,
    running_ntf,
    some_queue,
)
from tests.support.router.routers import new_credentials

IMPATIENT = NtfRules(retry_first_s=0.001, retry_max_s=0.002)


def outage(*_: object) -> PushOutcome:
    return RetryLater("out of order")


def ended(ntf: RunningNtf) -> dict[str, int]:
    """The states that have notifications; nothing is ever counted twice or not at all."""
    ledger = ntf.ledger()
    assert sum(ledger.values()) == ntf.router.store.received
    return {state: count for state, count in ledger.items() if count}


def latest(ntf: RunningNtf, device: Device) -> list[PushItem]:
    return list(device.items(ntf.apple.of_kind(MessagePush)[-1]))


@ON_BOTH
async def test_a_notification_is_pushed_with_its_metadata(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    await ntf.nmsg(queue, meta=b"metadata" * 18)
    await ntf.settled()
    (item,) = latest(ntf, device)
    assert (item.server, item.notifier_id, item.seconds) == (SMP, queue.notifier_id, START)
    assert item.encrypted_meta == b"metadata" * 18
    assert len(item.nonce) == 24
    assert ended(ntf) == {"accepted": 1}
    assert ntf.router.plan.meters[Meter.DELIVERED] == 1
    assert ntf.router.plan.meters.push_s[Carrier.APPLE].count == 1


@pytest.mark.both_stores
@pytest.mark.claim("NTF-53")
async def test_a_push_names_the_newest_of_several_queues(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queues = [some_queue(number) for number in range(5)]
    for queue in queues:
        await device.subscribe(queue)
    for queue in (*queues, queues[0]):
        ntf.clock.now += 1
        await ntf.nmsg(queue)
        await ntf.settled()
    items = latest(ntf, device)
    assert [item.notifier_id for item in items] == [
        queue.notifier_id for queue in (*queues[1:], queues[0])
    ], "the newest last, each queue once"
    assert [item.seconds for item in items] == [START + second for second in (2, 3, 4, 5, 6)]
    assert ended(ntf) == {"accepted": 6}


@ON_BOTH
async def test_a_push_that_cannot_name_all_queues_drops_the_oldest(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queues = [some_queue(number) for number in range(9)]
    for queue in queues:
        await device.subscribe(queue)
    ntf.apple.answer = outage
    await ntf.nmsg(*queues)
    await ntf.settled()
    assert ended(ntf) == {"waiting": 6, "dropped": 3}
    assert [item.notifier_id for item in latest(ntf, device)] == [queue.notifier_id for queue in queues[3:]]
    assert ntf.router.store.counts()["notifications"] == 6


async def test_long_addresses_leave_room_for_fewer_queues(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    long_name = Server((Host("a" * 60 + ".example.org"),) * 3, "5223", b"h" * 32)
    queues = [some_queue(number, long_name) for number in range(6)]
    for queue in queues:
        await device.subscribe(queue)
    await ntf.nmsg(*queues, meta=b"m" * 400)
    await ntf.settled()
    named = [item.notifier_id for item in latest(ntf, device)]
    assert 0 < len(named) < 6
    assert named == [queue.notifier_id for queue in queues[-len(named) :]]
    assert ended(ntf) == {"accepted": len(named), "dropped": 6 - len(named)}


async def test_an_address_too_long_for_any_push_is_dropped(tmp_path: Path) -> None:
    async with running_ntf(tmp_path, NtfRules(padded_size=512), network=MemoryNetwork()) as ntf:
        device = await active_device(ntf)
        server = Server((Host("a" * 100 + ".example.org"),) * 2, "5223", b"h" * 32)
        await device.subscribe(queue := some_queue(1, server))
        await ntf.nmsg(queue, meta=b"m" * 300)
        await ntf.settled()
        assert ended(ntf) == {"dropped": 1}
        assert ntf.apple.of_kind(MessagePush) == []


@ON_BOTH
async def test_a_newer_notification_supersedes_a_waiting_one(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    ntf.apple.open.clear()
    await ntf.nmsg(queue)
    await ntf.apple.next()
    await ntf.nmsg(queue, meta=b"2" * 144)
    await ntf.nmsg(queue, meta=b"3" * 144)
    assert ended(ntf) == {"waiting": 1, "superseded": 2}
    assert len(ntf.apple.of_kind(MessagePush)) == 1, "one at a time"
    ntf.apple.open.set()
    await ntf.settled()
    assert ended(ntf) == {"accepted": 1, "superseded": 2}
    (item,) = latest(ntf, device)
    assert item.encrypted_meta == b"3" * 144
    assert len(ntf.apple.of_kind(MessagePush)) == 2


async def test_the_same_nmsg_twice_counts_once(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    nmsg = NmsgReceived(SMP, queue.notifier_id, b"n" * 24, b"m" * 144)
    await ntf.router.submit([nmsg])
    await ntf.router.submit([nmsg])
    await ntf.settled()
    assert ended(ntf) == {"accepted": 1}


@pytest.mark.parametrize(
    ("nonce", "meta"), [(b"n" * 23, b"m"), (b"n" * 24, b""), (b"n" * 24, b"m" * 1025)], ids=str
)
async def test_a_malformed_notification_is_not_accepted(ntf: RunningNtf, nonce: bytes, meta: bytes) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    await ntf.router.submit([NmsgReceived(SMP, queue.notifier_id, nonce, meta)])
    await ntf.settled()
    assert ended(ntf) == {}
    assert ntf.router.plan.meters[Meter.RECEIVED_AUTH] == 1


async def test_a_refused_push_ends_its_notification_and_keeps_the_token(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    ntf.apple.answer = lambda *_: Failed("no")
    await ntf.nmsg(queue)
    await ntf.settled()
    assert ended(ntf) == {"rejected": 1}
    assert await device.status() == "ACTIVE"
    assert ntf.router.plan.meters[Meter.FAILED] == 1


@ON_BOTH
async def test_a_refused_token_rejects_all_its_waiting_notifications(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queues = [some_queue(number) for number in range(3)]
    for queue in queues:
        await device.subscribe(queue)
    ntf.apple.open.clear()
    await ntf.nmsg(queues[0])
    await ntf.apple.next()
    await ntf.nmsg(*queues[1:])
    ntf.apple.answer = lambda *_: TokenInvalid(InvalidReason.BAD)
    ntf.apple.open.set()
    await ntf.settled()
    assert ended(ntf) == {"rejected": 3}
    await ntf.nmsg(*queues)
    assert ended(ntf) == {"rejected": 3}
    assert ntf.router.plan.meters[Meter.RECEIVED_AUTH] == 3


@pytest.mark.both_stores
@pytest.mark.claim("NTF-59")
async def test_notifications_survive_an_outage_that_harms_no_token(tmp_path: Path) -> None:
    async with running_ntf(tmp_path, IMPATIENT, network=MemoryNetwork()) as ntf:
        device = await active_device(ntf)
        await device.subscribe(queue := some_queue())
        answers: list[PushOutcome] = [
            RetryLater("503"),
            RetryLater("429", 0.001),
            RetryLater("503"),
            Accepted(),
        ]
        ntf.apple.answer = lambda *_: answers.pop(0)
        await ntf.nmsg(queue)
        for _ in range(4):
            await ntf.apple.next()
        await ntf.settled()
        assert ended(ntf) == {"accepted": 1}
        assert await device.status() == "ACTIVE"
        assert ntf.router.plan.meters[Meter.RETRIES] == 3


def test_a_provider_gets_the_pause_it_asks_for(tmp_path: Path) -> None:
    async def asked_for_a_minute() -> list[float]:
        pushed_at: list[float] = []
        accepted = asyncio.Event()

        def answer(*_: object) -> PushOutcome:
            pushed_at.append(asyncio.get_running_loop().time())
            if len(pushed_at) <= 8:
                return RetryLater("slowly", 60.0)
            accepted.set()
            return Accepted()

        async with running_ntf(tmp_path, IMPATIENT, network=MemoryNetwork()) as ntf:
            device = await active_device(ntf)
            ntf.apple.answer = answer
            await device.subscribe(queue := some_queue())
            await ntf.nmsg(queue)
            await accepted.wait()
            await ntf.settled()
            assert ended(ntf) == {"accepted": 1}
        return pushed_at

    pushed_at = run_virtual(asked_for_a_minute())
    pauses = [later - earlier for earlier, later in pairwise(pushed_at)]
    assert all(60.0 <= pause <= 75.1 for pause in pauses)
    assert len(set(pauses)) == len(pauses), "each at its own moment"


async def test_a_retried_push_carries_what_arrived_meanwhile(tmp_path: Path) -> None:
    async with running_ntf(tmp_path, IMPATIENT, network=MemoryNetwork()) as ntf:
        device = await active_device(ntf)
        first, second = some_queue(1), some_queue(2)
        await device.subscribe(first)
        await device.subscribe(second)
        ntf.apple.open.clear()
        ntf.apple.answer = outage
        await ntf.nmsg(first)
        await ntf.apple.next()
        await ntf.nmsg(second)
        ntf.apple.answer = Apple().answer
        ntf.apple.open.set()
        await ntf.settled()
        assert ended(ntf) == {"accepted": 2}
        assert [item.notifier_id for item in latest(ntf, device)] == [first.notifier_id, second.notifier_id]


@ON_BOTH
async def test_a_notification_that_waits_too_long_expires(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    ntf.apple.answer = outage
    await ntf.nmsg(queue)
    await ntf.settled()
    ntf.clock.now += ntf.router.rules.notification_ttl_s
    await ntf.look()
    assert ended(ntf) == {"waiting": 1}
    ntf.clock.now += 1
    await ntf.look()
    assert ended(ntf) == {"expired": 1}
    assert ntf.router.store.counts()["notifications"] == 0


@ON_BOTH
async def test_neither_younger_ones_nor_those_that_were_pushed_expire_with_it(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    pushed, old, young = (some_queue(number) for number in range(3))
    for queue in (pushed, old, young):
        await device.subscribe(queue)
    await ntf.nmsg(pushed)
    await ntf.settled()
    ntf.apple.answer = outage
    for queue in (old, young):
        await ntf.nmsg(queue)
        await ntf.settled()
        ntf.clock.now += 1
    ntf.clock.now += ntf.router.rules.notification_ttl_s - 1
    await ntf.look()
    assert ended(ntf) == {"accepted": 1, "expired": 1, "waiting": 1}
    assert ntf.router.store.counts()["notifications"] == 2


@ON_BOTH
async def test_waiting_notifications_of_a_deleted_subscription_or_token_are_dropped(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    first, second = some_queue(1), some_queue(2)
    subscription_id = await device.subscribe(first)
    await device.subscribe(second)
    ntf.apple.open.clear()
    await ntf.nmsg(first, second)
    await ntf.apple.next()
    assert await device.ask(SDEL(), subscription_id) == OK()
    assert ended(ntf) == {"waiting": 1, "dropped": 1}
    assert await device.ask(TDEL()) == OK()
    assert ended(ntf) == {"dropped": 2}
    ntf.apple.open.set()
    await ntf.settled()
    assert ended(ntf) == {"dropped": 2}, "the answer to the push comes too late"


@pytest.mark.both_stores
@pytest.mark.claim("NTF-58")
async def test_accepted_notifications_are_pushed_after_a_restart(tmp_path: Path) -> None:
    network, credentials = MemoryNetwork(), new_credentials()
    async with running_ntf(tmp_path, network=network, credentials=credentials) as ntf:
        device = await active_device(ntf)
        first, second = some_queue(1), some_queue(2)
        await device.subscribe(first)
        await device.subscribe(second)
        ntf.apple.open.clear()
        await ntf.nmsg(first, meta=b"1" * 144)
        await ntf.apple.next()
        await ntf.nmsg(first, meta=b"2" * 144)
        await ntf.nmsg(second)
    async with running_ntf(tmp_path, network=network, credentials=credentials) as ntf:
        assert ntf.ledger()["waiting"] == 2
        await ntf.look()
        assert ended(ntf) == {"superseded": 1, "accepted": 2}
        items = latest(ntf, device)
        assert [(item.notifier_id, item.encrypted_meta[:1]) for item in items] == [
            (first.notifier_id, b"2"),
            (second.notifier_id, b"m"),
        ]
        await ntf.look()
        assert len(ntf.apple.of_kind(MessagePush)) == 1


async def test_more_pushes_than_may_wait_in_memory_wait_in_the_store(tmp_path: Path) -> None:
    rules = NtfRules(push_queue=2)
    async with running_ntf(tmp_path, rules, network=MemoryNetwork()) as ntf:
        client = await ntf.connect()
        queues = []
        for number in range(5):
            device = await active_device(ntf, device_token(f"{number:02x}"), client)
            await device.subscribe(queue := some_queue(number))
            queues.append(queue)
        await ntf.settled()
        ntf.apple.open.clear()
        await ntf.nmsg(*queues)
        assert len(ntf.router.plan.state.jobs) == 2
        assert ntf.router.plan.meters[Meter.DEFERRED] == 3
        ntf.apple.open.set()
        await ntf.settled()
        assert ended(ntf) == {"accepted": 2, "waiting": 3}
        for _ in range(2):
            await ntf.look()
        assert ended(ntf) == {"accepted": 5}


@ON_BOTH
async def test_after_a_random_day_every_notification_has_ended(tmp_path: Path) -> None:
    """Random events in random order, with restarts: the sums agree."""
    chance = random.Random(8)
    network, clock, credentials = MemoryNetwork(), Clock(), new_credentials()
    devices: list[Device] = []
    queues = [some_queue(number) for number in range(24)]
    sent = 0

    def some_answer(*_: object) -> PushOutcome:
        answers: list[PushOutcome] = [
            Accepted(),
            RetryLater("later"),
            Failed("no"),
            TokenInvalid(InvalidReason.BAD),
        ]
        return chance.choices(answers, [60, 30, 8, 2])[0]

    for _ in range(3):
        async with running_ntf(
            tmp_path, IMPATIENT, network=network, clock=clock, credentials=credentials
        ) as ntf:
            client = await ntf.connect()
            if not devices:
                for number in range(4):
                    devices.append(await active_device(ntf, device_token(f"{number:02x}"), client))
                for number, queue in enumerate(queues):
                    await devices[number % 4].subscribe(queue)
            ntf.apple.answer = some_answer
            for device in devices:
                device.client = client
            for _ in range(60):
                chosen = chance.sample(queues, chance.randint(1, 4))
                await ntf.nmsg(*chosen)
                sent += len(chosen)
                clock.now += chance.randint(0, 3)
            refused = ntf.router.plan.meters[Meter.RECEIVED_AUTH]
            sent -= refused
            assert ntf.router.store.received == sent
            ended(ntf)
    async with running_ntf(tmp_path, IMPATIENT, network=network, clock=clock, credentials=credentials) as ntf:
        await ntf.look()
        assert ntf.ledger()["waiting"] == 0
        assert sum(ended(ntf).values()) == sent


async def test_a_code_that_cannot_be_pushed_is_given_up_after_a_while(tmp_path: Path) -> None:
    async with running_ntf(tmp_path, IMPATIENT, network=MemoryNetwork()) as ntf:
        ntf.apple.answer = outage
        device = Device(await ntf.connect())
        await device.register()
        for _ in range(IMPATIENT.push_attempts):
            _, push = await ntf.apple.next()
        await ntf.settled()
        assert ntf.apple.unseen == 0
        assert ntf.router.plan.meters[Meter.CODES_FAILED] == 1
        assert await device.status() == "REGISTERED"
        ntf.apple.answer = Apple().answer
        await device.register()
        await ntf.settled()
        assert await device.status() == "CONFIRMED"
        assert await device.ask(TVFY(device.code(push))) == OK()


async def test_the_journal_records_every_notification_and_token(ntf: RunningNtf) -> None:
    client = await ntf.connect()
    devices = [await active_device(ntf, device_token(f"{number:02x}"), client) for number in range(3)]
    queues = [some_queue(number) for number in range(3)]
    ids = [await device.subscribe(queue) for device, queue in zip(devices, queues, strict=True)]
    await ntf.nmsg(*queues, some_queue(99))
    await ntf.settled()
    ntf.apple.answer = outage
    await ntf.nmsg(queues[0])
    await ntf.settled()
    await ntf.nmsg(queues[0])
    assert await devices[0].ask(SDEL(), ids[0]) == OK()
    ntf.apple.answer = lambda *_: Failed("no")
    await ntf.nmsg(queues[1])
    await ntf.settled()
    ntf.apple.answer = lambda *_: TokenInvalid(InvalidReason.TOPIC)
    await ntf.nmsg(queues[2])
    await ntf.settled()
    await ntf.nmsg(queues[2])
    assert await devices[1].ask(TDEL()) == OK()
    reading = await read_meters(ntf.router, SmpSubscriber(ntf.router, SubscriberOptions()))
    assert reading.funnel == {
        ("received", "", "apns"): 8,
        ("received", "", "none"): 1,
        ("stored", "", "apns"): 7,
        ("pushed", "", "apns"): 6,
        ("retried", "", "apns"): 1,
        ("accepted", "", "apns"): 3,
        ("replaced", "", "apns"): 1,
        ("no_token", "", "apns"): 1,
        ("no_token", "", "none"): 1,
        ("refused", "", "apns"): 1,
        ("token_invalid", "TOPIC", "apns"): 1,
        ("token_inactive", "", "apns"): 1,
    }
    assert reading.token_transitions == {
        ("", "REGISTERED", ""): 3,
        ("REGISTERED", "CONFIRMED", ""): 3,
        ("CONFIRMED", "ACTIVE", ""): 3,
        ("ACTIVE", "INVALID", "TOPIC"): 1,
        ("ACTIVE", "", ""): 1,
    }
    assert {state for state, _, _ in reading.funnel} <= set(NOTIFICATION_STATES)
    ends: Counter[str] = Counter()
    for (state, _, provider), count in reading.funnel.items():
        if state in TERMINAL_STATES:
            ends[provider] += count
    came = {provider: reading.funnel["received", "", provider] for provider in ends}
    assert ends == came, "each received notification ends in one state"
    assert (reading.gauges["tokens"], reading.gauges["waiting"]) == (2, 0)


@pytest.mark.both_stores
async def test_each_provider_has_its_own_ledger(tmp_path: Path) -> None:
    """Also for a device that changes provider while its notification waits."""
    apple, rules = Apple(), NtfRules(web_push=True, retry_first_s=100)
    providers = {PushProvider.APNS_PROD: apple, PushProvider.WEB_PUSH: apple}
    web = DeviceToken.web(Subscription("push.example.org", "", b"/1", bytes(16), b"\x04" + bytes(64)))
    moved_to = DeviceToken.web(Subscription("push.example.org", "", b"/2", bytes(16), b"\x04" + bytes(64)))
    queues = [some_queue(number) for number in range(2)]
    async with running_ntf(tmp_path, rules, network=MemoryNetwork(), apple=apple, providers=providers) as ntf:
        devices = [await active_device(ntf, name) for name in (device_token("ab"), web)]
        for device, queue in zip(devices, queues, strict=True):
            await device.subscribe(queue)
        await ntf.nmsg(*queues, queues[1])
        await ntf.settled()
        apple.answer = lambda device, _: RetryLater("") if device == devices[0].name else Failed("")
        await ntf.nmsg(*queues)
        await ntf.settled()
        apple.answer = lambda *_: Accepted()
        assert await devices[0].ask(TRPL(moved_to)) == OK()
        await ntf.settled()
        *_, (_, code) = [each for each in apple.pushed if each[0] == moved_to]
        assert await devices[0].ask(TVFY(devices[0].code(code))) == OK()
        await ntf.settled()
    store = await open_tables(tmp_path)
    found = ledger_of(store.counts())
    store.close()
    told = {(who.value, state.value): count for who in found for state, count in found[who].items() if count}
    assert told == {
        ("apns", "accepted"): 2,
        ("webpush", "accepted"): 1,
        ("webpush", "superseded"): 1,
        ("webpush", "rejected"): 1,
    }
    assert found[Carrier.TEST][LedgerState.WAITING] == 0


async def test_a_push_service_that_does_not_answer_takes_no_room_from_others(tmp_path: Path) -> None:
    """Web Push has half of the room, and each service an eighth of that; the rest waits in the store."""
    apple, rules = Apple(), NtfRules(web_push=True, push_queue=32, retry_first_s=100, retry_max_s=100)
    providers = {PushProvider.APNS_PROD: apple, PushProvider.WEB_PUSH: apple}

    def web(host: str, number: int) -> DeviceToken:
        subscription = Subscription(host, "", b"/%d" % number, bytes(16), b"\x04" + bytes(64))
        return DeviceToken.web(subscription)

    names = [web("dead.example.org", number) for number in range(5)]
    names += [web("live.example.org", 0), device_token("ab")]
    queues = [some_queue(number) for number in range(len(names))]
    async with running_ntf(tmp_path, rules, network=MemoryNetwork(), apple=apple, providers=providers) as ntf:
        client = await ntf.connect()
        devices = [await active_device(ntf, name, client) for name in names]
        for device, queue in zip(devices, queues, strict=True):
            await device.subscribe(queue)
        apple.answer = lambda name, _: RetryLater("") if name in names[:5] else Accepted()
        await ntf.nmsg(*queues)
        await ntf.settled()
        assert ended(ntf) == {"accepted": 2, "waiting": 5}
        assert ntf.router.plan.meters[Meter.DEFERRED] == 3
        assert len(ntf.router.plan.state.jobs) == 2
        apple.answer = lambda *_: Accepted()
        for device in devices[:5]:
            assert await device.ask(TDEL()) == OK()
        assert len(ntf.router.plan.state.jobs) == 0
        assert ntf.router.plan.state.jobs.has_room("dead.example.org", 32)


async def test_active_tokens_are_counted_by_day_week_and_month(ntf: RunningNtf) -> None:
    monday = 1_700_438_400
    client = await ntf.connect()
    devices = [await active_device(ntf, device_token(f"{number:02x}"), client) for number in range(2)]
    queues = [some_queue(number) for number in range(3)]
    for number, queue in enumerate(queues):
        await devices[number % 2].subscribe(queue)

    def rendered() -> str:
        text = Text()
        render(text, ntf.router, None)
        return text.done()

    def counts() -> list[int]:
        lines = dict(line.rsplit(" ", 1) for line in rendered().splitlines())
        periods = ("daily", "weekly", "monthly")
        names = [
            f"simplex_ntf_{kind}_count_{each}" for kind in ("tokens", "subscriptions") for each in periods
        ]
        return [int(lines[name]) for name in names]

    ntf.clock.now = monday
    await ntf.nmsg(*queues)
    await ntf.settled()
    await ntf.nmsg(queues[0])
    await ntf.settled()
    assert counts() == [2, 2, 2, 3, 3, 3]
    ntf.clock.now += 6 * 86_400 + 86_399
    await ntf.nmsg(queues[0])
    await ntf.settled()
    assert counts() == [1, 2, 2, 1, 3, 3], "Sunday"
    ntf.clock.now += 1
    assert counts() == [0, 0, 2, 0, 0, 3], "Monday"
    ntf.clock.now += 4 * 86_400
    assert counts() == [0, 0, 0, 0, 0, 0], "the first of the next month"


@ON_BOTH
async def test_a_scan_handles_more_than_fits_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.ntf.server.STEP", 2)
    network, clock, credentials = MemoryNetwork(), Clock(), new_credentials()
    queues = [some_queue(number) for number in range(5)]
    async with running_ntf(tmp_path, network=network, clock=clock, credentials=credentials) as ntf:
        client = await ntf.connect()
        for number, queue in enumerate(queues):
            device = await active_device(ntf, device_token(f"{number:02x}"), client)
            await device.subscribe(queue)
            assert await device.ask(TCRN(20)) == OK()
        ntf.apple.open.clear()
        await ntf.nmsg(*queues)
    clock.now += 20 * 60
    async with running_ntf(tmp_path, network=network, clock=clock, credentials=credentials) as ntf:
        await ntf.look()
        assert ended(ntf) == {"accepted": 5}
        assert len(ntf.apple.of_kind(CheckPush)) == 5
        await ntf.look()
        assert len(ntf.apple.pushed) == 10
