"""What a process asked of the system, as strace wrote it down: is anything said before it is on the disk?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.serving.processes import RouterInProcess

SYNCS = ("fdatasync", "fsync", "sync_file_range", "msync", "sync", "syncfs")
WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "fallocate")
SENDS = ("sendto", "sendmsg", "sendmmsg", "write", "writev")
BLOCK = 16_384
_CALL = re.compile(r"(\w+)\((?:(\d+)<(TCPv?6?:\[[^\]]*\]+|[^>]*)>)?.*?\)\s+= (-?\d+)")
_REQUIRED = "BLINDPOST_REQUIRE_STRACE"


def tracer(file: Path) -> tuple[str, ...]:
    """The command that writes a trace of another one and of its children into `file`."""
    able = shutil.which("strace") is not None
    able = able and not subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], check=False).returncode
    if not able:
        message = (
            "NOT RUN: nothing shows that data is synced before it is answered; strace is needed for that"
        )
        if os.environ.get(_REQUIRED):
            pytest.fail(message)
        pytest.skip(message)
    calls = ",".join({*SYNCS, *WRITES, *SENDS})
    return ("strace", "-f", "--seccomp-bpf", "-yy", "-qq", "-s", "0", "-o", str(file), "-e", f"trace={calls}")


@dataclass
class Trace:
    """The story of a store's file and of the answers."""

    syncs: int = 0
    commits: int = 0
    """Writes that are on the disk when they return: a new root of the store."""
    answers: int = 0
    early: list[str] = field(default_factory=list)
    """What was said, or made the root, while a write before it was not on the disk."""


def synced_descriptors(router: RouterInProcess) -> set[int]:
    """The descriptors of the store's file whose writes reach the disk before they return."""
    found = set()
    for entry in Path(f"/proc/{router.pid}/fd").iterdir():
        if entry.readlink().name == "data.mdb":
            info = Path(f"/proc/{router.pid}/fdinfo/{entry.name}").read_text()
            flags = re.search(r"^flags:\s+([0-7]+)$", info, re.MULTILINE)
            assert flags is not None
            if int(flags[1], 8) & os.O_DSYNC:
                found.add(int(entry.name))
    return found


def read_trace(file: Path, pid: int, synced: set[int]) -> Trace:
    """Follow one process through its trace."""
    trace, unsynced = Trace(), False
    for call in _calls(file, pid):
        matched = _CALL.match(call)
        if matched is None:
            continue
        name, descriptor, target, result = matched.groups()
        if int(result) < 0:
            continue
        if target and target.endswith("data.mdb"):
            if name in SYNCS:
                trace.syncs += 1
                unsynced = False
            elif int(descriptor) in synced:
                trace.commits += 1
                if unsynced:
                    trace.early.append(call)
            else:
                unsynced = True
        elif name in SENDS and target and target.startswith("TCP") and int(result) >= BLOCK:
            trace.answers += 1
            if unsynced:
                trace.early.append(call)
    return trace


def _calls(file: Path, pid: int) -> Iterator[str]:
    """Each system call of one process in one line, in the order in which they returned."""
    begun = ""
    for line in file.read_text().splitlines():
        number, _, call = line.partition(" ")
        call = call.strip()
        if int(number) != pid:
            continue
        if call.endswith("<unfinished ...>"):
            begun = call.removesuffix("<unfinished ...>")
        elif call.startswith("<..."):
            yield begun + call.partition("resumed>")[2]
        else:
            yield call
