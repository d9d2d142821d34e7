"""The search itself: it notes what fails and goes on, and what it saw outlives it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from blindpost.wire.ntf import commands as ntf
from blindpost.wire.smp.commands import COMMANDS
from fuzz import seeds, together
from fuzz.looking import LastInput, Seen, look
from fuzz.target import One, Target


def failing(prepared: list[int]) -> Target:
    """Fails in two ways, and counts how often it was set up."""

    @contextlib.contextmanager
    def made() -> Iterator[One]:
        prepared.append(1)

        def one(data: bytes) -> None:
            if data[:1] == b"\xff":
                raise KeyError("a first")
            if len(data) > 60:
                raise ValueError("a second")

        yield one

    return Target("failing", "nothing", made, lambda: [b"\xff good", b"a" * 40])


def test_a_search_notes_each_failure_once_and_goes_on(tmp_path: Path) -> None:
    prepared: list[int] = []
    ticks = itertools.count()
    seen = look(failing(prepared), 400.0, tmp_path, clock=lambda: float(next(ticks)))
    assert [finding.split(" at ")[0] for finding in seen.findings] == ["KeyError", "ValueError"]
    assert seen.inputs > 100, "it went on after them"
    assert len(prepared) > 2, "what failed is set up anew"
    assert Seen.load(tmp_path) == seen
    kept = {file.read_bytes()[:1] for file in tmp_path.glob("finding-*") if not file.suffix}
    assert len(kept) == 2
    assert b"\xff" in kept
    assert not (tmp_path / "last").exists()
    assert seen.target in together.table(tmp_path.parent, [tmp_path.name])


def test_an_input_that_ends_the_process_is_found_afterwards(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    pid = os.fork()
    if pid == 0:
        last = LastInput(tmp_path / "target" / "last")
        last.begin(b"a longer one before")
        last.begin(b"the end")
        os._exit(11)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11
    together.ended(tmp_path / "target", "target", 11)
    (finding,) = (tmp_path / "target").glob("finding-*")
    assert finding.read_bytes() == b"the end"
    assert "| target | 0.0 (cut short) | 0 |" in together.table(tmp_path, ["target"])
    assert "its process ended with 11" in (tmp_path / "target" / "seen.json").read_text()


def test_targets_run_in_processes_of_their_own_and_end_in_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert together.search(["journal"], 0.01, 2, 1, tmp_path) == 0
    assert (tmp_path / "summary.md").read_text() in capsys.readouterr().out
    seen = Seen.load(tmp_path / "journal")
    assert seen is not None
    assert seen.is_over
    assert seen.inputs > seen.seeds > 0


def test_every_command_is_among_the_good_inputs() -> None:
    smp = {text.split(b" ")[0] for _, text in seeds.commands("smp_commands.json", seeds.VERSION)}
    assert smp == COMMANDS.keys()
    notified = {text.split(b" ")[0] for _, text in seeds.commands("ntf.json", seeds.NTF_VERSION, "command")}
    assert notified == {
        one.TAG for one in vars(ntf).values() if isinstance(one, type) and hasattr(one, "TAG")
    }
