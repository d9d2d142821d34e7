"""Messages that two agents take in a second when everything is durable.

    python -m benchmarks.agent_rates [--messages 400] [--connections 100] [--echoes 200] [--folder F] [--json]

Method: both agents run in this process, each with its store on a real disk at full durability; the router is
the real command in a process of its own, its store in memory, so that what is measured is the agents. A
message counts when it was stored, sent, delivered, stored, shown and acknowledged. The sender has a queue:
so many calls of `send` wait at a time. The recipient acknowledges in tasks, as a program with many
connections does. Rates are of wall-clock time; beside them stands the CPU time of both agents. Two agents in
one process share its thread, which those of two people do not: one connection is measured once more with the
recipient in a process of its own. Statements and commits are counted by SQLite's own trace in a run of their
own, since counting takes time; what triggers do is told apart from what the agent asks for.
A commit survives the end of the process; a sync, which is what takes long, makes all commits before it
survive a power loss too.
An echo is a message and its answer: both ratchets turn, and each takes a new KEM key pair, which is 30 ms of
a core's time in the program's KEM process. Beside the rates stands what the same disk does in the same
minute: commits of one row of a message's size, one after the other, before the run and after it.

It uses nothing but the agent's public face and its SQLite connection, so that an older tree can be measured
in turn with this one: copy the file and `figures` into its `benchmarks/`, and run it there.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures.rows import Better, Figure, as_json, single
from benchmarks.load.process import measured_router
from benchmarks.load.rows import started
from blindpost.agent import Agent, AgentConfig, Connected, Connection, Received, Sent
from blindpost.store.contract import Durability
from blindpost.wire.addresses import Host, RouterAddress, Scheme, Server

BODY = b"x" * 1000
ROW = b"x" * 1500
WAITING = 64
"""How many messages of the sender wait to be stored."""
COMMITS = 100
CONFIG = AgentConfig(durability=Durability.FULL)


@dataclass(frozen=True)
class Counted:
    """What an agent asked of SQLite for each message."""

    statements: float
    commits: float
    inner: float
    """What triggers and foreign keys did besides."""
    syncs: float
    """How often the disk had to make something durable, which is what takes long."""


@dataclass(frozen=True)
class Scene:
    """Messages one way over so many connections."""

    connections: int
    messages: int
    per_s: float
    cpu_us: float
    """Of both agents, for a message."""
    sender: Counted
    recipient: Counted


@dataclass(frozen=True)
class Rates:
    """What was measured."""

    commits_per_s: tuple[float, float]
    """Of the disk, before and after."""
    scenes: tuple[Scene, ...]
    apart_per_s: float
    """Messages over one connection whose ends are two processes."""
    echoes_per_s: float


def commits_per_s(folder: Path) -> float:
    """The disk alone: durable commits of one row, one after the other."""
    path = folder / "commits.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            sql.execute(f"PRAGMA {pragma}")
        sql.execute("CREATE TABLE rows (content BLOB)")
        began = time.monotonic()
        for _ in range(COMMITS):
            sql.execute("INSERT INTO rows VALUES (?)", (ROW,))
        taken = time.monotonic() - began
    path.unlink()
    return COMMITS / taken


async def connected(alice: Agent, bob: Agent, count: int) -> list[Connection]:
    """So many connections, made side by side; Alice's ends."""

    async def all_connected(agent: Agent) -> list[Connection]:
        found: list[Connection] = []
        while len(found) < count:
            event = await agent.next_event()
            if isinstance(event, Connected):
                found.append(event.conn)
        return found

    async def one() -> None:
        await bob.join(str(await alice.invite()))

    ours, _, _ = await asyncio.gather(
        all_connected(alice), all_connected(bob), asyncio.gather(*(one() for _ in range(count)))
    )
    return ours


async def taken(agent: Agent, count: int, react: Callable[[Received], Coroutine[Any, Any, None]]) -> None:
    """Take so many messages, each handled by a task."""
    async with asyncio.TaskGroup() as tasks:
        while count:
            event = await agent.next_event()
            if isinstance(event, Received):
                tasks.create_task(react(event))
                count -= 1


async def noted(agent: Agent, count: int) -> None:
    """Take what the sender is told: an agent whose events nobody takes stops receiving, even that a queue has
    room again."""
    while count:
        if isinstance(await agent.next_event(), Sent):
            count -= 1


async def acknowledge(event: Received) -> None:
    await event.msg.ack()


async def sent(alice: Agent, bob: Agent, conns: list[Connection], count: int) -> float:
    """Seconds for so many messages, in turn over all connections."""
    room = asyncio.Semaphore(WAITING)

    async def send(conn: Connection) -> None:
        async with room:
            await conn.send(BODY)

    began = time.monotonic()
    await asyncio.gather(
        taken(bob, count, acknowledge),
        noted(alice, count),
        *(send(conns[n % len(conns)]) for n in range(count)),
    )
    await asyncio.gather(alice.flush(), bob.flush())
    return time.monotonic() - began


async def echoed(alice: Agent, bob: Agent, conns: list[Connection], count: int) -> float:
    """Seconds for so many echoes: each connection has one under way until all were begun."""
    left = count - len(conns)

    async def answer(event: Received) -> None:
        await asyncio.gather(event.msg.ack(), event.conn.send(event.msg.body))

    async def again(event: Received) -> None:
        nonlocal left
        await event.msg.ack()
        if left > 0:
            left -= 1
            await event.conn.send(BODY)

    began = time.monotonic()
    await asyncio.gather(
        taken(bob, count, answer), taken(alice, count, again), *(conn.send(BODY) for conn in conns)
    )
    return time.monotonic() - began


async def counted(alice: Agent, bob: Agent, conns: list[Connection], count: int) -> tuple[Counted, Counted]:
    """Statements and commits of both sides."""
    seen: list[list[str]] = [[], []]
    for agent, statements in zip((alice, bob), seen, strict=True):
        agent._ground.store.reading.sql.set_trace_callback(statements.append)
    syncs = [_counted_syncs(agent) for agent in (alice, bob)]
    await sent(alice, bob, conns, count)
    for agent in (alice, bob):
        agent._ground.store.reading.sql.set_trace_callback(None)
        for owner, name in _syncing(agent):
            vars(owner).pop(name, None)
    ours, theirs = (_per(*one, count) for one in zip(seen, syncs, strict=True))
    return ours, theirs


def _counted_syncs(agent: Agent) -> list[None] | None:
    """One item for each sync from now on; None: every commit is one, as in older trees."""
    file: Any = agent._ground.store._file
    if not getattr(file, "defers_syncs", False):
        return None
    seen: list[None] = []
    for owner, name in _syncing(agent):
        setattr(owner, name, _counting(getattr(owner, name), seen))
    return seen


def _syncing(agent: Agent) -> list[tuple[object, str]]:
    """What is called for each sync: of the store, and of the log beside it, which older trees do not have."""
    store: Any = agent._ground.store
    intake = getattr(store, "intake", None)
    return [(store._file, "sync"), *([] if intake is None else [(intake, "_synced")])]


def _counting(original: Callable[..., None], seen: list[None]) -> Callable[..., None]:
    def counting(*given: object) -> None:
        seen.append(None)
        original(*given)

    return counting


def _per(statements: list[str], syncs: list[None] | None, count: int) -> Counted:
    # What triggers and foreign keys do is told as the statement that made them do so, again.
    pairs = zip(["", *statements], statements, strict=False)
    inner = sum(one == before and not one.startswith("SELECT") for before, one in pairs)
    asked = len(statements) - inner
    commits = statements.count("COMMIT")
    waits = commits if syncs is None else len(syncs)
    return Counted(asked / count, commits / count, inner / count, waits / count)


async def scene(alice: Agent, bob: Agent, conns: list[Connection], messages: int) -> Scene:
    await sent(alice, bob, conns, max(len(conns), messages // 10))
    began_ns = time.process_time_ns()
    seconds = await sent(alice, bob, conns, messages)
    cpu_us = (time.process_time_ns() - began_ns) / messages / 1000
    sender, recipient = await counted(alice, bob, conns, max(len(conns), messages // 2))
    return Scene(len(conns), messages, messages / seconds, cpu_us, sender, recipient)


async def apart(alice: Agent, address: str, disk: Path, messages: int) -> float:
    """Messages a second over one connection to an agent in a process of its own."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.agent_rates", "--recipient", disk / "apart.db", address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    conn = await alice.join((await child.stdout.readline()).decode().strip())
    while not isinstance(await alice.next_event(), Connected):
        pass
    room = asyncio.Semaphore(WAITING)

    async def send() -> None:
        async with room:
            await conn.send(BODY)

    seconds = 0.0
    for count in (max(1, messages // 10), messages):
        began = time.monotonic()
        child.stdin.write(b"%d\n" % count)
        await asyncio.gather(noted(alice, count), *(send() for _ in range(count)))
        assert await child.stdout.readline() == b"taken\n"
        seconds = time.monotonic() - began
    child.stdin.close()
    assert await child.wait() == 0
    return messages / seconds


async def receive_apart(path: str, address: str) -> None:
    """The other process: print an invitation, then take as many messages as each line says."""
    async with Agent.open(Path(path), servers=[address], config=CONFIG) as bob:
        print(await bob.invite(), flush=True)
        while not isinstance(await bob.next_event(), Connected):
            pass
        while line := await asyncio.to_thread(sys.stdin.readline):
            await taken(bob, int(line), acknowledge)
            await bob.flush()
            print("taken", flush=True)


async def measure(messages: int, connections: int, echoes: int, folder: Path | None = None) -> Rates:
    with (
        tempfile.TemporaryDirectory(prefix="blindpost-bench-", dir=folder) as name,
        measured_router() as router,
    ):
        disk = Path(name)
        before = commits_per_s(disk)
        async with started(router):
            server = Server((Host("127.0.0.1"),), str(router.port), router.fingerprint)
            address = RouterAddress(Scheme.SMP, server).text
            async with (
                Agent.open(disk / "a.db", servers=[address], config=CONFIG) as alice,
                Agent.open(disk / "b.db", servers=[address], config=CONFIG) as bob,
            ):
                conns = await connected(alice, bob, connections)
                await echoed(alice, bob, conns, len(conns))
                scenes = [await scene(alice, bob, some, messages) for some in (conns[:1], conns)]
                seconds = await echoed(alice, bob, conns, echoes)
            async with Agent.open(disk / "c.db", servers=[address], config=CONFIG) as carol:
                apart_per_s = await apart(carol, address, disk, messages)
        return Rates((before, commits_per_s(disk)), tuple(scenes), apart_per_s, echoes / seconds)


def shown(rates: Rates) -> str:
    before, after = rates.commits_per_s
    lines = [f"durable commits of the disk a second    {before:6.0f} before, {after:.0f} after"]
    for one in rates.scenes:
        over = "one connection" if one.connections == 1 else f"{one.connections} connections"
        lines.append(
            f"durable messages a second, {over:<16} {one.per_s:5.0f}, {one.cpu_us:.0f} us of CPU each"
        )
        for who, side in (("sender", one.sender), ("recipient", one.recipient)):
            asked = f"{side.statements:.1f} statements (and {side.inner:.1f} of triggers and cascades)"
            lines.append(
                f"    {who:<9} a message: {asked}, {side.commits:.2f} commits, {side.syncs:.2f} syncs"
            )
    lines.append(f"durable messages a second, one connection, two processes {rates.apart_per_s:5.0f}")
    lines.append(f"echoes a second over all connections    {rates.echoes_per_s:6.0f}")
    return "\n".join(lines)


def figures(rates: Rates) -> list[Figure]:
    found = []
    for one in rates.scenes:
        of = f"durable, connections: {one.connections}"
        found.append(single(f"{of}: messages", "per s", one.per_s, Better.HIGHER))
        for who, side in (("sender", one.sender), ("recipient", one.recipient)):
            found.append(single(f"{of}: statements of the {who}", "a message", side.statements))
            found.append(single(f"{of}: commits of the {who}", "a message", side.commits))
            found.append(single(f"{of}: syncs of the {who}", "a message", side.syncs))
    commits = statistics.median(rates.commits_per_s)
    return [
        *found,
        single("durable, connections: 1, two processes: messages", "per s", rates.apart_per_s, Better.HIGHER),
        single("durable: echoes", "per s", rates.echoes_per_s, Better.HIGHER),
        single("durable: commits of the disk alone", "per s", commits, Better.NEITHER),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--echoes", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="where the stores lie: a real disk")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--recipient", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.recipient is not None:
        asyncio.run(receive_apart(*chosen.recipient))
        return
    rates = asyncio.run(measure(chosen.messages, chosen.connections, chosen.echoes, chosen.folder))
    print(as_json(figures(rates)) if chosen.json else shown(rates))


if __name__ == "__main__":
    main()
