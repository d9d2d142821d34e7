"""The servers that a page looks at: each has a folder, and a control socket that answers in numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blindpost.ops.history import Counted
from blindpost.ops.model import Card, Health, Line, Tile
from blindpost.serving.control import NotRunningError, ask
from blindpost.serving.failures import OperatorError
from blindpost.serving.place import control_of

Answers = Mapping[str, Mapping[str, Any]]
"""What a server answered, by command."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of server is asked, and which of its numbers are shown."""

    name: str
    title: str
    config: str
    commands: tuple[str, ...]
    tiles: Callable[[Answers], list[Tile]]
    rates: tuple[tuple[str, str, str], ...]
    """Counters that are shown as rates: the answer they are in, their name, and a label."""
    audits: bool = False


def _router_tiles(answers: Answers) -> list[Tile]:
    status, counts = answers["status"], answers["stats"]["counts"]
    stored = answers["stats"]["stored"]
    agreed = counts["rcvServices.subOk"] + counts["ntfServices.subOk"]
    differed = sum(
        counts[f"{side}.{kind}"]
        for side in ("rcvServices", "ntfServices")
        for kind in ("subMore", "subFewer", "subDiff")
    )
    return [
        Tile("connections", "connections", status["connections"]),
        Tile("subscriptions", "subscribed queues", status["subscriptions"]),
        Tile("queues", "queues", status["queues"]),
        Tile("messages", "messages waiting", status["messages"]),
        Tile("congested", "slow readers", status["congested"]),
        Tile("services", "services", stored.get("services", 0)),
        Tile("agreed", "service sums that agreed", agreed),
        Tile("differed", "service sums that differed", differed),
    ]


def _ntf_tiles(answers: Answers) -> list[Tile]:
    status = answers["status"]
    tiles = [
        Tile("connections", "connections", status["connections"]),
        Tile("tokens", "device tokens", status["tokens"]),
        Tile("subscriptions", "subscriptions", status["subscriptions"]),
        Tile("smp_routers_connected", "message routers connected", status["smp_routers_connected"]),
        Tile("pushes_under_way", "pushes under way", status["pushes_under_way"]),
    ]
    ledger: Mapping[str, int] = status["ledger"]
    return tiles + [
        Tile(f"ledger.{state}", f"notifications {state.replace('_', ' ')}", count)
        for state, count in ledger.items()
    ]


def _ds_tiles(answers: Answers) -> list[Tile]:
    status = answers["status"]
    return [
        Tile("connections", "connections", status["connections"]),
        Tile("payloads", "payloads waiting", status["payloads"]),
        Tile("bytes", "bytes waiting", status["bytes"]),
        Tile("waiting", "long polls", status["waiting"]),
        Tile("in_hand", "payloads in hand", status["in_hand"]),
    ]


def _canary_tiles(answers: Answers) -> list[Tile]:
    status = answers["status"]
    return [
        Tile("pairs", "pairs of routers", status["pairs"]),
        Tile("delivered", "delivered", status["delivered"]),
        Tile("lost", "lost", status["lost"], bad=status["lost"] > 0),
        Tile("duplicate", "duplicates", status["duplicate"], bad=status["duplicate"] > 0),
        Tile("p50_ms", "half arrive within, ms", status["p50_ms"]),
        Tile("p99_ms", "99 of 100 within, ms", status["p99_ms"]),
    ]


KINDS = (
    Kind(
        "router",
        "SMP router",
        "router.toml",
        ("status", "stats"),
        _router_tiles,
        (
            ("stats", "counts.msgSent", "messages accepted"),
            ("stats", "counts.msgRecv", "messages acknowledged"),
        ),
        audits=True,
    ),
    Kind("ntf", "Notification router", "ntf.toml", ("status",), _ntf_tiles, ()),
    Kind(
        "ds",
        "Delivery service",
        "ds.toml",
        ("status",),
        _ds_tiles,
        (
            ("status", "counters.enqueued", "payloads accepted"),
            ("status", "counters.handed_out", "payloads handed out"),
        ),
    ),
    Kind("canary", "Canary", "canary.toml", ("status",), _canary_tiles, ()),
)


def _counter(answers: Answers, answer: str, path: str) -> float:
    table, _, name = path.partition(".")
    value: float = answers[answer].get(table, {}).get(name, 0)
    return value


@dataclass
class Watched:
    """One server and what is remembered of its counters."""

    kind: Kind
    folder: Path
    name: str
    counted: dict[str, Counted] = field(default_factory=dict)

    async def look(self, now_s: Callable[[], float] = time.time) -> Card:
        """Ask it now; one that does not answer is down."""
        try:
            answers = await asyncio.to_thread(self._ask)
        except OperatorError as error:
            note = f"{error}" if not isinstance(error, NotRunningError) else self._remedy()
            return Card(self.kind.title, self.name, Health.DOWN, note, audits=False)
        status = answers["status"]
        state, note = Health.RUNNING, ""
        if status["state"] == "draining":
            state = Health.DRAINING
        elif not status["ready"]:
            state, note = Health.NOT_READY, str(status["health"])
        tiles, lines = self.kind.tiles(answers), []
        for answer, path, label in self.kind.rates:
            counted = self.counted.setdefault(path, Counted())
            counted.sample(now_s(), _counter(answers, answer, path))
            tiles.append(Tile(f"{path}.per_minute", f"{label}, last minute", counted.per_minute))
            lines.append(Line(path, label, counted.minutes))
        return Card(
            self.kind.title, self.name, state, note, tuple(tiles), tuple(lines), audits=self.kind.audits
        )

    def _ask(self) -> dict[str, Mapping[str, Any]]:
        control = control_of(self.folder / self.kind.config)
        return {command: ask(control, command) for command in self.kind.commands}

    def _remedy(self) -> str:
        return f"It does not run. Start it with `blindpost {self.kind.name} start -c {self.folder}`."


def find(folder: Path) -> Watched:
    """The server that is set up in a folder."""
    for kind in KINDS:
        if (folder / kind.config).exists():
            return Watched(kind, folder.absolute(), folder.absolute().name)
    names = ", ".join(kind.config for kind in KINDS)
    raise OperatorError(
        f"{folder}: no server is set up here (none of {names} is in it). Name the folder of a server."
    )
