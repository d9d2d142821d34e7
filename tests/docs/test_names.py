"""A command that a sentence names exists, with the options named, and a test runs it."""

from __future__ import annotations

import re
import shlex

import pytest
import typer.main

from blindpost.cli.main import app
from tests.support.docs.documents import ROOT
from tests.support.docs.executed import Place, all_commands, commands_at, place


def named() -> list[str]:
    return sorted({command.text for command in commands_at(Place.NAMED)})


def resolved(text: str) -> tuple[list[str], list[str], bool]:
    """Names of groups and command, options, and whether it is only a group; it must exist."""
    words = shlex.split(text)[1:]
    command = typer.main.get_command(app)
    context = typer.Context(command)
    path: list[str] = []
    while words and hasattr(command, "get_command"):
        inner = command.get_command(context, words[0])
        if inner is None:
            break
        command, path, words = inner, [*path, words[0]], words[1:]
    options = [word for word in words if word.startswith("--")]
    assert path or options, f"{text}: no such command"
    known = {name for parameter in command.params for name in parameter.opts}
    assert known >= set(options)
    return path, options, hasattr(command, "get_command")


def is_said_by_a_test(words: list[str]) -> bool:
    """Whether a test passes these words as arguments or to a shell; its folder implies the group's name."""
    arguments = r",\s*".join(f'"{word}"' for word in words)
    whole = re.compile(f'{arguments}|"blindpost {" ".join(words)}')
    if any(whole.search(file.read_text()) for file in ROOT.glob("tests/**/*.py")):
        return True
    group, *rest = words
    own = ROOT.glob(f"tests/{group}/*.py")
    return bool(rest) and any(f'("{rest[0]}", ' in file.read_text() for file in own)


@pytest.mark.parametrize("text", named())
def test_every_command_named_in_a_sentence_is_run(text: str) -> None:
    path, options, is_group = resolved(text)
    words = " ".join(("blindpost", *path))
    typed = [command.text for command in all_commands() if place(command) is not Place.NAMED]
    if path and any(words in text for text in typed):
        return
    assert not is_group or options
    assert is_said_by_a_test(path or options), f"{text}: no test"


def test_a_name_that_does_not_exist_is_reported() -> None:
    for text in ("blindpost fly", "blindpost router fly --there", "blindpost router status --loudly"):
        with pytest.raises(AssertionError):
            resolved(text)
    assert not is_said_by_a_test(["router", "sing" * 2])
