"""What a running server changes and logs by itself: the pace of its rounds, and limits that applied."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from blindpost.serving.process import Process
from blindpost.serving.tasks import Tasks


async def test_a_changed_setting_applies_to_a_pause_in_progress() -> None:
    pause_s, done = [3_600.0], asyncio.Event()

    async def work() -> None:
        done.set()

    tasks = Tasks()
    tasks.repeat("a round", lambda: pause_s[0], work)
    await asyncio.sleep(0)
    tasks.reconsider()
    await asyncio.sleep(0)
    assert not done.is_set(), "nothing was changed"
    pause_s[0] = 0.001
    tasks.reconsider()
    await done.wait()
    await tasks.cancel(keep="")


async def test_limits_that_applied_are_logged_once_as_counts(caplog: pytest.LogCaptureFixture) -> None:
    counts = {"refused_address": 2, "made_room": 0}
    frame = SimpleNamespace(service=SimpleNamespace(limited=lambda: counts), _limited=Counter())
    told = cast(Any, Process)._tell_limited
    with caplog.at_level(logging.WARNING, "blindpost"):
        await told(frame)
        await told(frame)
        counts["made_room"] = 5
        await told(frame)
    assert caplog.messages == [
        "limits applied in the last minute: refused address 2",
        "limits applied in the last minute: made room 5",
    ]
