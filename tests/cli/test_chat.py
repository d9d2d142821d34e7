"""The terminal messenger in a separate process, over a real router."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.cli.talking import plain, shown_name
from tests.support.agent.agents import address_of
from tests.support.router.routers import running_router

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


class Terminal:
    """Types lines, and reads what is printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def read(self, part: str) -> str:
        """The next line that contains this."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while line := (await self._process.stdout.readline()).decode():
                self.lines.append(line)
                if part in line:
                    return line.strip()
        raise AssertionError(f"{part!r} was not printed, only {self.lines}")


@asynccontextmanager
async def terminal(*command: str) -> AsyncIterator[Terminal]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        yield Terminal(process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


class Screen:
    """A terminal as a person uses it: keys go in, screen output comes out."""

    def __init__(self, process: asyncio.subprocess.Process, end: int) -> None:
        self._process = process
        self._end = end
        self._shown = ""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(end, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._end, 65536)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._end)
        if b"\x1b[6n" in data:
            os.write(self._end, b"\x1b[1;1R")  # where the cursor is, which is asked for
        self._shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        self._more.set()

    def keys(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    async def shows(self, part: str) -> str:
        """Wait until this appears on the screen; return and discard all output up to it."""
        async with asyncio.timeout(PATIENCE_S):
            while part not in self._shown:
                self._more.clear()
                await self._more.wait()
        place = self._shown.index(part) + len(part)
        place = self._shown.find("\n", place) + 1 or place
        before, self._shown = self._shown[:place], self._shown[place:]
        return before

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._process.wait()


@asynccontextmanager
async def in_terminal(*command: str) -> AsyncIterator[Screen]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "400", "LINES": "50"},
    )
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


def chat(path: Path, server: str, name: str) -> tuple[str, ...]:
    return ("-m", "blindpost.cli", "chat", str(path), "-s", server, "--name", name)


async def test_two_people_talk(tmp_path: Path) -> None:
    async with running_router(tmp_path / "router") as router:
        server = address_of(router.server)
        async with (
            terminal(*chat(tmp_path / "a.db", server, "Alice")) as alice,
            terminal(*chat(tmp_path / "b.db", server, "Bob")) as bob,
        ):
            alice.type("/nonsense")
            await alice.read("There is no command /nonsense")
            alice.type("/invite")
            link = await alice.read("https://")
            bob.type("hello?")
            await bob.read("There is nobody to talk to yet")
            bob.type(f"/join {link}")
            await bob.read("Connected with Alice, post-quantum.")
            await alice.read("Connected with Bob, post-quantum.")
            bob.type("hello Alice")
            await alice.read("Bob: hello Alice")
            await bob.read("delivered to Alice")
            alice.type("hello Bob")
            await bob.read("Alice: hello Bob")
            alice.type("/code")
            bob.type("/code")
            assert await alice.read(" ") == await bob.read(" ")
            bob.type("/quit")
        async with terminal(*chat(tmp_path / "b.db", server, "Bob")) as bob:
            await bob.read("1 conversations")


async def test_a_wrong_server_address_gives_one_message(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *chat(tmp_path / "a.db", "smp://nonsense", "A"),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().count("\n") == 1


async def test_a_contact_request_is_accepted(tmp_path: Path) -> None:
    async with running_router(tmp_path / "router") as router:
        server = address_of(router.server)
        async with (
            terminal(*chat(tmp_path / "a.db", server, "Alice")) as alice,
            terminal(*chat(tmp_path / "b.db", server, "Bob\x1b[2J")) as bob,
        ):
            alice.type("/accept 1")
            await alice.read("There are no requests")
            alice.type("/address")
            link = await alice.read("https://")
            bob.type(f"/join {link} it is me")
            await bob.read("Connecting with Alice")
            assert "\x1b" not in await alice.read("wants to talk to you, saying: it is me")
            alice.type("/accept")
            await alice.read("Connected with Bob")
            await alice.read("it is me")
            await bob.read("Connected with Alice")
            alice.type("/reply hello")
            await bob.read("> it is me")
            await bob.read("Alice: hello")
            bob.type("/react 🚀")
            await alice.read("🚀")
            alice.type("/edit hello Bob")
            await bob.read("edited: hello Bob")
            alice.type("/delete")
            await bob.read("deleted a message")
            bob.type("/react boo")
            await bob.read("/react needs")
            bob.type("/leave")
            await alice.read("left.")
            bob.type("anybody?")
            await bob.read("! nothing can be said")
            bob.type("/list")
            await bob.read("Alice  left")


async def test_a_half_typed_line_stays_whole_in_a_terminal(tmp_path: Path) -> None:
    """Incoming messages are printed above the line being typed, and the line is sent intact."""
    async with running_router(tmp_path / "router") as router:
        server = address_of(router.server)
        async with (
            in_terminal(*chat(tmp_path / "a.db", server, "Alice"), "--no-qr") as alice,
            terminal(*chat(tmp_path / "b.db", server, "Bob")) as bob,
        ):
            await alice.shows("/help shows")
            alice.keys("/invite\r")
            link = re.search(r"https://\S+", await alice.shows("&c="))
            assert link is not None
            bob.type(f"/join {link[0]}")
            await bob.read("Connected with Alice")
            await alice.shows("Connected with Bob")
            alice.keys("hello B")
            await alice.shows("hello B")
            bob.type("I interrupt you")
            await alice.shows("Bob: I interrupt you")
            alice.keys("ob\r")
            await bob.read("Alice: hello Bob")
            await alice.shows("delivered to Bob")
            alice.keys("\x1b[A")
            alice.keys("!\r")
            await bob.read("Alice: hello Bob!")
            alice.keys("/quit\r")
            await alice.ended()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Eve\nBob: pay her", "Eve Bob: pay her"),
        ("Eve\u2028Bob", "Eve Bob"),
        ("\u202eeve\x1b[2J\r", "\ufffdeve\ufffd[2J\ufffd"),
        ("x" * 100_000, "x" * 63 + "\u2026"),
        ("\n", "somebody without a name"),
    ],
    ids=["lines", "separators", "controls", "long", "empty"],
)
def test_a_name_is_one_short_line_that_a_terminal_does_not_obey(name: str, shown: str) -> None:
    assert shown_name(name) == shown


def test_no_line_of_a_message_looks_like_a_message_of_somebody_else() -> None:
    assert plain("hello\nBob: pay her\u2029Carol: yes") == "hello\n    Bob: pay her\n    Carol: yes"
    assert plain("") == ""
