"""The device token in use, and tokens still to be deleted at their routers."""

from __future__ import annotations

from typing import Any

from blindpost.agent.notifications.model import Action, DoomedToken, PushMode, Token
from blindpost.agent.store.database import Db
from blindpost.agent.store.servers import loaded_server, server_key
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.status import TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider

DIGEST = 32


def store_server(db: Db, server: Server) -> tuple[str, str]:
    """The place of a notification router, which is made known, with its present fingerprint."""
    host, port = server_key(server)
    db.sql.execute(
        "INSERT INTO ntf_servers (ntf_host, ntf_port, ntf_key_hash) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET ntf_key_hash = excluded.ntf_key_hash",
        (host, port, server.key_hash),
    )
    return host, port


def find(db: Db) -> Token | None:
    """The token in use; there is at most one."""

    def read() -> Token | None:
        row = db.sql.execute("SELECT * FROM ntf_token_rows LIMIT 1").fetchone()
        return None if row is None else db.memo.of("token", row, lambda: _read(db, row))

    return db.sql.known("token", None, read)


def _read(db: Db, row: tuple[Any, ...]) -> Token:
    def opened(stored: bytes, column: str) -> bytes:
        return db.vault.open(stored, f"ntf_tokens.{column}", row[2], row[3])

    spent = opened(row[14], "tkn_spent")
    return Token(
        device=DeviceToken(PushProvider.from_text(row[0]), opened(row[1], "device_token")),
        server=loaded_server(row[2], row[3], row[4]),
        token_id=row[5],
        key=PrivateKey.from_pkcs8(opened(row[6], "tkn_priv_key")),
        dh_key=PrivateKey.from_pkcs8(opened(row[7], "tkn_priv_dh_key")),
        secret=None if row[8] is None else opened(row[8], "tkn_dh_secret"),
        status=TokenStatus.from_text(row[9]),
        action=None if row[10] is None else Action.from_encoded(opened(row[10], "tkn_action")),
        mode=PushMode(row[11]),
        period=row[12],
        returned=None if row[13] is None else opened(row[13], "tkn_returned"),
        spent=tuple(spent[start : start + DIGEST] for start in range(0, len(spent), DIGEST)),
    )


def put(db: Db, token: Token) -> None:
    """Store a token in the place of the one before it, if there was one."""
    delete(db)
    host, port = store_server(db, token.server)

    def seal(value: bytes, column: str) -> bytes:
        return db.vault.seal(value, f"ntf_tokens.{column}", host, port)

    db.sql.execute(
        "INSERT INTO ntf_tokens (provider, device_token, ntf_host, ntf_port, tkn_id, tkn_pub_key,"
        " tkn_priv_key, tkn_pub_dh_key, tkn_priv_dh_key, tkn_dh_secret, tkn_status, tkn_action, ntf_mode,"
        " tkn_period, tkn_returned, tkn_spent) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            token.device.provider.text,
            seal(token.device.token, "device_token"),
            host,
            port,
            token.token_id,
            seal(token.key.public.spki, "tkn_pub_key"),
            seal(token.key.pkcs8, "tkn_priv_key"),
            seal(token.dh_key.public.spki, "tkn_pub_dh_key"),
            seal(token.dh_key.pkcs8, "tkn_priv_dh_key"),
            None if token.secret is None else seal(token.secret, "tkn_dh_secret"),
            token.status.text,
            None if token.action is None else seal(token.action.encoded, "tkn_action"),
            token.mode.value,
            token.period,
            None if token.returned is None else seal(token.returned, "tkn_returned"),
            seal(b"".join(token.spent), "tkn_spent"),
        ),
    )


def delete(db: Db) -> None:
    db.sql.execute("DELETE FROM ntf_tokens")


def doom(db: Db, token: Token, now: int) -> None:
    """The router is to forget a token; one that never got an id is not known there."""
    if token.token_id is None:
        return
    db.sql.execute(
        "INSERT INTO ntf_tokens_to_delete (ntf_host, ntf_port, ntf_key_hash, tkn_id, tkn_priv_key,"
        " created_at) VALUES (?, ?, ?, ?, ?, ?)",
        (
            *server_key(token.server),
            token.server.key_hash,
            token.token_id,
            db.vault.seal(token.key.pkcs8, "ntf_tokens_to_delete.tkn_priv_key", token.token_id),
            now,
        ),
    )


def doomed(db: Db) -> list[DoomedToken]:
    """All that are still to be deleted, the oldest first."""
    query = (
        "SELECT id, ntf_host, ntf_port, ntf_key_hash, tkn_id, tkn_priv_key FROM ntf_tokens_to_delete"
        " ORDER BY id"
    )
    return [
        DoomedToken(
            row[0],
            loaded_server(*row[1:4]),
            row[4],
            PrivateKey.from_pkcs8(db.vault.open(row[5], "ntf_tokens_to_delete.tkn_priv_key", row[4])),
        )
        for row in db.sql.execute(query)
    ]


def forget_doomed(db: Db, number: int) -> None:
    db.sql.execute("DELETE FROM ntf_tokens_to_delete WHERE id = ?", (number,))


def forget_doomed_before(db: Db, before: int) -> None:
    """Give up on routers that were away for this long."""
    db.sql.execute("DELETE FROM ntf_tokens_to_delete WHERE created_at < ?", (before,))
