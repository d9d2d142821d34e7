"""The demonstration tells the truth, ends well and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from blindpost.demo.story import Figures
from tests.support.commands import COMMAND, ENVIRONMENT


def processes_of(folder: Path) -> list[str]:
    """Processes that were started with this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in line and b"demo" not in line.split(b"\0")[3:4]:
            found.append(line.decode(errors="replace"))
    return found


def test_the_demo_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "demo"],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {
        cells[0].strip(): cells[1].strip()
        for cells in (line.strip("│").split("│") for line in done.stdout.splitlines() if line.startswith("│"))
    }
    assert rows["letters written and read"] == "360 and 360"
    assert rows["lost"] == "0"
    assert rows["post-quantum in both directions"] == "yes"
    assert "kill -9 with letters in flight" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def test_figures_that_are_not_good() -> None:
    good = Figures(written=2, read=2, post_quantum=True)
    assert good.good
    assert not Figures(written=2, read=2, lost=1, post_quantum=True).good
    assert not Figures(written=2, read=3, post_quantum=True).good
    assert not Figures(written=2, read=2).good


def test_quantiles_of_latency() -> None:
    figures = Figures(latencies_s=[number / 1000 for number in range(100, 0, -1)])
    assert (figures.latency_ms(0.5), figures.latency_ms(0.99), figures.latency_ms(1)) == (51, 100, 100)
