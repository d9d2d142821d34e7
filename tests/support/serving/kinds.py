"""The four kinds of servers, each set up by its own command and used in the way that shows what it keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from blindpost.cli.main import GROUPS
from blindpost.client.ntf import NtfClient
from blindpost.ds.client import DsClient
from blindpost.serving.children import free_port
from blindpost.wire.addresses import Host, Server
from blindpost.wire.text import unb64
from tests.support.ntf.routers import Device
from tests.support.router.routers import a_message, new_queue
from tests.support.serving.commands import Started, StartedRouter

NOWHERE = f"smp://{'A' * 43}=@127.0.0.1:1"
KEY = bytes(range(32))


@dataclass(frozen=True)
class Kind:
    """How one kind is set up; the table and a setting that SIGHUP takes over, and one that it cannot."""

    word: str
    options: tuple[str, ...]
    secrets: tuple[str, ...]
    taken: tuple[str, str]
    """A line of the configuration and what it is changed to."""
    restart: tuple[str, str]
    connections: tuple[str, str]
    """A line that asks for more connections than a test allows files; nothing for a canary."""
    use: Callable[[Started, dict[str, Any]], Awaitable[None]]
    kept: Callable[[dict[str, Any]], int]
    """Of its status: how much of what `use` did is there."""


async def _use_router(started: Started, made: dict[str, Any]) -> None:
    assert isinstance(started, StartedRouter)
    async with await started.connect() as client:
        queue = await new_queue(client, secured=True)
        await client.send(a_message(), queue.sender_id, queue.sender_key)


async def _use_ntf(started: Started, made: dict[str, Any]) -> None:
    port = str(started.status["ports"][0])
    server = Server((Host("127.0.0.1"),), port, unb64(str(made["fingerprint"])))
    client = await NtfClient.connect(server)
    await Device(client).register()
    await client.close()


async def _use_ds(started: Started, made: dict[str, Any]) -> None:
    fingerprint = bytes.fromhex(str(made["fingerprint"]))
    port = int(started.status["ports"]["tls"])
    async with await DsClient.connect("127.0.0.1", port, fingerprint=fingerprint) as client:
        await client.enqueue(KEY, b"payload")


async def _use_canary(started: Started, made: dict[str, Any]) -> None:
    """Its agents are there as soon as it serves."""


ROUTER = Kind(
    "router",
    ("--host", "127.0.0.1", "--listen", "127.0.0.1", "--no-qr", "--open"),
    ("keys/router.pem", "keys/ca.key"),
    ("connections_per_address = 1000", "connections_per_address = 999"),
    ("inbox_kib = 128", "inbox_kib = 256"),
    ("connections = 50000", "connections = 500"),
    _use_router,
    lambda status: int(status["messages"]),
)
NTF = Kind(
    "ntf",
    ("--host", "127.0.0.1", "--key-algorithm", "ed25519"),
    ("keys/ntf.pem", "keys/ca.key", "store.key"),
    ("handshakes = 2000", "handshakes = 1999"),
    ("use_services = true", "use_services = false"),
    ("connections = 50000", "connections = 500"),
    _use_ntf,
    lambda status: int(status["tokens"]),
)
DS = Kind(
    "ds",
    ("--host", "127.0.0.1"),
    ("ds.key",),
    ('mode = "open"', 'mode = "tokens"'),
    ('durability = "full"', 'durability = "os"'),
    ('address = "*"', 'connections = 500\naddress = "*"'),
    _use_ds,
    lambda status: int(status["payloads"]),
)
CANARY = Kind(
    "canary",
    ("--router", f"home={NOWHERE}"),
    ("agents/home.db",),
    ("size = 1000", "size = 1001"),
    ("proxy = false", "proxy = true"),
    ("", ""),
    _use_canary,
    lambda status: 1,
)
KINDS = (ROUTER, NTF, DS, CANARY)


def change(folder: Path, kind: Kind, *edits: tuple[str, str]) -> None:
    """Change lines of the configuration."""
    file = folder / f"{kind.word}.toml"
    text = file.read_text()
    for before, after in edits:
        assert text.count(before) >= 1, before
        text = text.replace(before, after, 1)
    file.write_text(text)


def make(kind: Kind, folder: Path, *options: str) -> dict[str, Any]:
    """Set up a server with metrics at a port that the system chooses; what `init --json` printed."""
    at = () if kind is CANARY else ("--port", str(free_port()), "--json")
    done = CliRunner().invoke(GROUPS[kind.word](), ["init", str(folder), *kind.options, *options, *at])
    assert done.exit_code == 0, (done.output, done.exception)
    change(folder, kind, ('enabled = false\naddress = "127.0.0.1"', 'enabled = true\naddress = "127.0.0.1"'))
    file = folder / f"{kind.word}.toml"
    head, table, tail = file.read_text().partition("[metrics]")
    lines = ["port = 0" if line.startswith("port = ") else line for line in tail.split("\n")]
    file.write_text(head + table + "\n".join(lines))
    if kind is DS:
        change(folder, kind, ('mode = "tokens"', 'mode = "open"'))
    return {} if kind is CANARY else json.loads(done.stdout)


def started(kind: Kind, folder: Path) -> Started:
    """Its server, not started yet."""
    if kind is ROUTER:
        return StartedRouter(folder)

    class Of(Started):
        pass

    Of.kind = kind.word
    return Of(folder)


async def http(port: int, path: str) -> tuple[int, str]:
    """Status and body of one GET on loopback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body
