"""What the delivery service costs: per enqueue as it fills, per payload size, until a waiter hears, beside
large writes.

    python -m benchmarks.ds [--stored 10 10000 1000000] [--cycles N] [--wakes N] [--rounds N] [--json]

Method: the service runs in a process of its own (`blindpost ds start`, durability "os", so that the disk's
mood does not decide); CPU is the run time of that process's threads from /proc, bytes are what it handed to
write calls (`wchar`). A cycle is one enqueue and one fetch of it, with Finish. The floor beside it, in the
same round, is the public RPC library alone: the same schema, the same TLS, an in-memory list behind it,
nothing stored; and the QUIC library alone, which takes and gives as many bytes in as many messages. A call
over QUIC is set beside both: QUIC's share and that of the RPC library without TLS. Figures are medians of
the rounds, with the least and the most. Stores are filled by `import`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import capnp
from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.asyncio.server import QuicServer
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.events import QuicEvent, StreamDataReceived

import blindpost.ds
from benchmarks.figures.rows import Better, Figure, as_json
from blindpost.ds.client import DsClient
from blindpost.ds.quic import dial
from blindpost.ds.streams import ALPN, client_context, server_context
from blindpost.serving import children

COMMAND = (*children.COMMAND, "ds")
KEY = b"K" * 32
SIZES = (200, 4096, 1 << 20)
LARGE = 5_242_880


class Service:
    """A service in a process, looked at from outside."""

    def __init__(self, folder: Path, stored: int = 0) -> None:
        self.folder = folder
        made = subprocess.run(
            [*COMMAND, "init", str(folder), "--host", "127.0.0.1", "--port", "0", "--json"],
            capture_output=True,
            check=True,
        )
        self.fingerprint = bytes.fromhex(json.loads(made.stdout)["fingerprint"])
        config = folder / "ds.toml"
        text = config.read_text()
        for before, after in (
            ('mode = "tokens"', 'mode = "open"'),
            ('durability = "full"', 'durability = "os"'),
            ('address = "*"', 'address = "127.0.0.1"'),
        ):
            assert text.count(before) == 1
            text = text.replace(before, after)
        config.write_text(text + "\n[limits]\nqueue_payloads = 10000000\n")
        if stored:
            self._fill(stored)

    def _fill(self, stored: int) -> None:
        file = self.folder / "fill.bin"
        payload = struct.pack("<Q", 200) + bytes(200)
        with file.open("wb") as out:
            out.write(struct.pack("<QQQ", 1, 0, 32) + KEY + struct.pack("<Q", stored))
            for _ in range(stored):
                out.write(payload)
        subprocess.run(
            [*COMMAND, "import", str(file), "-c", str(self.folder)], check=True, capture_output=True
        )

    @contextmanager
    def started(self) -> Iterator[None]:
        child = children.Child("ds", self.folder, log=self.folder / "log")
        try:
            self.ports: dict[str, int] = child.start()["ports"]
            self.pid = child.pid
            yield
        finally:
            child.end()

    async def client(self, *, quic: bool = False) -> DsClient:
        port = self.ports["quic" if quic else "tls"]
        return await DsClient.connect("127.0.0.1", port, fingerprint=self.fingerprint, quic=quic)

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def written(self) -> int:
        lines = Path(f"/proc/{self.pid}/io").read_text().split()
        return int(lines[lines.index("wchar:") + 1])


def cpu_s(pid: int) -> float:
    """Seconds that the threads of a process have run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def flat(folder: Path, stored: int, enqueues: int, rounds: int) -> list[dict[str, float]]:
    """Bytes written and CPU of one enqueue with so many payloads stored in the same queue."""
    service, found = await asyncio.to_thread(Service, folder, stored), []
    with service.started():
        async with await service.client() as client:
            await client.enqueue(KEY, bytes(200))
            for _ in range(rounds):
                cpu, written = service.cpu_s(), service.written()
                for _ in range(enqueues):
                    await client.enqueue(KEY, bytes(200))
                found.append(
                    {
                        "bytes_per_enqueue": (service.written() - written) / enqueues,
                        "cpu_us_per_enqueue": (service.cpu_s() - cpu) / enqueues * 1e6,
                    }
                )
    return found


async def cycles(service: Service, size: int, count: int, *, quic: bool) -> float:
    """Seconds of the service's CPU for one enqueue and fetch of a payload."""
    payload, key = os.urandom(size), os.urandom(32)
    async with await service.client(quic=quic) as client:
        await client.enqueue(key, payload)
        await client.fetch(key)
        before = service.cpu_s()
        for _ in range(count):
            await client.enqueue(key, payload)
            await client.fetch(key)
        return (service.cpu_s() - before) / count


async def wakes(service: Service, count: int) -> dict[str, float]:
    """Milliseconds from the start of an enqueue until another connection's waiting call returned."""
    found = []
    async with await service.client() as sender, await service.client() as receiver:
        for _ in range(count):
            waiting = asyncio.create_task(receiver.fetch_wait(KEY, b"w", timeout_s=60))
            await asyncio.sleep(0.005)
            started = time.perf_counter()
            await sender.enqueue(KEY, b"now", b"w")
            await waiting
            found.append((time.perf_counter() - started) * 1e3)
    centiles = statistics.quantiles(found, n=100)
    return {"p50_ms": round(centiles[49], 2), "p99_ms": round(centiles[98], 2)}


async def calls_beside(service: Service, count: int, writers: int) -> dict[str, float]:
    """Milliseconds of small enqueues and fetches while so many processes enqueue and fetch 5 MiB."""
    found, key = list[float](), os.urandom(32)
    at = (str(service.ports["tls"]), service.fingerprint.hex())
    writing = [
        await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.ds", "--writer", *at)
        for _ in range(writers)
    ]
    async with await service.client() as client:
        for _ in range(count):
            started = time.perf_counter()
            await client.enqueue(key, b"small")
            await client.fetch(key)
            found.append((time.perf_counter() - started) * 1e3)
            await asyncio.sleep(0.002)
    for process in writing:
        assert process.returncode is None
        process.kill()
        await process.wait()
    centiles = statistics.quantiles(found, n=100)
    return {
        "p50_ms": round(centiles[49], 2),
        "p99_ms": round(centiles[98], 2),
        "most_ms": round(max(found), 1),
    }


async def write_large(port: int, fingerprint: bytes) -> None:
    """Enqueue and fetch 5 MiB, up to four times a second: what a process of `calls_beside` does."""
    payload, key = os.urandom(LARGE), os.urandom(32)
    async with await DsClient.connect("127.0.0.1", port, fingerprint=fingerprint) as client:
        while True:
            await client.enqueue(key, payload)
            await client.fetch(key)
            await asyncio.sleep(0.25)


SCHEMA: Any = capnp.load(str(Path(blindpost.ds.__file__).with_name("node.capnp")))


class _InMemory(SCHEMA.NodeService.Server):  # type: ignore[misc]  # the library makes it
    """The library's own server with a list behind it."""

    def __init__(self) -> None:
        self._payloads: list[bytes] = []

    async def enqueue(self, payload: bytes, **_: Any) -> None:
        self._payloads.append(payload)

    async def fetch(self, **_: Any) -> list[bytes]:
        found, self._payloads = self._payloads, []
        return found


async def serve_library(folder: Path | None) -> None:
    """Run the library alone, over TLS if there is a folder with a key; prints its port."""

    async def connected(stream: Any) -> None:
        await capnp.TwoPartyServer(stream, bootstrap=_InMemory()).on_disconnect()

    context = server_context(folder / "ds.crt", folder / "ds.key") if folder is not None else None
    async with capnp.kj_loop():
        server = await capnp.AsyncIoStream.create_server(connected, "127.0.0.1", 0, ssl=context)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


async def library_cycles(folder: Path, size: int, count: int, *, tls: bool) -> float:
    """As `cycles`, by the library alone."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.ds", "--library", str(folder) if tls else "-"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    payload, auth = os.urandom(size), {"version": 1}
    queue = {"recipientKey": KEY, "channelId": b"", "version": 1, "auth": auth}
    try:
        async with capnp.kj_loop():
            secured = {"ssl": client_context(pinned=True), "server_hostname": "127.0.0.1"} if tls else {}
            stream = await capnp.AsyncIoStream.create_connection("127.0.0.1", port, **secured)
            client = capnp.TwoPartyClient(stream)
            service = client.bootstrap().cast_as(SCHEMA.NodeService)
            await service.enqueue(payload=payload, **queue)
            await service.fetch(**queue)
            before = cpu_s(process.pid)
            for _ in range(count):
                await service.enqueue(payload=payload, **queue)
                await service.fetch(**queue)
            return (cpu_s(process.pid) - before) / count
    finally:
        process.kill()
        await process.wait()


_SIZES = struct.Struct("<II")
FINISH_BYTES = 40
SMALL_BYTES = 160
"""About what a request or an answer without a payload has on the stream."""


class _Bare(QuicConnectionProtocol):
    """Takes messages that say how long they are, and how long their answers shall be."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._taken = bytearray()

    def quic_event_received(self, event: QuicEvent) -> None:
        if not isinstance(event, StreamDataReceived):
            return
        self._taken += event.data
        while len(self._taken) >= _SIZES.size:
            size, answer = _SIZES.unpack_from(self._taken)
            if len(self._taken) < size:
                return
            del self._taken[:size]
            if answer:
                self._quic.send_stream_data(event.stream_id, bytes(answer))
                self._transmit_soon()


async def serve_quic(folder: Path) -> None:
    """Run the QUIC library alone; prints its port."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[ALPN])
    configuration.load_cert_chain(folder / "ds.crt", folder / "ds.key")
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: QuicServer(configuration=configuration, create_protocol=_Bare), local_addr=("127.0.0.1", 0)
    )
    print(transport.get_extra_info("sockname")[1], flush=True)
    await asyncio.Event().wait()


class _Returned(asyncio.Protocol):
    """Counts what comes back."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.count = 0
        self.came = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.count += len(data)
        self.came.set()

    async def until(self, count: int) -> None:
        while self.count < count:
            self.came.clear()
            await self.came.wait()


async def quic_cycles(service: Service, size: int, count: int) -> float:
    """As `cycles`, by the QUIC library alone: as many bytes in as many messages, and nothing behind them."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.ds", "--quic", str(service.folder)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    port, returned = int(await process.stdout.readline()), _Returned()
    body, ask, finish = size + SMALL_BYTES, SMALL_BYTES, _SIZES.pack(FINISH_BYTES, 0).ljust(FINISH_BYTES)
    enqueue = _SIZES.pack(body, ask) + os.urandom(body - _SIZES.size)
    fetch = _SIZES.pack(ask, body).ljust(ask)
    try:
        await dial(returned, "127.0.0.1", port, authorities=None, pinned=service.fingerprint)
        before = cpu_s(process.pid)
        for number in range(1, count + 1):
            returned.transport.write(enqueue)
            await returned.until(number * (ask + body) - body)
            returned.transport.write(finish)
            await asyncio.sleep(0)
            await asyncio.sleep(
                0
            )  # as a caller who goes on when the answer is there: in a datagram of its own
            returned.transport.write(fetch)
            await returned.until(number * (ask + body))
            returned.transport.write(finish)
        used = (cpu_s(process.pid) - before) / count
        returned.transport.close()
        return used
    finally:
        process.kill()
        await process.wait()


async def rates(service: Service, size: int, count: int) -> dict[str, float]:
    """What a cycle costs here and by the libraries alone, once."""
    times = max(count // (1 + size // 8192), min(count, 20))
    tls = await cycles(service, size, times, quic=False)
    quic = await cycles(service, size, times, quic=True)
    rpc_tls = await library_cycles(service.folder, size, times, tls=True)
    rpc_bare = await library_cycles(service.folder, size, times, tls=False)
    quic_bare = await quic_cycles(service, size, times)
    return {
        "cycles_per_cpu_s_tls": 1 / tls,
        "tls_times_the_rpc_library": tls / rpc_tls,
        "cycles_per_cpu_s_quic": 1 / quic,
        "quic_times_the_quic_library": quic / quic_bare,
        "quic_times_both_libraries": quic / (quic_bare + rpc_bare),
    }


async def measure(
    stored: list[int], count: int, wake_count: int, rounds: int
) -> AsyncIterator[tuple[str, dict[str, dict[str, float]]]]:
    """Row after row, each with its figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in stored:
            runs = await flat(folder / f"stored{number}", number, count, rounds)
            yield f"{number} stored", _spread(runs)
        service = await asyncio.to_thread(Service, folder / "cycles")
        with service.started():
            for size in SIZES:
                yield f"{size} B", _spread([await rates(service, size, count) for _ in range(rounds)])
            yield "wake-up", _spread([await wakes(service, wake_count) for _ in range(rounds)])
            for writers in (0, 1, 4):
                runs = [await calls_beside(service, wake_count, writers) for _ in range(rounds)]
                yield f"beside {writers} writers of 5 MiB", _spread(runs)


def _spread(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """The median of each figure, the least and the most."""
    found = {}
    for name in runs[0]:
        values = sorted(run[name] for run in runs)
        of = {"median": statistics.median(values), "least": values[0], "most": values[-1]}
        found[name] = {kind: float(f"{value:.3g}") for kind, value in of.items()}
    return found


_UNITS = {
    "bytes_per_enqueue": ("bytes written by an enqueue", "bytes", Better.LOWER),
    "cpu_us_per_enqueue": ("enqueue", "us of CPU", Better.LOWER),
    "cycles_per_cpu_s_tls": ("cycles over TLS", "per CPU s", Better.HIGHER),
    "tls_times_the_rpc_library": ("TLS", "x the libraries", Better.LOWER),
    "cycles_per_cpu_s_quic": ("cycles over QUIC", "per CPU s", Better.HIGHER),
    "quic_times_the_quic_library": ("QUIC, to QUIC alone", "x the libraries", Better.LOWER),
    "quic_times_both_libraries": ("QUIC", "x the libraries", Better.LOWER),
    "p50_ms": ("p50", "ms", Better.LOWER),
    "p99_ms": ("p99", "ms", Better.LOWER),
    "most_ms": ("most", "ms", Better.LOWER),
}


def figures_of(found: dict[str, dict[str, dict[str, float]]]) -> list[Figure]:
    rows = []
    for row, figures in found.items():
        for name, of in figures.items():
            what, unit, better = _UNITS[name]
            rows.append(Figure(f"{row}: {what}", unit, of["median"], of["least"], of["most"], better))
    return rows


async def show(options: argparse.Namespace) -> None:
    found = {}
    async for row, figures in measure(options.stored, options.cycles, options.wakes, options.rounds):
        found[row] = figures
        if not options.json:
            print(row)
            for name, of in figures.items():
                print(
                    f"    {name:32} {of['median']:>10,g}   ({of['least']:,g} to {of['most']:,g})", flush=True
                )
    if options.json:
        print(as_json(figures_of(found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stored", type=int, nargs="+", default=[10, 10_000, 1_000_000])
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--wakes", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    parser.add_argument("--quic", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--writer", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        asyncio.run(write_large(int(options.writer[0]), bytes.fromhex(options.writer[1])))
        return
    if options.quic:
        asyncio.run(serve_quic(options.quic))
        return
    if options.library:
        asyncio.run(serve_library(None if options.library == "-" else Path(options.library)))
        return
    asyncio.run(show(options))


if __name__ == "__main__":
    main()
