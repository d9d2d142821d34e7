"""An agent that dies at any call to a router, received or not, resumes where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blindpost.agent import (
    AgentConfig,
    Connected,
    ContactRequested,
    Event,
    MsgOk,
    MsgSkipped,
    SendFailed,
    Versions,
)
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.store import connections, handshakes, queues, ratchets
from blindpost.agent.store.database import AgentStore
from blindpost.client.calls import Call, Failure
from blindpost.client.smp import SmpClient
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Server
from blindpost.wire.agent.messages import AMsg
from blindpost.wire.keys import PublicKey
from blindpost.wire.smp.commands import KEY, LKEY, NEW, PING, SKEY, SUB, Command
from blindpost.wire.smp.responses import Response
from blindpost.wire.versions import VersionRange
from tests.support.agent.agents import Party, connect, on_network, party, quick_config, two_parties
from tests.support.client.scripted_router import settle, virtual
from tests.support.router.routers import running_router

Keyed = NEW | SKEY | KEY | LKEY


class Crash:
    """Lets a given number of an agent's commands through, then everything stops."""

    def __init__(self, alive: Party, calls: int, *, heard: bool) -> None:
        self._party = alive
        self._left = calls
        self._heard = heard
        self.happened = asyncio.Event()
        self.keys: list[tuple[type, PublicKey]] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        original = SmpClient.send_many
        crash = self

        async def send_many(client: SmpClient, calls: Iterable[Call[Command]]) -> list[Response | Failure]:
            listed = list(calls)
            if not crash.is_ours(client) or isinstance(listed[0].command, SUB | PING):
                return await original(client, listed)
            crash.note(listed)
            crash._left -= 1
            if crash._left:
                return await original(client, listed)
            if crash._heard:
                await original(client, listed)
            crash.happened.set()
            await asyncio.Event().wait()
            raise AssertionError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SmpClient, "send_many", send_many)
            yield

    def is_ours(self, client: SmpClient) -> bool:
        sessions = self._party.rt.sessions
        found = (sessions.current(key) for key in list(sessions._slots))
        return any(session is not None and session.client is client for session in found)

    def note(self, calls: list[Call[Command]]) -> None:
        for call in calls:
            if isinstance(call.command, NEW):
                self.keys.append((NEW, call.command.auth_key))
            elif isinstance(call.command, SKEY | KEY | LKEY):
                self.keys.append((type(call.command), call.command.key))


async def events_until(living: Party, kind: type[Event], happened: asyncio.Event) -> bool:
    """Take events until one of this kind comes, or the crash does."""
    while True:
        taking = asyncio.ensure_future(living.next())
        crashed = asyncio.ensure_future(happened.wait())
        await asyncio.wait([taking, crashed], return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            taking.cancel()
            return False
        crashed.cancel()
        if isinstance(taking.result(), kind):
            return True


def all_keys(path: Path) -> list[PublicKey]:
    """Every key that a store could give to a router."""
    store = AgentStore.open(path)
    db = store.reading
    try:
        found = []
        for (conn_id,) in db.sql.execute("SELECT conn_id FROM connections").fetchall():
            found += [queue.key.public for queue in queues.rcv_queues(db, conn_id)]
            found += [queue.key.public for queue in queues.snd_queues(db, conn_id)]
            request = queues.find_request(db, conn_id)
            found += [] if request is None else [request.key.public]
            for accepted in (True, False):
                confirmation = handshakes.find_confirmation(db, conn_id, accepted=accepted)
                if confirmation is not None and confirmation.sender_key is not None:
                    found.append(confirmation.sender_key)
            assert ratchets.find_params(db, conn_id) is not None or found
        return found
    finally:
        store.close()


SLOW = Versions(client=VersionRange(1, 2))


@pytest.mark.claim("CON-01")
@pytest.mark.claim("CON-02")
@pytest.mark.claim("CON-04")
@pytest.mark.claim("CON-19")
@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("kind", ["invitation", "address", "slow invitation"])
@virtual
async def test_joiner_dies_at_every_call(tmp_path: Path, kind: str, heard: bool) -> None:
    network = MemoryNetwork()
    versions = SLOW if kind.startswith("slow") else Versions()
    config = on_network(network, quick_config(pq=False, versions=versions))
    async with (
        running_router(tmp_path / "router", network=network) as router,
        party(tmp_path / "a.db", router.server, config=config) as alice,
    ):
        for calls in range(1, 9):
            if not await dying_joiner(tmp_path, alice, router.server, config, kind, calls, heard=heard):
                assert calls > 3
                return
        pytest.fail("the joiner makes more calls than expected")


async def dying_joiner(
    folder: Path, alice: Party, server: Server, config: AgentConfig, kind: str, calls: int, *, heard: bool
) -> bool:
    """One joiner that dies at this call and comes back; returns whether it got that far."""
    path = folder / f"b{calls}.db"
    make = alice.agent.address(auto_accept=True) if kind == "address" else alice.agent.invite()
    link = await make
    async with party(path, server, config=config) as bob:
        crash = Crash(bob, calls, heard=heard)
        with crash.waiting():
            conn = await bob.agent.join(str(link))
            done = await events_until(bob, Connected, crash.happened)
            if done:
                await settle()
            died = crash.happened.is_set()
            await bob.agent.close()
    given = {key for command, key in crash.keys if command is not KEY}
    assert given <= set(all_keys(path))
    async with party(path, server, config=config) as bob:
        again = bob.agent.connection(conn.id)
        if not done:
            await bob.expect(Connected)
        theirs = (await alice.expect(Connected)).conn
        await theirs.send(b"one")
        got = (await bob.message()).msg
        assert (got.body, got.integrity) == (b"one", MsgOk())
        await again.send(b"two")
        back = (await alice.message()).msg
        assert (back.body, back.integrity) == (b"two", MsgOk())
    if kind == "address":
        await alice.expect(ContactRequested)
        asked = [event for event in alice._passed if isinstance(event, ContactRequested)]
        assert asked == []
    return died


@pytest.mark.claim("CON-02")
@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("versions", [Versions(), SLOW], ids=["fast", "slow"])
@virtual
async def test_initiator_dies_at_every_call(tmp_path: Path, versions: Versions, heard: bool) -> None:
    network = MemoryNetwork()
    config = on_network(network, quick_config(pq=False, versions=versions))
    async with (
        running_router(tmp_path / "router", network=network) as router,
        party(tmp_path / "b.db", router.server, config=config) as bob,
    ):
        for calls in range(1, 9):
            path = tmp_path / f"a{calls}.db"
            async with party(path, router.server, config=config) as alice:
                link = await alice.agent.invite()
                crash = Crash(alice, calls, heard=heard)
                with crash.waiting():
                    conn = await bob.agent.join(str(link))
                    done = await events_until(alice, Connected, crash.happened)
                    if done:
                        await settle()
                    died = crash.happened.is_set()
                    await alice.agent.close()
            async with party(path, router.server, config=config) as alice:
                if not done:
                    await alice.expect(Connected)
                await bob.expect(Connected)
                await conn.send(b"one")
                assert (await alice.message()).msg.integrity == MsgOk()
                await alice.agent.connection(link.conn.id).send(b"two")
                assert (await bob.message()).msg.integrity == MsgOk()
            if not died:
                assert calls > 2
                return
        pytest.fail("the initiator makes more calls than expected")


@virtual
async def test_messages_survive_a_sender_that_dies_while_sending(tmp_path: Path) -> None:
    """The router may get a message twice then: the second copy is the same ciphertext and not shown."""
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await settle()
        server = alice.rt.ground.servers[0].server
        crash = Crash(alice, 1, heard=True)
        with crash.waiting():
            await ours.send(b"one")
            await crash.happened.wait()
            await alice.agent.close()
        async with party(tmp_path / "a.db", server, config=on_network(network)) as again:
            await again.agent.connection(ours.id).send(b"two")
            bodies = [(await bob.message()).msg for _ in range(2)]
            assert [(got.body, got.integrity) for got in bodies] == [(b"one", MsgOk()), (b"two", MsgOk())]
            await settle()
            assert bob.names().count("MSG") == 2


@virtual
async def test_rows_that_cannot_be_read_are_put_aside(tmp_path: Path) -> None:
    """A damaged message or command is reported, and those behind it are processed."""
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, _ = await connect(alice, bob)
        await settle()
        server = alice.rt.ground.servers[0].server
        with alice.rt.ground.transaction() as tx:
            whole = connections.load_whole(tx, ours.id)
            damaged = enqueue(tx, whole, AMsg(b"damaged")).internal_id
            enqueue(tx, whole, AMsg(b"whole"))
            tx.sql.execute(
                "UPDATE snd_messages SET msg_encrypt_key = x'00' WHERE internal_id = ?", (damaged,)
            )
            tx.command(ours.id, None, "JOIN", b"damaged")
            tx.command(ours.id, None, "NOBODY")
        await alice.agent.close()
        async with party(tmp_path / "a.db", server, config=on_network(network)) as again:
            failed = await again.next_of(SendFailed)
            assert (failed.msg_id, failed.error.word) == (damaged, "INTERNAL")
            got = (await bob.message()).msg
            assert (got.body, got.integrity) == (b"whole", MsgSkipped(damaged, damaged))
            left = again.rt.ground.store.reading.sql.execute("SELECT count(*) FROM commands WHERE failed = 0")
            assert left.fetchone() == (0,)
