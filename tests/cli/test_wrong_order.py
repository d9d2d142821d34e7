"""Commands twice, in the wrong order or place, on a full disk: one sentence, and nothing is left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindpost.cli.main import GROUPS
from blindpost.serving.failures import OperatorError
from tests.support.ds.process import configure
from tests.support.serving.kinds import DS, KINDS, NTF, ROUTER, Kind, make


def refused(*words: str | Path) -> str:
    """What `blindpost` says when it does not do this."""
    group, *rest = map(str, words)
    done = CliRunner().invoke(GROUPS[group](), rest)
    assert isinstance(done.exception, OperatorError), (done.output, done.exception)
    return str(done.exception)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.word))
def test_a_failed_init_leaves_nothing_and_can_be_repeated(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my server #1 100%"
    writes = 0

    def full(_descriptor: int) -> None:
        nonlocal writes
        writes += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        told = refused(kind.word, "init", folder, *kind.options)
    assert "the disk is full" in told
    assert writes == 1
    assert not folder.exists()
    make(kind, folder)
    assert "not empty" in refused(kind.word, "init", folder, *kind.options)


def test_a_backup_or_a_key_does_not_go_into_the_servers_own_folder(tmp_path: Path) -> None:
    make(DS, tmp_path / "ds")
    told = refused("ds", "backup", tmp_path / "ds" / "backup", "-c", tmp_path / "ds")
    assert "in the server's own folder, which a restore replaces" in told
    make(ROUTER, tmp_path / "router")
    for target in ("away", "."):
        told = refused("router", "move-ca-key", tmp_path / "router" / target, "-c", tmp_path / "router")
        assert "in the server's folder. Name a place outside" in told
    assert (tmp_path / "router" / "keys" / "ca.key").exists()


def test_a_store_beside_the_servers_folder_is_not_backed_up(tmp_path: Path) -> None:
    make(DS, tmp_path / "ds")
    (tmp_path / "ds" / "store").rename(tmp_path / "store")
    configure(tmp_path / "ds", "[store]", '[store]\nfolder = "../store"')
    (tmp_path / "copies").mkdir()
    told = refused("ds", "backup", tmp_path / "copies" / "one", "-c", tmp_path / "ds")
    assert "Copy it by hand: a backup covers one folder." in told
    assert not list((tmp_path / "copies").iterdir())


def test_a_restore_does_not_begin_where_a_disk_is_mounted(tmp_path: Path) -> None:
    make(DS, tmp_path / "ds")
    invoke = CliRunner().invoke
    assert not invoke(GROUPS["ds"](), ["backup", str(tmp_path / "b"), "-c", str(tmp_path / "ds")]).exit_code
    assert "a disk is mounted here" in refused("ds", "restore", tmp_path / "b", "--to", "/")


def test_a_backup_of_another_kind_is_named_as_such(tmp_path: Path) -> None:
    make(NTF, tmp_path / "ntf")
    done = CliRunner().invoke(GROUPS["ntf"](), ["backup", str(tmp_path / "b"), "-c", str(tmp_path / "ntf")])
    assert done.exit_code == 0
    told = refused("ds", "restore", tmp_path / "b", "--to", tmp_path / "new")
    assert told.endswith("this is no backup of a delivery service: ntf.toml in it.")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["ho me", "", "a" * 65, 'x"y'])
def test_a_canarys_router_needs_a_name_that_can_be_written(name: str, tmp_path: Path) -> None:
    told = refused("canary", "init", tmp_path / "c", "--router", f"{name}=smp://x")
    assert "letters, digits, dots" in told
    assert not (tmp_path / "c").exists()
