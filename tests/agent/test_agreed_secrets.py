"""Who secures a queue, where KEM keys travel, what stays on, and how messages are chained."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import Connected, MsgOk, Switched, SwitchPhase, Versions
from blindpost.agent.store import connections, ratchets
from blindpost.client.errors import RefusedError
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.e2e import KemAccepted, KemProposed
from blindpost.wire.smp.commands import KEY, SKEY
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import OK
from blindpost.wire.versions import VersionRange
from tests.support.agent.agents import connect, on_network, party, quick_config, two_parties
from tests.support.client.scripted_router import settle, virtual
from tests.support.router.routers import new_key, new_queue, running_router


@pytest.mark.claim("CON-03")
@pytest.mark.parametrize("by_sender", [False, True])
async def test_a_queue_is_secured_by_the_first_key_it_is_given(tmp_path: Path, by_sender: bool) -> None:
    async with running_router(tmp_path / "router") as router, await router.connect() as client:
        queue, first, second = await new_queue(client), new_key(), new_key()

        async def secured(key: object) -> object:
            assert key in (first, second)
            chosen = first if key is first else second
            if by_sender:
                return await client.send(SKEY(chosen.public), queue.sender_id, chosen)
            return await client.send(KEY(chosen.public), queue.recipient_id, queue.key)

        assert isinstance(await secured(first), OK)
        assert isinstance(await secured(first), OK)
        with pytest.raises(RefusedError) as refused:
            await secured(second)
        assert refused.value.error is Code.AUTH


@pytest.mark.claim("CON-21")
@pytest.mark.parametrize("where", ["nowhere", "text", "data"])
@virtual
async def test_kem_keys_travel_in_the_link_or_in_the_confirmation(tmp_path: Path, where: str) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite(
            kem_in_link=where == "text", user_data=b"" if where == "data" else None
        )
        assert ("kem_key" in link.full.text) is (where == "text")
        content = (await bob.agent.read_link(str(link))).link
        assert ("kem_key" in content.text) is (where != "nowhere")
        conn = await bob.agent.join(str(link))
        assert (await bob.expect(Connected)).pq
        sent = ratchets.find_public(bob.rt.ground.store.reading, conn.id)
        assert sent is not None
        assert isinstance(sent.kem, KemProposed if where == "nowhere" else KemAccepted)


@pytest.mark.claim("CON-23")
@virtual
async def test_pq_support_stays_on(tmp_path: Path) -> None:
    """Messages, wishes and restarts leave it on; an old peer and a new agreement may lower it."""
    network = MemoryNetwork()
    old = quick_config(versions=Versions(agent=VersionRange(2, 4)))
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        await ours.send(b"off", pq=False)
        await bob.message()
        await theirs.send(b"off", pq=False)
        await alice.message()
        server = alice.rt.ground.servers[0].server
        await bob.agent.close()
        oldest = quick_config(versions=Versions(agent=VersionRange(2, 4), e2e=VersionRange(2, 2)))
        async with party(tmp_path / "b.db", server, config=on_network(network, oldest)) as older:
            await older.agent.connection(theirs.id).send(b"from an older program", pq=False)
            await alice.message()
            await ours.send(b"to an older program")
            await older.message()
            for one, conn_id in ((alice, ours.id), (older, theirs.id)):
                kept = ratchets.find_ratchet(one.rt.ground.store.reading, conn_id)
                assert kept is not None
                assert kept.support_kem
                assert connections.load(one.rt.ground.store.reading, conn_id).pq_support
        await alice.agent.close()
        async with party(tmp_path / "a.db", server, config=on_network(network)) as again:
            db, conn = again.rt.ground.store.reading, again.agent.connection(ours.id)
            assert connections.load(db, ours.id).pq_support
            ratchet = ratchets.find_ratchet(db, ours.id)
            assert ratchet is not None
            assert ratchet.support_kem
            await conn.synchronize(force=True, pq=False)
            assert not connections.load(db, ours.id).pq_support
            link = await again.agent.invite()
            assert connections.load(db, link.conn.id).pq_support
            async with party(tmp_path / "c.db", server, config=on_network(network, old)) as carol:
                await carol.agent.join(str(link))
                await again.expect(Connected, lambda event: event.conn == link.conn)
                assert not connections.load(db, link.conn.id).pq_support


@pytest.mark.claim("CON-56")
@virtual
async def test_message_chain_is_unbroken_across_a_restart_and_a_rotation(tmp_path: Path) -> None:
    """Each has the next number and the hash of the one before, or the chain would say otherwise."""
    network = MemoryNetwork()
    async with (
        running_router(tmp_path / "two", network=network) as two,
        two_parties(tmp_path, network=network) as (alice, bob),
    ):
        ours, theirs = await connect(alice, bob)
        server = alice.rt.ground.servers[0].server
        numbers = []

        async def exchanged(conn_id: str, speaker: object) -> None:
            assert isinstance(speaker, type(alice))
            await speaker.agent.connection(conn_id).send(b"message")
            got = (await bob.message()).msg
            assert got.integrity == MsgOk()
            numbers.append(got.sender_number)

        for _ in range(3):
            await exchanged(ours.id, alice)
        await alice.agent.close()
        async with party(tmp_path / "a.db", server, two.server, config=on_network(network)) as again:
            for _ in range(3):
                await exchanged(ours.id, again)
            assert numbers == list(range(2, 8))
            await again.agent.connection(ours.id).switch()
            for _ in range(4):
                await exchanged(ours.id, again)
            await again.expect(Switched, lambda event: event.phase is SwitchPhase.COMPLETED)
            await exchanged(ours.id, again)
            await theirs.send(b"back")
            assert (await again.message()).msg.integrity == MsgOk()
            await settle()
        assert sorted(set(numbers)) == numbers
