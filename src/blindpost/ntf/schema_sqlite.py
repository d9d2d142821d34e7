"""The schema of the notification router in SQLite. `xor_hash` is a function that the store registers."""

from __future__ import annotations

_FIRST = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE tokens (
    token_id BLOB PRIMARY KEY,
    device BLOB NOT NULL,
    verify_key BLOB NOT NULL,
    status TEXT NOT NULL,
    sealed BLOB NOT NULL,
    code_at INTEGER,
    code_attempts INTEGER NOT NULL,
    period_minutes INTEGER NOT NULL,
    period_due INTEGER,
    period_sent INTEGER,
    updated_day INTEGER NOT NULL,
    UNIQUE (device, verify_key)
);
CREATE INDEX tokens_due ON tokens (period_due) WHERE status = 'ACTIVE' AND period_due IS NOT NULL;
CREATE INDEX tokens_unverified ON tokens (code_at) WHERE code_at IS NOT NULL;
CREATE TABLE smp_servers (
    server BLOB PRIMARY KEY,
    sealed BLOB NOT NULL,
    service_id BLOB,
    sealed_service BLOB,
    notifier_count INTEGER NOT NULL DEFAULT 0,
    notifier_ids_hash BLOB NOT NULL DEFAULT (zeroblob(16))
);
CREATE TABLE subscriptions (
    subscription_id BLOB PRIMARY KEY,
    token_id BLOB NOT NULL REFERENCES tokens ON DELETE CASCADE,
    server BLOB NOT NULL REFERENCES smp_servers,
    notifier BLOB NOT NULL UNIQUE,
    id_hash BLOB NOT NULL,
    sealed BLOB NOT NULL,
    state TEXT NOT NULL,
    error BLOB,
    associated INTEGER NOT NULL,
    tried INTEGER AS (state IN ('NEW', 'PENDING', 'ACTIVE', 'INACTIVE')),
    counted INTEGER AS (associated AND state IN ('NEW', 'PENDING', 'ACTIVE', 'INACTIVE'))
);
CREATE INDEX subscriptions_of_token ON subscriptions (token_id);
CREATE INDEX subscriptions_to_try ON subscriptions (server, tried, associated, subscription_id);
CREATE TABLE notifications (
    subscription_id BLOB PRIMARY KEY REFERENCES subscriptions ON DELETE CASCADE,
    token_id BLOB NOT NULL REFERENCES tokens ON DELETE CASCADE,
    number INTEGER NOT NULL,
    seconds INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    encrypted_meta BLOB NOT NULL,
    waiting INTEGER NOT NULL
);
CREATE INDEX notifications_of_token ON notifications (token_id);
CREATE INDEX notifications_waiting ON notifications (token_id) WHERE waiting;
CREATE INDEX notifications_aging ON notifications (seconds) WHERE waiting;

CREATE TRIGGER subscription_added AFTER INSERT ON subscriptions WHEN NEW.counted
BEGIN
    UPDATE smp_servers SET notifier_count = notifier_count + 1,
        notifier_ids_hash = xor_hash(notifier_ids_hash, NEW.id_hash) WHERE server = NEW.server;
END;
CREATE TRIGGER subscription_removed AFTER DELETE ON subscriptions WHEN OLD.counted
BEGIN
    UPDATE smp_servers SET notifier_count = notifier_count - 1,
        notifier_ids_hash = xor_hash(notifier_ids_hash, OLD.id_hash) WHERE server = OLD.server;
END;
CREATE TRIGGER subscription_left AFTER UPDATE ON subscriptions
WHEN OLD.counted AND (NOT NEW.counted OR NEW.server <> OLD.server OR NEW.id_hash <> OLD.id_hash)
BEGIN
    UPDATE smp_servers SET notifier_count = notifier_count - 1,
        notifier_ids_hash = xor_hash(notifier_ids_hash, OLD.id_hash) WHERE server = OLD.server;
END;
CREATE TRIGGER subscription_joined AFTER UPDATE ON subscriptions
WHEN NEW.counted AND (NOT OLD.counted OR NEW.server <> OLD.server OR NEW.id_hash <> OLD.id_hash)
BEGIN
    UPDATE smp_servers SET notifier_count = notifier_count + 1,
        notifier_ids_hash = xor_hash(notifier_ids_hash, NEW.id_hash) WHERE server = NEW.server;
END;
"""

_PROVIDERS = """
ALTER TABLE notifications ADD COLUMN provider TEXT NOT NULL DEFAULT 'apns';
UPDATE counters SET name = 'ledger_apns_' || substr(name, length('ledger_') + 1) WHERE name LIKE 'ledger%';
"""
"""The ledger by provider: everything before was Apple's."""

_SPELLINGS = """
ALTER TABLE tokens ADD COLUMN plain_device BLOB NOT NULL DEFAULT x'';
UPDATE tokens SET plain_device = device;
CREATE INDEX tokens_of_device ON tokens (plain_device);
"""
"""Tokens by device, however they spell it. A row from before has the plain name when it is next written."""

MIGRATIONS = (_FIRST, _PROVIDERS, _SPELLINGS)
