"""A delivery service holds MLS payloads for somebody who waits for them."""

from __future__ import annotations

import asyncio
import os
import time

from blindpost.demo.figures import Row, Say, quantile_ms
from blindpost.demo.stage import Served
from blindpost.ds.client import DsClient

PAYLOADS = 25
SIZE = 4_000
CHANNEL = b"welcome"


async def play(service: Served, fingerprint: bytes, say: Say) -> list[Row]:
    port = int((await service.ask("status"))["ports"]["tls"])
    key = os.urandom(32)
    sent = [os.urandom(SIZE) for _ in range(PAYLOADS)]
    waits: list[float] = []
    got: list[bytes] = []
    async with (
        await DsClient.connect("127.0.0.1", port, fingerprint=fingerprint) as reader,
        await DsClient.connect("127.0.0.1", port, fingerprint=fingerprint) as writer,
    ):
        for payload in sent:
            waiting = asyncio.create_task(reader.fetch_wait(key, CHANNEL, timeout_s=30))
            await asyncio.sleep(0)
            started = time.monotonic()
            await writer.enqueue(key, payload, CHANNEL)
            got += await waiting
            waits.append(time.monotonic() - started)
        left = await reader.fetch(key, CHANNEL)
    say(f"{PAYLOADS} MLS payloads of {SIZE} bytes were handed to somebody who waited for them")
    good = got == sent and left == ()
    wake = f"{len(got)}, median {quantile_ms(waits, 0.5):.0f} ms after they came"
    return [Row("MLS payloads taken with fetchWait", wake, good)]
