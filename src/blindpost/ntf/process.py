"""One notification router from its lock to its last answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blindpost.client.outbound import Outbound
from blindpost.crypto.credentials import Credentials
from blindpost.journal.keeping import JournalKeeper
from blindpost.journal.minutes import Reading
from blindpost.journal.schema import L_NOTIFICATIONS
from blindpost.ntf.journaling import read_meters
from blindpost.ntf.lab import NtfLab
from blindpost.ntf.metrics import render
from blindpost.ntf.ports import PushProvider as Provider
from blindpost.ntf.push.apns import Endpoint
from blindpost.ntf.push.http2 import tls_context
from blindpost.ntf.push.null import NullProvider
from blindpost.ntf.push.provider_tokens import ProviderTokens, SigningKey, SigningKeyError
from blindpost.ntf.push.providers import apple_endpoints, providers_at
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.server import NtfRouter
from blindpost.ntf.settings import ApnsSection, Place
from blindpost.ntf.subscriber.options import WATCHFUL, SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.tables_sqlite import SqliteTables
from blindpost.serving import locking
from blindpost.serving.control import ControlSocket
from blindpost.serving.failures import OperatorError
from blindpost.serving.http import MetricsListener
from blindpost.serving.identity import Identity
from blindpost.serving.journal import keeping_of
from blindpost.serving.logs import keep_quiet
from blindpost.serving.sections import EVERYWHERE
from blindpost.store.contract import Durability
from blindpost.store.sqlite import UNUSABLE
from blindpost.transport.ends import Server
from blindpost.transport.plans import ntf_router_plan
from blindpost.wire.ntf.tokens import PushProvider

log = logging.getLogger("blindpost.ntf")

KIND = "ntf"
DRAIN_S = 10.0
IDLE_CHECK_S = 600.0


def locked(place: Place) -> contextlib.AbstractContextManager[None]:
    """Hold the router's folder: there is one notification router at a time."""
    return locking.locked(
        place.lock,
        "a notification router is running in this folder. Look at it with `blindpost ntf status`, "
        "or stop it first.",
    )


async def open_store(place: Place) -> NtfStore:
    """The store that the configuration names, with its key."""
    settings, sealer = place.settings.store, Sealer(place.store_key())
    durability = Durability(settings.durability)
    try:
        if settings.kind == "sqlite":
            return SqliteTables.open(place.database, sealer, durability)
        # Imported only by who uses a database.
        from blindpost.ntf.tables_postgres import PostgresTables

        return await PostgresTables.open(settings.dsn, sealer, durability)
    except UNUSABLE as error:
        raise OperatorError(f"{place.file}, [store]: {error}.") from error


async def make_store(place: Place) -> None:
    """An empty store for a new router."""
    store = await open_store(place)
    try:
        if any(store.counts().values()):
            raise OperatorError(
                f"{place.file}, [store]: this database is that of another notification router. "
                "Give each its own."
            )
    finally:
        store.close()


def providers_of(place: Place) -> dict[PushProvider, Provider]:
    """Every push service that the configuration has a key for."""
    apns = place.settings.apns
    if not apns.key_file:
        return {PushProvider.APNS_NULL: NullProvider()}
    try:
        signing = SigningKey.from_file(place.folder / apns.key_file, apns.key_id, apns.team_id)
    except SigningKeyError as error:
        raise OperatorError(f"{place.file}, [apns] key_file: {error}.") from error
    return providers_at(_endpoints(place.folder, apns), ProviderTokens(signing, time.time))


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


class NtfProcess:
    """A notification router that listens, from a configuration and the files it names."""

    def __init__(self, place: Place, store: NtfStore, credentials: Credentials) -> None:
        """Use `open`."""
        self.place = place
        self.credentials = credentials
        settings = place.settings
        self.router = NtfRouter(store, providers_of(place), settings.ntf_rules())
        self.subscriber = SmpSubscriber(self.router, _subscriber_options(place))
        self.router.subscriber = self.subscriber
        self.server = Server(ntf_router_plan(credentials), self.router, settings.listen.connections)
        self.port = 0
        self.metrics_port: int | None = None
        self._control = ControlSocket(place.control, {"status": self._answer, "renew": self._renewed})
        self._metrics = MetricsListener(self._render)
        self._stop = asyncio.Event()
        keeping = keeping_of(settings.journal, place.folder, settings.address.hosts[0])
        self._journal = None if keeping is None else JournalKeeper(keeping, KIND, self._read_meters)
        if self._journal is not None and settings.journal.lab:
            devices = (device.encode() for device in settings.journal.lab)
            self.router.plan.lab = NtfLab(self._journal.lab(L_NOTIFICATIONS), devices)

    @classmethod
    async def open(cls, place: Place) -> NtfProcess:
        credentials = Identity(place.keys, KIND).load(place.fingerprint)
        store = await open_store(place)
        try:
            return cls(place, store, credentials)
        except BaseException:
            store.close()
            raise

    def stop(self) -> None:
        self._stop.set()

    def renew(self) -> None:
        """Use the online certificate that is on disk now, for new connections."""
        self.credentials = Identity(self.place.keys, KIND).load(self.place.fingerprint)
        self.server.renew(ntf_router_plan(self.credentials))
        log.info("a new online certificate is in use for new connections")

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `stop`, then return when everything accepted is durable and answered."""
        asyncio.get_running_loop().set_exception_handler(keep_quiet)
        deciding = asyncio.create_task(self.router.run())
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._listen()
            tasks = [asyncio.create_task(self.subscriber.run()), asyncio.create_task(self._close_idle())]
            if self._journal is not None:
                tasks.append(asyncio.create_task(self._journal.run()))
            ready()
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stopping, deciding], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        finally:
            await self._end(deciding, tasks)

    async def _end(self, deciding: asyncio.Task[None], tasks: list[asyncio.Task[None]]) -> None:
        """No new connections, no more notifications; then what was accepted, then the rest."""
        await self.server.stop_listening()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.router.stop()
        try:
            await deciding
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self.server.stop()
            if self._journal is not None:
                await self._journal.close()
            await self._metrics.close()
            await self._control.close()
            self.router.store.close()

    async def _listen(self) -> None:
        listen, metrics = self.place.settings.listen, self.place.settings.metrics
        address = None if listen.address == EVERYWHERE else listen.address
        try:
            self.port = await self.server.listen(address, listen.port)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            why = "is in use by another program" if in_use else f"cannot be used: {error.strerror or error}"
            raise OperatorError(
                f"port {listen.port} {why}. Choose another port in [listen]; "
                "ports below 1024 need the capability CAP_NET_BIND_SERVICE."
            ) from error
        await self._control.listen()
        if metrics.enabled:
            self.metrics_port = await self._metrics.listen(metrics.address, metrics.port)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            closed = self.router.close_idle(self.place.settings.rules.idle_ttl_s)
            if closed:
                log.info("closed %d idle connections", closed)

    async def _read_meters(self, _minute_s: int, _with_sketches: bool) -> Reading:
        return await read_meters(self.router, self.subscriber)

    async def _render(self) -> str:
        return render(self.router, self.subscriber)

    def status(self) -> dict[str, object]:
        """Numbers only: nothing about a device, a queue or a message router."""
        router, counts = self.router, self.router.store.counts()
        states = self.subscriber.states
        return {
            "port": self.port,
            "connections": len(router.connections),
            "tokens": counts["tokens"],
            "subscriptions": counts["subscriptions"],
            "smp_routers": len(states),
            "smp_routers_connected": sum(state.is_connected for state in states),
            "queues_subscribed": sum(state.active + state.members for state in states),
            "queues_waiting": sum(state.waiting for state in states),
            "pushes_under_way": router.pusher.waiting,
            "ledger": {
                name.removeprefix("ledger_"): count
                for name, count in counts.items()
                if name.startswith("ledger_")
            },
            "counters": router.plan.meters.values(),
        }

    async def _answer(self, _request: Mapping[str, Any]) -> dict[str, object]:
        return self.status()

    async def _renewed(self, _request: Mapping[str, Any]) -> dict[str, object]:
        self.renew()
        return {}


def _subscriber_options(place: Place) -> SubscriberOptions:
    outbound = Outbound(**place.settings.outbound.model_dump())
    use_services = place.settings.subscriber.use_services
    return SubscriberOptions(use_services=use_services, smp=outbound.applied(WATCHFUL))


async def _serve(place: Place, ready: Callable[[NtfProcess], None]) -> None:
    process = await NtfProcess.open(place)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    loop.add_signal_handler(signal.SIGHUP, _renew, process)
    await process.run(lambda: ready(process))


def _renew(process: NtfProcess) -> None:
    try:
        process.renew()
    except OperatorError as error:
        log.error("%s", error)


def serve(place: Place, ready: Callable[[NtfProcess], None]) -> None:
    """Run the notification router of this place until it is told to stop."""
    with locked(place):
        asyncio.run(_serve(place, ready))
