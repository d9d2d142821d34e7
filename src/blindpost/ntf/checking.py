"""`blindpost ntf check`: what a notification router's start would run into, besides the common checks."""

from __future__ import annotations

from cryptography import x509

from blindpost.client.outbound import Outbound
from blindpost.ntf.process import KIND, NtfService, providers_of
from blindpost.ntf.push_keys import vapid_of
from blindpost.ntf.schema_sqlite import MIGRATIONS
from blindpost.ntf.settings import NtfPlace
from blindpost.serving.checking import Checks, DoubtError, Port, told_ca_key, told_certificates, told_store
from blindpost.serving.failures import OperatorError
from blindpost.serving.identity import Identity
from blindpost.store import sqlite

APPLE = "api.push.apple.com"


def checks_of(place: NtfPlace, runs: bool) -> Checks:
    settings, identity = place.settings, Identity(place.keys, KIND)

    async def certificate() -> str:
        chain = identity.load(place.fingerprint).chain
        found = [x509.load_der_x509_certificate(der) for der in chain]
        return told_certificates(found, "make a new one with `blindpost ntf rotate-cert`")

    async def ca_key() -> str:
        return told_ca_key(identity.ca_key, place.word)

    async def store_key() -> str:
        place.store_key()
        return "it is there"

    async def store() -> str:
        try:
            return await _told_store(place, runs)
        except sqlite.UNUSABLE as error:
            raise OperatorError(f"{place.file}, [store]: {error}.") from error

    async def push() -> str:
        return _told_push(place)

    listen = settings.listen
    tries = {
        "certificate": certificate,
        "CA key": ca_key,
        "store key": store_key,
        "store": store,
        "push": push,
    }
    return Checks(
        listen.connections,
        NtfService.connections_setting,
        [Port(listen.address, listen.port)],
        [*settings.address.hosts, *([APPLE] if settings.apns.key_file else [])],
        NtfService.secrets(place),
        settings.outbound.socks,
        tries,
    )


async def _told_store(place: NtfPlace, runs: bool) -> str:
    settings = place.settings.store
    if settings.kind == "sqlite":
        seen = sqlite.look(place.database, sqlite.NTF, len(MIGRATIONS))
        return told_store(seen, len(MIGRATIONS), str(place.database), runs=runs)
    # Imported only when a database is used.
    from blindpost.ntf.tables_postgres import SCHEMA
    from blindpost.store import postgres

    found = await postgres.look(settings.dsn, SCHEMA)
    return told_store(found, len(SCHEMA.migrations), "the database", runs=runs)


def _told_push(place: NtfPlace) -> str:
    """The push services that have keys, all of which must be readable."""
    settings = place.settings
    vapid = vapid_of(place)
    providers_of(place, Outbound(**settings.outbound.model_dump()), vapid)
    there = {"Apple": bool(settings.apns.key_file), "Web Push": vapid is not None}
    served = [name for name, is_there in there.items() if is_there]
    if not served:
        raise DoubtError("no push service has a key: nobody is notified", "see [apns] and [webpush]")
    return f"keys for {' and '.join(served)}"
