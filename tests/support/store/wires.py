"""A wire between a store and its database that is cut where it hurts most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Wire:
    """Passes everything on until it is told to cut; later connections pass again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._marker: bytes | None = None
        self._after = False
        self._serving: set[asyncio.Task[None]] = set()

    def cut(self, marker: bytes = b"", *, after: bool) -> None:
        """At the next request that contains `marker`: before it, or after it and before its answer."""
        self._marker, self._after = marker, after

    def served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_unix_connection(self._path)
        cut = asyncio.Event()

        async def requests() -> None:
            while data := await reader.read(1 << 20):
                if self._marker is not None and self._marker in data:
                    self._marker = None
                    cut.set()
                    if not self._after:
                        return
                there_writer.write(data)

        async def answers() -> None:
            while data := await there_reader.read(1 << 20):
                if cut.is_set():
                    return
                writer.write(data)

        ways = [asyncio.create_task(requests()), asyncio.create_task(answers())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            there_writer.transport.abort()

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


@asynccontextmanager
async def wired(dsn: str) -> AsyncIterator[tuple[Wire, str]]:
    """A wire to the database at `dsn`, and the address of its near end."""
    name, folder = dsn.split("/", 3)[3].split("?host=")
    wire = Wire(f"{folder}/.s.PGSQL.5432")
    server = await asyncio.start_server(wire.served, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield wire, f"postgresql://tests@127.0.0.1:{port}/{name}?sslmode=disable"
    finally:
        server.close()
        await wire.close()
        await server.wait_closed()
