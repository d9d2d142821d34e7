"""How many processors a server may use at once: what decides how many processes it has."""

from __future__ import annotations

import os
from pathlib import Path

OVERRIDE = "PYTHON_CPU_COUNT"
"""As Python understands it from version 3.13 on."""
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores(groups: Path = GROUPS, own_group: Path = OWN_GROUP) -> int:
    """Those that this process may run on, fewer if its container or service has a quota; at least one."""
    told = os.environ.get(OVERRIDE, "")
    if told.isdecimal() and int(told):
        return int(told)
    return max(1, min(_allowed(), *_quotas(groups, own_group)))


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(groups: Path, own_group: Path) -> list[int]:
    """Of the control group that we are in and of those around it, in whole processors."""
    try:
        lines = own_group.read_text().splitlines()
        own = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    except (OSError, StopIteration):
        own = ""
    folder, found = groups / own, []
    for around in (folder, *folder.parents):
        if not around.is_relative_to(groups):
            break
        try:
            quota, period = (around / "cpu.max").read_text().split()
            found.append(int(quota) // int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue  # there is no limit at this level, or no such file
    return found or [_allowed()]
