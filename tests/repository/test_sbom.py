"""The list of dependencies says what the lock file says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import blindpost

PROJECT = Path(blindpost.__file__).parent.parent.parent
SBOM = PROJECT / "deploy" / "sbom.py"


def made(lock: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SBOM), str(lock), str(out)], capture_output=True, text=True, check=False
    )


def test_every_pin_is_listed_with_all_of_its_hashes(tmp_path: Path) -> None:
    lock = PROJECT / "requirements.lock"
    assert made(lock, tmp_path / "one.json").returncode == 0
    assert made(lock, tmp_path / "two.json").returncode == 0
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    listed = json.loads((tmp_path / "one.json").read_text())
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    text = lock.read_text()
    pins = [line.split()[0] for line in text.splitlines() if "==" in line]
    assert [f"{one['name']}=={one['version']}" for one in listed["components"]] == [
        pin.split("[")[0] + "==" + pin.split("==")[1] if "[" in pin else pin for pin in pins
    ]
    assert sum(len(one["hashes"]) for one in listed["components"]) == text.count("--hash=sha256:")
    assert len({one["bom-ref"] for one in listed["components"]}) == len(pins)


def test_a_pin_without_a_hash_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "blindpost"\n')
    (tmp_path / "requirements.lock").write_text("anyio==4.16.0\n")
    told = made(tmp_path / "requirements.lock", tmp_path / "out.json")
    assert told.returncode == 1
    assert "anyio 4.16.0 has no hash" in told.stderr
    assert not (tmp_path / "out.json").exists()


def test_markers_are_not_part_of_a_version(tmp_path: Path) -> None:
    pin = "anyio==4.16.0 ; python_version < '4' \\\n    --hash=sha256:" + "ab" * 32
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "blindpost"\n')
    (tmp_path / "requirements.lock").write_text(pin + "\n")
    assert made(tmp_path / "requirements.lock", tmp_path / "out.json").returncode == 0
    (only,) = json.loads((tmp_path / "out.json").read_text())["components"]
    assert only["purl"] == "pkg:pypi/anyio@4.16.0"
