"""Messages that come one after the other: one commit and one sync each, and nothing is lost in between."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blindpost.agent import AgentFailed, Connection, Failed, MsgOk, ReceiptsReceived, Received
from blindpost.agent.errors import ConnError
from blindpost.agent.messages import flows
from blindpost.agent.messages.acking import Acks
from blindpost.agent.messages.flows import Flow, Flows
from blindpost.agent.messages.retelling import Retelling
from blindpost.agent.routers.sessions import Session
from blindpost.agent.store import deletion, intake, messages, queues
from blindpost.agent.store.database import AgentStore, Db
from blindpost.agent.store.messages import RcvMessage
from blindpost.agent.work.suspension import Operation
from blindpost.client.calls import Call, Failure
from blindpost.client.errors import ResponseTimeoutError
from blindpost.client.inflight import Awaited
from blindpost.client.smp import SmpClient
from blindpost.engine.loop import StoreFailedError
from blindpost.store import sqlite
from blindpost.store.contract import Durability
from blindpost.store.sqlite import SqliteStore
from blindpost.testing import Link, Network
from blindpost.wire.smp.commands import ACK, SEND, Command
from blindpost.wire.smp.responses import MSG, OK, Response
from tests.support.agent.agents import Party, connect, on_network, party, quick_config, recorded, two_parties
from tests.support.agent.flowing import content, nothing_for, received, right, waiting
from tests.support.client.scripted_router import settle, virtual


@pytest.fixture(autouse=True)
def _one_is_a_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message that comes at once is enough; how many it takes is told below."""
    monkeypatch.setattr(flows, "SEEN_MIN", 1)


@contextmanager
def counted(of: Party, name: str) -> Iterator[list[None]]:
    """Each call of this method of a party's file."""
    seen: list[None] = []
    original = getattr(SqliteStore, name)

    def counting(file: SqliteStore) -> None:
        if file is of.rt.ground.store._file:
            seen.append(None)
        original(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, name, counting)
        yield seen


@contextmanager
def counted_as_they_came() -> Iterator[list[None]]:
    """Each sync of messages that are not opened yet."""
    seen: list[None] = []

    def counting(descriptor: int) -> None:
        seen.append(None)
        sqlite.datasync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "datasync", counting)
        yield seen


@contextmanager
def stopped(before: int, *, heard: bool) -> Iterator[None]:
    """Acknowledgements go through so often; then a router says nothing any more, though it may have heard."""
    original, left = SmpClient.send_many, before

    async def send_many(client: SmpClient, calls: Iterable[Call[Command]]) -> list[Response | Failure]:
        nonlocal left
        listed = list(calls)
        if isinstance(listed[0].command, ACK):
            left -= 1
            if left < 0:
                if heard:
                    await original(client, listed)
                await asyncio.Event().wait()
        return await original(client, listed)

    original_ready, original_answer = SmpClient.send_ready, SmpClient.answer
    silent: list[Awaited[Command, Response]] = []

    def send_ready(client: SmpClient, ready: Awaited[Command, Response]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            silent.append(ready)
        if left >= 0 or heard:
            original_ready(client, ready)

    async def answer(client: SmpClient, ready: Awaited[Command, Response]) -> Response | Failure:
        if ready in silent:
            await asyncio.Event().wait()
        return await original_answer(client, ready)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmpClient, "send_many", send_many)
        patch.setattr(SmpClient, "send_ready", send_ready)
        patch.setattr(SmpClient, "answer", answer)
        yield


@contextmanager
def stopped_workers() -> Iterator[None]:
    """No worker tells a router of an acknowledgement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Acks, "_send_ack", lambda *_: asyncio.Event().wait())
        yield


@contextmanager
def full_disk() -> Iterator[None]:
    """No commit comes about."""

    def commit(file: SqliteStore) -> None:
        file.rollback()
        raise file.failed(sqlite3.OperationalError("the disk is full"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "commit", commit)
        yield


@contextmanager
def broken_reads(count: int) -> Iterator[None]:
    """The disk cannot read a received message so often."""
    original, left = messages.find_rcv, count

    def find_rcv(db: Db, conn_id: str, internal_id: int) -> RcvMessage | None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise StoreFailedError("the disk cannot be read")
        return original(db, conn_id, internal_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "find_rcv", find_rcv)
        yield


class HeldDisk:
    """A disk that makes nothing durable until it is let go."""

    def __init__(self, store: AgentStore) -> None:
        self._places = (store, "_begin_sync"), (store.intake, "_sync")
        self._begin = [getattr(*place) for place in self._places]
        self.asked = 0
        for owner, name in self._places:
            setattr(owner, name, self._hold)

    def _hold(self) -> None:
        self.asked += 1

    def let_go(self) -> None:
        for (owner, name), begin in zip(self._places, self._begin, strict=True):
            setattr(owner, name, begin)
            begin()


def half_a_part(store: AgentStore) -> None:
    """A part that fails after it changed something."""
    with store.part(seldom=True):
        store.reading.sql.execute("INSERT INTO settings (name, value) VALUES ('half', x'01')")
        raise LookupError


def in_flow(of: Party, conn: Connection) -> None:
    """As if a router had just answered an acknowledgement with the next message."""
    of.rt._calls._flows._flow.acknowledged(conn.id)
    of.rt._calls._flows._flow.answered(conn.id, MSG(b"id", b"body"), 0.0)


def killed(folder: Path, at: Path) -> None:
    """What `kill -9` leaves of an agent, elsewhere: all that was committed. The file was not copied, for it
    does not know where it was."""
    for left in folder.glob("b.db*"):
        shutil.copy(left, at.with_name(left.name.replace("b.db", at.name)))
    with contextlib.closing(sqlite3.connect(at)) as file, file:
        file.execute("DELETE FROM settings WHERE name LIKE 'life%'")


@virtual
async def test_a_message_is_one_commit_and_one_sync(tmp_path: Path) -> None:
    """The first one tells that more come; the last one is acknowledged when nothing comes after it."""
    async with waiting(tmp_path, 22, durability=Durability.FULL) as (bob, _):
        assert [content(await bob.message())] == right(0)
        with counted(bob, "commit") as commits, counted(bob, "sync") as syncs, counted_as_they_came() as came:
            acking = []
            for number in range(1, 22):
                event = await bob.message(ack=False)
                assert content(event) == (b"%d" % number, MsgOk())
                acking.append(asyncio.create_task(event.msg.ack()))
            await asyncio.gather(*acking)
        assert len(commits) <= 23
        assert len(came) >= 19
        assert len(came) + len(syncs) <= 23


@virtual
async def test_one_after_the_other_they_are_one_commit_each_too(tmp_path: Path) -> None:
    async with waiting(tmp_path, 12, durability=Durability.FULL) as (bob, _):
        with counted(bob, "commit") as commits:
            assert [content(await bob.message()) for _ in range(12)] == right(*range(12))
        assert len(commits) <= 15


@virtual
async def test_only_messages_are_handed_over(tmp_path: Path) -> None:
    """The last acknowledgement is answered with OK, and ends the flow."""
    async with waiting(tmp_path, 3) as (bob, _):
        handed: list[object] = []
        hand_over = bob.rt.sessions.hand_over

        async def noting(session: Session, pushes: list[tuple[bytes, MSG]]) -> None:
            handed.extend(pushed for _, pushed in pushes)
            await hand_over(session, pushes)

        bob.rt.sessions.hand_over = noting  # type: ignore[method-assign, assignment]
        for _ in range(3):
            await bob.message()
        await settle()
        assert [type(one) for one in handed] == [MSG, MSG]
        assert not bob.rt._calls._flows._flow._seen


@pytest.mark.parametrize("silent", [False, True])
@virtual
async def test_a_message_is_taken_when_its_router_says_so(tmp_path: Path, silent: bool) -> None:
    """Who reads queues one message at a time goes on then."""
    async with waiting(tmp_path, 3) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        taken: list[bytes] = []
        bob.rt._calls._flows._reading.acknowledged = (  # type: ignore[method-assign]
            lambda queue, broker_id: taken.append(broker_id)
        )
        with stopped(0 if silent else 1, heard=False):
            await event.msg.ack()
            await settle()
            assert len(taken) == (0 if silent else 1)
            assert bool(bob.rt._calls._flows._flow._seen) is not silent


@pytest.mark.parametrize("at_once", [True, False], ids=["as it came", "stored"])
@virtual
async def test_the_router_is_told_when_the_message_is_durable(tmp_path: Path, at_once: bool) -> None:
    """That begins when the message comes, or is committed, not when the program is done with it."""
    async with waiting(tmp_path, 5, durability=Durability.FULL) as (bob, _):
        if not at_once:
            (tmp_path / "b.db-intake").mkdir()
        await bob.message()
        event = await bob.message(ack=False)
        disk = HeldDisk(bob.rt.ground.store)
        with recorded(bob) as sent:
            first = asyncio.create_task(event.msg.ack())
            event = await bob.message(ack=False)
            await settle()
            assert disk.asked
            assert bool(bob.rt.ground.store.intake._written) is at_once
            assert [type(call.command) for call in sent] == [ACK]
            second = asyncio.create_task(event.msg.ack())
            await settle()
            assert [type(call.command) for call in sent] == [ACK]
            disk.let_go()
            await asyncio.gather(first, second)
        assert [type(call.command) for call in sent] == [ACK, ACK]


@virtual
async def test_a_message_is_done_when_that_is_committed(tmp_path: Path) -> None:
    """The disk has noted it already, and the commit waits for the store's sync: it may yet fail."""
    async with waiting(tmp_path, 5, durability=Durability.FULL) as (bob, _):
        for _ in range(2):
            await bob.message()
        event = await bob.message(ack=False)
        store, loop = bob.rt.ground.store, asyncio.get_running_loop()
        run, held = loop.run_in_executor, list[asyncio.Future[None]]()

        def later(thread: Any, work: Callable[..., object], *given: object) -> Any:
            if thread is not store._thread:
                return run(thread, work, *given)
            held.append(loop.create_future())
            return held[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "run_in_executor", later)
            store._begin_sync()
            acking = asyncio.create_task(event.msg.ack())
            await settle()
            assert [entry.done for entry in store.intake._needed.values()][-1]
            assert not acking.done()
        held.pop().set_result(None)
        await acking
        assert content(await bob.message()) == (b"3", MsgOk())


@virtual
async def test_who_answers_what_it_acknowledges_needs_one_sync_for_both(tmp_path: Path) -> None:
    async with waiting(tmp_path, 6, durability=Durability.FULL) as (bob, _):
        await bob.message()
        for _ in range(3):
            event = await bob.message(ack=False)
            await settle()
            with counted(bob, "sync") as syncs:
                sending = asyncio.create_task(event.conn.send(b"answer"))
                await asyncio.gather(event.msg.ack(), sending)
            assert len(syncs) <= 2


@virtual
async def test_receipts_are_durable_before_a_router_is_told_too(tmp_path: Path) -> None:
    config = quick_config(durability=Durability.FULL)
    async with two_parties(tmp_path, config, config) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await settle()
        for _ in range(3):
            await ours.send(b"told of")
        got = [await bob.message(ack=False)]
        for _ in range(2):
            await got[-1].msg.ack(b"")
            got.append(await bob.message(ack=False))
        await got[-1].msg.ack(b"")
        first = await alice.next_of(ReceiptsReceived)
        in_flow(alice, ours)
        HeldDisk(alice.rt.ground.store)
        with recorded(alice) as sent:
            acking = asyncio.create_task(first.msg.ack())
            await settle()
            assert sent == []
            acking.cancel()


@virtual
async def test_who_waits_no_longer_has_acknowledged_at_once(tmp_path: Path) -> None:
    """Not when something else is stored, some time later."""
    async with waiting(tmp_path, 3, durability=Durability.FULL) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        with stopped(1, heard=False), recorded(bob) as sent:
            acking = asyncio.create_task(event.msg.ack())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            acking.cancel()
            now = asyncio.get_running_loop().time()
            await settle()
            assert sent
            assert asyncio.get_running_loop().time() == now


@virtual
async def test_an_acknowledgement_that_waits_for_its_router_is_the_workers(tmp_path: Path) -> None:
    """The program is done with it, and hears so if it acknowledges it once more."""
    async with waiting(tmp_path, 3) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        unheard: list[bytes] = []

        def away(_: SmpClient, ready: Awaited[Command, Response]) -> None:
            unheard.append(ready.entity_id)
            ready.settle(ResponseTimeoutError())

        with recorded(bob) as sent, pytest.MonkeyPatch.context() as patch:
            patch.setattr(SmpClient, "send_ready", away)
            await event.msg.ack()
            assert unheard
            await settle()
            assert [type(call.command) for call in sent] == [ACK]
            in_flow(bob, event.conn)
            with pytest.raises(ConnError, match="or it was acknowledged"):
                await event.msg.ack()
            await settle()
        assert [type(call.command) for call in sent] == [ACK]
        assert content(await bob.message()) == (b"2", MsgOk())


@virtual
async def test_what_its_router_does_not_have_any_more_is_shown_again(tmp_path: Path) -> None:
    """Killed when the router was told and nothing is stored of that."""
    network = Network()
    async with waiting(tmp_path, 5, network) as (bob, _):
        assert content(await bob.message()) == (b"0", MsgOk())
        event = await bob.message(ack=False)
        snapshot = tmp_path / "left.db"
        original = Flows._told

        async def told(self: Flows, *place: object) -> object:
            answer = await original(self, *place)  # type: ignore[arg-type]  # as they came
            assert isinstance(answer, MSG)
            killed(tmp_path, snapshot)
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Flows, "_told", told)
            await event.msg.ack()
        await bob.agent.close()
        async with party(snapshot, config=on_network(network)) as again:
            found = [content(await again.message()) for _ in range(4)]
            await settle()
            assert found == right(1, 2, 3, 4)
            assert not [event for event in again.seen if isinstance(event, Failed)]


@virtual
async def test_what_comes_after_it_waits_until_it_is_shown_again(tmp_path: Path) -> None:
    """Killed when its router was told, while more messages waited than the program is shown at once."""
    network = Network()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        conns = sorted([await connect(alice, bob) for _ in range(6)], key=lambda both: both[1].id)
        await settle()
        for ours, _ in conns[:-1]:
            await ours.send(b"of others")
            await bob.message(ack=False)
        for number in range(4):
            await conns[-1][0].send(b"%d" % number)
        await alice.agent.flush()
        await asyncio.sleep(1)
        await bob.message()
        event = await bob.message(ack=False)
        original = Flows._told

        async def told(self: Flows, *place: object) -> object:
            answer = await original(self, *place)  # type: ignore[arg-type]  # as they came
            killed(tmp_path, tmp_path / "left.db")
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Flows, "_told", told)
            await event.msg.ack()
        await bob.agent.close()
        few = on_network(network, quick_config(events_max=2))
        async with party(tmp_path / "left.db", config=few) as again:
            found: list[tuple[bytes, object]] = []
            while len(found) < 3:
                await asyncio.sleep(1)  # a busy program: what is not shown yet waits
                event = await again.message(ack=False)
                if event.conn.id == conns[-1][1].id:
                    found.append(content(event))
                    await event.msg.ack()
            assert found == right(1, 2, 3)


@pytest.mark.parametrize("shown", [False, True])
@virtual
async def test_it_is_shown_again_until_it_is_acknowledged(tmp_path: Path, shown: bool) -> None:
    """An agent that is closed in between, whether the program had seen the message or not, does not forget
    that nobody else has it."""
    network = Network()
    async with waiting(tmp_path, 4, network) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        original = Flows._told

        async def told(self: Flows, *place: object) -> object:
            answer = await original(self, *place)  # type: ignore[arg-type]  # as they came
            killed(tmp_path, tmp_path / "left.db")
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Flows, "_told", told)
            await event.msg.ack()
        await bob.agent.close()
        for _ in range(2):
            async with party(tmp_path / "left.db", config=on_network(network)) as again:
                if shown:
                    assert content(await received(again)) == (b"1", MsgOk())
        async with party(tmp_path / "left.db", config=on_network(network)) as again:
            assert [content(await again.message()) for _ in range(3)] == right(1, 2, 3)
        async with party(tmp_path / "left.db", config=on_network(network)) as again:
            assert not again.rt.ground.store.was_cut


@contextmanager
def before_it_leaves(of: Party, then: Callable[[], None]) -> Iterator[list[None]]:
    """Something happens when an acknowledgement of a flow is about to leave, and it never does."""
    seen: list[None] = []

    def send_ready(_: SmpClient, ready: Awaited[Command, Response]) -> None:
        assert isinstance(ready.call.command, ACK)
        if not seen:
            then()
        seen.append(None)
        ready.settle(ResponseTimeoutError())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmpClient, "send_ready", send_ready)
        yield seen


@pytest.mark.parametrize("turns", range(12))
@virtual
async def test_a_program_that_acknowledges_while_its_agent_is_closed_does_not_wait(
    tmp_path: Path, turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """And what it acknowledged is not shown again."""
    network = Network()
    async with waiting(tmp_path, 4, network, Durability.FULL) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        acking = asyncio.create_task(event.msg.ack())
        for _ in range(1 + turns):
            await asyncio.sleep(0)
        await bob.agent.close()
        await asyncio.wait_for(acking, 60)
        assert "failed" not in caplog.text
        async with party(tmp_path / "b.db", config=on_network(network)) as again:
            assert [content(await again.message()) for _ in range(2)] == right(2, 3)
            await nothing_for(again)


@virtual
async def test_nothing_leaves_an_agent_that_is_closed_while_the_disk_is_busy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, loop = Network(), asyncio.get_running_loop()
    async with waiting(tmp_path, 4, network, Durability.FULL) as (bob, _):
        await bob.message()
        with pytest.MonkeyPatch.context() as patch, recorded(bob) as sent:
            patch.setattr(loop, "run_in_executor", lambda *_: loop.create_future())
            event = await bob.message(ack=False)
            acking = asyncio.create_task(event.msg.ack())
            await settle()
            assert sent == []
            await bob.agent.close()
        await asyncio.wait_for(acking, 60)
        assert sent == []
        assert "failed" not in caplog.text
        async with party(tmp_path / "b.db", config=on_network(network)) as again:
            assert [content(await again.message()) for _ in range(2)] == right(2, 3)


@virtual
async def test_what_was_deleted_before_its_router_heard_of_it_is_known_when_it_comes_again(
    tmp_path: Path,
) -> None:
    """Killed in that moment. The program had acknowledged it."""
    network = Network()
    async with waiting(tmp_path, 4, network) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        snapshot = tmp_path / "left.db"

        def kill() -> None:
            bob.rt.ground.store.commit()
            killed(tmp_path, snapshot)

        with before_it_leaves(bob, kill) as tried, stopped_workers():
            await event.msg.ack()
            assert tried
        await bob.agent.close()
        async with party(snapshot, config=on_network(network)) as again:
            assert messages.unacknowledged(again.rt.ground.store.reading) == []
            assert [content(await again.message()) for _ in range(2)] == right(2, 3)
            await nothing_for(again)
            assert not [event for event in again.seen if isinstance(event, Failed)]


@pytest.mark.parametrize("waits", [True, False])
@virtual
async def test_what_was_taken_back_is_acknowledged_as_always(tmp_path: Path, waits: bool) -> None:
    """Another part of the same commit failed. A program that waits no longer has acknowledged it too."""
    network = Network()
    async with waiting(tmp_path, 4, network, Durability.FULL) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        store = bob.rt.ground.store
        acking: list[asyncio.Task[None]] = []

        def fail() -> None:
            assert messages.find_rcv(store.reading, event.conn.id, event.msg.id) is None
            if not waits:
                acking[0].cancel()
            with pytest.raises(LookupError):
                half_a_part(store)
            assert messages.find_rcv(store.reading, event.conn.id, event.msg.id) is not None

        with before_it_leaves(bob, fail) as tried, recorded(bob) as sent:
            acking.append(asyncio.create_task(event.msg.ack()))
            with contextlib.nullcontext() if waits else pytest.raises(asyncio.CancelledError):
                await acking[0]
            assert len(tried) == 1
            await settle()
            assert store._group is None, "it waits for no other change"
        assert [call.command.TAG for call in sent][:1] == [ACK.TAG]
        assert content(await bob.message()) == (b"2", MsgOk())
        assert messages.find_rcv(store.reading, event.conn.id, event.msg.id) is None


@virtual
async def test_a_full_disk_keeps_no_program_waiting_for_a_silent_router(tmp_path: Path) -> None:
    """And the router keeps what the program could not acknowledge."""
    async with waiting(tmp_path, 4) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        with recorded(bob) as sent:
            with full_disk(), before_it_leaves(bob, lambda: None), pytest.raises(StoreFailedError):
                await asyncio.wait_for(event.msg.ack(), 60)
            await asyncio.sleep(600)
            assert ACK not in [type(call.command) for call in sent]
        await event.msg.ack()
        assert (await received(bob)).msg.body == b"2"


@pytest.mark.parametrize("what", ["left", "gone", "busy"])
@virtual
async def test_what_is_to_be_done_first_is_done_first(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that we are leaving, no session, commands that wait: the acknowledgement is a command then."""
    async with waiting(tmp_path, 3) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        db, sessions = bob.rt.ground.store.reading, bob.rt.sessions
        (queue,) = queues.rcv_queues(db, event.conn.id)
        match what:
            case "left":
                left = SimpleNamespace(find_rcv_number=lambda *_: replace(queue, deleted=True))
                monkeypatch.setattr(flows, "queues", left)
            case "gone":
                monkeypatch.setattr(sessions, "current", lambda _: None)
            case _:
                monkeypatch.setattr(flows, "commands", SimpleNamespace(next_command=lambda *_: object()))
        with before_it_leaves(bob, lambda: None) as tried:
            await event.msg.ack()
            assert not tried
        monkeypatch.undo()
        assert content(await bob.message()) == (b"2", MsgOk())


@pytest.mark.parametrize("what", ["another session", "rest", "taken back"])
@virtual
async def test_what_happens_while_the_disk_is_busy_counts(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with waiting(tmp_path, 5, durability=Durability.FULL) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        store = bob.rt.ground.store
        disk = HeldDisk(store)
        first = asyncio.create_task(event.msg.ack())
        event = await bob.message(ack=False)
        with before_it_leaves(bob, lambda: None) as tried:
            second = asyncio.create_task(event.msg.ack())
            await settle()
            match what:
                case "another session":
                    monkeypatch.setattr(bob.rt.sessions, "is_current", lambda _: False)
                case "rest":
                    bob.rt.ground.operations._kinds[Operation.SENDING].open.clear()
                case _:
                    with pytest.raises(LookupError):
                        half_a_part(store)
            disk.let_go()
            await asyncio.gather(first, second)
            assert not tried
        monkeypatch.undo()
        bob.rt.ground.operations._kinds[Operation.SENDING].open.set()
        assert content(await bob.message()) == (b"3", MsgOk())


@virtual
async def test_only_what_is_not_stored_is_unsure(tmp_path: Path) -> None:
    async with waiting(tmp_path, 4) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        store = bob.rt.ground.store
        with before_it_leaves(bob, store.commit) as tried, recorded(bob) as sent:
            await event.msg.ack()
            assert tried
            assert store.unsure == set()
            await settle()
            assert [type(call.command) for call in sent] == [ACK, ACK], "its router is told as always"


@virtual
async def test_what_is_committed_when_its_router_is_told_is_not_unsure(tmp_path: Path) -> None:
    async with waiting(tmp_path, 4, durability=Durability.FULL) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        store, made_ready = bob.rt.ground.store, Flows._made_ready

        def and_committed(flows: Flows, conn_id: str, msg_id: int) -> object:
            ready = made_ready(flows, conn_id, msg_id)
            store._write()
            return ready

        unsure: list[bool] = []
        with before_it_leaves(bob, lambda: unsure.append(bool(store.unsure))) as tried:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Flows, "_made_ready", and_committed)
                await event.msg.ack()
            assert tried
        assert unsure == [False]


@virtual
async def test_a_router_is_told_when_the_disk_has_room_again(tmp_path: Path) -> None:
    """The message was deleted, and the router said nothing."""
    async with waiting(tmp_path, 4) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        with recorded(bob) as sent, contextlib.ExitStack() as disk:

            def fill() -> None:
                bob.rt.ground.store.commit()
                disk.enter_context(full_disk())

            with before_it_leaves(bob, fill):
                await event.msg.ack()
                await asyncio.sleep(1)
            disk.close()
            assert sent == []
            assert (await received(bob)).msg.body == b"2"


@virtual
async def test_a_connection_may_go_while_its_router_is_told(tmp_path: Path) -> None:
    async with waiting(tmp_path, 4) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)

        def leave() -> None:
            with bob.rt.ground.transaction() as tx:
                tx.sql.execute("DELETE FROM connections WHERE conn_id = ?", (event.conn.id,))

        with before_it_leaves(bob, leave):
            await event.msg.ack()
            await settle()
        assert not [event for event in bob.seen if isinstance(event, AgentFailed)]
        assert bob.rt.ground.stream._events == deque()


@virtual
async def test_nobody_waits_for_an_acknowledgement_that_cannot_be_told(tmp_path: Path) -> None:
    """A bug, and not a kind of failure that is known."""
    async with waiting(tmp_path, 4) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)

        def bug() -> None:
            raise LookupError("a bug")

        with before_it_leaves(bob, bug):
            await asyncio.wait_for(event.msg.ack(), 60)
        assert "a bug" in str((await bob.expect(AgentFailed)).error)


@virtual
async def test_what_its_router_still_has_is_shown_again_once(tmp_path: Path) -> None:
    network = Network()
    async with waiting(tmp_path, 3, network) as (bob, _):
        await bob.message()
        await bob.message(ack=False)
        killed(tmp_path, tmp_path / "left.db")
        await bob.agent.close()
        async with party(tmp_path / "left.db", config=on_network(network)) as again:
            event = await again.expect(Received)
            assert content(event) == (b"1", MsgOk())
            await nothing_for(again)
            await event.msg.ack()
            assert content(await again.message()) == (b"2", MsgOk())
            shown = [event.msg.body for event in again.seen if isinstance(event, Received)]
            assert shown == [b"1", b"2"]


@virtual
async def test_an_agent_on_its_way_to_rest_stores_what_it_will_acknowledge(tmp_path: Path) -> None:
    async with waiting(tmp_path, 3, durability=Durability.FULL) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        with recorded(bob) as sent:
            async with bob.rt.ground.operations.under_way(Operation.SENDING):
                resting = asyncio.create_task(bob.agent.suspend(600))
                await settle()
                await asyncio.wait_for(event.msg.ack(), 60)
            assert await resting
            assert sent == []
        bob.agent.resume()
        assert (await received(bob)).msg.body == b"2"


@pytest.mark.parametrize("waits", [False, True])
@virtual
async def test_a_connection_that_is_deleted_has_nothing_to_show_again(tmp_path: Path, waits: bool) -> None:
    async with waiting(tmp_path, 1) as (bob, _):
        event = await bob.message(ack=False)
        store = bob.rt.ground.store
        assert [name for name, _ in messages.unacknowledged(store.reading)] == [event.conn.id]
        with store.transaction() as db:
            if waits:
                deletion.mark_waiting(db, event.conn.id, 1)
            else:
                deletion.mark(db, event.conn.id)
        assert messages.unacknowledged(store.reading) == []


@virtual
async def test_a_message_that_cannot_be_read_keeps_no_other_from_being_shown_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        conns = [await connect(alice, bob) for _ in range(3)]
        for number, (ours, _) in enumerate(conns):
            await ours.send(b"%d" % number)
            await bob.message(ack=False)
        first, broken, last = sorted(range(3), key=lambda number: conns[number][1].id)
        store = bob.rt.ground.store
        store.was_cut = True
        retelling = Retelling(bob.rt.ground, bob.rt.sessions)
        with store.transaction() as db:
            update = "UPDATE rcv_messages SET integrity = x'00' WHERE conn_id = ?"
            db.sql.execute(update, (conns[broken][1].id,))
        seen = len(bob.rt.ground.stream._events)
        telling = asyncio.create_task(retelling.run())
        await asyncio.sleep(0)
        assert len(bob.rt.ground.stream._events) == seen + 1, "then it is somebody else's turn"
        await telling
        assert [(await received(bob)).msg.body for _ in range(2)] == [b"%d" % first, b"%d" % last]
    assert "a stored message cannot be read" in caplog.text


@virtual
async def test_a_message_that_the_disk_cannot_read_for_now_is_shown_again_later(tmp_path: Path) -> None:
    async with waiting(tmp_path, 1) as (bob, _):
        await bob.message(ack=False)
        bob.rt.ground.store.was_cut = True
        retelling = Retelling(bob.rt.ground, bob.rt.sessions)
        with broken_reads(1):
            await bob.rt.ground.lasting(retelling.run)
        assert content(await received(bob)) == (b"0", MsgOk())
        await nothing_for(bob)


@virtual
async def test_a_router_is_told_once_what_a_program_says_twice(tmp_path: Path) -> None:
    async with waiting(tmp_path, 3) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        with recorded(bob) as sent:
            both = await asyncio.gather(event.msg.ack(), event.msg.ack(), return_exceptions=True)
            assert [type(one) for one in both] == [type(None), ConnError]
            with pytest.raises(ConnError, match="or it was acknowledged"):
                await event.msg.ack()
            await settle()
        assert [type(call.command) for call in sent] == [ACK]


@virtual
async def test_a_receipt_that_is_asked_for_twice_is_sent_once(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await ours.send(b"told of")
        event = await bob.message(ack=False)
        with recorded(bob) as sent:
            await asyncio.gather(event.msg.ack(b""), event.msg.ack(b""))
            await bob.agent.flush()
            await alice.next_of(ReceiptsReceived)
        assert len([call for call in sent if isinstance(call.command, SEND)]) == 1


@virtual
async def test_so_many_are_shown_again_as_the_program_takes(tmp_path: Path) -> None:
    network = Network()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        for number in range(5):
            ours, _ = await connect(alice, bob)
            await ours.send(b"%d" % number)
            await bob.message(ack=False)
        killed(tmp_path, tmp_path / "left.db")
        few = on_network(network, quick_config(subscribe=False, events_max=2))
        async with party(tmp_path / "left.db", config=few) as again:
            await settle()
            assert len(again.rt.ground.stream._events) == 2
            found = [await again.message(ack=False) for _ in range(5)]
            assert sorted(event.msg.body for event in found) == [b"%d" % number for number in range(5)]


@virtual
async def test_a_restored_backup_shows_what_it_has_not_acknowledged(tmp_path: Path) -> None:
    network = Network()
    async with waiting(tmp_path, 1, network) as (bob, _):
        event = await bob.message(ack=False)
        bob.agent.backup(tmp_path / "backup.db")
        await event.msg.ack()
        await bob.agent.close()
        async with party(tmp_path / "backup.db", config=on_network(network)) as again:
            assert content(await received(again)) == (b"0", MsgOk())


@virtual
async def test_a_copy_of_a_closed_store_shows_what_it_has_not_acknowledged(tmp_path: Path) -> None:
    """The router was told of it since the copy was made."""
    network, path = Network(), tmp_path / "b.db"
    async with waiting(tmp_path, 2, network) as (bob, _):
        await bob.message(ack=False)
        await bob.agent.close()
        shutil.copy(path, tmp_path / "kept.db")
        async with party(path, config=on_network(network)) as again:
            assert content(await again.message()) == (b"0", MsgOk())
        shutil.copy(tmp_path / "kept.db", path)
        async with party(path, config=on_network(network)) as older:
            assert content(await received(older)) == (b"0", MsgOk())


@pytest.mark.parametrize("since", ["being acknowledged", "acknowledged"])
@virtual
async def test_what_is_known_better_since_the_start_is_not_shown_again(tmp_path: Path, since: str) -> None:
    async with waiting(tmp_path, 2) as (bob, _):
        event = await bob.message(ack=False)
        bob.rt.ground.store.was_cut = True
        retelling = Retelling(bob.rt.ground, bob.rt.sessions)
        with stopped(0 if since == "being acknowledged" else 1, heard=False):
            await event.msg.ack()
            await settle()
            await retelling.run()
            if since == "acknowledged":
                assert content(await received(bob)) == (b"1", MsgOk())
            await nothing_for(bob)


@virtual
async def test_after_a_proper_end_only_routers_bring_messages(tmp_path: Path) -> None:
    network = Network()
    async with waiting(tmp_path, 4, network) as (bob, _):
        for _ in range(2):
            await bob.message()
        await bob.message(ack=False)
        await bob.agent.close()
        unsubscribed = on_network(network, quick_config(subscribe=False))
        async with party(tmp_path / "b.db", config=unsubscribed) as again:
            await nothing_for(again)
        async with party(tmp_path / "b.db", config=on_network(network)) as again:
            assert [content(await again.message()) for _ in range(2)] == right(2, 3)


@pytest.mark.parametrize("heard", [False, True])
@virtual
async def test_a_silent_router_keeps_nobody_waiting(tmp_path: Path, heard: bool) -> None:
    async with waiting(tmp_path, 3) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        await settle()
        with stopped(0, heard=heard):
            began = asyncio.get_running_loop().time()
            await event.msg.ack()
            assert asyncio.get_running_loop().time() - began < 0.1


@pytest.mark.parametrize("seed", range(6))
@virtual
async def test_answers_that_are_late_now_and_then(tmp_path: Path, seed: int) -> None:
    network = Network(seed)
    most = 3 * flows.PROMPT_S
    network.to_caller = network.to_listener = Link(delay_s=(0.0, most))
    async with waiting(tmp_path, 40, network) as (bob, _):
        assert [content(await bob.message()) for _ in range(40)] == right(*range(40))
    await asyncio.sleep(1)  # what is still on its way arrives nowhere


@pytest.mark.parametrize("turns", range(0, 24, 2))
@virtual
async def test_a_program_that_waits_no_longer_has_acknowledged(tmp_path: Path, turns: int) -> None:
    network = Network()
    async with waiting(tmp_path, 4, network, Durability.FULL) as (bob, _):
        await bob.message()
        event = await bob.message(ack=False)
        acking = asyncio.create_task(event.msg.ack())
        for _ in range(1 + turns):
            await asyncio.sleep(0)
        acking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await acking
        assert [content(await bob.message()) for _ in range(2)] == right(2, 3)


@pytest.mark.parametrize("again", [False, True])
@virtual
async def test_an_acknowledgement_that_cannot_be_stored(tmp_path: Path, again: bool) -> None:
    """The program is told, and may say it again; a message that it does not acknowledge again is shown after
    the next start, for its router does not have it."""
    network = Network()
    async with waiting(tmp_path, 5, network) as (bob, _):
        await bob.message()
        event = await received(bob)
        with full_disk(), recorded(bob) as sent, pytest.raises(StoreFailedError):
            await event.msg.ack()
        assert ACK in [type(call.command) for call in sent]
        if again:
            await event.msg.ack()
        await bob.agent.close()
        async with party(tmp_path / "b.db", config=on_network(network)) as after:
            first = 2 if again else 1
            found = {(await after.message()).msg.body for _ in range(first, 5)}
            assert found == {b"%d" % number for number in range(first, 5)}


def test_a_router_that_is_slow_or_has_nothing_more_ends_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    known = Flow()
    known.acknowledged("a")
    some = MSG(b"id", b"body")
    said: list[tuple[str, object, float, bool]] = [
        ("a", some, flows.PROMPT_S, False),
        ("b", some, 0.0, False),
        ("b", OK(), 0.0, False),
        ("a", some, flows.PROMPT_S, True),
        ("b", OK(), 0.0, True),
        ("a", some, 0.0, True),
        ("a", OK(), 0.0, False),
        ("a", some, 0.0, False),
        ("a", some, 0.0, True),
        ("a", some, flows.PROMPT_S + 0.001, False),
    ]
    for conn_id, response, taken_s, flowing in said:
        known.answered(conn_id, response, taken_s)
        assert known.is_of("a") is flowing
        assert not known.is_of("b")


def test_a_message_of_another_connection_ends_the_flow() -> None:
    known = Flow()
    for conn_id, flowing in [("a", False), ("a", True), ("b", False), ("a", False)]:
        known.acknowledged(conn_id)
        assert known.is_of("a") is flowing
        known.answered(conn_id, MSG(b"id", b"body"), 0.0)


@virtual
async def test_messages_of_several_connections_do_not_wait_for_answers_of_routers(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        conns = [await connect(alice, bob) for _ in range(2)]
        for number in range(8):
            for ours, _ in conns:
                await ours.send(b"%d" % number)
        await alice.agent.flush()
        await asyncio.sleep(1)
        told: list[object] = []
        bob.rt._calls._flows._told = told.append  # type: ignore[method-assign, assignment]
        for _ in range(16):
            await bob.message()
            await asyncio.sleep(0.1)
        assert not told
