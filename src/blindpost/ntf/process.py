"""A notification router as a `Service`: its parts, and how they are run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindpost.client.outbound import Outbound
from blindpost.crypto.credentials import Credentials
from blindpost.engine.loop import StoreFailedError
from blindpost.journal.keeping import JournalKeeper
from blindpost.journal.minutes import Reading
from blindpost.journal.schema import L_NOTIFICATIONS
from blindpost.ntf.journaling import read_meters
from blindpost.ntf.lab import NtfLab
from blindpost.ntf.metrics import render
from blindpost.ntf.model import Carrier, LedgerState, NtfRules
from blindpost.ntf.ports import Provider
from blindpost.ntf.push.apns import Endpoint
from blindpost.ntf.push.http2 import tls_context
from blindpost.ntf.push.null import NullProvider
from blindpost.ntf.push.provider_tokens import ProviderTokens, SigningKey, SigningKeyError
from blindpost.ntf.push.providers import apple_endpoints, providers_at
from blindpost.ntf.push.vapid import VapidTokens
from blindpost.ntf.push.webpush import Way, WebPush, web_tls
from blindpost.ntf.push_keys import day_text, former_files, vapid_of
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.server import NtfRouter
from blindpost.ntf.settings import ApnsSection, NtfPlace
from blindpost.ntf.subscriber.options import WATCHFUL, SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.ntf.tables import NtfStore, ledger_of, ledger_total
from blindpost.ntf.tables_sqlite import SqliteTables
from blindpost.serving.blocks import LimitedServer
from blindpost.serving.counters import KeptCounters
from blindpost.serving.deciding import RoutingService
from blindpost.serving.failures import OperatorError
from blindpost.serving.identity import Identity
from blindpost.serving.limits import PER_ADDRESS, Limits, LimitSizes
from blindpost.serving.listening import listen_at
from blindpost.serving.logs import log
from blindpost.serving.prometheus import Text
from blindpost.serving.service import Round
from blindpost.store.contract import Durability
from blindpost.store.copying import copy_beside
from blindpost.store.sqlite import UNUSABLE
from blindpost.transport.plans import ntf_router_plan
from blindpost.wire.ntf.tokens import PushProvider

if TYPE_CHECKING:
    from blindpost.serving.control import Answer
    from blindpost.serving.tasks import Work

KIND = "ntf"
IDLE_CHECK_S = 600.0
COUNTERS_SAVE_S = 60.0


async def open_store(place: NtfPlace) -> NtfStore:
    """The store that the configuration names, which must exist, with its key."""
    if place.settings.store.kind == "sqlite":
        place.require_store(place.database)
    return await _open_store(place)


async def _open_store(place: NtfPlace) -> NtfStore:
    settings, sealer = place.settings.store, Sealer(place.store_key())
    durability = Durability(settings.durability)
    try:
        if settings.kind == "sqlite":
            return SqliteTables.open(place.database, sealer, durability)
        # Imported only when a database is used.
        from blindpost.ntf.tables_postgres import PostgresTables

        return await PostgresTables.open(settings.dsn, sealer, durability, in_turn=settings.standby)
    except UNUSABLE as error:
        raise OperatorError(f"{place.file}, [store]: {error}.") from error


async def make_store(place: NtfPlace) -> None:
    """An empty store for a new router."""
    store = await _open_store(place)
    try:
        if any(store.counts().values()):
            raise OperatorError(
                f"{place.file}, [store]: this database belongs to another notification router. "
                "Give each its own."
            )
    finally:
        store.close()


def _web_push(
    place: NtfPlace, outbound: Outbound, tokens: VapidTokens | None
) -> dict[PushProvider, Provider]:
    if tokens is None:
        return {}
    try:
        tls = web_tls(_file(place.folder, place.settings.webpush.ca_file))
    except OSError as error:
        raise OperatorError(
            f"[webpush] ca_file: certificates in PEM form expected: {error.strerror or error}."
        ) from error
    return {PushProvider.WEB_PUSH: WebPush(Way(outbound.network, outbound.gate, tls), tokens)}


def providers_of(
    place: NtfPlace, outbound: Outbound, vapid: VapidTokens | None
) -> dict[PushProvider, Provider]:
    """Every push service with a key in the configuration."""
    web = _web_push(place, outbound, vapid)
    apns = place.settings.apns
    if not apns.key_file:
        return {PushProvider.APNS_NULL: NullProvider(), **web}
    try:
        signing = SigningKey.from_file(place.folder / apns.key_file, apns.key_id, apns.team_id)
    except SigningKeyError as error:
        raise OperatorError(f"{place.file}, [apns] key_file: {error}.") from error
    return {**providers_at(_endpoints(place.folder, apns), ProviderTokens(signing, time.time)), **web}


def _endpoints(folder: Path, apns: ApnsSection) -> dict[PushProvider, Endpoint]:
    try:
        endpoints = apple_endpoints(tls_context(_file(folder, apns.ca_file)), apns.topic)
        if apns.test_host:
            context = tls_context(_file(folder, apns.test_ca_file))
            endpoints[PushProvider.APNS_TEST] = Endpoint(apns.test_host, apns.test_port, context, apns.topic)
    except OSError as error:
        raise OperatorError(
            f"[apns] ca_file: certificates in PEM form expected: {error.strerror or error}."
        ) from error
    return {kind: replace(endpoint, ping_s=apns.ping_s) for kind, endpoint in endpoints.items()}


def _file(folder: Path, name: str) -> str | None:
    return str(folder / name) if name else None


def _rules(place: NtfPlace, vapid: VapidTokens | None) -> NtfRules:
    rules = place.settings.ntf_rules()
    return rules if vapid is None else replace(rules, web_push=True, web_key=vapid.current.name)


def _subscriber_options(place: NtfPlace, outbound: Outbound) -> SubscriberOptions:
    use_services = place.settings.subscriber.use_services
    return SubscriberOptions(use_services=use_services, smp=outbound.applied(WATCHFUL))


class NtfService(RoutingService[NtfPlace]):
    """The notification router of one place."""

    role = KIND
    reloads = frozenset({"rules", "address", *PER_ADDRESS})

    def __init__(self, place: NtfPlace, store: NtfStore, credentials: Credentials, connections: int) -> None:
        """Use `open`."""
        outbound = Outbound(**place.settings.outbound.model_dump())
        limits = Limits(
            LimitSizes.of(place.settings.listen, connections), time.monotonic, place.settings.listen.exempt
        )
        self.vapid = vapid = vapid_of(place)
        """What push services know us by."""
        providers = providers_of(place, outbound, vapid)
        self.router = NtfRouter(store, providers, _rules(place, vapid), limits=limits)
        server = LimitedServer(ntf_router_plan(credentials), self.router)
        super().__init__(place, self.router, server, credentials)
        self.counters = KeptCounters(place.counters, self.router.plan.meters)
        apple = {Carrier.APPLE} if place.settings.apns.key_file else set()
        self.carriers = apple | ({Carrier.WEB} if vapid else set())
        """Which providers are set up."""
        self.subscriber = SmpSubscriber(self.router, _subscriber_options(place, outbound))
        self.router.subscriber = self.subscriber
        if (database := self._database) is not None:
            self.router.pusher.may_push = lambda: database.is_sure

    @staticmethod
    def wanted_connections(place: NtfPlace) -> int:
        return place.settings.listen.connections

    @classmethod
    async def open(cls, place: NtfPlace, connections: int) -> NtfService:
        credentials = Identity(place.keys, KIND).load(place.fingerprint)
        store = await open_store(place)
        try:
            return cls(place, store, credentials, connections)
        except BaseException:
            store.close()
            raise

    async def begin(self) -> None:
        self.counters.load()

    async def close(self) -> None:
        """A disk too full for the last counters must not prevent an orderly stop."""
        await super().close()
        await self._save_counters()

    async def listen(self) -> list[int]:
        listen = self.place.settings.listen
        return [await listen_at(self.server.listen, listen.address, listen.port)]

    async def stop_listening(self) -> None:
        """What is not with a push service by now is pushed after the next start, maybe by another router."""
        self.router.pusher.stop()
        await super().stop_listening()

    async def drain(self, seconds: float) -> None:
        await asyncio.gather(super().drain(seconds), self.router.pusher.close())

    def rounds(self) -> list[Round]:
        return [
            Round("closing idle connections", IDLE_CHECK_S, self._close_idle),
            *super().rounds(),
            Round("saving counters", COUNTERS_SAVE_S, self._save_counters),
        ]

    def tasks(self) -> Mapping[str, Work]:
        return {
            "the subscriber": self.subscriber.run,
            "the scan of the store": self.router.look_regularly,
        }

    async def _close_idle(self) -> None:
        closed = self.router.close_idle(self.place.settings.rules.idle_ttl_s)
        if closed:
            log.info("closed %d idle connections", closed)

    async def _save_counters(self) -> None:
        self.counters.save()

    def reload(self, place: NtfPlace) -> None:
        credentials = Identity(place.keys, KIND).load(place.fingerprint)
        self.renew(credentials, ntf_router_plan(credentials))
        fresh = vapid_of(place)
        if self.vapid is not None and fresh is not None:
            self.vapid.keys = fresh.keys
        # A provider that was not set up at start needs a restart.
        rules = _rules(place, None if self.vapid is None else fresh)
        self.router.rules = self.router.plan.rules = rules
        self.limits.sizes = LimitSizes.of(place.settings.listen, self.limits.sizes.connections)

    @staticmethod
    def secrets(place: NtfPlace) -> Sequence[Path]:
        identity = Identity(place.keys, KIND)
        key_file = place.settings.apns.key_file
        apple = [place.folder / key_file] if key_file else []
        web = [path for _, path in former_files(place)]
        if place.vapid_file.exists():
            web.append(place.vapid_file)
        return [identity.ca_key, identity.online, place.key_file, *apple, *web, place.file]

    @property
    def journal_name(self) -> str:
        return self.place.settings.address.hosts[0]

    async def read_meters(self, minute_s: int, with_sketches: bool) -> Reading:
        return await read_meters(self.router, self.subscriber)

    def journaled(self, journal: JournalKeeper) -> None:
        devices = [device.encode() for device in self.place.settings.journal.lab]
        if devices:
            self.router.plan.lab = NtfLab(journal.lab(L_NOTIFICATIONS), devices)

    async def measure(self, text: Text) -> None:
        render(text, self.router, self.subscriber)

    def commands(self) -> Mapping[str, Answer]:
        return {"copy-store": self._copy_store}

    async def _copy_store(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """For a backup: no other process may use the file meanwhile, and this one keeps running."""
        store = self.router.store
        if not isinstance(store, SqliteTables):
            raise OperatorError("the store is a database: nothing is copied here.")
        target = Path(str(request.get("to", "")))
        try:
            with store.store.held() as file:
                await copy_beside(file, target)
        except (OSError, StoreFailedError) as error:
            raise OperatorError(
                f"{target}: {error}. The running router writes it: its user must be allowed to write there."
            ) from error
        return {}

    async def status(self) -> dict[str, Any]:
        """Numbers only: nothing about a device, a queue or a message router."""
        router, counts = self.router, self.router.store.counts()
        states = self.subscriber.states
        return {
            **self.connected(),
            "tokens": counts["tokens"],
            "subscriptions": counts["subscriptions"],
            "smp_routers": len(states),
            "smp_routers_connected": sum(state.is_connected for state in states),
            "queues_subscribed": sum(state.active + state.members for state in states),
            "queues_waiting": sum(state.waiting for state in states),
            "pushes_under_way": router.pusher.waiting,
            "vapid_public_key": "" if self.vapid is None else self.vapid.current.public,
            "vapid_former_keys": {}
            if self.vapid is None
            else {key.public: f"until {day_text(key.until)}" for key in self.vapid.former},
            "ledger": {state.value: ledger_total(counts, state) for state in LedgerState},
            **{
                f"ledger_{carrier.value}": {state.value: count for state, count in states.items()}
                for carrier, states in ledger_of(counts).items()
                if carrier in self.carriers or any(states.values())
            },
            "counters": router.plan.meters.values(),
        }
