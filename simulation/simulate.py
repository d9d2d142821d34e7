"""`simulate` takes one seed through its hard times and raises what went wrong, with the whole story."""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulation.books import books, compare_books, keep_books
from simulation.genesis import Genesis
from simulation.journals import is_journaled, keep
from simulation.model import ViolationError
from simulation.processes import LivelockError, run_simulated
from simulation.run import FailedRunError, Report, Run
from simulation.schedules import EVERYBODY, Schedule, draw
from simulation.stand_ins import is_quick, stand_ins

FAST = Path("/dev/shm")  # noqa: S108  # where there is one, files need no disk


class _Listener(logging.Handler):
    """Hands what parties log to the run."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.WARNING)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        self._run.logged(record)


@contextmanager
def _heard(run: Run) -> Iterator[None]:
    log, handler = logging.getLogger("blindpost"), _Listener(run)
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


def fast_folder() -> Path:
    """A new folder in memory, if the system has that."""
    return Path(tempfile.mkdtemp(prefix="simulation-", dir=FAST if FAST.is_dir() else None))


def simulate(
    genesis: Genesis, seed: int | str, schedule: Schedule | None = None, journals: Path | None = None
) -> Report:
    """Run one seed, with the schedule that is drawn from it unless another is given.

    If its servers write journals, they are kept in the folder that is named.
    """
    folder = fast_folder()
    gc.disable()  # what it finds depends on when it runs
    runs: list[Run] = []
    try:
        with stand_ins(quick=is_quick(seed)):
            report = run_simulated(_run(genesis, folder, seed, schedule or draw(seed), runs))
        if journals is not None and (kept := books(runs[0])):
            keep(kept, folder, seed, journals)
        return report
    except LivelockError as error:
        raise FailedRunError(str(error), runs[0].report()) from error
    finally:
        gc.enable()
        shutil.rmtree(folder)


async def _run(
    genesis: Genesis, folder: Path, seed: int | str, schedule: Schedule, runs: list[Run]
) -> Report:
    run = Run(folder, seed)
    runs.append(run)
    genesis.world(seed).settle_in(run, schedule.cast, schedule.conditions)
    if is_journaled(seed) or schedule.cast is EVERYBODY:
        keep_books(run)
    with _heard(run):
        try:
            for party in run.parties.values():
                party.start()
            await run.play(schedule.steps)
            await run.mend()
            await run.converge()
            await run.probe()
            await run.judge()
            compare_books(run)
        except ViolationError as violation:
            raise FailedRunError(str(violation), run.report()) from violation
        except Exception as error:  # neither may anything break that looks on
            raise FailedRunError(repr(error), run.report()) from error
    return run.report()
