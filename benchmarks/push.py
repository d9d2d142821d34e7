"""What a push costs by each provider, and what hostile push services cost everybody else.

    python -m benchmarks.push [--notifications N] [--rounds N] [--json]

Method: push services (`blindpost.testing`) run in one other process, hostile ones (`tests.support.ntf`) in a
third; the notification router with its SQLite store (durability "os") is this process, whose CPU time is
counted. NMSG is given to the router as its subscriber would.

providers  N notifications to each provider, in blocks that take turns: one at a time, from NMSG until the
           push service has accepted the push (p50, p99); then 64 devices at a time, CPU for each.
hostile    notifications one at a time to devices of Apple and of a well-behaved Web Push service, while the
           same number goes to other push services: in turns to well-behaved ones and to hostile ones, one of
           each kind. The p99 of the one by that of the other says what hostility changes. Memory is what the
           process has more at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures.rows import Figure, as_json, single
from benchmarks.load.filling import derived, notifier_id, notifier_key
from benchmarks.ntf import NOWHERE, at_apple, shown, until
from blindpost.client.outbound import Outbound
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.crypto.webpush import new_private_key, point_of
from blindpost.engine.undo import Undo
from blindpost.ntf.model import SmpRouter, Subscription, Token
from blindpost.ntf.ports import Accepted, NmsgReceived, Provider, PushOutcome
from blindpost.ntf.push.apns import Apns
from blindpost.ntf.push.vapid import VapidKey, VapidTokens
from blindpost.ntf.push.webpush import Way, WebPush, web_tls
from blindpost.ntf.sealing import Sealer
from blindpost.ntf.server import NtfRouter
from blindpost.ntf.tables_sqlite import SqliteTables
from blindpost.ntf.turn import Push
from blindpost.ntf.view import View
from blindpost.store.contract import Durability
from blindpost.testing.apns import ApnsServer, Delivered
from blindpost.testing.webpush import HOST, Arrived, PushService
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.status import TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.ntf.webpush import Subscription as WebSubscription
from tests.support.ntf.hostile_push import ATTACKS, hostile_service

BLOCK = 50
AT_ONCE = 64
DEVICES = 64
"""Of each push service."""
BESIDE = 8
"""Devices of each of the other push services."""
PROVIDERS = ("Apple", "Web Push, HTTP/2", "Web Push, HTTP/1.1")


# --- the other processes


class _Apple(ApnsServer):
    def keep(self, delivered: Delivered) -> None:
        """Nothing is kept."""


class _Service(PushService):
    def knows(self, path: str, key: str) -> bool:
        return True

    def keep(self, arrived: Arrived) -> None:
        """Nothing is kept."""


async def be_services(folder: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    async with AsyncExitStack() as stack:
        apple = await stack.enter_async_context(_Apple())
        pem = folder / "push.pem"
        pushing = [
            await stack.enter_async_context(_Service(http2=http2, certificate=pem)) for http2 in (True, False)
        ]
        others = [await stack.enter_async_context(_Service(certificate=pem)) for _ in ATTACKS]
        key = apple.signing.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "apple.pem").write_bytes(apple.certificate)
        (folder / "key.p8").write_bytes(key)
        (folder / "port").write_text(str(apple.port))
        print(json.dumps([each.port for each in (*pushing, *others)]), flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def be_hostile(folder: Path) -> None:
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it goes on writing to who has left
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(hostile_service(attack, folder / "push.pem"))
            for attack in ATTACKS
        ]
        print(json.dumps([each.port for each in services]), flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def other_process(what: str, folder: Path) -> Iterator[list[int]]:
    """The ports that it listens on."""
    command = [sys.executable, "-m", "benchmarks.push", what, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


# --- the notification router


class Bench:
    """A notification router and the devices of each push service, by the numbers of their queues."""

    def __init__(self, router: NtfRouter) -> None:
        self.router = router
        self._ends: dict[bytes, asyncio.Future[float]] = {}
        self._nonces = 0
        self._done = router.pusher._done
        router.pusher._done = self._noted

    def _noted(self, push: Push, outcome: PushOutcome) -> None:
        waiting = self._ends.pop(push.token_id, None) if isinstance(outcome, Accepted) else None
        if waiting is not None:
            waiting.set_result(time.perf_counter())
        self._done(push, outcome)

    async def notify(self, numbers: Sequence[int]) -> None:
        events = []
        for number in numbers:
            self._nonces += 1
            nonce = derived("nonce", self._nonces, 24)
            events.append(NmsgReceived(NOWHERE, notifier_id(number), nonce, bytes(144)))
        await self.router.submit(events)

    async def one(self, number: int) -> float:
        """Milliseconds until the push for this queue is accepted."""
        end: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._ends[_token_id(number)] = end
        began = time.perf_counter()
        await self.notify([number])
        return (await end - began) * 1000


def _token_id(number: int) -> bytes:
    return derived("token id", number, 24)


async def _fill(store: SqliteTables, devices: Sequence[DeviceToken]) -> None:
    """A token with one queue for each device."""
    view = View(Undo(), 0)
    view.put_router(SmpRouter(NOWHERE))
    for number, device in enumerate(devices):
        view.put_token(
            Token(
                _token_id(number),
                device,
                TokenStatus(TokenState.ACTIVE),
                notifier_key(number).public,
                PrivateKey(Algorithm.X25519, derived("token", number, 32)),
                Secret(derived("secret", number, 32)),
                Secret(bytes(32)),
                None,
            )
        )
        view.add_subscription(
            Subscription(
                derived("sub", number, 24),
                _token_id(number),
                NOWHERE,
                notifier_id(number),
                notifier_key(number).encoded,
            )
        )
    await store.commit(view)


def _web_device(port: int, number: int) -> DeviceToken:
    point = point_of(new_private_key(system_entropy))
    return DeviceToken.web(WebSubscription(HOST, str(port), f"/{number}".encode(), bytes(16), point))


@asynccontextmanager
async def bench(folder: Path, ports: Sequence[int]) -> AsyncIterator[tuple[Bench, list[range]]]:
    """The router, and which queues are of which push service: Apple, then those at the ports."""
    apple = [
        DeviceToken(PushProvider.APNS_PROD, derived("device", number, 32).hex().encode())
        for number in range(DEVICES)
    ]
    sizes = [DEVICES] * 3 + [BESIDE] * (len(ports) - 2)
    devices, ranges = list(apple), [range(DEVICES)]
    for port, size in zip(ports, sizes[1:], strict=True):
        ranges.append(range(len(devices), len(devices) + size))
        devices += [_web_device(port, number) for number in range(size)]
    (folder / "ntf.db").unlink(missing_ok=True)
    store = SqliteTables.open(folder / "ntf.db", Sealer(bytes(32)), Durability.OS)
    await _fill(store, devices)
    outbound = Outbound(("127.0.0.0/8", "::1/128"))
    tls = web_tls()
    tls.load_verify_locations(cafile=folder / "push.pem")
    tokens = VapidTokens([VapidKey(new_private_key(system_entropy))], "mailto:a@example.org", time.time)
    web = WebPush(Way(outbound.network, outbound.gate, tls, response_timeout_s=2.0), tokens)
    providers: dict[PushProvider, Provider] = {
        PushProvider.APNS_PROD: Apns(*at_apple(folder)),
        PushProvider.WEB_PUSH: web,
    }
    router = NtfRouter(store, providers)
    running = asyncio.create_task(router.run())
    try:
        yield Bench(router), ranges
    finally:
        router.stop()
        await running
        await router.pusher.close()
        store.close()


def _p(times: list[float], part: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


async def providers(folder: Path, ports: Sequence[int], count: int) -> list[dict[str, Any]]:
    async with bench(folder, ports[:2]) as (here, ranges):
        times: list[list[float]] = [[] for _ in ranges]
        for numbers in ranges:
            await here.one(numbers[0])
        for start in range(0, count, BLOCK):
            for place, numbers in enumerate(ranges):
                for step in range(start, min(start + BLOCK, count)):
                    times[place].append(await here.one(numbers[step % len(numbers)]))
        cpu = [await _cpu(here, numbers, count) for numbers in ranges]
    return [
        {
            "provider": name,
            "notifications": count,
            "p50_ms": round(statistics.median(taken), 2),
            "p99_ms": round(_p(taken, 0.99), 2),
            "cpu_ms_each": round(1000 * seconds, 3),
        }
        for name, taken, seconds in zip(PROVIDERS, times, cpu, strict=True)
    ]


async def _cpu(here: Bench, numbers: range, count: int) -> float:
    """Seconds of CPU for each notification, from NMSG to the stored end of it."""
    rounds = max(count // AT_ONCE, 1)
    began = time.process_time()
    for _ in range(rounds):
        await here.notify(numbers[:AT_ONCE])
        await until(lambda: not here.router.plan.state.jobs)
    return (time.process_time() - began) / (rounds * min(AT_ONCE, len(numbers)))


async def beside(
    folder: Path, ports: Sequence[int], hostile: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Victims one at a time, with one notification to another push service before each."""
    kinds = len(ATTACKS)
    async with bench(folder, (*ports, *hostile)) as (here, ranges):
        victims = {name: ranges[place] for place, name in enumerate(PROVIDERS[:2])}
        calm, attacked = ranges[3 : 3 + kinds], ranges[3 + kinds :]
        times: dict[tuple[str, str], list[float]] = {}
        for numbers in (*victims.values(), *calm, *attacked):
            await here.notify(numbers[:1])
        await asyncio.sleep(1)
        before = _memory_mib()
        for turn in range(rounds):
            for how, others in (("calm", calm), ("hostile", attacked)):
                for step in range(BLOCK):
                    other = others[(turn * BLOCK + step) % kinds]
                    await here.notify([other[(turn + step) % BESIDE]])
                    for name, numbers in victims.items():
                        taken = await here.one(numbers[step % DEVICES])
                        times.setdefault((name, how), []).append(taken)
        grown = _memory_mib() - before
    rows: list[dict[str, Any]] = []
    for name in victims:
        one, two = times[name, "calm"], times[name, "hostile"]
        rows.append(
            {
                "beside": name,
                "notifications": len(two),
                "p50_ms_calm": round(_p(one, 0.5), 2),
                "p50_ms_hostile": round(_p(two, 0.5), 2),
                "p99_ms_calm": round(_p(one, 0.99), 2),
                "p99_ms_hostile": round(_p(two, 0.99), 2),
                "p99_times": round(_p(two, 0.99) / _p(one, 0.99), 2),
                "memory_mib_more": round(grown, 1),
            }
        )
    return rows


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(notifications: int, rounds: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="blindpost-bench-") as name:
        folder = Path(name)
        with other_process("--services", folder) as ports:
            rows = asyncio.run(providers(folder, ports, notifications))
            with other_process("--hostile", folder) as hostile:
                rows += asyncio.run(beside(folder, ports, hostile, rounds))
        return rows


def figures(rows: list[dict[str, Any]]) -> list[Figure]:
    found = []
    for row in rows:
        if "provider" in row:
            parts = (("p50", "ms", "p50_ms"), ("p99", "ms", "p99_ms"), ("CPU", "ms of CPU", "cpu_ms_each"))
            found += [single(f"{row['provider']}: {name}", unit, row[key]) for name, unit, key in parts]
        else:
            of = f"{row['beside']} beside hostile push services"
            found += [
                single(f"{of}: p99", "x beside calm ones", row["p99_times"]),
                single(f"{of}: memory", "MiB more", row["memory_mib_more"]),
            ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--notifications", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    others: dict[str, Callable[[Path], Any]] = {"services": be_services, "hostile": be_hostile}
    for what in others:
        parser.add_argument(f"--{what}", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for what, be in others.items():
        if getattr(options, what):
            asyncio.run(be(getattr(options, what)))
            return
    rows = measure(options.notifications, options.rounds)
    if options.json:
        print(as_json(figures(rows)))
    else:
        shown(rows)


if __name__ == "__main__":
    main()
