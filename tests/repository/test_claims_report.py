"""The claims report counts what really passed and refuses a marker that names no claim."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SECTIONS, known_claims

CONFTEST = Path(__file__).parent.parent / "conftest.py"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "claims.md").write_text(
        "| id | claim |\n| SVC-01 | one |\n| SVC-02 | two |\n| SVC-03 | three |\n| CON-01 | four |\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = claim(id): shows a claim\n")
    return tmp_path


def run(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--claims", str(project)]
    return subprocess.run(command, capture_output=True, text=True, cwd=project, check=False)


def test_only_claims_whose_every_test_passed_are_counted(project: Path) -> None:
    (project / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.claim('SVC-01')\ndef test_a(): pass\n"
        "@pytest.mark.claim('SVC-02')\ndef test_b(): assert False\n"
        "@pytest.mark.claim('SVC-02', 'CON-01')\ndef test_c(): pass\n"
        "@pytest.mark.claim('SVC-03')\ndef test_d(): pytest.skip('not here')\n"
    )
    printed = run(project).stdout
    assert "SVC: 1 of 3 have a passing test" in printed
    assert "missing: SVC-02 SVC-03" in printed
    assert "CON: 1 of 1 have a passing test" in printed
    assert "all: 2 of 4" in printed


def test_a_marker_that_names_no_claim_fails_the_run(project: Path) -> None:
    (project / "test_it.py").write_text("import pytest\n@pytest.mark.claim('ABC-01')\ndef test_a(): pass\n")
    outcome = run(project)
    assert outcome.returncode != 0
    assert "no claim 'ABC-01'" in outcome.stdout + outcome.stderr


def test_the_list_of_claims_is_read_whole() -> None:
    claims = known_claims()
    assert len(claims) == len(set(claims)) == 313
    assert {claim[:3] for claim in claims} == set(SECTIONS)
