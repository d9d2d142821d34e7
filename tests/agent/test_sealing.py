"""A sealed store without its passphrase shows sizes and times; each value opens only in its own place."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import PassphraseError
from blindpost.agent.model import ConnMode, MessageKind
from blindpost.agent.store import connections, messages, queues, ratchets
from blindpost.agent.store.database import ERASED_AFTER_S, AgentStore
from blindpost.agent.store.places import BLINDED, OLD_CLEAR, SEALED
from blindpost.agent.store.schema import MIGRATIONS
from blindpost.agent.store.vault import FirstFormat, SealedVault, Stretching, Vault, known_vault, new_vault
from blindpost.crypto.boxes import NONCE_SIZE, BoxKey
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.ratchet_storage import dump_ratchet
from blindpost.store.sqlite import SqliteStore
from blindpost.testing.network import MemoryNetwork
from tests.support.agent.agents import Party, connect, on_network, party
from tests.support.client.scripted_router import settle, virtual
from tests.support.router.routers import running_router

QUICK = Stretching(passes=1, memory_kib=8 * 1024)
SHORT = b"yes"

IN_CLEAR = {
    # Names of rows, places of routers and ids at them, kinds, states, counts and times.
    r"user_id|conn_id|confirmation_id|invitation_id|contact_conn_id|corr_id|command_id|id|space|key|name",
    r"host|port|key_hash|server_key_hash|(smp|ntf)_(host|port|key_hash|server_key_hash)",
    r"rcv_id|snd_id|link_id|ntf_id|smp_ntf_id|ntf_sub_id|tkn_id|broker_id|service_id|provider",
    r"(rcv|snd)_queue_id|replace_(rcv|snd)_queue_id|internal_(rcv_|snd_)?id|external_snd_id|rcpt_internal_id",
    r"last_(internal|external)\w*_id|snd_message_delivery_id|\w+_hash_id|msg_n",
    r"conn_mode|queue_mode|ntf_mode|msg_type|msg_flags|command_tag|\w*status|\w+_state|\w+_version",
    r"enable_ntfs|pq_support|pq_encryption|auto_allow|deleted|\w+_primary|accepted|user_ack|sent|failed",
    r"\w+_assoc|to_subscribe|delete_errors|receive_attempts|(ntf|smp)_failed|service_queue_count",
    r"service_queue_ids_hash|padded_msg_len|retry_int_(slow|fast)|tkn_period|updated_by_supervisor",
    r"first_id|last_id|event_id",
    r"\w+_ts|\w+_at|deleted_at_wait_delivery|ntf_sub_action|ntf_sub_smp_action|value|device_token|hash|link_hash",
}


def bytes_of(folder: Path) -> bytes:
    """Everything the store has on disk."""
    return b"".join(file.read_bytes() for file in folder.glob("a.db*"))


def cells(sql: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    yield from sql.execute(f"SELECT {', '.join(columns)} FROM {table}")  # noqa: S608 (names of ours)


def opened_everywhere(sql: sqlite3.Connection, vault: Vault) -> int:
    """Open every sealed value in its place; returns their number."""
    found = 0
    for table, places in SEALED.items():
        for row_columns, columns in places.items():
            for column in columns:
                for value, *row in cells(sql, table, (column, *row_columns)):
                    if value is not None:
                        vault.open(value, f"{table}.{column}", *row)
                        found += 1
    return found


def schema() -> Iterator[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        for migration in MIGRATIONS:
            assert isinstance(migration, str)
            memory.executescript(migration)
        tables = memory.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (table,) in tables:
            if not table.startswith("sqlite_"):
                for _, column, *_ in memory.execute(f"PRAGMA table_info({table})"):
                    yield table, column


def test_every_column_is_sealed_blinded_or_known_to_be_clear() -> None:
    hidden = {
        (table, column) for table, places in SEALED.items() for each in places.values() for column in each
    }
    hidden |= {(table, column) for table, columns in BLINDED.items() for column in columns}
    there = set(schema())
    assert hidden <= there
    clear = re.compile("|".join(f"(?:{words})" for words in IN_CLEAR))
    undecided = [place for place in sorted(there - hidden) if not clear.fullmatch(place[1])]
    assert not undecided


async def lived(alice: Party, bob: Party) -> None:
    """Some activity, so that most tables have rows."""
    ours, theirs = await connect(alice, bob)
    await theirs.send(SHORT)
    await alice.message(ack=False)
    await ours.send(SHORT)
    await bob.message()
    await alice.agent.invite()
    await settle()


def test_hashes_of_short_messages_are_not_on_disk(tmp_path: Path) -> None:
    store = AgentStore.open(tmp_path / "a.db", "passphrase", stretching=QUICK)
    digest, other = hashlib.sha256(SHORT).digest(), hashlib.sha256(b"no").digest()
    with store.transaction() as db:
        connections.insert(db, "c", 1, ConnMode.INVITATION, agent_version=7, pq_support=True)
        record = connections.load(db, "c")
        connections.set_last_rcv(db, record, 1, other)
        record = connections.load(db, "c")
        new = messages.NewSndMessage(
            *record.next_snd, next(iter(MessageKind)), b"", digest, other, False, False
        )
        messages.insert_snd(db, record, new, None, (), 1)
        messages.remember_hash(db, "c", digest, 1)
    assert connections.load(store.reading, "c").last_snd_hash == digest
    assert messages.is_known_hash(store.reading, "c", digest)
    store.close()
    stored = bytes_of(tmp_path)
    for each in (digest, other):
        assert each not in stored


@virtual
async def test_every_value_of_a_used_sealed_store_opens_in_its_place(tmp_path: Path) -> None:
    network = MemoryNetwork()
    config = on_network(network)
    async with (
        running_router(tmp_path / "router", network=network) as router,
        party(tmp_path / "a.db", router.server, config=config, passphrase="one") as alice,
        party(tmp_path / "b.db", router.server, config=config) as bob,
    ):
        await lived(alice, bob)
        db = alice.rt.ground.store.reading
        assert isinstance(db.vault, SealedVault)
        assert opened_everywhere(db.sql, db.vault) > 20
        (number,) = db.sql.execute("SELECT count(*) FROM rcv_queues").fetchone()
        assert number == 2
        a, b = [row[0] for row in db.sql.execute("SELECT rcv_private_key FROM rcv_queues").fetchall()]
        with alice.rt.ground.transaction() as tx:
            swap = "UPDATE rcv_queues SET rcv_private_key = CASE rcv_private_key WHEN ? THEN ? ELSE ? END"
            tx.sql.execute(swap, (a, b, a))
        with pytest.raises(CryptoError):
            opened_everywhere(db.sql, db.vault)
        for conn_id in connections.conn_ids(db):
            with pytest.raises(CryptoError):
                queues.rcv_queues(db, conn_id)


def as_first_format(path: Path, passphrase: str, key: bytes, salt: bytes) -> None:
    """Turn a plain store into one sealed with this key in the first format."""
    box = BoxKey(key)

    def seal(value: bytes) -> bytes:
        nonce = system_entropy(NONCE_SIZE)
        return nonce + bytes(box.seal(nonce, value))

    sql = sqlite3.connect(path)
    sql.create_function("ids_hash_xor", 2, lambda a, _: a, deterministic=True)
    for table, places in SEALED.items():
        for columns in places.values():
            for column in columns:
                if column in OLD_CLEAR.get(table, ()):
                    continue
                sql.create_function("sealed", 1, lambda value: None if value is None else seal(value))
                sql.execute(f"UPDATE {table} SET {column} = sealed({column})")  # noqa: S608 (names of ours)
    rows = [("salt", salt), ("check", seal(b"Blindpost agent"))]
    sql.executemany("INSERT INTO settings (name, value) VALUES (?, ?)", rows)
    sql.commit()
    sql.close()


def content(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as sql:
        return list(sql.iterdump())


def first_key(passphrase: str, salt: bytes) -> bytes:
    return hashlib.scrypt(passphrase.encode(), salt=salt, n=1 << 15, r=8, p=1, maxmem=64 << 20, dklen=32)


@virtual
async def test_a_store_in_the_first_format_is_resealed_when_opened(tmp_path: Path) -> None:
    network, path = MemoryNetwork(), tmp_path / "a.db"
    config = on_network(network)
    async with (
        running_router(tmp_path / "router", network=network) as router,
        party(tmp_path / "b.db", router.server, config=config) as bob,
    ):
        async with party(path, router.server, config=config) as alice:
            await lived(alice, bob)
        salt = bytes(16)
        as_first_format(path, "old words", first_key("old words", salt), salt)
        shutil.copy(path, tmp_path / "old.db")
        for wrong in ("other words", None):
            with pytest.raises(PassphraseError):
                AgentStore.open(path, wrong)
        assert content(path) == content(tmp_path / "old.db"), "nothing changed"
        async with party(path, router.server, config=config, passphrase="old words") as alice:
            db = alice.rt.ground.store.reading
            assert opened_everywhere(db.sql, db.vault) > 20
            assert (await alice.message()).msg.body == SHORT
            names = {name for (name,) in db.sql.execute("SELECT name FROM settings")}
            assert {name for name in names if not name.startswith("life")} == {"intake", "made", "vault"}
            (clear,) = {connections.load(db, each).last_rcv_hash for each in connections.conn_ids(db)} - {b""}
        stored = bytes_of(tmp_path)
        assert clear not in stored
        assert clear in (tmp_path / "old.db").read_bytes()


def test_only_what_was_resealed_is_erased_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a copy of the log; an ordinary start does without."""
    path, salt, erased = tmp_path / "a.db", bytes(16), []
    original = SqliteStore.erase

    def erase(file: SqliteStore) -> None:
        erased.append(file.path)
        original(file)

    AgentStore.open(path).close()
    monkeypatch.setattr(SqliteStore, "erase", erase)
    with contextlib.closing(AgentStore.open(path)):
        assert erased == []
    as_first_format(path, "words", first_key("words", salt), salt)
    erased.clear()
    with contextlib.closing(AgentStore.open(path, "words", stretching=QUICK)):
        assert erased == [path]


def test_a_store_killed_while_being_resealed_is_unchanged(tmp_path: Path) -> None:
    path, salt = tmp_path / "a.db", bytes(16)
    store = AgentStore.open(path)
    with store.transaction() as db:
        for number in range(50):
            connections.insert(db, f"c{number}", 1, ConnMode.INVITATION, agent_version=7, pq_support=True)
    store.close()
    as_first_format(path, "words", first_key("words", salt), salt)
    child = f"""
import os, signal
from pathlib import Path
from blindpost.agent.store import database, upgrading
from blindpost.agent.store.vault import SealedVault
seal, count = SealedVault.seal, iter(range(60))
def counted(self, *arguments):
    if next(count) == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return seal(self, *arguments)
SealedVault.seal = counted
database.AgentStore.open(Path({str(path)!r}), "words")
"""
    killed = subprocess.run([sys.executable, "-c", child], check=False)
    assert killed.returncode == -signal.SIGKILL
    store = AgentStore.open(path, "words", stretching=QUICK)
    assert connections.load(store.reading, "c49").own_info == b""
    assert opened_everywhere(store.reading.sql, store.reading.vault) == 150
    store.close()


def test_a_value_opens_only_in_its_place() -> None:
    vault, kept = new_vault("words", system_entropy, QUICK)
    sealed = vault.seal(b"secret", "messages.msg_body", "c", 1)
    assert vault.open(sealed, "messages.msg_body", "c", 1) == b"secret"
    for column, row in (
        ("messages.msg_body", ("c", 2)),
        ("messages.msg_body", ("d", 1)),
        ("messages.msg_body", ("c1",)),
        ("messages.other", ("c", 1)),
    ):
        with pytest.raises(CryptoError):
            vault.open(sealed, column, *row)
    assert known_vault("words", kept, system_entropy).open(sealed, "messages.msg_body", "c", 1) == b"secret"
    assert vault.blind(b"a", "t.c") != vault.blind(b"a", "t.d")


@pytest.mark.parametrize("damaged", [b"", b"\x02", b"\x03" * 97])
def test_damaged_key_material_is_reported(damaged: bytes) -> None:
    with pytest.raises(PassphraseError):
        known_vault("words", damaged, system_entropy)


def test_a_file_cannot_ask_for_all_memory() -> None:
    _, kept = new_vault("words", system_entropy, QUICK)
    with pytest.raises(PassphraseError):
        known_vault("words", kept[:5] + b"\xff\xff\xff\xff" + kept[9:], system_entropy)


def test_the_first_format_refuses_a_wrong_passphrase() -> None:
    with pytest.raises(PassphraseError):
        FirstFormat("words", bytes(16), bytes(80))


@virtual
async def test_superseded_keys_are_in_no_file_after_the_stated_time(tmp_path: Path) -> None:
    """Without a passphrase, so that any key left on disk would be found."""
    network, path = MemoryNetwork(), tmp_path / "a.db"
    config = on_network(network)
    async with (
        running_router(tmp_path / "router", network=network) as router,
        party(path, router.server, config=config) as alice,
        party(tmp_path / "b.db", router.server, config=config) as bob,
    ):
        ours, theirs = await connect(alice, bob)
        await settle()
        db = alice.rt.ground.store.reading
        states = []
        for number in range(20):
            ratchet = ratchets.find_ratchet(db, ours.id)
            assert ratchet is not None
            states.append(dump_ratchet(ratchet))
            await (ours if number % 2 else theirs).send(b"m%d" % number)
            await (bob if number % 2 else alice).message()
        await settle()
        now = ratchets.find_ratchet(db, ours.id)
        assert now is not None
        await asyncio.sleep(ERASED_AFTER_S)
        await settle()
        stored = bytes_of(tmp_path)
        current = parts_of(dump_ratchet(now))
        assert sum(part in stored for part in current) > len(current) // 2, "such parts are found"
        kept = dump_ratchet(now)
        superseded = {part for state in states for part in parts_of(state) if part not in kept}
        assert len(superseded) > 100
        assert not [part for part in superseded if part in stored]


def parts_of(state: bytes) -> set[bytes]:
    """Short enough that some fit within a page: a ratchet is longer than one."""
    return {state[start : start + 32] for start in range(0, len(state) - 31, 32)}
