"""What happens in a run, drawn from its seed before it begins."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from blindpost.testing.apns import TOO_MANY_REQUESTS, UNAVAILABLE, UNREGISTERED, Answer, Fault
from simulation.faults import Point, Step
from simulation.hostile import Attack
from simulation.network import Ending, Weather

ROUTERS = ("router1", "router2")
AGENTS = ("alice", "bob", "carol")
NOTIFYING = ("ntf", "apple")
CALLERS = ("dora", "dirk")
DELIVERING = ("ds", *CALLERS)
DEVICES = ("alice", "carol")
"""Agents that have push notifications, where there are any."""
OWNERS = ("dave",)
BOT, PERSON = BOTS = ("ada", "paul")
SERVICES = frozenset({"bob"})
ROUTER_VERSIONS = (20, 19)
AGENT_VERSIONS = (20, 17, 15, 12)
"""The newest that a program speaks after it was exchanged; services need what routers speak since 19."""
STORELESS = frozenset({*OWNERS, *CALLERS, "apple"})
"""They commit nothing, so that they cannot die at it."""
SOON = (Point.LATER, Point.BEFORE_COMMIT, Point.AFTER_COMMIT)
POINTS = (Point.NOW, *SOON, *SOON)
WITHOUT_STORE = (Point.NOW, Point.LATER, Point.LATER)
"""Where processes die; one that is to die soon may have nothing more to do: it is meant more often."""
STEPS_MAX = 120
COMMITS = (1, 1, 2, 3, 4)
"""After how many steps a process dies, and at which of its next commits."""
PEERS = {"alice": ("bob",), "bob": ("alice", "carol"), "carol": ("bob",)}


class Cast:
    """Who takes part in a run; a short one has two agents, so that a thousand of them cost little."""

    def __init__(
        self,
        agents: Sequence[str],
        owners: Sequence[str] = (),
        *,
        bots: Sequence[str] = (),
        ntf: bool = False,
        ds: bool = False,
        fronts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.fronts = fronts
        """How many each router has; none where it is one process."""
        self.agents = tuple(agents)
        self.owners = tuple(owners)
        """Plain clients, each with a queue and two devices."""
        self.bots = tuple(bots)
        """A bot and the person who asks it."""
        self.ds = ds
        """Whether there is a delivery service with callers."""
        self.ntf = ntf
        """Whether devices are notified."""
        self.devices = tuple(agent for agent in agents if agent in DEVICES) if ntf else ()
        self.peers = {agent: tuple(peer for peer in PEERS[agent] if peer in agents) for agent in agents}
        self.everybody = (
            *ROUTERS,
            *agents,
            *owners,
            *bots,
            *(NOTIFYING if ntf else ()),
            *(DELIVERING if ds else ()),
        )
        rest = (NOTIFYING[:1], NOTIFYING[1:]) if ntf else ()
        served = (DELIVERING[:1], CALLERS) if ds else ()
        self.kinds = [kind for kind in (ROUTERS, self.agents, self.owners, self.bots, *rest, *served) if kind]
        """Everybody, by what they are."""
        self.stores = (*ROUTERS, "ds") if ds else ROUTERS
        """Whose commits can be refused, doubtful or slow."""
        self.lines = [*((agent, router) for agent in (*agents, *bots) for router in ROUTERS), ROUTERS]
        """Between whom there are connections."""
        self.lines += [(owner, ROUTERS[0]) for owner in owners]
        if ntf:
            self.lines += [NOTIFYING, *(("ntf", router) for router in ROUTERS)]
            self.lines += [(agent, "ntf") for agent in self.devices]
        if ds:
            self.lines += [(caller, "ds") for caller in CALLERS]


CASTS = ((AGENTS[:2], (), ()), (AGENTS[1:], (), ()), ((), OWNERS, ()), ((), (), BOTS))
"""Agents, plain clients and bots of short runs; devices are notified only where there are agents."""
CAST_SHARES = (2, 2, 2, 2)
NOTIFIED_SHARE, DELIVERED_SHARE = 1 / 3, 1 / 4
"""In how many short runs devices are notified, and a delivery service is used."""
ALL = Cast(AGENTS, OWNERS)
FRONTED_SHARE, FRONTS = 1 / 5, (1, 2, 2)
"""In how many short runs one of the routers has fronts, and how many."""
EVERYBODY = Cast(AGENTS, OWNERS, ntf=True, ds=True, fronts={ROUTERS[1]: 2})


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is scarce in a run."""

    quota: int = 8
    """How many messages a queue takes."""
    narrow: bool = False
    """Little is under way on a connection, and routers soon wait for those who do not read."""
    crowded: bool = False
    """A service has more queues than those of its peers."""

    def __str__(self) -> str:
        told = [f"queues take {self.quota} messages"]
        told += ["connections are narrow"] if self.narrow else []
        told += ["the service has more queues"] if self.crowded else []
        return ", ".join(told)


USUAL = Conditions()
QUOTAS = (8, 8, 8, 8, 3, 2)
NARROW_SHARE, CROWDED_SHARE = 1 / 4, 1 / 2
"""In how many short runs connections are narrow, and in how many with agents, where nobody is notified, the
service has more queues."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run before it begins."""

    cast: Cast
    steps: Sequence[Step]
    conditions: Conditions = USUAL


Draw = Callable[[random.Random, Cast], tuple[str, tuple[object, ...]]]


def _send(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    agent = chance.choice(cast.agents)
    return agent, (chance.choice(cast.peers[agent]), chance.choice((1, 1, 2, 3)))


def _write(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(cast.owners), (chance.choice((1, 2, 3)),)


def _owner(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(cast.owners), ()


def _to_peer(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    agent = chance.choice(cast.agents)
    return agent, (chance.choice(cast.peers[agent]),)


def _crash(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    """Each kind of process dies as often as the others."""
    return _crash_of(chance, chance.choice(chance.choice(cast.kinds)))


def _crash_of(chance: random.Random, who: str) -> tuple[str, tuple[object, ...]]:
    point = chance.choice(WITHOUT_STORE if who in STORELESS else POINTS)
    down_s = chance.choice((0.0, 0.1, 3.0, 60.0))
    steps = int(STEPS_MAX ** chance.random()) if point is Point.LATER else chance.choice(COMMITS)
    return who, (point, chance.choice(list(Ending)), steps, down_s)


def _bot_crash(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    """One of the two dies, while a question is on its way or not."""
    who, detail = _crash_of(chance, chance.choice((*BOTS, BOT)))
    return who, (*detail, chance.choice((0, 1, 1, 2)))


def _restart(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(cast.everybody), (chance.choice((0.0, 2.0, 30.0)),)


def _renewed(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(ROUTERS), (chance.choice((0.0, 2.0, 30.0)),)


def _drift(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(ROUTERS), (chance.randint(1, 2), chance.choice((0.0, 5.0)))


def _service(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return "bob", ()


def _restored(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    """Not the home of the plain client, which would have to keep its old keys for that."""
    router = ROUTERS[1] if cast.owners else chance.choice(ROUTERS)
    return router, (chance.choice((0.01, 1.0, 20.0)), chance.choice((0.0, 5.0)))


def _restored_agent(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    made_by_it, after_s = chance.random() < 0.5, chance.choice((0.01, 1.0, 20.0))
    return chance.choice(cast.agents), (made_by_it, after_s, chance.choice((0.0, 5.0)))


def _attack(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    agent = chance.choice(cast.agents)
    return agent, (chance.choice(cast.peers[agent]), chance.choice(list(Attack)))


def _version(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    who = chance.choice((*ROUTERS, *(agent for agent in cast.agents if agent not in SERVICES)))
    versions = ROUTER_VERSIONS if who in ROUTERS else AGENT_VERSIONS
    return who, (chance.choice(versions), chance.choice((0.0, 5.0)))


def _line(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    one, other = chance.choice(cast.lines)
    return one, (other,)


def _partition(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    one, other = chance.choice(cast.lines)
    return one, (other, chance.choice((1.0, 20.0, 90.0)))


def _weather(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    weather = Weather(
        delay_s=chance.choice((0.0, 0.02, 0.3, 4.0)),
        cuts=chance.choice((0.0, 0.3, 0.8)),
        stalls=chance.choice((0.0, 0.0, 0.3)),
        pieces=chance.random() < 0.2,
    )
    return "network", (weather, chance.choice((5.0, 40.0)))


def _router_store(most: int) -> Draw:
    def draw(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
        return chance.choice(cast.stores), (chance.randint(1, most),)

    return draw


def _doubt(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(cast.stores), (chance.random() < 0.5,)


def _slow(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(cast.stores), (chance.choice((0.001, 0.05, 1.0)), 20.0)


def _full(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    who = (*cast.agents, *cast.bots, *(("ntf",) if cast.ntf else ()))
    lasts_s, after = chance.choice((0.0, 0.0, 5.0, 90.0)), chance.choice((0, 0, 1, 2, 3, 5, 8))
    return chance.choice(who), (chance.randint(1, 3), lasts_s, after)


def _refused(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return "apple", (chance.choice(REFUSALS), chance.choice((1.0, 20.0, 90.0)))


def _doubtful(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return "apple", (chance.choice(list(Fault)), chance.choice((1.0, 20.0, 90.0)))


def _slow_pushes(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return "apple", (chance.choice((0.3, 3.0)), chance.choice((20.0, 90.0)))


def _put(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    sender, recipient = chance.choice((CALLERS, CALLERS[::-1]))
    return sender, (recipient, chance.choice((1, 2, 5)), chance.random() < 0.1)


def _late(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(CALLERS), (chance.choice((5.0, 90.0)),)


def _device(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(cast.devices), ()


def _lazy(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(cast.agents), (chance.choice((5.0, 120.0)),)


def _clock(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(cast.everybody), (chance.choice((-7200.0, -60.0, 60.0, 7200.0)),)


def _front_dies(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    ending = chance.choice((Ending.RESET, Ending.CLOSED))
    return chance.choice(list(cast.fronts)), (
        chance.randrange(2),
        ending,
        chance.choice((0, 1)) * chance.randint(1, 60),
    )


def _front_stalls(chance: random.Random, cast: Cast) -> tuple[str, tuple[object, ...]]:
    return chance.choice(list(cast.fronts)), (chance.randrange(2), chance.choice((0.5, 20.0, 300.0)))


DRAWS: Mapping[str, Draw] = {
    "send": _send,
    "ask": lambda chance, cast: (PERSON, (chance.choice((1, 2, 3)),)),
    "bot crash": _bot_crash,
    "connect": _to_peer,
    "resync": _to_peer,
    "attack": _attack,
    "other version": _version,
    "deaf": _partition,
    "restored backup": _restored,
    "restored agent": _restored_agent,
    "renewed service": _service,
    "write": _write,
    "take over": _owner,
    "re-key": _owner,
    "switch": _to_peer,
    "crash": _crash,
    "restart": _restart,
    "cut": _line,
    "stall": _line,
    "partition": _partition,
    "weather": _weather,
    "refused commits": _router_store(3),
    "doubtful commit": _doubt,
    "slow store": _slow,
    "full disk": _full,
    "lazy program": _lazy,
    "clock jump": _clock,
    "renewed certificate": _renewed,
    "drift": _drift,
}
WEIGHTS: Mapping[str, int] = {
    "send": 12,
    "ask": 20,
    "bot crash": 16,
    "connect": 2,
    "resync": 2,
    "attack": 2,
    "other version": 2,
    "deaf": 2,
    "restored backup": 2,
    "restored agent": 2,
    "renewed service": 2,
    "write": 8,
    "take over": 6,
    "re-key": 8,
    "switch": 3,
    "crash": 8,
    "restart": 2,
    "cut": 2,
    "stall": 2,
    "partition": 2,
    "weather": 2,
    "refused commits": 2,
    "doubtful commit": 2,
    "slow store": 2,
    "full disk": 2,
    "lazy program": 2,
    "clock jump": 2,
    "renewed certificate": 2,
    "drift": 2,
}
REFUSALS = (TOO_MANY_REQUESTS, UNAVAILABLE, UNREGISTERED, Answer(400, "BadCollapseId"))
NTF_DRAWS: Mapping[str, Draw] = {
    "refused pushes": _refused,
    "doubtful pushes": _doubtful,
    "slow pushes": _slow_pushes,
    "new device token": _device,
    "notifier crash": lambda chance, cast: _crash_of(chance, "ntf"),
}
"""What can happen where devices are notified; all are as likely as each other."""
NTF_STEPS = 3
DS_DRAWS: Mapping[str, Draw] = {
    "put": _put,
    "late acknowledgement": _late,
    "delivery crash": lambda chance, cast: _crash_of(chance, chance.choice(("ds", *DELIVERING))),
    "power cut": lambda chance, cast: ("ds", (chance.choice(list(Ending)), chance.choice((0.1, 60.0)))),
}
DS_WEIGHTS = {"put": 4, "late acknowledgement": 1, "delivery crash": 1, "power cut": 1}
DS_STEPS = 3
"""How many kinds of each are drawn for a short run, beside one `put`."""
FRONT_DRAWS: Mapping[str, Draw] = {"front dies": _front_dies, "front stalls": _front_stalls}
"""What can happen where a router has fronts: in a short run all of it does."""
ALL_DRAWS = {**DRAWS, **NTF_DRAWS, **DS_DRAWS, **FRONT_DRAWS}
KINDS = frozenset(ALL_DRAWS)
LONG_WEIGHTS: Mapping[str, int] = {**WEIGHTS, "send": 40, "ask": 0, "bot crash": 0}
"""In a long run little happens at once: messages are to be under way when something does."""
HARD_WEIGHTS: Mapping[str, int] = {
    **WEIGHTS,
    "resync": 6,
    "switch": 7,
    "restored backup": 5,
    "restored agent": 6,
    "full disk": 4,
    "lazy program": 3,
    "deaf": 3,
}
"""In a hard run what was agreed on is lost and agreed on again, while queues move."""
OF_AGENTS = frozenset(
    {
        "send",
        "switch",
        "connect",
        "resync",
        "attack",
        "lazy program",
        "drift",
        "renewed service",
        "restored agent",
    }
)
OF_SQLITE = frozenset({"full disk"})
"""What happens to agents, and to whoever is made of one."""
OF_OWNERS = frozenset({"write", "take over", "re-key"})
OF_BOTS = frozenset({"ask", "bot crash"})
NOT_OF_BOTS = frozenset({"restored backup"})
"""What bots are told of a router that forgot is not in the model."""
SHORT_STEPS, HARD_STEPS = 8, 12
PAUSES_S = (0.0, 0.0, 0.001, 0.02, 0.3, 2.0, 15.0)
BOTS_BEGIN_S = (0.0, 1.0, 1.0)
"""While the person joins the bot's address, or when it has."""
LONG_PAUSES_S = (*PAUSES_S, 60.0, 600.0)


def possible(cast: Cast, weights: Mapping[str, int]) -> tuple[list[str], list[int]]:
    """What can happen to this cast, and how often."""
    missing = (frozenset() if cast.agents else OF_AGENTS) | (frozenset() if cast.owners else OF_OWNERS)
    missing |= NOT_OF_BOTS if cast.bots else OF_BOTS
    missing |= frozenset() if cast.agents or cast.bots else OF_SQLITE
    kinds = [kind for kind in weights if kind not in missing]
    return kinds, [weights[kind] for kind in kinds]


def draw(seed: int | str, steps: int = SHORT_STEPS, weights: Mapping[str, int] = WEIGHTS) -> Schedule:
    """A short run: so many things that happen to two routers and two agents, a plain client, or a bot."""
    chance = random.Random(f"{seed}/schedule")
    casting = random.Random(f"{seed}/cast")
    notified, delivered = casting.random() < NOTIFIED_SHARE, casting.random() < DELIVERED_SHARE
    agents, owners, bots = chance.choice(CASTS[:2]) if notified else chance.choices(CASTS, CAST_SHARES)[0]
    cast = Cast(agents, owners, bots=bots, ntf=notified, ds=delivered, fronts=_fronts_of(seed, owners))
    names, shares = possible(cast, weights)
    at_s, drawn = chance.choice(BOTS_BEGIN_S) if cast.bots else 0.0, []
    kinds = chance.choices(names, shares, k=steps)
    if notified:
        kinds += chance.sample(list(NTF_DRAWS), NTF_STEPS)
    if delivered:
        kinds += ["put", *chance.sample(list(DS_DRAWS), DS_STEPS)]
    kinds += FRONT_DRAWS if cast.fronts else ()
    if notified or delivered or cast.fronts:
        chance.shuffle(kinds)
    for kind in kinds:
        who, detail = ALL_DRAWS[kind](chance, cast)
        drawn.append(Step(at_s, kind, who, detail))
        at_s += chance.choice(PAUSES_S) * chance.uniform(0.5, 1.5)
    return Schedule(cast, drawn, _conditions_of(seed, cast))


def _conditions_of(seed: int | str, cast: Cast) -> Conditions:
    chance = random.Random(f"{seed}/conditions")
    quota, narrow = chance.choice(QUOTAS), chance.random() < NARROW_SHARE
    return Conditions(quota, narrow, bool(cast.agents) and not cast.ntf and chance.random() < CROWDED_SHARE)


def draw_hard(seed: int | str) -> Schedule:
    """As a short run, with more in it, and more of what is rare."""
    return draw(seed, HARD_STEPS, HARD_WEIGHTS)


def _fronts_of(seed: int | str, owners: Sequence[str]) -> dict[str, int]:
    """One router with fronts: the home of the plain client, if there is one."""
    chance = random.Random(f"{seed}/fronts")
    fronted = chance.random() < FRONTED_SHARE
    return {chance.choice(ROUTERS[:1] if owners else ROUTERS): chance.choice(FRONTS)} if fronted else {}


def draw_long(seed: int | str, hours: float, weights: Mapping[str, int] = LONG_WEIGHTS) -> Schedule:
    """A long run with everybody in it."""
    chance = random.Random(f"{seed}/long")
    shared = {**weights, **dict.fromkeys((*NTF_DRAWS, *FRONT_DRAWS), 1), **DS_WEIGHTS}
    names, shares = list(shared), list(shared.values())
    at_s, drawn = 0.0, []
    while at_s < hours * 3600:
        kind = chance.choices(names, shares)[0]
        who, detail = ALL_DRAWS[kind](chance, EVERYBODY)
        drawn.append(Step(at_s, kind, who, detail))
        at_s += chance.choice(LONG_PAUSES_S) * chance.uniform(0.5, 1.5)
    return Schedule(EVERYBODY, drawn, _conditions_of(seed, EVERYBODY))
