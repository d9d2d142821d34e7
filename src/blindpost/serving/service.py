"""What a kind of server provides to the process: its opened parts, and how they are run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from cryptography import x509

from blindpost.journal.keeping import JournalKeeper
from blindpost.journal.minutes import Reading
from blindpost.serving.control import Answer
from blindpost.serving.limits import LimitSizes
from blindpost.serving.memory import anonymous_bytes
from blindpost.serving.place import Place
from blindpost.serving.prometheus import Text

P = TypeVar("P", bound=Place[Any])

Ports = Sequence[int] | Mapping[str, int]
"""The opened ports, by protocol if a server speaks more than one."""

DRAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Round:
    """Periodic work."""

    name: str
    every_s: float | Callable[[], float]
    work: Callable[[], Awaitable[None]]
    at_start: bool = False


class Service(ABC, Generic[P]):
    """One server, apart from its process.

    The frame starts `signs`, calls `begin`, starts `work`, calls `listen`, and starts `rounds` and `tasks`.
    At the end it calls `stop_listening`, ends the background work, calls `stop`, waits for `work`, then
    `drain` and `close`; `release` before these if others wait for its database.
    """

    role: ClassVar[str]
    """The server's role in the journal."""
    reloads: ClassVar[frozenset[str]] = frozenset()
    """What `reload` takes over without a restart: tables, or settings as `table.name`."""
    connections_setting: ClassVar[str] = "listen.connections"
    """The setting that says how many connections there may be."""

    def __init__(self, place: P) -> None:
        self.place = place

    @staticmethod
    @abstractmethod
    def wanted_connections(place: P) -> int:
        """How many connections there may be at once, which decides how many files may be open."""

    @classmethod
    @abstractmethod
    async def open(cls, place: P, connections: int) -> Self:
        """The server of this place, with its keys and its store, for at most this many connections."""

    # --- life

    async def claim(self) -> None:
        """Say in a database that another server may take over which server has it."""

    async def begin(self) -> None:
        """Do what must precede the first connection."""

    @abstractmethod
    async def listen(self) -> Ports:
        """Open every listener; `OperatorError` if one cannot be."""

    @abstractmethod
    async def work(self) -> None:
        """Decide until `stop`; return when everything accepted is durable and answered."""

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    async def stop_listening(self) -> None:
        """Take no new connections; those that are open stay."""

    async def release(self) -> None:
        """Let go of a database that others wait for: all is decided, and only answers are still to leave."""

    @abstractmethod
    async def drain(self, seconds: float) -> None:
        """Close every connection once its last answers have left, and cut it after this time."""

    @abstractmethod
    async def close(self) -> None:
        """Close the store; also after a start that failed."""

    @property
    def drain_s(self) -> float:
        return DRAIN_S

    def rounds(self) -> Sequence[Round]:
        return ()

    def signs(self) -> Sequence[Round]:
        """Rounds that start before `begin`, which may take its time."""
        return ()

    def tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Tasks that run beside `work`, by name."""
        return {}

    def reload(self, place: P) -> None:
        """Use the certificates on disk, and the settings of `place`: those that `reloads` names are new."""

    def on_displaced(self, call: Callable[[], None], takeover_s: float) -> None:
        """`call` when another server has taken their database over, or may have, as it was away for long."""

    # --- what the frame looks after

    def memory(self) -> int:
        """What it uses, in all of its processes."""
        return anonymous_bytes()

    @abstractmethod
    async def probe(self) -> None:
        """Write to the store; `StoreFailedError` says why it takes no writes."""

    @property
    def refused(self) -> int:
        """How many turns the store has refused."""
        return 0

    def certificates(self) -> Sequence[x509.Certificate]:
        """The certificates shown to clients."""
        return ()

    def limited(self) -> Mapping[str, int]:
        """How often a limit applied since the start, by which."""
        return {}

    def trouble(self) -> str | None:
        """Any other reason why it cannot serve, in one sentence."""
        return None

    def notice(self) -> str | None:
        """What needs somebody although it serves, in one sentence."""
        return None

    @property
    def bounds(self) -> LimitSizes | None:
        """How many connections and how much memory it may have at most."""
        return None

    @staticmethod
    def secrets(place: P) -> Sequence[Path]:
        """Files that only the server's user may read."""
        return ()

    # --- what it tells

    @property
    @abstractmethod
    def journal_name(self) -> str:
        """Its name in the journal if the configuration gives none."""

    @abstractmethod
    async def read_meters(self, minute_s: int, with_sketches: bool) -> Reading:
        """Counters and levels of one moment, for the journal."""

    def journaled(self, journal: JournalKeeper) -> None:
        """There is a journal; single events of the operator's own devices may be recorded in it."""

    @abstractmethod
    async def status(self) -> dict[str, Any]:
        """Numbers only: nothing about anybody."""

    @abstractmethod
    async def measure(self, text: Text) -> None:
        """Everything that is measured, for Prometheus."""

    def commands(self) -> Mapping[str, Answer]:
        """Control commands besides those of every server."""
        return {}
