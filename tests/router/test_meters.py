"""What the router counts, and the day it notes on a queue."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from blindpost.router.changes import Change, PutQueue
from blindpost.router.config import RouterRules
from blindpost.router.events import RelayAnswer
from blindpost.router.meters import Meter
from blindpost.router.operator import Action
from blindpost.router.records import queue_from_row
from blindpost.router.tables import QUEUES, LmdbTables
from blindpost.router.turn import Forward
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    NDEL,
    NKEY,
    NSUB,
    OFF,
    PFWD,
    PING,
    QUE,
    SEND,
    SUB,
    Command,
)
from blindpost.wire.smp.errors import BLOCKED, PROTOCOL, PROXY, BlockingReason, Code, ProxyCode
from blindpost.wire.smp.responses import ERR, MSG, PRES, Response
from tests.support.router.lines import Queue, create, lines_of, open_line
from tests.support.router.operators import block, operate
from tests.support.router.routers import RunningRouter, new_key, running_router

DAY = 86_400


class Counted:
    """The meters that moved since the last look, apart from those of whole batches."""

    def __init__(self, running: RunningRouter) -> None:
        self._meters = running.router.plan.meters
        self._before = self._all()

    def _all(self) -> dict[str, int]:
        return {meter.value: self._meters[meter] for meter in Meter if not meter.value.endswith("B")}

    def moved(self) -> dict[str, int]:
        now = self._all()
        moved = {name: now[name] - self._before[name] for name in now if now[name] != self._before[name]}
        self._before = now
        return moved


async def test_the_life_of_a_queue_is_counted(running: RunningRouter) -> None:
    line, counted = await open_line(running), Counted(running)
    queue = await create(line)
    assert counted.moved() == {"qCreated": 1}
    other = await create(line, notifier=True)
    assert counted.moved() == {"qCreated": 1, "ntfNewCreated": 1}
    for _ in ("first", "again"):
        await queue.secure(line)
        assert counted.moved() == {"qSecured": 1}
    await queue.ask(line, KEY(new_key().public))
    assert counted.moved() == {}
    for expected in ({"ntfCreated": 1}, {"ntfCreated": 1}):
        await queue.ask(line, NKEY(queue.ntf_creds))
        assert counted.moved() == expected
    for expected in ({"ntfDeleted": 1}, {}):
        await queue.ask(line, NDEL())
        assert counted.moved() == expected
    await queue.ask(await open_line(running), SUB())
    await queue.ask(line, DEL())
    assert counted.moved() == {"qDeletedAll": 1, "qDeletedSecured": 1, "qSubEnd": 1}
    await block(running, other.sender_id, BLOCKED(BlockingReason.SPAM))
    assert counted.moved() == {"qBlocked": 1}
    await line.ask(SEND(False, b""), other.sender_id)
    assert counted.moved() == {"msgSentBlock": 1}
    await other.ask(line, DEL())
    assert counted.moved() == {"qDeletedAll": 1, "qDeletedNew": 1}


async def test_messages_are_counted(tmp_path: Path) -> None:
    async with running_router(tmp_path, RouterRules(quota=2), network=MemoryNetwork()) as running:
        line, sender = await lines_of(running, 2)
        queue = await create(line, notifier=True)
        counted = Counted(running)
        await queue.send(sender, b"one")
        assert counted.moved() == {"msgSent": 1}
        await queue.send(sender, b"two", notify=True)
        assert counted.moved() == {"msgSent": 1, "msgSentNtf": 1, "msgNtfNoSub": 1}
        await sender.ask(SEND(False, b"three"), queue.sender_id)
        assert counted.moved() == {"msgSentQuota": 1, "msgMarkers": 1}
        await sender.ask(SEND(False, bytes(16049)), queue.sender_id)
        assert counted.moved() == {"msgSentLarge": 1}
        await line.ask(NSUB(), queue.notifier_id, queue.notifier_key)
        assert counted.moved() == {"ntfSub": 1, "msgNtfs": 1}
        await line.ask(NSUB(), queue.notifier_id, queue.notifier_key)
        assert counted.moved() == {"ntfSubDuplicate": 1}
        for expected in ({"msgGet": 1}, {"msgGetDuplicate": 1}):
            queue.opened(await queue.ask(line, GET()))
            assert counted.moved() == expected
        await queue.ask(line, SUB())
        assert counted.moved() == {"qSubProhibited": 1}
        await queue.ask(line, ACK(queue.last_id))
        assert counted.moved() == {"msgRecv": 1, "msgRecvGet": 1}
        await queue.ask(sender, SUB())
        assert counted.moved() == {"qSub": 1}
        await queue.ask(sender, GET())
        assert counted.moved() == {"msgGetProhibited": 1}
        await queue.ask(sender, SUB())
        assert counted.moved() == {"qSubDuplicate": 1}
        for _ in range(2):
            msg = (await sender.event(queue.recipient_id)).response
        queue.opened(msg)
        assert isinstance(await queue.ask(sender, ACK(queue.last_id)), MSG)
        assert counted.moved() == {"msgRecv": 1, "msgRecvNtf": 1}
        queue.opened(await queue.ask(sender, ACK(b"")))
        await queue.ask(sender, ACK(queue.last_id))
        assert counted.moved() == {"msgMarkersGone": 1}
        await queue.ask(line, GET())
        assert counted.moved() == {"msgGetNoMsg": 1}
        await queue.ask(await open_line(running), SUB())
        assert counted.moved() == {"qSubEnd": 1}
        assert running.router.plan.meters.ack_s.count == 2, "a marker is no message"


async def test_a_marker_that_is_left_alone_goes_with_its_queue(tmp_path: Path) -> None:
    async with running_router(tmp_path, RouterRules(quota=1), network=MemoryNetwork()) as running:
        line, sender = await lines_of(running, 2)
        queue = await create(line)
        await queue.send(sender, b"one")
        await sender.ask(SEND(False, b"two"), queue.sender_id)
        queue.opened(await queue.ask(line, GET()))
        await queue.ask(line, ACK(queue.last_id))
        counted = Counted(running)
        await queue.ask(line, DEL())
        assert counted.moved() == {"qDeletedAll": 1, "qDeletedNew": 1, "msgMarkersGone": 1}


async def test_messages_removed_with_their_queue_are_counted(tmp_path: Path) -> None:
    """By the operator too: an accepted message is acknowledged, expired, deleted or still there."""
    async with running_router(tmp_path, RouterRules(quota=2), network=MemoryNetwork()) as running:
        line, sender = await lines_of(running, 2)
        full, one, empty = [await create(line) for _ in range(3)]
        counted = Counted(running)
        for body in (b"one", b"two", b"three", b"four"):
            await sender.ask(SEND(False, body), full.sender_id)
        await one.send(sender, b"one")
        assert counted.moved() == {"msgSent": 3, "msgSentQuota": 2, "msgMarkers": 1}
        await full.ask(line, DEL())
        gone = {"qDeletedAll": 1, "qDeletedNew": 1, "msgDeleted": 2, "msgMarkersGone": 1}
        assert counted.moved() == gone
        await empty.ask(line, DEL())
        assert counted.moved() == {"qDeletedAll": 1, "qDeletedNew": 1}
        assert await operate(running, Action.DELETE, one.sender_id) == "deleted, with 1 messages"
        assert counted.moved() == {"qDeletedAll": 1, "msgDeleted": 1}
        assert running.router.store.counts()["messages"] == 0


async def test_refusals_are_counted(running: RunningRouter) -> None:
    line = await open_line(running)
    queue, key, unknown = await create(line, notifier=True, secured=True), new_key(), os.urandom(24)
    counted = Counted(running)
    for command, entity_id, meter in (
        (SUB(), queue.recipient_id, "qSubAuth"),
        (GET(), queue.recipient_id, "msgGetAuth"),
        (SEND(False, b""), queue.sender_id, "msgSentAuth"),
        (NSUB(), queue.notifier_id, "ntfSubAuth"),
    ):
        for named in (entity_id, unknown):
            await line.ask(command, named, key)
            assert counted.moved() == {meter: 1}
    await line.ask(QUE(), unknown, key)
    assert counted.moved() == {}
    await queue.ask(line, OFF())
    await line.ask(SEND(False, b""), queue.sender_id, queue.sender_key)
    assert counted.moved() == {"msgSentAuth": 1}


@pytest.mark.parametrize(
    ("response", "meter"),
    [
        (PRES(b""), Meter.RELAYED_ANSWERED),
        (ERR(PROXY(PROTOCOL(Code.AUTH))), Meter.RELAYED_ANSWERED),
        (ERR(PROXY(ProxyCode.NO_SESSION)), Meter.RELAYED_FAILED),
        (ERR(Code.AUTH), Meter.RELAYED_FAILED),
    ],
)
async def test_what_a_relay_answers_is_a_success_for_the_proxy(
    running: RunningRouter, response: Response, meter: Meter
) -> None:
    line, counted = await open_line(running), Counted(running)
    await line.ask(PING(), b"")
    (connection,) = running.router.connections.values()
    effect = Forward(connection.client, b"1" * 24, b"session", PFWD(14, new_key().public, b""))
    running.router.engine.put_own(RelayAnswer(effect, response))
    await line.ask(PING(), b"")
    assert counted.moved() == {"pMsgFwds.requests": 1, meter.value: 1}


class Days:
    """A time of day that a test moves by days."""

    def __init__(self) -> None:
        self.day = 20_000

    def __call__(self) -> float:
        return self.day * DAY + 4321.5


def updated_day(running: RunningRouter, queue: Queue) -> int:
    store = running.router.store
    assert isinstance(store, LmdbTables)
    with store.store.read() as read:
        row = read.get(QUEUES, queue.recipient_id)
    assert row is not None
    return queue_from_row(row).updated_day // DAY


@pytest.mark.parametrize("command", [SUB(), GET(), SEND(False, b"hello"), SEND(False, bytes(16049))])
async def test_use_records_the_day_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Receiving and sending do, even a message that is too large; QUE does not."""
    now = Days()
    async with running_router(tmp_path, now=now, network=MemoryNetwork()) as running:
        line = await open_line(running)
        queue = await create(line)
        assert updated_day(running, queue) == 20_000
        store, writes = running.router.store, 0
        commit = store.commit

        async def counting(changes: Sequence[Change]) -> None:
            nonlocal writes
            writes += sum(isinstance(change, PutQueue) for change in changes)
            await commit(changes)

        monkeypatch.setattr(store, "commit", counting)
        for day in (20_001, 20_005):
            now.day = day
            await queue.ask(line, QUE())
            assert updated_day(running, queue) < day
            for _ in range(3):
                by_sender = isinstance(command, SEND)
                named = queue.sender_id if by_sender else queue.recipient_id
                await line.ask(command, named, None if by_sender else queue.key)
            assert updated_day(running, queue) == day
        assert writes == 2
