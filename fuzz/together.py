"""All targets, some at a time, each in a process of its own: one line as they go, one table at the end."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz.looking import LastInput, Seen

LOOK_S = 1.0
TELL_S = 60.0
GRACE_S = 180.0
"""How much longer than its time a search may take to end."""

HEAD = (
    "| target | minutes | inputs | lines reached | of lines known | by good inputs alone | findings |",
    "|---|---|---|---|---|---|---|",
)


def row(seen: Seen) -> str:
    ended = "" if seen.is_over else " (cut short)"
    findings = "; ".join(seen.findings) or "0"
    return (
        f"| {seen.target} | {seen.seconds / 60:.1f}{ended} | {seen.inputs:,} | {seen.reached:,} "
        f"| {seen.known:,} | {seen.first:,} | {findings} |"
    )


def table(build: Path, names: Sequence[str]) -> str:
    """What is known of each target, from what the searches wrote."""
    found = [seen for name in names if (seen := Seen.load(build / name)) is not None]
    return "\n".join([*HEAD, *map(row, found)]) + "\n"


def progress(build: Path, names: Sequence[str], running: Sequence[str], waiting: int) -> str:
    at_work = []
    for name in running:
        seen = Seen.load(build / name)
        far = "starting" if seen is None else f"{seen.inputs:,} inputs, {seen.reached:,} lines"
        at_work.append(f"{name} {seen.seconds / 60:.0f} min: {far}" if seen else f"{name}: {far}")
    known = [Seen.load(build / name) for name in names]
    findings = sum(len(seen.findings) for seen in known if seen is not None)
    return f"{time.strftime('%H:%M:%S')} {'; '.join(at_work)}; {waiting} waiting; {findings} findings"


def ended(folder: Path, name: str, code: int) -> None:
    """A search has ended; one that ended its process leaves the input that did it."""
    seen = Seen.load(folder) or Seen(name)
    if seen.is_over:
        return
    place = f"its process ended with {code}"
    seen.findings.append(place)
    last = LastInput.read(folder / "last")
    if last is not None:
        kept = f"finding-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
        (folder / kept).write_bytes(last)
    folder.mkdir(parents=True, exist_ok=True)
    seen.save(folder)


def search(names: Sequence[str], minutes: float, jobs: int, seed: int, build: Path) -> int:
    """How many findings there are in all. `summary.md` in the folder is renewed as searches end."""
    build.mkdir(parents=True, exist_ok=True)
    for name in names:
        for left in ("seen.json", "last"):
            (build / name / left).unlink(missing_ok=True)
    waiting, running = list(names), dict[str, subprocess.Popen[bytes]]()
    until: dict[str, float] = {}
    told = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                command = [sys.executable, "-m", "fuzz", name, "--lines", "--minutes", str(minutes)]
                command += ["--seed", str(seed), "--into", str(build)]
                (build / name).mkdir(exist_ok=True)
                with (build / name / "log").open("wb") as log:
                    running[name] = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
                until[name] = time.monotonic() + minutes * 60 + GRACE_S
            time.sleep(min(LOOK_S, minutes * 6))
            for name, child in tuple(running.items()):
                if child.poll() is None and time.monotonic() > until[name]:
                    child.kill()
                    child.wait()
                if child.poll() is not None:
                    del running[name]
                    ended(build / name, name, child.returncode)
                    _summary(build, names)
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                print(progress(build, names, tuple(running), len(waiting)), flush=True)
    finally:
        for child in running.values():
            child.kill()
            child.wait()
        _summary(build, names)
    print(table(build, names))
    print(f"The same table is in {build / 'summary.md'}; inputs of findings are beside it, by target.")
    return sum(len(seen.findings) for name in names if (seen := Seen.load(build / name)) is not None)


def _summary(build: Path, names: Sequence[str]) -> None:
    beside = build / "summary.new"
    beside.write_text(table(build, names))
    os.replace(beside, build / "summary.md")
