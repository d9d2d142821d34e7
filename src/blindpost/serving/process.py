"""The process of every server: from its lock to its last answer.

A `Service` defines what a server is; running one is defined here, once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import blindpost
from blindpost.engine.loop import OutcomeUnknownError, StoreFailedError
from blindpost.journal.keeping import JournalKeeper
from blindpost.journal.minutes import Reading
from blindpost.serving import descriptors, logs, processes, upgrading, vitals
from blindpost.serving.control import ControlSocket
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import readable_by_others
from blindpost.serving.health import LOOK_S, Health, Watch
from blindpost.serving.http import MetricsListener
from blindpost.serving.journal import keeping_of
from blindpost.serving.logs import keep_quiet, log
from blindpost.serving.place import WAITING, WAITING_HELP, Place
from blindpost.serving.prometheus import Text
from blindpost.serving.reloading import changed_settings, divided, with_taken
from blindpost.serving.service import Ports, Round, Service
from blindpost.serving.supervisor import Supervisor
from blindpost.serving.tasks import Tasks
from blindpost.serving.upgrading import Successor
from blindpost.transport import listening

if TYPE_CHECKING:
    from blindpost.store.ownership import Shared

COLLECT_AFTER = (20_000, 10, 10)
"""A turn makes thousands of objects and hardly a cycle: collecting cycles less often is cheaper."""
MEASURE_S_MAX = 2.0
"""What a server cannot report within this time is left out of its metrics."""
WORK = "deciding"
DRAINING = "answering what was accepted"
YIELD_S = 5.0
"""How long a server that handed over leaves the database to others."""
AGAIN_S = 2.0
"""How long it waits when the database was lost while it was taken over."""

V = TypeVar("V", bound=Service[Any])


class Process(Generic[V]):
    """One running server."""

    def __init__(self, place: Place[Any], service: V) -> None:
        """Use `open`."""
        self.place = place
        self.service = service
        self.started = time.monotonic()
        self.draining = False
        self.told_to_stop = False
        self.displaced = False
        """Whether another server has the database now, or is to have it."""
        self.ports: Ports = ()
        self.metrics_port: int | None = None
        self.tasks = Tasks()
        self.watch = Watch(service, place.written_folders)
        self._journal = self._open_journal()
        self._control = ControlSocket(
            place.control,
            {
                "status": self._status,
                "reload": self._reload,
                "handover": self._handover,
                "upgrade": self._upgrade,
                **service.commands(),
            },
        )
        self._metrics = MetricsListener(self._render, lambda: self.health)
        self.successor: Successor | None = None
        """For the program that is to take the place of this one."""
        self._stop = asyncio.Event()
        self._supervisor = Supervisor()
        self._reloading = asyncio.Lock()
        self._hung_up: asyncio.Task[None] | None = None
        self._upgrading = asyncio.Lock()
        self._replaced = False
        """Whether it ends for the installed program."""
        self._gives_way = False
        """Whether its standby serves while that one starts."""
        self._signalled: asyncio.Task[None] | None = None
        self._limited: Counter[str] = Counter()

    @classmethod
    async def open(cls, kind: type[V], place: Place[Any]) -> Self:
        """The server of this place, not listening yet."""
        wanted = kind.wanted_connections(place)
        possible = descriptors.allow(wanted)
        service = await kind.open(place, possible)
        try:
            process = cls(place, service)
            descriptors.tell(wanted, possible, kind.connections_setting)
            return process
        except BaseException:
            await service.close()
            raise

    def _open_journal(self) -> JournalKeeper | None:
        service, place = self.service, self.place
        keeping = keeping_of(place.settings.journal, place.folder, service.journal_name)
        if keeping is None:
            return None
        journal = JournalKeeper(keeping, service.role, self._read_meters)
        service.journaled(journal)
        return journal

    async def _read_meters(self, minute_s: int, with_sketches: bool) -> Reading:
        """The service's own meters, and the free space of its fullest disk, for forecasts."""
        reading = await self.service.read_meters(minute_s, with_sketches)
        free, size = vitals.fullest(self.place.written_folders)
        if free is not None and size is not None:
            reading.gauges = {**reading.gauges, "disk_free_bytes": free, "disk_size_bytes": size}
        return reading

    def stop(self) -> None:
        """Drain and end."""
        self.told_to_stop = True
        self._stop.set()

    def give_way(self) -> None:
        """Drain and let another server have the database."""
        self.displaced = True
        self._stop.set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `stop`, then return when everything accepted is durable and answered."""
        service, tasks = self.service, self.tasks
        for file in filter(readable_by_others, service.secrets(self.place)):
            log.warning("%s can be read by other users of this machine: `chmod 600` it", file)
        try:
            if (shared := self.place.shared) is not None:
                service.on_displaced(self.give_way, shared.takeover_s)
            self._repeat(service.signs())
            await service.claim()
            await service.begin()
            if self._journal is not None:
                await self._journal.begin()
            tasks.start(WORK, service.work)
            await self._listen()
            self._repeat(service.rounds())
            for name, work in service.tasks().items():
                tasks.start(name, work)
            if self._journal is not None:
                tasks.start("the journal", self._journal.run)
            if (every_s := self._supervisor.watchdog_s) is not None:
                tasks.repeat("the watchdog", every_s / 3, self._feed, at_start=True)
            ready()
            self._supervisor.ready(self.watch.health.sentence)
            await self._stop.wait()
            if self._replaced:  # only now is everything listened on that the next program needs
                self.successor = upgrading.successor(gives_way=self._gives_way)
        finally:
            await self._end()

    def _repeat(self, rounds: Iterable[Round]) -> None:
        for each in rounds:
            self.tasks.repeat(each.name, each.every_s, each.work, at_start=each.at_start)

    async def _listen(self) -> None:
        metrics = self.place.settings.metrics
        self.ports = await self.service.listen()
        await self.watch.look()
        self.tasks.repeat("the health check", LOOK_S, self._look)
        self.tasks.repeat("counted log lines", logs.COUNTED_S, logs.tell_repeated)
        self.tasks.repeat("limits that applied", logs.COUNTED_S, self._tell_limited)
        listening.let_go()
        self.metrics_port = await self._metrics.move(metrics)
        await self._control.listen()

    @property
    def health(self) -> Health:
        """One that drains keeps what it accepted, and takes nothing more: another may serve by then."""
        return Health(False, DRAINING) if self.draining else self.watch.health

    async def _look(self) -> None:
        await self._control.keep()
        before = self.watch.health
        if await self.watch.look() != before:
            self._supervisor.alive(self.watch.health.sentence)

    async def _tell_limited(self) -> None:
        """One line a minute about everybody who was limited, as counts."""
        now = Counter(self.service.limited())
        fresh, self._limited = now - self._limited, now
        if fresh:
            told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in fresh.items())
            log.warning("limits applied in the last minute: %s", told)

    async def _feed(self) -> None:
        self._supervisor.alive(self.watch.health.sentence)

    async def _end(self) -> None:
        """Take in nothing more, decide and answer what came, close every connection, then the store."""
        self.draining = True
        if self.told_to_stop or not (self.displaced or self.successor):
            self._supervisor.stopping()
        else:  # a server that said it stops would be killed when the time for that is over
            self._supervisor.busy(DRAINING)
        service = self.service
        await self._step("closing the listeners", service.stop_listening)
        await self.tasks.cancel(keep=WORK)
        service.stop()
        await self.tasks.finish(WORK)
        is_shared = self.place.shared is not None
        if not is_shared:
            await self._drain()
        if self._journal is not None:
            await self._step("closing the journal", self._journal.close)
        if is_shared:  # somebody waits for the database, and the journal read it for the last time
            await self._step("releasing the database", service.release)
            await self._drain()
        await self._metrics.close()
        await self._control.close()
        await self.watch.close()
        await self._step("closing the store", service.close)
        logs.tell_all_repeated()

    async def _drain(self) -> None:
        await self._step("draining", lambda: self.service.drain(self.service.drain_s))

    async def _step(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """One step of shutdown; if it fails, the others still run."""
        try:
            await work()
        except OperatorError as error:
            log.error("%s: %s", name, error)
        except Exception:
            log.exception("%s failed", name)

    # --- what operators ask

    async def reload(self) -> dict[str, list[str]]:
        """Take over the certificates on disk, and the settings that can change while it runs."""
        self._supervisor.reloading()
        try:
            async with self._reloading:
                return await self._read_again()
        finally:
            self._supervisor.reloaded()

    async def _read_again(self) -> dict[str, list[str]]:
        place, service = self.place, self.service
        fresh = type(place).read(place.file).settings
        changed = changed_settings(place.settings, fresh)
        taken, left = divided(changed, service.reloads | {"log", "metrics"})
        merged = with_taken(place.settings, fresh, taken)
        self.metrics_port = await self._metrics.move(merged.metrics)
        try:
            service.reload(type(place)(place.file, merged))
        except BaseException:
            self.metrics_port = await self._metrics.move(place.settings.metrics)
            raise
        place.settings = merged
        self.tasks.reconsider()
        logs.set_up(merged.log.format, merged.log.level)
        log.info("reloaded certificates and settings, for new connections")
        if taken:
            log.info("now in effect: %s", ", ".join(taken))
        if left:
            log.warning("these settings need a restart: %s", ", ".join(left))
        return {"taken": taken, "after_a_restart": left}

    def hung_up(self) -> None:
        """SIGHUP."""
        self._hung_up = asyncio.create_task(self._try_reload())

    async def _try_reload(self) -> None:
        try:
            await self.reload()
        except OperatorError as error:
            log.error("nothing was changed: %s", error)
        except Exception:
            log.exception("the settings could not be reloaded")

    async def _reload(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return await self.reload()

    async def _handover(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        shared = self.place.shared
        if shared is None:
            raise OperatorError(
                f"{self.place.file}: there is no standby to hand over to. Set standby = true in [store] here "
                "and on a second machine with the same database."
            )
        if not await _standby_waits(shared):
            raise OperatorError("no standby waits for this database: start one first. Nothing was changed.")
        self._demand_unstopped()
        log.info("handing over: no new connections, answering what was accepted")
        self.give_way()
        return {}

    def _demand_unstopped(self) -> None:
        if self._stop.is_set():
            raise OperatorError("it is stopping already.")

    async def upgrade(self) -> None:
        """Give way to the program as it is installed now, if it would start here."""
        self._demand_unstopped()
        if self._upgrading.locked():
            raise OperatorError("an upgrade is under way already.")
        async with self._upgrading:
            await self._make_way()

    async def _make_way(self) -> None:
        await upgrading.check(self.place)
        self._gives_way = self.place.shared is not None and await _standby_waits(self.place.shared)
        self._demand_unstopped()
        after = (
            "the standby serves, the installed program waits"
            if self._gives_way
            else "the installed program takes over"
        )
        log.info("%s: answering what was accepted", after)
        self._replaced = True
        self._supervisor.reloading()
        self._stop.set()

    async def _upgrade(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        await self.upgrade()
        return {}

    def asked_to_upgrade(self) -> None:
        """SIGUSR2."""
        if self._signalled is None or self._signalled.done():
            self._signalled = asyncio.create_task(self._try_upgrade())

    async def _try_upgrade(self) -> None:
        try:
            await self.upgrade()
        except OperatorError as error:
            log.error("%s", error)
        except Exception:
            log.exception("the upgrade failed")

    async def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        health = self.health
        return {
            "version": blindpost.__version__,
            "pid": os.getpid(),
            "state": "draining" if self.draining else "running",
            "ready": health.ready,
            "health": health.sentence,
            "uptime_s": int(time.monotonic() - self.started),
            "upgrades": upgrading.count(),
            "ports": dict(self.ports) if isinstance(self.ports, Mapping) else list(self.ports),
            "metrics_port": self.metrics_port,
            "passed": listening.passed_at(),
            "schema": self.place.schema,
            "machine": vitals.look(self.service, self.place.written_folders).values(),
            "failed_work": {name: count for name, count in self.tasks.failures.items() if count},
            "accept_failures": logs.refused_by_system,
            **await self.service.status(),
        }

    async def _render(self) -> str:
        """What the server measures, if it can, and always what the process itself knows."""
        try:
            async with asyncio.timeout(MEASURE_S_MAX):
                text = Text()
                await self.service.measure(text)
        except Exception as error:
            log.warning("the metrics are incomplete: %s", type(error).__name__)
            text = Text()
        health, own = self.health, f"blindpost_{self.place.word}_"
        text.gauge(own + "live", "The event loop turns", 1)
        sentence = (("reason", health.sentence),)
        text.metric(own + "ready", "gauge", "It can do its work", [("", sentence, int(health.ready))])
        text.gauge(own + WAITING, WAITING_HELP, 0)
        text.gauge(own + "uptime_seconds", "Since its start", time.monotonic() - self.started)
        vitals.look(self.service, self.place.written_folders).measure(text, own)
        text.counter(
            own + "accept_failures_total", "Connections that waited for files", logs.refused_by_system
        )
        for name, count in self.tasks.failures.items():
            help_text = "Background work that failed and was begun again"
            text.counter(own + "task_failures_total", help_text, count, (("task", name),))
        for name, count in self.service.limited().items():
            text.counter(own + "limited_total", "How often a limit applied", count, (("limit", name),))
        processes.measure(text)
        return text.done()


Ready = Callable[[Process[V]], None]


def _told_ports(ports: Ports) -> str:
    if isinstance(ports, Mapping):
        return "with " + ", ".join(f"{name} on port {port}" for name, port in ports.items())
    return f"on port {', '.join(map(str, sorted(set(ports))))}" if ports else ""


async def _serve(kind: type[V], place: Place[Any], ready: Ready[V]) -> Successor | None:
    """One life after the other: a server whose database was taken over waits until it can have it back."""
    asyncio.get_running_loop().set_exception_handler(keep_quiet)
    yields_s, failure = YIELD_S if upgrading.gave_way() else 0.0, ""
    while place.shared is None or await _has_turn(place, place.shared, yields_s=yields_s, failure=failure):
        if place.shared is not None:
            place = _read_again(place)
        try:
            process = await _live(kind, place, ready)
        except (OperatorError, StoreFailedError) as error:
            if place.shared is None or not _may_wait(error):
                raise
            log.warning("the %s cannot take the database over, it waits again: %s", place.title, error)
            yields_s, failure = AGAIN_S, f"the database could not be taken over: {error}"
            continue
        if process.told_to_stop:
            return None
        if process.successor is not None:
            upgrading.ignore_signals()
            return process.successor
        if not process.displaced:
            return None
        yields_s, failure = YIELD_S, ""
    return None


async def _live(kind: type[V], place: Place[Any], ready: Ready[V]) -> Process[V]:
    """One life, from the store to the last answer."""
    loop, process = asyncio.get_running_loop(), await Process.open(kind, place)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _signalled, process, number)
    loop.add_signal_handler(signal.SIGHUP, process.hung_up)
    loop.add_signal_handler(signal.SIGUSR2, process.asked_to_upgrade)
    try:
        await process.run(lambda: ready(process))
    except StoreFailedError:
        if not process.told_to_stop:
            raise
    return process


def _read_again(place: Place[Any]) -> Place[Any]:
    """Its settings as they are now; a mistake made meanwhile must not keep a standby from serving."""
    try:
        fresh = type(place).read(place.file)
    except OperatorError as error:
        log.error("it takes over with the settings that it had: %s", error)
        return place
    logs.set_up(fresh.settings.log.format, fresh.settings.log.level)
    return fresh


async def _standby_waits(shared: Shared) -> bool:
    # Imported only when a database is used.
    from blindpost.store.ownership import has_candidate
    from blindpost.store.postgres import FAILURES

    try:
        return await has_candidate(shared)
    except FAILURES as error:
        raise OperatorError(f"the database cannot be asked: {type(error).__name__}.") from error


async def _has_turn(place: Place[Any], shared: Shared, *, yields_s: float, failure: str) -> bool:
    """Wait until the database is free; False if a signal ends the server meanwhile.

    The other signals stay harmless while the database is taken over: their default is to end a process.
    """
    # Imported only when a database is shared.
    from blindpost.serving.standby import NOT_UPGRADED, Standby

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    endings = (signal.SIGTERM, signal.SIGINT)
    for number in endings:
        loop.add_signal_handler(number, stop.set)
    standby = Standby(place, shared, stop, yields_s=yields_s, failure=failure)
    loop.add_signal_handler(signal.SIGHUP, standby.hung_up)
    loop.add_signal_handler(signal.SIGUSR2, log.warning, "%s", NOT_UPGRADED)
    try:
        return await standby.wait()
    finally:
        for number in endings:
            loop.remove_signal_handler(number)


def _may_wait(error: Exception) -> bool:
    """Whether another server was quicker to own the database, or it went away again."""
    from blindpost.store.postgres import DatabaseAwayError, DatabaseInUseError

    reasons = DatabaseInUseError, DatabaseAwayError, OutcomeUnknownError
    return isinstance(error, reasons) or isinstance(error.__cause__, reasons)


def tell_ready(process: Process[Any]) -> None:
    """The line that says which ports were opened."""
    words = [_told_ports(process.ports)]
    if process.metrics_port is not None:
        words.append(f"metrics on port {process.metrics_port}")
    log.info("the %s is ready %s", process.place.title, ", ".join(filter(None, words)))


def _signalled(process: Process[Any], number: signal.Signals) -> None:
    log.info("%s: no new connections, answering what was accepted", number.name)
    process.stop()


def serve(kind: type[V], place: Place[Any], ready: Ready[V] = tell_ready) -> None:
    """Run the server of this place until stopped."""
    logs.set_up(place.settings.log.format, place.settings.log.level)
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    listening.inherit()
    try:
        with place.locked():
            successor = asyncio.run(_serve(kind, place, ready))
    except (OperatorError, OSError):
        raise
    except StoreFailedError as error:
        raise OperatorError(f"{place.file}, [store]: {error}.") from error
    except Exception:
        log.critical("the %s stopped because of a bug in it", place.title, exc_info=True)
        sys.exit(1)
    if successor is not None:
        upgrading.replace(successor)
    log.info("the %s has stopped; everything it accepted is stored and answered", place.title)
