"""What devices can make the notification router send to others: nothing before they are verified."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.client.options import SmpOptions
from blindpost.client.outbound import Outbound
from blindpost.ntf.model import NtfRules
from blindpost.ntf.ports import TokenInvalid
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Host, Server
from blindpost.wire.ntf.commands import SDEL, SNEW, TRPL
from blindpost.wire.ntf.responses import ERR, IDSUB, OK
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.smp.errors import Code
from tests.support.ntf.routers import (
    Device,
    RunningNtf,
    active_device,
    device_token,
    running_ntf,
    some_queue,
)
from tests.support.ntf.stores import RawStore
from tests.support.serving.waiting import until

BOTH = pytest.mark.parametrize("store_kind", ["sqlite", "postgres"], indirect=True)


def somewhere(number: int, port: str = "") -> Server:
    """A made-up message router."""
    return Server((Host("127.0.0.1"),), port, number.to_bytes(32, "big"))


async def named(device: Device, server: Server, number: int = 1) -> object:
    queue = some_queue(number, server)
    return await device.ask(SNEW(device.token_id, server, queue.notifier_id, queue.key.encoded), b"")


async def test_a_device_unknown_to_apple_causes_no_outgoing_connection(ntf: RunningNtf) -> None:
    ntf.apple.answer = lambda _device, _push: TokenInvalid(InvalidReason.BAD)
    stranger = Device(await ntf.connect(), device_token("ab"))
    await stranger.register()
    await ntf.settled()
    assert await stranger.status() == "INVALID,BAD"
    for number in range(400):
        assert await named(stranger, somewhere(number)) == ERR(Code.AUTH)
    assert not ntf.subscriber.subscribed
    assert await RawStore(ntf.router.store).fetch("SELECT * FROM smp_servers") == []


async def test_a_verified_device_replaced_by_an_unknown_one_cannot_add_queues(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    subscription_id = await device.subscribe(some_queue())
    ntf.apple.answer = lambda _device, _push: TokenInvalid(InvalidReason.BAD)
    assert await device.ask(TRPL(device_token("cd"))) == OK()
    await ntf.settled()
    assert await device.status() == "INVALID,BAD"
    assert await named(device, somewhere(1), 2) == ERR(Code.AUTH)
    assert await device.sub_status(subscription_id) == b"NEW"
    assert await device.ask(SDEL(), subscription_id) == OK()


async def test_a_once_verified_device_may_subscribe_although_refused_now(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    ntf.apple.answer = lambda _device, _push: TokenInvalid(InvalidReason.UNREGISTERED)
    await ntf.nmsg(queue)
    await ntf.settled()
    assert await device.status() == "INVALID,UNREGISTERED"
    assert isinstance(await named(device, somewhere(1), 2), IDSUB)


async def test_the_routers_and_queues_a_token_names_in_an_hour_are_limited(tmp_path: Path) -> None:
    rules = NtfRules(token_routers=3, token_queues=6)
    quota = ERR(Code.QUOTA)
    async with running_ntf(tmp_path, rules, network=MemoryNetwork()) as ntf:
        device = await active_device(ntf)
        for number in range(3):
            assert isinstance(await named(device, somewhere(number)), IDSUB)
        assert await named(device, somewhere(3)) == quota
        other = await active_device(ntf, device_token("cd"))
        assert isinstance(await named(other, somewhere(3)), IDSUB)
        for number in range(2, 5):
            assert isinstance(await named(device, somewhere(3), number), IDSUB), "somebody named it before"
        assert await named(device, somewhere(3), 9) == quota
        assert len(ntf.subscriber.subscribed) == 7
        ntf.clock.now += rules.token_window_s
        assert isinstance(await named(device, somewhere(4)), IDSUB)
        ntf.clock.now += rules.token_window_s
        await ntf.look()
        assert len(ntf.router.plan.state.rates) == 0


@BOTH
async def test_the_queues_of_a_token_are_limited_however_slowly_it_names_them(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    ntf.router.plan.rules = rules = replace(ntf.router.plan.rules, token_subscriptions=2)
    first = await device.subscribe(queue := some_queue(1))
    await device.subscribe(some_queue(2))
    ntf.clock.now += rules.token_window_s
    assert await named(device, somewhere(1), 3) == ERR(Code.QUOTA)
    assert await device.subscribe(queue) == first, "the same again is no further one"
    assert await device.ask(SDEL(), first) == OK()
    assert isinstance(await named(device, somewhere(1), 3), IDSUB)
    assert await named(device, somewhere(1), 4) == ERR(Code.QUOTA)


@BOTH
async def test_routers_without_subscriptions_are_forgotten(ntf: RunningNtf) -> None:
    device, raw = await active_device(ntf), RawStore(ntf.router.store)
    kept = await device.subscribe(some_queue(1, somewhere(1)))
    gone = await device.subscribe(some_queue(2, somewhere(2)))
    busy = await device.subscribe(some_queue(3, somewhere(3)))
    await ntf.look()
    assert len(await raw.fetch("SELECT server FROM smp_servers")) == 3
    for subscription_id in (gone, busy):
        assert await device.ask(SDEL(), subscription_id) == OK()
    ntf.subscriber.busy_with.add(somewhere(3))
    await ntf.look()
    assert len(await raw.fetch("SELECT server FROM smp_servers")) == 2
    ntf.subscriber.busy_with.clear()
    await ntf.look()
    assert await ntf.router.store.router(somewhere(1)) is not None
    assert len(await raw.fetch("SELECT server FROM smp_servers")) == 1
    assert isinstance(await named(device, somewhere(2), 2), IDSUB), "it may come back"
    assert await device.sub_status(kept) == b"NEW"


async def test_one_host_under_many_identities_is_one_destination(tmp_path: Path) -> None:
    """A verified device names a hundred routers at one address that accepts connections and stays silent."""
    accepted = []

    def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = str(listening.sockets[0].getsockname()[1])
    outbound = Outbound(["127.0.0.0/8"])
    async with listening, running_ntf(tmp_path, network=MemoryNetwork()) as ntf:
        options = SubscriberOptions(smp=outbound.applied(SmpOptions()), use_services=False)
        subscriber = SmpSubscriber(ntf.router, options)
        ntf.router.subscriber = subscriber
        running = asyncio.create_task(subscriber.run())
        device = await active_device(ntf)
        for number in range(60):
            assert isinstance(await named(device, somewhere(number, port), number), IDSUB)
        await until(lambda: len(subscriber.states) == 60 and len(accepted) == 4)
        await asyncio.sleep(0.2)
        assert len(accepted) == 4, "so many handshakes with strangers are under way at one place"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for writer in accepted:
            writer.close()
