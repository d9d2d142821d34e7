"""The database of an ntf-server in a new router: every row arrives, or is counted as left out."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import asyncpg

from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.undo import Undo
from blindpost.ntf.process import open_store
from blindpost.ntf.settings import NtfPlace
from blindpost.ntf.view import View, Wanted
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Writer
from blindpost.wire.text import b64
from tests.support.router.services import new_service
from tests.support.serving.commands import run

OLD = """
CREATE SCHEMA ntf_server;
SET search_path TO ntf_server;
CREATE TABLE tokens (token_id bytea PRIMARY KEY, push_provider text NOT NULL,
    push_provider_token bytea NOT NULL, status text NOT NULL, verify_key bytea NOT NULL,
    dh_priv_key bytea NOT NULL, dh_secret bytea NOT NULL,
    reg_code bytea NOT NULL, cron_interval bigint NOT NULL, cron_sent_at bigint, updated_at bigint);
CREATE TABLE smp_servers (smp_server_id bigint PRIMARY KEY, smp_host text NOT NULL, smp_port text NOT NULL,
    smp_keyhash bytea NOT NULL, ntf_service_id bytea, ntf_service_cert bytea, ntf_service_cert_hash bytea,
    ntf_service_priv_key bytea);
CREATE TABLE subscriptions (subscription_id bytea PRIMARY KEY, token_id bytea NOT NULL, smp_server_id bigint,
    smp_notifier_id bytea NOT NULL, smp_notifier_key bytea NOT NULL, status text NOT NULL,
    ntf_service_assoc boolean NOT NULL DEFAULT false);
CREATE TABLE last_notifications (token_ntf_id bigint GENERATED ALWAYS AS IDENTITY, token_id bytea NOT NULL,
    subscription_id bytea NOT NULL, sent_at timestamptz NOT NULL, nmsg_nonce bytea NOT NULL,
    nmsg_data bytea NOT NULL);
"""


def key(algorithm: Algorithm) -> PrivateKey:
    return PrivateKey.generate(algorithm, system_entropy)


async def fill(dsn: str) -> list[bytes]:
    """Tables as ntf-server makes them, with two tokens that can be read and one that cannot; ids."""
    old = await asyncpg.connect(dsn)
    try:
        await old.execute(OLD)
        tokens = [os.urandom(24) for _ in range(3)]
        for token_id, status, period in zip(
            tokens, ("ACTIVE", "CONFIRMED", "NONSENSE"), (0, 20, 0), strict=True
        ):
            await old.execute(
                "INSERT INTO tokens VALUES ($1, 'apns_prod', $2, $3, $4, $5, $6, $7, $8, NULL, $9)",
                *(token_id, os.urandom(32).hex().encode(), status, key(Algorithm.ED25519).public.spki),
                *(key(Algorithm.X25519).pkcs8, os.urandom(32), os.urandom(32), period),
                int(time.time()) // 86_400 * 86_400,
            )
        service, fingerprint = new_service(), os.urandom(32)
        chain = Writer()
        chain.list1(service.chain, lambda out, certificate: out.large(certificate))
        await old.execute(
            "INSERT INTO smp_servers VALUES (1, 'smp.example.org,a.onion', '', $1, $2, $3, $4, $5)",
            *(b64(fingerprint).encode(), os.urandom(24), chain.done(), os.urandom(32), service.key.pkcs8),
        )
        await old.execute("INSERT INTO smp_servers VALUES (2, 'smp2.example.org', '5224', $1)", fingerprint)
        rows = (
            (tokens[0], 1, "ACTIVE", True),
            (tokens[0], 2, "PENDING", False),
            (tokens[2], 2, "NEW", False),
        )
        for number, (token_id, server, status, associated) in enumerate(rows):
            subscription_id = bytes([number]) * 24
            await old.execute(
                "INSERT INTO subscriptions VALUES ($1, $2, $3, $4, $5, $6, $7)",
                *(
                    subscription_id,
                    token_id,
                    server,
                    os.urandom(24),
                    key(Algorithm.ED25519).pkcs8,
                    status,
                    associated,
                ),
            )
            await old.execute(
                "INSERT INTO last_notifications (token_id, subscription_id, sent_at, nmsg_nonce, nmsg_data) "
                "VALUES ($1, $2, to_timestamp(1700000000), $3, $4)",
                *(token_id, subscription_id, os.urandom(24), os.urandom(144)),
            )
        return tokens
    finally:
        await old.close()


async def test_an_old_database_arrives_whole(database: str, tmp_path: Path) -> None:
    tokens = await fill(database)
    run("ntf", "init", tmp_path / "ntf", "--host", "127.0.0.1", "--key-algorithm", "ed25519", "--json")
    words = ("ntf", "import", "--to", tmp_path / "ntf", "--from-database", database)
    done = json.loads(run(*words, "--json").stdout)
    assert done["differing"] == []
    assert done["source"] == done["result"]
    counts = {name: count for name, count in done["result"].items() if isinstance(count, int)}
    assert counts == {"tokens": 2, "subscriptions": 2, "notifications": 2, "services": 1}
    assert done["left"] == {"tokens": 1, "subscriptions": 1, "notifications": 1}
    certificate = json.loads((tmp_path / "ntf" / "import-certificate.json").read_text())
    assert certificate["source"] == done["source"]
    store = await open_store(NtfPlace.read(tmp_path / "ntf"))
    try:
        view = View(Undo(), store.received)
        await store.load(Wanted(tokens=set(tokens)), view)
        active, confirmed = view.tokens.get(tokens[0]), view.tokens.get(tokens[1])
        assert active is not None
        assert confirmed is not None
        assert active.updated_day % 86_400 == 0
        assert abs(active.updated_day - time.time()) < 2 * 86_400
        assert (active.was_verified, confirmed.was_verified, confirmed.period_minutes) == (True, False, 20)
        assert [router.members.count for router in await store.routers()] in ([1, 0], [0, 1])
    finally:
        store.close()
    assert "not empty" in run(*words, code=1).stderr
    other = (*words[:-1], database, "--schema", "elsewhere")
    run("ntf", "init", tmp_path / "b", "--host", "127.0.0.1", "--key-algorithm", "ed25519", "--json")
    assert "not that of an ntf-server" in run(*other[:3], tmp_path / "b", *other[4:], code=1).stderr
