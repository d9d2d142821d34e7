"""What leaves an agent survives a power loss: a commit is followed by the disk before a router hears of it.

A commit alone is enough to tell the program, since what a power loss takes back comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.agent import AgentFailed, Connection, Failed, MsgOk
from blindpost.agent.store.database import AgentStore
from blindpost.engine.loop import StoreFailedError
from blindpost.store import sqlite
from blindpost.store.contract import Durability
from blindpost.wire.smp.commands import ACK, SEND
from tests.support.agent.agents import Party, connect, quick_config, recorded, two_parties
from tests.support.client.scripted_router import settle, virtual


class SlowDisk:
    """Syncs of one store that begin only when they are let."""

    def __init__(self, party: Party) -> None:
        self._store: AgentStore = party.rt.ground.store
        self._real = self._store._begin_sync
        self._store._begin_sync = self._hold  # type: ignore[method-assign]
        self.asked = 0

    def _hold(self) -> None:
        self.asked += 1

    def go_on(self) -> None:
        self._store._begin_sync = self._real  # type: ignore[method-assign]
        self._real()


@asynccontextmanager
async def durable_parties(folder: Path) -> AsyncIterator[tuple[Party, Party, Connection, Connection]]:
    config = quick_config(durability=Durability.FULL)
    async with two_parties(folder, config, config) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        await settle()
        yield alice, bob, ours, theirs


@virtual
async def test_a_message_is_sent_when_the_disk_has_it(tmp_path: Path) -> None:
    async with durable_parties(tmp_path) as (alice, bob, ours, _):
        disk = SlowDisk(alice)
        with recorded(alice) as sent:
            sending = asyncio.create_task(ours.send(b"one"))
            await settle()
            assert disk.asked
            assert not sending.done()
            assert sent == []
            disk.go_on()
            await sending
            assert (await bob.message()).msg.body == b"one"
            assert [type(call.command) for call in sent] == [SEND]


@virtual
async def test_a_message_is_shown_when_it_is_committed_and_acknowledged_when_the_disk_has_it(
    tmp_path: Path,
) -> None:
    async with durable_parties(tmp_path) as (_, bob, ours, _):
        await settle()
        disk = SlowDisk(bob)
        with recorded(bob) as sent:
            await ours.send(b"one")
            event = await bob.message(ack=False)
            assert event.msg.body == b"one"
            acking = asyncio.create_task(event.msg.ack())
            await settle()
            assert disk.asked
            assert not acking.done()
            assert sent == []
            disk.go_on()
            await acking
            await settle()
            assert [type(call.command) for call in sent] == [ACK]


@virtual
async def test_messages_that_were_taken_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    """That they were taken may be forgotten: they are sent again then, and known."""
    async with durable_parties(tmp_path) as (alice, bob, ours, _):
        store = alice.rt.ground.store
        await asyncio.gather(*(ours.send(b"%d" % number) for number in range(10)))
        disk = SlowDisk(alice)
        for number in range(10):
            got = (await bob.message()).msg
            assert (got.body, got.integrity) == (b"%d" % number, MsgOk())
        await settle()
        assert store._committed
        assert not disk.asked
        disk.go_on()


async def stored_at_once(party: Party) -> None:
    with party.rt.ground.transaction():
        pass


@pytest.mark.parametrize("by_call", [False, True], ids=["in the thread", "at once"])
@virtual
async def test_a_disk_that_could_not_sync_is_trusted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_call: bool
) -> None:
    """Whatever was committed may be lost: nothing of it leaves, and nothing more is taken."""
    config = quick_config(durability=Durability.FULL)
    async with two_parties(tmp_path, config) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await settle()

        def broken(_: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(sqlite, "_datasync", broken)
        with recorded(alice) as sent:
            changing = stored_at_once(alice) if by_call else ours.send(b"lost")
            with pytest.raises(StoreFailedError, match="Input/output error"):
                await changing
            monkeypatch.undo()
            with pytest.raises(StoreFailedError, match="Input/output error"):
                await ours.send(b"never")
            await settle()
            assert sent == []


@virtual
async def test_work_that_waited_for_a_broken_disk_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is told once, and goes on: it can ask what it has, and close the agent."""
    async with durable_parties(tmp_path) as (alice, bob, ours, theirs):
        other, _ = await connect(alice, bob)
        await settle()

        def broken(_: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(sqlite, "_datasync", broken)
        work = (ours.send(b"lost"), other.send(b"lost too"), other.switch())
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreFailedError] * 3
        told = await alice.next_of(AgentFailed)
        assert (told.error.word, told.error.retried) == ("CRITICAL", False)
        assert "Input/output error" in str(told.error)
        monkeypatch.undo()
        await theirs.send(b"cannot be stored")
        with recorded(alice) as sent, pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await alice.next_of(AgentFailed)
        assert not [call for call in sent if isinstance(call.command, ACK)], "its router keeps it"
        assert [event for event in alice.seen if isinstance(event, AgentFailed | Failed)] == [told]
        assert not alice.rt.commands.tasks
        assert not alice.rt.delivery.tasks
        assert {conn.id for conn in alice.agent.connections()} == {ours.id, other.id}
