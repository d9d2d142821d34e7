"""Stored commands and who runs them: in order, each once, tried again or given up."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import AgentError, AgentFailed, Event, Failed, JoinDelayed, StoreFailedError
from blindpost.agent.errors import BrokerError, SmpError
from blindpost.agent.store import commands, connections, deletion
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.store.database import AgentStore
from blindpost.agent.work.commands import JOIN, CommandWorkers
from blindpost.agent.work.ground import Ground
from blindpost.client.errors import RefusedError, ResponseTimeoutError
from blindpost.store.contract import Durability
from blindpost.testing import virtual
from blindpost.transport.errors import UnknownCaError
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.smp.errors import Code
from tests.support.agent.desk import Desk
from tests.support.agent.rows import CONN, ROUTER

ONE, TWO, ITSELF = "ONE", "TWO", "ITSELF"
KEY = (CONN, ROUTER)


def away() -> AgentError:
    return BrokerError(ROUTER, ResponseTimeoutError())


def impostor() -> AgentError:
    return BrokerError(ROUTER, UnknownCaError("another one answers"))


def refusal() -> AgentError:
    return SmpError(ROUTER, RefusedError(Code.AUTH))


class Running(Desk):
    """A connection, its commands, and what their handlers are told to do."""

    def __init__(self, store: AgentStore) -> None:
        super().__init__(store)
        self.ran: list[tuple[str, bytes]] = []
        self.at_s: list[float] = []
        self.answers: deque[Exception | None] = deque()
        self.open = asyncio.Event()
        self.open.set()
        self.told: list[Event] = []
        self.deleted: list[str] = []
        self.workers = self.begin()

    def new_ground(self) -> Ground:
        ground = super().new_ground()
        ground.work.deletions.listen(lambda conn_id: self.deleted.append(conn_id))
        ground.stream.put = lambda event, row=None: self.told.append(event)  # type: ignore[method-assign]
        return ground

    def start_again(self) -> None:
        """The agent has ended, and is opened again."""
        self.ground = self.new_ground()
        self.workers = self.begin()
        self.workers.resume()

    def begin(self) -> CommandWorkers:
        handlers = {ONE: self._handle, TWO: self._handle, JOIN: self._handle, ITSELF: self._handle_itself}
        return CommandWorkers(self.ground, handlers, frozenset({ITSELF}))

    async def _handle(self, command: StoredCommand) -> None:
        self.ran.append((command.tag, command.content))
        self.at_s.append(asyncio.get_running_loop().time())
        assert self.ground._locks, "alone with the connection"
        await self.open.wait()
        answer = self.answers.popleft() if self.answers else None
        if answer is not None:
            raise answer

    async def _handle_itself(self, command: StoredCommand) -> None:
        await self._handle(command)
        with self.change() as tx:
            commands.delete(tx, command)

    def store_one(self, tag: str = ONE, content: bytes = b"", server: Server | None = ROUTER) -> None:
        with self.change() as tx:
            tx.command(CONN, server, tag, content)

    @property
    def left(self) -> list[str]:
        query = "SELECT command_tag FROM commands WHERE failed = 0 ORDER BY command_id"
        return [tag for (tag,) in self.store.reading.sql.execute(query)]

    @property
    def pauses(self) -> list[float]:
        return [round(later - before, 3) for before, later in itertools.pairwise(self.at_s)]

    @property
    def is_idle(self) -> bool:
        return not self.workers.tasks and not self.workers._again

    def errors(self) -> list[str]:
        """Of the connection, as they are told."""
        return [str(event.error) for event in self.events if isinstance(event, Failed)]


@pytest.fixture
def running(store: AgentStore) -> Running:
    return Running(store)


# In order, each once


@virtual
async def test_a_command_is_run_once_and_gone(running: Running) -> None:
    running.store_one(content=b"what")
    await asyncio.sleep(60)
    assert (running.ran, running.left, running.told) == ([(ONE, b"what")], [], [])
    assert running.is_idle


@virtual
async def test_in_the_order_in_which_they_were_stored(running: Running) -> None:
    running.open.clear()
    running.store_one(ONE, b"1")
    running.store_one(TWO, b"2")
    await asyncio.sleep(60)
    assert len(running.ran) == 1, "one after the other"
    running.store_one(ONE, b"3")
    running.open.set()
    await asyncio.sleep(60)
    assert running.ran == [(ONE, b"1"), (TWO, b"2"), (ONE, b"3")]
    assert (running.left, running.is_idle) == ([], True)


@virtual
async def test_also_if_the_clock_was_set_back_meanwhile(running: Running) -> None:
    running.open.clear()
    for number in range(3):
        with running.change() as tx:
            tx.now -= 3600 * number
            tx.command(CONN, ROUTER, ONE, b"%d" % number)
        await asyncio.sleep(1)
    running.open.set()
    await asyncio.sleep(60)
    assert [content for _, content in running.ran] == [b"0", b"1", b"2"]
    assert (running.left, running.is_idle) == ([], True)


@virtual
async def test_one_that_comes_while_the_last_runs(running: Running) -> None:
    running.open.clear()
    running.store_one(content=b"1")
    await asyncio.sleep(1)
    running.store_one(content=b"2")
    running.open.set()
    await asyncio.sleep(1)
    assert ([content for _, content in running.ran], running.is_idle) == ([b"1", b"2"], True)


@virtual
async def test_two_that_are_stored_together(running: Running) -> None:
    with running.change() as tx:
        for content in (b"1", b"2"):
            tx.command(CONN, ROUTER, ONE, content)
    await asyncio.sleep(60)
    assert ([content for _, content in running.ran], running.left) == ([b"1", b"2"], [])


@virtual
async def test_a_command_that_ends_itself(running: Running) -> None:
    running.store_one(ITSELF, b"1")
    running.store_one(ITSELF, b"2")
    running.store_one(ONE, b"3")
    await asyncio.sleep(60)
    assert [content for _, content in running.ran] == [b"1", b"2", b"3"]
    assert running.left == []


@virtual
async def test_a_command_that_should_end_itself_is_not_ended_by_others(running: Running) -> None:
    handled: list[int] = []

    async def leaves(command: StoredCommand) -> None:
        handled.append(command.command_id)

    running.workers._handlers = {ITSELF: leaves}
    running.store_one(ITSELF)
    await asyncio.sleep(60)
    assert (len(handled), running.left, running.is_idle) == (1, [ITSELF], True)


@virtual
async def test_a_command_that_went_to_another_router_is_not_deleted(running: Running) -> None:
    """Its handler gave it to another worker."""
    moved: list[int] = []

    async def moves(command: StoredCommand) -> None:
        moved.append(command.command_id)
        if command.server == ROUTER:
            with running.change() as tx:
                tx.sql.execute("UPDATE commands SET host = NULL, port = NULL, server_key_hash = NULL")
                tx.wake_commands(CONN, None)

    running.workers._handlers = {ONE: moves}
    running.store_one()
    await asyncio.sleep(60)
    assert (len(moved), running.left, running.is_idle) == (2, [], True)


@virtual
async def test_commands_of_different_routers_run_side_by_side(running: Running) -> None:
    running.open.clear()
    running.store_one(content=b"1")
    running.store_one(content=b"2", server=None)
    await asyncio.sleep(1)
    assert len(running.workers.tasks) == 2
    running.open.set()
    await asyncio.sleep(1)
    assert (len(running.ran), running.left) == (2, [])


@virtual
async def test_what_waits_at_the_start(running: Running) -> None:
    running.open.clear()
    running.store_one(content=b"1")
    await asyncio.sleep(1)
    running.store_one(content=b"2")
    await running.ground.stop()
    assert running.is_idle
    running.open.set()
    running.start_again()
    await asyncio.sleep(1)
    assert ([content for _, content in running.ran], running.left) == ([b"1", b"1", b"2"], [])


@virtual
async def test_nothing_waits(running: Running) -> None:
    running.workers.wake(KEY)
    await asyncio.sleep(1)
    assert (running.ran, running.told, running.is_idle) == ([], [], True)


@virtual
async def test_nothing_is_run_while_the_agent_is_suspended_or_busy_with_the_connection(
    running: Running,
) -> None:
    await running.ground.operations.suspend(1)
    running.store_one()
    await asyncio.sleep(60)
    assert running.ran == []
    async with running.ground.locked(CONN):
        running.ground.operations.resume()
        await asyncio.sleep(60)
        assert running.ran == []
    await asyncio.sleep(1)
    assert len(running.ran) == 1


# Tried again


@virtual
async def test_what_fails_for_now_is_tried_again(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    running.answers.extend(away() for _ in range(7))
    running.store_one(content=b"1")
    running.store_one(content=b"2")
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(60)
    assert running.pauses == [2, 2, 2, 2, 2, 3, 4.5, 0]
    assert (running.left, running.told) == ([], [])
    (record,) = caplog.records
    assert record.getMessage() == f"ONE of connection {CONN} waits: {away()}", "logged once"


@virtual
async def test_a_join_that_waits_is_told(running: Running) -> None:
    running.answers.extend([away(), away(), None])
    running.store_one(JOIN)
    await asyncio.sleep(60)
    (event,) = running.told
    assert isinstance(event, JoinDelayed)
    assert (event.conn.id, event.error.word) == (CONN, "BROKER TIMEOUT")
    assert (running.left, running.deleted) == ([], [])


# Given up


@virtual
async def test_what_fails_for_good_is_told_and_the_next_is_run(running: Running) -> None:
    running.answers.append(refusal())
    running.store_one(content=b"1")
    running.store_one(content=b"2")
    await asyncio.sleep(60)
    assert ([content for _, content in running.ran], running.left) == ([b"1", b"2"], [])
    assert (running.errors(), running.deleted) == ([str(refusal())], [])


@virtual
async def test_a_join_that_fails_for_good_is_no_connection(running: Running) -> None:
    running.answers.append(refusal())
    running.store_one(JOIN)
    await asyncio.sleep(60)
    assert (running.errors(), running.deleted, running.left) == ([str(refusal())], [CONN], [])
    assert connections.find(running.store.reading, CONN) is None


@pytest.mark.parametrize("tag", [JOIN, ONE])
@virtual
async def test_a_router_with_another_identity(tmp_path: Path, tag: str) -> None:
    """A link to it leads nowhere; all else waits until the right one is back."""
    with closing(AgentStore.open(tmp_path / "b.db", durability=Durability.OS)) as store:
        running = Running(store)
        error = impostor()
        error.kind = away().kind
        running.answers.append(error)
        running.store_one(tag)
        await asyncio.sleep(60)
        gives_up = tag == JOIN
        assert (len(running.ran), bool(running.errors())) == ((1, True) if gives_up else (2, False))
        assert running.left == []


@virtual
async def test_a_join_that_waits_for_other_reasons_is_not_given_up(running: Running) -> None:
    other = AgentError("later")
    other.kind, other.family = away().kind, "OTHER"  # type: ignore[misc]
    running.answers.append(other)
    running.store_one(JOIN)
    await asyncio.sleep(60)
    assert (len(running.ran), running.errors()) == (2, [])


@virtual
async def test_a_bug_is_told_and_the_next_is_run(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    running.answers.append(ValueError("a bug"))
    running.store_one(content=b"1")
    running.store_one(content=b"2")
    await asyncio.sleep(60)
    assert running.errors() == ["INTERNAL: ValueError('a bug')"]
    assert (len(running.ran), running.left) == (2, [])
    assert "a stored command failed" in caplog.text


@virtual
async def test_a_command_that_nobody_knows(running: Running) -> None:
    running.store_one("WHAT")
    running.store_one(content=b"2")
    await asyncio.sleep(60)
    assert running.errors() == ["INTERNAL: nobody runs commands of type WHAT"]
    assert (running.ran, running.left) == ([(ONE, b"2")], [])


@virtual
async def test_a_command_that_cannot_be_read_is_put_aside(running: Running) -> None:
    running.open.clear()
    for content in (b"1", b"2", b"3"):
        running.store_one(content=content)
    await asyncio.sleep(1)
    await running.ground.stop()
    running.ran.clear()
    reading = commands.next_command
    broken: list[Any] = []

    def unreadable(*args: Any) -> StoredCommand | None:
        if len(broken) < 1:
            broken.append(args)
            raise WireError("it cannot be opened")
        return reading(*args)

    running.open.set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "next_command", unreadable)
        running.start_again()
        await asyncio.sleep(60)
    assert running.errors() == ["INTERNAL: a stored command cannot be read: it cannot be opened"]
    assert ([content for _, content in running.ran], running.left) == ([b"2", b"3"], [])


# What has happened meanwhile


@virtual
async def test_a_connection_that_was_deleted_is_left_alone(running: Running) -> None:
    running.open.clear()
    running.answers.append(away())
    running.store_one()
    await asyncio.sleep(1)
    with running.change() as tx:
        deletion.mark(tx, CONN)
    running.open.set()
    await asyncio.sleep(60)
    assert (len(running.ran), running.events, running.is_idle) == (1, [], True)


@virtual
async def test_a_connection_that_is_deleted_before_it_is_its_turn(running: Running) -> None:
    async with running.ground.locked(CONN):
        running.store_one()
        await asyncio.sleep(1)
        with running.change() as tx:
            deletion.mark(tx, CONN)
    await asyncio.sleep(60)
    assert (running.ran, running.events, running.is_idle) == ([], [], True)


@virtual
async def test_a_connection_that_was_deleted_before(running: Running) -> None:
    with running.change() as tx:
        deletion.mark(tx, CONN)
        tx.command(CONN, ROUTER, ONE)
    await asyncio.sleep(60)
    assert (running.ran, running.events, running.is_idle) == ([], [], True)


# A disk without room


class Disk:
    """Refuses the commits whose numbers are named."""

    def __init__(self, store: AgentStore, *refused: int) -> None:
        self.commits = 0
        self._file, self._refused = store._file, refused
        self._commit = self._file.commit
        self._file.commit = self.commit  # type: ignore[method-assign]

    def commit(self) -> None:
        self.commits += 1
        if self.commits in self._refused:
            self._file.rollback()
            raise StoreFailedError("the disk is full")
        self._commit()


@virtual
async def test_a_disk_without_room_delays_what_follows(running: Running) -> None:
    running.open.clear()
    running.store_one(content=b"1")
    await asyncio.sleep(1)
    Disk(running.store, 1, 2)
    running.open.set()
    await asyncio.sleep(60)
    assert running.pauses == [3, 2], "it is run again, after a pause"
    assert [type(event) for event in running.told] == [Failed, Failed]
    assert {str(event.error) for event in running.told if isinstance(event, Failed)} == {
        "CRITICAL: the disk is full"
    }
    assert (running.left, running.is_idle) == ([], True)


@virtual
async def test_what_is_done_is_not_done_again_since_the_disk_could_not_be_read(running: Running) -> None:
    async def ends(command: StoredCommand) -> None:
        await running._handle_itself(command)
        if len(running.ran) == 1:
            raise StoreFailedError("disk I/O error")

    running.workers._handlers = {ONE: ends}
    running.store_one(content=b"1")
    running.store_one(content=b"2")
    await asyncio.sleep(60)
    assert running.ran == [(ONE, b"1"), (ONE, b"2")]
    assert (running.left, running.is_idle) == ([], True)


@virtual
async def test_a_broken_store_ends_its_work(running: Running) -> None:
    running.open.clear()
    running.store_one()
    await asyncio.sleep(1)
    running.store._break(StoreFailedError("the log cannot be synced"))
    assert [type(event) for event in running.told] == [AgentFailed]
    running.open.set()
    await asyncio.sleep(600)
    assert (len(running.ran), len(running.told), running.is_idle) == (1, 1, True)


@virtual
async def test_a_command_is_not_run_before_it_is_durable(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it was taken back it is looked at again, after a pause that grows."""
    is_durable, asked = running.store.is_durable, []

    async def taken_back(name: Any = None) -> bool:
        asked.append(asyncio.get_running_loop().time())
        return len(asked) > 7 and await is_durable(name)

    monkeypatch.setattr(running.store, "is_durable", taken_back)
    running.store_one()
    await asyncio.sleep(60)
    pauses = [round(later - before, 3) for before, later in itertools.pairwise(asked)]
    assert pauses == [2, 2, 2, 2, 2, 3, 4.5]
    assert (len(running.ran), running.left) == (1, [])
