"""The router under random schedules, and bugs that the simulation must find.

`BLINDPOST_SEEDS=5000 pytest tests/router/test_simulation.py` looks at many more schedules than the suite
does; `BLINDPOST_FIRST_SEED` says where to begin.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from blindpost.engine.loop import Engine
from blindpost.router import association, delivery
from blindpost.router.events import Event
from blindpost.router.model import Domain
from blindpost.router.state import RouterClient
from blindpost.router.turn import Turn
from blindpost.wire.smp.responses import ALLS, END
from tests.support.simulation.promises import Violation
from tests.support.simulation.schedules import EVERYTHING, SERVICES, simulate

SEEDS = int(os.environ.get("BLINDPOST_SEEDS", "96"))
FIRST_SEED = int(os.environ.get("BLINDPOST_FIRST_SEED", "0"))
PARTS = 8
SEEDS_UNTIL_FOUND = 40


@pytest.fixture(autouse=True)
def _quiet_logs(caplog: pytest.LogCaptureFixture) -> None:
    """The router tells of every planned failure."""
    caplog.set_level(logging.CRITICAL, "blindpost")


def trace_of(folder: Path, seed: int, steps: int = 150, weights: Mapping[str, int] = EVERYTHING) -> list[str]:
    """Run one seed in a temporary folder."""
    place = folder / str(seed)
    try:
        return simulate(place, seed, steps, weights).trace
    finally:
        shutil.rmtree(place)


@pytest.mark.timeout(120 + SEEDS)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_promise(tmp_path: Path, part: int) -> None:
    for seed in range(FIRST_SEED + part, FIRST_SEED + SEEDS, PARTS):
        trace_of(tmp_path, seed)


@pytest.mark.timeout(120 + SEEDS)
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("step", [1, 3])
def test_no_fight_for_a_service_breaks_a_promise(
    tmp_path: Path, part: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With short walk steps, so that anything can happen between two of them."""
    monkeypatch.setattr("blindpost.router.plan.SERVE_STEP", step)
    for seed in range(FIRST_SEED + part, FIRST_SEED + SEEDS // 4, 2):
        trace_of(tmp_path, seed, weights=SERVICES)


def test_a_seed_takes_the_same_steps_again(tmp_path: Path) -> None:
    first, second = trace_of(tmp_path, 7), trace_of(tmp_path, 7)
    assert first == second
    assert len(first) > 300
    assert trace_of(tmp_path, 8) != first


def test_a_seed_takes_the_same_steps_in_another_process(tmp_path: Path) -> None:
    """Sets of bytes are ordered differently there; nothing may depend on it."""
    program = (
        "import sys, hashlib, logging, pathlib\n"
        "from tests.support.simulation.schedules import simulate\n"
        "logging.disable(logging.CRITICAL)\n"
        "trace = simulate(pathlib.Path(sys.argv[1]), 11).trace\n"
        "print(hashlib.sha256('\\n'.join(trace).encode()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / hash_seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


def found(folder: Path, weights: Mapping[str, int]) -> str:
    """The failure of the first failing seed, judged only by what the router says and stores."""
    for seed in range(SEEDS_UNTIL_FOUND):
        place = folder / str(seed)
        try:
            simulate(place, seed, 150, weights, inspects_memory=False)
        except Violation as violation:
            return str(violation)
        finally:
            shutil.rmtree(place)
    pytest.fail("the simulation did not find the bug")


def only(*without: str) -> dict[str, int]:
    """The usual schedule without some actions."""
    return {name: weight for name, weight in EVERYTHING.items() if name not in without}


def forget_waiting(turn: Turn, client: RouterClient, recipient_id: bytes) -> None:
    """The bug: a drained connection forgets what waited for it."""
    client.waiting.pop(recipient_id)


def test_it_finds_a_lost_wake_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blindpost.router.delivery.deliver_waiting", forget_waiting)
    report = found(tmp_path, EVERYTHING)
    assert "never came" in report
    assert report.startswith("seed ")
    assert ", step " in report
    assert found(tmp_path, EVERYTHING) == report


async def answer_first(engine: Engine[Event], batch: list[Event]) -> None:
    """The bug: answers leave before the commit."""
    await engine._plan.prepare(batch)
    for event in batch:
        engine._decide(event)
    engine._plan.release()
    await engine._plan.commit()
    engine._undo.forget()


def test_it_finds_a_reply_before_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_turn", answer_first)
    report = found(tmp_path, only("failing_store"))
    assert "promised" in report
    assert "durable False" in report


def keep_subscription(
    turn: Turn, client: RouterClient, loser: RouterClient | None, recipient_id: bytes
) -> None:
    """The bug: a connection that loses a queue is told so and keeps its subscription."""
    if loser is not None and loser is not client:
        turn.push(loser, recipient_id, END())


def test_it_finds_a_delivery_after_a_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blindpost.router.subscriptions._displaced", keep_subscription)
    report = found(tmp_path, EVERYTHING)
    symptoms = ("ERR(error=<Code.NO_MSG", "a message arrived with another body")
    assert any(symptom in report for symptom in symptoms), report


def walk_on(
    turn: Turn, client: RouterClient, domain: Domain, entity_ids: Sequence[bytes], following: bytes | None
) -> None:
    """The bug: a walk does not check whether the connection still serves its service."""
    walk = client.walks.pop(domain)
    if domain is Domain.NOTIFICATIONS or walk is None:
        return
    for entity_id in entity_ids:
        record = turn.view.records.get(entity_id)
        if record is not None and delivery.may_push(client, record):
            delivery.push_head(turn, client, record)
    if following is not None:
        client.walks.put(domain, type(walk)(following, walk.announced))
    elif walk.announced:
        turn.push(client, b"", ALLS())


def test_it_finds_a_walk_that_continues_after_a_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two places stop it and either one is enough, so both are broken here."""
    register = association.register

    def leave_walk(turn: Turn, client: RouterClient, domain: Domain) -> None:
        assert client.service is not None
        loser = turn.state.services(domain).holder(client.service.service_id)
        walk = None if loser is None else loser.walks.get(domain)
        register(turn, client, domain)
        if loser is not None and loser is not client and walk is not None:
            loser.walks.put(domain, walk)
            turn.serve(loser)

    for module in ("association", "services"):
        monkeypatch.setattr(f"blindpost.router.{module}.register", leave_walk)
    monkeypatch.setattr("blindpost.router.services.walk_step", walk_on)
    monkeypatch.setattr("blindpost.router.plan.SERVE_STEP", 1)
    report = found(tmp_path, {name: SERVICES[name] for name in SERVICES if name != "break_queue"})
    symptoms = ("said without reason", "messages of 1 queues never came")
    assert any(symptom in report for symptom in symptoms), report
