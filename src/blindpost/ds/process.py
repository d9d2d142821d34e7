"""A delivery service as a `Service`: its parts, and how they are run."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509

from blindpost.crypto.pem import Pair, PemError, read_pair
from blindpost.ds.auth import Authority, Open, Tokens
from blindpost.ds.journaling import read_meters
from blindpost.ds.lab import DsLab
from blindpost.ds.metrics import render
from blindpost.ds.quic import QuicListener, server_configuration
from blindpost.ds.server import OVERDUE_LOOK_S, DeliveryService
from blindpost.ds.settings import DsPlace, read_tokens
from blindpost.ds.streams import TlsListener, server_context
from blindpost.ds.tables import DsStore, LmdbTables
from blindpost.ds.tables_postgres import PostgresTables
from blindpost.engine.loop import StoreFailedError
from blindpost.journal.keeping import JournalKeeper
from blindpost.journal.minutes import Reading
from blindpost.journal.schema import L_DELIVERY
from blindpost.serving.deciding import EngineService
from blindpost.serving.failures import OperatorError, about_file
from blindpost.serving.limits import PER_ADDRESS, Limits, LimitSizes
from blindpost.serving.listening import listen_at
from blindpost.serving.prometheus import Text
from blindpost.serving.service import Round
from blindpost.store.contract import Durability, StoreVersionError

DATA_FILE = "data.mdb"
QUOTAS_SAVE_S = 10.0
"""How often quotas are saved; a crash loses at most this much of them, never payloads."""


def open_embedded_store(place: DsPlace) -> LmdbTables:
    """The store in the service's folder."""
    try:
        return LmdbTables(place.store, Durability(place.settings.store.durability))
    except (StoreVersionError, StoreFailedError) as error:
        raise OperatorError(f"{place.store}: {error}") from error


async def open_store(place: DsPlace) -> DsStore:
    """The store that the configuration names; one in the service's folder must exist."""
    settings = place.settings.store
    if not settings.database:
        place.require_store(place.store / DATA_FILE)
        return open_embedded_store(place)
    try:
        durability = Durability(settings.durability)
        return await PostgresTables.open(settings.database, durability, in_turn=settings.standby)
    except (StoreVersionError, StoreFailedError) as error:
        raise OperatorError(str(error)) from error


def authority_of(place: DsPlace) -> Authority:
    if place.settings.auth.mode == "open":
        return Open()
    return Tokens(read_tokens(place.tokens))


def own_pair(place: DsPlace) -> Pair:
    """The service's certificate and key, if they will do for TLS and for QUIC."""
    try:
        pair = read_pair(place.certificate.read_bytes(), place.key.read_bytes())
        server_context(place.certificate, place.key)
        server_configuration(pair)
        return pair
    except FileNotFoundError as error:
        raise OperatorError(
            f"{error.filename}: the service's certificate or its key is missing. Copy it back from a backup: "
            "callers know the service by it."
        ) from error
    except (PemError, ssl.SSLError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
        raise OperatorError(
            f"{place.certificate}, {place.key}: a certificate and its private key in PEM form expected "
            f"({why}). Copy both back from a backup."
        ) from error
    except OSError as error:
        raise about_file(error, Path(error.filename or place.certificate)) from error


class DsService(EngineService[DsPlace]):
    """The delivery service of one place."""

    role = "ds"
    reloads = frozenset({"auth", "limits", *PER_ADDRESS})

    def __init__(self, place: DsPlace, store: DsStore, connections: int) -> None:
        """Use `open`."""
        self._pair = own_pair(place)
        self._context = server_context(place.certificate, place.key)
        limits = Limits(
            LimitSizes.of(place.settings.listen, connections), time.monotonic, place.settings.listen.exempt
        )
        self.service = DeliveryService(store, place.settings.rules(), authority_of(place), limits=limits)
        super().__init__(place, self.service)
        self._tls = TlsListener(self.service, self._context)
        self._quic = QuicListener(self.service, self._pair)

    @staticmethod
    def wanted_connections(place: DsPlace) -> int:
        return place.settings.listen.connections

    @classmethod
    async def open(cls, place: DsPlace, connections: int) -> DsService:
        store = await open_store(place)
        try:
            return cls(place, store, connections)
        except BaseException:
            store.close()
            raise

    async def listen(self) -> dict[str, int]:
        listen, ports = self.place.settings.listen, {}
        if listen.tls_port != "off":
            ports["tls"] = await listen_at(self._tls.listen, listen.address, listen.tls_port)
        if listen.quic_port != "off":
            ports["quic"] = await listen_at(self._quic.listen, listen.address, listen.quic_port)
        return ports

    def rounds(self) -> list[Round]:
        return [
            Round("closing overdue connections", OVERDUE_LOOK_S, self._close_overdue),
            Round("saving quotas", QUOTAS_SAVE_S, self._save_quotas),
            *super().rounds(),
        ]

    async def _close_overdue(self) -> None:
        self.service.close_overdue()

    async def _save_quotas(self) -> None:
        self.service.plan.quotas.save(self.place.quotas)

    async def begin(self) -> None:
        self.service.plan.quotas.load(self.place.quotas)

    async def stop_listening(self) -> None:
        """QUIC's single socket carries the open connections too, and closes when they have their answers."""
        self._tls.close()

    async def drain(self, seconds: float) -> None:
        await self.service.hang_up(seconds)
        self._quic.close()

    async def close(self) -> None:
        """A disk too full for the last quotas must not prevent an orderly stop."""
        await super().close()
        await self._save_quotas()

    def reload(self, place: DsPlace) -> None:
        authority = authority_of(place)
        pair = own_pair(place)
        self._context.load_cert_chain(place.certificate, place.key)
        self._quic.renew(pair)
        self._pair = pair
        self.service.use(authority)
        self.service.plan.rules = place.settings.rules()
        self.limits.sizes = LimitSizes.of(place.settings.listen, self.limits.sizes.connections)

    def limited(self) -> Mapping[str, int]:
        return {**super().limited(), "stored_refused": self.service.plan.stored.refused}

    def certificates(self) -> Sequence[x509.Certificate]:
        """The one that is shown: the file may hold another by now, or none."""
        return self._pair.chain[:1]

    @staticmethod
    def secrets(place: DsPlace) -> Sequence[Path]:
        return place.key, place.tokens, place.file

    @property
    def journal_name(self) -> str:
        return self.place.folder.name

    async def read_meters(self, minute_s: int, with_sketches: bool) -> Reading:
        return await read_meters(self.service)

    def journaled(self, journal: JournalKeeper) -> None:
        keys = [bytes.fromhex(key) for key in self.place.settings.journal.lab]
        if keys:
            self.service.plan.lab = DsLab(journal.lab(L_DELIVERY), keys)

    async def measure(self, text: Text) -> None:
        render(text, self.service)

    async def status(self) -> dict[str, Any]:
        """Numbers only: nothing about a queue or a caller."""
        service = self.service
        payloads, size = service.store.totals()
        meters, waited = service.engine.meters, service.plan.meters.wait_s
        return {
            **self.connected(),
            "stored_by_largest": service.plan.stored.largest(),
            "waiting": len(service.plan.state.waiting),
            "in_hand": len(service.plan.state.held),
            "payloads": payloads,
            "bytes": size,
            "turns": meters.turns,
            "commit_s_mean": round(meters.commit_s.total / max(meters.commit_s.count, 1), 6),
            "wait_s_mean": round(waited.total / max(waited.count, 1), 6),
            "counters": service.plan.meters.values(),
        }
