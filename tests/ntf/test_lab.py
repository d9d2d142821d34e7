"""Tier L of the notification router: every state of our own notifications, and nothing of others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from blindpost.journal.author import Author
from blindpost.journal.lab import LabJournal
from blindpost.journal.schema import L_NOTIFICATIONS, TERMINAL_STATES
from blindpost.journal.seal import seal_folder
from blindpost.ntf.lab import NtfLab
from blindpost.ntf.model import NtfRules
from blindpost.ntf.ports import Accepted, Failed, NmsgReceived, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.settings import NtfPlace
from blindpost.ntf.template import config_text
from blindpost.serving.failures import OperatorError
from blindpost.wire.ntf.commands import SDEL
from blindpost.wire.ntf.responses import OK
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.text import b64
from tests.support.ntf.routers import (
    START,
    Device,
    NotifiedQueue,
    RunningNtf,
    active_device,
    device_token,
    running_ntf,
    some_queue,
)
from tests.support.serving.waiting import until

OWN, OTHER = device_token("ab"), device_token("cd")


def rows(root: Path) -> list[dict[str, Any]]:
    assert seal_folder(root, now=START) is not None
    paths = sorted((root / "L" / "l_notifications").glob("date=*/*.parquet"))
    found = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=lambda row: row["seq"])


async def answer(running: RunningNtf, *outcomes: PushOutcome) -> None:
    """The next pushes end like this, the others well."""
    left = list(outcomes)
    running.apple.answer = lambda device, push: left.pop(0) if left else Accepted()


async def fates(running: RunningNtf, device: Device, first: int) -> None:
    """Notifications of one device with every possible end, each from a separate queue."""
    queues = [some_queue(first + number) for number in range(6)]
    ids = [await device.subscribe(queue) for queue in queues]

    async def sent(queue: NotifiedQueue, *outcomes: PushOutcome) -> None:
        await answer(running, *outcomes)
        await running.nmsg(queue)
        await running.settled()
        await until(lambda: not running.router.plan.state.jobs)

    await sent(queues[0])
    await sent(queues[0], Failed("no"))
    await running.router.submit(
        [NmsgReceived(queues[0].server, queues[0].notifier_id, queues[0].nonce(), b"")]  # no metadata
    )
    queues[0].count -= 1
    repeated = NmsgReceived(queues[1].server, queues[1].notifier_id, queues[1].nonce(), b"m" * 144)
    await running.router.submit([repeated])
    await running.router.submit([repeated])
    await running.settled()
    running.apple.open.clear()  # one under way, one that waits behind it, and a newer one in its place
    await running.nmsg(queues[2])
    await running.nmsg(queues[2])
    await running.nmsg(queues[3])
    assert await device.ask(SDEL(), ids[3]) == OK()
    running.apple.open.set()
    await running.settled()
    await sent(queues[4], RetryLater("busy", 0.0))
    await sent(queues[5], TokenInvalid(InvalidReason.UNREGISTERED))
    await running.nmsg(queues[5])
    await running.settled()


async def test_every_state_of_own_notifications_and_nothing_of_others(tmp_path: Path) -> None:
    """The events of one boot are its funnel, notification by notification; others leave no event."""
    for own in (True, False):
        folder = tmp_path / str(own)
        folder.mkdir()
        journal = LabJournal(folder, L_NOTIFICATIONS, Author.started("ntf-1", "ntf"))
        async with running_ntf(folder, NtfRules(retry_first_s=0.01, retry_max_s=0.02)) as running:
            running.router.plan.lab = NtfLab(journal, [OWN.token])
            device = await active_device(running, OWN if own else OTHER)
            await fates(running, device, 1)
            funnel: Counter[str] = Counter()
            for (state, _, _), count in running.router.plan.meters.funnel.items():
                funnel[state] += count
        finish = journal.cut()
        if finish is not None:
            finish()
        found = rows(folder)
        if not own:
            assert found == []
            continue
        assert Counter(row["state"] for row in found) == funnel
        assert {"accepted", "refused", "retried", "replaced", "dropped", "no_token", "token_invalid"} <= {
            row["state"] for row in found
        }
        assert "token_inactive" in funnel
        lives: dict[int, list[str]] = {}
        for row in found:
            lives.setdefault(row["notification"], []).append(row["state"])
        assert len(lives) == funnel["received"]
        for states in lives.values():
            assert states[0] == "received"
            assert [state in TERMINAL_STATES for state in states] == [False] * (len(states) - 1) + [True]
        assert len({row["token"] for row in found}) == 1


async def test_a_rolled_back_batch_leaves_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LabJournal(tmp_path, L_NOTIFICATIONS, Author.started("ntf-1", "ntf"))
    async with running_ntf(tmp_path) as running:
        running.router.plan.lab = NtfLab(journal, [OWN.token])
        device = await active_device(running, OWN)
        queue = some_queue(1)
        await device.subscribe(queue)

        async def refused(_view: object) -> None:
            raise RuntimeError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(running.router.store, "commit", refused)
            with pytest.raises(Exception, match="failed"):
                await running.nmsg(queue)
        await running.nmsg(queue)
        await running.settled()
    finish = journal.cut()
    assert finish is not None
    finish()
    assert [row["state"] for row in rows(tmp_path)] == ["received", "stored", "pushed", "accepted"]


@pytest.mark.parametrize("text", ["zz", "abc", "", "ab cd"])
def test_devices_are_named_in_hexadecimal(text: str) -> None:
    written = config_text(["ntf.example.org"], 443, b64(bytes(32)), "sqlite", "")
    assert NtfPlace.parse(written.encode(), Path("ntf.toml")).journal.lab == []
    named = written.replace("lab = []", f'lab = ["{text}"]')
    with pytest.raises(OperatorError, match="an even number of hexadecimal digits expected"):
        NtfPlace.parse(named.encode(), Path("ntf.toml"))
    good = written.replace("lab = []", 'lab = ["ABcd"]')
    assert NtfPlace.parse(good.encode(), Path("ntf.toml")).journal.lab == ["abcd"]
