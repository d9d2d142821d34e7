"""A canary as a `Service`: connect, send and record until stopped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindpost.agent import (
    AgentConfig,
    AgentError,
    CriticalError,
    Event,
    ProxyOptions,
    ProxyPolicy,
    Received,
    ReceivedMessage,
    SendFailed,
    SendsFailed,
    Sent,
    StoreFailedError,
)
from blindpost.canary.book import Became, Book, Entry, Way
from blindpost.canary.nodes import (
    INTEGRITY,
    End,
    Fleet,
    Letter,
    body_of,
    letter_in,
    node_names,
    opened,
)
from blindpost.canary.settings import CanaryPlace
from blindpost.journal.keeping import JournalKeeper
from blindpost.journal.minutes import Reading
from blindpost.journal.schema import L_MESSAGES
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder
from blindpost.serving.logs import log
from blindpost.serving.prometheus import Text
from blindpost.serving.service import Service
from blindpost.store.sqlite import UNUSABLE

if TYPE_CHECKING:
    from blindpost.serving.tasks import Work

OURS = "blindpost_canary_"
PAUSE_US = 5_000_000
"""Waking up later than this is a pause, not load."""

Microseconds = Callable[[], int]


def clock_us() -> int:
    return time.time_ns() // 1000


def steady_us() -> int:
    """A clock that nobody sets and that keeps running while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Notes:
    """The journal of a canary: every event of a message."""

    def __init__(self, journal: JournalKeeper) -> None:
        self._events = journal.lab(L_MESSAGES)

    def connection(self, way: Way, sent_us: int) -> int:
        """The blinded number that stands for a connection in all records of a message sent now."""
        return self._events.number(f"{way.sender} {way.recipient}".encode(), sent_us / 1e6)

    def add(self, entry: Entry, size: int) -> None:
        events, (sender, recipient) = self._events, entry.way.routers
        events.add(
            entry.at_us,
            events.word("from_router", sender),
            events.word("to_router", recipient),
            entry.connection,
            entry.number,
            events.code("event", entry.became.value),
            events.code("integrity", entry.integrity),
            size,
        )

    def flush(self) -> None:
        self._events.flush()


class CanaryService(Service[CanaryPlace]):
    """The canary of one folder."""

    role = "canary"
    reloads = frozenset({"messages.interval_s", "messages.size", "messages.lost_after_s"})
    connections_setting = "the number of routers"

    def __init__(
        self, place: CanaryPlace, now_us: Microseconds = clock_us, steady: Microseconds = steady_us
    ) -> None:
        """Use `open`."""
        super().__init__(place)
        self.book = Book(int(place.settings.messages.lost_after_s * 1e6), steady, now_us())
        self._steady_us = steady
        self._notes: Notes | None = None
        self._now_us = now_us
        self._number = now_us()
        self._numbers: dict[tuple[Way, int], int] = {}
        """Which message an agent's number stands for, until its router has it."""
        self._agents = contextlib.AsyncExitStack()
        self.fleet: Fleet
        self._receiving: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    @staticmethod
    def wanted_connections(place: CanaryPlace) -> int:
        """Each agent has a connection to every router, and a few files."""
        return 16 * len(place.settings.routers)

    @classmethod
    async def open(cls, place: CanaryPlace, connections: int) -> CanaryService:
        service = cls(place)
        make_folder(place.agents)
        nodes = node_names(place.settings.routers)
        try:
            agents = await service._agents.enter_async_context(opened(nodes, place.agents, service._config()))
        except UNUSABLE as error:
            raise OperatorError(f"{place.agents}: {error}.") from error
        service.fleet = Fleet(agents, nodes, place.pairs, service._happened)
        service.fleet.restore()
        return service

    async def listen(self) -> list[int]:
        """Nobody connects to a canary."""
        return []

    async def work(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    async def stop_listening(self) -> None:
        """There is nothing to stop."""

    async def drain(self, seconds: float) -> None:
        """What arrived is acknowledged."""
        if self._receiving:
            await asyncio.wait(self._receiving, timeout=seconds)

    async def close(self) -> None:
        for task in tuple(self._receiving):
            task.cancel()
        await asyncio.gather(*self._receiving, return_exceptions=True)
        await self._agents.aclose()

    def tasks(self) -> Mapping[str, Work]:
        fleet = self.fleet
        return {
            **{f"agent {name}": functools.partial(fleet.listen, name) for name in fleet.names},
            "connecting": fleet.connect,
            "sending": self._send_for_ever,
            "waiting for all pairs": self._tell_connected,
        }

    def reload(self, place: CanaryPlace) -> None:
        self.book.lost_after(int(place.settings.messages.lost_after_s * 1e6))

    async def probe(self) -> None:
        """Its agents write to their own stores, and say what fails."""

    def trouble(self) -> str | None:
        if broken := self.fleet.broken:
            of = ", ".join(broken)
            return f"the disk lost something of {of}: repair it, then start the canary again"
        ends, wanted = self.fleet.ends, 2 * len(self.fleet.wanted)
        connected = sum(end.ready for end in ends)
        if connected < wanted:
            return f"{wanted - connected} of {wanted} directions between the routers are not connected yet"
        return None

    @staticmethod
    def secrets(place: CanaryPlace) -> Sequence[Path]:
        return *sorted(place.agents.glob("*.db")), place.file

    @property
    def journal_name(self) -> str:
        return "canary"

    def journaled(self, journal: JournalKeeper) -> None:
        self._notes = Notes(journal)

    async def read_meters(self, minute_s: int, with_sketches: bool) -> Reading:
        counts = {became.value: count for became, count in self.book.counts.items()}
        return Reading(counts, {"under_way": self.book.under_way, "integrity_broken": self.book.broken})

    def _config(self) -> AgentConfig:
        policy = ProxyPolicy.ALWAYS if self.place.settings.messages.proxy else ProxyPolicy.NEVER
        return AgentConfig(proxy=ProxyOptions(policy), key_pairs=2)

    async def _tell_connected(self) -> None:
        await self.fleet.wait_ready()
        log.info("the canary is measuring %d routers", len(self.place.settings.routers))

    async def _send_for_ever(self) -> None:
        while True:
            messages, broken = self.place.settings.messages, self.fleet.broken
            for end in self.fleet.ends:
                if end.ready and end.way.sender not in broken and end.way.recipient not in broken:
                    await self._send(end, messages.size)
            for entry in self.book.overdue(self._now_us()):
                log.error("a message from %s to %s was lost", entry.way.sender, entry.way.recipient)
                self._note(entry)
            if self._notes is not None:
                self._notes.flush()
            before_us = self._steady_us()
            await asyncio.sleep(messages.interval_s)
            self._forget_pause(self._steady_us() - before_us - messages.interval_s * 1e6)

    def _forget_pause(self, late_us: float) -> None:
        """A canary that was stopped, or whose machine slept, has measured itself, not the routers."""
        if late_us > PAUSE_US:
            count = self.book.paused()
            told = "the canary stood still for %.0f s: %d messages that were under way are not judged"
            log.warning(told, late_us / 1e6, count)

    async def _send(self, end: End, size: int) -> None:
        self._number += 1
        number, at_us = self._number, self._now_us()
        connection = 0 if self._notes is None else self._notes.connection(end.way, at_us)
        try:
            sent = await end.connection.send(body_of(Letter(number, at_us, connection), size))
        except (AgentError, StoreFailedError) as error:
            log.error("%s to %s: %s", end.way.sender, end.way.recipient, error)
            return
        self._numbers[end.way, sent] = number
        self._note(self.book.sent(end.way, number, at_us, connection))

    def _happened(self, end: End, event: Event) -> None:
        at_us = self._now_us()
        match event:
            case Sent(_, msg_id, _):
                self._outcome(end.way, msg_id, at_us, self.book.accepted)
            case SendFailed(_, msg_id, _):
                self._outcome(end.way, msg_id, at_us, self.book.refused)
            case SendsFailed(_, msg_ids, _):
                for msg_id in msg_ids:
                    self._outcome(end.way, msg_id, at_us, self.book.refused)
            case Received(_, message):
                task = asyncio.create_task(self._receive(end, message, at_us))
                self._receiving.add(task)
                task.add_done_callback(self._receiving.discard)
            case _:
                pass

    def _outcome(self, way: Way, msg_id: int, at_us: int, became: Callable[[Way, int, int], Entry]) -> None:
        number = self._numbers.pop((way, msg_id), None)
        if number is not None:
            self._note(became(way, number, at_us))

    async def _receive(self, end: End, message: ReceivedMessage, at_us: int) -> None:
        found = letter_in(message.body)
        back = Way(end.way.recipient, end.way.sender)
        if found is not None:
            integrity = INTEGRITY[type(message.integrity)]
            entry = self.book.delivered(back, found.number, found.sent_us, at_us, integrity, found.connection)
            self._note(entry)
        try:
            await self.fleet.lasting(end, message.ack)
        except CriticalError:
            return  # `trouble` says so
        if found is not None:
            self._note(self.book.acked(back, found.number, self._now_us()))

    def _note(self, entry: Entry) -> None:
        if self._notes is not None:
            self._notes.add(entry, self.place.settings.messages.size)

    async def status(self) -> dict[str, Any]:
        """Sums, for operators and their page."""
        counts, ends = self.book.counts, self.fleet.ends
        median_ms, slowest_ms = self.book.last_minute_ms(self._now_us()) or (None, None)
        return {
            "pairs": len(ends),
            "connected": sum(end.ready for end in ends),
            "under_way": self.book.under_way,
            **{became.value: counts[became] for became in Became},
            "integrity_broken": self.book.broken,
            "p50_ms": self.book.latency_ms(0.5),
            "p99_ms": self.book.latency_ms(0.99),
            "last_minute_median_ms": median_ms,
            "last_minute_slowest_ms": slowest_ms,
        }

    async def measure(self, text: Text) -> None:
        told = await self.status()
        for became in Became:
            text.counter(f"{OURS}messages_{became.value}_total", "Messages", told[became.value])
        text.counter(OURS + "integrity_broken_total", "Messages out of order", told["integrity_broken"])
        text.gauge(OURS + "directions", "Directions between two routers", told["pairs"])
        text.gauge(OURS + "directions_connected", "Those that are connected", told["connected"])
        text.gauge(OURS + "under_way", "Messages under way", told["under_way"])
        for name, help_text, told_ms in (
            ("latency_seconds", "From sending to arrival", {0.5: told["p50_ms"], 0.99: told["p99_ms"]}),
            (
                "last_minute_latency_seconds",
                "The same, of what arrived in the last minute",
                {0.5: told["last_minute_median_ms"], 1: told["last_minute_slowest_ms"]},
            ),
        ):
            samples = [
                ("", (("quantile", str(share)),), latency / 1000)
                for share, latency in told_ms.items()
                if latency is not None
            ]
            if samples:
                text.metric(OURS + name, "gauge", help_text, samples)
