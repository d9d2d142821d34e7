"""The kinds of servers: what each is asked, and which of its numbers are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blindpost.ops import problems
from blindpost.ops.model import Tile, Unit

Answers = Mapping[str, Mapping[str, Any]]
"""What a server answered, by command."""

AUDIT, BACKUP, BLOCK = "audit", "backup", "block"
WITHOUT = {"router": ", without the CA key", "ntf": ", without the CA key and the key of its store", "ds": ""}
"""What a backup that the page makes leaves out."""


@dataclass(frozen=True, slots=True)
class Direction:
    """One side of a flow: its counter's name, where that is in the answers, and a word for people."""

    name: str
    path: str
    word: str


@dataclass(frozen=True, slots=True)
class Flow:
    """What passes through a server; its last day is kept and drawn."""

    noun: str
    arrived: Direction
    left: Direction


@dataclass(frozen=True, slots=True)
class Measure:
    """What a server measures in milliseconds; its last day is kept and drawn as lines."""

    noun: str
    lines: tuple[Direction, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of server is asked, and what of it is shown."""

    word: str
    title: str
    commands: tuple[str, ...]
    tiles: Callable[[Answers], list[Tile]]
    problems: tuple[problems.Counted, ...]
    flow: Flow
    actions: tuple[str, ...] = ()
    measure: Measure | None = None

    @property
    def config(self) -> str:
        return f"{self.word}.toml"


def _machine(answers: Answers) -> list[Tile]:
    """What every server has of its machine."""
    machine = answers["status"]["machine"]
    size, free = machine["disk_size_bytes"], machine["disk_free_bytes"]
    used = None if size is None or free is None else size - free
    tiles = [
        Tile(
            "memory_bytes", "memory", machine["memory_bytes"], Unit.BYTES, machine["memory_limit_bytes"], True
        ),
        Tile("disk_used_bytes", "disk in use", used, Unit.BYTES, size, is_main=True),
    ]
    return [tile for tile in tiles if tile.value is not None]


def _connections(answers: Answers) -> list[Tile]:
    status = answers["status"]
    limit = status["machine"]["connections_limit"]
    tiles = [Tile("connections", "connections", status["connections"], limit=limit, is_main=True)]
    top = status.get("top") or ()
    if top and top[0]["connections"] > 1:
        tiles.append(Tile("top.connections", "connections of the largest address", top[0]["connections"]))
    limited: Mapping[str, int] = status.get("limited", {})
    return tiles + [
        Tile(f"limited.{name}", _LIMITED.get(name, name.replace("_", " ")), count)
        for name, count in limited.items()
    ]


_LIMITED = {
    "refused_total": "refused: too many connections",
    "refused_address": "refused: too many of one address",
    "refused_handshakes": "refused: too many handshakes",
    "new_refused": "new queues refused: too fast",
    "made_room": "closed to make room",
    "stored_refused": "refused: too much stored",
}


def _router_tiles(answers: Answers) -> list[Tile]:
    status, stats = answers["status"], answers["stats"]
    counts = stats["counts"]
    agreed = counts["rcvServices.subOk"] + counts["ntfServices.subOk"]
    differed = sum(
        counts[f"{side}.{kind}"]
        for side in ("rcvServices", "ntfServices")
        for kind in ("subMore", "subFewer", "subDiff")
    )
    return [
        Tile("queues", "queues", status["queues"], is_main=True),
        Tile("messages", "messages waiting", status["messages"], is_main=True),
        *_connections(answers),
        *_machine(answers),
        Tile("subscriptions", "subscribed queues", status["subscriptions"]),
        Tile("handshakes", "handshakes under way", status["handshakes"]),
        Tile("congested", "slow readers", status["congested"]),
        Tile("queues_daily", "queues in use today", stats["active"]["queues_daily"]),
        Tile("queues_monthly", "queues in use in 30 days", stats["active"]["queues_monthly"]),
        Tile("services", "services", stats["stored"].get("services", 0)),
        Tile("agreed", "service sums that agreed", agreed),
        Tile("differed", "service sums that differed", differed, bad=differed > 0),
        *(
            Tile(f"counts.{name}", label, counts[name])
            for name, label in (
                ("msgExpired", "messages expired"),
                ("msgSentQuota", "messages refused: queue full"),
                ("msgSentAuth", "messages refused: no such queue or key"),
                ("qBlocked", "queues blocked"),
                ("pMsgFwds.requests", "messages forwarded for others"),
            )
        ),
    ]


def _ntf_tiles(answers: Answers) -> list[Tile]:
    status = answers["status"]
    ledger: Mapping[str, int] = status["ledger"]
    return [
        Tile("tokens", "device tokens", status["tokens"], is_main=True),
        Tile("subscriptions", "subscriptions", status["subscriptions"], is_main=True),
        *_connections(answers),
        *_machine(answers),
        Tile("smp_routers_connected", "message routers connected", status["smp_routers_connected"]),
        Tile("smp_routers", "message routers in use", status["smp_routers"]),
        Tile("queues_subscribed", "queues subscribed there", status["queues_subscribed"]),
        Tile("queues_waiting", "queues waiting to be subscribed", status["queues_waiting"]),
        Tile("pushes_under_way", "pushes under way", status["pushes_under_way"]),
        *(
            Tile(f"ledger.{state}", f"notifications {state.replace('_', ' ')}", count)
            for state, count in ledger.items()
        ),
        *(
            Tile(f"{name}.{state}", f"{name.removeprefix('ledger_')}: {state}", count)
            for name, states in status.items()
            if name.startswith("ledger_")
            for state, count in states.items()
        ),
    ]


def _ds_tiles(answers: Answers) -> list[Tile]:
    status = answers["status"]
    return [
        Tile("payloads", "payloads waiting", status["payloads"], is_main=True),
        Tile("bytes", "bytes waiting", status["bytes"], Unit.BYTES, is_main=True),
        *_connections(answers),
        *_machine(answers),
        Tile("waiting", "long polls", status["waiting"]),
        Tile("in_hand", "payloads in hand", status["in_hand"]),
    ]


def _canary_tiles(answers: Answers) -> list[Tile]:
    status = answers["status"]
    return [
        Tile("p50_ms", "half arrive within", status["p50_ms"], Unit.MILLISECONDS, is_main=True),
        Tile("p99_ms", "99 of 100 within", status["p99_ms"], Unit.MILLISECONDS, is_main=True),
        *(
            Tile(f"last_minute_{each}_ms", f"{each}, last minute", value, Unit.MILLISECONDS)
            for each in ("median", "slowest")
            if (value := status.get(f"last_minute_{each}_ms")) is not None
        ),
        *_machine(answers),
        Tile("pairs", "directions between routers", status["pairs"]),
        Tile("connected", "directions connected", status["connected"]),
        Tile("under_way", "messages under way", status["under_way"]),
        Tile("delivered", "delivered", status["delivered"]),
        Tile("lost", "lost", status["lost"], bad=status["lost"] > 0),
        Tile("duplicate", "duplicates", status["duplicate"], bad=status["duplicate"] > 0),
        Tile(
            "integrity_broken", "out of order", status["integrity_broken"], bad=status["integrity_broken"] > 0
        ),
    ]


KINDS = (
    Kind(
        "router",
        "SMP router",
        ("status", "stats"),
        _router_tiles,
        problems.ROUTER,
        Flow(
            "messages",
            Direction("msgSent", "stats/counts/msgSent", "in"),
            Direction("msgRecv", "stats/counts/msgRecv", "out"),
        ),
        (AUDIT, BACKUP, BLOCK),
    ),
    Kind(
        "ntf",
        "Notification router",
        ("status",),
        _ntf_tiles,
        problems.NTF,
        Flow(
            "notifications",
            Direction("received", "status/counters/notifications_received", "in"),
            Direction("delivered", "status/counters/notifications_delivered", "pushed"),
        ),
        (BACKUP,),
    ),
    Kind(
        "ds",
        "Delivery service",
        ("status",),
        _ds_tiles,
        problems.DS,
        Flow(
            "payloads",
            Direction("enqueued", "status/counters/enqueued", "in"),
            Direction("handed_out", "status/counters/handed_out", "out"),
        ),
        (BACKUP,),
    ),
    Kind(
        "canary",
        "Canary",
        ("status",),
        _canary_tiles,
        problems.CANARY,
        Flow(
            "test messages",
            Direction("sent", "status/sent", "sent"),
            Direction("delivered", "status/delivered", "arrived"),
        ),
        measure=Measure(
            "time to arrive",
            (
                Direction("median_ms", "status/last_minute_median_ms", "half within"),
                Direction("slowest_ms", "status/last_minute_slowest_ms", "slowest"),
            ),
        ),
    ),
)
