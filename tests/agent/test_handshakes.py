"""Handshakes of all kinds: fast, slow and mixed, post-quantum or not, old and new versions, addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import (
    AgentError,
    ConfirmationReceived,
    Connected,
    Connection,
    ConnType,
    ContactRequested,
    Failed,
    InfoReceived,
    Joined,
    LinkCreated,
    MsgOk,
    Versions,
)
from blindpost.agent.handshake import confirming
from blindpost.agent.store import queues, ratchets
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.versions import VersionRange
from tests.support.agent.agents import Party, connect, on_network, party, quick_config, two_parties
from tests.support.client.scripted_router import virtual
from tests.support.router.routers import new_credentials, running_router


def connections_of(party: Party) -> list[ConnType]:
    return [conn.type for conn in party.agent.connections()]


async def exchange(
    alice: Party, bob: Party, first_number: int, conns: tuple[Connection, Connection] | None = None
) -> None:
    """A message each way; the first on each side has this number on the wire."""
    ours, theirs = conns or (alice.agent.connections()[0], bob.agent.connections()[0])
    await ours.send(b"one")
    got = (await bob.message()).msg
    assert (got.body, got.integrity, got.sender_number) == (b"one", MsgOk(), first_number)
    await theirs.send(b"two")
    back = (await alice.message()).msg
    assert (back.body, back.integrity, back.sender_number) == (b"two", MsgOk(), first_number)


@pytest.mark.claim("CON-20")
@pytest.mark.parametrize(
    ("ours", "theirs", "in_link"),
    [
        (False, False, False),
        (False, True, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ],
)
@virtual
async def test_both_sides_must_want_pq(tmp_path: Path, ours: bool, theirs: bool, in_link: bool) -> None:
    async with two_parties(tmp_path, quick_config(pq=ours), quick_config(pq=theirs)) as (alice, bob):
        link = await alice.agent.invite(kem_in_link=in_link)
        assert ("kem_key" in link.full.text) is in_link
        await bob.agent.join(str(link))
        both = ours and theirs
        assert (await alice.expect(Connected)).pq is both
        assert (await bob.expect(Connected)).pq is both
        await exchange(alice, bob, 2)


@pytest.mark.parametrize("side", ["initiator", "joiner"])
@pytest.mark.parametrize(
    ("versions", "pq"),
    [
        (Versions(agent=VersionRange(2, 4)), False),
        (Versions(agent=VersionRange(2, 5)), True),
        (Versions(agent=VersionRange(2, 6)), True),
        (Versions(e2e=VersionRange(2, 2)), False),
        (Versions(client=VersionRange(1, 3)), True),
    ],
)
@virtual
async def test_older_versions_connect_with_what_they_support(
    tmp_path: Path, versions: Versions, pq: bool, side: str
) -> None:
    old, new = quick_config(versions=versions), quick_config()
    configs = (old, new) if side == "initiator" else (new, old)
    async with two_parties(tmp_path, *configs) as (alice, bob):
        link = await alice.agent.invite()
        await bob.agent.join(str(link))
        secured = (await bob.expect(Joined)).secured
        assert secured is (versions.agent.high >= 7)
        assert (await alice.expect(Connected)).pq is pq
        assert (await bob.expect(Connected)).pq is pq
        await exchange(alice, bob, 2)


@virtual
async def test_versions_without_overlap_are_refused(tmp_path: Path) -> None:
    old = quick_config(versions=Versions(agent=VersionRange(2, 3)))
    new = quick_config(versions=Versions(agent=VersionRange(4, 7)))
    async with two_parties(tmp_path, old, new) as (alice, bob):
        link = await alice.agent.invite()
        with pytest.raises(AgentError) as refused:
            await bob.agent.join(str(link))
        assert refused.value.word == "AGENT A_VERSION"
        assert bob.agent.connections() == []


@pytest.mark.parametrize("side", ["initiator", "joiner"])
@virtual
async def test_slow_handshake_takes_two_hellos(tmp_path: Path, side: str) -> None:
    """Version 2 clients do not know sender-secured queues."""
    old, new = quick_config(versions=Versions(client=VersionRange(1, 2))), quick_config()
    configs = (old, new) if side == "initiator" else (new, old)
    async with two_parties(tmp_path, *configs) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        assert await ours.send(b"one") == 4
        got = (await bob.message()).msg
        assert (got.sender_number, got.integrity) == (3, MsgOk())
        assert await theirs.send(b"two") == 5
        assert (await alice.message()).msg.sender_number == 3
        assert [*alice.names(), *bob.names()].count("CON") == 2


@pytest.mark.claim("CON-12")
@pytest.mark.claim("CON-25")
@virtual
async def test_connection_types_and_ratchets_at_each_step(tmp_path: Path) -> None:
    """Alice allows by hand, so that every step can be inspected."""
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite(auto_allow=False)
        db = alice.rt.ground.store.reading
        assert link.conn.type is ConnType.RCV
        assert ratchets.find_params(db, link.conn.id) is not None
        assert ratchets.find_ratchet(db, link.conn.id) is None
        joined = await bob.agent.join(str(link), info=b"I am Bob")
        types = [joined.type]
        await bob.expect(Joined)
        types.append(joined.type)
        assert types == [ConnType.NEW, ConnType.DUPLEX]
        assert ratchets.find_ratchet(bob.rt.ground.store.reading, joined.id) is not None
        confirmed = await alice.expect(ConfirmationReceived)
        assert confirmed.confirmation.info == b"I am Bob"
        assert link.conn.type is ConnType.RCV
        assert ratchets.find_params(db, link.conn.id) is None
        assert ratchets.find_ratchet(db, link.conn.id) is not None
        await confirmed.confirmation.allow(b"I am Alice")
        assert (await bob.expect(InfoReceived)).info == b"I am Alice"
        await bob.expect(Connected)
        await alice.expect(Connected)
        assert connections_of(alice) == [ConnType.DUPLEX]
        with pytest.raises(AgentError) as again:
            await confirmed.confirmation.allow()
        assert again.value.word == "CMD PROHIBITED"


@virtual
async def test_messages_before_the_connection_is_allowed(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite(auto_allow=False)
        joined = await bob.agent.join(str(link))
        assert (await bob.expect(Joined)).secured
        await joined.send(b"early")
        confirmed = await alice.expect(ConfirmationReceived)
        early = (await alice.message()).msg
        assert (early.body, early.id, early.integrity) == (b"early", 1, MsgOk())
        await confirmed.confirmation.allow()
        await bob.expect(Connected)
        await alice.expect(Connected)
        await link.conn.send(b"late")
        assert (await bob.message()).msg.body == b"late"


@pytest.mark.parametrize("pq", [True, False])
@virtual
async def test_contact_address(tmp_path: Path, pq: bool) -> None:
    """The owner of the address joins the invitation of the requester."""
    async with two_parties(tmp_path, quick_config(pq=pq), quick_config(pq=pq)) as (alice, bob):
        address = await alice.agent.address()
        assert address.conn.type is ConnType.CONTACT
        asked = await bob.agent.join(str(address), info=b"Bob asks")
        assert not (await bob.expect(Joined)).secured
        request = (await alice.expect(ContactRequested)).request
        assert (request.info, request.pq) == (b"Bob asks", True)
        accepted = await request.accept(b"welcome")
        assert (await bob.expect(ConfirmationReceived)).confirmation.info == b"welcome"
        assert (await bob.expect(Connected)) == Connected(asked, pq)
        assert (await alice.expect(Connected)) == Connected(accepted, pq)
        await exchange(alice, bob, 2, (accepted, asked))
        with pytest.raises(AgentError) as twice:
            await request.accept()
        assert twice.value.word == "CONN NOT_FOUND"


@virtual
async def test_address_that_accepts_everybody(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        address = await alice.agent.address(info=b"hello", auto_accept=True)
        first, second = await bob.agent.join(str(address)), await bob.agent.join(str(address))
        requests = [(await alice.expect(ContactRequested)).request for _ in range(2)]
        connected = {(await bob.expect(Connected)).conn for _ in range(2)}
        assert connected == {first, second}
        assert {(await alice.expect(Connected)).conn for _ in range(2)} == {one.accepted for one in requests}


@virtual
async def test_rejected_request_is_forgotten(tmp_path: Path) -> None:
    async with two_parties(tmp_path) as (alice, bob):
        address = await alice.agent.address()
        await bob.agent.join(str(address))
        request = (await alice.expect(ContactRequested)).request
        await request.reject()
        with pytest.raises(AgentError):
            await request.accept()


@virtual
async def test_a_link_is_used_once(tmp_path: Path) -> None:
    """The second joiner cannot secure the queue."""
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite()
        await bob.agent.join(str(link))
        await bob.expect(Connected)
        await bob.agent.join(str(link))
        failed = await bob.expect(Failed)
        assert failed.error.word == "SMP AUTH"


@virtual
async def test_link_made_in_the_background_waits_for_an_unreachable_router(tmp_path: Path) -> None:
    network, credentials = MemoryNetwork(), new_credentials()
    config = on_network(network)
    async with running_router(tmp_path / "router", network=network, credentials=credentials) as router:
        server, port = router.server, router.port
    async with party(tmp_path / "a.db", server, config=config) as alice:
        conn = await alice.agent.invite_later(user_data=b"later")
        with pytest.raises(AgentError):
            assert conn.link
    async with (
        running_router(tmp_path / "router", network=network, credentials=credentials, port=port),
        party(tmp_path / "a.db", server, config=config) as alice,
        party(tmp_path / "b.db", server, config=config) as bob,
    ):
        made = await alice.expect(LinkCreated)
        assert made.conn.id == conn.id
        assert str(made.conn.link) == str(made.link)
        assert (await bob.agent.read_link(str(made.link))).user_data == b"later"
        await bob.agent.join(str(made.link))
        assert (await bob.expect(Connected)).pq
        await alice.expect(Connected)
        with pytest.raises(AgentError):
            assert made.conn.link


@virtual
async def test_pending_confirmations_and_requests_survive_a_restart(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        link, address = await alice.agent.invite(auto_allow=False), await alice.agent.address()
        await bob.agent.join(str(link), b"joined")
        await bob.agent.join(str(address), b"asked")
        await alice.expect(ConfirmationReceived)
        await alice.expect(ContactRequested)
        server = alice.rt.ground.servers[0].server
        await alice.agent.close()
        async with party(tmp_path / "a.db", server, config=on_network(network)) as again:
            confirmation = again.agent.connection(link.conn.id).confirmation()
            (request,) = again.agent.connection(address.conn.id).requests()
            assert confirmation is not None
            assert (confirmation.info, request.info, request.pq) == (b"joined", b"asked", True)
            await confirmation.allow()
            await request.accept()
            for _ in range(2):
                await again.expect(Connected)
            assert again.agent.connection(link.conn.id).confirmation() is None
            assert again.agent.connection(address.conn.id).requests() == []


@virtual
async def test_another_router_is_used_when_one_is_unreachable(tmp_path: Path) -> None:
    """Whichever of his two routers Bob tries first, he gets a reply queue on the one that answers."""
    network = MemoryNetwork()
    config = on_network(network)
    async with running_router(tmp_path / "gone", network=network) as gone:
        away = gone.server
    async with (
        running_router(tmp_path / "router", network=network) as router,
        party(tmp_path / "a.db", router.server, config=config) as alice,
    ):
        for number in range(4):
            async with party(tmp_path / f"b{number}.db", away, router.server, config=config) as bob:
                link = await alice.agent.invite()
                conn = await bob.agent.join(str(link))
                await bob.expect(Connected)
                (queue,) = queues.rcv_queues(bob.rt.ground.store.reading, conn.id)
                assert queue.server == router.server
                assert bob.rt.maker._tried == {}
                await bob.agent.invite_later()
                assert (await bob.expect(LinkCreated)).link.full.queues[0].address.server == router.server


@virtual
async def test_requests_to_an_address_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "REQUESTS_MAX", 2)
    async with two_parties(tmp_path) as (alice, bob):
        address = await alice.agent.address()
        for _ in range(3):
            await bob.agent.join(str(address))
        assert (await alice.expect(Failed)).error.word == "AGENT A_PROHIBITED"
        waiting = [(await alice.expect(ContactRequested)).request for _ in range(2)]
        assert {request.id for request in address.conn.requests()} == {request.id for request in waiting}
        await waiting[0].reject()
        await bob.agent.join(str(address))
        await alice.expect(ContactRequested)
        assert len(address.conn.requests()) == 2
