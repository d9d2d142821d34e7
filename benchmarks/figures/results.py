"""The stored results: one file, each benchmark with its machine, day, command and figures."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures.rows import Figure, FiguresError, parsed
from benchmarks.floor import cpu_model

BUSY_SHARE = 0.1
"""Of all cores: what other programs may take before a run counts as busy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What figures depend on; two results of different machines are not compared."""

    cpu: str
    cores: int
    memory_gb: int
    python: str

    @property
    def told(self) -> str:
        return f"{self.cpu}, {self.cores} cores, {self.memory_gb} GB, Python {self.python}"


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(cpu_model(), os.cpu_count() or 1, round(memory / 2**30), platform.python_version())


@dataclass(frozen=True, slots=True)
class Result:
    """What one benchmark gave."""

    command: str
    day: str
    """Of the newest commit."""
    machine: Machine
    others: float
    """The share of all cores that other programs took meanwhile."""
    runs: int
    seconds: float
    figures: tuple[Figure, ...]
    before: tuple[Figure, ...] | None = None
    """What it was compared with; none if it could not be."""

    @property
    def is_busy(self) -> bool:
        return self.others > BUSY_SHARE


Results = Mapping[str, Mapping[str, Result]]
"""By benchmark and form."""


def read(path: Path) -> dict[str, dict[str, Result]]:
    """What is stored; nothing if there is no such file."""
    if not path.exists():
        return {}
    try:
        stored: dict[str, dict[str, Any]] = json.loads(path.read_text())
        return {
            name: {form: _result(fields) for form, fields in forms.items()} for name, forms in stored.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, FiguresError) as error:
        raise FiguresError(
            f"{path} is damaged ({error}). Restore it from the repository, or delete it to begin anew."
        ) from None


def write(path: Path, results: Results) -> None:
    """Put a whole file in the place of the old one."""
    rows = {
        name: {form: asdict(one) for form, one in sorted(forms.items())}
        for name, forms in sorted(results.items())
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(rows, indent=1) + "\n")
    fresh.replace(path)


def _result(fields: dict[str, Any]) -> Result:
    before = fields.pop("before")
    figures = fields.pop("figures")
    machine = Machine(**fields.pop("machine"))
    return Result(
        **fields,
        machine=machine,
        figures=_figures(figures),
        before=None if before is None else _figures(before),
    )


def _figures(rows: Any) -> tuple[Figure, ...]:
    return tuple(parsed(json.dumps({"rows": rows})))
