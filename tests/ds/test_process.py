"""The real command: set up, start, send, receive, kill."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from pathlib import Path

import pytest

from blindpost.ds.client import Client, DsError, RefusedError
from tests.support.commands import run
from tests.support.delivery import ALICE, BOB
from tests.support.ds_process import StartedDs, configure, ds_in_process

ROUNDS = int(os.environ.get("BLINDPOST_DS_ROUNDS", "2"))
PRODUCERS = int(os.environ.get("BLINDPOST_DS_PRODUCERS", "6"))
READERS = int(os.environ.get("BLINDPOST_DS_READERS", "40"))


@pytest.mark.claim("DLV-17")
async def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    async with ds_in_process(tmp_path / "ds") as ds:
        await ds.start()
        client = await ds.client()
        for number in range(3):
            await client.enqueue(ALICE, b"%d" % number)
        await ds.end(signal.SIGKILL)
        await ds.start()
        async with await ds.client() as after:
            assert await after.fetch(ALICE) == (b"0", b"1", b"2")
        await client.close()


async def test_send_and_receive_with_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    async with ds_in_process(folder, is_open=False) as ds:
        await ds.start()
        at = ("--server", f"127.0.0.1:{ds.port}", "--fingerprint", ds.fingerprint.hex())

        def command(*arguments: str | Path, code: int = 0) -> str:
            done = run("ds", *arguments, code=code)
            return done.stdout + done.stderr

        payload = tmp_path / "payload"
        payload.write_bytes(b"from a file")
        sending = ("send", ALICE.hex(), *at, "--file", payload)
        assert "authentication failed" in await asyncio.to_thread(command, *sending, code=1)
        token = (await asyncio.to_thread(command, "token", ALICE.hex(), "-c", folder)).strip()
        ds.hang_up()
        for way in ("--tls", "--quic"):
            told = await asyncio.to_thread(command, *sending, "--token", token, way)
            assert "Stored 11 bytes" in told
        receiving = ("receive", ALICE.hex(), *at, "--token", token, "--folder", tmp_path / "in")
        assert "Received 2 payloads" in await asyncio.to_thread(command, *receiving)
        assert [file.read_bytes() for file in (tmp_path / "in").iterdir()] == [b"from a file"] * 2
        other = ("receive", BOB.hex(), *at, "--token", token)
        assert "belongs to another identity" in await asyncio.to_thread(command, *other, code=1)
        status = json.loads(await asyncio.to_thread(command, "status", "-c", folder, "--json"))
        assert status["payloads"] == 0
        assert status["counters"]["acknowledged"] == 2
        assert await ds.end(signal.SIGTERM) == 0
        assert token.encode() not in ds.log
        assert token not in (folder / "tokens").read_text()
        assert "no server listens" in await asyncio.to_thread(command, "status", "-c", folder, code=1)


async def test_mistakes_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    async with ds_in_process(folder) as ds:
        await ds.start()
        bin_file = tmp_path / "deliveries.bin"
        bin_file.write_bytes(b"nonsense")

        def failure(*arguments: str | Path) -> str:
            return run("ds", *arguments, code=1).stderr

        importing = ("import", bin_file, "-c", folder)
        assert "is running in this folder" in await asyncio.to_thread(failure, *importing)
        await ds.end(signal.SIGTERM)
        assert "V2: " in await asyncio.to_thread(failure, *importing)
        assert "not empty" in await asyncio.to_thread(failure, "init", folder, "--host", "x")
        assert "hexadecimal digits" in await asyncio.to_thread(failure, "token", "zz" * 3, "-c", folder)
        configure(folder, "[store]", "[store]\nfolders = 1")
        assert "store.folders" in await asyncio.to_thread(failure, "start", "-c", folder)
        assert "no delivery service is set up" in await asyncio.to_thread(
            failure, "start", "-c", tmp_path / "nowhere"
        )


class Load:
    """Producers and readers that go on over cuts and kills, and what they know."""

    def __init__(self, ds: StartedDs) -> None:
        self.ds = ds
        self.acknowledged: set[bytes] = set()
        self.seen: list[bytes] = []
        self.clients: list[Client] = []
        self.producing = True

    async def connect(self, quic: bool) -> Client:
        while True:
            try:
                client = await self.ds.client(quic=quic)
            except DsError:
                await asyncio.sleep(0.05)
                continue
            self.clients.append(client)
            return client

    async def produce(self, number: int) -> None:
        key, step = bytes((number % 10,)) * 32, 0
        client = await self.connect(quic=number % 2 == 1)
        while self.producing:
            payload = b"%d/%d" % (number, step)
            try:
                await client.enqueue(key, payload)
                self.acknowledged.add(payload)
                step += 1
            except RefusedError:
                await asyncio.sleep(0.01)
            except DsError:
                step += 1  # it may have been stored
                client = await self.connect(quic=number % 2 == 1)
            await asyncio.sleep(0)
        await client.close()

    async def read(self, number: int) -> None:
        """The reader of one of ten queues."""
        key = bytes((number % 10,)) * 32
        client = await self.connect(quic=number % 2 == 1)
        while True:
            try:
                async for payload in client.receive(key, lease_s=2):
                    self.seen.append(payload)
            except RefusedError:
                await asyncio.sleep(0.01)
            except DsError:
                while True:
                    try:
                        await client.reconnect()
                        break
                    except DsError:
                        await asyncio.sleep(0.05)

    async def poll(self, number: int) -> None:
        """Wait for a queue to which nobody sends."""
        key = b"idle%04d" % number * 4
        client = await self.connect(quic=number % 4 == 3)
        while True:
            try:
                assert await client.fetch_wait(key, timeout_s=5) == ()
            except DsError:
                client = await self.connect(quic=number % 4 == 3)

    def is_complete(self) -> bool:
        return self.acknowledged <= set(self.seen)


@pytest.mark.claim("DLV-48")
@pytest.mark.timeout(600)
async def test_nothing_is_lost_over_cuts_and_kills(tmp_path: Path) -> None:
    """Each queue's reader sees every acknowledged payload, and each once, by lease and ack.

    Long form: BLINDPOST_DS_ROUNDS=50 BLINDPOST_DS_PRODUCERS=50 BLINDPOST_DS_READERS=1000.
    """
    source = random.Random(7)
    async with ds_in_process(tmp_path / "ds") as ds:
        await ds.start()
        load = Load(ds)
        readers = [asyncio.create_task(load.read(number)) for number in range(min(READERS, 10))]
        idle = [asyncio.create_task(load.poll(number)) for number in range(READERS - len(readers))]
        producers = [asyncio.create_task(load.produce(number)) for number in range(PRODUCERS)]
        for _ in range(ROUNDS):
            goal = len(load.acknowledged) + 50
            while len(load.acknowledged) < goal:
                await asyncio.sleep(0.01)
                if source.random() < 0.2:
                    wire = source.choice(load.clients)._wire
                    if wire is not None and wire._transport is not None:
                        wire._transport.abort()
            await ds.end(signal.SIGKILL)
            await ds.start()
        load.producing = False
        await asyncio.gather(*producers)
        async with asyncio.timeout(120):
            while True:
                if load.is_complete():
                    break
                await asyncio.sleep(0.05)
        for task in (*readers, *idle):
            task.cancel()
        await asyncio.gather(*readers, *idle, return_exceptions=True)
        assert len(load.acknowledged) >= 50 * ROUNDS
        assert len(set(load.seen)) == len(load.seen), "each payload is seen once"
        for client in load.clients:
            await client.close()


async def test_a_service_on_a_database(tmp_path: Path, database: str) -> None:
    folder = tmp_path / "ds"
    async with ds_in_process(folder) as ds:
        configure(folder, "[store]", f'[store]\ndatabase = "{database}"')
        await ds.start()
        async with await ds.client() as client:
            await client.enqueue(ALICE, b"kept")
        await ds.end(signal.SIGKILL)
        await ds.start()
        async with await ds.client() as client:
            assert await client.fetch(ALICE) == (b"kept",)
        told = await asyncio.to_thread(run, "ds", "export", tmp_path / "x", "-c", folder, code=1)
        assert "is running in this folder" in told.stderr
        await ds.end(signal.SIGTERM)
        told = await asyncio.to_thread(run, "ds", "export", tmp_path / "x", "-c", folder, code=1)
        assert "embedded store only" in told.stderr
