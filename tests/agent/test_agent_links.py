"""Short links of both kinds, and links prepared before anything is created."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from blindpost.agent import (
    AgentError,
    Connected,
    ContactRequested,
    Failed,
    Joined,
    PreparedLink,
    ProxyOptions,
    ProxyPolicy,
    Versions,
)
from blindpost.agent.links.values import prepare_link
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import RouterAddress, Scheme
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.links.short import short_link_from_text
from blindpost.wire.smp.commands import NEW
from tests.support.agent.agents import on_network, party, quick_config, recorded, two_parties
from tests.support.client.scripted_router import virtual
from tests.support.router.routers import running_router


@virtual
async def test_short_invitation(tmp_path: Path) -> None:
    """It carries data, its KEM key is in the data, and reading it secures the queue."""
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite(user_data=b"my profile")
        assert "/i#" in str(link)
        assert "kem_key" not in link.full.text
        content = await bob.agent.read_link(str(link))
        assert content.user_data == b"my profile"
        assert "kem_key" in content.link.text
        await bob.agent.join(str(link))
        assert (await bob.expect(Joined)).secured
        assert (await bob.expect(Connected)).pq
        assert (await alice.expect(Connected)).pq
        rows = bob.rt.ground.store.reading.sql.execute("SELECT count(*) FROM inv_short_links").fetchone()
        assert rows == (0,)


@virtual
async def test_short_invitation_is_for_the_first_reader(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        link = await alice.agent.invite(user_data=b"")
        await bob.agent.read_link(str(link))
        await bob.agent.read_link(str(link))
        async with party(tmp_path / "c.db", config=on_network(network)) as carol:
            with pytest.raises(AgentError) as refused:
                await carol.agent.read_link(str(link))
            assert refused.value.word == "SMP AUTH"
        await bob.agent.join(str(link))
        await bob.expect(Connected)


@virtual
async def test_short_address_with_data_that_changes(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        address = await alice.agent.address()
        assert address.short is None
        short = await address.conn.set_link_data(b"first")
        assert (await bob.agent.read_link(str(short))).user_data == b"first"
        again = await address.conn.set_link_data(b"second" * 200)
        assert str(again) == str(short)
        content = await bob.agent.read_link(str(short))
        assert content.user_data == b"second" * 200
        await bob.agent.join(str(short))
        await (await alice.expect(ContactRequested)).request.accept()
        await alice.expect(Connected)
        await bob.expect(Connected)
        await address.conn.delete_short_link()
        with pytest.raises(AgentError) as gone:
            await bob.agent.read_link(str(short))
        assert gone.value.word == "SMP AUTH"


@pytest.mark.claim("CON-06")
@pytest.mark.claim("CON-07")
@virtual
async def test_preparing_a_link_needs_neither_network_nor_store(tmp_path: Path) -> None:
    address = RouterAddress(Scheme.SMP, short_link_from_text("https://host.example/a#AAAA?c=AAAA").server)
    one = prepare_link(address, Versions(), system_entropy)
    two = prepare_link(address, Versions(), system_entropy)
    assert str(one) != str(two)
    assert one.root_key.algorithm is Algorithm.ED25519
    assert one.e2e_key.algorithm is Algorithm.X25519
    assert one.link_key == hashlib.sha3_256(one.fixed.content).digest()
    assert one.link.queues[0].address.sender_id == hashlib.sha3_384(one.corr_id).digest()[:24]
    given = PrivateKey.generate(Algorithm.ED25519, system_entropy)
    assert prepare_link(address, Versions(), system_entropy, root_key=given).root_key == given


@pytest.mark.claim("CON-08")
@pytest.mark.claim("CON-10")
@pytest.mark.claim("CON-60")
@virtual
async def test_prepared_link_is_published_saved_and_made_after_a_restart(tmp_path: Path) -> None:
    network = MemoryNetwork()
    root_key = PrivateKey.generate(Algorithm.ED25519, system_entropy)
    async with running_router(tmp_path / "router", network=network) as router:
        async with party(tmp_path / "a.db", router.server, config=on_network(network)) as alice:
            prepared = alice.agent.prepare_address(root_key=root_key, entity_id=b"us")
            published, saved = str(prepared), prepared.dump()
            assert alice.agent.connections() == []
        async with (
            party(tmp_path / "a.db", router.server, config=on_network(network)) as alice,
            party(tmp_path / "b.db", router.server, config=on_network(network)) as bob,
        ):
            with recorded(alice) as sent:
                created = await alice.agent.create_address(
                    PreparedLink.load(saved), published.encode(), auto_accept=True
                )
            assert [type(call.command) for call in sent] == [NEW]
            assert (str(created), created.changed) == (published, False)
            content = await bob.agent.read_link(published)
            assert (content.user_data, content.entity_id) == (published.encode(), b"us")
            assert content.link == created.full
            await bob.agent.join(published)
            await bob.expect(Connected)


@pytest.mark.claim("CON-11")
@virtual
async def test_lost_answer_to_a_prepared_new_does_no_harm(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        prepared = alice.agent.prepare_address()
        first = await alice.agent.create_address(prepared, b"data")
        with alice.rt.ground.transaction() as tx:
            tx.sql.execute("DELETE FROM connections")
        again = await alice.agent.create_address(prepared, b"data")
        assert (str(again), again.changed) == (str(first), False)
        assert first.full.queues[0].address.sender_id == sender_id_of(prepared.corr_id)
        assert (await bob.agent.read_link(str(prepared))).user_data == b"data"


@pytest.mark.claim("CON-11")
@virtual
async def test_refused_prepared_link_is_replaced_and_reported_as_changed(tmp_path: Path) -> None:
    """The sender id is taken, as with a router that refuses a repeated NEW."""
    async with two_parties(tmp_path) as (alice, bob):
        prepared = alice.agent.prepare_address(entity_id=b"us")
        await alice.agent.create_address(prepared)
        with alice.rt.ground.transaction() as tx:
            tx.sql.execute("DELETE FROM connections")
        other = PreparedLink.load(prepared.dump())
        object.__setattr__(other, "key", PrivateKey.generate(Algorithm.ED25519, system_entropy))
        replaced = await alice.agent.create_address(other, b"new")
        assert replaced.changed
        assert str(replaced) != str(prepared)
        content = await bob.agent.read_link(str(replaced))
        assert (content.entity_id, content.user_data) == (b"us", b"new")


def test_saved_parameters_in_an_unknown_format_are_refused() -> None:
    with pytest.raises(WireError):
        PreparedLink.load(b"\x09rubbish")


@virtual
async def test_failed_creation_leaves_nothing(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with running_router(tmp_path / "router", network=network) as router:
        server = router.server
    async with party(tmp_path / "a.db", server, config=on_network(network)) as alice:
        with pytest.raises(AgentError) as refused:
            await alice.agent.invite()
        assert refused.value.word == "BROKER NETWORK"
        with pytest.raises(AgentError):
            await alice.agent.create_address(alice.agent.prepare_address())
        assert alice.agent.connections() == []


@virtual
async def test_short_links_and_messages_through_a_proxy(tmp_path: Path) -> None:
    """Bob never connects to Alice's router."""
    network = MemoryNetwork()
    proxied = quick_config(proxy=ProxyOptions(policy=ProxyPolicy.ALWAYS))
    async with (
        running_router(tmp_path / "one", network=network) as one,
        running_router(tmp_path / "two", network=network) as two,
        party(tmp_path / "a.db", one.server, config=on_network(network)) as alice,
        party(tmp_path / "b.db", two.server, config=on_network(network, proxied)) as bob,
    ):
        link = await alice.agent.invite(user_data=b"profile")
        await bob.agent.join(str(link))
        conn = (await bob.expect(Connected)).conn
        await alice.expect(Connected)
        await conn.send(b"hidden")
        assert (await alice.message()).msg.body == b"hidden"
        assert bob.rt.sessions.current(bob.rt.sessions.key(1, one.server)) is None


@pytest.mark.claim("CON-09")
@virtual
async def test_link_with_another_key_is_refused(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite(user_data=b"profile")
        assert link.short is not None
        text = str(link)
        wrong = text.replace(text.split("/")[-1][:4], "AAAA")
        with pytest.raises(AgentError) as refused:
            await bob.agent.read_link(wrong)
        assert refused.value.word.startswith("AGENT A_")
        await bob.agent.join(wrong)
        assert (await bob.expect(Failed)).error.word.startswith("AGENT A_")
        await bob.agent.join(text)
        await bob.expect(Connected)
