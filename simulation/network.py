"""The memory network between processes: partitions, bad weather, and what a dead process leaves."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from blindpost.testing.network import PERFECT, Link, MemoryListener, MemoryNetwork, MemoryTransport
from simulation.processes import PROCESS, Process, SimulationLoop

P = TypeVar("P", bound=asyncio.BaseProtocol)

CONNECT_GIVEN_UP_S = 120.0
"""How long a connection through a partition is tried; clients give up sooner."""
BREAKS_WITHIN = 150_000
"""A connection that is to break does so within so many bytes: in a handshake, or a few blocks later."""
PIECE = (200, 9000)
NARROW = Link(window=20 << 10)
"""A block and a little of the next."""
NARROW_DELAY_S = 0.3
"""At most: where each piece waits for seconds, what is large takes minutes, whoever sends it."""


class Ending(Enum):
    """What the others notice when a process dies."""

    RESET = "its connections are reset"
    CLOSED = "what it had written still arrives"
    SILENCE = "nobody notices until they write"


@dataclass(frozen=True, slots=True)
class Weather:
    """How new connections fare."""

    delay_s: float = 0.0
    cuts: float = 0.0
    """Which part of all connections breaks after some bytes."""
    stalls: float = 0.0
    """Which part of all connections delivers nothing more after some bytes."""
    pieces: bool = False


FAIR = Weather()


class _Steps(asyncio.BaseProtocol):
    """A protocol object whose every callback is a step of its process."""

    def __init__(self, protocol: Any, process: Process | None) -> None:
        self._protocol = protocol
        self._process = process

    def _call(self, callback: Callable[..., Any], *args: Any) -> Any:
        return callback(*args) if self._process is None else self._process.inside(callback, *args)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._call(self._protocol.connection_made, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._call(self._protocol.connection_lost, exc)

    def pause_writing(self) -> None:
        self._call(self._protocol.pause_writing)

    def resume_writing(self) -> None:
        self._call(self._protocol.resume_writing)

    def eof_received(self) -> bool:
        return bool(self._call(self._protocol.eof_received))


class BufferedSteps(_Steps, asyncio.BufferedProtocol):
    """Of a protocol that offers a buffer."""

    def get_buffer(self, sizehint: int) -> Any:
        return self._protocol.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._call(self._protocol.buffer_updated, nbytes)


class StreamSteps(_Steps, asyncio.Protocol):
    """Of a protocol that is given bytes."""

    def data_received(self, data: bytes) -> None:
        self._call(self._protocol.data_received, data)


def in_steps(protocol: asyncio.BaseProtocol, process: Process | None) -> asyncio.BaseProtocol:
    if isinstance(protocol, asyncio.BufferedProtocol):
        return BufferedSteps(protocol, process)
    return StreamSteps(protocol, process)


class End(MemoryTransport):
    """One end of a connection between two processes."""

    def __init__(self, protocol: asyncio.BaseProtocol, process: Process | None, loop: SimulationLoop) -> None:
        super().__init__(in_steps(protocol, process))
        self._loop = loop.outside  # type: ignore[assignment]  # what is under way belongs to no process
        self.held = False
        """Whether nothing of what this end sends arrives."""
        self._arrived_meanwhile = 0
        self.process = process
        self._owner = protocol
        self._kept = False

    def hold(self) -> None:
        """Nothing of what this end sends arrives until `let_go`."""
        self.held = True

    def let_go(self) -> None:
        self.held = False
        while self._arrived_meanwhile and not self.held:
            self._arrived_meanwhile -= 1
            super()._land()

    def _land(self) -> None:
        if self.held:
            self._arrived_meanwhile += 1
        else:
            super()._land()

    # A connection that goes from one process to another

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._owner

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._owner = protocol
        self._protocol = in_steps(protocol, self.process)

    def keep(self) -> None:
        """It outlives the `abort` that follows: somebody has a descriptor of it."""
        self._kept = True

    def abort(self) -> None:
        if self._kept:
            self._kept, self._reading = False, False
        else:
            super().abort()

    def taken(self, protocol: asyncio.BaseProtocol) -> None:
        """A process goes on with it."""
        self.set_protocol(protocol)
        self.open()
        if self._lost:
            self._loop.call_soon(self._protocol.connection_lost, ConnectionResetError("reset by peer"))
        else:
            self.resume_reading()

    def _deliver(self) -> None:
        if self.process is None or not self.process.stopped:
            super()._deliver()

    def wake(self) -> None:
        """Its process goes on."""
        self._deliver()

    def stall(self) -> None:
        """Nothing arrives any more, in either direction, and nobody is told."""
        for end in (self, self._peer):
            assert isinstance(end, End)
            end.hold()

    def owner_died(self, ending: Ending) -> None:
        """The system closes what the process had open, or has no time to."""
        match ending:
            case Ending.RESET:
                self.cut()
            case Ending.CLOSED:
                self.close()
            case Ending.SILENCE:
                self._lose(None)

    @property
    def peer(self) -> End:
        assert isinstance(self._peer, End)
        return self._peer

    @property
    def lost(self) -> bool:
        return self._lost

    @property
    def silent(self) -> bool:
        """Whether nothing arrives here any more, or at the other end, or its owner died in that moment."""
        return any(end.held or end.lost or end.is_orphan for end in (self, self.peer))

    @property
    def is_orphan(self) -> bool:
        return self.process is not None and not self.process.alive

    @property
    def doomed(self) -> bool:
        """Whether something that is sent here will not arrive, sooner or later."""
        links = [end._link for end in (self, self.peer)]
        return self.silent or any(limit for link in links for limit in (link.stall_after, link.cut_after))

    @property
    def open_still(self) -> bool:
        """Whether anybody still takes the connection for one."""
        return not self._lost or not self._peer._lost


class SimulatedNetwork(MemoryNetwork):
    """One network for all parties; who connects is whose step it is."""

    def __init__(self, seed: int | str, loop: SimulationLoop, note: Callable[[str], None]) -> None:
        super().__init__(seed)
        self.weather = FAIR
        self.narrow = False
        """Whether new connections carry little at a time."""
        self.counts: Counter[str] = Counter()
        self._clock = loop
        self._note = note
        self._chance = random.Random(f"{seed}/network")
        self._parted: set[frozenset[str]] = set()
        self._owners: dict[tuple[str, int], Process | None] = {}
        self._pairs: dict[frozenset[str], list[End]] = {}

    def part(self, one: str, other: str) -> None:
        """Nothing passes between two processes any more; what is sent meanwhile arrives afterwards."""
        pair = frozenset((one, other))
        self._parted.add(pair)
        for end in self.between(one, other):
            end.hold()

    def heal(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        if pair in self._parted:
            self._parted.discard(pair)
            for end in self.between(one, other):
                end.let_go()

    def hears_again(self, end: End) -> None:
        """What this end sends arrives again, unless its connection is one that nothing passes through."""
        peer = end.peer
        if end.process is None or peer.process is None:
            return
        parted = frozenset((end.process.name, peer.process.name)) in self._parted
        if not parted and not peer.held:
            end.let_go()

    def heal_all(self) -> None:
        for pair in sorted(self._parted, key=sorted):
            self.heal(*sorted(pair))

    def between(self, one: str, other: str) -> list[End]:
        """Both ends of each connection between two processes that is open, the caller's first."""
        pair = frozenset((one, other))
        kept = self._pairs[pair] = [end for end in self._pairs.get(pair, ()) if end.open_still]
        return kept

    def open_ends(self) -> list[End]:
        """The caller's end of every open connection."""
        pairs = [sorted(pair) for pair in self._pairs]
        return [end for one, other in sorted(pairs) for end in self.between(one, other)[::2]]

    def _links(self) -> tuple[Link, Link]:
        """How a new connection fares, by the weather."""
        weather, chance = self.weather, self._chance
        if weather is FAIR:
            return (NARROW, NARROW) if self.narrow else (PERFECT, PERFECT)
        links = []
        for _ in range(2):
            cut = chance.randint(1, BREAKS_WITHIN) if chance.random() < weather.cuts / 2 else None
            stall = chance.randint(1, BREAKS_WITHIN) if chance.random() < weather.stalls / 2 else None
            self.counts["cut at a byte"] += cut is not None
            self.counts["stalled at a byte"] += stall is not None
            self.counts["delayed connection"] += weather.delay_s > 0
            piece = PIECE if weather.pieces else None
            link = Link((0.0, weather.delay_s), piece, cut_after=cut, stall_after=stall)
            if self.narrow:
                delay_s = min(weather.delay_s, NARROW_DELAY_S)
                link = replace(link, window=NARROW.window, delay_s=(0.0, delay_s))
            links.append(link)
        return links[0], links[1]

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        caller, listener = PROCESS.get(), self._listeners.get((host, port))
        assert caller is not None, "only processes connect"
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        owner = self._owners[host, port]
        assert owner is not None
        pair = frozenset((caller.name, owner.name))
        if pair in self._parted:
            self.counts["connection into a partition"] += 1
            await asyncio.sleep(CONNECT_GIVEN_UP_S)
            raise TimeoutError(f"{host} does not answer")
        links = self._links()
        number = next(self._numbers)
        protocol = factory()
        ours = End(protocol, caller, self._clock)
        theirs = End(listener.factory(), owner, self._clock)
        ours.join(theirs, links[0], random.Random(f"{self._seed}/{number}/up"))
        theirs.join(ours, links[1], random.Random(f"{self._seed}/{number}/down"))
        self.between(caller.name, owner.name).extend((ours, theirs))
        self._note(f"{caller.name} connects to {owner.name} ({number})")
        theirs.open()
        ours.open()
        return protocol

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int
    ) -> MemoryListener:
        listener = await super().listen(factory, host, port)
        process, place = PROCESS.get(), listener._place
        assert process is not None, "only processes listen"
        self._owners[place] = process

        def made() -> asyncio.BaseProtocol:
            protocol = process.inside(factory)
            assert protocol is not None, "a dead process does not listen"
            return protocol

        listener.factory = made
        process.at_death.append(lambda: self._forget(place, listener))
        return listener

    def _forget(self, place: tuple[str, int], listener: MemoryListener) -> None:
        if self._listeners.get(place) is listener:
            del self._listeners[place]

    def ends_of(self, process: Process) -> list[End]:
        """Its ends of all connections."""
        return [end for ends in self._pairs.values() for end in ends if end.process is process]

    def owner_dies(self, process: Process, ending: Ending) -> None:
        """What happens to the connections of a process that dies now."""
        for end in self.ends_of(process):
            if not end.lost:
                end.owner_died(ending)
