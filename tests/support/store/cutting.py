"""A way to a database that can be cut as a network is: nothing passes, and nobody is told."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

SOCKET = ".s.PGSQL.5432"


class Way:
    """Connections to one database, through here."""

    def __init__(self, dsn: str, folder: Path) -> None:
        (there,) = parse_qs(urlsplit(dsn).query)["host"]
        self.dsn = dsn.replace(there, str(folder))
        self._there = str(Path(there) / SOCKET)
        self._here = str(folder / SOCKET)
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._here)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        there_reader, there_writer = await asyncio.open_unix_connection(self._there)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(1 << 16):
                    await self._open.wait()
                    sink.write(data)
                    await sink.drain()
                await self._open.wait()
        finally:
            sink.close()


@contextlib.asynccontextmanager
async def way_to(dsn: str) -> AsyncIterator[Way]:
    with tempfile.TemporaryDirectory(prefix="blindpost-way-") as folder:
        way = Way(dsn, Path(folder))
        await way.listen()
        try:
            yield way
        finally:
            await way.close()
