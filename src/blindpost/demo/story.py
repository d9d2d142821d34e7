"""The demonstration from the first server to the report: every scene in order, then everything stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blindpost.canary.settings import CONFIG_NAME, config_text
from blindpost.demo import report
from blindpost.demo.figures import Row, Say
from blindpost.demo.people import Person, person
from blindpost.demo.scenes import kill, letters, payloads, push, recovery, rotation, service
from blindpost.demo.stage import Router, Served, command, keep_journal, stop_all
from blindpost.ops.listening import bind, serving
from blindpost.ops.page import Page
from blindpost.ops.servers import find
from blindpost.serving.children import free_port
from blindpost.testing import ApnsServer

JOURNAL = "journal"
CANARY_MESSAGES = 20


@dataclass
class Shown:
    """What the demonstration showed."""

    rows: list[Row] = field(default_factory=list)
    report: Path | None = None
    taken_s: float = 0.0

    @property
    def good(self) -> bool:
        return all(row.good for row in self.rows)


@dataclass
class Stage:
    """All servers, set up and not started yet."""

    folder: Path
    journal: Path
    routers: list[Router]
    ntf: Served
    ntf_address: str
    ds: Served
    ds_fingerprint: bytes
    canary: Served

    @property
    def servers(self) -> list[Served]:
        return [*self.routers, self.ntf, self.ds, self.canary]


async def tell(
    folder: Path, say: Say, *, queues: int, with_report: bool, tables: Sequence[str] = ()
) -> Shown:
    """Play everything with all files in `folder`; nothing runs afterwards."""
    started = time.monotonic()
    shown = Shown()
    async with _page(folder, say) as page, ApnsServer() as apple:
        await _served(folder, apple, say, queues, shown, page)
    if with_report:
        shown.report, rows = await report.make(folder / JOURNAL, folder, tables, say)
        shown.rows += rows
    shown.taken_s = time.monotonic() - started
    return shown


@contextlib.asynccontextmanager
async def _page(folder: Path, say: Say) -> AsyncIterator[Page]:
    """The operator's page, from the first moment until the servers have stopped."""
    token, listening = secrets.token_urlsafe(32), bind("127.0.0.1", 0)
    page = Page([], token=token, history=folder / "page.history.json")
    async with serving(page, listening):
        port = listening.getsockname()[1]
        say(f"watch it on the operator's page: http://127.0.0.1:{port}/?token={token}")
        yield page


async def _served(folder: Path, apple: ApnsServer, say: Say, queues: int, shown: Shown, page: Page) -> None:
    """Everything that needs servers."""
    say("setting up two SMP routers, a notification router, a delivery service and a canary")
    stage = await _set_up(folder, apple)
    for server in stage.servers:
        page.add(find(server.folder))
    try:
        await asyncio.gather(*(server.start() for server in stage.servers))
        say("all of them run, each a process of its own, and speak TLS 1.3")
        await _play(stage, apple, say, queues, shown.rows)
        shown.rows += await _canary(stage.canary, say)
        for router in stage.routers:
            await command("router", "export-state", stage.journal, "-c", router.folder)
    finally:
        await stop_all(stage.servers)
    say("every server has stopped; what they accepted is stored and answered")


async def _set_up(folder: Path, apple: ApnsServer) -> Stage:
    journal = folder / JOURNAL
    ntf, ds = Served("ntf", folder / "bell"), Served("ds", folder / "mls")
    at = ("--host", "127.0.0.1", "--port", str(free_port()), "--json")
    *routers, told, printed = await asyncio.gather(
        Router.set_up(folder / "oak", journal),
        Router.set_up(folder / "elm", journal),
        command("ntf", "init", ntf.folder, *at),
        command("ds", "init", ds.folder, "--host", "localhost", "--port", str(free_port()), "--json"),
    )
    address, made = json.loads(told)["address"], json.loads(printed)
    push.at_apple(ntf, apple)
    keep_journal(ntf, journal, "bell")
    ds.edit(listen__address='"127.0.0.1"', auth__mode='"open"')
    keep_journal(ds, journal, "mls")
    canary = Served("canary", folder / "canary")
    canary.folder.mkdir()
    text = config_text({router.folder.name: router.address for router in routers})
    (canary.folder / CONFIG_NAME).write_text(text)
    canary.edit(messages__interval_s="0.5")
    keep_journal(canary, journal, "canary")
    return Stage(folder, journal, routers, ntf, address, ds, bytes.fromhex(made["fingerprint"]), canary)


async def _play(stage: Stage, apple: ApnsServer, say: Say, queues: int, rows: list[Row]) -> None:
    folder, addresses = stage.folder, [router.address for router in stage.routers]
    async with (
        person("Alice", folder / "alice.db", addresses) as alice,
        contextlib.AsyncExitStack() as bobs,
    ):
        store = folder / "bob.db"
        bob: Person = await bobs.enter_async_context(person("Bob", store, addresses[1:]))
        rows += await letters.play(alice, bob, say)
        rows += await rotation.play(alice, bob, say)
        rows += await kill.play(alice, bob, stage.routers, say)
        rows += await recovery.play(alice, bobs, bob, store, say)
        bell = push.Bell(stage.ntf, stage.ntf_address)
        rows += await push.play(alice, folder, addresses[0], bell, apple, say)
    rows += await service.play(stage.routers[0], folder / "service.db", queues, say)
    rows += await payloads.play(stage.ds, stage.ds_fingerprint, say)


async def _canary(canary: Served, say: Say) -> list[Row]:
    told = await canary.until("delivered", CANARY_MESSAGES)
    say(f"meanwhile a canary followed {told['sent']} messages of its own from router to router")
    seen = f"{told['delivered']} delivered, {told['lost']} lost, half within {told['p50_ms']:.0f} ms"
    return [Row("canary between the routers", seen, told["lost"] == told["duplicate"] == 0)]
