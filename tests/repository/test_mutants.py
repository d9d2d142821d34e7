"""The mutation gate: it makes mistakes, reports those that no test notices, and names tests that exist."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mutants.changes import changes_of
from mutants.plan import GATES
from mutants.scores import ACCEPTED, BEGIN, DOCUMENT, END, accepted, key, stored, table

ROOT = Path(__file__).parents[2]
CODE = '''\
class Account:
    def __init__(self) -> None:
        self.total = 0
        self.told = []

    def take(self, amount: int) -> bool:
        """A docstring is no mistake to make."""
        if amount > self.total and not self.told:
            return False
        self.total -= amount
        self.told.append(amount)
        return True

    def put(self, amount: int) -> None:
        if amount:
            self.total += amount
        else:
            self.told.append(amount)
'''
TESTS = """\
from shop import Account

def test_one_takes_what_is_there():
    account = Account()
    account.total = 5
    assert account.take(5)
    assert account.total == 0

def test_one_takes_no_more():
    account = Account()
    assert not account.take(1)
    assert account.total == 0
"""
RUN = """\
import sys, pytest
from mutants.gate import Gate
gate = Gate(["shop"], None, 1, print)
assert pytest.main(["-q", "-p", "no:cacheprovider", "test_shop.py"], [gate]) in (0, 5)
print(gate.scores[0].caught, "caught")
"""


def test_each_kind_of_mistake_is_made() -> None:
    found = changes_of(CODE, "shop.py")
    assert not any("self.total = 0  ->  self.told" in change.told for change in found), "nobody can tell"
    assert {change.kind for change in found} == {
        "comparison turned",
        "comparison shifted",
        "and, or exchanged",
        "not dropped",
        "branch dropped",
        "branch always taken",
        "answer turned",
        "effect forgotten",
        "steps exchanged",
        "off by one",
    }
    assert all(change.before != change.after for change in found)
    assert not any("docstring" in change.before for change in found)
    otherwise = [change for change in found if change.function == "Account.put" and "append" in change.before]
    assert len(otherwise) == 1, "what only happens otherwise can be forgotten too"


def gate_run(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    for name, text in (("shop.py", CODE), ("test_shop.py", tests), ("run.py", RUN)):
        (folder / name).write_text(text)
    return subprocess.run(
        [sys.executable, "run.py"],
        cwd=folder,
        env={"PYTHONPATH": f"{ROOT}:{folder}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_mistake_no_test_notices_is_reported(tmp_path: Path) -> None:
    done = gate_run(tmp_path, TESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    alive = [line for line in done.stdout.splitlines() if line.startswith("  alive")]
    assert any("effect forgotten: self.told.append(amount)" in line for line in alive)
    assert not any("not dropped" in line for line in alive)
    assert not any("self.total -= amount  ->  pass" in line for line in alive)
    assert not any("branch dropped" in line for line in alive)


def test_without_a_test_that_passes_there_is_no_score(tmp_path: Path) -> None:
    done = gate_run(tmp_path, "def test_it():\n    assert False\n")
    assert done.returncode != 0
    assert "fails by itself, and is left out: test_shop.py::test_it" in done.stdout
    assert "no test passes without a mistake" in done.stderr


def test_the_gate_runs_our_own_tests() -> None:
    module = "blindpost.agent.rotation.sender"
    command = [sys.executable, "-m", "mutants", module, "--sample", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{module}: 2 of 2 caught, 0 accepted, 0 open: 100.0 %" in done.stdout


@pytest.mark.parametrize("module", GATES)
def test_the_plan_names_modules_and_tests_that_exist(module: str) -> None:
    assert (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").is_file()
    assert all((ROOT / path).is_file() for path in GATES[module])


def test_what_is_accepted_is_a_mistake_that_can_be_made() -> None:
    rows = tomllib.loads(ACCEPTED.read_text()).get("accepted", [])
    assert all(row["module"] in GATES and row["reason"] for row in rows)
    for module in {row["module"] for row in rows}:
        path = (ROOT / "src" / Path(*module.split("."))).with_suffix(".py")
        made = {key(change) for change in changes_of(path.read_text(), str(path))}
        assert accepted(module) <= made, f"{module}: {accepted(module) - made}"


def test_the_table_in_the_document_shows_the_stored_scores() -> None:
    assert f"{BEGIN}\n{table(stored())}\n{END}" in DOCUMENT.read_text()
    assert all(one.tried == min(one.tried, one.mistakes) and one.score >= 0.95 for one in stored().values())
