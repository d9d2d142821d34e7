"""Pushes when a router ends, or is no longer sure that it owns what it pushes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blindpost.ntf import pusher
from blindpost.ntf.model import LedgerState, NtfRules
from blindpost.ntf.ports import RetryLater
from blindpost.ntf.tables import ledger_total
from blindpost.wire.ntf.commands import TVFY
from blindpost.wire.ntf.responses import OK
from tests.support.ntf.routers import (
    Clock,
    Device,
    active_device,
    device_token,
    open_tables,
    running_ntf,
    some_queue,
)

QUICK = NtfRules(retry_first_s=0.01, retry_max_s=0.02)


async def left(folder: Path) -> dict[str, int]:
    """What the next router finds."""
    store = await open_tables(folder)
    counts = store.counts()
    store.close()
    return {state.value: ledger_total(counts, state) for state in LedgerState if ledger_total(counts, state)}


@pytest.mark.both_stores
async def test_a_push_that_is_answered_while_a_router_ends_is_not_made_again(tmp_path: Path) -> None:
    async with running_ntf(tmp_path) as ntf:
        device = await active_device(ntf)
        await device.subscribe(queue := some_queue())
        ntf.apple.open.clear()
        await ntf.nmsg(queue)
        await ntf.apple.next()
        ntf.router.stop()
        asyncio.get_running_loop().call_later(0.05, ntf.apple.open.set)
    assert await left(tmp_path) == {"accepted": 1}


@pytest.mark.both_stores
async def test_a_code_that_no_provider_had_accepted_is_pushed_by_the_next_router(tmp_path: Path) -> None:
    """Its device would wait for it until its person opens the app again."""
    clock = Clock()
    async with running_ntf(tmp_path, clock=clock) as ntf:
        await active_device(ntf)
        confirmed, late, device = [
            Device(await ntf.connect(), device_token(name)) for name in ("cd", "ef", "01")
        ]
        await confirmed.register()
        await ntf.settled()
        ntf.apple.answer = lambda token, push: RetryLater("an outage")
        await late.register()
        clock.now += NtfRules().code_ttl_s + 1
        await device.register()
        await ntf.settled()
    async with running_ntf(tmp_path, clock=clock) as ntf:
        name, push = await ntf.apple.next()
        assert name == device.name
        device.client = await ntf.connect()
        assert await device.ask(TVFY(device.code(push))) == OK()
        await ntf.settled()
        assert not ntf.apple.unseen


async def test_a_provider_that_does_not_answer_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher.Pusher.finish, "__defaults__", (0.01,))
    async with running_ntf(tmp_path) as ntf:
        device = await active_device(ntf)
        await device.subscribe(queue := some_queue())
        ntf.apple.open.clear()
        await ntf.nmsg(queue)
        await ntf.apple.next()
    assert await left(tmp_path) == {"waiting": 1}


async def test_a_router_that_ends_begins_no_more_pushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their answers would come too late to be stored."""
    monkeypatch.setattr(pusher, "IN_HAND_MAX", 1)
    async with running_ntf(tmp_path) as ntf:
        devices = [await active_device(ntf, device_token(name)) for name in ("ab", "cd", "ef")]
        queues = [some_queue(number) for number in range(3)]
        for device, queue in zip(devices, queues, strict=True):
            await device.subscribe(queue)
        pushed = len(ntf.apple.pushed)
        ntf.apple.open.clear()
        await ntf.nmsg(*queues)
        await ntf.apple.next()
        ntf.router.stop()
        asyncio.get_running_loop().call_later(0.05, ntf.apple.open.set)
    assert len(ntf.apple.pushed) == pushed + 1
    assert await left(tmp_path) == {"waiting": 2, "accepted": 1}


async def test_a_router_that_may_have_lost_its_database_pushes_nothing(tmp_path: Path) -> None:
    """One that was frozen has a line of pushes, and another router has made them meanwhile."""
    async with running_ntf(tmp_path, QUICK) as ntf:
        device = await active_device(ntf)
        await device.subscribe(queue := some_queue())
        pushed, asked = len(ntf.apple.pushed), asyncio.Event()

        def may_push() -> bool:
            asked.set()
            return False

        ntf.router.pusher.may_push = may_push
        await ntf.nmsg(queue)
        await asked.wait()
        await ntf.router.submit(())
        assert len(ntf.apple.pushed) == pushed
        assert ntf.ledger()["waiting"] == 1
        ntf.router.pusher.may_push = lambda: True
        await ntf.apple.next()
