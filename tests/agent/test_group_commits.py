"""What happens in one moment is one commit; nothing leaves before it, and nothing of it if it fails."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blindpost.agent import Agent, Connected, Connection, MsgOk, Received, Sent, Transaction
from blindpost.agent.messages import delivery
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.store import connections, messages
from blindpost.engine.loop import StoreFailedError
from blindpost.store.sqlite import SqliteStore
from blindpost.testing import Peer, World
from blindpost.wire.agent.messages import AMsg
from blindpost.wire.smp.commands import SEND
from tests.support.agent.agents import Party, connect, recorded, two_parties
from tests.support.client.scripted_router import settle, virtual


@contextmanager
def commits(agent: Agent, failing: int = 0) -> Iterator[list[bool]]:
    """The commits of an agent, and whether they came about: the first ones do not."""
    done: list[bool] = []
    original = SqliteStore.commit

    def commit(file: SqliteStore) -> None:
        if file is agent._ground.store._file:
            done.append(len(done) >= failing)
            if not done[-1]:
                file.rollback()
                raise file.failed(sqlite3.OperationalError("the disk is full"))
        original(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "commit", commit)
        yield done


async def several(alice: Party, bob: Party, count: int) -> list[Connection]:
    return [(await connect(alice, bob))[0] for _ in range(count)]


@virtual
async def test_messages_of_one_moment_are_one_commit(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        conns = await several(alice, bob, 3)
        await settle()
        with commits(alice.agent) as done, recorded(alice) as sent:
            sending = [asyncio.create_task(conn.send(b"%d" % n)) for conn in conns for n in range(4)]
            while not done:
                assert not any(task.done() for task in sending)
                assert not [call for call in sent if isinstance(call.command, SEND)]
                await asyncio.sleep(0)
            await asyncio.gather(*sending)
            assert done == [True]
        bodies: dict[str, list[bytes]] = {}
        for _ in range(12):
            got = (await bob.message()).msg
            assert got.integrity == MsgOk()
            bodies.setdefault(got.conn.id, []).append(got.body)
        assert list(bodies.values()) == [[b"0", b"1", b"2", b"3"]] * 3


@virtual
async def test_of_a_commit_that_fails_nothing_happened(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        (conn,) = await several(alice, bob, 1)
        await conn.send(b"before")
        with commits(alice.agent, failing=1) as done, recorded(alice) as sent:
            lost = await asyncio.gather(*(conn.send(b"lost") for _ in range(5)), return_exceptions=True)
            assert {type(one) for one in lost} == {StoreFailedError}
            assert "the disk is full" in str(lost[0])
            await conn.send(b"after")
            assert (await bob.message()).msg.body == b"before"
            got = (await bob.message()).msg
            assert (got.body, got.integrity) == (b"after", MsgOk())
            await settle()
            assert len([call for call in sent if isinstance(call.command, SEND)]) <= 3, "before, again, after"
            assert done[0] is False


@virtual
async def test_a_worker_sends_nothing_that_is_not_durable(tmp_path: Path) -> None:
    """It may be awake already, and read it."""
    async with two_parties(tmp_path) as (alice, bob):
        (conn,) = await several(alice, bob, 1)
        await settle()
        with commits(alice.agent, failing=1) as done, recorded(alice) as sent:
            with alice.rt.ground.joined() as tx:
                whole = connections.load_whole(tx, conn.id)
                enqueue(tx, whole, AMsg(b"lost"))
            alice.rt.delivery.wake(((conn.id, whole.snd[0].number), whole.snd[0].server))
            await settle()
            assert (sent, done) == ([], [False])
            await conn.send(b"stored")
            got = (await bob.message()).msg
            assert (got.body, got.integrity) == (b"stored", MsgOk())


@pytest.mark.parametrize("failing", [0, 1])
@virtual
async def test_messages_of_a_queue_that_were_taken_are_noted_together(tmp_path: Path, failing: int) -> None:
    """If that fails they are sent again, and the peer sees each of them once."""
    bodies = [b"%d" % number for number in range(8)]
    async with two_parties(tmp_path) as (alice, bob):
        (conn,) = await several(alice, bob, 1)
        await settle()
        numbers = await asyncio.gather(*(conn.send(body) for body in bodies))
        with commits(alice.agent, failing) as done:
            received = [(await bob.message()).msg for _ in bodies]
            assert [(one.body, one.integrity) for one in received] == [(body, MsgOk()) for body in bodies]
            assert await alice.agent.flush(60)
            assert not messages.has_pending(alice.agent._ground.store.reading, conn.id)
            assert done[:failing] == [False] * failing
            assert 1 <= sum(done) <= 3, "not one for each message"
        sent = [event.msg_id for event, _ in alice.agent._ground.stream._events if isinstance(event, Sent)]
        assert sorted(sent) == numbers
        await settle()
        assert not [event for event, _ in bob.agent._ground.stream._events if isinstance(event, Received)]


@virtual
async def test_a_transaction_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        (conn,) = await several(alice, bob, 1)
        await settle()

        def stumble(tx: Transaction) -> None:
            tx.put("space", "key", b"value")
            tx.send(conn, b"never")
            raise LookupError

        with commits(alice.agent) as done:
            outcomes = await asyncio.gather(
                conn.send(b"one"),
                alice.agent.transact(stumble, conn),
                conn.send(b"two"),
                return_exceptions=True,
            )
            assert isinstance(outcomes[1], LookupError)
            assert done == [True]
        assert alice.agent.records.count("space") == 0
        for body in (b"one", b"two"):
            got = (await bob.message()).msg
            assert (got.body, got.integrity) == (body, MsgOk())


@virtual
async def test_who_is_cancelled_while_it_waits_finds_its_message_sent(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        (conn,) = await several(alice, bob, 1)
        await settle()
        task = asyncio.create_task(conn.send(b"gone"))
        await asyncio.sleep(0)
        assert alice.rt.ground.store._group is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bob.message()).msg.body == b"gone"


@virtual
async def test_a_router_has_a_bounded_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest waits in the store. A router that is away keeps nobody from another one."""
    monkeypatch.setattr(delivery, "AT_ONCE", 2)
    async with World(tmp_path) as world:
        other = await world.add_router()
        alice, bob = await world.agent("alice"), await world.agent("bob")
        carol = await world.agent("carol", servers=[other.address])
        near = [await known_to(alice, bob) for _ in range(6)]
        away = [await known_to(alice, carol) for _ in range(6)]
        async with other.down():
            most = 0
            for conn in (*away, *near):
                await conn.send(b"hello")
            for _ in near:
                await (await bob.expect(Received)).msg.ack()
                most = max(most, len(alice.agent._core.delivery.tasks))
            assert 2 <= most <= 4
        for _ in away:
            await (await carol.expect(Received)).msg.ack()
        assert await alice.agent.flush(60)


async def known_to(alice: Peer, friend: Peer) -> Connection:
    await friend.agent.join(str(await alice.agent.invite()))
    await friend.expect(Connected)
    return (await alice.expect(Connected)).conn
