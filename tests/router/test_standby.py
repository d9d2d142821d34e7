"""Two routers, one database: one serves, the other waits, and takes over whatever becomes of the first."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blindpost.client.errors import RefusedError
from blindpost.client.smp import SmpClient
from blindpost.ops.model import Health, Level
from blindpost.ops.servers import find
from blindpost.serving.failures import OperatorError
from blindpost.transport.errors import TransportError
from blindpost.wire.smp.errors import STORE
from tests.support.router.load import Pair, Tally
from tests.support.router.routers import a_message, new_queue
from tests.support.serving.commands import StartedRouter, init, run
from tests.support.serving.processes import until
from tests.support.store.cutting import Way, way_to

KINDS = ("killed", "frozen", "cut off", "told to")
TAKEOVERS = int(os.environ.get("BLINDPOST_TAKEOVERS", str(len(KINDS))))
SEED = int(os.environ.get("BLINDPOST_SEED", "1"))
PAIRS = 2


class Fleet:
    """Two routers with one identity, each with its own way to the database."""

    def __init__(self, routers: list[StartedRouter], ways: list[Way]) -> None:
        self.routers = routers
        self.ways = ways
        self.serving = 0
        self._clients: list[SmpClient] = []

    @property
    def owner(self) -> StartedRouter:
        return self.routers[self.serving]

    @property
    def other(self) -> StartedRouter:
        return self.routers[1 - self.serving]

    async def connect(self) -> SmpClient:
        """A client of the one that serves."""
        client = await self.owner.connect()
        self._clients.append(client)
        return client

    async def hang_up(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()

    async def fail(self, kind: str) -> None:
        """Something happens to the owner."""
        match kind:
            case "killed":
                await self.owner.end(signal.SIGKILL)
            case "frozen":
                self.owner.child.send(signal.SIGSTOP)
            case "cut off":
                self.ways[self.serving].cut()
            case _:
                await said("router", "handover", "-c", self.owner.folder)

    async def taken_over(self) -> None:
        """Wait until the other serves; it is the owner from then on."""
        await becomes(self.other, "running")
        self.other.status = await self.other.ask("status")
        self.serving = 1 - self.serving

    async def heal(self, kind: str) -> None:
        """The former owner comes back and waits."""
        match kind:
            case "killed":
                await self.other.start()
            case "frozen":
                self.other.child.send(signal.SIGCONT)
            case "cut off":
                self.ways[1 - self.serving].mend()
        await becomes(self.other, "standby")


async def said(*command: str | Path, code: int = 0) -> str:
    done = await asyncio.to_thread(run, *command, code=code)
    return done.stdout + done.stderr


async def becomes(router: StartedRouter, state: str) -> None:
    """Wait until it says that it is so; between two states nobody answers."""

    async def is_so() -> bool:
        with contextlib.suppress(OperatorError):
            return bool((await router.ask("status"))["state"] == state)
        return False

    await until(is_so)


@pytest.fixture
async def fleet(tmp_path: Path, database: str) -> AsyncIterator[Fleet]:
    async with way_to(database) as first, way_to(database) as second:
        await asyncio.to_thread(init, tmp_path / "one", "--store", "postgres", "--dsn", first.dsn)
        settings = (tmp_path / "one" / "router.toml").read_text()
        for before, after in {
            "standby = false": "standby = true",
            "takeover_s = 10": "takeover_s = 3",
            "new_per_address_per_second = 10.0": "new_per_address_per_second = 1e6",
            "new_per_address_burst = 500": "new_per_address_burst = 1000000",
        }.items():
            assert settings.count(before) == 1
            settings = settings.replace(before, after)
        (tmp_path / "one" / "router.toml").write_text(settings)
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        (tmp_path / "two" / "router.toml").write_text(settings.replace(first.dsn, second.dsn))
        routers = [StartedRouter(tmp_path / name) for name in ("one", "two")]
        try:
            for router in routers:
                await router.start()
            yield Fleet(routers, [first, second])
        finally:
            for router in routers:
                if router.child.runs:
                    router.child.send(signal.SIGCONT)
                await router.close()


@pytest.mark.timeout(120 + 30 * TAKEOVERS)
async def test_whatever_becomes_of_the_owner_the_standby_serves_and_nothing_answered_is_lost(
    fleet: Fleet,
) -> None:
    seeded = random.Random(SEED)
    tally, pauses = Tally(), dict[str, list[float]]()
    pairs = [Pair(fleet, tally, seeded.randrange(1 << 30)) for _ in range(PAIRS)]
    for turn in range(TAKEOVERS):
        kind = KINDS[turn % len(KINDS)]
        assert (await fleet.other.ask("status"))["state"] == "standby"
        tally.aim(seeded.randrange(50, 300))
        load = [asyncio.create_task(pair.live()) for pair in pairs]
        done, _ = await asyncio.wait(
            [*load, reached := asyncio.create_task(tally.reached.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert done == {reached}, "the load ended before its time"
        began = time.monotonic()
        await fleet.fail(kind)
        await fleet.taken_over()
        pauses.setdefault(kind, []).append(time.monotonic() - began)
        for task in load:
            task.cancel()
        for ended in await asyncio.gather(*load, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError), repr(ended)
        await fleet.hang_up()
        await fleet.heal(kind)
    for pair in pairs:
        await pair.check()
    assert json.loads(await said("router", "audit", "-c", fleet.owner.folder, "--json"))["clean"]
    for router in fleet.routers:
        assert b"Traceback" not in router.log
    for kind, seconds in pauses.items():
        print(f"{kind}: {len(seconds)} take-overs, median pause {statistics.median(seconds):.2f} s")


async def test_an_owner_that_wakes_up_after_a_takeover_accepts_nothing_more(fleet: Fleet) -> None:
    stale = await fleet.connect()
    queue = await new_queue(stale)
    fleet.owner.child.send(signal.SIGSTOP)
    await fleet.taken_over()
    fresh = await fleet.connect()
    await fresh.send(a_message(b"to the new owner"), queue.sender_id)
    fleet.other.child.send(signal.SIGCONT)
    with pytest.raises((TransportError, RefusedError)) as refused:
        await stale.send(a_message(b"to the old one"), queue.sender_id)
    if isinstance(refused.value, RefusedError):
        assert isinstance(refused.value.error, STORE)
    await becomes(fleet.other, "standby")
    stored = (await fleet.owner.ask("stats"))["stored"]
    assert (stored["queues"], stored["messages"]) == (1, 1)
    await fleet.hang_up()


async def test_an_upgraded_owner_becomes_the_standby_and_gives_up_its_ports(fleet: Fleet) -> None:
    client = await fleet.connect()
    queue = await new_queue(client)
    await client.send(a_message(b"before the upgrade"), queue.sender_id)
    await fleet.hang_up()
    (port,) = fleet.owner.status["ports"]
    assert "It waits: its standby" in await said("router", "upgrade", "-c", fleet.owner.folder)
    await fleet.taken_over()
    status = await fleet.other.ask("status")
    assert (status["upgrades"], status["ports"]) == (1, [])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert (await fleet.owner.ask("stats"))["stored"]["messages"] == 1


async def test_a_standby_says_what_it_is(fleet: Fleet) -> None:
    folder = fleet.other.folder
    status = await fleet.other.ask("status")
    assert (status["state"], status["ready"], status["ports"]) == ("standby", False, [])
    assert "another server owns the database" in status["health"]
    assert "standby" in await said("router", "status", "-c", folder)
    for command in (["handover"], ["stats"], ["status", "--top"]):
        told = await said("router", *command, "-c", folder, code=1)
        assert "is a standby: ask the one that serves" in told
    for number in (signal.SIGHUP, signal.SIGUSR2):
        fleet.other.child.send(number)
    await fleet.other.told(b"a standby is not upgraded while it waits")
    card = await find(folder).look()
    assert (card.health, card.level) == (Health.STANDBY, Level.GOOD)
    assert await fleet.other.end(signal.SIGTERM) == 0
    assert "no standby waits" in await said("router", "handover", "-c", fleet.owner.folder, code=1)
    assert (await fleet.owner.ask("status"))["state"] == "running"


def test_a_store_in_a_folder_cannot_be_shared(tmp_path: Path) -> None:
    told = run(
        *("router", "init", tmp_path / "one", "--host", "localhost", "--open", "--set", "store.standby=true"),
        code=1,
    )
    assert "standby needs a store in a PostgreSQL database" in told.stderr
