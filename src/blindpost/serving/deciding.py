"""Services around an engine: what all servers with connections and a store have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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

    async def close(self) -> None:
        self._core.store.close()

    def rounds(self) -> list[Round]:
        return [Round("the memory check", LOOK_S, MemoryGuard(self.limits).look)]

    async def probe(self) -> None:
        await self._core.store.probe()

    @property
    def commits(self) -> tuple[int, int]:
        meters = self._core.engine.meters
        return meters.commit_s.count, meters.turns_refused

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
