"""`blindpost ds check`: what a delivery service's start would run into, besides the common checks."""

from __future__ import annotations

import socket

from blindpost.ds.process import DsService, own_pair
from blindpost.ds.settings import DsPlace, read_tokens
from blindpost.ds.tables import MIGRATIONS, OWNER
from blindpost.engine.loop import StoreFailedError
from blindpost.serving.checking import Checks, DoubtError, Port, told_certificates, told_store
from blindpost.serving.failures import OperatorError
from blindpost.store import lmdb
from blindpost.store.contract import StoreVersionError


def checks_of(place: DsPlace, runs: bool) -> Checks:
    async def certificate() -> str:
        found = own_pair(place).chain[:1]
        return told_certificates(found, "make a new one with `blindpost ds rotate-cert`")

    async def store() -> str:
        try:
            return await _told_store(place, runs)
        except (StoreFailedError, StoreVersionError) as error:
            raise OperatorError(f"{place.file}, [store]: {error}.") from error

    async def access() -> str:
        if place.settings.auth.mode == "open":
            raise DoubtError("anybody may send, and drain every queue", 'set auth.mode = "tokens"')
        count = len(read_tokens(place.tokens))
        if not count:
            raise DoubtError("nobody has a token yet", "make one with `blindpost ds token KEY`")
        return f"{count} tokens"

    listen = place.settings.listen
    kinds = ((listen.tls_port, socket.SOCK_STREAM), (listen.quic_port, socket.SOCK_DGRAM))
    return Checks(
        listen.connections,
        DsService.connections_setting,
        [Port(listen.address, port, kind) for port, kind in kinds if port != "off"],
        (),
        DsService.secrets(place),
        tries={"certificate": certificate, "store": store, "access": access},
    )


async def _told_store(place: DsPlace, runs: bool) -> str:
    database = place.settings.store.database
    if not database:
        seen = lmdb.look(place.store, OWNER, len(MIGRATIONS), runs=runs)
        return told_store(seen, len(MIGRATIONS), str(place.store), runs=runs)
    # Imported only when a database is used.
    from blindpost.ds.tables_postgres import SCHEMA
    from blindpost.store import postgres

    found = await postgres.look(database, SCHEMA)
    shared = place.settings.store.standby
    return told_store(found, len(SCHEMA.migrations), "the database", runs=runs, shared=shared)
