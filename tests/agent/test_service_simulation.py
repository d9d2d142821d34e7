"""A service through restarts, downgrades, rotations, lost associations and stores, on random schedules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blindpost.testing.clock import run_virtual
from tests.support.agent.service_simulation import ServiceSimulation

SEEDS = int(os.environ.get("BLINDPOST_SERVICE_SEEDS", "6"))
FIRST_SEED = int(os.environ.get("BLINDPOST_FIRST_SEED", "0"))
STEPS = 15
QUEUES = 25
RESETS = 6


@pytest.mark.claim("SVC-69")
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_no_message_is_lost_and_both_sides_converge(tmp_path: Path, seed: int) -> None:
    simulation = ServiceSimulation(tmp_path, seed)
    run_virtual(simulation.run(STEPS, QUEUES))
    assert len(simulation.promised) > QUEUES


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_a_wiped_or_restored_store_loses_only_what_was_in_it(tmp_path: Path, seed: int) -> None:
    simulation = ServiceSimulation(tmp_path, seed)
    run_virtual(simulation.run(STEPS, QUEUES, RESETS))
    assert len(simulation.promised) + len(simulation.lost) > QUEUES
