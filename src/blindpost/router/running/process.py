"""An SMP router as a `Service`: its parts, and how they are run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindpost.crypto.credentials import Credentials
from blindpost.engine.loop import StoreFailedError
from blindpost.journal.keeping import JournalKeeper
from blindpost.journal.minutes import Reading
from blindpost.router.audit import check_at_start
from blindpost.router.fronts.fleet import LOOK_S as FRONTS_LOOK_S
from blindpost.router.fronts.fleet import Fronts
from blindpost.router.fronts.fronted import FrontedServer
from blindpost.router.running import choices
from blindpost.router.running.guard import FrontedRouter, GuardedRouter
from blindpost.router.running.journaling import RouterReadings
from blindpost.router.running.metrics import Services, look, look_at_services, render
from blindpost.router.running.operations import Operations
from blindpost.router.running.renewing import CHECK_S, acme_files
from blindpost.router.running.settings import RouterPlace, Settings, TimesSection
from blindpost.router.running.stores import OpenStore, open_store
from blindpost.router.running.web import LOOK_S as SITE_LOOK_S
from blindpost.router.running.web import RouterSite
from blindpost.serving.blocks import LimitedServer
from blindpost.serving.counters import KeptCounters
from blindpost.serving.deciding import RoutingService
from blindpost.serving.identity import Identity
from blindpost.serving.limits import AddressKeys, Limits
from blindpost.serving.listening import listen_at
from blindpost.serving.logs import log
from blindpost.serving.memory import LOOK_S
from blindpost.serving.prometheus import Text
from blindpost.serving.service import Round
from blindpost.transport.plan import SessionPlan
from blindpost.transport.plans import smp_router_plan

if TYPE_CHECKING:
    from blindpost.serving.control import Answer


def _plan(credentials: Credentials, settings: Settings) -> SessionPlan:
    return smp_router_plan(credentials, limits=choices.session_limits(settings))


class RouterService(RoutingService[RouterPlace]):
    """The router of one place."""

    role = "smp"
    reloads = frozenset(
        {"rules", "information", "address", "times", "queues", *choices.LIMITS_OF_NEW_CONNECTIONS}
    )
    connections_setting = "limits.connections"

    def __init__(
        self, place: RouterPlace, store: OpenStore, credentials: Credentials, connections: int
    ) -> None:
        """Use `open`."""
        settings = place.settings
        limits = Limits(choices.limit_sizes(settings, connections), time.monotonic, settings.limits.exempt)
        self._bulk = store.bulk
        self._services = Services()
        count, plan = choices.fronts(settings), _plan(credentials, settings)
        self.router = (FrontedRouter if count else GuardedRouter)(
            store.tables,
            choices.router_rules(settings),
            limits=limits,
            budget=choices.budget(settings),
            relay_options=choices.relay_options(settings),
        )
        self.fronts: Fronts | None = None
        if isinstance(self.router, FrontedRouter):
            said = settings.log.format, settings.log.level
            self.fronts = self.router.fronts = Fronts(
                count, credentials, plan.limits, *said, self.router.peer_lags, self.router.unwritten
            )
            server: LimitedServer = FrontedServer(plan, self.router)
        else:
            server = LimitedServer(plan, self.router)
        super().__init__(place, self.router, server, credentials)
        self.site = RouterSite(place, credentials.fingerprint)
        self.counters = KeptCounters(place.counters, self.router.plan.meters)
        # Imported by a router that runs, not by every command: the sketches bring numpy.
        from blindpost.router.running.activity import Activity

        self.activity = Activity(place.activity)
        self.router.plan.on_use = self.activity.note
        self._readings = RouterReadings(self.router, self.server, self._bulk, self.activity)

    @staticmethod
    def wanted_connections(place: RouterPlace) -> int:
        return place.settings.limits.connections

    @classmethod
    async def open(cls, place: RouterPlace, connections: int) -> RouterService:
        credentials = Identity(place.keys).load(place.fingerprint)
        return cls(place, await open_store(place), credentials, connections)

    async def begin(self) -> None:
        """Service counters that cannot be right are repaired before anyone sees them."""
        if self.fronts is not None:
            self.fronts.start()
        if (short := choices.too_little_memory(self.place.settings)) is not None:
            log.warning("%s (raise it, or set fewer router.fronts)", short)
        self.counters.load()
        self.activity.load()
        repaired = await check_at_start(self._bulk, self.router.store)
        if repaired is not None:
            sums = ", ".join(f"{name} {count}" for name, count in repaired.values().items() if count)
            log.warning("the services' counters did not agree with the queues and are repaired: %s", sums)

    async def listen(self) -> list[int]:
        listen = self.place.settings.listen
        ports = [
            await listen_at(partial(self.server.listen, network=self.site.network), address, port)
            for port in listen.ports
            for address in listen.addresses
        ]
        site_port = await self.site.listen()
        if site_port is not None:
            log.info("the site is on port %d of 127.0.0.1 too, without TLS", site_port)
        return ports

    async def stop_listening(self) -> None:
        self.router.draining = True
        if self.fronts is not None:
            self.fronts.stop()
        self.site.close()
        await super().stop_listening()

    async def close(self) -> None:
        """A disk too full for the last counters must not prevent an orderly stop."""
        if self.fronts is not None:
            await self.fronts.close()
        await super().close()
        await self._save_counters()

    @property
    def drain_s(self) -> float:
        return self._times.drain_s

    def rounds(self) -> list[Round]:
        renewal = self.site.renewal
        return [
            Round("expiry of messages", self._expiry_s, self.router.expire_messages, True),
            Round("expiry of notifications", self._expiry_s, self.router.expire_notifications, True),
            Round("expiry of services", self._expiry_s, self._expire_services, True),
            Round("closing idle connections", lambda: self._times.idle_check_s, self._close_idle),
            *super().rounds(),
            Round("the check of what is stored", LOOK_S, self.router.look_at_stored, True),
            Round("saving counters", lambda: self._times.counters_save_s, self._save_counters),
            Round("the web certificate and own pages", SITE_LOOK_S, self.site.look),
            *([] if self.fronts is None else [Round("the look at fronts", FRONTS_LOOK_S, self.fronts.look)]),
            *([Round("renewal of the web certificate", CHECK_S, renewal.look, True)] if renewal else []),
        ]

    def memory(self) -> int:
        return super().memory() + (0 if self.fronts is None else self.fronts.memory())

    @property
    def _times(self) -> TimesSection:
        return self.place.settings.times

    def _expiry_s(self) -> float:
        return self._times.expiry_check_s

    async def _expire_services(self) -> None:
        await self.router.expire_services(self._bulk)

    async def _close_idle(self) -> None:
        closed = self.router.close_idle()
        if closed:
            log.info("closed %d idle connections", closed)

    async def _save_counters(self) -> None:
        self.counters.save()
        self.activity.save()

    def reload(self, place: RouterPlace) -> None:
        credentials = Identity(place.keys).load(place.fingerprint)
        settings = place.settings
        plan = _plan(credentials, settings)
        self.renew(credentials, plan)
        if self.fronts is not None:
            self.fronts.renew(credentials, plan.limits, settings.log.format, settings.log.level)
        self.limits.keys = AddressKeys(settings.limits.exempt)
        self.limits.sizes = choices.limit_sizes(settings, self.limits.sizes.connections)
        self.router.plan.rules = choices.router_rules(settings)

    def limited(self) -> Mapping[str, int]:
        return {**super().limited(), "stored_refused": self.router.plan.stored.refused}

    @staticmethod
    def secrets(place: RouterPlace) -> Sequence[Path]:
        identity = Identity(place.keys)
        return identity.ca_key, identity.online, place.file, *acme_files(place)

    def trouble(self) -> str | None:
        return super().trouble() or (None if self.fronts is None else self.fronts.trouble())

    def notice(self) -> str | None:
        return None if self.site.renewal is None else self.site.renewal.trouble

    @property
    def journal_name(self) -> str:
        return self.place.settings.address.hosts[0]

    async def read_meters(self, minute_s: int, with_sketches: bool) -> Reading:
        return await self._readings.read(minute_s, with_sketches)

    def journaled(self, journal: JournalKeeper) -> None:
        self.router.plan.on_compare = self._readings.compared

    async def status(self) -> dict[str, Any]:
        return await Operations(self).status()

    def commands(self) -> Mapping[str, Answer]:
        return Operations(self).commands

    async def measure(self, text: Text) -> None:
        """If the database is unreachable, keep the services as last seen."""
        try:
            self._services = await look_at_services(self._bulk)
        except StoreFailedError as error:
            log.warning("services cannot be counted: %s", error)
        gauges = await look(self.router, self.server)
        render(text, self.router, gauges, self._services, self.activity.counts(int(time.time())))
        if self.fronts is not None:
            self.fronts.measure(text)
