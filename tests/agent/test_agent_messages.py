"""Messages: acknowledgement, redelivery, receipts, full queues, waiting and giving up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.agent import (
    AgentError,
    Connected,
    DeliveryReceipt,
    Failed,
    MsgOk,
    QueueHasRoom,
    ReceiptsReceived,
    ReceiptStatus,
    Received,
    Retention,
    SendDelayed,
    SendFailed,
    SendsFailed,
    Sent,
    Versions,
)
from blindpost.router.config import RouterRules
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Server
from blindpost.wire.smp.commands import ACK
from blindpost.wire.versions import VersionRange
from tests.support.agent.agents import Party, connect, on_network, party, quick_config, recorded, two_parties
from tests.support.client.scripted_router import settle, virtual
from tests.support.router.routers import new_credentials, running_router

HOUR_S = 3600


@pytest.mark.claim("CON-52")
@virtual
async def test_next_message_comes_after_the_application_acknowledges(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await settle()
        await ours.send(b"one")
        await ours.send(b"two")
        with recorded(bob) as sent:
            first = await bob.expect(Received)
            await settle()
            assert [call for call in sent if isinstance(call.command, ACK)] == []
            assert bob.names().count("MSG") == 1
            await first.msg.ack()
            assert (await bob.expect(Received)).msg.body == b"two"
            assert len([call for call in sent if isinstance(call.command, ACK)]) == 1


@pytest.mark.claim("CON-65")
@virtual
async def test_message_that_was_not_acknowledged_is_shown_again(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await ours.send(b"one")
        first = (await bob.expect(Received)).msg
        await bob.agent.close()
        async with party(tmp_path / "b.db", config=on_network(network)) as again:
            second = (await again.expect(Received)).msg
            assert (second.id, second.body, second.integrity) == (first.id, b"one", MsgOk())
            await second.ack()
            await settle()
            await ours.send(b"two")
            assert (await again.message()).msg.body == b"two"


@pytest.mark.claim("CON-65")
@virtual
async def test_lost_acknowledgement_is_sent_again_and_nothing_shown_twice(tmp_path: Path) -> None:
    """Bob goes away after the application acknowledged, before the router heard of it."""
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await ours.send(b"one")
        message = (await bob.expect(Received)).msg
        with bob.rt.ground.transaction() as tx:
            tx.sql.execute("UPDATE rcv_messages SET user_ack = 1")
        await bob.agent.close()
        async with party(tmp_path / "b.db", config=on_network(network)) as again:
            await ours.send(b"two")
            assert (await again.message()).msg.body == b"two"
            assert message.id == 2


@virtual
async def test_receipts_both_ways(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        number = await ours.send(b"one")
        await (await bob.expect(Received)).msg.ack(b"")
        told = await alice.expect(ReceiptsReceived)
        assert told.receipts == (DeliveryReceipt(number, ReceiptStatus.OK),)
        with pytest.raises(AgentError) as refused:
            await told.msg.ack(b"a receipt for a receipt")
        assert refused.value.word == "CMD PROHIBITED"
        await told.msg.ack()
        await settle()
        left = alice.rt.ground.store.reading.sql.execute("SELECT count(*) FROM messages").fetchone()
        assert left == (0,)
        await theirs.send(b"back")
        assert (await alice.message()).msg.integrity == MsgOk()


@virtual
async def test_no_receipts_for_peers_that_do_not_know_them(tmp_path: Path) -> None:
    old = quick_config(versions=Versions(agent=VersionRange(2, 3)))
    async with two_parties(tmp_path, old) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        await ours.send(b"one")
        await (await bob.expect(Received)).msg.ack(b"")
        await theirs.send(b"two")
        assert (await alice.message()).msg.sender_number == 2
        assert "RCVD" not in alice.names()


@virtual
async def test_sending_to_a_full_queue_resumes_as_soon_as_there_is_room(tmp_path: Path) -> None:
    """The slow retry would take five minutes; A_QCONT makes it immediate."""
    async with two_parties(tmp_path, rules=RouterRules(quota=4)) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        for number in range(8):
            await ours.send(bytes([number]))
        delayed = await alice.expect(SendDelayed)
        assert delayed.error.word == "SMP QUOTA"
        assert [(await bob.message()).msg.body for _ in range(8)] == [bytes([n]) for n in range(8)]
        await alice.expect(QueueHasRoom)
        assert [(await alice.expect(Sent)).msg_id for _ in range(8)] == list(range(2, 10))
        await theirs.send(b"other way")
        assert (await alice.message()).msg.integrity == MsgOk()


@virtual
async def test_message_over_quota_for_too_long_fails_with_the_older_ones(tmp_path: Path) -> None:
    short = Retention(quota_s=HOUR_S)
    async with two_parties(tmp_path, quick_config(retention=short), rules=RouterRules(quota=1)) as (
        alice,
        bob,
    ):
        ours, _ = await connect(alice, bob)
        ids = [await ours.send(bytes([number])) for number in range(4)]
        await bob.expect(Received)
        failed = await long_wait(alice, SendFailed)
        assert (failed.msg_id, failed.error.word) == (ids[1], "SMP QUOTA")
        assert (await alice.expect(SendsFailed)).msg_ids == tuple(ids[2:])


async def long_wait(party: Party, kind: type) -> SendFailed:
    """Like `expect`, for what takes hours."""
    while True:
        event = await party.agent.next_event()
        assert event is not None
        party.seen.append(event)
        if isinstance(event, kind):
            assert isinstance(event, SendFailed)
            return event


@virtual
async def test_messages_to_an_unreachable_router_are_retried_and_expire(tmp_path: Path) -> None:
    network, credentials = MemoryNetwork(), new_credentials()
    short = quick_config(retention=Retention(undelivered_s=HOUR_S))
    async with running_router(tmp_path / "router", network=network, credentials=credentials) as router:
        port, server = router.port, router.server
        async with (
            party(tmp_path / "a.db", server, config=on_network(network, short)) as alice,
            party(tmp_path / "b.db", server, config=on_network(network)) as bob,
        ):
            ours, theirs = await connect(alice, bob)
    async with (
        party(tmp_path / "a.db", server, config=on_network(network, short)) as alice,
        party(tmp_path / "b.db", server, config=on_network(network)) as bob,
    ):
        ids = [await alice.agent.connection(ours.id).send(b"lost") for _ in range(3)]
        failed = await long_wait(alice, SendFailed)
        assert (failed.msg_id, failed.error.word) == (ids[0], "BROKER NETWORK")
        assert (await alice.expect(SendsFailed)).msg_ids == tuple(ids[1:])
        await alice.agent.connection(ours.id).send(b"found")
        async with running_router(tmp_path / "router", network=network, credentials=credentials, port=port):
            got = (await bob.message()).msg
            assert got.body == b"found"
            assert got.integrity != MsgOk()
            await bob.agent.connection(theirs.id).send(b"back")
            assert (await alice.message()).msg.body == b"back"


@virtual
async def test_message_for_a_queue_that_is_gone_fails(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        await theirs.delete()
        await settle()
        number = await ours.send(b"to nobody")
        failed = await alice.expect(SendFailed)
        assert (failed.msg_id, failed.error.word) == (number, "SMP AUTH")


@virtual
async def test_largest_message_fits_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    for pq, most in ((True, 13573), (False, 15795)):
        folder = tmp_path / str(pq)
        folder.mkdir()
        async with two_parties(folder, quick_config(pq=pq), quick_config(pq=pq)) as (alice, bob):
            ours, _ = await connect(alice, bob)
            with pytest.raises(AgentError) as refused:
                await ours.send(b"x" * (most + 1))
            assert refused.value.word == "CMD LARGE"
            assert await ours.send(b"x" * most) == 2
            got = (await bob.message()).msg
            assert (len(got.body), got.integrity) == (most, MsgOk())


@virtual
async def test_message_that_is_never_acknowledged_is_given_up(tmp_path: Path) -> None:
    network = MemoryNetwork()
    quick = quick_config(retention=Retention(dropped_attempts=2, dropped_after_s=0))
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await ours.send(b"one")
        await bob.expect(Received)
        await bob.agent.close()
        async with party(tmp_path / "b.db", config=on_network(network, quick)) as again:
            await again.expect(Received)
        async with party(tmp_path / "b.db", config=on_network(network, quick)) as again:
            assert (await again.expect(Failed)).error.word == "AGENT A_DUPLICATE"
            await ours.send(b"two")
            assert (await again.message()).msg.body == b"two"


@virtual
async def test_pq_needs_both_sides_and_is_never_switched_off(tmp_path: Path) -> None:
    """One side's wish only proposes it; once on, support stays on."""
    off = quick_config(pq=False)
    async with two_parties(tmp_path, off, replace(off)) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        seen = []
        for _ in range(4):
            await ours.send(b"ping", pq=True)
            seen.append((await bob.message()).msg.pq)
            await theirs.send(b"pong", pq=True)
            seen.append((await alice.message()).msg.pq)
        assert seen[0] is False
        assert all(seen[-2:])
        flags = alice.rt.ground.store.reading.sql.execute("SELECT pq_support FROM connections").fetchall()
        assert flags == [(1,)]


@virtual
async def test_sending_before_anybody_joined_is_refused(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, _):
        link = await alice.agent.invite()
        with pytest.raises(AgentError) as refused:
            await link.conn.send(b"hello?")
        assert refused.value.word == "CONN SIMPLEX"


@pytest.mark.claim("CON-17")
@virtual
async def test_each_side_reports_connected_once(tmp_path: Path) -> None:
    """In the slow handshake with an agent that restarts in the middle."""
    old = quick_config(versions=Versions(client=VersionRange(1, 2)))
    network = MemoryNetwork()
    async with two_parties(tmp_path, old, network=network) as (alice, bob):
        link = await alice.agent.invite()
        await bob.agent.close()
        names: list[str] = []
        async with party(tmp_path / "b.db", *servers(alice), config=on_network(network, old)) as bob:
            await bob.agent.join(str(link))
        for _ in range(6):
            async with party(tmp_path / "b.db", *servers(alice), config=on_network(network, old)) as bob:
                await settle()
                while len(bob.rt.ground.stream._events):
                    await bob.next()
                names += bob.names()
        await alice.expect(Connected)
        await settle()
        assert names.count("CON") <= 1
        async with party(tmp_path / "b.db", *servers(alice), config=on_network(network, old)) as bob:
            if "CON" not in names:
                await bob.expect(Connected)
            (conn,) = bob.agent.connections()
            await conn.send(b"works")
            assert (await alice.message()).msg.body == b"works"
        assert alice.names().count("CON") == 1


def servers(party: Party) -> list[Server]:
    return [address.server for address in party.rt.ground.servers]
