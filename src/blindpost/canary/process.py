"""A canary from its lock to its last event: connect, send, note, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from blindpost.agent import (
    AgentConfig,
    AgentError,
    Event,
    ProxyOptions,
    ProxyPolicy,
    Received,
    ReceivedMessage,
    SendFailed,
    SendsFailed,
    Sent,
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
from blindpost.canary.settings import Place
from blindpost.journal.keeping import JournalKeeper, Keeping
from blindpost.journal.minutes import Reading
from blindpost.journal.schema import L_MESSAGES
from blindpost.serving import locking
from blindpost.serving.control import ControlSocket
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import make_folder
from blindpost.serving.journal import keeping_of
from blindpost.serving.logs import log
from blindpost.store.sqlite import UNUSABLE

Microseconds = Callable[[], int]


def clock_us() -> int:
    return time.time_ns() // 1000


def steady_us() -> int:
    return time.monotonic_ns() // 1000


class Notes:
    """The journal of a canary: every event of a message, and sums once a minute."""

    def __init__(self, keeping: Keeping, book: Book) -> None:
        self._book = book
        self.keeper = JournalKeeper(keeping, "canary", self._read)
        self._events = self.keeper.lab(L_MESSAGES)

    def connection(self, way: Way, sent_us: int) -> int:
        """What stands for a connection in everything that is noted of a message sent now."""
        return self._events.number(f"{way.sender} {way.recipient}".encode(), sent_us / 1e6)

    def add(self, entry: Entry, size: int) -> None:
        events, way = self._events, entry.way
        events.add(
            entry.at_us,
            events.word("from_router", way.sender),
            events.word("to_router", way.recipient),
            entry.connection,
            entry.number,
            events.code("event", entry.became.value),
            events.code("integrity", entry.integrity),
            size,
        )

    def flush(self) -> None:
        self._events.flush()

    async def _read(self, _minute_s: int, _with_sketches: bool) -> Reading:
        counts = {became.value: count for became, count in self._book.counts.items()}
        return Reading(counts, {"under_way": self._book.under_way, "integrity_broken": self._book.broken})


class CanaryProcess:
    """The canary of one folder."""

    def __init__(
        self, place: Place, now_us: Microseconds = clock_us, steady: Microseconds = steady_us
    ) -> None:
        settings = place.settings
        self.place = place
        self.book = Book(int(settings.messages.lost_after_s * 1e6), steady)
        keeping = keeping_of(settings.journal, place.folder, "canary")
        self._notes = None if keeping is None else Notes(keeping, self.book)
        self._now_us = now_us
        self._number = now_us()
        self._numbers: dict[tuple[Way, int], int] = {}
        """Which message an agent's number stands for, until its router has it."""
        self._fleet: Fleet | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self.started = time.monotonic()

    def stop(self) -> None:
        self._stop.set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Until `stop`: `ready` is called when every pair is connected."""
        place, settings = self.place, self.place.settings
        make_folder(place.agents)
        control = ControlSocket(place.control, {"status": self.status})
        nodes = node_names(settings.routers)
        await control.listen()
        try:
            async with opened(nodes, place.agents, self._config()) as agents:
                fleet = self._fleet = Fleet(agents, place.pairs, self._happened)
                fleet.restore()
                for name in agents:
                    self._spawn(fleet.listen(name))
                self._spawn(fleet.connect())
                self._spawn(self._tell(fleet, ready))
                if self._notes is not None:
                    self._spawn(self._notes.keeper.run())
                self._spawn(self._work(fleet))
                await self._until_stopped()
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._notes is not None:
                await self._notes.keeper.close()
            await control.close()

    async def _until_stopped(self) -> None:
        """Or until one of our tasks fails: then that failure."""
        stopping = asyncio.create_task(self._stop.wait())
        while not stopping.done():
            done, _ = await asyncio.wait([stopping, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _config(self) -> AgentConfig:
        policy = ProxyPolicy.ALWAYS if self.place.settings.messages.proxy else ProxyPolicy.NEVER
        return AgentConfig(proxy=ProxyOptions(policy), key_pairs=2)

    async def _tell(self, fleet: Fleet, ready: Callable[[], None]) -> None:
        await fleet.wait_ready()
        ready()

    async def _work(self, fleet: Fleet) -> None:
        messages = self.place.settings.messages
        while True:
            for end in fleet.ends:
                if end.ready:
                    await self._send(end, messages.size)
            for entry in self.book.overdue(self._now_us()):
                log.error("a message from %s to %s was lost", entry.way.sender, entry.way.recipient)
                self._note(entry)
            if self._notes is not None:
                self._notes.flush()
            await asyncio.sleep(messages.interval_s)

    async def _send(self, end: End, size: int) -> None:
        self._number += 1
        number, at_us = self._number, self._now_us()
        connection = 0 if self._notes is None else self._notes.connection(end.way, at_us)
        try:
            sent = await end.connection.send(body_of(Letter(number, at_us, connection), size))
        except AgentError as error:
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
                self._spawn(self._receive(end, message, at_us))
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
        await message.ack()
        if found is not None:
            self._note(self.book.acked(back, found.number, self._now_us()))

    def _note(self, entry: Entry) -> None:
        if self._notes is not None:
            self._notes.add(entry, self.place.settings.messages.size)

    async def status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        """Sums, for operators and their page."""
        counts = self.book.counts
        ends = [] if self._fleet is None else self._fleet.ends
        return {
            "state": "running",
            "uptime_s": int(time.monotonic() - self.started),
            "pairs": len(ends),
            "connected": sum(end.ready for end in ends),
            "under_way": self.book.under_way,
            **{became.value: counts[became] for became in Became},
            "integrity_broken": self.book.broken,
            "p50_ms": self.book.latency_ms(0.5),
            "p99_ms": self.book.latency_ms(0.99),
        }


async def _serve(place: Place, ready: Callable[[CanaryProcess], None]) -> None:
    process = CanaryProcess(place)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    await process.run(lambda: ready(process))


def locked(place: Place) -> contextlib.AbstractContextManager[None]:
    return locking.locked(place.lock, "a canary is running in this folder. Stop it first.")


def serve(place: Place, ready: Callable[[CanaryProcess], None]) -> None:
    """Run the canary of this place until it is told to stop."""
    with locked(place):
        try:
            asyncio.run(_serve(place, ready))
        except UNUSABLE as error:
            raise OperatorError(f"{place.agents}: {error}.") from error
