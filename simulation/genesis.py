"""The world in which a run begins: routers with keys, agents that are connected. It is made once.

Each run gets a copy of its files, so that a short run costs what happens in it and not how it came about.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blindpost.agent import Connection
from blindpost.agent.routers.proxying import Fallback, ProxyOptions, ProxyPolicy
from blindpost.agent.store.schema import MIGRATIONS
from blindpost.crypto.credentials import Credentials, issue_router, make_authority
from blindpost.crypto.entropy import system_entropy
from blindpost.router.config import RouterRules
from blindpost.store.contract import Durability
from blindpost.store.sqlite import AGENT, SqliteStore
from blindpost.testing.agents import EPOCH
from blindpost.transport.plan import SessionLimits
from blindpost.wire.addresses import Host, RouterAddress, Scheme, Server
from simulation.agents import AgentParty, connections, lasting
from simulation.bots import BOT, PERSON, BotParty, PersonParty
from simulation.callers import CallerParty
from simulation.delivery import NAME as DS
from simulation.delivery import DeliveryParty
from simulation.devices import Device
from simulation.fronts import FrontedParty
from simulation.notifications import NAME as NTF
from simulation.notifications import PORT as NTF_PORT
from simulation.notifications import NtfParty
from simulation.owners import OwnerParty
from simulation.processes import run_simulated
from simulation.pushes import PushParty
from simulation.routers import PORT, RouterParty
from simulation.run import Run
from simulation.schedules import (
    AGENTS,
    ALL,
    CALLERS,
    PEERS,
    ROUTERS,
    SERVICES,
    USUAL,
    Cast,
    Conditions,
)
from simulation.stand_ins import is_quick, stand_ins

BEFORE_S = 10_000
"""So long before a run begins its world is made."""
LEAVES = 3
NARROW_LIMITS = SessionLimits(outbox_high=20 << 10, outbox_low=5 << 10)
MORE_QUEUES = 4
"""Invitations of the service in a crowded world that nobody answers."""
THROUGH_PROXY = ProxyOptions(ProxyPolicy.ALWAYS, Fallback.PROHIBIT)
PROXIES = {"alice": ProxyOptions(), "bob": THROUGH_PROXY, "carol": ProxyOptions(ProxyPolicy.UNKNOWN)}
SERVERS = {"alice": ROUTERS, "bob": ROUTERS, "carol": ROUTERS[1:]}


@dataclass
class World:
    """Files, and what is not in them."""

    folder: Path
    notified: Path
    """The same, with devices that are notified."""
    crowded: Path
    """The same, with a service that has more queues."""
    leaves: dict[str, Sequence[Credentials]] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    queues: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    """Which each agent receives from, by router."""
    connected: dict[str, frozenset[object]] = field(default_factory=dict)
    """The connections that each agent has."""
    _files: dict[Path, dict[Path, bytes]] = field(default_factory=dict, repr=False)
    """What was read of each folder."""

    def _copy(self, source: Path, target: Path, cast: Cast) -> None:
        """The files of those who take part."""
        if source not in self._files:
            paths = [path for path in source.rglob("*") if path.is_file()]
            self._files[source] = {path.relative_to(source): path.read_bytes() for path in paths}
        names = (*cast.agents, *((NTF,) if cast.ntf else ()), *((BOT, PERSON) if cast.bots else ()))
        wanted = {*ROUTERS, *(f"{name}.db" for name in names)}
        for name in ROUTERS:
            (target / name).mkdir(mode=0o700)
        for place, content in self._files[source].items():
            if place.parts[0] in wanted:
                with open(os.open(target / place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(content)

    def settle_in(self, run: Run, cast: Cast = ALL, conditions: Conditions = USUAL) -> None:
        """Copy the files to a run's folder, and make its parties."""
        source = self.notified if cast.ntf else self.crowded if conditions.crowded else self.folder
        if run.folder != source:
            self._copy(source, run.folder, cast)
        run.absent = [place for name in self.queues.keys() - set(cast.agents) for place in self.queues[name]]
        addresses, rules = {}, RouterRules(quota=conditions.quota)
        run.network.narrow = conditions.narrow
        for name in ROUTERS:
            leaves = self.leaves[name]
            router = run.parties[name] = (
                FrontedParty(run, name, leaves, rules, cast.fronts[name])
                if name in cast.fronts
                else RouterParty(run, name, leaves, rules)
            )
            if conditions.narrow:
                router.limits = NARROW_LIMITS
            server = Server((Host(name),), str(PORT), leaves[0].fingerprint)
            addresses[name] = RouterAddress(Scheme.SMP, server).text
        if cast.ntf:
            leaf, pushes = self.leaves[NTF][0], PushParty(run)
            run.parties[pushes.name] = pushes
            run.parties[NTF] = NtfParty(run, leaf, pushes)
            server = Server((Host(NTF),), str(NTF_PORT), leaf.fingerprint)
            addresses[NTF] = RouterAddress(Scheme.NTF, server).text
        for name in cast.owners:
            run.parties[name] = OwnerParty(run, name, RouterAddress.from_text(addresses[ROUTERS[0]]))
        for name in cast.agents:
            party = run.parties[name] = AgentParty(
                run,
                name,
                run.model,
                [addresses[router] for router in SERVERS[name]],
                proxy=PROXIES[name],
                service=name in SERVICES,
            )
            if name in cast.devices:
                party.device = Device(party, pushes)
                party.ntf_servers = [addresses[NTF]]
            known = self.peers.get(name, {})
            party.peers = {peer: known[peer] for peer in cast.peers[name] if peer in known}
            party.alone = frozenset(known.values()) - frozenset(party.peers.values())
            party.connected_before = self.connected.get(name, frozenset())
        if cast.bots:
            bot = run.parties[BOT] = BotParty(run, [addresses[ROUTERS[1]]])
            run.parties[PERSON] = PersonParty(run, [addresses[ROUTERS[0]]], bot)
        if cast.ds:
            run.parties[DS] = DeliveryParty(run, CALLERS)
            for name in CALLERS:
                run.parties[name] = CallerParty(run, name, run.boxes)


@dataclass
class Genesis:
    """One world for each kind of runs."""

    quick: World
    real: World

    def world(self, seed: int | str) -> World:
        return self.quick if is_quick(seed) else self.real


def make_genesis(folder: Path) -> Genesis:
    return Genesis(_world(folder / "quick", quick=True), _world(folder / "real", quick=False))


def _world(folder: Path, *, quick: bool) -> World:
    """Routers and agents, and a connection for each pair of peers."""
    world = World(folder / "plain", folder / "notified", folder / "crowded")
    world.folder.mkdir(parents=True)
    for name in (*ROUTERS, NTF):
        authority = make_authority(EPOCH - 2 * BEFORE_S, system_entropy)
        world.leaves[name] = [
            issue_router(authority, name, EPOCH - 2 * BEFORE_S, system_entropy) for _ in range(LEAVES)
        ]
    with stand_ins(quick=quick):
        run_simulated(_connect(world))
        _tidy(world.folder)
        for name in AGENTS:
            world.connected[name] = connections(lasting(world.folder / f"{name}.db"))
        if quick:
            _lay_out(world.folder, BOT, PERSON)
        for copy, change in ((world.notified, _notify), (world.crowded, _crowd)):
            shutil.copytree(world.folder, copy)
            run_simulated(change(world))
            _tidy(copy)
        for name in SERVICES:
            world.connected[name] |= connections(lasting(world.crowded / f"{name}.db"))
    return world


def _tidy(folder: Path) -> None:
    """A copy of an agent's file is recognised, and that is not what these runs are about."""
    for name in AGENTS:
        with contextlib.closing(sqlite3.connect(folder / f"{name}.db")) as file, file:
            file.execute("DELETE FROM settings WHERE name = 'copy' OR name LIKE 'life%'")
    for left in (*folder.glob("*.db-*"), *folder.glob("*/lock.mdb")):
        left.unlink()


def _lay_out(folder: Path, *names: str) -> None:
    """Files of agents with tables and nothing in them: to lay them out costs more than a short run."""
    for name in names:
        SqliteStore.open(folder / f"{name}.db", MIGRATIONS, AGENT, Durability.OS).close()


async def _connect(world: World) -> None:
    run = Run(world.folder, "genesis")
    world.settle_in(run, Cast(AGENTS))
    for party in run.parties.values():
        party.clock_off_s = -BEFORE_S
        party.start()
        await asyncio.sleep(1)
    for one in AGENTS:
        for other in PEERS[one]:
            if one < other:
                await _pair(run, one, other)
    await run.converge()
    for agent in run.agents:
        world.peers[agent.name] = agent.peers
        world.queues[agent.name] = agent.receives_from()
    await _end(run)


async def _notify(world: World) -> None:
    run = Run(world.notified, "notified genesis")
    world.settle_in(run, Cast(AGENTS, ntf=True))
    for party in run.parties.values():
        party.clock_off_s = -BEFORE_S / 2
        party.start()
        await asyncio.sleep(1)
    await run.converge()
    await _end(run)


async def _crowd(world: World) -> None:
    run = Run(world.crowded, "crowded genesis")
    world.settle_in(run, Cast(AGENTS), Conditions(crowded=True))
    for party in run.parties.values():
        party.clock_off_s = -BEFORE_S / 2
        party.start()
        await asyncio.sleep(1)
    for agent in run.agents:
        for _ in range(MORE_QUEUES if agent.service else 0):
            assert agent.process is not None
            await agent.process.spawn(agent.agent.invite())
    await run.converge()
    await _end(run)


async def _end(run: Run) -> None:
    for party in reversed(run.parties.values()):
        await party.stop()
    await asyncio.sleep(0)
    run.check()


async def _pair(run: Run, inviting: str, joining: str) -> None:
    one, other = run.parties[inviting], run.parties[joining]
    assert isinstance(one, AgentParty)
    assert isinstance(other, AgentParty)
    assert one.process is not None
    assert other.process is not None
    link = await one.process.spawn(one.agent.invite())
    conn: Connection = await other.process.spawn(other.agent.join(str(link)))
    one.peers[joining], other.peers[inviting] = link.conn.id, conn.id
    await asyncio.sleep(60)
    assert one.told["CON"] == len(one.peers)
    assert other.told["CON"] == len(other.peers)
