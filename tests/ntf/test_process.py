"""The notification router as an operator has it: commands, configuration, metrics, signals, kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from blindpost.client.smp import SmpClient
from blindpost.ntf.process import locked, open_store
from blindpost.ntf.settings import parse, read_place
from blindpost.ntf.template import config_text
from blindpost.serving.failures import OperatorError
from blindpost.testing.apns import ACCEPTED as TAKEN
from blindpost.testing.apns import UNAVAILABLE, ApnsServer, Reaction
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.ntf.commands import TVFY
from blindpost.wire.ntf.pushes import MessagePush
from blindpost.wire.ntf.responses import OK
from blindpost.wire.ntf.tokens import PushProvider
from blindpost.wire.text import b64
from tests.support.notified import SmpQueue, notified_queues
from tests.support.ntf_process import StartedNtf, at, configure, invoke, ntf_in_process
from tests.support.ntf_routers import Device, device_token
from tests.support.processes import RouterInProcess, router_in_process, until
from tests.support.routers import running_router

KILLS = int(os.environ.get("BLINDPOST_NTF_KILLS", "4"))
ROUTERS = int(os.environ.get("BLINDPOST_NTF_ROUTERS", "2"))
DEVICES = int(os.environ.get("BLINDPOST_NTF_TOKENS", "6"))
SEED = int(os.environ.get("BLINDPOST_SEED", "1"))
BEYOND = 30
"""How many messages are sent while a process is killed and started again."""
QUICK = (
    ("retry_first_s = 2.0", "retry_first_s = 0.05"),
    ("retry_max_s = 600.0", "retry_max_s = 0.2"),
    ("period_step_s = 30.0", "period_step_s = 0.2"),
    ("device_code_pushes = 10", "device_code_pushes = 1000"),
    ("connection_code_pushes = 50", "connection_code_pushes = 100000"),
)


async def verified(ntf: StartedNtf, apple: ApnsServer, number: int) -> Device:
    """A device of the test provider that has shown its code."""
    device = Device(await ntf.connect(), device_token(f"{number:08x}", PushProvider.APNS_TEST))
    await device.register()
    name = device.name.token.decode()
    await apple.until(lambda: bool(apple.sent_to(name)))
    assert await device.ask(TVFY(device.code(apple.sent_to(name)[-1].push))) == OK()
    return device


async def all_active(device: Device, subscription_ids: list[bytes]) -> None:
    async def active() -> bool:
        found = [await device.sub_status(subscription_id) for subscription_id in subscription_ids]
        return set(found) == {b"ACTIVE"}

    await until(active)


async def test_an_operator_sets_up_starts_and_looks_after_a_router(tmp_path: Path) -> None:
    folder = tmp_path / "ntf"
    async with ApnsServer() as apple, running_router(tmp_path) as smp, ntf_in_process(folder) as ntf:
        assert RouterAddress.from_text(invoke("address", "-c", folder).strip()).server == ntf.server
        assert (folder / "store.key").stat().st_mode & 0o777 == 0o600
        with pytest.raises(OperatorError, match="no notification router runs here"):
            invoke("status", "-c", folder)
        with pytest.raises(OperatorError, match="not empty"):
            invoke("init", folder, "--host", "x.org")
        configure(folder, *at(folder, apple), *QUICK, ("enabled = false\naddress", "enabled = true\naddress"))
        configure(folder, ("port = 9465", "port = 0"))
        await ntf.start()
        with pytest.raises(OperatorError, match="is running in this folder"), locked(read_place(folder)):
            pass
        device = await verified(ntf, apple, 1)
        client = await smp.connect()
        (queue,) = await notified_queues(client, smp.server, 1)
        await all_active(device, [await device.subscribe(queue)])
        await queue.send(client)
        name = device.name.token.decode()
        await apple.until(lambda: len(apple.sent_to(name)) == 2)
        (item,) = device.items(apple.sent_to(name)[-1].push)
        assert item.notifier_id == queue.notifier_id

        async def settled() -> bool:
            return bool((await ntf.status())["ledger"]["accepted"] == 1)

        await until(settled)
        status = json.loads(await asyncio.to_thread(invoke, "status", "-c", folder, "--json"))
        assert (status["tokens"], status["subscriptions"], status["smp_routers_connected"]) == (1, 1, 1)
        found = re.search(rb"metrics on port (\d+)", ntf.log)
        assert found is not None
        metrics = await asyncio.to_thread(_metrics, int(found[1]))
        for line in (
            "simplex_ntf_tokens_created 1",
            "simplex_ntf_tokens_verified 1",
            "simplex_ntf_tokens_total 1",
            "simplex_ntf_subscriptions_created 1",
            "simplex_ntf_notifications_received 1",
            "simplex_ntf_notifications_delivered 1",
            "simplex_ntf_notifications_verification_delivered 1",
            'blindpost_ntf_ledger_total{state="accepted"} 1',
            "simplex_ntf_smp_sessions_count 1",
        ):
            assert line in metrics.splitlines()
        rotated = await asyncio.to_thread(invoke, "rotate-cert", "-c", folder)
        assert "uses the new certificate" in rotated
        renewed = await ntf.connect()
        device.client = renewed
        assert await device.status() == "ACTIVE"
        assert await ntf.end(signal.SIGTERM) == 0
        assert b"everything it accepted is stored and answered" in ntf.log
        assert b"ERROR" not in ntf.log
        for marker in (device.name.token, queue.notifier_id.hex().encode(), b64(device.token_id).encode()):
            assert marker not in ntf.log
            assert marker.decode() not in metrics
        await client.close()


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text: str = answer.read().decode()
    return text


async def test_the_key_of_the_store_comes_from_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ntf"
    async with ntf_in_process(folder):
        place, file = read_place(folder), folder / "store.key"
        key = file.read_text().strip()
        (await open_store(place)).close()
        file.unlink()
        with pytest.raises(OperatorError, match=r"store\.key"):
            await open_store(place)
        file.write_text("00" * 32)
        with pytest.raises(OperatorError, match="sealed with another key"):
            await open_store(place)
        file.write_text("no key")
        with pytest.raises(OperatorError, match="64 hexadecimal digits"):
            await open_store(place)
        monkeypatch.setenv("BLINDPOST_NTF_KEY", key)
        (await open_store(place)).close()


async def test_a_database_serves_as_store(tmp_path: Path, database: str) -> None:
    folder = tmp_path / "ntf"
    async with ApnsServer() as apple, ntf_in_process(folder, "--store", "postgres", "--dsn", database) as ntf:
        configure(folder, *at(folder, apple), *QUICK)
        await ntf.start()
        device = await verified(ntf, apple, 1)
        assert await ntf.end(signal.SIGKILL) == -signal.SIGKILL
        await ntf.start()
        device.client = await ntf.connect()
        assert await device.status() == "ACTIVE"
        assert await ntf.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("retry_max_s = 600.0", "retry_maxs = 600.0", "Did you mean rules.retry_max_s?"),
        ('kind = "sqlite"', 'kind = "postgres"', "address of the database"),
        ('dsn = ""', 'dsn = "mysql://x"', "postgresql://user@host/database expected"),
        ('key_file = ""', 'key_file = "key.p8"', "key_id expected"),
        ("padded_size = 2912", "padded_size = 99999", "padded_size"),
        ('address = "127.0.0.1"', 'address = "192.0.2.1"', "loopback"),
        ('hosts = ["ntf.example.org"]', "hosts = []", "hosts"),
        ('fingerprint = "', 'fingerprint = "?', "fingerprint"),
    ],
)
def test_mistakes_in_the_configuration_are_told_with_their_line(before: str, after: str, told: str) -> None:
    text = config_text(["ntf.example.org"], 443, b64(bytes(32)), "sqlite", "")
    assert text.count(before) == 1
    parse(text.encode(), Path("ntf.toml"))
    with pytest.raises(OperatorError, match=r"ntf\.toml, line \d+") as caught:
        parse(text.replace(before, after).encode(), Path("ntf.toml"))
    assert told in str(caught.value)


class Burden:
    """Messages to many queues at routers that come and go, and what Apple accepted of them."""

    def __init__(self, ntf: StartedNtf, apple: ApnsServer, chance: random.Random) -> None:
        self.ntf = ntf
        self.apple = apple
        self.chance = chance
        self.devices: list[Device] = []
        self.queues: list[SmpQueue] = []
        self.sent = 0
        self._goal = 0
        self._changed = asyncio.Event()
        self._stopped = False

    async def set_up(self, routers: list[RouterInProcess]) -> None:
        ids: dict[int, list[bytes]] = {}
        for number in range(DEVICES):
            self.devices.append(await verified(self.ntf, self.apple, number))
        for router in routers:
            client = await router.connect()
            queues = await notified_queues(client, router.server, DEVICES)
            for number, queue in enumerate(queues):
                ids.setdefault(number, []).append(await self.devices[number].subscribe(queue))
            self.queues += queues
            await client.close()
        for number, found in ids.items():
            await all_active(self.devices[number], found)

    async def send(self, router: RouterInProcess) -> None:
        """Keep sending to the queues of one message router, whenever it is up."""
        queues = [queue for queue in self.queues if queue.server == router.server]
        client: SmpClient | None = None
        while not self._stopped:
            if self.sent >= self._goal + BEYOND:
                await self._change()
                continue
            try:
                client = client or await router.connect()
                await self.chance.choice(queues).send(client)
                self.sent += 1
                self._changed.set()
            except Exception:  # the router was killed under us, in one of many ways
                client = None
                await asyncio.sleep(0.05)
        if client is not None:
            await client.close()

    def stop(self) -> None:
        self._stopped = True
        self._changed.set()

    async def until_sent(self, more: int) -> None:
        """Let so many be sent, and some more while whatever comes next is done."""
        self._goal = self.sent + more
        self._changed.set()
        while self.sent < self._goal:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def accepted(self) -> set[tuple[bytes, bytes]]:
        """Every notification that was in an accepted push, by queue and nonce."""
        found: set[tuple[bytes, bytes]] = set()
        for device in self.devices:
            for delivered in self.apple.sent_to(device.name.token.decode()):
                if isinstance(delivered.push, MessagePush):
                    found.update((item.notifier_id, item.nonce) for item in device.items(delivered.push))
        return found


@pytest.mark.timeout(120 + 20 * KILLS)
async def test_kill_9_of_any_process_leaves_no_notification_without_an_end(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    async with AsyncExitStack() as stack, ApnsServer() as apple, ntf_in_process(tmp_path / "ntf") as ntf:
        routers = [
            await stack.enter_async_context(router_in_process(tmp_path / f"smp{number}"))
            for number in range(ROUTERS)
        ]
        configure(ntf.folder, *at(ntf.folder, apple), *QUICK)
        processes: list[RouterInProcess | StartedNtf] = [ntf, *routers]
        for process in processes:
            await process.start()
        burden = Burden(ntf, apple, chance)
        await burden.set_up(routers)

        def sometimes(_device: str) -> Reaction:
            return UNAVAILABLE if chance.random() < 0.2 else TAKEN

        apple.decide = sometimes
        async with asyncio.TaskGroup() as tasks:
            for router in routers:
                tasks.create_task(burden.send(router))
            for number in range(KILLS):
                await burden.until_sent(chance.randrange(5, 60))
                victim = ntf if number % 2 == 0 else chance.choice(processes)
                await victim.end(signal.SIGKILL)
                await victim.start()
            await burden.until_sent(30)
            burden.stop()
        apple.decide = lambda _device: TAKEN

        async def ended() -> bool:
            status = await ntf.status()
            waiting, subscribed = status["ledger"]["waiting"], status["queues_subscribed"]
            return bool(waiting == 0 and subscribed == len(burden.queues))

        await until(ended)
        before = burden.accepted()
        for router in routers:
            client = await router.connect()
            for queue in burden.queues:
                if queue.server == router.server:
                    await queue.send(client)
            await client.close()
        named = {queue.notifier_id for queue in burden.queues}
        await apple.until(lambda: {queue for queue, _ in burden.accepted() - before} == named)
        await until(ended)
        ledger = (await ntf.status())["ledger"]
        assert await ntf.end(signal.SIGTERM) == 0
        with sqlite3.connect(ntf.folder / "ntf.db") as store:
            kept = dict(store.execute("SELECT name, value FROM counters"))
            (newest,) = store.execute("SELECT max(number) FROM notifications").fetchone()
            (waiting,) = store.execute("SELECT count(*) FROM notifications WHERE waiting").fetchone()
        store.close()
        ends = {state: count for state, count in ledger.items() if state != "waiting"}
        assert waiting == 0
        assert sum(ends.values()) == newest, "accepted notifications are numbered without gaps"
        assert all(kept.get(f"ledger_{state}", 0) == count for state, count in ends.items())
        assert ends["rejected"] == ends["expired"] == 0
        assert 0 < ends["accepted"] <= len(burden.accepted()), "what the ledger says, Apple has"
        assert b"Traceback" not in ntf.log
