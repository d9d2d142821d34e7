"""The agent's tables. A migration is added at the end and never changed once it was released.

Columns that hold keys, secrets or content are sealed under the passphrase when there is one (`vault`).
"""

from __future__ import annotations

import sqlite3

from blindpost.crypto.ids_hash import id_hash, xor

_FIRST = """
CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
    user_id INTEGER PRIMARY KEY AUTOINCREMENT,
    deleted INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO users (user_id) VALUES (1);

CREATE TABLE servers (
    host TEXT NOT NULL,
    port TEXT NOT NULL,
    key_hash BLOB NOT NULL,
    PRIMARY KEY (host, port)
) STRICT, WITHOUT ROWID;

CREATE TABLE connections (
    conn_id TEXT PRIMARY KEY,
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    conn_mode TEXT NOT NULL,
    smp_agent_version INTEGER NOT NULL,
    enable_ntfs INTEGER NOT NULL DEFAULT 1,
    pq_support INTEGER NOT NULL,
    ratchet_sync_state TEXT NOT NULL DEFAULT 'ok',
    last_internal_msg_id INTEGER NOT NULL DEFAULT 0,
    last_internal_rcv_msg_id INTEGER NOT NULL DEFAULT 0,
    last_internal_snd_msg_id INTEGER NOT NULL DEFAULT 0,
    last_external_snd_msg_id INTEGER NOT NULL DEFAULT 0,
    last_rcv_msg_hash BLOB NOT NULL DEFAULT x'',
    last_snd_msg_hash BLOB NOT NULL DEFAULT x'',
    auto_allow INTEGER NOT NULL DEFAULT 1,
    own_conn_info BLOB NOT NULL DEFAULT x'',
    deleted INTEGER NOT NULL DEFAULT 0,
    deleted_at_wait_delivery INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX connections_user ON connections (user_id);
CREATE INDEX connections_deleted ON connections (deleted) WHERE deleted = 1;
CREATE INDEX connections_waiting ON connections (deleted_at_wait_delivery)
    WHERE deleted_at_wait_delivery IS NOT NULL;

CREATE TABLE rcv_queues (
    host TEXT NOT NULL,
    port TEXT NOT NULL,
    rcv_id BLOB NOT NULL,
    server_key_hash BLOB,
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    user_id INTEGER NOT NULL,
    rcv_queue_id INTEGER NOT NULL,
    rcv_primary INTEGER NOT NULL DEFAULT 1,
    replace_rcv_queue_id INTEGER,
    status TEXT NOT NULL,
    switch_status TEXT,
    switch_at INTEGER,
    rcv_private_key BLOB NOT NULL,
    rcv_dh_secret BLOB NOT NULL,
    e2e_priv_key BLOB NOT NULL,
    e2e_dh_secret BLOB,
    snd_id BLOB NOT NULL,
    queue_mode TEXT,
    smp_client_version INTEGER NOT NULL,
    link_id BLOB,
    link_key BLOB,
    link_priv_sig_key BLOB,
    link_enc_fixed_data BLOB,
    ntf_public_key BLOB,
    ntf_private_key BLOB,
    ntf_id BLOB,
    rcv_ntf_dh_secret BLOB,
    last_broker_ts INTEGER,
    to_subscribe INTEGER NOT NULL DEFAULT 0,
    rcv_service_assoc INTEGER NOT NULL DEFAULT 0,
    delete_errors INTEGER NOT NULL DEFAULT 0,
    deleted INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (host, port, rcv_id),
    FOREIGN KEY (host, port) REFERENCES servers
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX rcv_queues_snd ON rcv_queues (host, port, snd_id);
CREATE UNIQUE INDEX rcv_queues_number ON rcv_queues (conn_id, rcv_queue_id);
CREATE UNIQUE INDEX rcv_queues_link ON rcv_queues (host, port, link_id) WHERE link_id IS NOT NULL;
CREATE UNIQUE INDEX rcv_queues_ntf ON rcv_queues (host, port, ntf_id) WHERE ntf_id IS NOT NULL;
CREATE INDEX rcv_queues_page ON rcv_queues (user_id, host, port, rcv_service_assoc, rcv_id)
    WHERE deleted = 0;
CREATE INDEX rcv_queues_to_subscribe ON rcv_queues (user_id, host, port, rcv_id) WHERE to_subscribe = 1;

CREATE TABLE rcv_queue_requests (
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    host TEXT NOT NULL,
    port TEXT NOT NULL,
    server_key_hash BLOB,
    replace_rcv_queue_id INTEGER NOT NULL DEFAULT 0,
    rcv_private_key BLOB NOT NULL,
    rcv_dh_key BLOB NOT NULL,
    e2e_priv_key BLOB NOT NULL,
    corr_id BLOB NOT NULL,
    queue_mode TEXT NOT NULL,
    link_priv_sig_key BLOB,
    PRIMARY KEY (conn_id, replace_rcv_queue_id),
    FOREIGN KEY (host, port) REFERENCES servers
) STRICT, WITHOUT ROWID;

CREATE TABLE snd_queues (
    host TEXT NOT NULL,
    port TEXT NOT NULL,
    snd_id BLOB NOT NULL,
    server_key_hash BLOB,
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    user_id INTEGER NOT NULL,
    snd_queue_id INTEGER NOT NULL,
    snd_primary INTEGER NOT NULL DEFAULT 1,
    replace_snd_queue_id INTEGER,
    status TEXT NOT NULL,
    switch_status TEXT,
    switch_at INTEGER,
    snd_private_key BLOB NOT NULL,
    e2e_pub_key BLOB NOT NULL,
    e2e_dh_secret BLOB NOT NULL,
    queue_mode TEXT,
    smp_client_version INTEGER NOT NULL,
    PRIMARY KEY (conn_id, snd_queue_id),
    FOREIGN KEY (host, port) REFERENCES servers
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX snd_queues_address ON snd_queues (host, port, snd_id, conn_id);

CREATE TABLE ratchets (
    conn_id TEXT PRIMARY KEY REFERENCES connections ON DELETE CASCADE,
    x3dh_params BLOB,
    x3dh_pub_params BLOB,
    ratchet_state BLOB
) STRICT, WITHOUT ROWID;

CREATE TABLE skipped_messages (
    conn_id TEXT NOT NULL REFERENCES ratchets ON DELETE CASCADE,
    header_key BLOB NOT NULL,
    msg_n INTEGER NOT NULL,
    msg_key BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX skipped_messages_conn ON skipped_messages (conn_id, created_at);

CREATE TABLE conn_confirmations (
    confirmation_id TEXT PRIMARY KEY,
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    sender_key BLOB,
    e2e_snd_pub_key BLOB NOT NULL,
    sender_conn_info BLOB NOT NULL,
    smp_reply_queues BLOB NOT NULL,
    smp_client_version INTEGER NOT NULL,
    accepted INTEGER NOT NULL DEFAULT 0,
    own_conn_info BLOB
) STRICT, WITHOUT ROWID;
CREATE INDEX conn_confirmations_conn ON conn_confirmations (conn_id);

CREATE TABLE conn_invitations (
    invitation_id TEXT PRIMARY KEY,
    contact_conn_id TEXT REFERENCES connections ON DELETE SET NULL,
    cr_invitation BLOB NOT NULL,
    link_hash BLOB NOT NULL,
    recipient_conn_info BLOB NOT NULL,
    accepted INTEGER NOT NULL DEFAULT 0,
    own_conn_info BLOB,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX conn_invitations_contact ON conn_invitations (contact_conn_id);

CREATE TABLE messages (
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    internal_id INTEGER NOT NULL,
    internal_ts INTEGER NOT NULL,
    internal_rcv_id INTEGER,
    internal_snd_id INTEGER,
    msg_type TEXT NOT NULL,
    msg_body BLOB NOT NULL,
    msg_flags INTEGER NOT NULL DEFAULT 0,
    pq_encryption INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (conn_id, internal_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX messages_ts ON messages (internal_ts) WHERE internal_snd_id IS NOT NULL;

CREATE TABLE rcv_messages (
    conn_id TEXT NOT NULL,
    internal_rcv_id INTEGER NOT NULL,
    internal_id INTEGER NOT NULL,
    external_snd_id INTEGER NOT NULL,
    broker_id BLOB NOT NULL,
    broker_ts INTEGER NOT NULL,
    rcv_queue_id INTEGER NOT NULL,
    internal_hash BLOB NOT NULL,
    external_prev_snd_hash BLOB NOT NULL,
    integrity BLOB NOT NULL,
    user_ack INTEGER NOT NULL DEFAULT 0,
    receive_attempts INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (conn_id, internal_rcv_id),
    FOREIGN KEY (conn_id, internal_id) REFERENCES messages ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX rcv_messages_internal ON rcv_messages (conn_id, internal_id);

CREATE TABLE snd_messages (
    conn_id TEXT NOT NULL,
    internal_snd_id INTEGER NOT NULL,
    internal_id INTEGER NOT NULL,
    internal_hash BLOB NOT NULL,
    previous_msg_hash BLOB NOT NULL,
    retry_int_slow INTEGER,
    retry_int_fast INTEGER,
    rcpt_internal_id INTEGER,
    rcpt_status TEXT,
    msg_encrypt_key BLOB,
    padded_msg_len INTEGER,
    sent INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (conn_id, internal_snd_id),
    FOREIGN KEY (conn_id, internal_id) REFERENCES messages ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX snd_messages_internal ON snd_messages (conn_id, internal_id);

CREATE TABLE snd_message_deliveries (
    snd_message_delivery_id INTEGER PRIMARY KEY AUTOINCREMENT,
    conn_id TEXT NOT NULL,
    snd_queue_id INTEGER NOT NULL,
    internal_id INTEGER NOT NULL,
    failed INTEGER NOT NULL DEFAULT 0,
    FOREIGN KEY (conn_id, internal_id) REFERENCES messages ON DELETE CASCADE,
    FOREIGN KEY (conn_id, snd_queue_id) REFERENCES snd_queues ON DELETE CASCADE
) STRICT;
CREATE INDEX snd_message_deliveries_queue ON snd_message_deliveries (conn_id, snd_queue_id, internal_id);
CREATE INDEX snd_message_deliveries_message ON snd_message_deliveries (conn_id, internal_id);

CREATE TABLE commands (
    command_id INTEGER PRIMARY KEY AUTOINCREMENT,
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    host TEXT,
    port TEXT,
    server_key_hash BLOB,
    corr_id TEXT NOT NULL DEFAULT '',
    command_tag TEXT NOT NULL,
    command BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    failed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX commands_worker ON commands (conn_id, host, port, created_at, command_id);

CREATE TABLE encrypted_rcv_message_hashes (
    encrypted_rcv_message_hash_id INTEGER PRIMARY KEY,
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    hash BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX encrypted_rcv_message_hashes_hash ON encrypted_rcv_message_hashes (conn_id, hash);
CREATE INDEX encrypted_rcv_message_hashes_at ON encrypted_rcv_message_hashes (created_at);

CREATE TABLE processed_ratchet_key_hashes (
    processed_ratchet_key_hash_id INTEGER PRIMARY KEY,
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    hash BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX processed_ratchet_key_hashes_hash ON processed_ratchet_key_hashes (conn_id, hash);
CREATE INDEX processed_ratchet_key_hashes_at ON processed_ratchet_key_hashes (created_at);

CREATE TABLE inv_short_links (
    host TEXT NOT NULL,
    port TEXT NOT NULL,
    link_id BLOB NOT NULL,
    server_key_hash BLOB,
    link_key BLOB NOT NULL,
    snd_private_key BLOB NOT NULL,
    snd_id BLOB,
    PRIMARY KEY (host, port, link_id),
    FOREIGN KEY (host, port) REFERENCES servers
) STRICT, WITHOUT ROWID;

CREATE TABLE client_services (
    user_id INTEGER NOT NULL REFERENCES users ON DELETE CASCADE,
    host TEXT NOT NULL,
    port TEXT NOT NULL,
    server_key_hash BLOB,
    service_cert BLOB NOT NULL,
    service_cert_hash BLOB NOT NULL,
    service_priv_key BLOB NOT NULL,
    service_id BLOB,
    service_queue_count INTEGER NOT NULL DEFAULT 0,
    service_queue_ids_hash BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
    PRIMARY KEY (user_id, host, port),
    FOREIGN KEY (host, port) REFERENCES servers
) STRICT, WITHOUT ROWID;

CREATE TRIGGER rcv_queues_service_insert AFTER INSERT ON rcv_queues
WHEN NEW.rcv_service_assoc = 1 AND NEW.deleted = 0
BEGIN
    UPDATE client_services
    SET service_queue_count = service_queue_count + 1,
        service_queue_ids_hash = ids_hash_xor(service_queue_ids_hash, NEW.rcv_id)
    WHERE user_id = NEW.user_id AND host = NEW.host AND port = NEW.port;
END;

CREATE TRIGGER rcv_queues_service_delete AFTER DELETE ON rcv_queues
WHEN OLD.rcv_service_assoc = 1 AND OLD.deleted = 0
BEGIN
    UPDATE client_services
    SET service_queue_count = service_queue_count - 1,
        service_queue_ids_hash = ids_hash_xor(service_queue_ids_hash, OLD.rcv_id)
    WHERE user_id = OLD.user_id AND host = OLD.host AND port = OLD.port;
END;

CREATE TRIGGER rcv_queues_service_joined AFTER UPDATE OF rcv_service_assoc, deleted ON rcv_queues
WHEN NEW.rcv_service_assoc = 1 AND NEW.deleted = 0 AND NOT (OLD.rcv_service_assoc = 1 AND OLD.deleted = 0)
BEGIN
    UPDATE client_services
    SET service_queue_count = service_queue_count + 1,
        service_queue_ids_hash = ids_hash_xor(service_queue_ids_hash, NEW.rcv_id)
    WHERE user_id = NEW.user_id AND host = NEW.host AND port = NEW.port;
END;

CREATE TRIGGER rcv_queues_service_left AFTER UPDATE OF rcv_service_assoc, deleted ON rcv_queues
WHEN OLD.rcv_service_assoc = 1 AND OLD.deleted = 0 AND NOT (NEW.rcv_service_assoc = 1 AND NEW.deleted = 0)
BEGIN
    UPDATE client_services
    SET service_queue_count = service_queue_count - 1,
        service_queue_ids_hash = ids_hash_xor(service_queue_ids_hash, NEW.rcv_id)
    WHERE user_id = NEW.user_id AND host = NEW.host AND port = NEW.port;
END;

CREATE VIEW rcv_queue_rows AS
SELECT q.conn_id, q.user_id, q.rcv_queue_id, q.host, q.port,
    COALESCE(q.server_key_hash, s.key_hash) AS key_hash, q.rcv_id, q.snd_id, q.queue_mode,
    q.rcv_private_key, q.rcv_dh_secret, q.e2e_priv_key, q.e2e_dh_secret, q.smp_client_version, q.status,
    q.rcv_primary, q.replace_rcv_queue_id, q.switch_status, q.switch_at, q.link_id, q.link_key,
    q.link_priv_sig_key, q.link_enc_fixed_data, q.rcv_service_assoc, q.delete_errors, q.deleted,
    q.to_subscribe
FROM rcv_queues q JOIN servers s ON s.host = q.host AND s.port = q.port;

CREATE VIEW snd_queue_rows AS
SELECT q.conn_id, q.user_id, q.snd_queue_id, q.host, q.port,
    COALESCE(q.server_key_hash, s.key_hash) AS key_hash, q.snd_id, q.queue_mode, q.snd_private_key,
    q.e2e_pub_key, q.e2e_dh_secret, q.smp_client_version, q.status, q.snd_primary,
    q.replace_snd_queue_id, q.switch_status, q.switch_at
FROM snd_queues q JOIN servers s ON s.host = q.host AND s.port = q.port;

CREATE VIEW connection_rows AS
SELECT conn_id, user_id, conn_mode, smp_agent_version, pq_support, ratchet_sync_state,
    last_internal_msg_id, last_internal_rcv_msg_id, last_internal_snd_msg_id, last_external_snd_msg_id,
    last_rcv_msg_hash, last_snd_msg_hash, enable_ntfs, auto_allow, own_conn_info, deleted
FROM connections;
"""

_NOTIFICATIONS = """
CREATE TABLE ntf_servers (
    ntf_host TEXT NOT NULL,
    ntf_port TEXT NOT NULL,
    ntf_key_hash BLOB NOT NULL,
    PRIMARY KEY (ntf_host, ntf_port)
) STRICT, WITHOUT ROWID;

CREATE TABLE ntf_tokens (
    provider TEXT NOT NULL,
    device_token BLOB NOT NULL,
    ntf_host TEXT NOT NULL,
    ntf_port TEXT NOT NULL,
    tkn_id BLOB,
    tkn_pub_key BLOB NOT NULL,
    tkn_priv_key BLOB NOT NULL,
    tkn_pub_dh_key BLOB NOT NULL,
    tkn_priv_dh_key BLOB NOT NULL,
    tkn_dh_secret BLOB,
    tkn_status TEXT NOT NULL,
    tkn_action BLOB,
    ntf_mode TEXT NOT NULL,
    tkn_period INTEGER,
    tkn_returned BLOB,
    tkn_spent BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (provider, device_token, ntf_host, ntf_port),
    FOREIGN KEY (ntf_host, ntf_port) REFERENCES ntf_servers
) STRICT, WITHOUT ROWID;

CREATE TABLE ntf_subscriptions (
    conn_id TEXT PRIMARY KEY REFERENCES connections ON DELETE CASCADE,
    smp_host TEXT NOT NULL,
    smp_port TEXT NOT NULL,
    smp_server_key_hash BLOB,
    smp_ntf_id BLOB,
    ntf_host TEXT NOT NULL,
    ntf_port TEXT NOT NULL,
    ntf_sub_id BLOB,
    ntf_sub_status TEXT NOT NULL,
    ntf_sub_action TEXT,
    ntf_sub_smp_action TEXT,
    ntf_sub_action_ts INTEGER,
    updated_by_supervisor INTEGER NOT NULL DEFAULT 0,
    ntf_failed INTEGER NOT NULL DEFAULT 0,
    smp_failed INTEGER NOT NULL DEFAULT 0,
    FOREIGN KEY (smp_host, smp_port) REFERENCES servers,
    FOREIGN KEY (ntf_host, ntf_port) REFERENCES ntf_servers
) STRICT, WITHOUT ROWID;
CREATE INDEX ntf_subscriptions_smp ON ntf_subscriptions (smp_host, smp_port, ntf_sub_action_ts)
    WHERE ntf_sub_smp_action IS NOT NULL;
CREATE INDEX ntf_subscriptions_ntf ON ntf_subscriptions (ntf_host, ntf_port, ntf_sub_action_ts)
    WHERE ntf_sub_action IS NOT NULL;

CREATE TABLE ntf_tokens_to_delete (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ntf_host TEXT NOT NULL,
    ntf_port TEXT NOT NULL,
    ntf_key_hash BLOB NOT NULL,
    tkn_id BLOB NOT NULL,
    tkn_priv_key BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE VIEW ntf_token_rows AS
SELECT t.provider, t.device_token, t.ntf_host, t.ntf_port, s.ntf_key_hash, t.tkn_id, t.tkn_priv_key,
    t.tkn_priv_dh_key, t.tkn_dh_secret, t.tkn_status, t.tkn_action, t.ntf_mode, t.tkn_period,
    t.tkn_returned, t.tkn_spent
FROM ntf_tokens t JOIN ntf_servers s ON s.ntf_host = t.ntf_host AND s.ntf_port = t.ntf_port;

CREATE VIEW ntf_subscription_rows AS
SELECT s.conn_id, s.smp_host, s.smp_port, COALESCE(s.smp_server_key_hash, r.key_hash) AS smp_key_hash,
    s.smp_ntf_id, s.ntf_host, s.ntf_port, n.ntf_key_hash, s.ntf_sub_id, s.ntf_sub_status,
    COALESCE(s.ntf_sub_action, s.ntf_sub_smp_action) AS step, s.ntf_sub_action, s.ntf_sub_smp_action,
    s.ntf_sub_action_ts
FROM ntf_subscriptions s JOIN servers r ON r.host = s.smp_host AND r.port = s.smp_port
    JOIN ntf_servers n ON n.ntf_host = s.ntf_host AND n.ntf_port = s.ntf_port
    JOIN connections c ON c.conn_id = s.conn_id
WHERE c.deleted = 0;

CREATE VIEW rcv_queue_ntf_rows AS
SELECT v.*, q.ntf_id, q.ntf_private_key, q.rcv_ntf_dh_secret, q.last_broker_ts
FROM rcv_queue_rows v JOIN rcv_queues q ON q.conn_id = v.conn_id AND q.rcv_queue_id = v.rcv_queue_id;
"""

_NOTIFIER_KEYS = """
ALTER TABLE rcv_queue_requests ADD COLUMN ntf_private_key BLOB;
ALTER TABLE rcv_queue_requests ADD COLUMN ntf_dh_key BLOB;
"""

_RECORDS = """
CREATE TABLE records (
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (space, key)
) STRICT, WITHOUT ROWID;
"""

_UNFINISHED = """
CREATE INDEX rcv_queues_switching ON rcv_queues (conn_id) WHERE switch_status IS NOT NULL;

CREATE TABLE awaited_messages (
    conn_id TEXT PRIMARY KEY REFERENCES connections ON DELETE CASCADE,
    first_id INTEGER NOT NULL,
    last_id INTEGER NOT NULL,
    prev_hash BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    event_id INTEGER PRIMARY KEY AUTOINCREMENT,
    conn_id TEXT REFERENCES connections ON DELETE CASCADE,
    name TEXT NOT NULL,
    content BLOB NOT NULL
) STRICT;
CREATE INDEX events_conn ON events (conn_id);

CREATE TABLE unclaimed_connections (
    conn_id TEXT PRIMARY KEY REFERENCES connections ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
"""

_STARTED_SYNC = """
CREATE INDEX connections_started_sync ON connections (conn_id) WHERE ratchet_sync_state = 'started';
"""

_ABORTED = """
CREATE TABLE aborted_queues (
    conn_id TEXT NOT NULL REFERENCES connections ON DELETE CASCADE,
    snd_id BLOB NOT NULL,
    PRIMARY KEY (conn_id, snd_id)
) STRICT, WITHOUT ROWID;
"""

_WHOLE_MESSAGES = """
ALTER TABLE commands ADD COLUMN internal_id INTEGER;

CREATE TRIGGER commands_acknowledge AFTER INSERT ON commands WHEN NEW.internal_id IS NOT NULL
BEGIN
    UPDATE rcv_messages SET user_ack = 1 WHERE conn_id = NEW.conn_id AND internal_id = NEW.internal_id;
END;

CREATE TRIGGER commands_acknowledged AFTER DELETE ON commands WHEN OLD.internal_id IS NOT NULL
BEGIN
    DELETE FROM messages WHERE conn_id = OLD.conn_id AND internal_id = OLD.internal_id;
END;

CREATE VIEW sent_messages AS
SELECT m.conn_id, m.internal_id, m.internal_ts, m.internal_snd_id, m.msg_type, m.msg_body, m.msg_flags,
    m.pq_encryption, s.internal_hash, s.previous_msg_hash, s.msg_encrypt_key, s.padded_msg_len,
    d.snd_queue_id, c.last_snd_msg_hash, r.ratchet_state
FROM messages m JOIN snd_messages s ON s.conn_id = m.conn_id AND s.internal_id = m.internal_id
    JOIN connections c ON c.conn_id = m.conn_id JOIN ratchets r ON r.conn_id = m.conn_id
    LEFT JOIN snd_message_deliveries d ON d.conn_id = m.conn_id AND d.internal_id = m.internal_id;

CREATE TRIGGER sent_messages_insert INSTEAD OF INSERT ON sent_messages
BEGIN
    UPDATE ratchets SET ratchet_state = NEW.ratchet_state
    WHERE conn_id = NEW.conn_id AND NEW.ratchet_state IS NOT NULL;
    UPDATE connections SET last_internal_msg_id = NEW.internal_id,
        last_internal_snd_msg_id = NEW.internal_snd_id, last_snd_msg_hash = NEW.last_snd_msg_hash
    WHERE conn_id = NEW.conn_id;
    INSERT INTO messages (conn_id, internal_id, internal_ts, internal_snd_id, msg_type, msg_body, msg_flags,
        pq_encryption)
    VALUES (NEW.conn_id, NEW.internal_id, NEW.internal_ts, NEW.internal_snd_id, NEW.msg_type, NEW.msg_body,
        NEW.msg_flags, NEW.pq_encryption);
    INSERT INTO snd_messages (conn_id, internal_snd_id, internal_id, internal_hash, previous_msg_hash,
        msg_encrypt_key, padded_msg_len)
    VALUES (NEW.conn_id, NEW.internal_snd_id, NEW.internal_id, NEW.internal_hash, NEW.previous_msg_hash,
        NEW.msg_encrypt_key, NEW.padded_msg_len);
    INSERT INTO snd_message_deliveries (conn_id, snd_queue_id, internal_id)
    SELECT NEW.conn_id, NEW.snd_queue_id, NEW.internal_id WHERE NEW.snd_queue_id IS NOT NULL;
END;

CREATE VIEW received_messages AS
SELECT m.conn_id, m.internal_id, m.internal_ts, m.internal_rcv_id, m.msg_type, m.msg_body, m.pq_encryption,
    q.external_snd_id, q.broker_id, q.broker_ts, q.rcv_queue_id, q.internal_hash, q.external_prev_snd_hash,
    q.integrity, c.last_external_snd_msg_id, c.last_rcv_msg_hash, h.hash AS encrypted_hash, r.ratchet_state
FROM messages m JOIN rcv_messages q ON q.conn_id = m.conn_id AND q.internal_id = m.internal_id
    JOIN connections c ON c.conn_id = m.conn_id JOIN ratchets r ON r.conn_id = m.conn_id
    JOIN encrypted_rcv_message_hashes h ON h.conn_id = m.conn_id;

CREATE TRIGGER received_messages_insert INSTEAD OF INSERT ON received_messages
BEGIN
    UPDATE ratchets SET ratchet_state = NEW.ratchet_state
    WHERE conn_id = NEW.conn_id AND NEW.ratchet_state IS NOT NULL;
    UPDATE connections SET last_internal_msg_id = NEW.internal_id,
        last_internal_rcv_msg_id = NEW.internal_rcv_id,
        last_external_snd_msg_id = NEW.last_external_snd_msg_id, last_rcv_msg_hash = NEW.last_rcv_msg_hash
    WHERE conn_id = NEW.conn_id;
    INSERT INTO encrypted_rcv_message_hashes (conn_id, hash, created_at)
    SELECT NEW.conn_id, NEW.encrypted_hash, NEW.internal_ts WHERE NEW.encrypted_hash IS NOT NULL;
    INSERT INTO messages (conn_id, internal_id, internal_ts, internal_rcv_id, msg_type, msg_body,
        pq_encryption)
    VALUES (NEW.conn_id, NEW.internal_id, NEW.internal_ts, NEW.internal_rcv_id, NEW.msg_type, NEW.msg_body,
        NEW.pq_encryption);
    INSERT INTO rcv_messages (conn_id, internal_rcv_id, internal_id, external_snd_id, broker_id, broker_ts,
        rcv_queue_id, internal_hash, external_prev_snd_hash, integrity)
    VALUES (NEW.conn_id, NEW.internal_rcv_id, NEW.internal_id, NEW.external_snd_id, NEW.broker_id,
        NEW.broker_ts, NEW.rcv_queue_id, NEW.internal_hash, NEW.external_prev_snd_hash, NEW.integrity);
END;
"""

_UNSETTLED_SYNC = """
DROP INDEX connections_started_sync;
CREATE INDEX connections_unsettled_sync ON connections (conn_id)
    WHERE ratchet_sync_state IN ('started', 'agreed');
"""

_LEFT = """
CREATE TABLE left_queues (
    conn_id TEXT PRIMARY KEY REFERENCES connections ON DELETE CASCADE,
    snd_id BLOB NOT NULL
) STRICT, WITHOUT ROWID;
"""

MIGRATIONS = (
    _FIRST,
    _NOTIFICATIONS,
    _NOTIFIER_KEYS,
    _RECORDS,
    _UNFINISHED,
    _STARTED_SYNC,
    _ABORTED,
    _WHOLE_MESSAGES,
    _UNSETTLED_SYNC,
    _LEFT,
)


def add_functions(connection: sqlite3.Connection) -> None:
    """What the triggers call; SQLite forgets it when the file is closed."""

    def ids_hash_xor(ids_hash: bytes, rcv_id: bytes) -> bytes:
        return xor(ids_hash, id_hash(rcv_id))

    connection.create_function("ids_hash_xor", 2, ids_hash_xor, deterministic=True)
