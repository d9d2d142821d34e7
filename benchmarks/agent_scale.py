"""What many connections cost an agent: coming back after a cut as a service, memory, and subscribing.

    python -m benchmarks.agent_scale [--queues 1000 10000 100000] [--subscribed 10000] [--waiting 100]

The router is the real command in a process of its own, with queues already in its store; the agent's own
store has them too. Coming back is the time from the moment that there is a network again until the router
has answered SUBS, and until the messages that waited are there. Subscribing is compared with the router's
own rate of SUB: the same commands from a bare client that has all keys in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import floor
from benchmarks.figures.rows import Figure, as_json, single
from benchmarks.load.filling import derived, fill, fill_service, recipient_id, recipient_key, sender_id
from benchmarks.load.process import MeasuredRouter, measured_router
from benchmarks.load.rows import started
from blindpost.agent import Event, QueueStatus, ServiceAll, ServiceUp, SubscriptionOptions
from blindpost.agent.model import ConnMode, RcvQueue
from blindpost.agent.routers.sessions import Session
from blindpost.agent.store import connections, queues
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.database import AgentStore
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.client.calls import Call, Failure
from blindpost.client.smp import SmpClient
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.store.contract import Durability
from blindpost.transport.errors import TransportError
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, SEND, SUB
from blindpost.wire.smp.responses import MSG, OK, SOK
from blindpost.wire.smp.values import QueueMode

USER = 1
ROUNDS = 7
PAGE = 1350
BODY = bytes(15_000)
AT_ONCE = SubscriptionOptions(soon_s=0.0, gentle_s=0.0)


@dataclass(frozen=True)
class Return:
    """A service with so many queues comes back."""

    queues: int
    up_ms: float
    """Until it is subscribed: connecting, TLS, SUBS."""
    all_ms: float
    """The same with messages waiting, until all are there."""
    memory_kb: float
    """What its subscriptions hold in memory."""


@dataclass(frozen=True)
class Subscribing:
    """So many queues are subscribed one by one."""

    queues: int
    bare_s: float
    """By a bare client."""
    plain_s: float
    """By an agent."""
    joined_s: float
    """By an agent that becomes a service."""
    memory_kb: float
    """What an agent that is no service holds in memory then."""


@dataclass
class Bench:
    """Counts what comes, and acknowledges it."""

    messages: int = 0
    events: list[Event] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    acks: set[asyncio.Task[object]] = field(default_factory=set)

    async def received(self, session: Session, rcv_id: bytes, msg: MSG) -> None:
        self.messages += 1
        call = session.client.send(ACK(bytes(msg.msg_id)), rcv_id, recipient_key(0))
        task = asyncio.create_task(call)
        self.acks.add(task)
        task.add_done_callback(self.acks.discard)
        self.changed.set()

    def raised(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    def up(self, server: Server, conn_ids: Sequence[str]) -> None: ...

    def down(self, server: Server, conn_ids: Sequence[str]) -> None: ...

    def ended(self, server: Server, conn_id: str, rcv_id: bytes) -> None: ...

    def deleted(self, server: Server, conn_id: str, rcv_id: bytes) -> None: ...

    def unreached(self, server: Server, failure: TransportError) -> None: ...

    def reached(self, server: Server) -> None: ...

    def refused(self, server: Server, errors: Sequence[tuple[str, Failure]]) -> None:
        raise RuntimeError(f"{len(errors)} queues were refused: {errors[0][1]}")

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


def fill_agent(
    path: Path, server: Server, count: int, service: tuple[bytes, Credentials] | None = None
) -> None:
    """The same queues as the router's, each of a connection of its own; all of a service, if there is one."""
    e2e_key = PrivateKey(Algorithm.X25519, derived("e2e key", 0, 32))
    store = AgentStore.open(path, durability=Durability.OS)
    with store.transaction() as db:
        if service is not None:
            rows.put_credentials(db, USER, server, service[1])
            rows.set_service_id(db, USER, server, service[0])
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
                key=recipient_key(0 if service is not None else number),
                dh_secret=derived("secret", number, 32),
                e2e_key=e2e_key,
                e2e_secret=None,
                client_version=4,
                status=QueueStatus.ACTIVE,
                service_associated=service is not None,
            )
            queues.insert_rcv(db, queue)
    store.close()


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


@asynccontextmanager
async def agent(path: Path, server: Server, *, service: bool) -> AsyncIterator[tuple[Subscriptions, Bench]]:
    """An agent that is connected and has subscribed nothing."""
    store, bench = AgentStore.open(path, durability=Durability.OS), Bench()
    subscriptions = Subscriptions(store, bench.received, bench, None, AT_ONCE, has_service=lambda _: service)
    await subscriptions.sessions.session(subscriptions.sessions.key(USER, server))
    try:
        yield subscriptions, bench
    finally:
        await subscriptions.close()
        store.close()


async def seconds(path: Path, server: Server, *, service: bool) -> float:
    """To subscribe everything in the store."""
    async with agent(path, server, service=service) as (subscriptions, _):
        began = time.perf_counter()
        await subscriptions.subscribe_all()
        return time.perf_counter() - began


async def kilobytes(path: Path, server: Server, *, service: bool) -> float:
    """That are still held when everything is subscribed."""
    async with agent(path, server, service=service) as (subscriptions, _):
        gc.collect()
        tracemalloc.start()
        await subscriptions.subscribe_all()
        gc.collect()
        stays, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return stays / 1024


async def coming_back(path: Path, server: Server, waiting: int) -> tuple[float, float]:
    """Milliseconds until the service is up, and until what waited has come; medians."""
    up_ms, all_ms = [], []
    sender = await SmpClient.connect(server)
    async with agent(path, server, service=True) as (subscriptions, bench):
        await subscriptions.subscribe_all()
        for messages in [0] * ROUNDS + [waiting] * ROUNDS:
            gc.collect()
            seen, had = len(bench.events), bench.messages
            session = subscriptions.sessions.current(subscriptions.sessions.key(USER, server))
            assert session is not None
            subscriptions.set_online(False)
            await subscriptions.sessions.drop(session)
            calls = [Call(SEND(False, BODY), sender_id(n), recipient_key(0)) for n in range(messages)]
            assert all(isinstance(result, OK) for result in await sender.send_many(calls))
            began = time.perf_counter()
            subscriptions.set_online(True)
            await bench.until(partial(any_since, bench, seen, ServiceUp))
            up_ms.append((time.perf_counter() - began) * 1000)
            await bench.until(partial(any_since, bench, seen, ServiceAll))
            assert bench.messages == had + messages
            all_ms.append((time.perf_counter() - began) * 1000)
            while bench.acks:
                await asyncio.wait(bench.acks)
    await sender.close()
    return statistics.median(up_ms[:ROUNDS]), statistics.median(all_ms[ROUNDS:])


def any_since(bench: Bench, start: int, kind: type[Event]) -> bool:
    return any(isinstance(event, kind) for event in bench.events[start:])


async def measured_return(router: MeasuredRouter, count: int, waiting: int) -> Return:
    service_id, credentials = derived("service id", 0, 24), make_service(int(time.time()), system_entropy)
    await fill_service(router.store, service_id, credentials, count, 0)
    async with started(router):
        server, path = server_of(router), router.folder / "agent.db"
        fill_agent(path, server, count, (service_id, credentials))
        memory_kb = await kilobytes(path, server, service=True)
        up_ms, all_ms = await coming_back(path, server, min(waiting, count))
    return Return(count, up_ms, all_ms, memory_kb)


async def measured_subscribing(router: MeasuredRouter, count: int) -> Subscribing:
    await fill(router.store, count)
    async with started(router):
        server, path = server_of(router), router.folder / "agent.db"
        fill_agent(path, server, count)
        bare_s = await bare(server, count)
        plain_s = await seconds(path, server, service=False)
        memory_kb = await kilobytes(path, server, service=False)
        joined_s = await seconds(path, server, service=True)
    return Subscribing(count, bare_s, plain_s, joined_s, memory_kb)


def server_of(router: MeasuredRouter) -> Server:
    return Server((Host("127.0.0.1"),), str(router.port), router.fingerprint)


def shown(returns: Sequence[Return], subscribing: Subscribing, waiting: int) -> str:
    lines = [f"{what}: {value}" for what, value in floor.machine().items()]
    lines += ["", f"{'queues of a service':>20}{'back up':>12}{f'{waiting} messages':>16}{'memory':>12}"]
    lines += [
        f"{row.queues:>20,}{row.up_ms:>9.1f} ms{row.all_ms:>13.1f} ms{row.memory_kb:>9.0f} KB"
        for row in returns
    ]
    one = subscribing
    rates = {
        "a bare client": one.bare_s,
        "the agent": one.plain_s,
        "the agent, as a service": one.joined_s,
    }
    lines += ["", f"{one.queues:,} queues one by one"]
    lines += [
        f"{who:>26}: {one.queues / took:>8,.0f} SUB/s, {took / one.bare_s:.2f} times the bare client"
        for who, took in rates.items()
    ]
    lines += [f"{'memory':>26}: {one.memory_kb / one.queues * 1024:>8,.0f} bytes for each"]
    return "\n".join(lines)


def figures(returns: Sequence[Return], subscribing: Subscribing, waiting: int) -> list[Figure]:
    found = []
    for one in returns:
        of = f"service of {one.queues:,} queues"
        found += [
            single(f"{of}: back up", "ms", one.up_ms),
            single(f"{of}: back up with {waiting} messages", "ms", one.all_ms),
            single(f"{of}: memory", "KB", one.memory_kb),
        ]
    of = f"{subscribing.queues:,} queues one by one"
    return [
        *found,
        single(f"{of}: the agent", "x bare client", subscribing.plain_s / subscribing.bare_s),
        single(f"{of}: as a service", "x bare client", subscribing.joined_s / subscribing.bare_s),
        single(f"{of}: memory of each", "bytes", subscribing.memory_kb / subscribing.queues * 1024),
    ]


async def run(counts: Sequence[int], subscribed: int, waiting: int) -> tuple[list[Return], Subscribing]:
    returns = []
    for count in counts:
        print(f"a service of {count:,} queues", file=sys.stderr, flush=True)
        with measured_router() as router:
            returns.append(await measured_return(router, count, waiting))
    print(f"subscribing {subscribed:,} queues", file=sys.stderr, flush=True)
    with measured_router() as router:
        return returns, await measured_subscribing(router, subscribed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what many connections cost an agent.")
    parser.add_argument("--queues", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument(
        "--subscribed", type=int, default=10_000, help="queues that are subscribed one by one"
    )
    parser.add_argument("--waiting", type=int, default=100, help="messages that wait when it comes back")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    returns, subscribing = asyncio.run(run(arguments.queues, arguments.subscribed, arguments.waiting))
    if arguments.json:
        print(as_json(figures(returns, subscribing, arguments.waiting)))
    else:
        print(shown(returns, subscribing, arguments.waiting))


if __name__ == "__main__":
    main()
