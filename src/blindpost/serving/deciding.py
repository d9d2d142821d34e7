"""Services around an engine: what all servers with connections and a store have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from cryptography import x509

from blindpost.crypto.credentials import Credentials
from blindpost.engine.loop import Engine
from blindpost.serving.blocks import LimitedServer
from blindpost.serving.limits import Limits, LimitSizes
from blindpost.serving.memory import LOOK_S, MemoryGuard
from blindpost.serving.service import P, Round, Service
from blindpost.transport.plan import SessionPlan


class Kept(Protocol):
    """A store, as far as every server needs it."""

    async def probe(self) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Owned(Protocol):
    """A database behind a store, which another server may take over."""

    on_displaced: Callable[[], None] | None
    takeover_s: float

    @property
    def is_away(self) -> bool: ...

    @property
    def is_sure(self) -> bool: ...

    async def sign(self) -> None: ...

    async def claim(self, identity: str) -> None: ...


SIGN_S = 1.0
"""How often a database hears of its owner."""


class Core(Protocol):
    """A running server, apart from where it listens."""

    @property
    def connections(self) -> Mapping[int, Any]: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def engine(self) -> Engine[Any]: ...

    @property
    def store(self) -> Kept: ...

    async def run(self) -> None: ...

    def stop(self) -> None: ...


class EngineService(Service[P]):
    """A server that decides in turns, within limits, and keeps the results in a store."""

    def __init__(self, place: P, core: Core) -> None:
        super().__init__(place)
        self.limits = core.limits
        self._core = core

    async def work(self) -> None:
        await self._core.run()

    def stop(self) -> None:
        self._core.stop()

    async def release(self) -> None:
        self._core.store.close()

    async def close(self) -> None:
        self._core.store.close()

    def rounds(self) -> list[Round]:
        return [Round("the memory check", LOOK_S, MemoryGuard(self.limits, self.memory).look)]

    def signs(self) -> list[Round]:
        return [] if self._database is None else [Round("the sign of life", SIGN_S, self._database.sign)]

    @property
    def _database(self) -> Owned | None:
        store = getattr(self._core.store, "store", None)
        return store if isinstance(store, Owned) else None

    def on_displaced(self, call: Callable[[], None], takeover_s: float) -> None:
        if self._database is not None:
            self._database.on_displaced, self._database.takeover_s = call, takeover_s

    async def claim(self) -> None:
        if self._database is not None and self.place.known_as:
            await self._database.claim(self.place.known_as)

    async def probe(self) -> None:
        await self._core.store.probe()

    def trouble(self) -> str | None:
        """A database that is away is noticed by the next sign of life, also while nobody writes."""
        is_away = self._database is not None and self._database.is_away
        return "the store takes no writes: the database is away" if is_away else None

    @property
    def refused(self) -> int:
        return self._core.engine.meters.turns_refused

    def limited(self) -> Mapping[str, int]:
        return self.limits.limited

    @property
    def bounds(self) -> LimitSizes:
        return self.limits.sizes

    def connected(self) -> dict[str, Any]:
        """Its connections in numbers, for `status`."""
        return {
            "connections": len(self._core.connections),
            "handshakes": self.limits.handshakes,
            "addresses": self.limits.addresses,
            "top": self.limits.top(),
            "limited": self.limited(),
        }


class RoutingService(EngineService[P]):
    """A server whose connections carry blocks."""

    def __init__(self, place: P, core: Core, server: LimitedServer, credentials: Credentials) -> None:
        super().__init__(place, core)
        self.server = server
        self.credentials = credentials

    async def stop_listening(self) -> None:
        await self.server.stop_listening()

    async def drain(self, seconds: float) -> None:
        await self.server.wait_empty(seconds)

    def renew(self, credentials: Credentials, plan: SessionPlan) -> None:
        """Show these certificates to new connections."""
        self.credentials = credentials
        self.server.renew(plan)

    def certificates(self) -> Sequence[x509.Certificate]:
        return [x509.load_der_x509_certificate(der) for der in self.credentials.chain]
