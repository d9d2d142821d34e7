"""What the notification router costs: to start, until a push is out, and for each push.

    python -m benchmarks.ntf [--subscriptions N] [--notifications N] [--pushes N] [--json]

Method: three message routers run in processes of their own, with stores that were filled before; Apple is
`blindpost.testing.apns` in another process; the notification router with its SQLite store (durability "os")
is this process, whose CPU time is what is counted.

start    N subscriptions over the three routers, three times: one by one without services (NSUB), one by one
         while they become those of our service (NSUB, signed twice), and after a restart with nothing
         drifted (NSUBS). Commands are those sent to message routers; the time is from the start of the
         subscriber until all are subscribed.
latency  from the block that brings NMSG until the push arrives at Apple, one at a time.
pushes   per CPU second: an HTTP client library (httpx) that posts the same bytes; our HTTP/2 connection
         alone; the provider (encryption, JSON, provider token, connection); and the whole router, from NMSG
         to the stored end of the notification.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from benchmarks.figures.rows import Better, Figure, as_json, single
from benchmarks.load.filling import derived, fill_notified, notifier_id, notifier_key, sender_id, sender_key
from benchmarks.load.process import measured_router
from blindpost.client.calls import Call, Failure
from blindpost.client.smp import SmpClient
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.engine.undo import Undo
from blindpost.ntf import turn
from blindpost.ntf.model import PushKind, SmpRouter, Subscription, Token
from blindpost.ntf.ports import Accepted, NmsgReceived
from blindpost.ntf.push.apns import Apns, Endpoint
from blindpost.ntf.push.http2 import Http2Connection, tls_context
from blindpost.ntf.push.provider_tokens import ProviderTokens, SigningKey
from blindpost.ntf.pusher import sealed
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.server import NtfRouter
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.ntf.tables_sqlite import SqliteTables
from blindpost.ntf.view import View
from blindpost.store.contract import Durability
from blindpost.testing.apns import ApnsServer
from blindpost.transport.session import Session
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.pushes import APPLE_PADDED_SIZE, encode_apns_body
from blindpost.wire.ntf.status import TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.smp.commands import SEND, Command
from blindpost.wire.smp.responses import Response

ROUTERS = 3
PER_TOKEN = 100
STORE_STEP = 5_000
AT_ONCE = 64
LIBRARY_AT_ONCE = 8
"""What httpx is given: more bodies fill the window of a connection, and it may wait for room that it has."""
NOWHERE = Server((Host("smp.example.org"),), "5223", bytes(32))


# --- the parties


@contextmanager
def message_routers(subscriptions: int) -> Iterator[list[tuple[Server, range]]]:
    """Started routers, each with its share of the queues."""
    share = subscriptions // ROUTERS
    with ExitStack() as stack:
        found = []
        for place in range(ROUTERS):
            end = subscriptions if place == ROUTERS - 1 else (place + 1) * share
            router = stack.enter_context(measured_router())
            asyncio.run(fill_notified(router.store, range(place * share, end)))
            router.start()
            server = Server((Host("127.0.0.1"),), str(router.port), router.fingerprint)
            found.append((server, range(place * share, end)))
        yield found


@contextmanager
def apple(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Apple in a process of its own; `told` asks it what came."""
    command = [sys.executable, "-m", "benchmarks.ntf", "--apple", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


async def told(process: subprocess.Popen[str]) -> list[tuple[str, int]]:
    """Device tokens and monotonic times of the pushes since it was last asked."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = await asyncio.to_thread(process.stdout.readline)
    return [(token, at) for token, at in json.loads(line)]


async def be_apple(folder: Path) -> None:
    """The other process."""
    came: list[tuple[str, int]] = []
    async with ApnsServer() as server:

        def note(device_token: str) -> Any:
            came.append((device_token, time.monotonic_ns()))
            server.received.clear()
            return answer(device_token)

        answer = server.decide
        server.decide = note
        private = server.signing.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "apple.pem").write_bytes(server.certificate)
        (folder / "key.p8").write_bytes(private)
        (folder / "port").write_text(str(server.port))
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(came), flush=True)
            came.clear()


def at_apple(folder: Path) -> tuple[Endpoint, ProviderTokens]:
    signing = SigningKey.from_file(folder / "key.p8", "ABCDE12345", "5NN7GUYB6T")
    context = tls_context()
    context.load_verify_locations(cafile=folder / "apple.pem")
    endpoint = Endpoint("localhost", int((folder / "port").read_text()), context)
    return endpoint, ProviderTokens(signing, time.time)


@asynccontextmanager
async def notification_router(folder: Path) -> AsyncIterator[NtfRouter]:
    store = SqliteTables.open(folder / "ntf.db", Sealer(bytes(32)), Durability.OS)
    router = NtfRouter(store, {PushProvider.APNS_PROD: Apns(*at_apple(folder))})
    running = asyncio.create_task(router.run())
    looking = asyncio.create_task(router.look_regularly())
    try:
        yield router
    finally:
        looking.cancel()
        router.stop()
        await running
        await router.pusher.close()
        store.close()


@asynccontextmanager
async def subscribing(router: NtfRouter, *, use_services: bool) -> AsyncIterator[SmpSubscriber]:
    subscriber = SmpSubscriber(router, SubscriberOptions(use_services=use_services))
    task = asyncio.create_task(subscriber.run())
    try:
        yield subscriber
    finally:
        task.cancel()
        await asyncio.wait([task])


def device(number: int) -> DeviceToken:
    return DeviceToken(PushProvider.APNS_PROD, derived("device", number, 32).hex().encode())


async def fill_subscriptions(
    folder: Path, queues: Iterable[tuple[Server, int]], per_token: int = PER_TOKEN
) -> None:
    """Tokens with so many subscriptions each."""
    store = SqliteTables.open(folder / "ntf.db", Sealer(bytes(32)), Durability.OS)
    view = View(Undo(), store.received)
    owner = _token(0)
    for count, (server, number) in enumerate(queues):
        if count % STORE_STEP == 0:
            await store.commit(view)
            view = View(Undo(), store.received)
        if count % per_token == 0 or count % STORE_STEP == 0:
            owner = _token(number)
            view.put_token(owner)
        if view.routers.get(server) is None and await store.router(server) is None:
            view.put_router(SmpRouter(server))
        key = notifier_key(number).encoded
        view.add_subscription(
            Subscription(system_entropy(24), owner.token_id, server, notifier_id(number), key)
        )
    await store.commit(view)
    store.close()


def _token(number: int) -> Token:
    return Token(
        system_entropy(24),
        device(number),
        TokenStatus(TokenState.ACTIVE),
        notifier_key(number).public,
        PrivateKey(Algorithm.X25519, derived("token", number, 32)),
        Secret(derived("secret", number, 32)),
        Secret(bytes(32)),
        None,
    )


# --- what is measured


async def start(
    folder: Path, routers: Sequence[tuple[Server, range]], subscriptions: int
) -> list[dict[str, Any]]:
    """The three ways to start."""
    await fill_subscriptions(folder, ((server, number) for server, numbers in routers for number in numbers))
    rows: list[dict[str, Any]] = []
    for how, use_services in (("NSUB", False), ("NSUB, to be associated", True), ("NSUBS", True)):
        sent: Counter[str] = Counter()
        with counting(sent):
            async with notification_router(folder) as router:
                cpu, wall = time.process_time(), time.monotonic()
                async with subscribing(router, use_services=use_services) as subscriber:
                    await until(lambda: subscribed(subscriber) == subscriptions)
                    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        rows.append(
            {
                "start": how,
                "subscriptions": subscriptions,
                "commands_sent": sum(sent.values()),
                "seconds": round(wall, 3),
                "cpu_seconds": round(cpu, 3),
            }
        )
    one_by_one, _, together = rows
    together["times_faster_than_nsub"] = round(one_by_one["seconds"] / together["seconds"], 1)
    together["times_less_cpu_than_nsub"] = round(one_by_one["cpu_seconds"] / together["cpu_seconds"], 1)
    return rows


@contextmanager
def counting(sent: Counter[str]) -> Iterator[None]:
    """Count commands to message routers by their names."""
    send_many = SmpClient.send_many

    def counted(client: SmpClient, calls: Iterable[Call[Command]]) -> Awaitable[list[Response | Failure]]:
        listed = list(calls)
        sent.update(call.command.TAG.decode() for call in listed)
        return send_many(client, listed)

    with patch.object(SmpClient, "send_many", counted):
        yield


def subscribed(subscriber: SmpSubscriber) -> int:
    return sum(state.active + state.members for state in subscriber.states)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await a_moment()


async def a_moment() -> None:
    turned = asyncio.Event()
    asyncio.get_running_loop().call_later(0.002, turned.set)
    await turned.wait()


async def latency(
    folder: Path, process: subprocess.Popen[str], routers: Sequence[tuple[Server, range]], count: int
) -> dict[str, Any]:
    """Notifications one after the other, each of another device."""
    server, numbers = routers[0]
    chosen = numbers[: min(count, len(numbers))]
    (folder / "ntf.db").unlink(missing_ok=True)
    await fill_subscriptions(folder, ((server, number) for number in chosen), per_token=1)
    received: list[int] = []
    block_received = SmpClient.block_received

    def noting(client: SmpClient, session: Session, payload: bytes) -> None:
        if client.service is not None:
            received.append(time.monotonic_ns())
        block_received(client, session, payload)

    with patch.object(SmpClient, "block_received", noting):
        async with (
            notification_router(folder) as router,
            subscribing(router, use_services=True) as subscriber,
            await SmpClient.connect(server) as sender,
        ):
            await until(lambda: subscribed(subscriber) == len(chosen))
            await told(process)
            delays = []
            for number in chosen:
                received.clear()
                await sender.send(SEND(True, b"hello"), sender_id(number), sender_key(number))
                while not (came := await told(process)):
                    await a_moment()
                delays.append((came[0][1] - received[0]) / 1e6)
    delays.sort()
    return {
        "latency": "NMSG to Apple",
        "notifications": len(delays),
        "p50_ms": round(statistics.median(delays), 2),
        "p99_ms": round(delays[min(len(delays) - 1, len(delays) * 99 // 100)], 2),
    }


async def pushes(folder: Path, count: int) -> list[dict[str, Any]]:
    """CPU for each push of this process, for more and more of the way."""
    endpoint, tokens = at_apple(folder)
    content = b"x" * 2048
    push = turn.Push(b"", PushKind.MESSAGE, 1, device(0), Secret(bytes(32)), content)
    body = encode_apns_body(sealed(push, APPLE_PADDED_SIZE, system_entropy))
    headers = {
        "apns-topic": endpoint.topic,
        "apns-push-type": "alert",
        "authorization": f"bearer {tokens.current()}",
    }
    path = f"/3/device/{device(0).token.decode()}"
    authority = f"{endpoint.host}:{endpoint.port}"
    limits = httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(http2=True, verify=endpoint.tls, limits=limits) as library:

        async def by_library() -> None:
            answer = await library.post(f"https://{authority}{path}", content=body, headers=headers)
            assert answer.status_code == 200

        library_s = await cpu_for_each(by_library, max(count // 10, 20), LIBRARY_AT_ONCE)
    pseudo = {":method": "POST", ":scheme": "https", ":authority": authority, ":path": path}
    encoded = [(name.encode(), value.encode()) for name, value in {**pseudo, **headers}.items()]
    connection = await Http2Connection.connect(endpoint.host, endpoint.port, endpoint.tls, 10)

    async def by_connection() -> None:
        assert (await connection.post(encoded, body, 10)).status == 200

    alone_s = await cpu_for_each(by_connection, count)
    await connection.close()
    provider = Apns(endpoint, tokens)

    async def by_provider() -> None:
        outcome = await provider.push(device(0), sealed(push, APPLE_PADDED_SIZE, system_entropy))
        assert outcome == Accepted()

    provider_s = await cpu_for_each(by_provider, count)
    await provider.close()
    whole_s = await whole(folder, count)
    named = (
        ("httpx alone", library_s),
        ("our HTTP/2 connection alone", alone_s),
        ("provider", provider_s),
        ("NMSG to end of push, stored", whole_s),
    )
    return [
        {
            "pushes": name,
            "per_cpu_second": round(1 / seconds),
            "times_the_connection_alone": round(seconds / alone_s, 2),
        }
        for name, seconds in named
    ]


async def cpu_for_each(call: Callable[[], Awaitable[None]], count: int, at_once: int = AT_ONCE) -> float:
    """Seconds of CPU of one call, many of them at once."""
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await call()

    await call()
    before = time.process_time()
    await asyncio.gather(*(work() for _ in range(at_once)))
    return (time.process_time() - before) / count


async def whole(folder: Path, count: int) -> float:
    """Seconds of CPU from NMSG to the end of its notification, all of different devices."""
    (folder / "ntf.db").unlink(missing_ok=True)
    await fill_subscriptions(folder, ((NOWHERE, number) for number in range(count)), per_token=1)
    async with notification_router(folder) as router:
        before = time.process_time()
        for start in range(0, count, AT_ONCE):
            await router.submit(
                [
                    NmsgReceived(NOWHERE, notifier_id(number), derived("nonce", number, 24), bytes(144))
                    for number in range(start, min(start + AT_ONCE, count))
                ]
            )
        await until(lambda: router.store.counts()["ledger_apns_accepted"] == count)
        return (time.process_time() - before) / count


def measure(subscriptions: int, notifications: int, push_count: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="blindpost-bench-") as name:
        folder = Path(name)
        with apple(folder) as process, message_routers(subscriptions) as routers:
            rows = asyncio.run(start(folder, routers, subscriptions))
            rows.append(asyncio.run(latency(folder, process, routers, notifications)))
            rows += asyncio.run(pushes(folder, push_count))
        return rows


def shown(rows: list[dict[str, Any]], write: Callable[[str], object] = print) -> None:
    for row in rows:
        write(
            "  ".join(
                f"{name} {value:,}" if not isinstance(value, str) else f"{name}: {value}"
                for name, value in row.items()
            )
        )


def figures(rows: list[dict[str, Any]]) -> list[Figure]:
    found = []
    for row in rows:
        if "start" in row:
            of = f"start by {row['start']}, {row['subscriptions']:,} subscriptions"
            found += [
                single(f"{of}: commands", "commands", row["commands_sent"]),
                single(f"{of}: CPU", "CPU s", row["cpu_seconds"]),
                single(f"{of}: time", "s", row["seconds"]),
            ]
        elif "latency" in row:
            found += [single(f"{row['latency']}, {part}", "ms", row[f"{part}_ms"]) for part in ("p50", "p99")]
        else:
            of = f"push, {row['pushes']}"
            found += [
                single(of, "per CPU s", row["per_cpu_second"], Better.HIGHER),
                single(f"{of}: cost", "x the connection alone", row["times_the_connection_alone"]),
            ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--subscriptions", type=int, default=6_000)
    parser.add_argument("--notifications", type=int, default=300)
    parser.add_argument("--pushes", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--apple", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.apple:
        asyncio.run(be_apple(options.apple))
        return
    rows = measure(options.subscriptions, options.notifications, options.pushes)
    if options.json:
        print(as_json(figures(rows)))
    else:
        shown(rows)


if __name__ == "__main__":
    main()
