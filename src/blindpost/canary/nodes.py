"""The canary's agents, one for each router, and the connections between each two of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from blindpost.agent import (
    Agent,
    AgentConfig,
    AgentError,
    Connected,
    Connection,
    ConnError,
    Event,
    Failed,
    Integrity,
    MsgBadHash,
    MsgBadId,
    MsgDuplicate,
    MsgOk,
    MsgSkipped,
    Received,
    SendFailed,
    SendsFailed,
    Sent,
    SmpError,
    StoreFailedError,
)
from blindpost.canary.book import MIRROR, Way
from blindpost.serving.files import DAMAGED, read_file, set_aside, write_file
from blindpost.serving.logs import log
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.smp.errors import Code

_HEAD = struct.Struct(">8sqqq")
_MAGIC = b"bpcanar2"
_AGAIN_S, _AGAIN_S_MAX = 1.0, 60.0
_REFUSED_MAX = 3
"""A connection is given up when its router did not have the queue for so many messages in a row."""

INTEGRITY: dict[type[Integrity], str] = {
    MsgOk: "ok",
    MsgSkipped: "skipped",
    MsgBadId: "bad_id",
    MsgBadHash: "bad_hash",
    MsgDuplicate: "duplicate",
}


class Letter(NamedTuple):
    """What a message says about itself, end-to-end encrypted, so that the receiver need remember nothing.

    A message therefore keeps the same connection number after midnight and after a restart, and no key that
    makes such numbers is ever stored.
    """

    number: int
    sent_us: int
    connection: int


def body_of(letter: Letter, size: int) -> bytes:
    """A message that states its number and when it was sent."""
    return _HEAD.pack(_MAGIC, *letter).ljust(size, b".")


def letter_in(body: bytes) -> Letter | None:
    """What a message says; None if it is not one of ours."""
    if len(body) < _HEAD.size or not body.startswith(_MAGIC):
        return None
    return Letter(*_HEAD.unpack_from(body)[1:])


@dataclass(slots=True)
class End:
    """One side of a connection."""

    way: Way
    """The direction in which it sends."""
    connection: Connection
    ready: bool = False
    refused: int = 0
    """How many messages in a row its peer's router had no queue for."""


class Fleet:
    """All agents and connections; events are reported to `happened`."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        addresses: Mapping[str, str],
        pairs: Path,
        happened: Callable[[End, Event], None],
    ) -> None:
        self._agents = agents
        self._servers = {name: RouterAddress.from_text(text).server for name, text in addresses.items()}
        self._pairs = pairs
        self._happened = happened
        self._noted = _read_pairs(pairs, agents)
        self._ends: dict[tuple[str, str], End] = {}
        """By agent name and connection id."""
        self._changed = asyncio.Event()
        self._given_up = asyncio.Event()

    @property
    def names(self) -> list[str]:
        """The agents."""
        return list(self._agents)

    @property
    def ends(self) -> list[End]:
        return list(self._ends.values())

    @property
    def broken(self) -> list[str]:
        """The agents whose stores take nothing more until the next start: nothing can be measured there."""
        return [name for name, agent in self._agents.items() if agent.is_broken]

    async def lasting(self, end: End, work: Callable[[], Awaitable[None]]) -> None:
        """Until it is stored: what a router keeps until it is told would look like lost messages."""
        await self._agents[end.way.sender].lasting(work)

    @property
    def wanted(self) -> list[tuple[str, str]]:
        """Each two agents, once."""
        names = list(self._agents)
        return [(one, other) for index, one in enumerate(names) for other in names[index + 1 :]]

    async def listen(self, name: str) -> None:
        """Pass on the events of one agent until it is closed."""
        async for event in self._agents[name].events():
            connection: Connection | None = getattr(event, "conn", None)
            end = None if connection is None else self._ends.get((name, connection.id))
            if end is None:
                continue
            match event:
                case Connected():
                    end.ready = True
                    self._changed.set()
                case SendFailed(_, _, error) if _is_gone(error):
                    end.refused += 1
                    self._happened(end, event)
                    if end.refused >= _REFUSED_MAX:
                        self._give_up(end)
                case Received() | Sent() | SendFailed() | SendsFailed():
                    end.ready = True
                    if isinstance(event, Sent):
                        end.refused = 0  # what it receives comes through the other router
                    self._happened(end, event)
                case Failed():
                    log.error("%s to %s: %s", end.way.sender, end.way.recipient, event.error)
                case _:
                    pass

    def restore(self) -> None:
        """The connections of an earlier process; before anybody listens, so that no message is missed. Where
        the store of one side, or its router, is another one by now, they are made anew."""
        stored = {name: {each.id for each in agent.connections()} for name, agent in self._agents.items()}
        for (one, other), (one_id, other_id) in tuple(self._noted.items()):
            ids = {one: one_id, other: other_id}
            if not all(ids[name] in stored[name] and self._is_there(name, ids[name]) for name in ids):
                log.warning("the connection between %s and %s is gone: it is made anew", one, other)
                del self._noted[one, other]
                continue
            self._add(one, other, self._agents[one].connection(one_id), ready=True)
            self._add(other, one, self._agents[other].connection(other_id), ready=True)

    def _is_there(self, name: str, conn_id: str) -> bool:
        """Whether a connection's queues are on the router that has this name now."""
        queues = self._agents[name].connection(conn_id).stats.rcv
        return all(queue.server == self._servers[name] for queue in queues)

    async def connect(self) -> None:
        """Connect every pair that has no connection, or none any more; unrecorded attempts are deleted.

        Pairs of an unreachable router are retried; the others do not wait for it.
        """
        delay_s = _AGAIN_S
        while True:
            await self._forget_unrecorded()
            missing = [pair for pair in self.wanted if pair not in self._noted]
            if not missing:
                delay_s = _AGAIN_S
                self._given_up.clear()
                await self._given_up.wait()
                continue
            for one, other in missing:
                try:
                    await self._introduce(one, other)
                except (AgentError, StoreFailedError) as error:
                    log.error("%s and %s cannot be connected yet: %s", one, other, error)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _AGAIN_S_MAX)

    async def _forget_unrecorded(self) -> None:
        for name, agent in self._agents.items():
            for connection in agent.connections():
                if (name, connection.id) not in self._ends:
                    await connection.delete()

    def _give_up(self, end: End) -> None:
        """A router that lost its store has no queue of ours any more, and never will."""
        names = {end.way.sender, end.way.recipient}
        (pair,) = (pair for pair in self._noted if set(pair) == names)
        log.warning("a router lost the connection between %s and %s: it is made anew", *pair)
        for name, conn_id in zip(pair, self._noted.pop(pair), strict=True):
            del self._ends[name, conn_id]
        self._given_up.set()
        self._note()

    def _add(self, sender: str, recipient: str, connection: Connection, *, ready: bool = False) -> None:
        self._ends[sender, connection.id] = End(Way(sender, recipient), connection, ready)

    async def _introduce(self, one: str, other: str) -> None:
        link = await self._agents[one].invite()
        joined = await self._agents[other].join(link.full.text)
        self._noted[one, other] = link.conn.id, joined.id
        self._add(one, other, link.conn)
        self._add(other, one, joined)
        self._note()

    async def wait_ready(self) -> None:
        """Wait until every pair is connected and carries messages."""
        while len(self._noted) < len(self.wanted) or not all(end.ready for end in self.ends):
            self._changed.clear()
            await self._changed.wait()

    def _note(self) -> None:
        rows = [[*names, *ids] for names, ids in self._noted.items()]
        write_file(self._pairs, json.dumps(rows).encode())


def _is_gone(error: AgentError) -> bool:
    """Whether the peer's router has no such queue."""
    return isinstance(error, ConnError) or (isinstance(error, SmpError) and error.error is Code.AUTH)


def _read_pairs(file: Path, agents: Container[str]) -> dict[tuple[str, str], tuple[str, str]]:
    """Connection ids by agent names, as an earlier process recorded them."""
    try:
        rows = json.loads(read_file(file)) if file.exists() else []
        pairs = {(str(one), str(other)): (str(first), str(second)) for one, other, first, second in rows}
    except DAMAGED:
        log.warning("the connections are made anew: their list cannot be read; it is now %s", set_aside(file))
        return {}
    return {names: ids for names, ids in pairs.items() if all(name in agents for name in names)}


def node_names(routers: Mapping[str, str]) -> dict[str, str]:
    """An agent for each router; two if there is only one router."""
    if len(routers) == 1:
        ((name, address),) = routers.items()
        return {name: address, name + MIRROR: address}
    return dict(routers)


def store_of(folder: Path, name: str) -> Path:
    """The store of an agent."""
    return folder / f"{name.replace(MIRROR, '-mirror')}.db"


@contextlib.asynccontextmanager
async def opened(
    nodes: Mapping[str, str], folder: Path, config: AgentConfig
) -> AsyncIterator[dict[str, Agent]]:
    """An agent for each node, with its store in `folder`."""
    async with contextlib.AsyncExitStack() as stack:
        agents: dict[str, Agent] = {}
        for name, address in nodes.items():
            file = store_of(folder, name)
            agents[name] = await stack.enter_async_context(Agent.open(file, [address], config=config))
        yield agents
