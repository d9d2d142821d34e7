"""The notification router as an operator uses it: commands, configuration, metrics, signals, kill -9."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import signal
import sqlite3
import time
import urllib.request
from collections import Counter
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from blindpost.crypto.webpush import POINT_SIZE
from blindpost.ntf.model import STORED_CARRIERS
from blindpost.ntf.process import open_store
from blindpost.ntf.push_keys import former_files, rotate, vapid_of
from blindpost.ntf.settings import NtfPlace
from blindpost.ntf.template import config_text
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import readable_by_others
from blindpost.testing.apns import ApnsServer
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.text import b64, unb64
from tests.support.ntf.apns_process import apns_in_process
from tests.support.ntf.devices import verified
from tests.support.ntf.load import Kept, Load, kept_notifications
from tests.support.ntf.notified import notified_queues
from tests.support.ntf.process import (
    StartedNtf,
    at,
    at_process,
    at_web,
    configure,
    invoke,
    ntf_in_process,
)
from tests.support.ntf.routers import Device
from tests.support.ntf.web_process import web_push_in_process
from tests.support.router.routers import running_router
from tests.support.serving.commands import run
from tests.support.serving.processes import Forked, router_in_process, until

log = logging.getLogger(__name__)

KILLS = int(os.environ.get("BLINDPOST_NTF_KILLS", "4"))
ROUTERS = int(os.environ.get("BLINDPOST_NTF_ROUTERS", "2"))
DEVICES = int(os.environ.get("BLINDPOST_NTF_TOKENS", "6"))
SEED = int(os.environ.get("BLINDPOST_SEED", "1"))
MANY_QUEUES = ("new_per_address_burst = 500", f"new_per_address_burst = {500 + DEVICES}")
QUICK = (
    ("retry_first_s = 2.0", "retry_first_s = 0.05"),
    ("retry_max_s = 600.0", "retry_max_s = 0.2"),
    ("period_step_s = 30.0", "period_step_s = 0.2"),
    ("device_code_pushes = 10", "device_code_pushes = 1000"),
    ("address_code_pushes = 200", "address_code_pushes = 100000"),
)


async def all_active(device: Device, subscription_ids: list[bytes]) -> None:
    async def active() -> bool:
        found = [await device.sub_status(subscription_id) for subscription_id in subscription_ids]
        return set(found) == {b"ACTIVE"}

    await until(active)


async def test_an_operator_sets_up_starts_and_maintains_a_router(tmp_path: Path) -> None:
    folder = tmp_path / "ntf"
    async with ApnsServer() as apple, running_router(tmp_path) as smp, ntf_in_process(folder) as ntf:
        assert RouterAddress.from_text(invoke("address", "-c", folder).strip()).server == ntf.server
        assert (folder / "store.key").stat().st_mode & 0o777 == 0o600
        with pytest.raises(OperatorError, match="Start it with `blindpost ntf start -c"):
            invoke("status", "-c", folder)
        with pytest.raises(OperatorError, match="not empty"):
            invoke("init", folder, "--host", "x.org")
        configure(folder, *at(folder, apple), *QUICK, ("enabled = false\naddress", "enabled = true\naddress"))
        configure(folder, ("port = 9465", "port = 0"))
        await ntf.start()
        with pytest.raises(OperatorError, match="is running in this folder"), NtfPlace.read(folder).locked():
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
            return bool((await ntf.ask("status"))["ledger"]["accepted"] == 1)

        await until(settled)
        status = json.loads(await asyncio.to_thread(invoke, "status", "-c", folder, "--json"))
        assert (status["tokens"], status["subscriptions"], status["smp_routers_connected"]) == (1, 1, 1)
        assert status["ledger_apns"]["accepted"] == 1
        assert set(status["ledger_webpush"].values()) == {0}
        assert len(unb64(status["vapid_public_key"])) == POINT_SIZE
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
            'blindpost_ntf_ledger_total{provider="apns",state="accepted"} 1',
            "simplex_ntf_smp_sessions_count 1",
        ):
            assert line in metrics.splitlines()
        rotated = json.loads(await asyncio.to_thread(invoke, "rotate-push-key", "-c", folder, "--json"))
        assert rotated["in_use"]
        now = json.loads(await asyncio.to_thread(invoke, "status", "-c", folder, "--json"))
        assert now["vapid_public_key"] == rotated["vapid_public_key"] != status["vapid_public_key"]
        assert list(now["vapid_former_keys"]) == [status["vapid_public_key"]]
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
        place, file = NtfPlace.read(folder), folder / "store.key"
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
        ('address = "127.0.0.1"', 'address = "localhost"', "an IP address of this machine"),
        ('hosts = ["ntf.example.org"]', "hosts = []", "hosts"),
        ('fingerprint = "', 'fingerprint = "?', "fingerprint"),
    ],
)
def test_mistakes_in_the_configuration_are_reported_with_their_line(
    before: str, after: str, told: str
) -> None:
    text = config_text(["ntf.example.org"], 443, b64(bytes(32)), "sqlite", "")
    assert text.count(before) == 1
    NtfPlace.parse(text.encode(), Path("ntf.toml"))
    with pytest.raises(OperatorError, match=r"ntf\.toml, line \d+") as caught:
        NtfPlace.parse(text.replace(before, after).encode(), Path("ntf.toml"))
    assert told in str(caught.value)


def test_keys_for_web_push_that_are_rotated_twice_in_a_second_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("ntf", "init", tmp_path / "ntf", "--host", "127.0.0.1")
    place, kept = NtfPlace.read(tmp_path / "ntf"), []
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    for _ in range(3):
        kept.append(place.vapid_file.read_bytes())
        rotate(place, 90)
    assert [path.read_bytes() for _, path in former_files(place)] == kept[::-1]


async def test_keys_for_web_push_are_rotated_with_overlap_and_without(tmp_path: Path) -> None:
    async with ntf_in_process(tmp_path / "ntf") as ntf:
        place = NtfPlace.read(ntf.folder)
        first = vapid_of(place)
        assert first is not None
        until = rotate(place, 90)
        second = vapid_of(place)
        assert second is not None
        assert until is not None
        assert [key.name for key in second.keys] == [second.current.name, first.current.name]
        assert second.former[0].until == until > time.time() + 89 * 86_400
        assert rotate(place, 0) is None
        third = vapid_of(place)
        assert third is not None
        assert [key.name for key in third.former] == [first.current.name], "the second is gone at once"
        expired = ntf.folder / "vapid-until-1.pem"
        expired.write_bytes(place.vapid_file.read_bytes())
        rotate(place, 1)
        assert not expired.exists()
        assert all(not readable_by_others(path) for _, path in former_files(place))
        (ntf.folder / "vapid-until-99999999999.pem").write_text("no key")
        with pytest.raises(OperatorError, match="P-256"):
            vapid_of(place)


@pytest.mark.timeout(120 + 20 * KILLS + DEVICES)
async def test_kill_9_of_any_process_leaves_no_notification_without_an_end(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    async with (
        AsyncExitStack() as stack,
        apns_in_process(tmp_path / "apple") as apple,
        web_push_in_process(tmp_path / "web") as web,
        ntf_in_process(tmp_path / "ntf") as ntf,
    ):
        routers = [
            await stack.enter_async_context(router_in_process(tmp_path / f"smp{number}", MANY_QUEUES))
            for number in range(ROUTERS)
        ]
        for service in (apple, web):
            await service.start()
        configure(ntf.folder, *at_process(ntf.folder, apple), *at_web(ntf.folder, web), *QUICK)
        processes: list[Forked | StartedNtf] = [ntf, apple, web, *routers]
        await ntf.start()
        for router in routers:
            await router.start()
        load = Load(ntf, (apple, web), chance, beyond=max(30, DEVICES // 10))
        await load.set_up(routers, DEVICES)
        for service in (apple, web):
            service.fail(0.2)
        seen: list[Kept] = []
        victims: Counter[str] = Counter()
        async with asyncio.TaskGroup() as tasks:
            for router in routers:
                tasks.create_task(load.send(router))
            for number in range(KILLS):
                await load.until_sent(chance.randrange(5, max(60, DEVICES // 2)))
                victim = ntf if number % 2 == 0 else chance.choice(processes)
                victims[victim.folder.name] += 1
                await victim.end(signal.SIGKILL)
                if victim is ntf:
                    kept_now = await asyncio.to_thread(kept_notifications, ntf)
                    load.accepted(kept_now)
                    seen += kept_now
                await victim.start()
            await load.until_sent(30)
            load.stop()

        async def ended() -> bool:
            status = await ntf.ask("status")
            waiting, subscribed = status["ledger"]["waiting"], status["queues_subscribed"]
            return bool(waiting == 0 and subscribed == len(load.queues))

        await until(ended, 60 + DEVICES / 5)
        before = set(load.pushed())
        for router in routers:
            await load.send_to_all(router)
        named = {queue.notifier_id for queue in load.queues}

        async def told() -> bool:
            return {queue for queue, _ in load.pushed() - before} == named

        await until(told, 60 + DEVICES / 5)
        await until(ended)
        await ntf.end(signal.SIGKILL)
        load.accepted(await asyncio.to_thread(kept_notifications, ntf))
        pushes = load.pushes
        await ntf.start()
        await until(ended, 60 + DEVICES / 5)
        status = await ntf.ask("status")
        ledger, by_provider = status["ledger"], [status[f"ledger_{name}"] for name in ("apns", "webpush")]
        assert await ntf.end(signal.SIGTERM) == 0
        load.pushed()
        assert (load.pushes, load.twice) == (pushes, 0), "nothing is pushed again after it was accepted"
        assert all(states["accepted"] for states in by_provider)
        assert ledger == {state: sum(each[state] for each in by_provider) for state in ledger}
        log.info("killed %s; %d messages sent, %d pushes; %s", dict(victims), load.sent, load.pushes, ledger)
        nonces = {nonce for _, nonce in load.pushed()}
        kept = {each.subscription_id: each for each in kept_notifications(ntf)}
        assert not any(each.is_waiting for each in kept.values())
        assert all(each.nonce in nonces for each in kept.values()), "the newest of each queue was pushed"
        for each in seen:
            is_superseded = kept[each.subscription_id].number > each.number
            assert is_superseded or each.nonce in nonces, "what was accepted is pushed or superseded"
        _the_ledger_adds_up(ntf, ledger, max(each.number for each in kept.values()))
        assert 0 < ledger["accepted"] <= len(load.pushed()), "what the ledger says, push services have"
        assert b"Traceback" not in ntf.log


def _the_ledger_adds_up(ntf: StartedNtf, ledger: dict[str, int], newest: int) -> None:
    with closing(sqlite3.connect(ntf.folder / "ntf.db")) as store:
        stored = dict(store.execute("SELECT name, value FROM counters"))
    for state, count in ledger.items():
        assert sum(stored.get(f"ledger_{carrier.value}_{state}", 0) for carrier in STORED_CARRIERS) == count
    assert ledger["accepted"] + ledger["superseded"] == newest, (
        "accepted notifications have numbers without gaps"
    )
    assert sum(ledger.values()) == newest, "nothing waits, was rejected, expired or dropped"
