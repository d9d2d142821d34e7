"""One connection over a faulty network on a virtual clock: how it went for both sides."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from blindpost.testing.clock import run_virtual
from blindpost.testing.network import PERFECT, Link, MemoryNetwork
from blindpost.transport.errors import TransportError
from blindpost.transport.keeper import Keeper
from blindpost.transport.session import Session
from blindpost.wire.smp.handshake import ServiceRole
from tests.support.transport.sessions import (
    HOST,
    Recorder,
    service_credentials,
    serving,
    smp_client,
    smp_router,
)
from tests.support.transport.streams import connect

BLOCKS = (b"first block", b"second block")


@dataclass(frozen=True)
class Outcome:
    """What became of a client that connects, sends two blocks, reads two echoes and closes."""

    connected: bool
    echoes: tuple[bytes, ...]
    error: TransportError | None
    router_reasons: tuple[TransportError, ...]
    ended_at: float
    sent_up: int
    sent_down: int
    steps: tuple[tuple[float, str], ...]


def episode(
    up: Link = PERFECT, down: Link = PERFECT, *, seed: int | str = 0, service: bool = False, **options: Any
) -> Outcome:
    """Run one connection; when it is over nothing may be left."""
    return run_virtual(_episode(up, down, seed, service, options))


async def _episode(up: Link, down: Link, seed: int | str, service: bool, options: dict[str, Any]) -> Outcome:
    network = MemoryNetwork(seed)
    network.plan(up, down)
    loop = asyncio.get_running_loop()
    steps: list[tuple[float, str]] = []
    router = Recorder(echo=True)
    error: TransportError | None = None
    connected, echoes = False, []
    credentials = (ServiceRole.MESSAGING, service_credentials()) if service else None
    async with serving(smp_router(**options), router, network) as port:
        try:
            stream = await connect(smp_client(service=credentials, **options), HOST, port, network)
            connected = True
            steps.append((loop.time(), "connected"))
            for block in BLOCKS:
                stream.send(block)
            for _ in BLOCKS:
                echoes.append(bytes(await stream.read_block()))
                steps.append((loop.time(), "echo"))
            await stream.close()
        except TransportError as caught:
            error = caught
        await router.until("reasons")
        steps.append((loop.time(), "over"))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    timers = (timer for timer in vars(loop)["_scheduled"] if not timer.cancelled())
    owners = [getattr(timer._callback, "__self__", None) for timer in timers]
    assert not any(isinstance(owner, Session | Keeper) for owner in owners)
    caller, called = network.connections[0]
    return Outcome(
        connected,
        tuple(echoes),
        error,
        tuple(router.reasons),
        loop.time(),
        caller.bytes_delivered,
        called.bytes_delivered,
        tuple(steps),
    )
