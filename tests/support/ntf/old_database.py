"""The tables of ntf-server 7.0.0.3, as its four migrations leave them, and rows as it writes them."""

from __future__ import annotations

import os
import time

import asyncpg

from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Writer
from blindpost.wire.text import b64
from tests.support.router.services import new_service

MIGRATIONS = (
    *("20250417_initial", "20250517_service_cert", "20250830_queue_ids_hash"),
    "20251219_service_cert_per_server",
)
TABLES = """
CREATE SCHEMA ntf_server;
SET search_path TO ntf_server;
CREATE TABLE migrations (name text PRIMARY KEY, ts timestamp NOT NULL, down text);
CREATE TABLE tokens (
    token_id bytea PRIMARY KEY, push_provider text NOT NULL, push_provider_token bytea NOT NULL,
    status text NOT NULL, verify_key bytea NOT NULL, dh_priv_key bytea NOT NULL, dh_secret bytea NOT NULL,
    reg_code bytea NOT NULL, cron_interval bigint NOT NULL, cron_sent_at bigint, updated_at bigint
);
CREATE UNIQUE INDEX idx_tokens_push_provider_token ON tokens (push_provider, push_provider_token, verify_key);
CREATE INDEX idx_tokens_status_cron_interval_sent_at
    ON tokens (status, cron_interval, (cron_sent_at + cron_interval * 60));
CREATE TABLE smp_servers (
    smp_server_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    smp_host text NOT NULL, smp_port text NOT NULL, smp_keyhash bytea NOT NULL, ntf_service_id bytea,
    smp_notifier_count bigint NOT NULL DEFAULT 0,
    smp_notifier_ids_hash bytea NOT NULL DEFAULT '\\x00000000000000000000000000000000',
    ntf_service_cert bytea, ntf_service_cert_hash bytea, ntf_service_priv_key bytea
);
CREATE UNIQUE INDEX idx_smp_servers ON smp_servers (smp_host, smp_port, smp_keyhash);
CREATE TABLE subscriptions (
    subscription_id bytea PRIMARY KEY,
    token_id bytea NOT NULL REFERENCES tokens ON DELETE CASCADE ON UPDATE RESTRICT,
    smp_server_id bigint REFERENCES smp_servers ON DELETE RESTRICT ON UPDATE RESTRICT,
    smp_notifier_id bytea NOT NULL, smp_notifier_key bytea NOT NULL, status text NOT NULL,
    ntf_service_assoc boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX idx_subscriptions_smp_server_id_notifier_id
    ON subscriptions (smp_server_id, smp_notifier_id);
CREATE INDEX idx_subscriptions_smp_server_id_ntf_service_status
    ON subscriptions (smp_server_id, ntf_service_assoc, status);
CREATE INDEX idx_subscriptions_token_id ON subscriptions (token_id);
CREATE TABLE last_notifications (
    token_ntf_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    token_id bytea NOT NULL REFERENCES tokens ON DELETE CASCADE ON UPDATE RESTRICT,
    subscription_id bytea NOT NULL REFERENCES subscriptions ON DELETE CASCADE ON UPDATE RESTRICT,
    sent_at timestamptz NOT NULL, nmsg_nonce bytea NOT NULL, nmsg_data bytea NOT NULL
);
CREATE INDEX idx_last_notifications_token_id_sent_at ON last_notifications (token_id, sent_at);
CREATE INDEX idx_last_notifications_subscription_id ON last_notifications (subscription_id);
CREATE UNIQUE INDEX idx_last_notifications_token_subscription
    ON last_notifications (token_id, subscription_id);

-- A trigger counts the queues of a service, and folds the MD5 of their ids.
CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    folded bytea;
    digest bytea := decode(md5(NEW.smp_notifier_id), 'hex');
BEGIN
    IF NEW.ntf_service_assoc AND NEW.status IN ('NEW', 'PENDING', 'ACTIVE', 'INACTIVE') THEN
        SELECT smp_notifier_ids_hash INTO folded FROM smp_servers WHERE smp_server_id = NEW.smp_server_id;
        FOR place IN 0..15 LOOP
            folded := set_byte(folded, place, get_byte(folded, place) # get_byte(digest, place));
        END LOOP;
        UPDATE smp_servers SET smp_notifier_count = smp_notifier_count + 1, smp_notifier_ids_hash = folded
            WHERE smp_server_id = NEW.smp_server_id;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER tr_subscriptions_insert AFTER INSERT ON subscriptions
    FOR EACH ROW EXECUTE FUNCTION counted();
"""


async def make_tables(old: asyncpg.Connection[asyncpg.Record]) -> None:
    """As ntf-server leaves them that was started once with a new database."""
    await old.execute(TABLES)
    for name in MIGRATIONS:
        await old.execute("INSERT INTO migrations VALUES ($1, now(), NULL)", name)


def key(algorithm: Algorithm) -> PrivateKey:
    return PrivateKey.generate(algorithm, system_entropy)


async def fill(old: asyncpg.Connection[asyncpg.Record]) -> list[bytes]:
    """Two tokens that can be read and one that cannot, with their queues; the ids of the tokens."""
    tokens = [os.urandom(24) for _ in range(3)]
    today = int(time.time()) // 86_400 * 86_400
    for token_id, status, period, sent in zip(
        tokens, ("ACTIVE", "CONFIRMED", "NONSENSE"), (0, 20, 0), (None, today, None), strict=True
    ):
        await old.execute(
            "INSERT INTO tokens VALUES ($1, 'apns_prod', $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            *(token_id, os.urandom(32).hex().encode(), status, key(Algorithm.ED25519).public.spki),
            *(key(Algorithm.X25519).pkcs8, os.urandom(32), os.urandom(32), period, sent, today),
        )
    service, fingerprint = new_service(), b64(os.urandom(32)).encode()
    chain = Writer()
    chain.list1(service.chain, lambda out, certificate: out.large(certificate))
    await old.execute(
        "INSERT INTO smp_servers (smp_host, smp_port, smp_keyhash, ntf_service_id, ntf_service_cert, "
        "ntf_service_cert_hash, ntf_service_priv_key) "
        "VALUES ('smp.example.org,a.onion', '', $1, $2, $3, $4, $5)",
        *(fingerprint, os.urandom(24), chain.done(), b64(service.fingerprint).encode(), service.key.pkcs8),
    )
    await old.execute(
        "INSERT INTO smp_servers (smp_host, smp_port, smp_keyhash) VALUES ('smp2.example.org', '5224', $1)",
        fingerprint,
    )
    rows = (
        (tokens[0], 1, "ACTIVE", True),
        (tokens[0], 2, "ERR the router said no", False),
        (tokens[1], 1, "INACTIVE", True),
        (tokens[2], 2, "NEW", False),
    )
    for number, (token_id, server, status, associated) in enumerate(rows):
        subscription_id = bytes([number]) * 24
        await old.execute(
            "INSERT INTO subscriptions VALUES ($1, $2, $3, $4, $5, $6, $7)",
            *(subscription_id, token_id, server, os.urandom(24), key(Algorithm.ED25519).pkcs8),
            *(status, associated),
        )
        await old.execute(
            "INSERT INTO last_notifications (token_id, subscription_id, sent_at, nmsg_nonce, nmsg_data) "
            "VALUES ($1, $2, to_timestamp(1700000000), $3, $4)",
            *(token_id, subscription_id, os.urandom(24), os.urandom(144)),
        )
    return tokens
