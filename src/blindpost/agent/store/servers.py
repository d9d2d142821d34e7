"""Routers as tables name them: by hosts and port, with a fingerprint of their own only where it differs."""

from __future__ import annotations

import functools
from typing import TypeAlias

from blindpost.agent.store.database import Db
from blindpost.wire.addresses import Server, hosts_from_text, hosts_text

ServerRow: TypeAlias = tuple[str, str, bytes | None]
"""Host list, port, own fingerprint."""


@functools.lru_cache(maxsize=4096)
def server_key(server: Server) -> tuple[str, str]:
    """How tables name the place of a router."""
    return hosts_text(server.hosts), server.port


def stored_server(db: Db, server: Server) -> ServerRow:
    """The columns for a router, which is made known if it was not."""
    host, port = server_key(server)
    query = "SELECT key_hash FROM servers WHERE host = ? AND port = ?"
    row = db.sql.known("server", (host, port), lambda: db.sql.execute(query, (host, port)).fetchone())
    if row is None:
        new = "INSERT INTO servers (host, port, key_hash) VALUES (?, ?, ?)"
        db.sql.execute(new, (host, port, server.key_hash))
        return host, port, None
    return host, port, None if row[0] == server.key_hash else server.key_hash


@functools.lru_cache(maxsize=4096)
def loaded_server(host: str, port: str, key_hash: bytes) -> Server:
    """The router of a row that was joined with its fingerprint."""
    return Server(hosts_from_text(host), port, key_hash)
