"""The whole network through hard times, drawn from seeds; and the simulation itself.

`make simulate SEED=7` runs one seed again, `make simulate HOURS=24` a long one; `docs/simulation.md` says
how to read what comes out.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from blindpost.testing.apns import UNREGISTERED, Fault
from simulation.bots import Talk
from simulation.faults import Point, Step
from simulation.genesis import Genesis, make_genesis
from simulation.hostile import Attack
from simulation.many import PART, Manner, Sums, journey, progress
from simulation.model import Model, ViolationError
from simulation.network import Ending, Weather
from simulation.processes import Process, SimulationLoop, run_simulated
from simulation.queue_model import Line, QueueModel
from simulation.run import FailedRunError, Run
from simulation.schedules import BOTS, KINDS, Cast, Conditions, Schedule, draw, draw_hard, draw_long
from simulation.simulate import FAST, fast_folder, simulate
from tests.support.serving.commands import ENVIRONMENT
from tests.support.serving.processes import ROOT

pytestmark = [
    # A process that dies between making a coroutine and awaiting it leaves the coroutine as it is.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SEEDS = int(os.environ.get("BLINDPOST_NETWORK_SEEDS", "300"))
FIRST_SEED = int(os.environ.get("BLINDPOST_FIRST_SEED", "0"))
PARTS = 3


@pytest.fixture(scope="module")
def genesis() -> Iterator[Genesis]:
    folder = fast_folder()
    yield make_genesis(folder)
    shutil.rmtree(folder)
    gc.collect()  # here, not in a test that does not expect what dead processes left


@pytest.mark.timeout(120 + 2 * SEEDS)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(genesis: Genesis, part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED + part, FIRST_SEED + SEEDS, PARTS):
        counts += simulate(genesis, seed).counts
    assert counts.keys() >= KINDS, "a fault that never happens shows nothing"


WORST = Weather(delay_s=0.02, cuts=0.8)
FOUND = {
    "a copy that was made while ratchets were agreed": Schedule(
        Cast(("bob", "carol")),
        [
            Step(0.0, "weather", "network", (WORST, 40.0)),
            Step(0.026, "restored agent", "carol", (True, 0.01, 0.0)),
            Step(1.527, "restored agent", "carol", (False, 20.0, 5.0)),
        ],
    ),
    "a full disk while a copy offers its keys": Schedule(
        Cast(("bob", "carol")),
        [
            Step(0.0, "switch", "bob", ("carol",)),
            Step(0.321, "full disk", "carol", (3,)),
            Step(0.335, "restored agent", "carol", (True, 1.0, 0.0)),
            Step(14.528, "renewed certificate", "router2", (0.0,)),
        ],
    ),
    "a full disk when a bot is asked for a contact": Schedule(
        Cast((), bots=BOTS),
        [Step(0.0, "full disk", "ada", (1, 5.0, 1)), Step(0.5, "ask", "paul", (2,))],
    ),
    "a full disk when a person hears of its new contact": Schedule(
        Cast((), bots=BOTS),
        [Step(0.0, "full disk", "paul", (1, 5.0, 8)), Step(0.5, "ask", "paul", (2,))],
    ),
    "a device token whose replacement was not answered": Schedule(
        Cast(("bob", "carol"), ntf=True),
        [
            Step(1.868, "notifier crash", "ntf", (Point.AFTER_COMMIT, Ending.RESET, 1, 3.0)),
            Step(1.889, "new device token", "carol"),
            Step(4.135, "connect", "carol", ("bob",)),
        ],
    ),
    "payloads that are put when a partition ends": Schedule(
        Cast((), ("dave",), ds=True),
        [
            Step(0.0, "partition", "dirk", ("ds", 90.0)),
            Step(0.016, "put", "dirk", ("dora", 1, False)),
            Step(11.788, "put", "dirk", ("dora", 2, False)),
        ],
    ),
    "notifications that a restored router tells again": Schedule(
        Cast(("alice", "bob"), ntf=True),
        [
            Step(0.0, "notifier crash", "ntf", (Point.LATER, Ending.SILENCE, 11, 3.0)),
            Step(0.641, "send", "bob", ("alice", 2)),
            Step(0.974, "restored backup", "router2", (20.0, 0.0)),
        ],
    ),
    "new ratchets before a new queue was heard of": Schedule(
        Cast(("alice", "bob"), ntf=True),
        [
            Step(0.0, "refused commits", "router2", (2,)),
            Step(0.025, "switch", "alice", ("bob",)),
            Step(2.594, "resync", "alice", ("bob",)),
            Step(2.606, "stall", "alice", ("router2",)),
        ],
    ),
    "a receipt that comes before the router's answer, and an old queue that is gone": Schedule(
        Cast(("bob", "carol"), ntf=True, fronts={"router1": 1}),
        [Step(7.719, "switch", "carol", ("bob",)), Step(7.72, "send", "bob", ("carol", 3))],
    ),
    "an attack by an agent that is closing": Schedule(
        Cast(("alice", "bob"), ntf=True),
        [
            Step(0.16, "restart", "bob", (0.0,)),
            Step(0.16, "lazy program", "bob", (5.0,)),
            Step(3.354, "attack", "bob", ("alice", Attack.REPLAY)),
        ],
    ),
    "a service whose former process is heard last": Schedule(
        Cast(("alice", "bob")),
        [
            Step(0.001, "weather", "network", (Weather(delay_s=4.0, cuts=0.8, stalls=0.3), 5.0)),
            Step(0.028, "crash", "bob", (Point.LATER, Ending.CLOSED, 70, 3.0)),
            Step(0.425, "renewed service", "bob"),
        ],
    ),
    "a person who dies when an answer is acknowledged": Schedule(
        Cast((), bots=("ada", "paul")),
        [Step(9.049, "bot crash", "paul", (Point.AFTER_COMMIT, Ending.RESET, 4, 0.0, 1))],
    ),
    "a request to a bot that is answered although its sending failed": Schedule(
        Cast((), bots=("ada", "paul")),
        [Step(0.001, "crash", "router2", (Point.AFTER_COMMIT, Ending.CLOSED, 3, 0.0))],
    ),
    "an acknowledgement whose answer nobody lives to hear": Schedule(
        Cast((), ("dave",), ds=True),
        [
            Step(0.0, "put", "dirk", ("dora", 2, True)),
            Step(0.239, "delivery crash", "ds", (Point.AFTER_COMMIT, Ending.CLOSED, 1, 0.1)),
            Step(2.085, "power cut", "ds", (Ending.SILENCE, 0.1)),
        ],
    ),
}
"""What earlier runs found, in us or in the simulation."""
FOUND_BY = {
    260: Schedule(
        Cast(("bob", "carol"), fronts={"router1": 2}),
        [
            Step(18.126, "weather", "network", (Weather(delay_s=4.0, cuts=0.8, stalls=0.3), 5.0)),
            Step(18.126, "switch", "carol", ("bob",)),
            Step(33.931, "switch", "carol", ("bob",)),
        ],
    ),
    201295: Schedule(
        Cast(("bob", "carol"), ntf=True),
        [
            Step(44.456, "restored backup", "router2", (20.0, 0.0)),
            Step(44.651, "resync", "bob", ("carol",)),
            Step(44.651, "crash", "carol", (Point.AFTER_COMMIT, Ending.CLOSED, 4, 60.0)),
        ],
    ),
    302527: Schedule(
        Cast(("bob", "carol")),
        [
            Step(16.811, "send", "bob", ("carol", 1)),
            Step(16.811, "lazy program", "carol", (5.0,)),
            Step(18.488, "send", "bob", ("carol", 1)),
            Step(20.680, "restored agent", "carol", (True, 20.0, 0.0)),
            Step(20.692, "restored backup", "router2", (20.0, 5.0)),
        ],
    ),
    700921: Schedule(
        Cast(("alice", "bob"), ntf=True, fronts={"router1": 2}),
        [
            Step(0.0, "clock jump", "ntf", (-60.0,)),
            Step(0.0, "front dies", "router1", (0, Ending.CLOSED, 20)),
            Step(2.157, "crash", "alice", (Point.LATER, Ending.SILENCE, 7, 0.1)),
            Step(18.352, "resync", "bob", ("alice",)),
            Step(18.749, "connect", "alice", ("bob",)),
        ],
    ),
    8051517: Schedule(
        Cast(("alice", "bob"), ntf=True, ds=True),
        [
            Step(0.0, "restored agent", "bob", (True, 0.01, 5.0)),
            Step(0.0, "crash", "alice", (Point.BEFORE_COMMIT, Ending.CLOSED, 1, 60.0)),
            Step(35.031, "restored agent", "bob", (True, 1.0, 0.0)),
            Step(35.056, "restored backup", "router2", (20.0, 5.0)),
        ],
    ),
    8049272: Schedule(
        Cast(("bob", "carol"), ntf=True, fronts={"router2": 2}),
        [
            Step(0.0, "weather", "network", (WORST, 40.0)),
            Step(0.016, "renewed service", "bob"),
            Step(0.344, "switch", "carol", ("bob",)),
            Step(0.344, "resync", "bob", ("carol",)),
            Step(22.063, "doubtful pushes", "apple", (Fault.SILENCE, 90.0)),
        ],
    ),
    8069289: Schedule(
        Cast(("bob", "carol")),
        [
            Step(9.277, "send", "bob", ("carol", 1)),
            Step(11.013, "crash", "bob", (Point.BEFORE_COMMIT, Ending.CLOSED, 4, 0.1)),
            Step(13.102, "crash", "router1", (Point.BEFORE_COMMIT, Ending.SILENCE, 1, 0.1)),
            Step(13.102, "send", "bob", ("carol", 1)),
        ],
    ),
    8067742: Schedule(
        Cast(("bob", "carol")),
        [
            Step(0.0, "send", "bob", ("carol", 1)),
            Step(13.202, "send", "bob", ("carol", 1)),
            Step(13.227, "send", "bob", ("carol", 1)),
            Step(13.227, "crash", "router2", (Point.AFTER_COMMIT, Ending.RESET, 1, 60.0)),
        ],
    ),
    33002056: Schedule(
        Cast(("alice", "bob"), ntf=True),
        [
            Step(0.0, "weather", "network", (Weather(delay_s=0.3, cuts=0.3), 40.0)),
            Step(0.0, "refused pushes", "apple", (UNREGISTERED, 20.0)),
            Step(33.258, "notifier crash", "ntf", (Point.AFTER_COMMIT, Ending.RESET, 3, 3.0)),
            Step(33.258, "new device token", "alice", ()),
            Step(33.694, "restored agent", "alice", (True, 0.01, 0.0)),
        ],
    ),
    32002383: Schedule(
        Cast(("alice", "bob"), ntf=True),
        [
            Step(0.0, "crash", "router2", (Point.AFTER_COMMIT, Ending.SILENCE, 3, 0.1)),
            Step(2.621, "restored agent", "bob", (True, 1.0, 0.0)),
            Step(2.773, "resync", "bob", ("alice",)),
            Step(2.955, "switch", "alice", ("bob",)),
            Step(27.300, "send", "alice", ("bob", 1)),
        ],
    ),
    31002692: Schedule(
        Cast(("bob", "carol"), ds=True),
        [
            Step(20.976, "send", "bob", ("carol", 1)),
            Step(36.723, "deaf", "router1", ("router2", 90.0)),
            Step(36.723, "restored agent", "bob", (True, 1.0, 5.0)),
            Step(87.525, "send", "bob", ("carol", 2)),
            Step(87.858, "send", "bob", ("carol", 3)),
            Step(88.234, "resync", "carol", ("bob",)),
        ],
    ),
    34000680: Schedule(
        Cast(("bob", "carol"), ntf=True),
        [
            Step(1.692, "crash", "router2", (Point.NOW, Ending.CLOSED, 1, 0.0)),
            Step(1.692, "notifier crash", "ntf", (Point.NOW, Ending.RESET, 1, 60.0)),
            Step(1.692, "renewed certificate", "router1", (30.0,)),
            Step(1.692, "restored backup", "router2", (0.01, 0.0)),
        ],
    ),
    13004168: Schedule(
        Cast(("alice", "bob"), ntf=True, fronts={"router1": 2}),
        [
            Step(23.224, "send", "alice", ("bob", 2)),
            Step(23.224, "switch", "bob", ("alice",)),
            Step(23.224, "front stalls", "router1", (1, 20.0)),
            Step(25.996, "crash", "bob", (Point.NOW, Ending.SILENCE, 2, 60.0)),
            Step(40.408, "send", "alice", ("bob", 3)),
            Step(40.408, "send", "alice", ("bob", 3)),
        ],
    ),
    15027409: Schedule(
        Cast(("alice", "bob")),
        [
            Step(30.171, "doubtful commit", "router1", (False,)),
            Step(30.173, "crash", "bob", (Point.BEFORE_COMMIT, Ending.RESET, 1, 60.0)),
            Step(30.552, "switch", "alice", ("bob",)),
            Step(30.553, "resync", "alice", ("bob",)),
            Step(31.773, "crash", "alice", (Point.BEFORE_COMMIT, Ending.RESET, 3, 0.0)),
        ],
    ),
    16052452: Schedule(
        Cast(("alice", "bob")),
        [
            Step(0.0, "restored backup", "router2", (1.0, 5.0)),
            Step(0.394, "switch", "alice", ("bob",)),
            Step(0.394, "other version", "router2", (20, 0.0)),
            Step(0.395, "renewed service", "bob", ()),
            Step(0.396, "crash", "router2", (Point.BEFORE_COMMIT, Ending.SILENCE, 3, 3.0)),
            Step(0.396, "switch", "bob", ("alice",)),
        ],
    ),
    46: Schedule(
        Cast(("bob", "carol"), ntf=True, fronts={"router1": 1}),
        [
            Step(11.58, "switch", "bob", ("carol",)),
            Step(12.976, "send", "bob", ("carol", 1)),
            Step(13.022, "cut", "bob", ("router1",)),
            Step(13.044, "stall", "carol", ("router2",)),
        ],
        Conditions(narrow=True),
    ),
    22022610: Schedule(
        Cast((), bots=BOTS, fronts={"router1": 2}),
        [
            Step(12.946, "front stalls", "router1", (0, 20.0)),
            Step(12.946, "crash", "ada", (Point.LATER, Ending.CLOSED, 23, 0.0)),
            Step(13.262, "weather", "network", (Weather(delay_s=0.3, cuts=0.0, stalls=0.0), 40.0)),
            Step(14.508, "ask", "paul", (1,)),
            Step(31.974, "ask", "paul", (3,)),
        ],
        Conditions(quota=2),
    ),
    25015536: Schedule(
        Cast((), bots=BOTS),
        [
            Step(0.0, "restart", "ada", (30.0,)),
            Step(0.001, "bot crash", "paul", (Point.AFTER_COMMIT, Ending.RESET, 1, 3.0, 2)),
            Step(0.001, "full disk", "paul", (3, 0.0, 5)),
        ],
        Conditions(quota=3),
    ),
    27033569: Schedule(
        Cast(("alice", "bob"), ntf=True, fronts={"router2": 2}),
        [
            Step(1.624, "front dies", "router2", (1, Ending.RESET, 4)),
            Step(1.651, "resync", "alice", ("bob",)),
            Step(1.652, "restored agent", "alice", (True, 1.0, 5.0)),
            Step(4.518, "full disk", "bob", (1, 90.0, 2)),
            Step(20.83, "drift", "router1", (1, 0.0)),
        ],
        Conditions(quota=8),
    ),
    31029540: Schedule(
        Cast(("alice", "bob"), ntf=True),
        [
            Step(0.0, "notifier crash", "ntf", (Point.AFTER_COMMIT, Ending.CLOSED, 3, 0.0)),
            Step(10.856, "new device token", "alice", ()),
            Step(27.073, "switch", "alice", ("bob",)),
        ],
        Conditions(quota=8, narrow=True),
    ),
    37083029: Schedule(
        Cast(("bob", "carol"), ntf=True, ds=True),
        [
            Step(0.0, "weather", "network", (Weather(cuts=0.3, stalls=0.3), 40.0)),
            Step(12.442, "new device token", "carol", ()),
        ],
        Conditions(quota=8),
    ),
    37092708: Schedule(
        Cast(("bob", "carol"), ntf=True),
        [
            Step(1.393, "full disk", "carol", (3, 90.0, 2)),
            Step(1.659, "refused pushes", "apple", (UNREGISTERED, 1.0)),
            Step(1.659, "send", "carol", ("bob", 2)),
            Step(1.659, "new device token", "carol", ()),
            Step(5.929, "switch", "carol", ("bob",)),
        ],
        Conditions(quota=8, narrow=True),
    ),
}
"""The same where it depends on the seed: a rotation right after another that never ends, one that makes two
queues, ratchets that never agree, a program that does not ask for new ones, messages for a service that had
lost it to its own former connection, an agent that dies in the moment in which it is looked whether all live,
an acknowledgement for a queue that was left, room in such a queue, and a message that is sent again although
its receipt came, a connection that takes nothing any more and is never given up, two full queues whose
agents wait for each other, an address that is full of copies of one request, a message that is read again
after the ratchets that it did not fit were replaced, a device token that was replaced unheard, also by one
that is refused; and pushes to a device that was registered anew."""


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_before(genesis: Genesis, what: str) -> None:
    for seed in (19, 336, 40823):
        simulate(genesis, seed, FOUND[what])


@pytest.mark.parametrize("seed", FOUND_BY)
def test_what_a_seed_found_before(genesis: Genesis, seed: int) -> None:
    simulate(genesis, seed, FOUND_BY[seed])


@pytest.mark.timeout(300)
def test_an_hour_with_everybody_in_it(genesis: Genesis) -> None:
    report = simulate(genesis, "one hour", draw_long("one hour", 1.0))
    assert report.virtual_s > 3000
    assert report.delivered > 20


def test_what_the_model_refuses() -> None:
    """Each promise, broken once."""
    model = Model()
    first, second = model.say("alice", "bob"), model.say("alice", "bob")
    channel, number = model.came("bob", second, "MsgOk")
    broken = {
        "out of order": (first, "MsgOk"),
        "which nobody said": (b"alice>bob 3", "MsgOk"),
    }
    for promise, (body, outcome) in broken.items():
        with pytest.raises(ViolationError, match=promise):
            model.came("bob", body, outcome)
    model.came("bob", second, "MsgOk")  # again, before the acknowledgement was answered
    channel.acknowledged.add(number)
    with pytest.raises(ViolationError, match="came again"):
        model.came("bob", second, "MsgOk")
    third = model.say("alice", "bob")
    with pytest.raises(ViolationError, match="MsgSkipped"):
        model.came("bob", third, "MsgSkipped")
    channel.refused.add(channel.said + 1)
    with pytest.raises(ViolationError, match="refused"):
        model.came("bob", model.say("alice", "bob"), "MsgOk")
    channel.taken.update((1, 2))
    assert model.missing() == ["alice>bob 1"]


def test_what_the_model_refuses_of_a_restored_agent() -> None:
    """What it said before its backup may come again, but not as new; what was lost is not missed."""
    model = Model()
    bodies = [model.say("alice", "bob") for _ in range(3)]
    channel = model.channel("alice", "bob")
    channel.taken.update((1, 2, 3))
    model.came("bob", bodies[0], "MsgOk")
    channel.acknowledged.add(1)
    bobs = model.kept("bob")
    alices = model.kept("alice")
    later = model.say("alice", "bob")
    model.came("bob", bodies[1], "MsgOk")
    channel.acknowledged.add(2)
    model.restored("alice", ["bob"], alices)
    assert model.missing() == []
    model.came("bob", bodies[0], "MsgDuplicate")
    with pytest.raises(ViolationError, match="came again"):
        model.came("bob", bodies[0], "MsgOk")
    model.came("bob", later, "MsgSkipped")
    channel.acknowledged.add(4)
    with pytest.raises(ViolationError, match="out of order"):
        model.came("bob", bodies[2], "MsgOk")
    model.came("bob", bodies[2], "MsgBadId")
    with pytest.raises(ViolationError, match="came again"):
        model.came("bob", later, "MsgDuplicate")  # it was said after the backup
    model.restored("bob", ["alice", "carol"], bobs)
    assert (channel.came, channel.acknowledged) == ([1], {1})
    channel.acknowledged.add(2)
    model.restored("bob", ["alice", "carol"], bobs)  # once more from the same backup
    assert (channel.came, channel.acknowledged) == ([1], {1})
    channel.taken.add(5)
    assert model.say("alice", "bob") == b"alice>bob 5"
    assert model.missing() == ["alice>bob 5"]
    model.came("bob", model.say("carol", "bob"), "MsgSkipped")  # her agent has said something, as agents do
    model.in_step("bob", "alice")
    assert model.missing() == []
    model.mended("alice", "bob")
    with pytest.raises(ViolationError, match="nothing is missing"):
        model.came("bob", model.say("alice", "bob"), "MsgSkipped")


def test_what_the_model_of_a_queue_refuses() -> None:
    """Each promise of a router to the devices of one owner, broken once."""
    model, one, other = QueueModel(), Line("one"), Line("other")
    for _ in range(4):
        model.taken.add(model.say())
    model.subscribes(one)
    model.subscribed(one)
    model.came(one, 2)
    with pytest.raises(ViolationError, match="before it had acknowledged"):
        model.came(one, 3)
    with pytest.raises(ViolationError, match="nobody else asked"):
        model.ended(one)
    with pytest.raises(ViolationError, match="may not acknowledge"):
        model.not_in_flight(one, 2)
    model.subscribes(other)
    model.not_in_flight(one, 2)
    model.ended(one)
    late = Line("late")
    model.subscribes(late)
    model.ended(late)  # the router may have heard the other one after it
    with pytest.raises(ViolationError, match="after it was told"):
        model.came(one, 3)
    model.came(other, 2)
    model.acknowledged(other, 2)
    with pytest.raises(ViolationError, match="acknowledged twice"):
        model.acknowledged(one, 2)
    late.ended = False
    model.came(late, 2)  # it was under way when the other one asked for the queue
    other.contested = False
    for promise, number in {"out of order": 1, "came again": 2, "not in the queue": 5}.items():
        other.acknowledges()
        with pytest.raises(ViolationError, match=promise):
            model.came(other, number)
    assert model.missing() == {1, 3, 4}


def test_what_a_bot_may_not_say() -> None:
    talk = Talk()
    talk.taken.update((talk.ask(), talk.ask()))
    assert talk.answered("answer to question 1", b"one") == 1
    talk.answered("answer to question 1", b"one")  # again, before it was acknowledged
    for promise, (text, message_id) in {
        "answered twice": ("answer to question 1", b"other"),
        "nobody asked": ("answer to question 3", b"three"),
        "which nobody": ("Something went wrong here.", b"four"),
    }.items():
        with pytest.raises(ViolationError, match=promise):
            talk.answered(text, message_id)
    talk.done.add(1)
    with pytest.raises(ViolationError, match="came again"):
        talk.answered("answer to question 1", b"one")
    assert talk.missing == {2}


def test_a_stretch_is_continued_where_it_was_interrupted(tmp_path: Path) -> None:
    kept = tmp_path / "sums.json"
    stretch = journey(5, 2 * PART + 3, Manner(), kept)
    first, second, last = stretch.parts()
    assert (first, last) == (range(5, 5 + PART), range(5 + 2 * PART, 8 + 2 * PART))
    stretch.done.append(second.start)
    stretch.sums.add(Sums(PART, 3600.0, 7, counts=Counter({"cut": 2}), failed={30: "lost"}))
    stretch.save(kept)
    again = journey(5, 2 * PART + 3, Manner(), kept)
    assert list(again.parts()) == [first, last]
    assert "minutes left" in progress(again)
    assert "no part" in progress(journey(6, PART, Manner(), None)), "a slow machine"
    again.sums.add(Sums(PART, 1800.0, 1, counts=Counter({"cut": 1, "stall": 1})))
    assert again.sums == Sums(2 * PART, 5400.0, 8, 0.0, Counter({"cut": 3, "stall": 1}), {30: "lost"})
    for other in [(6, 2 * PART + 3, Manner()), (5, 2 * PART, Manner()), (5, 2 * PART + 3, Manner(hard=True))]:
        with pytest.raises(ValueError, match="another file"):
            journey(*other, kept)


def test_what_kind_of_run_a_seed_is() -> None:
    short, hard, long = Manner(), Manner(hard=True), Manner(hours=1.0)
    assert [step.at_s for step in short.schedule(7).steps] == [step.at_s for step in draw(7).steps]
    assert len(hard.schedule(7).steps) > len(short.schedule(7).steps)
    assert long.schedule(7).steps[-1].at_s > 1800


def test_some_hard_runs(genesis: Genesis) -> None:
    for seed in range(12):
        simulate(genesis, seed, draw_hard(seed))


def test_a_dead_process_does_nothing_more() -> None:
    """Neither its timers, nor its tasks, nor what they would do at their end."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        process = Process(loop, "one")
        done: list[str] = []

        async def live() -> None:
            loop.call_later(5, done.append, "timer")
            try:
                await asyncio.sleep(5)
            finally:
                loop.call_soon(done.append, "end")
                done.append("closed")

        process.at_death.append(lambda: done.append("files"))
        process.spawn(live())
        await asyncio.sleep(1)
        process.die()
        await asyncio.sleep(60)
        return done

    assert run_simulated(main()) == ["files", "closed"]


def test_a_seed_takes_the_same_steps_again(genesis: Genesis) -> None:
    first, second = simulate(genesis, 3), simulate(genesis, 3)
    assert first.trace == second.trace
    assert first.digest == second.digest
    assert simulate(genesis, 4).digest != first.digest


def test_a_seed_takes_the_same_steps_in_another_process() -> None:
    """With other keys of routers, and another world that was made for it."""
    program = (
        "import sys, shutil\n"
        "from simulation.genesis import make_genesis\n"
        "from simulation.simulate import fast_folder, simulate\n"
        "folder = fast_folder()\n"
        "genesis = make_genesis(folder)\n"
        "print([simulate(genesis, seed).digest for seed in (*range(6), 150, 296)])\n"
        "shutil.rmtree(folder)\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**ENVIRONMENT, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(digests) == 1


@pytest.mark.timeout(300)
def test_a_stretch_that_is_ended_leaves_neither_processes_nor_files(tmp_path: Path) -> None:
    sums = tmp_path / "sums.json"
    words = ("-m", "simulation", "--seeds", "100000", "--jobs", "1", "--sums", str(sums))
    stretch = subprocess.Popen(
        [sys.executable, *words], env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    while not sums.exists():
        assert stretch.poll() is None
        time.sleep(0.1)  # another process makes it: there is nothing to wait for
    (pool,) = (path for path in FAST.glob("simulation-*/*") if path.name in children(stretch.pid))
    stretch.terminate()
    assert "interrupted: " in stretch.communicate()[0]
    assert not pool.parent.exists()
    assert not Path(f"/proc/{pool.name}").exists()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_what_breaks_while_a_run_is_looked_at_is_told_with_its_seed(
    genesis: Genesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end a stretch of thousands, and nobody knew which of them it was."""

    def broken(self: Run) -> str | None:
        raise OSError("no such thing")

    monkeypatch.setattr(Run, "unsettled", broken)
    with pytest.raises(FailedRunError, match=r"seed 1: OSError.*no such thing") as failed:
        simulate(genesis, 1)
    assert failed.value.report.trace
