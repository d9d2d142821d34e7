"""What root does in the folder of a server leaves all of it to the server's own user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindpost.cli.main import GROUPS
from blindpost.serving import files
from blindpost.serving.files import write_file
from blindpost.store.owners import open_file
from tests.support.router.moving import store_log
from tests.support.serving.kinds import DS, NTF, ROUTER, Kind, make

SOMEBODY, ANOTHER = 4711, 4712
KEY = "ab" * 32

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


def give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY)


def owners_of(folder: Path) -> set[tuple[int, int]]:
    return {(path.lstat().st_uid, path.lstat().st_gid) for path in (folder, *folder.rglob("*"))}


COMMANDS: list[tuple[Kind, list[str]]] = [
    (ROUTER, ["rotate-cert", "-c", "{folder}"]),
    (ROUTER, ["audit", "-c", "{folder}"]),
    (ROUTER, ["backup", "{beside}", "-c", "{folder}"]),
    (ROUTER, ["import", "--from-log", "{log}", "--to", "{folder}"]),
    (ROUTER, ["queues", "blocked", "-c", "{folder}"]),
    (NTF, ["rotate-cert", "-c", "{folder}"]),
    (NTF, ["rotate-push-key", "-c", "{folder}"]),
    (NTF, ["backup", "{beside}", "-c", "{folder}"]),
    (DS, ["token", KEY, "-c", "{folder}"]),
    (DS, ["rotate-cert", "-c", "{folder}"]),
    (DS, ["export", "{beside}", "-c", "{folder}"]),
]


@needs_root
@pytest.mark.parametrize(
    ("kind", "words"), COMMANDS, ids=[f"{kind.word} {words[0]}" for kind, words in COMMANDS]
)
def test_a_command_of_root_leaves_no_file_of_its_own(kind: Kind, words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "server"
    make(kind, folder)
    for lock in (*folder.glob("*.lock"), *(folder / "store").glob("*lock*")):
        lock.unlink()
    give_away(folder)
    named = {"folder": folder, "beside": tmp_path / "made", "log": store_log(tmp_path, [b"NONSENSE"])}
    done = CliRunner().invoke(GROUPS[kind.word](), [word.format(**named) for word in words])
    assert done.exit_code == 0, (done.output, done.exception)
    assert owners_of(folder) == {(SOMEBODY, SOMEBODY)}


@needs_root
def test_what_root_restores_belongs_to_whom_the_folder_belonged(tmp_path: Path) -> None:
    folder, backup, empty = tmp_path / "server", tmp_path / "backup", tmp_path / "empty"
    make(ROUTER, folder)
    give_away(folder)
    empty.mkdir()
    os.chown(empty, ANOTHER, ANOTHER)
    words = ["restore", str(backup), "--to"]
    for command in (
        ["backup", str(backup), "-c", str(folder)],
        [*words, str(folder), "--force"],
        [*words, str(empty)],
    ):
        done = CliRunner().invoke(GROUPS["router"](), command)
        assert done.exit_code == 0, (done.output, done.exception)
    assert owners_of(folder) == {(SOMEBODY, SOMEBODY)}
    assert owners_of(empty) == {(ANOTHER, ANOTHER)}


@needs_root
def test_a_file_keeps_its_owner_and_a_new_one_has_that_of_the_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, SOMEBODY, SOMEBODY)
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "link"
    old.touch()
    os.chown(old, ANOTHER, ANOTHER)
    write_file(old, b"1")
    write_file(new, b"2")
    assert [path.stat().st_uid for path in (old, new)] == [ANOTHER, SOMEBODY]
    link.symlink_to(old)
    os.close(open_file(link))
    assert old.stat().st_uid == ANOTHER, "what is there is not given away"


def test_who_is_not_root_or_may_not_give_files_away_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def refused(descriptor: int, *_: int) -> None:
        given.append(descriptor)
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refused)
    for user, expected in ((1000, 0), (0, 1)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        write_file(tmp_path / "file", b"")
        assert len(given) == expected
    assert files.read_file(tmp_path / "file") == b""
