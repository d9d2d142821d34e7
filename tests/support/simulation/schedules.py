"""Schedules of a simulated router: drawn from a seed, or given step by step."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from blindpost.testing.clock import run_virtual
from blindpost.wire.smp.commands import ACK, SUB
from blindpost.wire.smp.handshake import ServiceRole
from tests.support.simulation.actions import Actions, all_of
from tests.support.simulation.callers import Said
from tests.support.simulation.promises import Violation
from tests.support.simulation.world import Simulation, World

ROUNDS_MAX = 40

Action = Callable[[Actions, random.Random], Awaitable[None] | None]

ACTIONS: Mapping[str, Action] = {
    name: getattr(Actions, name) for name in dir(Actions) if not name.startswith("_")
}

EVERYTHING: Mapping[str, int] = {
    "open_plain": 8,
    "open_service": 6,
    "cut": 4,
    "stall": 4,
    "read_on": 6,
    "new": 10,
    "sub": 12,
    "send": 30,
    "ack": 24,
    "get": 3,
    "off": 1,
    "delete": 1,
    "ping": 1,
    "set_notifier": 2,
    "remove_notifier": 1,
    "nsub": 6,
    "subscribe_service": 8,
    "slow_store": 3,
    "failing_store": 2,
    "crash": 1,
    "age": 1,
    "settle": 4,
}
"""How often each action happens, against the others."""

SERVICES: Mapping[str, int] = {
    "open_plain": 2,
    "open_service": 8,
    "cut": 4,
    "stall": 4,
    "read_on": 6,
    "new": 12,
    "sub": 8,
    "send": 40,
    "ack": 14,
    "get": 1,
    "delete": 2,
    "nsub": 3,
    "subscribe_service": 10,
    "hesitate": 6,
    "flood": 4,
    "slow_store": 3,
    "failing_store": 2,
    "break_queue": 2,
    "crash": 1,
    "settle": 4,
}
"""Mostly services that fight."""

PAUSES_S = (0.0, 0.0, 0.0, 0.001, 0.01, 0.1, 1.5)


async def perform(simulation: Simulation, name: str, pick: random.Random) -> None:
    """One step: an action, and perhaps some time."""
    simulation.step += 1
    simulation.note(f"step {simulation.step}: {name}")
    done = ACTIONS[name](Actions(simulation), pick)
    if done is not None:
        await done
    pause = pick.choice((None, *PAUSES_S))
    if pause is not None:
        await simulation.wait(pause)


async def drain(simulation: Simulation) -> None:
    """Heal everything; then every message that was promised comes, in its order, to whoever asks."""
    store = simulation.store
    store.commit_s = store.load_s = 0.0
    store.failures = store.load_failures = 0
    store.doubts.clear()
    for caller in simulation.callers:
        caller.session.reads = True
    await simulation.settle()
    for caller in list(simulation.callers):
        simulation.cut(caller)
    await simulation.settle()
    simulation.model.broken.clear()
    expected = {
        keyring.label: [message.body for message in simulation.model.queues[keyring.recipient_id].messages]
        for keyring in simulation.keyrings
        if keyring.recipient_id in simulation.model.queues
    }
    simulation.delivered.clear()
    for identity in simulation.identities:
        if identity.role is ServiceRole.MESSAGING:
            caller = simulation.open(identity)
            await simulation.settle()
            simulation.say(caller, all_of(identity))
            await _acknowledge(simulation)
    caller = simulation.open()
    for keyring in simulation.keyrings:
        if keyring.label in expected:
            simulation.say(caller, Said(SUB(), keyring.recipient_id, keyring.key, keyring))
    await _acknowledge(simulation)
    for label, bodies in expected.items():
        found = [body for one, body in simulation.delivered if one == label]
        if found != bodies:
            raise Violation(f"{label} delivered {found}, promised {bodies}")


async def _acknowledge(simulation: Simulation) -> None:
    """Acknowledge until nothing comes any more."""
    for _ in range(ROUNDS_MAX):
        await simulation.settle()
        waiting = [caller for caller in simulation.callers if caller.unacked]
        if not waiting:
            return
        for caller in waiting:
            for recipient_id, msg_id in caller.unacked.items():
                keyring = simulation.by_recipient[recipient_id]
                simulation.say(caller, Said(ACK(msg_id), recipient_id, keyring.key, keyring))
            caller.unacked.clear()
    raise Violation("messages come without end")


async def play(simulation: Simulation, steps: Sequence[tuple[str, random.Random]]) -> None:
    """Do these steps and then drain; what fails is told with the seed and the step."""
    simulation.start()
    try:
        for name, pick in steps:
            await perform(simulation, name, pick)
        simulation.step += 1
        await drain(simulation)
        await simulation.stop()
    except BaseException as error:
        simulation.abandon()
        raise Violation(simulation.report(error)) from error


def world_of(chance: random.Random, *, inspects_memory: bool = True) -> World:
    """A world drawn from a seed."""
    return World(
        quota=chance.choice((2, 4, 8)),
        expire_on_send=chance.random() < 0.3,
        batch_commands=chance.choice((3, 1024)),
        source_commands=chance.choice((2, 512)),
        services=chance.choice((1, 2)),
        inspects_memory=inspects_memory,
    )


def drawn(
    seed: int | str, count: int, weights: Mapping[str, int] = EVERYTHING
) -> list[tuple[str, random.Random]]:
    """So many steps, drawn from a seed."""
    chance = random.Random(f"{seed}/steps")
    names = chance.choices(list(weights), list(weights.values()), k=count)
    return [(name, random.Random(chance.getrandbits(64))) for name in names]


def simulate(
    folder: Path,
    seed: int | str,
    steps: int = 150,
    weights: Mapping[str, int] = EVERYTHING,
    *,
    inspects_memory: bool = True,
) -> Simulation:
    """Run one seed from the start to the end; `Violation` if the router broke a promise."""
    world = world_of(random.Random(f"{seed}/world"), inspects_memory=inspects_memory)
    simulation = Simulation(folder, seed, world)
    run_virtual(play(simulation, drawn(seed, steps, weights)))
    return simulation
