"""What the stores keep: sets and their hashes, rows under a key, and what happens when they fail."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from blindpost.crypto.errors import CryptoError
from blindpost.engine.loop import StoreFailedError
from blindpost.engine.undo import Undo
from blindpost.ntf import schema_postgres, schema_sqlite
from blindpost.ntf.machines import SubEvent
from blindpost.ntf.model import Token
from blindpost.ntf.ports import NmsgReceived, SubscriptionsChanged
from blindpost.ntf.records import Records
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.tables import COUNTERS, NtfStore, WrongKeyError
from blindpost.ntf.view import Needed, View, Wanted
from blindpost.store.postgres import PostgresStore, Schema
from blindpost.store.sqlite import NTF, SqliteStore
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Host, Server
from blindpost.wire.ntf.commands import PING, TCHK, TCRN, TDEL
from blindpost.wire.ntf.responses import ERR, OK, PONG
from blindpost.wire.smp.errors import STORE
from tests.support.ntf.in_memory import a_token
from tests.support.ntf.routers import (
    ON_BOTH,
    SMP,
    STORE_KEY,
    RunningNtf,
    active_device,
    device_token,
    open_tables,
    running_ntf,
    some_queue,
)
from tests.support.ntf.stores import RawStore
from tests.support.router.routers import DATABASE_FILE, new_credentials
from tests.support.serving.waiting import until

STATES = ("NEW", "PENDING", "ACTIVE", "INACTIVE", "END", "DELETED", "AUTH", "SERVICE", "ERR")


@pytest.mark.both_stores
@pytest.mark.claim("SVC-64")
async def test_triggers_keep_what_recomputation_finds(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    servers = [SMP, Server((Host("two.example.org"),), "", b"2" * 32)]
    for number in range(12):
        await device.subscribe(some_queue(number, servers[number % 2]))
    raw, chance = RawStore(ntf.router.store), random.Random(64)
    rows = await raw.fetch("SELECT subscription_id, server FROM subscriptions ORDER BY subscription_id")
    ids = [bytes(subscription_id) for subscription_id, _ in rows]
    names = sorted({bytes(server) for _, server in rows})
    seen = set()
    for _ in range(150):
        edit, subscription_id = chance.randrange(5), chance.choice(ids)
        if edit == 0:
            await raw.fetch(
                "UPDATE subscriptions SET state = ? WHERE subscription_id = ?",
                chance.choice(STATES),
                subscription_id,
            )
        elif edit == 1:
            await raw.fetch(
                "UPDATE subscriptions SET associated = ? WHERE subscription_id = ?",
                chance.random() < 0.6,
                subscription_id,
            )
        elif edit == 2:
            await raw.fetch(
                "UPDATE subscriptions SET server = ?, id_hash = ? WHERE subscription_id = ?",
                chance.choice(names),
                chance.randbytes(16),
                subscription_id,
            )
        elif edit == 3:
            await raw.fetch("DELETE FROM subscriptions WHERE subscription_id = ?", subscription_id)
        else:
            await raw.fetch(
                "INSERT INTO subscriptions (subscription_id, token_id, server, notifier, id_hash, sealed, "
                "state, error, associated) VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?) "
                "ON CONFLICT (subscription_id) DO UPDATE SET associated = excluded.associated",
                subscription_id,
                device.token_id,
                chance.choice(names),
                chance.randbytes(32),
                chance.randbytes(16),
                b"sealed",
                chance.choice(STATES),
                chance.random() < 0.7,
            )
        members = await raw.members()
        assert members == await raw.recomputed()
        seen.add(sum(queues.count for queues in members.values()))
    assert len(seen) > 3
    await raw.fetch("DELETE FROM tokens WHERE token_id = ?", device.token_id)
    members = await raw.members()
    assert {queues.count for queues in members.values()} == {0}
    assert {queues.ids_hash for queues in members.values()} == {bytes(16)}


@ON_BOTH
async def test_a_store_opens_with_its_own_key_only(tmp_path: Path) -> None:
    store = await open_tables(tmp_path)
    store.close()
    with pytest.raises(WrongKeyError, match="sealed with another key"):
        await open_tables(tmp_path, os.urandom(32))
    (await open_tables(tmp_path)).close()


def test_sealed_bytes_belong_to_their_row_and_key() -> None:
    sealer = Sealer(STORE_KEY)
    sealed = sealer.seal(b"row", b"content")
    assert sealer.unseal(b"row", sealed) == b"content"
    assert sealer.seal(b"row", b"content") != sealed
    for other, row, changed in (
        (sealer, b"other", sealed),
        (Sealer(bytes(32)), b"row", sealed),
        (sealer, b"row", sealed[:-1] + bytes((sealed[-1] ^ 1,))),
        (sealer, b"row", b""),
    ):
        with pytest.raises((CryptoError, ValueError)):
            other.unseal(row, changed)
    assert sealer.blind(b"device", b"x") == Sealer(STORE_KEY).blind(b"device", b"x")
    assert sealer.blind(b"device", b"x") != sealer.blind(b"server", b"x")
    assert sealer.blind(b"ab", b"c") != sealer.blind(b"a", b"bc")
    with pytest.raises(ValueError, match="32 bytes"):
        Sealer(b"short")


@ON_BOTH
async def test_a_damaged_row_harms_nobody_else(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queues = [some_queue(1), some_queue(2)]
    for queue in queues:
        await device.subscribe(queue)
    raw = RawStore(ntf.router.store)
    await raw.fetch(
        "UPDATE subscriptions SET sealed = ? WHERE subscription_id = "
        "(SELECT subscription_id FROM subscriptions ORDER BY subscription_id LIMIT 1)",
        b"damaged",
    )
    assert len(await ntf.router.page(SMP, b"", 10, with_associated=True)) == 1
    await ntf.nmsg(*queues)
    await ntf.settled()
    assert ntf.ledger()["accepted"] == 1
    assert await device.status() == "ACTIVE"


class Failing:
    """A store whose next commits or reads fail."""

    def __init__(self, store: NtfStore) -> None:
        self._store = store
        self.commits_failing = self.loads_failing = 0

    async def load(self, wanted: Wanted, view: View) -> None:
        if self.loads_failing:
            self.loads_failing -= 1
            raise StoreFailedError("no")
        await self._store.load(wanted, view)

    async def load_needed(self, needed: Needed, view: View) -> None:
        await self._store.load_needed(needed, view)

    async def commit(self, view: View) -> None:
        if self.commits_failing:
            self.commits_failing -= 1
            raise StoreFailedError("no")
        await self._store.commit(view)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


async def test_a_command_that_cannot_be_stored_fails_and_leaves_no_trace(
    ntf: RunningNtf, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    await ntf.settled()
    failing = Failing(ntf.router.store)
    monkeypatch.setattr(ntf.router.plan, "_store", failing)
    pushed, counters = len(ntf.apple.pushed), ntf.router.plan.meters.values()
    failing.commits_failing = 1
    assert await device.ask(TDEL()) == ERR(STORE("not stored"))
    failing.loads_failing = 1
    assert await device.ask(TCHK()) == ERR(STORE("not stored"))
    failing.commits_failing = 1
    with pytest.raises(StoreFailedError):
        await ntf.nmsg(queue)
    assert len(ntf.apple.pushed) == pushed, "nothing is pushed that is not stored"
    after = ntf.router.plan.meters.values()
    assert {name for name in after if after[name] != counters[name]} == {"store_errors"}
    assert ntf.subscriber.forgotten == []
    await ntf.nmsg(queue)
    await ntf.settled()
    assert ntf.ledger()["accepted"] == 1
    assert await device.status() == "ACTIVE"


async def test_an_outcome_that_cannot_be_stored_is_stored_later(
    ntf: RunningNtf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.ntf.plan.RETRY_S", 0.001)
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    await ntf.settled()
    failing = Failing(ntf.router.store)
    monkeypatch.setattr(ntf.router.plan, "_store", failing)
    ntf.apple.open.clear()
    await ntf.nmsg(queue)
    await ntf.apple.next()
    failing.commits_failing = 1
    ntf.apple.open.set()
    await until(lambda: ntf.ledger()["accepted"] == 1)
    assert len(ntf.apple.pushed) == 2
    assert ntf.ledger()["waiting"] == 0


async def test_a_bug_in_one_decision_is_answered_and_rolled_back(
    ntf: RunningNtf, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    monkeypatch.setattr("blindpost.ntf.tokens.set_period", lambda *_: 1 / 0)
    monkeypatch.setattr("blindpost.ntf.ledger.accept", lambda *_: 1 / 0)
    answer = await device.ask(TCRN(20))
    assert isinstance(answer, ERR)
    assert answer.error.value == b"INTERNAL"  # type: ignore[union-attr]  # a code without a text
    with pytest.raises(StoreFailedError):
        await ntf.nmsg(queue)
    assert await device.client.send(PING()) == PONG()
    assert ntf.router.store.received == 0


@ON_BOTH
async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    network, credentials = MemoryNetwork(), new_credentials()
    queue = some_queue()
    async with running_ntf(tmp_path, network=network, credentials=credentials) as ntf:
        device = await active_device(ntf)
        subscription_id = await device.subscribe(queue)
        assert await device.ask(TCRN(40)) == OK()
        await ntf.router.submit([SubscriptionsChanged(SMP, (queue.notifier_id,), SubEvent.CONFIRMED)])
        await ntf.nmsg(queue)
        await ntf.settled()
        counts = ntf.router.store.counts()
        view = View(Undo(), 0)
        await ntf.router.store.load(Wanted(tokens={device.token_id}), view)
        token = view.tokens.get(device.token_id)
    async with running_ntf(tmp_path, network=network, credentials=credentials) as ntf:
        assert ntf.router.store.counts() == counts
        view = View(Undo(), 0)
        await ntf.router.store.load(Wanted(tokens={device.token_id}), view)
        assert view.tokens.get(device.token_id) == token
        device.client = await ntf.connect()
        assert await device.status() == "ACTIVE"
        assert await device.sub_status(subscription_id) == b"ACTIVE"
        (notifier,) = await ntf.router.page(SMP, b"", 10, with_associated=False)
        assert notifier.key == queue.key.encoded
        await ntf.router.submit([NmsgReceived(SMP, queue.notifier_id, b"x" * 24, b"m" * 144)])
        await ntf.settled()
        assert ntf.router.store.received == 2


@pytest.mark.both_stores
async def test_a_ledger_without_providers_counts_as_apples(tmp_path: Path, store_kind: str) -> None:
    if store_kind == "sqlite":
        before = SqliteStore.open(tmp_path / "ntf.db", schema_sqlite.MIGRATIONS[:1], NTF)
        with before.transaction() as sql:
            written = [("ledger_accepted", 7), ("ledger_waiting", 1)]
            sql.executemany("INSERT INTO counters VALUES (?, ?)", written)
        before.close()
    else:
        first = schema_postgres.MIGRATIONS[:1]
        schema = Schema("blindpost_ntf", first, ("ledger_accepted", "ledger_waiting"))
        kept = await PostgresStore.open((tmp_path / DATABASE_FILE).read_text(), schema)
        await kept.commit([[]], {"ledger_accepted": 7, "ledger_waiting": 1})
        kept.close()
    store = await open_tables(tmp_path)
    assert store.received == 8
    counts = {name: count for name, count in store.counts().items() if count}
    store.close()
    assert counts == {"ledger_apns_accepted": 7, "ledger_apns_waiting": 1}


@pytest.mark.parametrize("spelling", ["ab", "AB", "aB"])
@ON_BOTH
async def test_tokens_from_before_spellings_were_compared_are_found_again(
    tmp_path: Path, store_kind: str, spelling: str
) -> None:
    """By the device as it was stored at once, and by any spelling of it once their row was written again."""
    token = a_token(device=device_token(spelling))
    row = Records(Sealer(STORE_KEY)).token_row(token)[:-1]
    if store_kind == "sqlite":
        before = SqliteStore.open(tmp_path / "ntf.db", schema_sqlite.MIGRATIONS[:2], NTF)
        with before.transaction() as sql:
            sql.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        before.close()
    else:
        schema = Schema("blindpost_ntf", schema_postgres.MIGRATIONS[:2], COUNTERS)
        kept = await PostgresStore.open((tmp_path / DATABASE_FILE).read_text(), schema)
        await kept.fetch("INSERT INTO tokens VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)", *row)
        kept.close()
    store = await open_tables(tmp_path)
    assert await found(store, Wanted(registrations={(token.device, token.verify_key)})) == [token]
    assert await found(store, Needed(rivals={token.device})) == [token]
    view = View(Undo(), 0)
    view.put_token(token)
    await store.commit(view)
    for other in ("ab", "AB", "aB", "Ab"):
        assert await found(store, Needed(rivals={device_token(other)})) == [token]
    assert await found(store, Wanted(registrations={(token.device, token.verify_key)})) == [token]
    store.close()


async def found(store: NtfStore, asked: Wanted | Needed) -> list[Token]:
    view = View(Undo(), 0)
    if isinstance(asked, Wanted):
        await store.load(asked, view)
    else:
        await store.load_needed(asked, view)
    return [token for _, token in view.tokens.items()]
