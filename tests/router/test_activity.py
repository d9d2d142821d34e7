"""How many queues are in use: each counted once a period, across restarts; nothing stored tells which."""

from __future__ import annotations

import base64
import json
import os
import random
import stat
from pathlib import Path

import pytest

from blindpost.engine.loop import StoreFailedError
from blindpost.router.config import RouterRules
from blindpost.router.running.activity import DAY_S, FOLD_AT, Activity
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.smp.commands import ACK, GET, QUE, SEND, SUB
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ERR, MSG
from tests.support.router.lines import create, lines_of
from tests.support.router.routers import running_router

DAY = 20_000
KINDS, PERIODS = ("queues", "queues_notify"), ("daily", "weekly", "monthly")


def seeded(seed: int = 1) -> random.Random:
    return random.Random(seed)


def activity(folder: Path, seed: int = 1) -> Activity:
    """The file of this folder, and a salt for it if it is not there."""
    kept = Activity(folder / "activity.json", seeded(seed).randbytes)
    kept.load()
    return kept


def ids(number: int, seed: int = 7) -> list[bytes]:
    entropy = seeded(seed)
    return [entropy.randbytes(24) for _ in range(number)]


def note(kept: Activity, queues: list[bytes], day: int = DAY, *, notify: bool = False) -> None:
    kept.note([(queue, notify) for queue in queues], day * DAY_S + 5)


def counts(kept: Activity, day: int = DAY) -> list[list[int]]:
    found = kept.counts(day * DAY_S + DAY_S - 1)
    assert list(found) == [f"{kind}_{period}" for kind in KINDS for period in PERIODS]
    return [[found[f"{kind}_{period}"] for period in PERIODS] for kind in KINDS]


def test_a_queue_counts_once_in_each_period(tmp_path: Path) -> None:
    kept, (one, two, three) = activity(tmp_path), ids(3)
    assert counts(kept) == [[0, 0, 0], [0, 0, 0]]
    note(kept, [one, two, one])
    note(kept, [one], notify=True)
    assert counts(kept) == [[2, 2, 2], [1, 1, 1]]
    note(kept, [two, one])
    assert counts(kept) == [[2, 2, 2], [1, 1, 1]]
    note(kept, [two, three], DAY + 1, notify=True)
    assert counts(kept, DAY + 1) == [[2, 3, 3], [2, 3, 3]]
    assert counts(kept, DAY + 2) == [[0, 3, 3], [0, 3, 3]]
    assert counts(kept, DAY + 6) == [[0, 3, 3], [0, 3, 3]]
    assert counts(kept, DAY + 7) == [[0, 2, 3], [0, 2, 3]]
    assert counts(kept, DAY + 29) == [[0, 0, 3], [0, 0, 3]]
    assert counts(kept, DAY + 30) == [[0, 0, 2], [0, 0, 2]]
    assert counts(kept, DAY + 31) == [[0, 0, 0], [0, 0, 0]]


def test_queues_of_a_day_stay_with_it_when_the_day_ends_before_they_are_hashed(tmp_path: Path) -> None:
    kept, (one, two) = activity(tmp_path), ids(2)
    note(kept, [one])
    note(kept, [two], DAY + 1)
    assert counts(kept, DAY) == [[1, 1, 1], [0, 0, 0]]
    assert counts(kept, DAY + 1) == [[1, 2, 2], [0, 0, 0]]


def test_many_are_counted_within_a_few_percent(tmp_path: Path) -> None:
    kept, many = activity(tmp_path), ids(20_000)
    for start in range(0, len(many), 100):
        note(kept, many[start : start + 100], notify=start < len(many) // 2)
    note(kept, many[:5000], DAY + 1)
    every, notified = counts(kept, DAY + 1)
    assert every == pytest.approx([5000, 20_000, 20_000], rel=0.04)
    assert notified == pytest.approx([0, 10_000, 10_000], rel=0.04)


def test_counts_continue_after_a_restart_and_count_nothing_twice(tmp_path: Path) -> None:
    before, queues = activity(tmp_path), ids(FOLD_AT + 10)
    note(before, queues, notify=True)
    before.save()
    after = activity(tmp_path, seed=2)
    assert counts(after) == counts(before)
    note(after, queues, notify=True)
    assert counts(after) == counts(before)
    note(after, queues[:10], DAY + 1)
    assert counts(after, DAY + 1)[0][0] == 10
    assert counts(after, DAY + 1)[0][1:] == pytest.approx(counts(before)[0][1:], rel=0.03)


def kept_in(folder: Path) -> dict[str, dict[str, bytes]]:
    """The sketches that the file holds, by kind and day."""
    kept = json.loads((folder / "activity.json").read_text())
    assert sorted(kept) == ["days", "format", "salt"]
    return {
        kind: {day: base64.b64decode(text) for day, text in days.items()}
        for kind, days in kept["days"].items()
    }


def test_the_file_names_no_queue(tmp_path: Path) -> None:
    """A day is an array of registers from its first queue on; each queue raises one of them."""
    one, other = tmp_path / "one", tmp_path / "other"
    queue, second = ids(2)
    for folder, seed in ((one, 1), (other, 2)):
        folder.mkdir()
        kept = activity(folder, seed)
        note(kept, [queue])
        kept.save()
    file = one / "activity.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = file.read_bytes()
    for form in (queue, queue.hex().encode(), base64.b64encode(queue), base64.urlsafe_b64encode(queue)):
        assert form not in content
    sketch = kept_in(one)["queues"][str(DAY)]
    registers = sketch[-4096:]
    assert len(sketch) == 4096 + 40
    assert sum(register > 0 for register in registers) == 1
    assert kept_in(one)["queues_notify"] == {}
    assert kept_in(other)["queues"][str(DAY)][-4096:] != registers
    kept = activity(one)
    note(kept, [second])
    kept.save()
    assert len(kept_in(one)["queues"][str(DAY)]) == len(sketch)


def test_days_outside_every_period_are_dropped(tmp_path: Path) -> None:
    kept = activity(tmp_path)
    for day in (DAY, DAY + 1, DAY + 30):
        note(kept, ids(1), day, notify=True)
    kept.save()
    for days in kept_in(tmp_path).values():
        assert list(days) == [str(DAY + 1), str(DAY + 30)]


def test_only_changes_are_written(tmp_path: Path) -> None:
    kept, file = activity(tmp_path), tmp_path / "activity.json"
    kept.save()
    assert not file.exists()
    note(kept, ids(1))
    kept.save()
    file.unlink()
    kept.save()
    assert not file.exists()
    note(kept, ids(1))
    kept.save()
    assert file.exists()


def small(sketch: str) -> str:
    """A sketch of another size, the rest as it was."""
    raw = bytearray(base64.b64decode(sketch))
    raw[3] = 4
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize("damage", ["cut", "format", "salt", "sketch", "size", "kind", "list"])
def test_a_file_that_cannot_be_read_is_set_aside(tmp_path: Path, damage: str) -> None:
    kept, file = activity(tmp_path), tmp_path / "activity.json"
    note(kept, ids(5))
    kept.save()
    content = json.loads(file.read_text())
    day = content["days"]["queues"]
    match damage:
        case "format":
            content["format"] = 2
        case "salt":
            content["salt"] = content["salt"][:8]
        case "sketch":
            day[str(DAY)] = day[str(DAY)][:400]
        case "size":
            day[str(DAY)] = small(day[str(DAY)])
        case "kind":
            del content["days"]["queues_notify"]
        case "list":
            content = [content]
    damaged = json.dumps(content)
    file.write_text(damaged[:-9] if damage == "cut" else damaged)
    again = activity(tmp_path)
    assert counts(again) == [[0, 0, 0], [0, 0, 0]]
    assert not file.exists()
    assert (tmp_path / "activity.unreadable").exists()


async def test_sending_and_receiving_count_as_use(tmp_path: Path) -> None:
    """Not subscribing, looking, nor what was refused or only marks a full queue."""
    network = MemoryNetwork()
    async with running_router(tmp_path, RouterRules(quota=1), now=lambda: DAY * DAY_S, network=network) as up:
        line, sender = await lines_of(up, 2)
        queue, other = await create(line, notifier=True), await create(line)
        kept = activity(tmp_path)
        up.router.plan.on_use = kept.note
        await queue.ask(line, SUB())
        await other.ask(line, QUE())
        await other.ask(line, GET())
        await sender.ask(SEND(True, b""), os.urandom(24))
        await sender.ask(SEND(True, bytes(16_049)), queue.sender_id)
        assert counts(kept)[0][0] == 0
        await queue.send(sender, b"one")
        assert counts(kept) == [[1, 1, 1], [0, 0, 0]]
        # What a queue that was counted yesterday receives is use of it today.
        kept = activity(tmp_path)
        up.router.plan.on_use = kept.note
        refused = await sender.ask(SEND(True, b"two"), queue.sender_id)
        assert refused == ERR(Code.QUOTA)
        assert counts(kept)[0][0] == 0
        queue.opened((await line.event(queue.recipient_id)).response)
        marker = await queue.ask(line, ACK(queue.last_id))
        assert isinstance(marker, MSG)
        assert counts(kept) == [[1, 1, 1], [0, 0, 0]]
        kept = activity(tmp_path)
        up.router.plan.on_use = kept.note
        queue.opened(marker)
        await queue.ask(line, ACK(queue.last_id))
        assert counts(kept)[0][0] == 0
        await other.send(sender, b"three", notify=True)
        assert counts(kept) == [[1, 1, 1], [1, 1, 1]]


async def test_a_failed_command_is_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(changes: object) -> None:
        raise StoreFailedError("the disk is full")

    async with running_router(tmp_path, now=lambda: DAY * DAY_S, network=MemoryNetwork()) as up:
        line, sender = await lines_of(up, 2)
        queue = await create(line)
        kept = activity(tmp_path)
        up.router.plan.on_use = kept.note
        with monkeypatch.context() as patched:
            patched.setattr(up.router.store, "commit", full)
            assert isinstance(await sender.ask(SEND(False, b""), queue.sender_id), ERR)
        await queue.ask(line, QUE())
        assert counts(kept)[0][0] == 0
        with monkeypatch.context() as patched:
            patched.setattr("blindpost.router.queues.message_arrived", None)
            assert await sender.ask(SEND(False, b""), queue.sender_id) == ERR(Code.INTERNAL)
        await queue.ask(line, QUE())
        assert counts(kept)[0][0] == 0
