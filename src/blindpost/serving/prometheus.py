"""Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable

from blindpost.engine.histogram import Histogram
from blindpost.engine.loop import EngineMeters

Labels = tuple[tuple[str, str], ...]


class Text:
    """What is measured, as text; samples of one metric stay together."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[str]] = {}

    def metric(
        self, name: str, kind: str, help_text: str, samples: Iterable[tuple[str, Labels, float]]
    ) -> None:
        lines = self._metrics.setdefault(name, [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"])
        for suffix, labels, value in samples:
            written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
            lines.append(f"{name}{suffix}{f'{{{written}}}' if written else ''} {_number(value)}")

    def gauge(self, name: str, help_text: str, value: float, labels: Labels = ()) -> None:
        self.metric(name, "gauge", help_text, [("", labels, value)])

    def counter(self, name: str, help_text: str, value: float, labels: Labels = ()) -> None:
        self.metric(name, "counter", help_text, [("", labels, value)])

    def histogram(self, name: str, help_text: str, histogram: Histogram, labels: Labels = ()) -> None:
        buckets: list[tuple[str, Labels, float]] = [
            ("_bucket", (*labels, ("le", _number(bound))), count) for bound, count in histogram.cumulative()
        ]
        count = histogram.count
        ends: list[tuple[str, Labels, float]] = [
            ("_bucket", (*labels, ("le", "+Inf")), count),
            ("_sum", labels, histogram.total),
            ("_count", labels, count),
        ]
        self.metric(name, "histogram", help_text, [*buckets, *ends])

    def done(self) -> str:
        return "".join(f"{line}\n" for lines in self._metrics.values() for line in lines)


def engine_metrics(text: Text, prefix: str, meters: EngineMeters) -> None:
    """What every server's engine counts about itself."""
    text.histogram(prefix + "turn_seconds", "From the start of a turn to its answers", meters.turn_s)
    text.histogram(prefix + "commit_seconds", "Making a turn durable", meters.commit_s)
    text.counter(prefix + "turn_events_total", "Blocks and events decided", meters.events)
    text.counter(prefix + "turns_refused_total", "Turns that the store refused", meters.turns_refused)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
