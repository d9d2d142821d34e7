"""The schema of the notification router in PostgreSQL."""

from __future__ import annotations

from blindpost.ntf.tables import COUNTERS

_STATES = ("waiting", "accepted", "superseded", "rejected", "expired", "dropped")
_AT_FIRST = ("tokens", "subscriptions", "notifications", *(f"ledger_{state}" for state in _STATES))
_FIRST = """
CREATE TABLE meta (name text PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE tokens (
    token_id bytea PRIMARY KEY,
    device bytea NOT NULL,
    verify_key bytea NOT NULL,
    status text NOT NULL,
    sealed bytea NOT NULL,
    code_at bigint,
    code_attempts integer NOT NULL,
    period_minutes integer NOT NULL,
    period_due bigint,
    period_sent bigint,
    updated_day bigint NOT NULL,
    UNIQUE (device, verify_key)
);
CREATE INDEX tokens_due ON tokens (period_due) WHERE status = 'ACTIVE' AND period_due IS NOT NULL;
CREATE INDEX tokens_unverified ON tokens (code_at) WHERE code_at IS NOT NULL;
CREATE TABLE smp_servers (
    server bytea PRIMARY KEY,
    sealed bytea NOT NULL,
    service_id bytea,
    sealed_service bytea,
    notifier_count bigint NOT NULL DEFAULT 0,
    notifier_ids_hash bytea NOT NULL DEFAULT '\\x00000000000000000000000000000000'
);
CREATE TABLE subscriptions (
    subscription_id bytea PRIMARY KEY,
    token_id bytea NOT NULL REFERENCES tokens ON DELETE CASCADE,
    server bytea NOT NULL REFERENCES smp_servers,
    notifier bytea NOT NULL UNIQUE,
    id_hash bytea NOT NULL,
    sealed bytea NOT NULL,
    state text NOT NULL,
    error bytea,
    associated boolean NOT NULL,
    tried boolean GENERATED ALWAYS AS (state IN ('NEW', 'PENDING', 'ACTIVE', 'INACTIVE')) STORED,
    counted boolean GENERATED ALWAYS AS
        (associated AND state IN ('NEW', 'PENDING', 'ACTIVE', 'INACTIVE')) STORED
);
CREATE INDEX subscriptions_of_token ON subscriptions (token_id);
CREATE INDEX subscriptions_to_try ON subscriptions (server, tried, associated, subscription_id);
CREATE TABLE notifications (
    subscription_id bytea PRIMARY KEY REFERENCES subscriptions ON DELETE CASCADE,
    token_id bytea NOT NULL REFERENCES tokens ON DELETE CASCADE,
    number bigint NOT NULL,
    seconds bigint NOT NULL,
    nonce bytea NOT NULL,
    encrypted_meta bytea NOT NULL,
    waiting boolean NOT NULL
);
CREATE INDEX notifications_of_token ON notifications (token_id);
CREATE INDEX notifications_waiting ON notifications (token_id) WHERE waiting;
CREATE INDEX notifications_aging ON notifications (seconds) WHERE waiting;

CREATE FUNCTION xor_hash(a bytea, b bytea) RETURNS bytea IMMUTABLE STRICT LANGUAGE plpgsql AS $$
BEGIN
    FOR place IN 0..15 LOOP
        a := set_byte(a, place, get_byte(a, place) # get_byte(b, place));
    END LOOP;
    RETURN a;
END $$;
CREATE FUNCTION subscription_leaves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE smp_servers SET notifier_count = notifier_count - 1,
        notifier_ids_hash = xor_hash(notifier_ids_hash, OLD.id_hash) WHERE server = OLD.server;
    RETURN NULL;
END $$;
CREATE FUNCTION subscription_joins() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE smp_servers SET notifier_count = notifier_count + 1,
        notifier_ids_hash = xor_hash(notifier_ids_hash, NEW.id_hash) WHERE server = NEW.server;
    RETURN NULL;
END $$;
CREATE TRIGGER subscription_added AFTER INSERT ON subscriptions
    FOR EACH ROW WHEN (NEW.counted) EXECUTE FUNCTION subscription_joins();
CREATE TRIGGER subscription_removed AFTER DELETE ON subscriptions
    FOR EACH ROW WHEN (OLD.counted) EXECUTE FUNCTION subscription_leaves();
CREATE TRIGGER subscription_left AFTER UPDATE ON subscriptions
    FOR EACH ROW WHEN (OLD.counted AND
        (NOT NEW.counted OR NEW.server <> OLD.server OR NEW.id_hash <> OLD.id_hash))
    EXECUTE FUNCTION subscription_leaves();
CREATE TRIGGER subscription_put AFTER UPDATE ON subscriptions
    FOR EACH ROW WHEN (NEW.counted AND
        (NOT OLD.counted OR NEW.server <> OLD.server OR NEW.id_hash <> OLD.id_hash))
    EXECUTE FUNCTION subscription_joins();
ALTER TABLE state
""" + ",\n".join(f"    ADD COLUMN {counter} bigint NOT NULL DEFAULT 0" for counter in _AT_FIRST)

_FROM_APPLE = {f"ledger_{state}": f"ledger_apns_{state}" for state in _STATES}
_PROVIDERS = "\n".join(
    (
        "ALTER TABLE notifications ADD COLUMN provider text NOT NULL DEFAULT 'apns';",
        *(f"ALTER TABLE state RENAME COLUMN {old} TO {new};" for old, new in _FROM_APPLE.items()),
        *(
            f"ALTER TABLE state ADD COLUMN {counter} bigint NOT NULL DEFAULT 0;"
            for counter in COUNTERS
            if counter not in _AT_FIRST and counter not in _FROM_APPLE.values()
        ),
    )
)
"""The ledger by provider: everything before was Apple's."""

_SPELLINGS = """
ALTER TABLE tokens ADD COLUMN plain_device bytea NOT NULL DEFAULT '';
UPDATE tokens SET plain_device = device;
CREATE INDEX tokens_of_device ON tokens (plain_device);
"""
"""Tokens by device, however they spell it. A row from before has the plain name when it is next written."""

MIGRATIONS = (_FIRST, _PROVIDERS, _SPELLINGS)
