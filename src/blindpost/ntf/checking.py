"""`blindpost ntf check`: what a notification router's start would run into, besides the common checks."""

from __future__ import annotations

from cryptography import x509

from blindpost.client.outbound import Outbound
from blindpost.engine.loop import StoreFailedError
from blindpost.ntf.process import KIND, NtfService, providers_of
from blindpost.ntf.push_keys import day_text, vapid_of
from blindpost.ntf.schema_sqlite import MIGRATIONS
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.settings import NtfPlace
from blindpost.ntf.tables import WrongKeyError
from blindpost.serving.checking import Checks, DoubtError, Port, told_ca_key, told_certificates, told_store
from blindpost.serving.failures import OperatorError
from blindpost.serving.identity import Identity
from blindpost.store import sqlite
from blindpost.store.contract import StoreVersionError

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
        return await _told_store_key(place, runs)

    async def store() -> str:
        try:
            return await _told_store(place, runs)
        except sqlite.UNUSABLE as error:
            raise OperatorError(f"{place.file}, [store]: {error}.") from error

    async def apple() -> str:
        return _told_apple(place)

    async def web_push() -> str:
        return _told_web_push(place)

    listen = settings.listen
    tries = {
        "certificate": certificate,
        "CA key": ca_key,
        "store key": store_key,
        "store": store,
        "Apple": apple,
        "Web Push": web_push,
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

    found, known = await postgres.look(settings.dsn, SCHEMA), len(SCHEMA.migrations)
    shared, known_as = settings.standby, place.known_as
    return told_store(found, known, "the database", runs=runs, shared=shared, known_as=known_as)


async def _told_store_key(place: NtfPlace, runs: bool) -> str:
    """The store knows its key again by a mark; a store that does not say so is looked at by its own check."""
    mark = Sealer(place.store_key()).mark
    if runs:
        return "the running router uses it"
    kept = await _mark_of(place)
    if kept is None:
        return "it is there"
    if kept != mark:
        raise OperatorError(f"{WrongKeyError()}.")
    return "it is the key of this store"


async def _mark_of(place: NtfPlace) -> bytes | None:
    statement = "SELECT value FROM meta WHERE name = 'key'"
    found: bytes | None
    if place.settings.store.kind == "sqlite":
        found = sqlite.peek(place.database, statement)
        return found
    # Imported only when a database is used.
    from blindpost.ntf.tables_postgres import SCHEMA
    from blindpost.store import postgres

    try:
        async with postgres.snapshot(place.settings.store.dsn, SCHEMA) as reading:
            found = await reading.fetchval(statement)
            return found
    except (StoreFailedError, StoreVersionError):
        return None


def _told_apple(place: NtfPlace) -> str:
    apns = place.settings.apns
    providers_of(place, Outbound(**place.settings.outbound.model_dump()), None)
    if apns.key_file:
        return f"pushes to {apns.topic} are signed with key {apns.key_id} of team {apns.team_id}"
    if vapid_of(place) is None:
        raise DoubtError("no push service has a key: nobody is notified", "see [apns] and [webpush]")
    return "off: [apns] names no key"


def _told_web_push(place: NtfPlace) -> str:
    """Every key must be readable, former ones too."""
    vapid = vapid_of(place)
    providers_of(place, Outbound(**place.settings.outbound.model_dump()), vapid)
    if vapid is not None:
        former = [f"a former key until {day_text(key.until)}" for key in vapid.former]
        return ", ".join(["its key is there", *former])
    if place.settings.webpush.enabled:
        raise DoubtError(
            f"it is on, and its key {place.vapid_file} is missing: such devices are refused",
            "restore the key from a backup, or set webpush.enabled = false",
        )
    return "off"
