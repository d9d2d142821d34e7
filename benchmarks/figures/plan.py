"""Which benchmarks there are, and the options of their long and short forms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A module of `benchmarks` that prints its figures with `--json`."""

    name: str
    about: str
    full: str = ""
    quick: str = ""
    runs: int = 3
    """How often it runs: once if its figures have a spread already."""

    def options(self, is_quick: bool) -> str:
        return self.quick if is_quick else self.full

    def times(self, is_quick: bool) -> int:
        return min(self.runs, 2) if is_quick else self.runs


BENCHMARKS = (
    Benchmark("floor", "The floor of one message cycle", quick="--rounds 10", runs=1),
    Benchmark("transport", "A block through a session", quick="--rounds 10", runs=1),
    Benchmark("router", "The router", quick="--quick", runs=1),
    Benchmark("cores", "A router with fronts", quick="--cycles 400 --rounds 3"),
    Benchmark("moving", "Import of a reference router's files", quick="--queues 20000"),
    Benchmark("ds", "The delivery service", quick="--stored 10 10000 --cycles 100 --wakes 50", runs=1),
    Benchmark("journal", "What recording costs", quick="--rounds 3"),
    Benchmark("agent", "The agent", quick="--messages 100 --idle 1000 --many 20 --echoes 50"),
    Benchmark(
        "agent_scale",
        "Many connections of an agent",
        quick="--queues 1000 10000 --subscribed 2000",
    ),
    Benchmark("bot_scale", "A bot with many contacts", quick="--contacts 300"),
    Benchmark("ntf", "The notification router", full="--subscriptions 100000", quick="--subscriptions 3000"),
    Benchmark("push", "Push services", quick="--notifications 100 --rounds 4"),
    Benchmark("pipeline", "The pipeline", quick="--rows 1e6 --ledger 1e4 --repeat 1"),
)
