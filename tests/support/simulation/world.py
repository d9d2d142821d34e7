"""A router that runs through hard times: many clients, cuts, crashes, slow disks and slow readers.

The router is the real one, with its engine, its decisions, its signatures and the embedded store. Time is
virtual, sessions are in memory, and everything that happens is drawn from a seed: a seed that fails does
so again, step by step. A model judges every turn as it is released, and the store whenever all is quiet.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blindpost.crypto.boxes import BoxKey
from blindpost.engine.inbox import Budget
from blindpost.engine.loop import Cut, Engine, OutcomeUnknownError, StoreFailedError
from blindpost.router.config import RouterRules
from blindpost.router.events import Commands, Event
from blindpost.router.plan import RouterPlan
from blindpost.router.server import Router
from blindpost.router.tables import LmdbTables, RouterStore
from blindpost.router.turn import Outgoing
from blindpost.store.contract import Durability
from blindpost.testing import LoopClock
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import DEL, NDEL, NKEY, SEND
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import IDS, MSG, NID, OK
from blindpost.wire.smp.transmissions import Received
from tests.support.simulation.callers import Caller, Identity, Keyring, Said, name_of, new_key
from tests.support.simulation.faults import CrashedError, CrashPoint, FaultyStore
from tests.support.simulation.inspection import compare_memory, compare_store
from tests.support.simulation.model import RouterModel
from tests.support.simulation.promises import Violation

START_S = 1_700_000_000
CALM_S = 65.0
"""Longer than anything takes that is under way, or waits to be tried again."""
QUIET_ROUNDS_MAX = 500
SHOWN_MAX = 40


@dataclass(frozen=True, slots=True)
class World:
    """What a simulation is made of."""

    quota: int = 4
    message_ttl_s: int = 600
    expire_on_send: bool = False
    batch_commands: int = 1024
    source_commands: int = 512
    services: int = 2
    notifier_services: int = 1
    inspects_memory: bool = True
    """Compare the router's own tables with the model too, not only what it says and stores."""


class WatchedPlan:
    """The router's plan, and a note of what each turn was about."""

    def __init__(self, plan: RouterPlan, simulation: Simulation) -> None:
        self._plan = plan
        self._simulation = simulation
        self.now = 0
        self.events: list[tuple[Event, bool]] = []
        """What was decided, and whether its connection was congested then."""
        self.outbox: Sequence[Outgoing] = ()
        """What the turn will say once it is committed."""
        self.refused = False
        self.under_way = False

    async def prepare(self, batch: Sequence[Event]) -> Cut[Event] | None:
        self.now = int(self._simulation.now())
        self.events = []
        self.refused, self.under_way, self._simulation.store.durable = False, True, False
        return await self._plan.prepare(batch)

    def decide(self, event: Event) -> None:
        self.events.append((event, isinstance(event, Commands) and event.client.congested))
        self._plan.decide(event)

    def failed(self, event: Event) -> None:
        self._plan.failed(event)
        self._simulation.failures.append(Violation(f"an event of the router failed: {event!r}"))

    async def commit(self) -> None:
        self.outbox = tuple(self._plan.outbox)
        await self._plan.commit()

    def release(self) -> None:
        self.under_way = False
        try:
            self._plan.release()
        finally:
            self._judged(self._simulation.released, self)

    def _judged(self, judge: Callable[..., None], *arguments: object) -> None:
        """The engine goes on after a failure here; the simulation must not."""
        try:
            judge(*arguments)
        except Exception as error:
            self._simulation.failures.append(error)
            raise

    def refuse(self, batch: Sequence[Event], error: StoreFailedError) -> None:
        """Of this turn, or of what came while the outcome of this turn was in doubt."""
        self.refused = not isinstance(error, OutcomeUnknownError)
        self._plan.refuse(batch, error)
        self._judged(self._simulation.refused, batch)


class SimulatedRouter(Router):
    """A router whose turns are watched."""

    def __init__(
        self,
        store: RouterStore,
        rules: RouterRules,
        entropy: Callable[[int], bytes],
        now: Callable[[], float],
        budget: Budget,
        watch: Callable[[RouterPlan], WatchedPlan],
    ) -> None:
        super().__init__(store, rules, entropy=entropy, now=now)
        self.said: list[Outgoing] = []
        self.watched = watch(self.plan)
        self.engine = Engine(self.watched, self.plan.undo, budget)

    def send(self, outbox: Sequence[Outgoing]) -> None:
        self.said += outbox
        super().send(outbox)


class Simulation:
    """One router and its clients; `actions` does things to them, this keeps the books."""

    def __init__(self, folder: Path, seed: int | str, world: World | None = None) -> None:
        self.world = world or World()
        self.seed = seed
        self.step = 0
        self.trace: list[str] = []
        self._folder = folder
        self._chance = random.Random(f"{seed}/bytes")
        self.rules = RouterRules(
            quota=self.world.quota,
            message_ttl_s=self.world.message_ttl_s,
            expire_on_send=self.world.expire_on_send,
            notification_ttl_s=10**9,
        )
        self.model = RouterModel(self.rules)
        self.callers: list[Caller] = []
        self.keyrings: list[Keyring] = []
        self.by_recipient: dict[bytes, Keyring] = {}
        self.identities = [
            Identity(role, self.entropy(32))
            for role, count in (
                (ServiceRole.MESSAGING, self.world.services),
                (ServiceRole.NOTIFIER, self.world.notifier_services),
            )
            for _ in range(count)
        ]
        self.delivered: list[tuple[str, bytes | None]] = []
        """Labels and bodies of all messages that clients received, in order."""
        self.promised: list[bytes] = []
        """Bodies of messages that their senders were told OK about."""
        self.failures: list[BaseException] = []
        self._callers_made = self._keyrings_made = self._bodies_made = self.crashes = 0
        self._blocks_left: int | None = None
        self.now = LoopClock(START_S).now

    def entropy(self, count: int) -> bytes:
        return self._chance.randbytes(count)

    # The router's life

    def start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._callback_failed)
        self.store = FaultyStore(LmdbTables(self._folder, Durability.OS))
        budget = Budget(batch_commands=self.world.batch_commands, source_commands=self.world.source_commands)
        self.router = SimulatedRouter(self.store, self.rules, self.entropy, self.now, budget, self._watched)
        self.watched = self.router.watched
        self._running = asyncio.get_running_loop().create_task(self.router.run())

    def _watched(self, plan: RouterPlan) -> WatchedPlan:
        return WatchedPlan(plan, self)

    async def crash(self, point: CrashPoint | None, blocks: int = 0) -> None:
        """Die at this point of the next turn, or now; then start again with what was committed."""
        if point is CrashPoint.IN_RELEASE:
            self._blocks_left = blocks
        else:
            self.store.crash = point
        if point is not None:
            await asyncio.sleep(CALM_S)
        if not self._running.done():
            self._running.cancel()
        with contextlib.suppress(CrashedError, asyncio.CancelledError):
            await self._running
        self._blocks_left = None
        self.crashes += 1
        if self.watched.under_way and self.store.durable:
            self.model.turn(self.watched.now, self.watched.events, self.watched.outbox)
        self.note(f"crash {point.value if point else 'at any time'}, durable {self.store.durable}")
        for caller in self.callers:
            caller.session.die()
            caller.close()
        self.callers.clear()
        self.model.forget_connections()
        self.store.close()
        self.start()
        self.check_store()

    async def stop(self) -> None:
        self.router.stop()
        await self._running
        self.store.close()

    def abandon(self) -> None:
        """After a failure: leave nothing behind."""
        self._running.cancel()
        self.store.close()

    def _block_sent(self) -> None:
        """Called for each block that leaves; the process may die between two of them."""
        if self._blocks_left is not None:
            if self._blocks_left == 0:
                raise CrashedError
            self._blocks_left -= 1

    def released(self, turn: WatchedPlan) -> None:
        """A turn is over: was all of it right?"""
        said = self._taken()
        if not turn.refused:
            self.model.turn(turn.now, turn.events, said)
        elif said:
            raise Violation(f"said although the store failed: {said[0]!r}")
        if self.world.inspects_memory:
            compare_memory(self.model, self.router)

    def refused(self, batch: Sequence[Event]) -> None:
        """The store refused these events."""
        self.model.refused(batch, self._taken())

    def _taken(self) -> list[Outgoing]:
        said, self.router.said = self.router.said, []
        for outgoing in said:
            self.note(f"{type(outgoing.response).__name__} for {outgoing.client_id}")
        return said

    # Clients

    def open(self, identity: Identity | None = None, delay_s: float = 0.0) -> Caller:
        self._callers_made += 1
        caller = Caller(self._callers_made, self.entropy, self._heard, identity)
        caller.connect(self.router, self._block_sent, delay_s)
        self.callers.append(caller)
        return caller

    def cut(self, caller: Caller, after_s: float = 0.0) -> None:
        caller.session.cut(after_s)
        caller.close()
        self.callers.remove(caller)

    def say(self, caller: Caller, *sayings: Said) -> None:
        self.note(f"{caller.number} says {' '.join(name_of_command(said) for said in sayings)}")
        for corr_id, said in zip(caller.say(*sayings), sayings, strict=True):
            if said.forged:
                self.model.forged.add(corr_id)

    def new_keyring(self) -> Keyring:
        self._keyrings_made += 1
        keys = [new_key(algorithm, self.entropy) for algorithm in (Algorithm.ED25519, Algorithm.X25519)]
        notifier_key = new_key(Algorithm.ED25519, self.entropy)
        return Keyring(keys[0], keys[1], notifier_key, f"queue {self._keyrings_made}")

    def new_body(self) -> bytes:
        self._bodies_made += 1
        return b"message %d" % self._bodies_made

    def _heard(self, caller: Caller, said: Said | None, received: Received) -> None:
        response = received.response
        self.note(f"{caller.number} hears {name_of(response)}")
        if isinstance(response, MSG):
            self._opened(received.entity_id, response)
        if said is None or said.keyring is None:
            return
        keyring = said.keyring
        match response:
            case IDS():
                keyring.recipient_id, keyring.sender_id = response.recipient_id, response.sender_id
                keyring.secret = BoxKey.agreed(keyring.dh_key, response.dh_key)
                keyring.notifier_id = response.ntf_creds.notifier_id if response.ntf_creds else None
                self.keyrings.append(keyring)
                self.by_recipient[keyring.recipient_id] = keyring
            case NID():
                keyring.notifier_id = response.creds.notifier_id
            case OK() if isinstance(said.command, DEL):
                keyring.deleted = True
            case OK() if isinstance(said.command, NDEL | NKEY):
                keyring.notifier_id = None
            case OK() if isinstance(said.command, SEND):
                self.promised.append(bytes(said.command.body))
            case _:
                pass

    def _opened(self, recipient_id: bytes, msg: MSG) -> None:
        keyring = self.by_recipient.get(recipient_id)
        if keyring is not None:
            body = keyring.opened(msg)
            if self.model.bodies.get(msg.msg_id, b"?") != body:
                raise Violation("a message arrived with another body")
            self.delivered.append((keyring.label, body))

    # The judge

    def note(self, what: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():.3f} {what}")

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        self.failures.append(error if isinstance(error, BaseException) else RuntimeError(str(context)))

    def check(self) -> None:
        """Raise what went wrong in the router or in a callback."""
        if self._running.done() and not self._running.cancelled():
            error = self._running.exception()
            if error is not None and not isinstance(error, CrashedError):
                raise error
        if self.failures:
            raise self.failures[0]

    async def wait(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)
        self.check()

    async def settle(self) -> None:
        """Mend what is broken and wait until nothing happens any more; then nothing may be missing."""
        self.store.broken.clear()
        meters = self.router.engine.meters
        for _ in range(QUIET_ROUNDS_MAX):
            turns = meters.turns
            await self.wait(CALM_S)
            if meters.turns == turns and not self.router.engine.waiting:
                break
        else:
            raise Violation("the router never comes to rest")
        congested = [
            client_id
            for client_id, connection in self.router.connections.items()
            if connection.client.congested
        ]
        self.model.quiet(congested)
        if self.world.inspects_memory:
            compare_memory(self.model, self.router)
        self.check_store()

    def check_store(self) -> None:
        """What is stored is what was promised, no more and no less."""
        lost = [body for body in self.promised if body not in self.model.accepted]
        if lost:
            raise Violation(f"{len(lost)} messages were answered OK and are not stored")
        compare_store(self.model, self.store.tables)

    def report(self, error: BaseException) -> str:
        """What a person needs to see it happen again."""
        shown = "\n".join(self.trace[-SHOWN_MAX:])
        return f"seed {self.seed!r}, step {self.step}: {error}\n{shown}"


def name_of_command(said: Said) -> str:
    return type(said.command).__name__ + (" (forged)" if said.forged else "")
