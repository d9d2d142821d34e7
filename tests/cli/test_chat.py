"""The terminal messenger and the echo bot, each as a process of its own, over a real router."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from blindpost.agent import Connected
from tests.support.agent.agents import address_of, party
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
        """The next line that has this in it."""
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
            await alice.read("/nonsense is no command")
            alice.type("/invite")
            link = await alice.read("https://")
            bob.type("hello?")
            await bob.read("Nobody is there yet")
            bob.type(f"/join {link}")
            await bob.read("Connected with Alice, post-quantum")
            await alice.read("Connected with Bob")
            bob.type("hello Alice")
            await alice.read("Bob: hello Alice")
            await bob.read("Alice has it")
            alice.type("hello Bob")
            await bob.read("Alice: hello Bob")
            alice.type("/code")
            bob.type("/code")
            assert await alice.read(" ") == await bob.read(" ")
            bob.type("/quit")
        async with terminal(*chat(tmp_path / "b.db", server, "Bob")) as bob:
            await bob.read("1 connections")


async def test_wrong_server_is_one_message(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *chat(tmp_path / "a.db", "smp://nonsense", "A"),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().count("\n") == 1


async def test_echo_bot(tmp_path: Path) -> None:
    async with running_router(tmp_path / "router") as router:
        server = address_of(router.server)
        async with (
            terminal("examples/echo_bot.py", str(tmp_path / "bot.db"), server) as bot,
            party(tmp_path / "a.db", router.server) as alice,
        ):
            link = await bot.read("https://")
            assert (await alice.agent.read_link(link)).user_data == b"echo bot"
            conn = await alice.agent.join(link, info=b"Alice")
            await bot.read("asked by Alice")
            await alice.expect(Connected)
            assert (await alice.message()).msg.body == b"Say something!"
            await conn.send(b"something")
            assert (await alice.message()).msg.body == b"something"
