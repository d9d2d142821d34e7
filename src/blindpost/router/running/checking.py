"""`blindpost router check`: what a router's start would run into, apart from what all servers share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509

from blindpost.engine.loop import StoreFailedError
from blindpost.router.moving.progress import NAME, is_unfinished
from blindpost.router.running import choices
from blindpost.router.running.process import RouterService
from blindpost.router.running.renewing import acme_files, demand_possible, is_due, public_names
from blindpost.router.running.settings import RouterPlace
from blindpost.router.running.stores import in_database, store_name
from blindpost.router.running.web import web_certificate
from blindpost.router.tables import MIGRATIONS, OWNER, mark_key
from blindpost.serving.checking import Checks, DoubtError, Port, told_ca_key, told_certificates, told_store
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file
from blindpost.serving.identity import Identity
from blindpost.store import lmdb
from blindpost.store.contract import StoreVersionError

HTTPS_PORT = 443
GRACE = timedelta(days=2)
"""How late a renewal may be before it needs somebody."""


def checks_of(place: RouterPlace, runs: bool) -> Checks:
    settings, identity = place.settings, Identity(place.keys)

    async def certificate() -> str:
        chain = identity.load(place.fingerprint).chain
        found = [x509.load_der_x509_certificate(der) for der in chain]
        return told_certificates(found, "make a new one with `blindpost router rotate-cert`")

    async def ca_key() -> str:
        return told_ca_key(identity.ca_key, place.word)

    async def store() -> str:
        try:
            return await _told_store(place, runs)
        except (StoreFailedError, StoreVersionError) as error:
            raise OperatorError(f"{store_name(place)}: {error}.") from error

    async def web() -> str:
        return _told_web(place)

    async def access() -> str:
        return _told_access(place)

    async def fronts() -> str:
        short = choices.too_little_memory(settings)
        if short is not None:
            raise DoubtError(short, "raise limits.memory_mib, or set fewer router.fronts")
        return str(choices.fronts(settings))

    tries = {
        "certificate": certificate,
        "CA key": ca_key,
        "store": store,
        "new queues": access,
        "fronts": fronts,
    }
    web_ports = [] if settings.web.plain_port == "off" else [Port("127.0.0.1", settings.web.plain_port)]
    return Checks(
        settings.limits.connections,
        RouterService.connections_setting,
        [Port(at, port) for port in settings.listen.ports for at in settings.listen.addresses] + web_ports,
        settings.address.hosts,
        RouterService.secrets(place),
        settings.outbound.socks,
        tries | ({"web certificate": web} if settings.web.certificate or settings.web.acme else {}),
    )


async def _told_store(place: RouterPlace, runs: bool) -> str:
    if in_database(place):
        # Imported only when a database is used.
        from blindpost.router.postgres_schema import SCHEMA
        from blindpost.store import postgres

        found, known = await postgres.look(place.settings.store.dsn, SCHEMA), len(SCHEMA.migrations)
        shared, known_as = place.settings.store.standby, place.known_as
        return told_store(found, known, "the database", runs=runs, shared=shared, known_as=known_as)
    seen = lmdb.look(place.store, OWNER, len(MIGRATIONS), runs=runs)
    told = told_store(seen, len(MIGRATIONS), str(place.store), runs=runs)
    if not runs:
        with lmdb.snapshot(place.store, (), seen.version, lock=False) as read:
            if is_unfinished(read.get(lmdb.META, mark_key(NAME))):
                raise OperatorError(
                    f"{place.store}: an import is not complete. "
                    "Give the same `blindpost router import` again."
                )
    return told


def _told_access(place: RouterPlace) -> str:
    rules = place.settings.rules
    if not rules.new_queues:
        return "none are created"
    if not rules.password:
        raise DoubtError(
            "anybody may create them: there is no password", "set rules.password unless that is intended"
        )
    return "only with the password"


def _told_web(place: RouterPlace) -> str:
    if place.settings.web.acme:
        return _told_acme(place)
    certificate = web_certificate(place)
    assert certificate is not None
    chain = x509.load_pem_x509_certificates(read_file(place.folder / place.settings.web.certificate))
    told = told_certificates(chain[:1], "let the program that renews it run (such as certbot)")
    missing = [host for host in public_names(place.settings.address.hosts) if not certificate.covers(host)]
    if missing:
        raise DoubtError(
            f"it does not name {', '.join(missing)}",
            "browsers refuse links with these hosts: get one that names them",
        )
    return told


def _told_acme(place: RouterPlace) -> str:
    """The certificate that the router gets itself; one that should have been renewed days ago is a doubt."""
    demand_possible(place)
    settings, file = place.settings, acme_files(place)[1]
    if HTTPS_PORT not in settings.listen.ports:
        raise DoubtError(
            f"listen.ports has no {HTTPS_PORT}, where the authority looks",
            f"add {HTTPS_PORT}, unless something forwards it to another port of the router",
        )
    if not file.exists():
        raise DoubtError("there is none yet", "the running router asks for one; its log says what came of it")
    try:
        leaf = x509.load_pem_x509_certificates(read_file(file))[0]
        overdue = is_due(leaf, public_names(settings.address.hosts), datetime.now(UTC) - GRACE)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise DoubtError(f"{file} is damaged", "the running router replaces it") from error
    if overdue:
        raise DoubtError(
            f"it ends on {leaf.not_valid_after_utc:%Y-%m-%d} or lacks a name, and is not renewed",
            "`blindpost router status` and the log of the running router say why",
        )
    return f"valid until {leaf.not_valid_after_utc:%Y-%m-%d}, renewed by the router"
