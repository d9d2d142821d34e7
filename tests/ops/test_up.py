"""`blindpost up`, and two people talking over it in two terminals, as in docs/getting-started.md."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner, Result

from blindpost.cli import page
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.webpush import new_key_pem
from blindpost.serving.children import free_port
from blindpost.serving.control import ask
from blindpost.serving.failures import OperatorError
from tests.support.docs.documents import ROOT, commands
from tests.support.docs.typing_reader import BIN
from tests.support.serving.commands import ENVIRONMENT, run
from tests.support.serving.processes import until

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 240.0
AT_MOST = 5
"""Commands from a clone to a running router and two messengers."""


class Terminal:
    """Types, and reads what is printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def read(self, pattern: str) -> str:
        """The next text that matches this."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self.process.stdout.readline()).decode():
                self.said += line
                if found := re.search(pattern, line):
                    return found[0]
        raise AssertionError(f"{pattern!r} was not printed, only: {self.said}")

    async def rest(self) -> str:
        """Everything up to its end."""
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await self.process.communicate()
        self.said += output.decode()
        return self.said


@asynccontextmanager
async def terminal(line: str, folder: Path) -> AsyncIterator[Terminal]:
    """A shell that runs this line, stopped with SIGTERM if still running."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f"exec {line}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env={**ENVIRONMENT, "PATH": f"{BIN}:{os.environ['PATH']}"},
    )
    found = Terminal(process)
    try:
        yield found
    finally:
        if process.returncode is None:
            process.terminate()
        await found.rest()


def written() -> list[str]:
    """The commands of the guide, with this test's ports and what is already installed."""
    lines = [one.text for one in commands(ROOT / "docs/getting-started.md") if not one.is_inline]
    ports = f"--port {free_port()} --page-port 0"
    return [line.replace("--port 5223", ports).replace("bp/bin/blindpost", "blindpost") for line in lines]


async def status(folder: Path) -> dict[str, object]:
    return await asyncio.to_thread(ask, folder / "control.sock", "status")


async def test_from_nothing_to_a_first_message(tmp_path: Path) -> None:
    *_, up, alice_line, bob_line = lines = written()
    assert len(lines) <= AT_MOST
    assert up.startswith("blindpost up home ")
    async with terminal(up, tmp_path) as servers:
        url = await servers.read(r"http://\S+")
        async with terminal(alice_line, tmp_path) as alice, terminal(bob_line, tmp_path) as bob:
            alice.type("/invite")
            bob.type(f"/join {await alice.read('https://[^ ]+')}")
            await bob.read("Connected with")
            await alice.read("Connected with")
            bob.type("first message")
            await alice.read("first message")
            alice.type("and back")
            await bob.read("and back")
        async with httpx.AsyncClient(follow_redirects=True) as visitor:
            assert (await visitor.get(url)).status_code == 200
            kept = await visitor.get(url.partition("?")[0])
            assert kept.status_code == 200, "a browser keeps the token"
        async with httpx.AsyncClient() as stranger:
            assert (await stranger.get(url.partition("?")[0])).status_code == 401
        servers.process.send_signal(signal.SIGHUP)
        await servers.read("reloaded certificates and settings")
        async with terminal("blindpost up home --page-port 0", tmp_path) as second:
            assert "`blindpost up` runs in this folder already" in await second.rest()
        assert (await status(tmp_path / "home" / "router"))["queues"] == 2
        servers.process.terminate()
        await servers.rest()
        assert servers.process.returncode == 0, servers.said
    assert not (tmp_path / "home" / "router" / "control.sock").exists()
    assert not (tmp_path / "home" / "ntf").exists(), "there is no push key"
    address = run("router", "address", "-c", tmp_path / "home" / "router").stdout

    async with terminal("blindpost up home --page-port 0", tmp_path) as servers:
        await servers.read(r"http://\S+")
        before = await status(tmp_path / "home" / "router")
        assert before["queues"] == 2
        os.kill(int(str(before["pid"])), signal.SIGKILL)
        await servers.read("router ended with code -9; it starts again in 0.2 s")

        async def lives() -> bool:
            try:
                return (await status(tmp_path / "home" / "router"))["pid"] != before["pid"]
            except OperatorError:
                return False

        await until(lives, PATIENCE_S)
    assert servers.process.returncode == 0, servers.said
    assert run("router", "address", "-c", tmp_path / "home" / "router").stdout == address


async def test_servers_stop_cleanly_when_up_is_killed(tmp_path: Path) -> None:
    ports = f"--port {free_port()} --ntf-port {free_port()} --page-port 0"
    async with terminal(f"blindpost up home --host 127.0.0.1 {ports}", tmp_path) as servers:
        await servers.read(r"http://\S+")
        servers.process.kill()
        said = await servers.rest()  # which ends when the last process that holds its output has ended
    assert servers.process.returncode == -signal.SIGKILL
    assert "the router has stopped; everything it accepted is stored and answered" in said
    for kind in ("router", "ntf"):
        assert not (tmp_path / "home" / kind / "control.sock").exists()


async def test_the_first_start_needs_a_host_and_ports_that_are_free(tmp_path: Path) -> None:
    said = await asyncio.to_thread(run, "up", tmp_path / "home", code=1)
    assert said.stderr.count("\n") == 1
    assert "Say where users reach this machine, as --host" in said.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        first = f"blindpost up home --host 127.0.0.1 --port {port} --ntf-port {free_port()} --page-port 0"
        async with terminal(first, tmp_path) as servers:
            told = await servers.rest()
            assert servers.process.returncode == 1
        assert f"port {port} is in use by another program" in told
        assert "router did not start; its output above says why" in told
        assert "Traceback" not in told
        page = f"blindpost up home --page-port {port}"
        async with terminal(page, tmp_path) as servers:
            told = await servers.rest()
            assert servers.process.returncode == 1
        assert f"port {port}: Address already in use. Choose another with --page-port" in told
    assert not (tmp_path / "home" / "ntf" / "control.sock").exists()


async def test_a_key_that_comes_later_is_not_ignored(tmp_path: Path) -> None:
    run("ntf", "init", tmp_path / "home" / "ntf", "--host", "127.0.0.1")
    run("router", "init", tmp_path / "home" / "router", "--host", "127.0.0.1")
    key = tmp_path / "apple.p8"
    key.write_text("no key, which is not read here")
    later = ("--apns-key", key, "--apns-key-id", "A1")
    said = await asyncio.to_thread(run, "up", tmp_path / "home", *later, code=1)
    assert "Set key_file and key_id of [apns] there" in said.stderr
    said = await asyncio.to_thread(run, "up", tmp_path / "home", *later[2:], code=2)
    assert "say in which file it is" in said.stderr


async def test_the_key_of_apple_is_kept_with_the_notification_router(tmp_path: Path) -> None:
    key = tmp_path / "AuthKey_A1.p8"
    key.write_bytes(new_key_pem(system_entropy))
    words = f"blindpost up {tmp_path}/home --host 127.0.0.1 --apns-key {key} --apns-key-id A1 --page-port 0"
    first = f"{words} --port {free_port()} --ntf-port {free_port()}"
    kept = tmp_path / "home" / "ntf" / "apple.p8"
    for command in (first, words):
        async with terminal(command, tmp_path) as servers:
            await servers.read(r"http://\S+")
        assert kept.read_bytes() == key.read_bytes()
        assert kept.stat().st_mode & 0o077 == 0
    kept.unlink()
    key.write_bytes(new_key_pem(system_entropy))
    async with terminal(words, tmp_path) as servers:
        await servers.read(r"http://\S+")
    assert kept.read_bytes() == key.read_bytes(), "a start that was killed before it was copied"
    key.write_bytes(new_key_pem(system_entropy))
    said = await asyncio.to_thread(run, *words.split()[1:], code=1)
    assert "Set key_file and key_id of [apns] there" in said.stderr


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`up` without its last step, to serve."""

    async def served(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(page, "_serve_page", served)
    app = typer.Typer()
    app.command()(page.up)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("host", ["b\u00fccher.example", "[::1]", "0:0:0:0:0:0:0:1", "SMP.Example.org"])
def test_a_host_in_another_form_is_the_same_at_the_next_start(
    host: str, tmp_path: Path, up: Callable[..., Result]
) -> None:
    for _ in range(2):
        done = up(tmp_path / "home", "--host", host, "--port", "5223")
        assert done.exit_code == 0, done.exception
    other = up(tmp_path / "home", "--host", "other.example")
    assert "set up for" in str(other.exception)
    assert "not for other.example" in str(other.exception)
    wrong = up(tmp_path / "home", "--host", "no host")
    assert "--host: " in str(wrong.exception)


def test_an_empty_folder_is_set_up_and_one_without_settings_is_named(
    tmp_path: Path, up: Callable[..., Result]
) -> None:
    for name in ("router", "ntf"):
        (tmp_path / "home" / name).mkdir(parents=True)
    done = up(tmp_path / "home", "--host", "127.0.0.1")
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "home" / "router" / "router.toml").exists()
    assert not list((tmp_path / "home" / "ntf").iterdir()), "nobody asked for one"
    (tmp_path / "home" / "router" / "router.toml").unlink()
    done = up(tmp_path / "home", "--host", "127.0.0.1")
    assert f"{tmp_path / 'home' / 'router'}: files are here, but no router.toml" in str(done.exception)
