"""One delivery service from its lock to its last answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from blindpost.ds.auth import Authority, Open, Tokens
from blindpost.ds.journaling import read_meters
from blindpost.ds.lab import DsLab
from blindpost.ds.quic import QuicListener
from blindpost.ds.server import DeliveryService
from blindpost.ds.settings import Place, read_tokens
from blindpost.ds.streams import TlsListener, server_context
from blindpost.ds.tables import DsStore, LmdbTables
from blindpost.ds.tables_postgres import PostgresTables
from blindpost.engine.loop import StoreFailedError
from blindpost.journal.keeping import JournalKeeper
from blindpost.journal.minutes import Reading
from blindpost.journal.schema import L_DELIVERY
from blindpost.serving import locking
from blindpost.serving.control import ControlSocket
from blindpost.serving.failures import OperatorError
from blindpost.serving.journal import keeping_of
from blindpost.serving.sections import EVERYWHERE
from blindpost.store.contract import Durability, StoreVersionError

log = logging.getLogger("blindpost.ds")

DRAIN_S = 10.0
"""How long a stopping service waits until its last answers have left."""


def locked(place: Place) -> contextlib.AbstractContextManager[None]:
    """Hold the folder: there is one service, or one import, at a time."""
    return locking.locked(
        place.lock, "a delivery service is running in this folder. Stop it first, or name another one."
    )


def open_embedded_store(place: Place) -> LmdbTables:
    """The store in the service's folder."""
    try:
        return LmdbTables(place.store, Durability(place.settings.store.durability))
    except (StoreVersionError, StoreFailedError) as error:
        raise OperatorError(f"{place.store}: {error}") from error


async def open_store(place: Place) -> DsStore:
    """The store that the configuration names."""
    settings = place.settings.store
    if not settings.database:
        return open_embedded_store(place)
    try:
        return await PostgresTables.open(settings.database, Durability(settings.durability))
    except (StoreVersionError, StoreFailedError) as error:
        raise OperatorError(str(error)) from error


def authority_of(place: Place) -> Authority:
    if place.settings.auth.mode == "open":
        return Open()
    return Tokens(read_tokens(place.tokens))


def _context(place: Place) -> ssl.SSLContext:
    """What callers are shown: the service's certificate."""
    for file in (place.certificate, place.key):
        if not file.exists():
            raise OperatorError(
                f"{file}: the service's certificate or its key is missing. Copy it back from a backup: "
                "callers know the service by it."
            )
    try:
        return server_context(place.certificate, place.key)
    except ssl.SSLError as error:
        raise OperatorError(
            f"{place.certificate}, {place.key}: a certificate and its private key in PEM form expected "
            f"({error.reason or error}). Copy both back from a backup."
        ) from error


class DsProcess:
    """A delivery service that listens, from a configuration and the files it names."""

    def __init__(self, place: Place, store: DsStore) -> None:
        self.place = place
        self.service = DeliveryService(store, place.settings.rules(), authority_of(place))
        self.ports: dict[str, int] = {}
        self._stop = asyncio.Event()
        keeping = keeping_of(place.settings.journal, place.folder, place.folder.name)
        self._journal = None if keeping is None else JournalKeeper(keeping, "ds", self._read_meters)
        if self._journal is not None and place.settings.journal.lab:
            keys = map(bytes.fromhex, place.settings.journal.lab)
            self.service.plan.lab = DsLab(self._journal.lab(L_DELIVERY), keys)

    def stop(self) -> None:
        self._stop.set()

    def reload(self) -> None:
        """Use the tokens that are in the file now."""
        try:
            self.service.plan.authority = authority_of(self.place)
            log.info("the tokens were read again")
        except OperatorError as error:
            log.error("%s", error)

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until `stop`, then return when everything accepted is durable and answered."""
        deciding = asyncio.create_task(self.service.run())
        listeners: list[TlsListener | QuicListener] = []
        recording: asyncio.Task[None] | None = None
        control = ControlSocket(self.place.control, {"status": self._answer})
        try:
            await self._listen(listeners)
            await control.listen()
            if self._journal is not None:
                recording = asyncio.create_task(self._journal.run())
            ready()
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stopping, deciding], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
        finally:
            for listener in listeners:
                if isinstance(listener, TlsListener):
                    listener.close()
            self.service.stop()
            await deciding
            await self._drain()
            if recording is not None and self._journal is not None:
                recording.cancel()
                await self._journal.close()
            for listener in listeners:
                listener.close()
            await control.close()

    async def _listen(self, listeners: list[TlsListener | QuicListener]) -> None:
        place, settings = self.place, self.place.settings.listen
        context = _context(place)
        address = None if settings.address == EVERYWHERE else settings.address
        try:
            if settings.tls_port != "off":
                tls = TlsListener(self.service, context, settings.connections)
                listeners.append(tls)
                self.ports["tls"] = await tls.listen(address, settings.tls_port)
            if settings.quic_port != "off":
                quic = QuicListener(self.service, place.certificate, place.key, settings.connections)
                listeners.append(quic)
                self.ports["quic"] = await quic.listen(address, settings.quic_port)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            ports = f"{settings.address} ports {settings.tls_port} (TLS) and {settings.quic_port} (QUIC)"
            raise OperatorError(
                f"{ports}: {'in use by another program' if in_use else error.strerror or error}. "
                "Stop what uses them, or choose others in [listen]."
            ) from error

    async def _drain(self) -> None:
        for connection in tuple(self.service.connections.values()):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while True:
                    if not self.service.connections:
                        return
                    await asyncio.sleep(0.01)

    def status(self) -> dict[str, object]:
        """Numbers only: nothing about a queue or a caller."""
        service = self.service
        payloads, size = service.store.totals()
        meters, waited = service.engine.meters, service.plan.meters.wait_s
        return {
            "ports": self.ports,
            "connections": len(service.connections),
            "waiting": len(service.plan.state.waiting),
            "in_hand": len(service.plan.state.held),
            "payloads": payloads,
            "bytes": size,
            "turns": meters.turns,
            "commit_s_mean": round(meters.commit_s.total / max(meters.commit_s.count, 1), 6),
            "wait_s_mean": round(waited.total / max(waited.count, 1), 6),
            "counters": service.plan.meters.values(),
        }

    async def _read_meters(self, _minute_s: int, _with_sketches: bool) -> Reading:
        return await read_meters(self.service)

    async def _answer(self, _request: Mapping[str, Any]) -> dict[str, object]:
        return self.status()


async def _serve(place: Place, ready: Callable[[DsProcess], None]) -> None:
    store = await open_store(place)
    try:
        logging.getLogger("quic").setLevel(logging.ERROR)  # to the library every goodbye is a warning
        process = DsProcess(place, store)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stop)
        loop.add_signal_handler(signal.SIGHUP, process.reload)
        await process.run(lambda: ready(process))
    finally:
        store.close()


def serve(place: Place, ready: Callable[[DsProcess], None]) -> None:
    """Run the service of this place until it is told to stop."""
    with locked(place):
        asyncio.run(_serve(place, ready))
