"""Queues that an operator names: one in 64 ids begins like an option."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from blindpost.cli import queues

TAIL = "x3fAbCdEf0123456789_-abcdefghi"
IDS = [f"-x{TAIL}", f"-c{TAIL}", f"--{TAIL}", f"-h{TAIL}", f"ab{TAIL}"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, Any]]]:
    """What the running router is asked, and which one."""
    found: list[tuple[str, str, dict[str, Any]]] = []

    def ask(place: str, command: str, **arguments: Any) -> dict[str, Any]:
        found.append((place, command, arguments))
        return {}

    monkeypatch.setattr(queues, "place_of", str)
    monkeypatch.setattr(queues, "ask_running", ask)
    return found


@pytest.mark.parametrize("queue", IDS)
@pytest.mark.parametrize(
    "words", [["show"], ["block", "--reason", "spam"], ["unblock", "--note", "-"], ["delete"]], ids=str
)
def test_an_id_may_begin_like_an_option(
    words: list[str], queue: str, asked: list[tuple[str, str, dict[str, Any]]]
) -> None:
    assert len(queue) == 32
    for line in (
        [*words, queue, "-c", "here"],
        [words[0], queue, "-chere", *words[1:]],
        [*words, "--config", "here", "--", queue],
    ):
        done = CliRunner().invoke(queues.app, line)
        assert done.exit_code == 0, done.output
        place, command, arguments = asked.pop()
        assert (place, command in ("queue", *words), arguments["id"]) == ("here", True, queue)


def test_other_words_that_begin_like_options_are_still_refused(asked: list[Any]) -> None:
    done = CliRunner().invoke(queues.app, ["show", "-x3f"])
    assert (done.exit_code, asked) == (2, [])
