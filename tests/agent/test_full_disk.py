"""A store that takes nothing for a moment delays an agent's work, and ends none of it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from blindpost.agent import (
    AgentFailed,
    Connected,
    Connection,
    ContactRequested,
    Direction,
    Event,
    Failed,
    Joined,
    RatchetSync,
    ReceiptsReceived,
    Received,
    SendFailed,
    Sent,
    StoreFailedError,
    Switched,
    SwitchPhase,
    SyncState,
)
from blindpost.agent.store import database
from blindpost.agent.store.remembering import RememberingConnection
from blindpost.agent.work.commands import JOIN
from blindpost.agent.work.suspension import Operation
from blindpost.store.sqlite import SqliteStore
from blindpost.testing import Link, Peer, World, virtual
from blindpost.wire.smp.commands import SEND
from tests.support.agent.network import commands_sent

T = TypeVar("T")

FULL_S = 30.0


class Disk:
    """Refuses so many of the next commits of one agent, or all for a while after some that still fit."""

    def __init__(self, peer: Peer, room: int | None = None) -> None:
        self.full_for = 0
        self.refused = 0
        self._room = room
        self._until_s: float | None = None
        self._file: SqliteStore = peer.agent._ground.store._file
        self._commit = self._file.commit
        self._file.commit = self.commit  # type: ignore[method-assign]

    def fill(self, seconds: float) -> None:
        """Refuse everything for so long from now on."""
        self._room, self._until_s = 0, asyncio.get_running_loop().time() + seconds

    def _is_full(self) -> bool:
        if self.full_for:
            self.full_for -= 1
            return True
        if self._room is None:
            return False
        if self._room:
            self._room -= 1
            return False
        now = asyncio.get_running_loop().time()
        self._until_s = self._until_s or now + FULL_S
        return now < self._until_s

    def commit(self) -> None:
        if self._is_full():
            self.refused += 1
            self._file.rollback()
            raise StoreFailedError("the disk is full")
        self._commit()


@pytest.mark.parametrize("commits", [1, 2, 3, 5])
@virtual
async def test_a_message_is_delivered_although_its_retries_could_not_be_stored(
    world: World, commits: int
) -> None:
    alice, bob = await world.pair()
    disk = Disk(alice)
    async with world.router.down():
        await alice.conn.send(b"late")
        await asyncio.sleep(1)
        disk.full_for = commits
        await asyncio.sleep(300)
        assert disk.refused == commits
    received = await bob.expect(Received)
    assert received.msg.body == b"late"


@virtual
async def test_periodic_work_goes_on(world: World) -> None:
    """The first cleanup meets a full disk; the next one must happen."""
    alice, _ = await world.pair()
    disk = Disk(alice)
    disk.full_for = 1
    await asyncio.sleep(60)
    assert disk.refused == 1
    disk.full_for = 1
    await asyncio.sleep(400)
    assert disk.refused == 2


@virtual
async def test_what_a_program_asks_for_while_the_disk_is_full_did_not_happen(world: World) -> None:
    alice, bob = await world.pair()
    disk = Disk(alice)
    disk.full_for = 1
    with pytest.raises(StoreFailedError, match="the disk is full"):
        await alice.conn.send(b"one")
    assert not alice.agent.is_broken
    await alice.conn.send(b"two")
    assert (await bob.expect(Received)).msg.body == b"two"


@virtual
async def test_a_program_ends_although_what_was_done_cannot_be_noted(world: World) -> None:
    """Whether it asks only how far it is, or closes when that is done; and it can be opened again."""
    alice, bob = await world.pair()
    await alice.conn.send(b"first")
    first = (await bob.expect(Received)).msg
    Disk(bob, room=1)
    await first.ack()
    assert not await bob.agent.flush(600)
    await alice.conn.send(b"second")
    await bob.agent.close(drain_s=600)
    again = await world.agent("bob")
    assert (await again.expect(Received)).msg.body == b"second"


@pytest.mark.parametrize("kept_by", ["the disk", "suspension"])
@virtual
async def test_a_program_ends_although_a_message_cannot_be_taken(world: World, kept_by: str) -> None:
    """Its router has it still."""
    alice, bob = await world.pair()
    if kept_by == "the disk":
        Disk(bob).fill(7200)
    else:
        bob.agent._ground.operations._kinds[Operation.RECEIVING].open.clear()
    await alice.conn.send(b"x")
    await asyncio.sleep(5)
    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(bob.agent.close(), 600)
    assert asyncio.get_running_loop().time() - began < 1
    again = await world.agent("bob")
    assert (await again.expect(Received)).msg.body == b"x"


@virtual
async def test_what_could_not_be_begun_is_not_waited_for(world: World) -> None:
    """Nothing is kept for a connection that was not made."""
    alice, bob = await world.pair()
    link = await alice.agent.address()
    await bob.agent.join(str(link))
    request = (await alice.expect(ContactRequested)).request
    disk = Disk(alice)
    disk.fill(60)
    for attempt in (alice.agent.invite_later, request.accept, partial(alice.agent.join, str(link))):
        with pytest.raises(StoreFailedError):
            await attempt()
    assert not alice.agent._ground.stream._held


@pytest.mark.parametrize("count", [1, 2, 7])
@virtual
async def test_what_a_router_took_is_not_sent_again_because_the_disk_is_full(
    world: World, count: int
) -> None:
    """The peer's queue would be full of copies in an hour or two."""
    alice, bob = await world.pair()
    bodies = [b"%d" % number for number in range(count)]
    async with world.router.down():
        for body in bodies:
            await alice.conn.send(body)
        await asyncio.sleep(1)
        disk = Disk(alice)
        disk.fill(1200)
    with commands_sent() as sent:
        for body in bodies:
            received = await bob.expect(Received)
            assert received.msg.body == body
            await received.msg.ack()
        await asyncio.sleep(1800)
        await alice.conn.send(b"after it")
        assert (await bob.expect(Received)).msg.body == b"after it"
    assert disk.refused > 10
    assert sum(isinstance(call.command, SEND) for call in sent) == count + 1
    told = [event.msg_id for event in await everything(alice) if isinstance(event, Sent)]
    assert len(told) == count + 1, "and all of it was told at last"


@virtual
async def test_what_was_taken_and_stored_is_forgotten(world: World) -> None:
    """However long the worker of a queue has something to do."""
    alice, bob = await world.pair()
    count, known = 60, []
    async with world.router.down():
        for number in range(count):
            await alice.conn.send(b"%d" % number)
        world.network.to_caller = Link(delay_s=(0.02, 0.02))
    (worker,) = alice.agent._core.delivery._workers.values()
    for _ in range(count):
        received = await bob.expect(Received)
        known.append(len(worker._taken))
        await received.msg.ack()
    assert max(known) < 10
    await asyncio.sleep(10)
    assert not worker._taken


async def everything(peer: Peer) -> list[Event]:
    """What it tells within a minute."""
    found = list(peer.seen)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while True:
                found.append(await peer.next())
    return found


@pytest.mark.parametrize("commits", range(8))
@virtual
async def test_a_request_is_not_sent_again_because_the_disk_is_full(world: World, commits: int) -> None:
    alice, peer = await world.agent("alice"), await world.agent("bob")
    link = await alice.agent.address()
    disk, bob = Disk(peer, commits), Program(peer)
    with commands_sent() as sent:
        bob.conn = await bob.ask(partial(bob.agent.join, str(link)))
        await bob.until(lambda event: isinstance(event, Joined))
        await asyncio.sleep(600)
    assert disk.refused
    assert sum(isinstance(call.command, SEND) for call in sent) == 1
    assert bob.failures == []
    joining = cast(Any, peer.agent._core.commands._handlers[JOIN]).__self__
    assert not joining._taken, "forgotten once it is stored"
    await bob.ended()


class Program:
    """Asks its agent until that has room, acknowledges what comes, and keeps what it is told."""

    def __init__(self, peer: Peer) -> None:
        self.agent = peer.agent
        self.heard: list[bytes] = []
        self.told: list[Event] = []
        self.conn: Connection
        self.listening = asyncio.create_task(self._listen())

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except StoreFailedError:
                await asyncio.sleep(3)

    async def say(self, *bodies: bytes) -> None:
        for body in bodies:
            await self.ask(partial(self.conn.send, body))

    async def _listen(self) -> None:
        async for event in self.agent.events():
            self.told.append(event)
            if isinstance(event, Received):
                receipt = b"" if len(self.heard) % 2 else None
                await self.ask(partial(event.msg.ack, receipt))
                self.heard.append(event.msg.body)
            elif isinstance(event, ReceiptsReceived):
                await self.ask(event.msg.ack)

    async def ended(self) -> None:
        self.listening.cancel()
        await asyncio.wait([self.listening])

    async def until(self, happened: Callable[[Event], bool]) -> None:
        """Something was told by now, or is within an hour."""
        for _ in range(3600):
            if any(happened(event) for event in self.told):
                return
            await asyncio.sleep(1)
        raise AssertionError(f"it was told only {self.told}")

    @property
    def failures(self) -> list[Event]:
        """What it was told of but the disk."""
        failed = (event for event in self.told if isinstance(event, Failed | AgentFailed | SendFailed))
        return [event for event in failed if "the disk is full" not in str(event.error)]


def moved(direction: Direction) -> Callable[[Event], bool]:
    return lambda event: (
        isinstance(event, Switched) and event.direction is direction and event.phase is SwitchPhase.COMPLETED
    )


def in_step(event: Event) -> bool:
    return isinstance(event, RatchetSync) and event.state is SyncState.OK


async def whole_life(alice: Program, bob: Program) -> None:
    """Made, used, moved to another queue, its ratchets renewed and used again."""
    link = await alice.ask(alice.agent.invite)
    alice.conn, bob.conn = link.conn, await bob.ask(partial(bob.agent.join, str(link)))
    for one in (alice, bob):
        await one.until(lambda event: isinstance(event, Connected))
    await alice.say(b"a1", b"a2")
    await bob.say(b"b1", b"b2")
    await bob.ask(bob.conn.switch)
    await alice.say(b"a3")
    await bob.say(b"b3")
    await alice.until(moved(Direction.SND))
    await bob.until(moved(Direction.RCV))
    await alice.ask(partial(alice.conn.synchronize, force=True))
    for one in (alice, bob):
        await one.until(in_step)
    await alice.say(b"a4")
    await bob.say(b"b4")
    await asyncio.sleep(600)
    assert (alice.heard, bob.heard) == ([b"b1", b"b2", b"b3", b"b4"], [b"a1", b"a2", b"a3", b"a4"])
    assert alice.failures + bob.failures == []
    for one in (alice, bob):
        await one.ended()


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("commits", range(0, 42, 6))
@virtual
async def test_a_whole_life_of_a_connection_goes_on_after_half_a_minute_without_room(
    world: World, commits: int, who: int
) -> None:
    peers = await world.agent("alice"), await world.agent("bob")
    disk = Disk(peers[who], commits)
    with commands_sent() as sent:
        await whole_life(*(Program(peer) for peer in peers))
    assert disk.refused
    assert len(sent) < 150, "nothing is repeated without a pause"


class Scratched(sqlite3.Connection):
    """A file of which every so many reads fail, once there is such a number."""

    every = 0
    reads = 0

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        if self.every and statement.lstrip().startswith("SELECT"):
            self.reads += 1
            if self.reads % self.every == 0:
                error = sqlite3.OperationalError("the disk is full of scratches")
                error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR, "SQLITE_IOERR"
                raise error
        return super().execute(statement, values)


class Unreliable(RememberingConnection, Scratched):
    """The same as an agent uses it."""


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("every", [20, 23, 27, 31, 37, 45, 60])
@virtual
async def test_a_whole_life_of_a_connection_goes_on_although_reads_fail(
    world: World, monkeypatch: pytest.MonkeyPatch, every: int, who: int
) -> None:
    monkeypatch.setattr(database, "RememberingConnection", Unreliable)
    peers = await world.agent("alice"), await world.agent("bob")
    sql = cast(Unreliable, peers[who].agent._ground.store.reading.sql)
    sql.every = every
    await whole_life(*(Program(peer) for peer in peers))
    assert sql.reads > every
    sql.every = 0
