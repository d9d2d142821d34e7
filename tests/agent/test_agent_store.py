"""The agent's file: sealed, counted, backed up, cleaned, and opened by one process at a time."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from blindpost.agent import (
    Agent,
    AgentError,
    ConnType,
    InactiveError,
    PassphraseError,
    RatchetSync,
    Retention,
    StoreFailedError,
    SyncState,
)
from blindpost.agent.cleanup import clean
from blindpost.agent.model import CONN_CHANGES, CONN_TYPES, ConnMode
from blindpost.agent.queues.making import new_snd_queue
from blindpost.agent.store import connections, messages, queues
from blindpost.agent.store.database import AgentStore, Memo
from blindpost.crypto.ids_hash import QueueSet
from blindpost.store.sqlite import StoreInUseError
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.queue_addresses import QueueInfo
from tests.support.agent.agents import connect, on_network, party, quick_config, two_parties
from tests.support.client.scripted_router import settle, virtual
from tests.support.router.routers import running_router


def bytes_of(folder: Path) -> bytes:
    """Everything the store has on disk."""
    return b"".join(file.read_bytes() for file in folder.glob("a.db*"))


@virtual
async def test_sealed_store_shows_nothing_and_opens_with_its_passphrase_only(tmp_path: Path) -> None:
    network, path = MemoryNetwork(), tmp_path / "a.db"
    config = on_network(network)
    async with running_router(tmp_path / "router", network=network) as router:
        async with (
            party(path, router.server, config=config, passphrase="correct horse") as alice,
            party(tmp_path / "b.db", router.server, config=config) as bob,
        ):
            ours, theirs = await connect(alice, bob)
            await theirs.send(b"a secret message")
            message = (await alice.message(ack=False)).msg
            (queue,) = queues.rcv_queues(alice.rt.ground.store.reading, ours.id)
            await alice.agent.close()
        stored = bytes_of(tmp_path)
        for secret in (queue.key.raw, queue.e2e_key.raw, queue.dh_secret, message.body):
            assert secret not in stored
        for wrong in ("wrong horse", None):
            with pytest.raises(PassphraseError):
                AgentStore.open(path, wrong)
        async with party(path, router.server, config=config, passphrase="correct horse") as alice:
            assert (await alice.message()).msg.body == b"a secret message"


def test_plain_store_is_not_sealed_later(tmp_path: Path) -> None:
    AgentStore.open(tmp_path / "a.db").close()
    with pytest.raises(PassphraseError):
        AgentStore.open(tmp_path / "a.db", "too late")


@virtual
async def test_backup_is_a_whole_agent(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with two_parties(tmp_path, network=network) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        await settle()
        alice.agent.backup(tmp_path / "copy.db")
        with pytest.raises(FileExistsError):
            alice.agent.backup(tmp_path / "copy.db")
        server = alice.rt.ground.servers[0].server
        await alice.agent.close()
        async with party(tmp_path / "copy.db", server, config=on_network(network)) as restored:
            await restored.expect(RatchetSync, lambda event: event.state is SyncState.OK)
            await restored.agent.connection(ours.id).send(b"from the copy")
            assert (await bob.message()).msg.body == b"from the copy"
            await theirs.send(b"to the copy")
            assert (await restored.message()).msg.body == b"to the copy"


INSERT = "INSERT INTO settings (name, value) VALUES (?, x'01')"
COUNT = "SELECT count(*) FROM settings WHERE name = 'mine'"


def joined(store: AgentStore) -> None:
    """A change that nobody waits for."""
    with store.part():
        store.reading.sql.execute(INSERT, ("mine",))


def has_change(store: AgentStore) -> bool:
    return bool(store.reading.sql.execute(COUNT).fetchone()[0])


def test_a_backup_has_what_was_not_committed_yet_and_says_what_it_is(tmp_path: Path) -> None:
    with closing(AgentStore.open(tmp_path / "a.db")) as store:
        joined(store)
        store.backup(tmp_path / "copy.db")
        assert not store.is_copy
    with closing(sqlite3.connect(tmp_path / "copy.db")) as file:
        assert file.execute(COUNT).fetchone() == (1,)
        assert file.execute("SELECT count(*) FROM settings WHERE name = 'copy'").fetchone() == (1,)
    with closing(AgentStore.open(tmp_path / "copy.db")) as copy:
        assert copy.is_copy
        copy.forget_copy()
        assert not copy.is_copy


def test_half_of_a_transaction_is_in_no_backup(tmp_path: Path) -> None:
    with closing(AgentStore.open(tmp_path / "a.db")) as store:
        with store.transaction(), pytest.raises(RuntimeError, match="inside of a transaction"):
            store.backup(tmp_path / "copy.db")
        assert not (tmp_path / "copy.db").exists()


def test_what_nobody_waited_for_is_stored_when_the_store_is_closed(tmp_path: Path) -> None:
    store = AgentStore.open(tmp_path / "a.db")
    joined(store)
    store.close()
    with pytest.raises(InactiveError, match="the agent is closed"):
        store.reading  # noqa: B018
    store.close()
    with pytest.raises(RuntimeError):
        store._thread.submit(print)
    with closing(AgentStore.open(tmp_path / "a.db")) as again:
        assert has_change(again)
        assert not again.is_copy


def test_the_file_is_closed_when_the_thread_has_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    store = AgentStore.open(tmp_path / "a.db")

    def noted(owner: object, method: str, name: str) -> None:
        original = getattr(owner, method)

        def note() -> None:
            original()
            order.append(name)

        monkeypatch.setattr(owner, method, note)

    noted(store._thread, "shutdown", "thread")
    noted(store._file, "close", "file")
    store.close()
    assert order == ["thread", "file"]


def test_a_store_that_is_trusted_no_more_is_closed_all_the_same(tmp_path: Path) -> None:
    """It is the same file at the next start, and no copy."""
    store = AgentStore.open(tmp_path / "a.db")
    numbers = lives_of(store)
    store._break(StoreFailedError("the log cannot be synced"))
    store.close()
    with closing(AgentStore.open(tmp_path / "a.db")) as again:
        assert not again.is_copy
        assert lives_of(again)[1] == numbers[0], "closing it has written nothing"


def lives_of(store: AgentStore) -> list[bytes]:
    query = "SELECT value FROM settings WHERE name IN ('life', 'life_before') ORDER BY name"
    return [bytes(value) for (value,) in store.reading.sql.execute(query)]


async def test_one_process_at_a_time(tmp_path: Path) -> None:
    async with Agent.open(tmp_path / "a.db", config=quick_config()):
        with pytest.raises(StoreInUseError):
            AgentStore.open(tmp_path / "a.db")


@virtual
async def test_service_counts_follow_the_queues(tmp_path: Path) -> None:
    """Count and hash in the row equal those of the queues, whatever happens to them."""
    async with two_parties(tmp_path) as (alice, _):
        links = [await alice.agent.invite() for _ in range(3)]
        db = alice.rt.ground.store.reading
        made = [queues.rcv_queues(db, link.conn.id)[0] for link in links]
        with alice.rt.ground.transaction() as tx:
            tx.sql.execute(
                "INSERT INTO client_services (user_id, host, port, service_cert, service_cert_hash,"
                " service_priv_key) SELECT 1, host, port, x'', x'', x'' FROM servers"
            )

            def counted() -> QueueSet:
                row = tx.sql.execute(
                    "SELECT service_queue_count, service_queue_ids_hash FROM client_services"
                ).fetchone()
                return QueueSet(*row)

            def expected() -> QueueSet:
                query = "SELECT rcv_id FROM rcv_queues WHERE rcv_service_assoc = 1 AND deleted = 0"
                return QueueSet.of(rcv_id for (rcv_id,) in tx.sql.execute(query))

            assert counted() == QueueSet()
            tx.sql.execute("UPDATE rcv_queues SET rcv_service_assoc = 1")
            assert counted() == expected() == QueueSet.of(queue.rcv_id for queue in made)
            tx.sql.execute("UPDATE rcv_queues SET rcv_service_assoc = 1")
            assert counted() == expected()
            queues.set_rcv_deleted(tx, made[0])
            assert counted() == expected() == QueueSet.of(queue.rcv_id for queue in made[1:])
            connections.delete(tx, made[1].conn_id)
            assert counted() == expected() == QueueSet.of([made[2].rcv_id])
            tx.sql.execute("UPDATE rcv_queues SET rcv_service_assoc = 0")
            assert counted() == QueueSet()


@pytest.mark.claim("CON-63")
@virtual
async def test_old_records_are_deleted(tmp_path: Path) -> None:
    config = quick_config(retention=Retention(remembered_s=100, cleanup_first_s=1e9))
    async with two_parties(tmp_path, config) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        await ours.send(b"sent")
        await bob.message()
        await theirs.send(b"received")
        await alice.message()
        await settle()
        sql = alice.rt.ground.store.reading.sql
        with alice.rt.ground.transaction() as tx:
            tx.sql.execute(
                "INSERT INTO processed_ratchet_key_hashes (conn_id, hash, created_at) VALUES (?, x'00', ?)",
                (ours.id, tx.now - 200),
            )
            messages.remember_hash(tx, ours.id, b"old", tx.now - 200)
        counts = (
            "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM encrypted_rcv_message_hashes),"
            " (SELECT count(*) FROM processed_ratchet_key_hashes)"
        )
        assert sql.execute(counts).fetchone() == (1, 2, 1)
        await clean(alice.rt.ground, alice.rt.deletion)
        assert sql.execute(counts).fetchone() == (1, 1, 0)
        alice.rt.ground.config.now.__self__._start += 200  # type: ignore[attr-defined]  # a clock of the loop
        await clean(alice.rt.ground, alice.rt.deletion)
        assert sql.execute(counts).fetchone() == (0, 0, 0)


@pytest.mark.claim("CON-25")
@virtual
async def test_other_changes_of_type_are_refused(tmp_path: Path) -> None:
    """An address never gets a send queue."""
    async with two_parties(tmp_path) as (alice, bob):
        address = await alice.agent.address()
        ours, _ = await connect(alice, bob)
        info = QueueInfo(4, queues.rcv_queues(alice.rt.ground.store.reading, ours.id)[0].address)
        with pytest.raises(AgentError), alice.rt.ground.transaction() as tx:
            new_snd_queue(tx, address.conn.id, 1, info)
        assert queues.snd_queues(alice.rt.ground.store.reading, address.conn.id) == ()


@pytest.mark.claim("CON-25")
def test_table_of_connection_types_is_complete() -> None:
    """Every pair of mode and queues is named, and every change of type is listed or refused."""
    assert len(CONN_TYPES) == len(ConnMode) * 4
    assert {kind for kind in CONN_TYPES.values() if kind is not None} == set(ConnType)
    allowed = {(one.value, other.value) for one, other in CONN_CHANGES}
    assert allowed == {
        ("new", "rcv"),
        ("new", "snd"),
        ("new", "contact"),
        ("rcv", "contact"),
        ("rcv", "duplex"),
        ("snd", "duplex"),
    }


def test_cache_of_rows_is_bounded_and_never_stale() -> None:
    memo, read = Memo(2), list[int]()

    def reading(value: int) -> int:
        read.append(value)
        return value

    for value in (1, 2, 1, 3, 1, 1):
        assert memo.of("kind", (value,), functools.partial(reading, value)) == value
    assert read == [1, 2, 3, 1]


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (a)")
    other.commit()
    other.close()
    with pytest.raises(Exception, match="not a Blindpost database"):
        AgentStore.open(path)
