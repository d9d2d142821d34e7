"""Many long polls and producers over cut connections to a service that is killed repeatedly.

Long form (`make ds-kills`): BLINDPOST_DS_ROUNDS=50 BLINDPOST_DS_PRODUCERS=50 BLINDPOST_DS_READERS=1000.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from blindpost.ds.client import DsClient, DsError, RefusedError
from blindpost.ds.model import LARGE_BYTES
from tests.support.ds.process import StartedDs, configure, ds_in_process

ROUNDS = int(os.environ.get("BLINDPOST_DS_ROUNDS", "2"))
PRODUCERS = int(os.environ.get("BLINDPOST_DS_PRODUCERS", "6"))
READERS = int(os.environ.get("BLINDPOST_DS_READERS", "40"))
READERS_PER_CONNECTION = 20
PAYLOADS_PER_ROUND = 100
IS_LONG = ROUNDS > 10
TEST_S_MAX = 3600 if IS_LONG else 300
LARGE_EVERY = 50
"""One in this many payloads is large."""


class Line:
    """One connection that several callers share, and renew when it is lost."""

    def __init__(self, ds: StartedDs, *, quic: bool) -> None:
        self._ds = ds
        self._quic = quic
        self._client: DsClient | None = None
        self._renewing = asyncio.Lock()
        self._version = 0

    async def run(self, call: Callable[[DsClient], Awaitable[None]]) -> None:
        """Make a call; a refusal or a lost connection raises `DsError`, after renewing."""
        version = await self._renewed(0)
        assert self._client is not None
        try:
            await call(self._client)
        except RefusedError:
            await asyncio.sleep(0.01)
            raise
        except DsError:
            await self._renewed(version)
            raise

    async def _renewed(self, lost: int) -> int:
        """The number of a connection newer than the lost one."""
        async with self._renewing:
            while self._version == lost:
                try:
                    if self._client is None:
                        self._client = await self._ds.client(quic=self._quic)
                    else:
                        await self._client.reconnect()
                    self._version += 1
                except DsError:
                    await asyncio.sleep(0.05)
        return self._version

    def cut(self, *, silent: bool = True) -> None:
        """End the connection; over QUIC either silently or with a close."""
        wire = None if self._client is None else self._client._wire
        if wire is not None and wire._transport is not None:
            wire._transport.abort() if silent or not self._quic else wire._transport.close()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


class Load:
    """Every reader waits for a separate queue; producers send to all of them."""

    def __init__(self, ds: StartedDs, source: random.Random, *, quic: bool) -> None:
        self.acknowledged: dict[int, set[bytes]] = {number: set() for number in range(READERS)}
        self.count = 0
        self.seen: dict[int, Counter[bytes]] = {number: Counter() for number in range(READERS)}
        self.producing = True
        self._source = source
        lines = -(-READERS // READERS_PER_CONNECTION)
        self._reading = [Line(ds, quic=quic) for _ in range(lines)]
        self._sending = [Line(ds, quic=quic) for _ in range(PRODUCERS)]
        self.lines = lines + PRODUCERS

    def cut_one(self) -> None:
        """A service notices a silent client only after half a minute; only the long form waits for that."""
        self._source.choice(self._reading + self._sending).cut(silent=IS_LONG and self._source.random() < 0.2)

    def cut_all(self) -> None:
        """A client over QUIC notices by itself that its service was killed, but only after half a minute."""
        for line in self._reading + self._sending:
            line.cut()

    async def produce(self, number: int) -> None:
        step, line = 0, self._sending[number]
        while self.producing:
            reader, step = self._source.randrange(READERS), step + 1
            payload = b"%d/%d;" % (number, step)
            if step % LARGE_EVERY == number % LARGE_EVERY:
                payload = payload.ljust(LARGE_BYTES + 1, b"L")

            async def send(client: DsClient, reader: int = reader, payload: bytes = payload) -> None:
                await client.enqueue(_key(reader), payload)

            try:
                await line.run(send)
            except DsError:
                continue  # it may have been stored
            self.acknowledged[reader].add(_name(payload))
            self.count += 1
            await asyncio.sleep(0.2 if IS_LONG else 0)

    async def read(self, number: int) -> None:
        line, seen = self._reading[number // READERS_PER_CONNECTION], self.seen[number]

        async def receive(client: DsClient) -> None:
            async for payload in client.receive(_key(number), lease_s=5):
                seen[_name(payload)] += 1

        async def fetch(client: DsClient) -> None:
            seen.update(map(_name, await client.fetch_wait(_key(number), timeout_s=30)))

        while True:
            try:
                await line.run(receive if self.leases(number) else fetch)
            except DsError:
                continue

    @staticmethod
    def leases(number: int) -> bool:
        """Three of four readers lease and acknowledge, the others fetch."""
        return number % 4 != 3

    def missing(self) -> int:
        return sum(len(self.acknowledged[number] - self.seen[number].keys()) for number in self.seen)

    def doubled(self) -> list[bytes]:
        """What callers that lease and acknowledge saw more than once."""
        return [
            name
            for number, seen in self.seen.items()
            if self.leases(number)
            for name, count in seen.items()
            if count > 1
        ]

    async def close(self) -> None:
        for line in self._reading + self._sending:
            await line.close()


def _key(reader: int) -> bytes:
    return reader.to_bytes(32, "big")


def _name(payload: bytes) -> bytes:
    return payload.partition(b";")[0]


@pytest.mark.claim("DLV-48")
@pytest.mark.timeout(TEST_S_MAX)
@pytest.mark.parametrize("kind", ["tls", "quic", "postgres"])
async def test_nothing_is_lost_over_cuts_and_kills(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Every acknowledged payload is delivered; callers that lease and acknowledge see each once."""
    source = random.Random(7)
    async with ds_in_process(tmp_path / "ds") as ds:
        if kind == "postgres":
            dsn = request.getfixturevalue("database")
            configure(ds.folder, "[store]", f'[store]\ndatabase = "{dsn}"')
        await ds.start()
        load = Load(ds, source, quic=kind == "quic")
        readers = [asyncio.create_task(load.read(number)) for number in range(READERS)]
        await until(ds, lambda status: status["waiting"] == READERS)
        rounds = ROUNDS if IS_LONG or kind == "tls" else 1
        producers = [asyncio.create_task(load.produce(number)) for number in range(PRODUCERS)]
        for _ in range(rounds):
            goal = load.count + PAYLOADS_PER_ROUND
            while load.count < goal:
                await asyncio.sleep(0.01)
                if source.random() < 0.2:
                    load.cut_one()
            await until(ds, lambda status: status["connections"] >= load.lines)
            await ds.end(signal.SIGKILL)
            if kind == "quic":
                load.cut_all()
            await ds.start()
        load.producing = False
        await asyncio.gather(*producers)
        while load.missing():
            assert not any(reader.done() for reader in readers)
            await asyncio.sleep(0.05)
        await until(ds, lambda status: status["waiting"] >= READERS and not status["payloads"])
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert load.count >= PAYLOADS_PER_ROUND * rounds
        assert load.doubled() == []
        await load.close()


async def until(ds: StartedDs, true: Callable[[dict[str, Any]], bool]) -> None:
    """Wait for what the service says about itself."""
    while True:
        if true(await ds.ask("status")):
            return
        await asyncio.sleep(0.1)
