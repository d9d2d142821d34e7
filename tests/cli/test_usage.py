"""What a newcomer meets first: help, completion, wrong usage."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import blindpost
from blindpost.cli.main import app
from blindpost.serving.children import COMMAND
from tests.support.docs.typing_reader import BIN
from tests.support.serving.commands import ENVIRONMENT


def all_commands() -> Iterator[tuple[str, ...]]:
    """The path of every command, groups included."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
            yield from walk(command.get_command(context, name), (*path, name))

    root = typer.main.get_command(app)
    context = typer.Context(root)
    yield from walk(root, ())


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, words, prog_name="blindpost", env={"COLUMNS": "100", "NO_COLOR": "1"})


@pytest.mark.parametrize("path", list(all_commands()), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    done = invoke(*path, "--help")
    assert done.exit_code == 0
    usage, told = done.stdout.strip().split("\n", 1)
    assert usage.strip().startswith("Usage: ")
    assert told.partition("Options")[0].strip(" \n╭─"), "what it is for"


@pytest.mark.parametrize("path", list(all_commands()), ids=" ".join)
def test_no_word_of_a_help_is_parsed_as_markup(path: tuple[str, ...]) -> None:
    """A [word] in a help text would vanish."""
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.get_command(typer.Context(command), name)
    texts = [command.help, command.epilog, *(getattr(one, "help", None) for one in command.params)]
    assert [text for text in texts if re.search(r"\[[a-z]", text or "")] == []


@pytest.mark.parametrize("path", list(all_commands()), ids=" ".join)
def test_wrong_usage_is_one_line_and_code_2(path: tuple[str, ...]) -> None:
    done = invoke(*path, "--no-such-option")
    assert done.exit_code == 2
    assert done.stdout == ""
    command = " ".join(("blindpost", *path))
    assert done.stderr.startswith("blindpost: No such option: --no-such-option")
    assert done.stderr.endswith(f"`{command} --help` says what there is.\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("path", list(all_commands()), ids=" ".join)
def test_every_number_has_a_least_and_a_most(path: tuple[str, ...]) -> None:
    """Without them an endless number, or one with too many zeros, ends in a traceback or in no memory."""
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.get_command(typer.Context(command), name)
    for one in command.params:
        if getattr(one, "type_descriptor", None) and one.type_descriptor.annotation in (int, float):
            assert one.min is not None, one.name
            assert one.max is not None or one.name == "seed", one.name


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fly",), "No such command 'fly'"),
        (("router", "fly"), "No such command 'fly'"),
        (("router", "init"), "Missing argument 'folder'"),
        (
            ("router", "queues", "block", "id", "--reason", "boredom"),
            "'boredom' is not one of 'spam', 'content'",
        ),
        (("demo", "--queues", "many"), "Invalid value for '--queues'"),
        (("pipeline", "generate", "fleet", "--scale", "inf"), "Invalid value for '--scale'"),
        (("pipeline", "generate", "fleet", "--seed", "-1"), "Invalid value for '--seed'"),
        (("ds", "receive", "00", "--server", "localhost", "--wait", "inf"), "Invalid value for '--wait'"),
    ],
)
def test_a_mistake_is_named(words: tuple[str, ...], told: str) -> None:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_completion_is_installed_and_completes(tmp_path: Path) -> None:
    """In the most common shell, as docs/getting-started.md describes."""
    environment = {**ENVIRONMENT, "HOME": str(tmp_path), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def bash(script: str) -> str:
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done
        return done.stdout

    assert "installed" in bash("blindpost --install-completion\ntrue")
    asked = "COMP_WORDS=(blindpost router st); COMP_CWORD=2; _blindpost_completion blindpost"
    found = bash(f'. ~/.bashrc; complete -p blindpost; {asked}; echo "${{COMPREPLY[@]}}"')
    assert "_blindpost_completion blindpost" in found
    assert found.splitlines()[-1].split() == ["start", "status", "stats"]


def test_the_version_is_the_package_s() -> None:
    assert invoke("--version").stdout == f"blindpost {blindpost.__version__}\n"


def test_rotate_cert_reports_as_json_whether_the_certificate_is_in_use(tmp_path: Path) -> None:
    for kind in ("router", "ntf"):
        assert invoke(kind, "init", str(tmp_path / kind), "--host", "127.0.0.1", "--json").exit_code == 0
        done = invoke(kind, "rotate-cert", "-c", str(tmp_path / kind), "--json")
        assert json.loads(done.stdout) == {"in_use": False}


def test_the_remedy_names_the_given_folder(tmp_path: Path) -> None:
    for given in (tmp_path / "home", tmp_path / "home" / "router.toml"):
        done = invoke("router", "start", "-c", str(given))
        assert f"`blindpost router init {tmp_path / 'home'}`" in str(done.exception)


@pytest.mark.parametrize("module", ["typer.models", "blindpost.router.config"])
def test_ctrl_c_while_it_is_loaded_ends_it_without_a_traceback(module: str) -> None:
    words = (COMMAND[0], "-X", "importtime", *COMMAND[1:], "router", "--help")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as command:
        assert command.stderr is not None
        assert any(line.split()[-1] == module.encode() for line in command.stderr)
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    assert b"Traceback" not in errors
    assert command.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
