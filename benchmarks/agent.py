"""What agents cost: a message end to end, a connection, and ten thousand idle ones; how many a second.

    python -m benchmarks.agent [--messages 400] [--connections 20] [--idle 10000] [--many 100] [--echoes 200]
        [--json]

Method: the router is the real command in a process of its own, its store in memory. Both agents run in this
process, so that its CPU time is that of a message on both sides: stored, encrypted, sent, delivered, opened,
stored, shown and acknowledged. Messages have 1,000 bytes, post-quantum ratchets are on, and many connections
talk at once, each in its order. Beside it stands the floor: the calls into C that such a message cannot do
without on either side (three boxes, two AES-GCM seals and opens, signatures, hashes, and the blocks and TLS
records that carry SEND, MSG, ACK and OK), each measured alone. KEM key pairs are made in another process.
Rates with stores on a disk, and what is asked of SQLite for them, are `benchmarks.agent_rates`.
Memory is what the agent allocates for connections that are stored and subscribed; made ones are written to
its store directly.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import agent_rates, floor
from benchmarks.agent_rates import Rates, connected
from benchmarks.agent_scale import fill_agent
from benchmarks.figures.rows import Better, Figure, as_json, single
from benchmarks.load.filling import fill
from benchmarks.load.process import MEMORY_DISK, MeasuredRouter, measured_router
from benchmarks.load.rows import started
from blindpost.agent import Agent, AgentConfig, Connection, Received, Up
from blindpost.crypto import aead
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet_state import chain_kdf
from blindpost.store.contract import Durability
from blindpost.wire.addresses import Host, RouterAddress, Scheme, Server
from blindpost.wire.keys import Algorithm

BODY = b"x" * 1000
HEADER_SIZE, MESSAGE_SIZE, BOX_SIZE, DELIVERED_SIZE = 2310, 13_618, 16_000, 16_104
CONFIG = AgentConfig(durability=Durability.OS)


@dataclass(frozen=True)
class Result:
    """What was measured."""

    messages_per_cpu_s: float
    message_us: float
    floor_us: float
    connections_per_s: float
    idle: int
    idle_bytes: int
    rates: Rates

    @property
    def multiple(self) -> float:
        """How often its floor a message costs."""
        return self.message_us / self.floor_us


def _us(call: Callable[[], object], repeats: int = 200) -> float:
    """CPU time of one call: the median of five rounds."""
    return statistics.median(floor.cpu_ns(call, repeats) / repeats / 1000 for _ in range(5))


def floor_us() -> float:
    """The crypto of one message on both sides, call by call."""
    box, nonce, key, iv = BoxKey(bytes(32)), bytes(24), bytes(32), bytes(16)
    signing = PrivateKey.generate(Algorithm.ED25519, system_entropy)
    large, header, body = bytes(BOX_SIZE), bytes(HEADER_SIZE), bytes(MESSAGE_SIZE)
    sealed = {size: bytes(box.seal(nonce, bytes(size))) for size in (BOX_SIZE, DELIVERED_SIZE)}
    header_sealed, body_sealed = aead.seal(key, iv, b"", header), aead.seal(key, iv, b"", body)
    own = (
        2 * _us(lambda: chain_kdf(key)),
        _us(lambda: aead.seal(key, iv, b"", header)) + _us(lambda: aead.seal(key, iv, b"", body)),
        _us(lambda: aead.unseal(key, iv, b"", *header_sealed)),
        _us(lambda: aead.unseal(key, iv, b"", *body_sealed)),
        _us(lambda: box.seal(nonce, large)) + _us(lambda: box.open(nonce, sealed[BOX_SIZE])),
        _us(lambda: box.open(nonce, sealed[DELIVERED_SIZE])),
        _us(lambda: signing.sign(large)) + _us(lambda: signing.sign(header[:100])),
        _us(lambda: hashlib.sha256(large).digest()) + 2 * _us(lambda: hashlib.sha256(BODY).digest()),
    )
    measured = {item.name: item.median_us for item in floor.measure(3).items}
    keys = measured["block key: HKDF-SHA512"] + measured["block key: HSalsa20"]
    sent = measured["block box sealed"] + measured["TLS record sealed"] + keys
    came = measured["block box opened"] + measured["TLS record opened"] + keys
    return sum(own) + 2 * sent + 2 * came


async def _acknowledge(bob: Agent, count: int) -> None:
    while count:
        event = await bob.next_event()
        if isinstance(event, Received):
            await event.msg.ack()
            count -= 1


async def messages_us(bob: Agent, conns: list[Connection], count: int) -> float:
    """CPU time of both agents for one message."""
    started_ns = time.process_time_ns()
    receiving = asyncio.create_task(_acknowledge(bob, count))
    for number in range(count):
        await conns[number % len(conns)].send(BODY)
    await receiving
    return (time.process_time_ns() - started_ns) / count / 1000


async def idle_bytes(path: Path, address: str, count: int) -> int:
    """What the agent holds for connections that are subscribed and silent."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        async with Agent.open(path, servers=[address], config=CONFIG) as agent:
            up = 0
            while up < count:
                event = await agent.next_event()
                if isinstance(event, Up):
                    up += len(event.conns)
            del event
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        return after - before
    finally:
        tracemalloc.stop()


def server_of(router: MeasuredRouter) -> Server:
    return Server((Host("127.0.0.1"),), str(router.port), router.fingerprint)


async def talking(folder: Path, messages: int, connections: int) -> tuple[float, float]:
    """Microseconds a message, and connections in a second."""
    with measured_router() as router:
        async with started(router):
            address = RouterAddress(Scheme.SMP, server_of(router)).text
            async with (
                Agent.open(folder / "a.db", servers=[address], config=CONFIG) as alice,
                Agent.open(folder / "b.db", servers=[address], config=CONFIG) as bob,
            ):
                began = time.monotonic()
                conns = await connected(alice, bob, connections)
                rate = connections / (time.monotonic() - began)
                await messages_us(bob, conns, max(connections, messages // 10))
                return await messages_us(bob, conns, messages), rate


async def idling(folder: Path, count: int) -> int:
    with measured_router() as router:
        await fill(router.store, count)
        async with started(router):
            server = server_of(router)
            fill_agent(folder / "idle.db", server, count)
            return await idle_bytes(folder / "idle.db", RouterAddress(Scheme.SMP, server).text, count)


async def run(messages: int, connections: int, idle: int, many: int, echoes: int) -> Result:
    parent = MEMORY_DISK if MEMORY_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="blindpost-bench-", dir=parent) as name:
        message_us, rate = await talking(Path(name), messages, connections)
        held = await idling(Path(name), idle)
    rates = await agent_rates.measure(messages, many, echoes)
    return Result(1e6 / message_us, message_us, floor_us(), rate, idle, held, rates)


def shown(result: Result) -> str:
    return "\n".join(
        (
            f"messages per CPU second, both sides   {result.messages_per_cpu_s:8.0f}",
            f"a message, both sides                 {result.message_us:8.0f} us",
            f"its floor of calls into C             {result.floor_us:8.0f} us",
            f"multiple of the floor                 {result.multiple:8.2f}",
            f"connections made per second           {result.connections_per_s:8.1f}",
            f"memory of {result.idle:,} idle connections {result.idle_bytes / 1e6:13.1f} MB",
            agent_rates.shown(result.rates),
        )
    )


def figures(result: Result) -> list[Figure]:
    return [
        single("a message, both sides", "x floor", result.multiple),
        single("messages, both sides", "per CPU s", result.messages_per_cpu_s, Better.HIGHER),
        single("the floor of a message", "us of CPU", result.floor_us, Better.NEITHER),
        single("connections made", "per s", result.connections_per_s, Better.HIGHER),
        single(f"memory of {result.idle:,} idle connections", "MB", result.idle_bytes / 1e6),
        *agent_rates.figures(result.rates),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--many", type=int, default=100, help="connections where rates are measured")
    parser.add_argument("--echoes", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    result = asyncio.run(run(chosen.messages, chosen.connections, chosen.idle, chosen.many, chosen.echoes))
    print(as_json(figures(result)) if chosen.json else shown(result))


if __name__ == "__main__":
    main()
