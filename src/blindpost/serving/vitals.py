"""The machine's resources that a server uses, what is left, and their limits: for `status` and metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindpost.serving import descriptors
from blindpost.serving.prometheus import Text

if TYPE_CHECKING:
    from blindpost.serving.service import Service


@dataclass(frozen=True, slots=True)
class Vitals:
    """One measurement; None where there is no such thing or no limit."""

    memory_bytes: int
    memory_limit_bytes: int | None
    disk_free_bytes: int | None
    """On the fullest disk that it writes to."""
    disk_size_bytes: int | None
    descriptors_left: int
    connections_limit: int | None
    certificate_since: int | None
    """When the online certificate began to be valid, in Unix seconds."""
    certificate_until: int | None
    """When the first certificate of the chain ends."""

    def values(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in self.__slots__}

    def measure(self, text: Text, own: str) -> None:
        """As metrics whose names begin with `own`."""
        for name, help_text in _HELP.items():
            value = getattr(self, name)
            if value is not None:
                text.gauge(own + _METRICS.get(name, name), help_text, value)


_HELP = {
    "memory_bytes": "Memory in use, without the mapped files of its store",
    "memory_limit_bytes": "Connections are closed to stay below this",
    "disk_free_bytes": "Room on the fullest disk that it writes to",
    "disk_size_bytes": "Size of that disk",
    "descriptors_left": "Files that can still be opened",
    "connections_limit": "Connections that it takes at most",
    "certificate_since": "When its online certificate began, in Unix seconds",
    "certificate_until": "When the first certificate of its chain ends, in Unix seconds",
}
_METRICS = {
    "certificate_since": "certificate_since_seconds",
    "certificate_until": "certificate_until_seconds",
}


def look(service: Service[Any], folders: Sequence[Path]) -> Vitals:
    """Measure now."""
    bounds = service.bounds
    free, size = fullest(folders)
    chain = service.certificates()
    return Vitals(
        memory_bytes=service.memory(),
        memory_limit_bytes=None if bounds is None else bounds.memory,
        disk_free_bytes=free,
        disk_size_bytes=size,
        descriptors_left=descriptors.left(),
        connections_limit=None if bounds is None else bounds.connections,
        certificate_since=int(chain[0].not_valid_before_utc.timestamp()) if chain else None,
        certificate_until=min((int(each.not_valid_after_utc.timestamp()) for each in chain), default=None),
    )


def fullest(folders: Sequence[Path]) -> tuple[int | None, int | None]:
    """Free space and size of the fullest disk; None if no folder can be read."""
    found: list[tuple[int, int]] = []
    for folder in folders:
        try:
            disk = os.statvfs(folder)
        except OSError:
            continue  # the health check says so
        found.append((disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize))
    return min(found, default=(None, None))
