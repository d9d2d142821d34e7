"""What a block costs in our session, against the calls of C that it cannot do without.

    python -m benchmarks.transport [--rounds N] [--json]

One block goes from a session that sends it to a session that delivers it: sealed by the block chain,
encrypted by TLS, decrypted, opened, handed to a handler. Between the two there is no kernel, only one copy
into the receive buffer, as a socket would make it. The floor is one bare call for each step of the same work
(see `benchmarks.floor`), measured in the same process, in turn with the sessions, in CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.figures.rows import Better, Figure, as_json
from benchmarks.floor import (
    Item,
    Measured,
    box_items,
    cpu_ns,
    machine,
    nothing,
    repeats_for,
    summary,
    tls_items,
)
from blindpost.crypto.credentials import issue_router, make_authority
from blindpost.crypto.entropy import system_entropy
from blindpost.transport.keeper import Keeper
from blindpost.transport.plans import smp_client_plan, smp_router_plan
from blindpost.transport.session import Handler, Session, Stage

PAYLOAD = bytes(16_300)
BUSY_BLOCKS = 16
TARGET = 2.0
FLOOR_TIMES = {
    "TLS record opened": 1,
    "TLS record sealed": 1,
    "block key: HKDF-SHA512": 2,
    "block key: HSalsa20": 2,
    "block box opened": 1,
    "block box sealed": 1,
}


class Wire(asyncio.Transport):
    """Hands what one session writes to the other, at once when it is `direct`."""

    def __init__(self, peer: Session) -> None:
        super().__init__()
        self._peer = peer
        self._waiting: list[bytes] = []
        self.direct = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.direct:
            self._deliver(data)
        else:
            self._waiting.append(bytes(data))

    def release(self) -> None:
        """Deliver what was held back."""
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._deliver(data)

    def _deliver(self, data: bytes | bytearray | memoryview) -> None:
        peer = self._peer
        room = memoryview(peer.get_buffer(-1))
        for start in range(0, len(data), len(room)):
            piece = memoryview(data)[start : start + len(room)]
            room[: len(piece)] = piece
            peer.buffer_updated(len(piece))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever buffered."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Counter(Handler):
    def __init__(self) -> None:
        self.blocks = 0

    def block_received(self, session: Session, payload: bytes) -> None:
        self.blocks += 1


class Turns(asyncio.SelectorEventLoop):
    """An event loop that is turned by hand and asks the kernel for nothing."""

    def turn(self) -> None:
        ready: deque[asyncio.Handle] = vars(self)["_ready"]
        while ready:
            ready.popleft()._run()


def pair() -> tuple[Session, Session, Counter]:
    """A client's and a router's session, established at the newest version, blocks encrypted."""
    now = int(time.time())
    credentials = issue_router(make_authority(now, system_entropy), "localhost", now, system_entropy)
    counter, keeper = Counter(), Keeper(3600.0)
    router = Session(smp_router_plan(credentials), counter, keeper)
    client = Session(smp_client_plan(credentials.fingerprint), counter, keeper)
    ends = Wire(client), Wire(router)
    router.connection_made(ends[0])
    client.connection_made(ends[1])
    while client.stage is not Stage.OPEN or router.stage is not Stage.OPEN:
        for wire in ends:
            wire.release()
    for wire in ends:
        wire.direct = True
    assert client.agreed.encrypted
    return client, router, counter


def passage(session: Session, turns: Turns, blocks: int) -> Callable[[], None]:
    """Send that many blocks in one turn of the loop and deliver them."""
    send, turn = session.send, turns.turn

    def call() -> None:
        for _ in range(blocks):
            send(PAYLOAD)
        turn()

    return call


@dataclass(frozen=True)
class Result:
    """Microseconds of CPU for one block, and how many times the floor that is."""

    floor: Measured
    ours: tuple[Measured, ...]
    ratios: tuple[Measured, ...]
    rounds: int
    machine: dict[str, str]


def floor_items() -> list[Item]:
    items = {item.name: item for item in (*tls_items(), *box_items())}
    return [Item(name, times, items[name].call) for name, times in FLOOR_TIMES.items()]


def ways_through() -> dict[str, tuple[Callable[[], None], int]]:
    """What is measured: each direction, with one block and with many in a turn of the loop."""
    turns = Turns()
    asyncio._set_running_loop(turns)
    try:
        client, router, _ = pair()
    finally:
        asyncio._set_running_loop(None)
    return {
        f"{way}, {blocks} in a turn": (passage(session, turns, blocks), blocks)
        for way, session in (("client to router", client), ("router to client", router))
        for blocks in (1, BUSY_BLOCKS)
    }


def measure(rounds: int) -> Result:
    ways, items = ways_through(), floor_items()
    repeats = [repeats_for(item.call) for item in items]
    way_repeats = {name: repeats_for(call) for name, (call, _) in ways.items()}
    idle_repeats = repeats_for(nothing)
    floors: list[float] = []
    ours: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        idle_ns = cpu_ns(nothing, idle_repeats) / idle_repeats
        floors.append(
            sum(
                item.times * max(cpu_ns(item.call, count) / count - idle_ns, 0.0) / 1000
                for item, count in zip(items, repeats, strict=True)
            )
        )
        for name, (call, blocks) in ways.items():
            ours[name].append(cpu_ns(call, way_repeats[name]) / way_repeats[name] / blocks / 1000)
    ratios = {
        name: [own / floor for own, floor in zip(sample, floors, strict=True)]
        for name, sample in ours.items()
    }
    return Result(
        summary("floor", 1, floors),
        tuple(summary(name, 1, sample) for name, sample in ours.items()),
        tuple(summary(name, 1, sample) for name, sample in ratios.items()),
        rounds,
        machine(),
    )


def shown(result: Result) -> str:
    lines = [f"{what}: {value}" for what, value in result.machine.items()]
    lines += ["", f"{'one block':<34}{'CPU, us':>9}{'quartiles':>20}{'ratio':>7}{'quartiles':>15}"]
    floor = result.floor
    spread = f"{floor.lower_us:.1f} .. {floor.upper_us:.1f}"
    lines.append(f"{'calls of C alone':<34}{floor.median_us:>9.1f}{spread:>20}")
    for own, ratio in zip(result.ours, result.ratios, strict=True):
        spread = f"{own.lower_us:.1f} .. {own.upper_us:.1f}"
        ratios = f"{ratio.lower_us:.2f} .. {ratio.upper_us:.2f}"
        lines.append(f"{own.name:<34}{own.median_us:>9.1f}{spread:>20}{ratio.median_us:>7.2f}{ratios:>15}")
    worst = max(ratio.median_us for ratio in result.ratios)
    verdict = "holds" if worst <= TARGET else "does not hold"
    lines += ["", f"target: at most {TARGET:.1f} times its calls of C; it {verdict} ({worst:.2f})"]
    return "\n".join(lines)


def figures(result: Result) -> list[Figure]:
    rows = [Figure(f"{one.name}, ratio", "x calls of C", *_values(one)) for one in result.ratios]
    alone = ("calls of C alone", result.floor)
    costs = [alone, *((one.name, one) for one in result.ours)]
    return rows + [Figure(name, "us of CPU", *_values(one), Better.NEITHER) for name, one in costs]


def _values(one: Measured) -> tuple[float, float, float]:
    return one.median_us, one.lower_us, one.upper_us


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a block through a session against its calls of C.")
    parser.add_argument("--rounds", type=int, default=40, help="how often each is measured (default 40)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("quartiles need at least two rounds")
    gc.disable()
    result = measure(arguments.rounds)
    print(as_json(figures(result)) if arguments.json else shown(result))


if __name__ == "__main__":
    main()
