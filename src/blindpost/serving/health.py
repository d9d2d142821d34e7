"""Whether a server can do its work, in one sentence that is the same everywhere it is reported.

`live` means that the event loop runs: any answer proves it. `ready` means that what is accepted
can be kept: the store takes writes, the disk has room, files can be opened, certificates are valid and the
clock can be right.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindpost.engine.loop import StoreFailedError
from blindpost.serving import descriptors
from blindpost.serving.logs import log

if TYPE_CHECKING:
    from blindpost.serving.service import Service

LOOK_S = 2.0
PROBE_S = 30.0
"""How often an idle store is written to, to learn whether it still takes writes."""
PROBE_S_MAX = 3.0
"""A store that takes longer for one small write counts as not answering."""
ROOM_MIN = 64 << 20
DESCRIPTORS_MIN = 8
CLOCK_MIN = 1_735_689_600
"""The first second of 2025: no correct clock shows an earlier time."""

WELL = "everything works"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether it is ready, and why not."""

    ready: bool
    sentence: str


class Watch:
    """Monitors one server; `health` is the last finding."""

    def __init__(
        self,
        service: Service[Any],
        folders: Sequence[Path],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._folders = folders
        self._now = now
        self._probing: asyncio.Task[None] | None = None
        self._probed = 0.0
        self._seen = 0
        self._refusal: str | None = None
        self.health = Health(True, WELL)

    async def look(self) -> Health:
        """Check now and log a change."""
        trouble = self._machine() or await self._store() or self._service.trouble()
        before = self.health
        self.health = Health(trouble is None, trouble or self._service.notice() or WELL)
        if self.health != before:
            if trouble is not None:
                log.error("not ready: %s", trouble)
            elif not before.ready:
                log.warning("ready again: %s", self.health.sentence)
            elif self.health.sentence != WELL:
                log.warning("needs attention: %s", self.health.sentence)
        return self.health

    def _machine(self) -> str | None:
        """What is wrong with the machine."""
        for folder in self._folders:
            try:
                found = os.statvfs(folder)
            except OSError as error:
                return f"{folder} cannot be looked at: {error.strerror}"
            if found.f_flag & os.ST_RDONLY:
                return f"the disk of {folder} is mounted read-only"
            room = found.f_bavail * found.f_frsize
            if room < ROOM_MIN:
                return f"the disk of {folder} is full: {room >> 20} MiB are left, {ROOM_MIN >> 20} are needed"
        if descriptors.left() < DESCRIPTORS_MIN:
            return "no more files can be opened: raise LimitNOFILE, or lower the number of connections"
        now = self._now()
        if now < CLOCK_MIN:
            return "the clock of this machine is wrong: it shows a time before this program was made"
        for certificate in self._service.certificates():
            if now < certificate.not_valid_before_utc.timestamp():
                return "the certificate is not valid yet, or the clock of this machine is wrong"
            if now > certificate.not_valid_after_utc.timestamp():
                return "the certificate has expired: make a new one with rotate-cert"
        return None

    async def _store(self) -> str | None:
        """Why the store takes no writes; only a write shows it, and a turn may have none."""
        before, self._seen = self._seen, self._service.refused
        refused = self._seen - before
        if self._probing is None:
            if not refused and self._refusal is None and time.monotonic() - self._probed < PROBE_S:
                return None
            self._probing = asyncio.create_task(self._service.probe())
        done, _ = await asyncio.wait([self._probing], timeout=PROBE_S_MAX)
        if not done:
            self._refusal = "the store does not answer"
            return self._refusal
        probing, self._probing = self._probing, None
        self._probed = time.monotonic()
        try:
            probing.result()
            self._refusal = None
        except StoreFailedError as error:
            self._refusal = f"the store takes no writes: {error}"
        return self._refusal

    async def close(self) -> None:
        """Cancel an unanswered probe of the store."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
