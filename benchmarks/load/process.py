"""The router under measurement: the command that operators start, in a process of its own, and its costs."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blindpost.router.running.settings import CONFIG_NAME
from blindpost.router.running.template import config_text
from blindpost.router.tables import LmdbTables, RouterStore
from blindpost.router.tables_postgres import PostgresTables
from blindpost.serving.children import Child
from blindpost.serving.identity import Identity
from blindpost.store.contract import Durability
from blindpost.wire.keys import Algorithm
from blindpost.wire.text import b64

MEMORY_DISK = Path("/dev/shm")  # noqa: S108 (a store in memory is what is measured)
_PROCESSOR_FIELD = 36
"""Of /proc/PID/stat, behind the name."""
_SETTLE_S, _SETTLE_S_MAX, _SETTLED_NS = 0.5, 60.0, 5_000_000


@dataclass(frozen=True)
class Keeping:
    """Where the store lies and what an OK promises."""

    name: str
    durability: str
    parent: Path | None
    dsn: str = ""
    """The address of a database; without one the store is a folder in `parent`."""


KEEPINGS = (
    Keeping("in memory", "os", MEMORY_DISK if MEMORY_DISK.is_dir() else None),
    Keeping("os", "os", None),
    Keeping("full", "full", None),
)
IN_MEMORY, _, FULL = KEEPINGS


@dataclass(frozen=True)
class Place:
    """Where a store is, for whoever fills it before the router starts."""

    folder: Path
    dsn: str = ""

    async def open(self) -> RouterStore:
        if self.dsn:
            return await PostgresTables.open(self.dsn, Durability.OS)
        return LmdbTables(self.folder, Durability.OS)


class MeasuredRouter:
    """A router of one folder; `start` it, look at it from outside, `stop` it."""

    def __init__(self, folder: Path, fingerprint: bytes, dsn: str = "") -> None:
        self.folder = folder
        self.store = Place(folder / "store", dsn)
        self.fingerprint = fingerprint
        self.port = 0
        self.fronts: list[int] = []
        """The processes of its fronts."""
        self._child = Child("router", folder, log=folder / "log")

    @property
    def pid(self) -> int:
        return self._child.pid

    def start(self) -> None:
        status = self._child.start()
        self.port = int(status["ports"][0])
        self.fronts = [int(pid) for pid in status.get("fronts", {}).get("pids", ())]

    def stop(self) -> None:
        self._child.end()

    def cpu_ns(self) -> int:
        """CPU time of the router, all of its threads, user and system."""
        return cpu_ns(self.pid)

    @property
    def processor(self) -> int:
        """On which processor the router ran last."""
        behind_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2]
        return int(behind_name.split()[_PROCESSOR_FIELD])

    def waited_ns(self) -> int:
        """How long the router was ready to run and had no processor."""
        return waited_ns(self.pid)

    def settle(self) -> None:
        """Wait until the router has nothing to do."""
        deadline = time.monotonic() + _SETTLE_S_MAX
        while time.monotonic() < deadline:
            before = self.cpu_ns()
            time.sleep(_SETTLE_S)
            if self.cpu_ns() - before < _SETTLED_NS:
                return

    def anonymous_memory(self) -> int:
        """Bytes that the router itself holds, without files that are mapped."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None, "the kernel does not tell RssAnon"
        return int(found[1]) * 1024


def cpu_ns(pid: int) -> int:
    """CPU time of a process, all of its threads, user and system."""
    process_clock = ~pid << 3 | 2  # the clock that clock_getcpuclockid(3) names
    return time.clock_gettime_ns(process_clock)


def waited_ns(pid: int) -> int:
    """How long the threads of a process were ready to run and had no processor."""
    return sum(
        int((task / "schedstat").read_text().split()[1]) for task in Path(f"/proc/{pid}/task").iterdir()
    )


@contextmanager
def measured_router(keeping: Keeping = IN_MEMORY, fronts: int = 0) -> Iterator[MeasuredRouter]:
    """A router with an empty store, not started; it is gone after the block, with its folder."""
    with tempfile.TemporaryDirectory(prefix="blindpost-bench-", dir=keeping.parent) as name:
        folder = Path(name) / "router"
        folder.mkdir()
        credentials = Identity(folder / "keys").create("localhost", Algorithm.ED25519)
        fingerprint, kind = b64(credentials.fingerprint), "postgres" if keeping.dsn else "lmdb"
        text = config_text(["localhost"], 0, ["127.0.0.1"], fingerprint, kind, keeping.dsn)
        for before, after in (
            ('durability = "full"', f'durability = "{keeping.durability}"'),
            ('# exempt = ["127.0.0.1", "::1"]', 'exempt = ["127.0.0.1"]'),
            ("new_per_second = 500.0", "new_per_second = 1e9"),
            ("new_burst = 5000", "new_burst = 1000000000"),
            ('fronts = "auto"', f"fronts = {fronts}"),
        ):
            assert before in text, before
            text = text.replace(before, after)
        (folder / CONFIG_NAME).write_text(text)
        if not keeping.dsn:
            LmdbTables(folder / "store").close()
        router = MeasuredRouter(folder, credentials.fingerprint, keeping.dsn)
        try:
            yield router
        finally:
            router.stop()
