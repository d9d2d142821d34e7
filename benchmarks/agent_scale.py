"""What many connections cost an agent: subscribing them, coming back after a cut, and memory.

    python -m benchmarks.agent_scale [--queues 1000 10000 100000] [--waiting 100] [--json]

The router is the real command in a process of its own, with queues already in its store; the agent's own
store has them too. Subscribing is compared with the router's own rate of SUB: the same commands from a bare
client that has all keys in memory. Coming back is the time from a cut until the router has answered SUBS,
without the random delay before the first attempt, and until the messages that waited are there.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import floor
from benchmarks.load.filling import derived, fill, recipient_id, recipient_key, sender_id
from benchmarks.load.process import MeasuredRouter, measured_router
from benchmarks.load.scenes import started
from blindpost.agent.events import Event, ServiceAll, ServiceUp
from blindpost.agent.model import ConnMode, QueueStatus, RcvQueue
from blindpost.agent.sessions import Session
from blindpost.agent.store import connections, queues
from blindpost.agent.store.database import AgentStore
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.subscriptions.ports import SubscriptionOptions
from blindpost.client.calls import Call, Failure
from blindpost.client.smp import SmpClient
from blindpost.crypto.keys import PrivateKey
from blindpost.store.contract import Durability
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, SEND, SUB
from blindpost.wire.smp.responses import MSG, OK, SOK
from blindpost.wire.smp.values import QueueMode

USER = 1
ROUNDS = 7
PAGE = 1350
AT_ONCE = SubscriptionOptions(soon_s=0.0, gentle_s=0.0)


@dataclass(frozen=True)
class Row:
    """One number of queues."""

    queues: int
    bare_s: float
    """A bare client subscribes all of them."""
    plain_s: float
    """The agent does, each on its own."""
    joined_s: float
    """The agent does as a service, for the first time."""
    up_ms: float
    """From a cut until the service is up again: connecting, TLS, SUBS."""
    all_ms: float
    """The same with messages waiting, until all are there."""
    plain_kb: float
    service_kb: float
    """What the subscriptions hold in memory, and what being a service leaves of it."""


@dataclass
class Bench:
    """Counts what comes, and acknowledges it."""

    messages: int = 0
    events: list[Event] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    acks: set[asyncio.Task[object]] = field(default_factory=set)

    async def received(self, session: Session, rcv_id: bytes, msg: MSG) -> None:
        self.messages += 1
        number = self.number_of[rcv_id]
        call = session.client.send(ACK(bytes(msg.msg_id)), rcv_id, recipient_key(number))
        task = asyncio.create_task(call)
        self.acks.add(task)
        task.add_done_callback(self.acks.discard)
        self.changed.set()

    def __post_init__(self) -> None:
        self.number_of: dict[bytes, int] = {}

    def raised(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    def up(self, server: Server, conn_ids: Sequence[str]) -> None: ...

    def down(self, server: Server, conn_ids: Sequence[str]) -> None: ...

    def ended(self, server: Server, conn_id: str, rcv_id: bytes) -> None: ...

    def deleted(self, server: Server, conn_id: str, rcv_id: bytes) -> None: ...

    def refused(self, server: Server, errors: Sequence[tuple[str, Failure]]) -> None:
        raise RuntimeError(f"{len(errors)} queues were refused: {errors[0][1]}")

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


def fill_agent(store: AgentStore, server: Server, count: int) -> None:
    """The same queues as the router's, each of a connection of its own."""
    e2e_key = PrivateKey(Algorithm.X25519, derived("e2e key", 0, 32))
    with store.transaction() as db:
        for number in range(count):
            conn_id = f"connection {number:07}"
            connections.insert(db, conn_id, USER, ConnMode.INVITATION, agent_version=7, pq_support=True)
            queue = RcvQueue(
                conn_id=conn_id,
                user_id=USER,
                number=1,
                server=server,
                rcv_id=recipient_id(number),
                snd_id=sender_id(number),
                mode=QueueMode.MESSAGING,
                key=recipient_key(number),
                dh_secret=derived("secret", number, 32),
                e2e_key=e2e_key,
                e2e_secret=None,
                client_version=4,
                status=QueueStatus.ACTIVE,
            )
            queues.insert_rcv(db, queue)


async def bare(server: Server, count: int) -> float:
    """SUB for every queue from a client that does nothing else, in batches of the same size."""
    keys = [(recipient_id(number), recipient_key(number)) for number in range(count)]
    client = await SmpClient.connect(server)
    began = time.perf_counter()
    under_way: list[asyncio.Task[list[object]]] = []
    for start in range(0, count, PAGE):
        calls = [Call(SUB(), rcv_id, key) for rcv_id, key in keys[start : start + PAGE]]
        under_way.append(asyncio.create_task(client.send_many(calls)))  # type: ignore[arg-type]
        if len(under_way) >= 2:
            assert all(isinstance(result, SOK) for result in await under_way.pop(0))
    for task in under_way:
        assert all(isinstance(result, SOK) for result in await task)
    took = time.perf_counter() - began
    await client.close()
    return took


async def subscribing(path: Path, server: Server, *, service: bool) -> tuple[float, float]:
    """Seconds to subscribe everything from the store, and kilobytes that it leaves in memory."""
    store, bench = AgentStore.open(path, durability=Durability.OS), Bench()
    subscriptions = Subscriptions(store, bench, bench, None, AT_ONCE, has_service=lambda _: service)
    await subscriptions.sessions.session(subscriptions.sessions.key(USER, server))
    began = time.perf_counter()
    await subscriptions.subscribe_all()
    took = time.perf_counter() - began
    await subscriptions.close()
    store.close()
    return took, await remaining(path, server, service=service)


async def remaining(path: Path, server: Server, *, service: bool) -> float:
    """The same once more, now for the memory it leaves."""
    store, bench = AgentStore.open(path, durability=Durability.OS), Bench()
    subscriptions = Subscriptions(store, bench, bench, None, AT_ONCE, has_service=lambda _: service)
    await subscriptions.sessions.session(subscriptions.sessions.key(USER, server))
    gc.collect()
    tracemalloc.start()
    await subscriptions.subscribe_all()
    gc.collect()
    stays, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await subscriptions.close()
    store.close()
    return stays / 1024


async def coming_back(path: Path, server: Server, count: int, waiting: int) -> tuple[float, float]:
    """Milliseconds from a cut until the service is up, and until what waited has come; medians."""
    store, bench = AgentStore.open(path, durability=Durability.OS), Bench()
    bench.number_of = {recipient_id(number): number for number in range(waiting)}
    subscriptions = Subscriptions(store, bench, bench, None, AT_ONCE, has_service=lambda _: True)
    key = subscriptions.sessions.key(USER, server)
    await subscriptions.subscribe_all()
    sender = await SmpClient.connect(server)
    up_ms, all_ms = [], []
    for messages in [0] * ROUNDS + [waiting] * ROUNDS:
        gc.collect()
        before = len(bench.events), bench.messages
        session = subscriptions.sessions.current(key)
        assert session is not None
        subscriptions.set_online(False)
        await subscriptions.sessions.drop(session)
        body = bytes(15_000)
        calls = [Call(SEND(False, body), sender_id(n), recipient_key(n)) for n in range(messages)]
        assert all(isinstance(result, OK) for result in await sender.send_many(calls))
        began = time.perf_counter()
        subscriptions.set_online(True)
        await bench.until(lambda seen=before[0]: any_since(bench, seen, ServiceUp))  # type: ignore[misc]
        up_ms.append((time.perf_counter() - began) * 1000)
        await bench.until(lambda seen=before[0]: any_since(bench, seen, ServiceAll))  # type: ignore[misc]
        await bench.until(lambda had=before[1], new=messages: bench.messages >= had + new)  # type: ignore[misc]
        all_ms.append((time.perf_counter() - began) * 1000)
        while bench.acks:
            await asyncio.wait(bench.acks)
    await subscriptions.close()
    await sender.close()
    store.close()
    return statistics.median(up_ms[:ROUNDS]), statistics.median(all_ms[ROUNDS:])


def any_since(bench: Bench, start: int, kind: type[Event]) -> bool:
    return any(isinstance(event, kind) for event in bench.events[start:])


async def measured(router: MeasuredRouter, count: int, waiting: int) -> Row:
    await fill(router.store, count)
    async with started(router):
        server = Server((Host("127.0.0.1"),), str(router.port), router.fingerprint)
        path = router.folder / "agent.db"
        store = AgentStore.open(path, durability=Durability.OS)
        fill_agent(store, server, count)
        store.close()
        bare_s = await bare(server, count)
        plain_s, plain_kb = await subscribing(path, server, service=False)
        joined_s, service_kb = await subscribing(path, server, service=True)
        up_ms, all_ms = await coming_back(path, server, count, waiting)
    return Row(count, bare_s, plain_s, joined_s, up_ms, all_ms, plain_kb, service_kb)


def shown(rows: Sequence[Row], waiting: int) -> str:
    lines = [f"{what}: {value}" for what, value in floor.machine().items()]
    head = (
        "queues",
        "bare SUB",
        "agent",
        "ratio",
        "as service",
        "back up",
        f"+{waiting} msgs",
        "plain",
        "service",
    )
    lines += ["", "".join(f"{name:>12}" for name in head)]
    for row in rows:
        cells = (
            f"{row.queues:,}",
            f"{row.queues / row.bare_s:,.0f}/s",
            f"{row.queues / row.plain_s:,.0f}/s",
            f"{row.plain_s / row.bare_s:.2f}",
            f"{row.queues / row.joined_s:,.0f}/s",
            f"{row.up_ms:.1f} ms",
            f"{row.all_ms:.1f} ms",
            f"{row.plain_kb:,.0f} KB",
            f"{row.service_kb:,.0f} KB",
        )
        lines.append("".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


async def run(counts: Sequence[int], waiting: int) -> list[Row]:
    rows = []
    for count in counts:
        print(f"{count:,} queues", file=sys.stderr, flush=True)
        with measured_router() as router:
            rows.append(await measured(router, count, min(waiting, count)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what many connections cost an agent.")
    parser.add_argument("--queues", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--waiting", type=int, default=100, help="messages that wait when it comes back")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments.queues, arguments.waiting))
    if arguments.json:
        print(json.dumps({"machine": floor.machine(), "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(shown(rows, arguments.waiting))


if __name__ == "__main__":
    main()
