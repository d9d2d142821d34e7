"""The real command: set up, start, send, receive, kill."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from blindpost.ds.client import RefusedError
from tests.support.ds.delivery import ALICE, BOB, silent
from tests.support.ds.process import configure, ds_in_process
from tests.support.serving.commands import run
from tests.support.serving.waiting import a_moment


async def status(folder: Path) -> dict[str, Any]:
    done = await asyncio.to_thread(run, "ds", "status", "-c", folder, "--json")
    return dict(json.loads(done.stdout))


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
        rotated = json.loads(await asyncio.to_thread(command, "rotate-cert", "-c", folder, "--json"))
        assert rotated["in_use"]
        assert "another certificate" in await asyncio.to_thread(command, *sending, "--token", token, code=1)
        anew = (*sending, "--fingerprint", rotated["fingerprint"], "--token", token)
        for way in ("--tls", "--quic"):
            assert "Stored 11 bytes" in await asyncio.to_thread(command, *anew, way)
        revoked = await asyncio.to_thread(command, "revoke", ALICE.hex(), "-c", folder)
        assert "Revoked 1 tokens; the running service refuses them" in revoked
        assert "authentication failed" in await asyncio.to_thread(command, *anew, code=1)
        assert "has no token" in await asyncio.to_thread(command, "revoke", ALICE.hex(), "-c", folder, code=1)
        assert await ds.end(signal.SIGTERM) == 0
        assert token.encode() not in ds.log
        assert b"WARNING" not in ds.log, "a caller who says goodbye is nothing to warn of"
        assert token not in (folder / "tokens").read_text()
        assert "no server listens" in await asyncio.to_thread(command, "status", "-c", folder, code=1)


async def test_a_revoked_token_gets_nothing_more_and_what_it_holds_is_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    async with ds_in_process(folder, is_open=False) as ds:
        await ds.start()

        async def token(key: bytes) -> bytes:
            done = await asyncio.to_thread(run, "ds", "token", key.hex(), "-c", folder)
            return done.stdout.strip().encode()

        stolen = await token(ALICE)
        bob, thief, another = (
            await ds.client(await token(BOB)),
            await ds.client(stolen),
            await ds.client(stolen),
        )
        await bob.enqueue(ALICE, b"taken and kept")
        silent(another)
        assert await another.fetch(ALICE) == (b"taken and kept",)
        waiting = asyncio.create_task(thief.fetch_wait(ALICE, b"channel", timeout_s=100))
        while not (await status(folder))["waiting"]:
            await a_moment()
        await asyncio.to_thread(run, "ds", "revoke", ALICE.hex(), "-c", folder)
        await bob.enqueue(ALICE, b"after the revocation", b"channel")
        with pytest.raises(RefusedError, match=r"^authentication failed$"):
            await waiting
        owner = await ds.client(await token(ALICE))
        assert await owner.fetch(ALICE, b"channel") == (b"after the revocation",)
        assert await owner.fetch(ALICE) == (b"taken and kept",)
        for client in (bob, thief, another, owner):
            await client.close()


async def test_mistakes_are_reported(tmp_path: Path) -> None:
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
            await client.enqueue(ALICE, b"exported")
        told = await asyncio.to_thread(run, "ds", "export", tmp_path / "x", "-c", folder, code=1)
        assert "is running in this folder" in told.stderr
        await ds.end(signal.SIGTERM)
        told = await asyncio.to_thread(run, "ds", "export", tmp_path / "x", "-c", folder)
        assert "Exported 1 payloads in 1 queues" in told.stdout
        told = await asyncio.to_thread(run, "ds", "export", folder / "ds.toml", "-c", folder, code=1)
        assert "this exists already" in told.stderr
        told = await asyncio.to_thread(run, "ds", "import", tmp_path / "x", "-c", folder, code=1)
        assert "holds payloads already" in told.stderr
        await ds.start()
        async with await ds.client() as client:
            assert await client.fetch(ALICE) == (b"exported",)
        await ds.end(signal.SIGTERM)
        told = await asyncio.to_thread(run, "ds", "import", tmp_path / "x", "-c", folder)
        assert "Imported 1 payloads in 1 queues from a V2 file" in told.stdout
        await ds.start()
        async with await ds.client() as client:
            assert await client.fetch(ALICE) == (b"exported",)
