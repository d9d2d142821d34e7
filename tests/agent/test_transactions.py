"""Application transactions: an answer, its acknowledgement and its record happen together or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blindpost.agent import (
    Agent,
    CommandError,
    Connected,
    ConnError,
    ContactRequested,
    LinkCreated,
    ReceiptsReceived,
    Transaction,
)
from tests.support.agent.agents import connect, party, quick_config, two_parties
from tests.support.client.scripted_router import virtual


class StumbledError(Exception):
    pass


@virtual
async def test_an_answer_and_its_acknowledgement_are_atomic(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        conn_a, conn_b = await connect(alice, bob)
        await conn_a.send(b"question")
        event = await bob.message(ack=False)

        def answer(tx: Transaction) -> None:
            tx.send(conn_b, b"answer")
            tx.put("answered", str(event.msg.id), b"yes")
            tx.ack(conn_b, event.msg.id, b"")

        def stumble(tx: Transaction) -> None:
            answer(tx)
            raise StumbledError

        with pytest.raises(StumbledError):
            await bob.agent.transact(stumble, conn_b)
        assert bob.agent.records.count("answered") == 0
        await bob.agent.transact(answer, conn_b)
        assert (await alice.message()).msg.body == b"answer"
        await (await alice.expect(ReceiptsReceived)).msg.ack()
        assert list(bob.agent.records.scan("answered")) == [(str(event.msg.id), b"yes")]
        with pytest.raises(ConnError, match="acknowledged"):
            await bob.agent.transact(answer, conn_b)
        await conn_b.send(b"last")
        assert (await alice.message()).msg.body == b"last"


@virtual
async def test_of_two_concurrent_answers_one_succeeds(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        conn_a, conn_b = await connect(alice, bob)
        await conn_a.send(b"question")
        event = await bob.message(ack=False)

        def answer(tx: Transaction) -> None:
            tx.send(conn_b, b"answer")
            tx.ack(conn_b, event.msg.id)

        both = (bob.agent.transact(answer, conn_b) for _ in range(2))
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert [type(one) for one in outcomes] == [type(None), ConnError]


@virtual
async def test_a_connection_that_was_not_named_is_refused(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        _, conn_b = await connect(alice, bob)
        with pytest.raises(CommandError, match="name the connection"):
            await bob.agent.transact(lambda tx: tx.send(conn_b, b"x"))


@virtual
async def test_a_transaction_ends_with_its_function(tmp_path: Path) -> None:
    """What is asked of it later would be stored without those who wait for it."""
    async with two_parties(tmp_path) as (alice, bob):
        conn_a, _ = await connect(alice, bob)
        kept: list[Transaction] = []
        await alice.agent.transact(kept.append, conn_a)
        with pytest.raises(CommandError, match="the transaction has ended"):
            kept[0].send(conn_a, b"late")
        with pytest.raises(CommandError, match="the transaction has ended"):
            kept[0].put("space", "key", b"value")
        assert conn_a.waiting == 0


@virtual
async def test_an_async_function_is_no_transaction(tmp_path: Path) -> None:
    async def work(tx: Transaction) -> None:
        tx.put("space", "key", b"value")

    async with party(tmp_path / "a.db") as alice:
        with pytest.raises(TypeError, match="this one is async"):
            _ = await alice.agent.transact(work)
        assert alice.agent.records.count("space") == 0


@virtual
async def test_a_backup_is_no_part_of_a_transaction(tmp_path: Path) -> None:
    """It has all that is committed, and half a transaction must not be."""
    async with party(tmp_path / "a.db") as alice:

        def work(tx: Transaction) -> None:
            tx.put("space", "key", b"value")
            alice.agent.backup(tmp_path / "b.db")

        with pytest.raises(RuntimeError, match="inside of a transaction"):
            await alice.agent.transact(work)
        assert alice.agent.records.count("space") == 0


@virtual
async def test_connections_can_begin_in_transactions(tmp_path: Path) -> None:
    """Accepting, joining and inviting leave nothing behind when the transaction fails."""
    async with two_parties(tmp_path) as (alice, bob):
        created = await alice.agent.address()
        before = len(bob.agent.connections())

        def fail(tx: Transaction) -> None:
            tx.join(str(created), b"bob")
            tx.invite_later(b"bob", pq=False)
            raise StumbledError

        with pytest.raises(StumbledError):
            await bob.agent.transact(fail)
        assert len(bob.agent.connections()) == before
        joined = await bob.agent.transact(lambda tx: tx.join(str(created), b"bob"))
        request = (await alice.expect(ContactRequested)).request
        accepted = await alice.agent.transact(lambda tx: tx.accept(request, b"alice"))
        with pytest.raises(ConnError, match="accepted before"):
            await alice.agent.transact(lambda tx: tx.accept(request, b"alice"))
        await alice.expect(Connected, lambda event: event.conn == accepted)
        await bob.expect(Connected, lambda event: event.conn == joined)
        invited = await bob.agent.transact(lambda tx: tx.invite_later(b"bob", pq=False))
        link = await bob.expect(LinkCreated)
        assert link.conn == invited
        await alice.agent.join(str(link.link), b"alice")
        await bob.expect(Connected, lambda event: event.conn == invited)


async def test_records_are_in_order_and_sealed(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    keys = [f"{number:04}" for number in range(1200)]

    def write(tx: Transaction) -> None:
        for key in reversed(keys):
            tx.put("mine", key, b"top secret")
        tx.put("other", "0000", b"")
        tx.delete("mine", "0003")

    async with Agent.open(path, passphrase="p", config=quick_config()) as agent:
        await agent.transact(write)
        found = [key for key, _ in agent.records.scan("mine", after="0001", until="1190")]
        assert found == ["0002", *keys[4:1190]]
        assert agent.records.count("mine") == 1199
        assert agent.records.get("mine", "0003") is None
        assert agent.records.get("mine", "0004") == b"top secret"
    assert b"top secret" not in path.read_bytes()
