"""One run: parties over what a genesis left them, a schedule, then calm, and the judgement."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.model import Domain
from blindpost.testing.apns import ACCEPTED, Reaction
from simulation.agents import AgentParty
from simulation.bots import PERSON, PersonParty
from simulation.callers import WAIT_S, Box, CallerParty, untaken
from simulation.delivery import NAME as DS
from simulation.delivery import DeliveryParty
from simulation.faults import PLANNED, Point, Step, clock
from simulation.fronts import FrontedParty
from simulation.hostile import Attack
from simulation.model import Channel, Model, ViolationError, told
from simulation.network import FAIR, Ending, SimulatedNetwork, Weather
from simulation.notifications import NAME as NTF
from simulation.notifications import NtfParty
from simulation.owners import OwnerParty
from simulation.party import Party
from simulation.processes import PROCESS, Process, SimulationLoop
from simulation.pushes import PushParty
from simulation.routers import RouterParty
from simulation.schedules import CALLERS, PEERS
from simulation.stand_ins import is_quick

T = TypeVar("T")

CONVERGES_S, CONVERGES_LATE_S = 200.0, 12 * 3600.0
"""All must be well so long after the last fault. The second is for runs in which new ratchets are agreed on,
where keys that nobody answers are replaced after seven hours, or in which a clock was wrong."""
LATE = frozenset({"resync", "restored agent", "restored backup", "clock jump"})
NOTICED_S = 4000.0
"""By then everybody has noticed which connections are silent for good."""
NOTICED_SHARE = 0.3
"""In how many runs that is waited for; in the others such connections are cut."""
ANNOUNCED_S, ANNOUNCED_LOOKS = 15.0, 12
"""By then a message is announced; over several connections from the worst weather so many looks later."""
PROBED_SHARE = 1 / 4
"""In how many runs everybody says something when all is well."""
GIVEN_S, PROMPT_S = 0.1, 50.0
"""By then a caller of the delivery service has in hand what was put, and by then all is done."""
LEFT_BEHIND = "taking a new identity"
"""What a service logs then."""
OFFERS = ("SEND", "PRXY", "PFWD", "RFWD")
"""What they are offered by, again and again."""
LOOK_S = 5.0
TAKEN_LOOKS = 12
QUIET_S, LONG_QUIET_S = 300.0, 900.0
"""Then nobody may have anything to say for so long; the long one is for runs without stand-ins."""
TASKS_MAX = 60
"""How many tasks a process may have when nothing happens."""


@dataclass
class Report:
    """What a run leaves."""

    seed: int | str
    trace: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    delivered: int = 0

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class FailedRunError(AssertionError):
    """A run that broke a promise, with all that happened until then."""

    def __init__(self, what: str, report: Report) -> None:
        super().__init__(f"seed {report.seed!r}: {what}")
        self.what = what
        self.report = report


class Run:
    """The parties of one seed, and whoever does things to them."""

    def __init__(self, folder: Path, seed: int | str) -> None:
        self.folder = folder
        self.seed = seed
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        self.loop = loop
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.network = SimulatedNetwork(seed, self.loop, self.note)
        self.model = Model()
        self.boxes: dict[tuple[str, str], Box] = {}
        """What callers of the delivery service put, by sender and recipient."""
        self.parties: dict[str, Party] = {}
        self.absent: list[tuple[str, bytes]] = []
        """Queues of agents that are not in this run."""
        self.meetings: list[tuple[AgentParty, str]] = []
        """Connections that are made in the run, by whom and under which id."""
        self._violation: str | None = None
        self._calm = False
        self._offering = False
        """Whether a restored agent offers ratchet keys to a peer that is not in this run."""
        self._forgotten = 0
        """How often a router began with an older state."""
        self._chance = random.Random(f"{seed}/run")
        self._waits: set[asyncio.Task[None]] = set()
        self.loop.set_exception_handler(self._callback_failed)

    # Books

    def note(self, what: str) -> None:
        self.trace.append(f"{clock(self.loop.time())} {what}")

    def violated(self, what: str) -> None:
        """A promise is broken; the first one counts."""
        self.note(f"VIOLATION: {what}")
        self._violation = self._violation or what

    def check(self) -> None:
        if self._violation is not None:
            raise ViolationError(self._violation)

    def logged(self, record: logging.LogRecord) -> None:
        """An exception in a log is a bug that was contained, unless a planned failure caused it."""
        error = record.exc_info[1] if record.exc_info else None
        process = PROCESS.get()
        if error is not None and (process is None or process.alive) and PLANNED not in str(error):
            self.violated(f"an error is in the log: {record.getMessage()}: {error!r}")
        if LEFT_BEHIND in record.getMessage():
            assert process is not None
            self._left_behind(self.parties[process.name])

    def _left_behind(self, service: Party) -> None:
        """A service takes a new identity only where a router has a queue for it that it does not know."""
        known = {rcv_id for _, rcv_id in service.receives_from()}
        for router in self.routers:
            if not router.alive:
                return  # what it has cannot be seen now
            for rcv_id, record in router.queues().items():
                if record.service_id is not None and rcv_id not in known:
                    return
        self.violated(f"{service.name} takes a new identity, although it knows all that routers have for it")

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, process = context.get("exception"), PROCESS.get()
        if "never retrieved" in context["message"] or (process is not None and not process.alive):
            return
        self.violated(f"a callback failed: {context['message']}: {error!r}")

    @property
    def agents(self) -> list[AgentParty]:
        return [party for party in self.parties.values() if isinstance(party, AgentParty)]

    @property
    def routers(self) -> list[RouterParty]:
        return [party for party in self.parties.values() if isinstance(party, RouterParty)]

    @property
    def ntf(self) -> NtfParty | None:
        party = self.parties.get(NTF)
        return party if isinstance(party, NtfParty) else None

    @property
    def ds(self) -> DeliveryParty | None:
        party = self.parties.get(DS)
        return party if isinstance(party, DeliveryParty) else None

    # The schedule

    async def play(self, steps: Sequence[Step]) -> None:
        """Everything that is to happen, at its time."""
        for step in steps:
            await asyncio.sleep(max(0.0, step.at_s - self.loop.time()))
            self.note(f"* {step}")
            self.happen(step)
            self.check()
        await asyncio.sleep(1.0)

    def happen(self, step: Step) -> None:
        """One step; those that can do nothing now do nothing."""
        party = self.parties.get(step.who)
        if party is not None and not party.alive and step.kind not in ("partition", "clock jump"):
            return
        action: Callable[..., None] = getattr(self, "do_" + step.kind.replace(" ", "_").replace("-", "_"))
        self.counts[step.kind] += 1
        action(party if party is not None else step.who, *step.detail)

    def do_send(self, agent: AgentParty, peer: str, count: int) -> None:
        self._ask(agent, agent.send(peer, count))

    def do_ask(self, person: PersonParty, count: int) -> None:
        self._ask(person, person.ask(count))

    def do_write(self, owner: OwnerParty, count: int) -> None:
        self._ask(owner, owner.write(count))

    def do_take_over(self, owner: OwnerParty) -> None:
        owner.take_over()

    def do_re_key(self, owner: OwnerParty) -> None:
        self._ask(owner, owner.re_key())

    def do_switch(self, agent: AgentParty, peer: str) -> None:
        self._ask(agent, agent.switch(peer))

    def do_connect(self, agent: AgentParty, peer: str) -> None:
        other = self.parties[peer]
        assert isinstance(other, AgentParty)
        self._later(self._connect(agent, other))

    async def _connect(self, one: AgentParty, other: AgentParty) -> None:
        """One invites, its link is handed to the other, who joins; both must be told that they are connected,
        unless one of them died before its program knew that it had begun."""
        before = self._forgotten
        link = await self._answer(one, one.invite())
        if link is None:
            return
        self.note(f"{one.name} hands a link to {other.name}")
        conn = await self._answer(other, other.join(str(link)))
        if conn is not None and self._forgotten == before:
            self.meetings += [(one, link.conn.id), (other, conn.id)]
            self.counts["connection made in the run"] += 1

    async def _answer(self, agent: AgentParty, work: Coroutine[Any, Any, T | None]) -> T | None:
        """What a program gets from its agent; None if it dies meanwhile or is not there."""
        process = agent.process
        if process is None or not agent.ready:
            work.close()
            return None
        asked = process.spawn(work)
        asked.add_done_callback(lambda task: self._asked(process, task))
        either: list[asyncio.Future[Any]] = [asked, process.buried]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if asked.done() and not asked.cancelled() else None

    def do_resync(self, agent: AgentParty, peer: str) -> None:
        self._ask(agent, agent.synchronise(peer))

    def do_renewed_service(self, agent: AgentParty) -> None:
        assert agent.process is not None
        agent.process.inside(agent.renew)

    def do_attack(self, agent: AgentParty, peer: str, attack: Attack) -> None:
        victim = self.parties[peer]
        assert isinstance(victim, AgentParty)
        victim.attacked = True
        before = {snd_id: body for router in self.routers for snd_id, body in router.sent.items()}
        self._ask(agent, agent.attack(peer, attack, before))

    def do_other_version(self, party: RouterParty | AgentParty, version: int, down_s: float) -> None:
        party.version = version
        self._later(self._restarted(party, down_s))

    def do_deaf(self, one: Party, other: str, lasts_s: float) -> None:
        """What `other` sends on the connections of now arrives later; the other way it arrives at once."""
        for end in self.network.between(one.name, other)[1::2]:
            end.hold()
            self.loop.outside.call_at(self.loop.time() + lasts_s, self.network.hears_again, end)

    def _ask(self, party: Party, work: Coroutine[Any, Any, None]) -> None:
        assert party.process is not None
        if not party.ready:
            work.close()
            return
        process = party.process
        process.spawn(work).add_done_callback(lambda task: self._asked(process, task))

    def _asked(self, process: Process, task: asyncio.Task[Any]) -> None:
        if process.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.violated(f"a program failed: {error!r}")

    def do_crash(self, party: Party, point: Point, ending: Ending, steps: int, down_s: float) -> None:
        assert party.process is not None
        party.process.on_death = lambda: self._crashed(party, point, ending, down_s)
        party.die(point, ending, steps)

    do_notifier_crash = do_delivery_crash = do_crash

    def do_bot_crash(self, party: Party, *detail: Any) -> None:
        *crash, questions = detail
        self.do_crash(party, *crash)
        person = self.parties[PERSON]
        if questions and person.alive:
            self.do_ask(cast(PersonParty, person), questions)

    def do_front_dies(self, router: FrontedParty, place: int, ending: Ending, steps: int) -> None:
        router.front_dies(place, ending, steps)

    def do_front_stalls(self, router: FrontedParty, place: int, lasts_s: float) -> None:
        router.front_stalls(place, lasts_s)

    def _crashed(self, party: Party, point: Point, ending: Ending, down_s: float) -> None:
        self.counts[f"{party.kind} dies {point.value}"] += 1
        self.counts[f"death: {ending.value}"] += 1
        self.loop.outside.call_at(self.loop.time() + (0.0 if self._calm else down_s), self._begin, party)

    def _begin(self, party: Party) -> None:
        if not party.alive:
            party.start()

    def do_restart(self, party: Party, down_s: float) -> None:
        self._later(self._restarted(party, down_s))

    def do_renewed_certificate(self, router: RouterParty, down_s: float) -> None:
        router.leaf += 1
        self._later(self._restarted(router, down_s))

    async def _restarted(self, party: Party, down_s: float) -> None:
        process = party.process
        assert process is not None
        if process.on_death is not None:
            return  # it is about to die
        await party.stop()
        await asyncio.sleep(down_s)
        self._begin(party)

    def do_drift(self, router: RouterParty, count: int, down_s: float) -> None:
        router.drifts = count
        self._later(self._restarted(router, down_s))

    def do_restored_backup(self, router: RouterParty, after_s: float, down_s: float) -> None:
        if router.ready:
            router.back_up()
            self._later(self._restore(router, after_s, down_s))

    async def _restore(self, party: RouterParty | AgentParty, after_s: float, down_s: float) -> None:
        await asyncio.sleep(after_s)
        if party.alive:
            party.restores = True
            await self._restarted(party, down_s)

    def do_restored_agent(self, agent: AgentParty, made_by_it: bool, after_s: float, down_s: float) -> None:
        if not agent.ready:
            return
        self._offering |= len(PEERS[agent.name]) > len(agent.peers)
        if made_by_it:
            assert agent.process is not None
            agent.process.inside(agent.back_up)
            self._later(self._restore(agent, after_s, down_s))
        else:
            self._later(self._restore_copy(agent, after_s, down_s))

    async def _restore_copy(self, agent: AgentParty, after_s: float, down_s: float) -> None:
        agent.copies = True
        await self._restarted(agent, 0.0)
        await self._restore(agent, after_s, down_s)

    def forgotten(self, router: str) -> None:
        """A router begins with an older state: whatever was under way through it may be lost."""
        self.note(f"{router} has forgotten what came after its backup")
        self.model.tear()
        self.meetings = [(agent, conn_id) for agent, conn_id in self.meetings if conn_id in agent.connected]
        self._forgotten += 1

    def do_cut(self, one: Party, other: str) -> None:
        for end in self.network.between(one.name, other)[::2]:
            end.cut()

    def do_stall(self, one: Party, other: str) -> None:
        for end in self.network.between(one.name, other)[::2]:
            end.stall()

    def do_partition(self, one: Party, other: str, lasts_s: float) -> None:
        self.network.part(one.name, other)
        self.loop.outside.call_at(self.loop.time() + lasts_s, self.network.heal, one.name, other)

    def do_weather(self, network: str, weather: Weather, lasts_s: float) -> None:
        self.network.weather = weather
        self.loop.outside.call_at(self.loop.time() + lasts_s, self._clears, weather)

    def _clears(self, weather: Weather) -> None:
        if self.network.weather is weather:
            self.network.weather = FAIR

    def do_refused_commits(self, server: RouterParty | DeliveryParty, count: int) -> None:
        server.store.failures = count

    def do_doubtful_commit(self, server: RouterParty | DeliveryParty, happened: bool) -> None:
        server.store.doubts.append(happened)

    def do_slow_store(self, server: RouterParty | DeliveryParty, commit_s: float, lasts_s: float) -> None:
        store = server.store
        store.commit_s = commit_s
        self.loop.outside.call_at(self.loop.time() + lasts_s, setattr, store, "commit_s", 0.0)

    def do_full_disk(self, party: Party, count: int, lasts_s: float = 0.0, after: int = 0) -> None:
        party.fill_disk(count, lasts_s, after)

    def do_refused_pushes(self, pushes: PushParty, answer: Reaction, lasts_s: float) -> None:
        pushes.answer(answer)
        self.loop.outside.call_at(self.loop.time() + lasts_s, pushes.answer, ACCEPTED)

    do_doubtful_pushes = do_refused_pushes

    def do_slow_pushes(self, pushes: PushParty, late_s: float, lasts_s: float) -> None:
        pushes.apple.late_s = late_s
        self.loop.outside.call_at(self.loop.time() + lasts_s, setattr, pushes.apple, "late_s", 0.0)

    def do_put(self, caller: CallerParty, recipient: str, count: int, large: bool) -> None:
        self._ask(caller, caller.put(recipient, count, large))

    def do_power_cut(self, service: DeliveryParty, ending: Ending, down_s: float) -> None:
        """The service and its callers are in one house."""
        for party in (service, *(self.parties[name] for name in CALLERS)):
            if party.alive:
                self.do_crash(party, Point.NOW, ending, 0, down_s)

    def do_late_acknowledgement(self, caller: CallerParty, late_s: float) -> None:
        caller.late_s = late_s

    def do_new_device_token(self, agent: AgentParty) -> None:
        assert agent.device is not None
        agent.device.renew()

    def do_lazy_program(self, agent: AgentParty, lasts_s: float) -> None:
        agent.lazy_until_s = self.loop.time() + lasts_s

    def do_clock_jump(self, party: Party, by_s: float) -> None:
        party.clock_off_s += by_s

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    # The end

    async def mend(self) -> None:
        """No more faults: everybody lives, everything passes."""
        self.note("calm")
        self._calm = True
        if self._waits:
            await asyncio.wait(self._waits)
        self.network.weather = FAIR
        self.network.heal_all()
        for party in self.parties.values():
            party.clock_off_s = 0.0
            if party.alive:
                party.mended()
        await asyncio.sleep(61.0)
        for party in self.parties.values():
            if party.process is not None:
                party.spare()
        await asyncio.sleep(LOOK_S)  # whoever died in this very moment is started again
        for party in self.parties.values():
            if not party.alive:
                raise ViolationError(f"{party.name} was not started again")
            party.mended()
        for agent in self.agents:
            if agent.device is not None:
                agent.device.opened()
        doomed = [end for end in self.network.open_ends() if end.doomed]
        if doomed and self._chance.random() < NOTICED_SHARE:
            silent = [end for end in doomed if end.silent]
            await asyncio.sleep(NOTICED_S)
            self.counts["connection found to be dead by silence"] += len(silent)
            doomed = [end for end in self.network.open_ends() if end.doomed and end not in silent]
        for end in doomed:
            end.cut()
        await asyncio.sleep(LOOK_S)

    async def converge(self) -> None:
        """Wait until nothing is under way; it may take long, but not for ever."""
        patience_s = CONVERGES_S if self.counts.keys().isdisjoint(LATE) else CONVERGES_LATE_S
        end_s = self.loop.time() + patience_s
        while (why := self.unsettled()) is not None:
            self.check()
            if self.loop.time() > end_s:
                raise ViolationError(f"after {patience_s:.0f} seconds of calm: {why}")
            await asyncio.sleep(LOOK_S)
        self.check()
        self.note(f"all is well; {self.model.delivered()} messages arrived")

    def unsettled(self) -> str | None:
        """Why it is not over yet."""
        if missing := self.model.missing():
            return f"messages are missing: {told(missing)}"
        if waiting := self.model.open():
            return f"messages are not acknowledged: {told(waiting)}"
        for party in self.parties.values():
            if (why := party.unsettled()) is not None:
                return f"{party.name}: {why}"
        for agent, conn_id in self.meetings:
            if conn_id not in agent.connected:
                return f"{agent.name} is not connected by a link"
        for router in self.routers:
            counts = router.store.counts()
            if counts["messages"] and (kept := router.kept(self.absent)):
                return f"{router.name} keeps {kept} messages"
            if kept := counts["notifications"]:
                return f"{router.name} keeps {kept} notifications"
        if (why := untaken(self.boxes)) is not None:
            return why
        return None

    async def probe(self) -> None:
        """Now that all is well each message is announced by a push, and restored agents talk as before."""
        for end in self.network.open_ends():
            if end.doomed:
                end.cut()  # where nothing is subscribed nobody has noticed
        await asyncio.sleep(LOOK_S)
        for agent in self.agents:
            if agent.was_restored:
                await self._probe_restored(agent)
        for agent in self.agents:
            if agent.device is None:
                continue
            for peer, conn_id in agent.peers.items():
                agent.device.news.clear()
                sender = self.parties[peer]
                assert isinstance(sender, AgentParty)
                self._ask(sender, sender.send(agent.name, 1))
                await asyncio.sleep(ANNOUNCED_S)
                await self.converge()
                for _ in range(ANNOUNCED_LOOKS):
                    if conn_id in agent.device.news:
                        break
                    await asyncio.sleep(LOOK_S)
                else:
                    raise ViolationError(f"no push told {agent.name} of a message from {peer}")
        if self._chance.random() < PROBED_SHARE:
            await self._probe_all()

    async def _probe_all(self) -> None:
        """What anybody says now comes at once, also to a caller who dies with it in hand: nothing waits for
        another attempt."""
        for party in self.parties.values():
            if isinstance(party, AgentParty):
                for peer in party.peers:
                    self._ask(party, party.send(peer, 1))
            elif isinstance(party, OwnerParty):
                self._ask(party, party.write(1))
            elif isinstance(party, PersonParty):
                self._ask(party, party.ask(1))
            elif isinstance(party, CallerParty):
                (other,) = set(CALLERS) - {party.name}
                self._ask(party, party.put(other, 1, large=False))
        await asyncio.sleep(GIVEN_S)
        if self.ds is not None:
            self.do_crash(self.parties[CALLERS[0]], Point.NOW, Ending.RESET, 0, 0.0)
        await asyncio.sleep(PROMPT_S)
        self.check()
        if (why := self.unsettled()) is not None:
            raise ViolationError(f"{PROMPT_S:.0f} seconds after something was said: {why}")

    async def _probe_restored(self, agent: AgentParty) -> None:
        """After one message in each direction nothing is left of what was lost."""
        for _ in range(2):
            for one, other in [
                way for peer in agent.peers for way in ((agent.name, peer), (peer, agent.name))
            ]:
                sender, channel = self.parties[one], self.model.channel(one, other)
                assert isinstance(sender, AgentParty)
                taken = len(channel.taken)
                self._ask(sender, sender.send(other, 1))
                await self._taken(channel, taken, f"{one} may not send to {other} although all is well")
            await self.converge()
            for peer in agent.peers:
                self.model.mended(agent.name, peer)

    async def _taken(self, channel: Channel, before: int, else_: str) -> None:
        """An agent takes the next message when its acknowledgement of the last one was answered."""
        for _ in range(TAKEN_LOOKS):
            await asyncio.sleep(LOOK_S)
            if len(channel.taken) > before:
                return
        raise ViolationError(else_)

    async def judge(self) -> None:
        """What must be true when all is well, and that it stays so quietly."""
        self._judge_routers()
        await self._judge_services()
        servers: list[RouterParty | NtfParty | DeliveryParty] = [
            *self.routers,
            *([] if self.ntf is None else [self.ntf]),
            *([] if self.ds is None else [self.ds]),
        ]
        forgiven: tuple[str, ...] = OFFERS if self._offering else ()
        if any(agent.offers_keys for agent in self.agents):
            forgiven = (*OFFERS, "ACK")
        before = {server.name: server.asked.copy() for server in servers}
        quiet_s = QUIET_S if is_quick(self.seed) else LONG_QUIET_S
        await asyncio.sleep(quiet_s)
        self.check()
        for server in servers:
            asked = server.asked - before[server.name]
            if server is self.ds and asked["Lease"] <= 2 * (quiet_s / WAIT_S + 2):
                del asked["Lease"]  # callers wait for payloads all the time
            for kind in forgiven:
                del asked[kind]
            if asked:
                what = told(f"{count} {kind}" for kind, count in asked.items())
                raise ViolationError(f"{server.name} was asked although all was well: {what}")
        self._judge_routers()
        for party in self.parties.values():
            assert party.process is not None
            if len(party.process.tasks) > TASKS_MAX:
                raise ViolationError(f"{party.name} has {len(party.process.tasks)} tasks with nothing to do")
            if not forgiven and (wrong := await party.wrong()) is not None:
                raise ViolationError(f"{party.name}: {wrong}")

    def _judge_routers(self) -> None:
        """Each queue is of one agent, subscribed once, and empty."""
        wanted = {router.name: set[bytes]() for router in self.routers}
        for host, rcv_id in self.absent:
            wanted[host].add(rcv_id)
        for party in self.parties.values():
            for host, rcv_id in party.receives_from():
                wanted[host].add(rcv_id)
                holder = self._router(host).router.plan.state.queues.holder(rcv_id)
                if not party.service and holder is None:
                    raise ViolationError(f"nobody is subscribed to a queue of {party.name} at {host}")
        for router in self.routers:
            kept = router.queues()
            if gone := wanted[router.name] - kept.keys():
                raise ViolationError(
                    f"{router.name} does not have {len(gone)} queues that agents receive from"
                )
            left = [record for rcv_id, record in kept.items() if rcv_id not in wanted[router.name]]
            self.counts["queue whose NEW was never answered"] += len(left)
            if any(record.sender_key is not None for record in left):
                raise ViolationError(f"{router.name} keeps queues in use that no agent knows")

    async def _judge_services(self) -> None:
        """What a service and its routers count is the same, and true; but for queues whose NEW was never
        answered, which the service finds when it connects the next time."""
        for agent in self.agents:
            for host, service_id, queues in agent.services():
                counted = await self._router(host).members(service_id)
                if counted != queues + self._unanswered(host, service_id):
                    raise ViolationError(f"{host} counts {counted} for {agent.name}, which has {queues}")
        if self.ntf is not None:
            for host, service_id, queues in await self.ntf.services():
                counted = await self._router(host).members(service_id, Domain.NOTIFICATIONS)
                if counted != queues:
                    raise ViolationError(f"{host} counts {counted} for {NTF}, which has {queues}")

    def _unanswered(self, host: str, service_id: bytes) -> QueueSet:
        """Queues of a service whose NEW was never answered: its router counts them, and nobody knows them."""
        known = {rcv_id for agent in self.agents for place, rcv_id in agent.receives_from() if place == host}
        known |= {rcv_id for place, rcv_id in self.absent if place == host}
        kept = self._router(host).queues().items()
        found = (each for each, record in kept if record.service_id == service_id and each not in known)
        return QueueSet.of(found)

    def _router(self, name: str) -> RouterParty:
        party = self.parties[name]
        assert isinstance(party, RouterParty)
        return party

    def report(self) -> Report:
        counts = self.counts + self.network.counts
        for party in self.parties.values():
            counts += party.counts
        return Report(self.seed, self.trace, counts, self.loop.time(), self.model.delivered())
