"""The file with the tokens: changed by several commands at once, or by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from blindpost.ds.settings import change_tokens, read_tokens, without_identity
from blindpost.serving.failures import OperatorError
from tests.support.ds.delivery import ALICE, BOB

COMMANDS, EACH = 8, 10


def line(number: int, identity: bytes = ALICE) -> str:
    return f"{number:064x} {identity.hex()}\n"


def test_commands_that_come_at_once_lose_nothing(tmp_path: Path) -> None:
    file, together = tmp_path / "tokens", Barrier(COMMANDS)

    def give(command: int) -> None:
        together.wait()
        for number in range(EACH):
            change_tokens(file, lambda before: before + line(command * EACH + number))  # noqa: B023

    with ThreadPoolExecutor(COMMANDS) as commands:
        list(commands.map(give, range(COMMANDS)))
    assert sorted(int.from_bytes(digest) for digest in read_tokens(file)) == list(range(COMMANDS * EACH))


def test_what_is_revoked_does_not_come_back(tmp_path: Path) -> None:
    file, together = tmp_path / "tokens", Barrier(2)
    file.write_text("".join(map(line, range(EACH))))

    def give(number: int) -> None:
        together.wait()
        for _ in range(EACH):
            change_tokens(file, lambda before: before + line(number, BOB))

    def revoke() -> None:
        together.wait()
        change_tokens(file, lambda before: without_identity(before, ALICE)[0])

    with ThreadPoolExecutor(2) as commands:
        giving, revoking = commands.submit(give, 99), commands.submit(revoke)
        giving.result()
        revoking.result()
    assert set(read_tokens(file).values()) == {BOB}


def test_a_file_that_was_edited_by_hand_may_end_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(line(1).rstrip())
    change_tokens(file, lambda before: before + line(2, BOB))
    assert list(read_tokens(file).values()) == [ALICE, BOB]


@pytest.mark.parametrize(("text", "told"), [(b"\xff\xfe", "in UTF-8 expected"), (b"abc def", "line 1")])
def test_a_damaged_file_is_told_and_kept(tmp_path: Path, text: bytes, told: str) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(text)
    with pytest.raises(OperatorError, match=told):
        change_tokens(file, lambda before: before + line(1))
    assert file.read_bytes() == text
