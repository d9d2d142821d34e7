"""One router from its lock to its last answer: start, run, renew, drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import time
from collections.abc import Awaitable, Callable

from blindpost.crypto.credentials import Credentials
from blindpost.engine.loop import StoreFailedError
from blindpost.journal.keeping import JournalKeeper
from blindpost.router.audit import check_at_start
from blindpost.router.running import choices
from blindpost.router.running.counters import KeptCounters
from blindpost.router.running.guard import GuardedRouter, GuardedServer
from blindpost.router.running.journaling import RouterReadings
from blindpost.router.running.metrics import look, look_at_services, render
from blindpost.router.running.operations import Operations
from blindpost.router.running.settings import Place
from blindpost.router.running.stores import OpenStore, open_store
from blindpost.serving import locking
from blindpost.serving.control import ControlSocket
from blindpost.serving.failures import OperatorError
from blindpost.serving.http import MetricsListener
from blindpost.serving.identity import Identity
from blindpost.serving.journal import keeping_of
from blindpost.serving.limits import AddressKeys, Limits
from blindpost.serving.logs import keep_quiet, log
from blindpost.serving.sections import EVERYWHERE
from blindpost.transport.plan import Plan
from blindpost.transport.plans import smp_router_plan

_SPARE_DESCRIPTORS = 64
COLLECT_AFTER = (20_000, 10, 10)
"""A turn makes thousands of objects and hardly a cycle: looking for cycles less often is cheaper."""


def locked(place: Place) -> contextlib.AbstractContextManager[None]:
    """Hold the router's folder: there is one router, or one restore, at a time."""
    return locking.locked(
        place.lock,
        "a router is running in this folder. Look at it with `blindpost router status`, or stop it first.",
    )


class RouterProcess:
    """A router that listens, from a configuration and the files it names."""

    def __init__(self, place: Place, store: OpenStore, credentials: Credentials) -> None:
        """Use `open`."""
        settings = place.settings
        self.place = place
        self.started = time.monotonic()
        self.credentials = credentials
        self.limits = Limits(choices.limit_sizes(settings), time.monotonic)
        self._bulk = store.bulk
        self.router = GuardedRouter(
            store.tables,
            choices.router_rules(settings),
            limits=self.limits,
            budget=choices.budget(settings),
            relay_options=choices.relay_options(settings),
        )
        self.server = GuardedServer(self._plan(), self.router, AddressKeys(settings.limits.exempt))
        self.counters = KeptCounters(place.counters, self.router.plan.meters)
        # Imported by a router that runs, not by every command: the sketches bring numpy.
        from blindpost.router.running.activity import Activity

        self.activity = Activity(place.activity)
        self.router.plan.on_use = self.activity.note
        self._journal = self._open_journal()
        self.ports: list[int] = []
        self.metrics_port: int | None = None
        self._control = ControlSocket(place.control, Operations(self).commands)
        self._metrics = MetricsListener(self._render)
        self._stop = asyncio.Event()

    def _open_journal(self) -> JournalKeeper | None:
        settings = self.place.settings
        keeping = keeping_of(settings.journal, self.place.folder, settings.address.hosts[0])
        if keeping is None:
            return None
        readings = RouterReadings(self.router, self.server, self._bulk, self.activity)
        self.router.plan.on_compare = readings.compared
        return JournalKeeper(keeping, "smp", readings.read)

    @classmethod
    async def open(cls, place: Place) -> RouterProcess:
        credentials = Identity(place.keys).load(place.fingerprint)
        return cls(place, await open_store(place), credentials)

    def stop(self) -> None:
        """Drain and end."""
        self._stop.set()

    def renew(self) -> None:
        """Use the online certificate that is on disk now, for new connections."""
        self.credentials = Identity(self.place.keys).load(self.place.fingerprint)
        self.server.renew(self._plan())
        log.info("a new online certificate is in use for new connections")

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `stop`, then return when everything accepted is durable and answered."""
        asyncio.get_running_loop().set_exception_handler(keep_quiet)
        _allow_descriptors(self.place.settings.limits.connections)
        self.counters.load()
        self.activity.load()
        await self._check_store()
        deciding = asyncio.create_task(self.router.run())
        rounds: list[asyncio.Task[None]] = []
        try:
            await self._listen()
            rounds = [asyncio.create_task(self._round(*round_)) for round_ in self._rounds()]
            if self._journal is not None:
                rounds.append(asyncio.create_task(self._journal.run()))
            ready()
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stopping, deciding], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        finally:
            for task in rounds:
                task.cancel()
            await self._end(deciding)

    async def _check_store(self) -> None:
        """Counters of services that cannot be right are repaired before anybody hears them."""
        repaired = await check_at_start(self._bulk, self.router.store)
        if repaired is not None:
            sums = ", ".join(f"{name} {count}" for name, count in repaired.values().items() if count)
            log.warning("the services' counters did not agree with the queues and are repaired: %s", sums)

    async def _listen(self) -> None:
        settings = self.place.settings
        for port in settings.listen.ports:
            for address in settings.listen.addresses:
                self.ports.append(await self._listen_at(address, port))
        await self._control.listen()
        if settings.metrics.enabled:
            self.metrics_port = await self._metrics.listen(settings.metrics.address, settings.metrics.port)

    async def _listen_at(self, address: str, port: int) -> int:
        try:
            return await self.server.listen(None if address == EVERYWHERE else address, port)
        except OSError as error:
            raise OperatorError(_refused_port(error, address, port)) from error

    def _rounds(self) -> list[tuple[int, Callable[[], Awaitable[None]], bool]]:
        """What is done again and again: how often, what, and whether also at the start."""
        times = self.place.settings.times
        return [
            (times.expiry_check_s, self.router.expire_messages, True),
            (times.expiry_check_s, self.router.expire_notifications, True),
            (times.idle_check_s, self._close_idle, False),
            (times.counters_save_s, self._save_counters, False),
        ]

    async def _round(self, every_s: int, work: Callable[[], Awaitable[None]], at_start: bool) -> None:
        if not at_start:
            await asyncio.sleep(every_s)
        while True:
            try:
                await work()
            except (StoreFailedError, OperatorError) as error:
                log.error("%s", error)
            await asyncio.sleep(every_s)

    async def _close_idle(self) -> None:
        closed = self.router.close_idle()
        if closed:
            log.info("closed %d idle connections", closed)

    async def _save_counters(self) -> None:
        self.counters.save()
        self.activity.save()

    async def _render(self) -> str:
        services = await look_at_services(self._bulk)
        gauges = await look(self.router, self.server)
        return render(self.router, gauges, services, self.activity.counts(int(time.time())))

    async def _end(self, deciding: asyncio.Task[None]) -> None:
        """Take in nothing more, decide and answer what came, close every session, then the store."""
        self.router.draining = True
        await self.server.stop_listening()
        self.router.stop()
        try:
            await deciding
        finally:
            await self.server.wait_empty(self.place.settings.times.drain_s)
            await self._metrics.close()
            await self._control.close()
            if self._journal is not None:
                await self._journal.close()
            self.router.store.close()
            await self._save_last_counters()

    async def _save_last_counters(self) -> None:
        """A disk without space for them is no reason to end otherwise than in order."""
        try:
            await self._save_counters()
        except OperatorError as error:
            log.error("%s", error)

    def _plan(self) -> Plan:
        return smp_router_plan(self.credentials, limits=choices.session_limits(self.place.settings))


def _refused_port(error: OSError, address: str, port: int) -> str:
    where = f"port {port}" if address == EVERYWHERE else f"{address} port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use by another program. Stop it, or choose another port in [listen]."
    if error.errno == errno.EACCES:
        return (
            f"{where}: permission denied. Ports below 1024 need the capability CAP_NET_BIND_SERVICE; "
            "or choose a higher port in [listen]."
        )
    return f"{where} cannot be listened on: {error.strerror or error}. Correct [listen]."


def _allow_descriptors(connections: int) -> None:
    """As many open files as the limit on connections needs, as far as the system lets us."""
    wanted = connections + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        log.warning(
            "the system allows %d open files, limits.connections = %d needs %d: "
            "connections above that will fail (raise LimitNOFILE)",
            allowed,
            connections,
            wanted,
        )


async def _serve(place: Place, ready: Callable[[RouterProcess], None]) -> None:
    loop = asyncio.get_running_loop()
    process = await RouterProcess.open(place)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _signalled, process, number)
    loop.add_signal_handler(signal.SIGHUP, _renew, process)
    await process.run(lambda: ready(process))


def _signalled(process: RouterProcess, number: signal.Signals) -> None:
    log.info("%s: no new connections, answering what was accepted", number.name)
    process.stop()


def _renew(process: RouterProcess) -> None:
    try:
        process.renew()
    except OperatorError as error:
        log.error("%s", error)


def serve(place: Place, ready: Callable[[RouterProcess], None]) -> None:
    """Run the router of this place until it is told to stop."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    with locked(place):
        asyncio.run(_serve(place, ready))
