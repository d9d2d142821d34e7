"""A bystander exchanges messages while strangers attack from other addresses, and loses nothing.

The short form is part of the test suite; `make attack` takes longer and prints the table of docs/attacks.md.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from pathlib import Path

import pytest

from tests.support.attack.attackers import Aim
from tests.support.attack.attacks import ATTACKS, PASSING, STORING, TOGETHER
from tests.support.attack.targets import MEMORY_MIB, STORED_MIB, Target, target
from tests.support.serving.processes import ROOT

ATTACK_S = float(os.environ.get("BLINDPOST_ATTACK_S", "0"))
"""How long each attack takes; 0 for the short form, which has all of them at once."""
SHORT_S, CALM_S = 4.0, 1.0
PAUSE_S = 0.02
P99_S = 1.0 if ATTACK_S else 20.0
"""In the short form, which runs beside other tests, only a server that stands still is noticed."""
MEMORY_LEFT = 48 << 20
"""How much more memory a server may hold after all attacks: what its allocator keeps."""
HELD = 2
"""How many connections the bystander has."""
TABLE = Path(os.environ.get("BLINDPOST_ATTACK_TABLE", ""))
FRONTS = 2
LONG = [
    (kind, name, store)
    for kind, attacks in ATTACKS.items()
    for name in (*attacks, TOGETHER)
    for store in ("own", "postgres", *(["fronts"] if kind == "router" else []))
]
"""On its own store, on a database, and on its own store with connections in fronts."""
SHORT = [
    ("router", PASSING, "own"),
    ("router", PASSING, "postgres"),
    ("ntf", PASSING, "own"),
    ("ds", PASSING, "own"),
]


async def exchanged(bystander: Target, until: float) -> list[float]:
    """How long each exchange took, until this time."""
    took: list[float] = []
    while time.time() < until:
        took.append(await bystander.timed(len(took)))
        await asyncio.sleep(PAUSE_S)
    return took


def p99(took: list[float]) -> float:
    """The time that 99 of 100 exchanges did not exceed; for fewer than 100, the longest."""
    return sorted(took)[math.ceil(len(took) * 0.99) - 1]


async def peak(seen: Target, until: float) -> int:
    most = 0
    while time.time() < until:
        most = max(most, seen.memory())
        await asyncio.sleep(0.1)
    return most


async def newcomers(seen: Target, until: float) -> None:
    """Others from the bystander's address connect meanwhile."""
    while time.time() < until:
        _, writer = await asyncio.open_connection("127.0.0.1", seen.port)
        writer.transport.abort()
        await asyncio.sleep(0.2)


def _add_to_table(line: str) -> None:
    with TABLE.open("a") as table:
        table.write(line + "\n")


async def settled(seen: Target, descriptors: int, rows: object, memory: int) -> None:
    """Wait until it holds no more than before; this includes the timeout of silent QUIC connections."""
    async with asyncio.timeout(90):
        while True:
            is_small = seen.descriptors() <= descriptors and seen.memory() - memory <= MEMORY_LEFT
            is_same = rows is None or await seen.rows() == rows
            if is_small and is_same and (not ATTACK_S or await seen.held() <= HELD):
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(("kind", "attack", "store"), LONG if ATTACK_S else SHORT)
async def test_a_bystander_loses_nothing_while_strangers_attack(
    tmp_path: Path, kind: str, attack: str, store: str, request: pytest.FixtureRequest
) -> None:
    dsn = request.getfixturevalue("database") if store == "postgres" else None
    async with target(kind, tmp_path / kind, dsn, FRONTS if store == "fronts" else 0) as seen:
        await seen.join()
        calm = await exchanged(seen, time.time() + CALM_S)
        rows = await seen.still()
        before, descriptors, pid = seen.memory(), seen.descriptors(), seen.pid
        until = time.time() + (ATTACK_S or SHORT_S)
        aim = Aim(kind, seen.port, seen.key_hash.hex(), until, attack)
        attackers = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.attack.attacks", json.dumps(vars(aim))), cwd=ROOT
        )
        try:
            attacked, most, _ = await asyncio.gather(
                exchanged(seen, until), peak(seen, until), newcomers(seen, until)
            )
            assert await asyncio.wait_for(attackers.wait(), 60) == 0
        finally:
            if attackers.returncode is None:
                attackers.kill()
                await attackers.wait()
        stores = attack in (TOGETHER, *STORING)
        await settled(seen, descriptors, None if stores else rows, before)
        assert await seen.stored() <= STORED_MIB << 20
        limited = (await seen.server.ask("connections" if kind == "router" else "status"))["limited"]
        after = seen.memory()
        await seen.leave()
        assert (await seen.server.ask("status"))["pid"] == pid, "it lived through it"
        assert most <= MEMORY_MIB << 20
        assert p99(attacked) < P99_S
        assert b"Traceback" not in seen.server.log
        told = sum(limited.values())
        line = (
            f"| {kind} | {store} | {attack} | {len(attacked)} "
            f"| {p99(calm) * 1e3:.0f} | {p99(attacked) * 1e3:.0f} "
            f"| {before >> 20} | {most >> 20} | {after >> 20} | {told} |"
        )
        if str(TABLE) != ".":
            await asyncio.to_thread(_add_to_table, line)
