"""Servers under attack, each with a bystander who uses it as it is meant to be used."""

from __future__ import annotations

import asyncio
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from blindpost.client.smp import SmpClient
from blindpost.ds.client import DsClient
from blindpost.wire.ntf.commands import PING as NTF_PING
from blindpost.wire.ntf.responses import PONG as NTF_PONG
from blindpost.wire.smp.commands import ACK, SEND
from blindpost.wire.smp.responses import MSG, OK
from blindpost.wire.text import unb64
from tests.support.ds.process import configure as configure_ds
from tests.support.ds.process import ds_in_process
from tests.support.ntf.process import configure as configure_ntf
from tests.support.ntf.process import ntf_in_process
from tests.support.router.routers import new_queue, pushed
from tests.support.serving.commands import Started, StartedRouter, edit, init, set_fronts

MEMORY_MIB = 384
"""What the servers under attack promise."""
STORED_MIB = 16
"""What they may store, where that has a bound."""
BOB = b"B" * 32


class Target(ABC):
    """A running server, seen from outside."""

    def __init__(self, server: Started, key_hash: bytes) -> None:
        self.server = server
        self.key_hash = key_hash

    kind: str
    port: int

    @property
    def pid(self) -> int:
        return self.server.child.pid

    @property
    def pids(self) -> list[int]:
        """Of the server and the processes that it started."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [self.pid, *map(int, children.split())]

    def memory(self) -> int:
        """What it takes, the mapped files of its store apart."""
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
        found = [re.search(r"^RssAnon:\s+(\d+) kB$", text, re.MULTILINE) for text in texts]
        return sum(int(one[1]) * 1024 for one in found if one is not None)

    def descriptors(self) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids)

    async def rows(self) -> object:
        """What the store holds, as far as a bystander does not change it."""
        return None

    async def still(self) -> object:
        """The same when nothing of the bystander's is under way."""
        return await self.rows()

    async def stored(self) -> int:
        """Bytes that count against what it may store."""
        return 0

    async def held(self) -> int:
        """How many connections the largest accounts have."""
        told = await self.server.ask("connections" if self.kind == "router" else "status")
        return sum(int(one["connections"]) for one in told["top"])

    @abstractmethod
    async def join(self) -> None:
        """Let the bystander connect."""

    @abstractmethod
    async def exchange(self, number: int) -> None:
        """One message there and back, which must be the one that was sent."""

    @abstractmethod
    async def leave(self) -> None: ...

    async def timed(self, number: int) -> float:
        before = time.perf_counter()
        async with asyncio.timeout(60):
            await self.exchange(number)
        return time.perf_counter() - before


class RouterTarget(Target):
    kind = "router"

    @property
    def port(self) -> int:  # type: ignore[override]  # read from the server
        return int(self.server.status["ports"][0])

    async def rows(self) -> object:
        status = await self.server.ask("stats")
        return {
            name: status["stored"][name]
            for name in ("queues", "messages", "services")
            if name in status["stored"]
        }

    async def stored(self) -> int:
        return int((await self.server.ask("connections"))["stored_bytes"])

    async def join(self) -> None:
        assert isinstance(self.server, StartedRouter)
        self._receiver: SmpClient = await self.server.connect()
        self._sender: SmpClient = await self.server.connect()
        self._queue = await new_queue(self._receiver, secured=True)

    async def exchange(self, number: int) -> None:
        body = b"%d" % number
        queue = self._queue
        assert await self._sender.send(SEND(False, body), queue.sender_id, queue.sender_key) == OK()
        event = await pushed(self._receiver)
        assert isinstance(event.response, MSG)
        assert bytes(queue.opened(event.response).body) == body  # type: ignore[union-attr]  # no marker
        assert await self._receiver.send(ACK(event.response.msg_id), queue.recipient_id, queue.key) == OK()

    async def leave(self) -> None:
        await self._receiver.close()
        await self._sender.close()


class NtfTarget(Target):
    kind = "ntf"

    @property
    def port(self) -> int:  # type: ignore[override]  # read from the server
        return int(self.server.server.port)  # type: ignore[attr-defined]  # as notification routers have

    async def rows(self) -> object:
        status = await self.server.ask("status")
        return status["tokens"], status["subscriptions"]

    async def join(self) -> None:
        self._client = await self.server.connect()  # type: ignore[attr-defined]

    async def exchange(self, number: int) -> None:
        assert await self._client.send(NTF_PING()) == NTF_PONG()

    async def leave(self) -> None:
        await self._client.close()


class DsTarget(Target):
    kind = "ds"

    @property
    def port(self) -> int:  # type: ignore[override]  # read from the server
        return int(self.server.port)  # type: ignore[attr-defined]

    async def rows(self) -> object:
        status = await self.server.ask("status")
        return status["payloads"], status["bytes"]

    async def still(self) -> object:
        """What was fetched is deleted a moment after the answer."""
        async with asyncio.timeout(60):
            while True:
                rows = await self.rows()
                if rows == (0, 0):
                    return rows
                await asyncio.sleep(0.05)

    async def stored(self) -> int:
        return int((await self.server.ask("status"))["bytes"])

    async def join(self) -> None:
        self._client: DsClient = await self.server.client()  # type: ignore[attr-defined]

    async def exchange(self, number: int) -> None:
        await self._client.enqueue(BOB, b"%d" % number)
        assert await self._client.fetch(BOB) == (b"%d" % number,)

    async def leave(self) -> None:
        await self._client.close()


@asynccontextmanager
async def target(kind: str, folder: Path, dsn: str | None, fronts: int = 0) -> AsyncIterator[Target]:
    """A server of this kind, on its own store or on a database; a router, with its connections in fronts."""
    memory = ("memory_mib = 2048", f"memory_mib = {MEMORY_MIB}")
    database = () if dsn is None else ("--store", "postgres", "--dsn", dsn)
    if kind == "router":
        made = await asyncio.to_thread(init, folder, *database)
        edit(folder, *memory)
        set_fronts(folder, fronts)
        edit(folder, "stored_mib = 262144", f"stored_mib = {STORED_MIB}")
        router = StartedRouter(folder)
        try:
            await router.start()
            yield RouterTarget(router, unb64(str(made["fingerprint"])))
        finally:
            await router.close()
    elif kind == "ntf":
        async with ntf_in_process(folder, *database) as ntf:
            configure_ntf(folder, memory)
            await ntf.start()
            yield NtfTarget(ntf, ntf.server.key_hash)
    else:
        async with ds_in_process(folder) as ds:
            configure_ds(folder, "[listen]\n", f"[listen]\nmemory_mib = {MEMORY_MIB}\n")
            with (folder / "ds.toml").open("a") as settings:
                settings.write(f"\n[limits]\ntotal_bytes = {STORED_MIB << 20}\n")
            if dsn is not None:
                configure_ds(folder, 'durability = "full"', f'durability = "full"\ndatabase = "{dsn}"')
            await ds.start()
            yield DsTarget(ds, ds.fingerprint)
