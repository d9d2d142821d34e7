"""A server that died is started again, also by a machine that has no room for a process at that moment."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from pathlib import Path

import pytest

from blindpost.ops import supervision
from blindpost.ops.supervision import Supervised
from blindpost.serving.children import Child
from tests.support.serving.commands import until


class Fleeting(Child):
    """Two processes that end at once, with no room for others between them; then one that stays."""

    def __init__(self, folder: Path) -> None:
        super().__init__("router", folder)
        self.tries = 0
        self.stays = asyncio.Event()

    def spawn(self) -> None:
        self.tries += 1
        if self.tries in (2, 3):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        words = ["true"] if self.tries < 5 else ["sleep", "600"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE)
        if self.tries == 5:
            self.stays.set()


async def test_a_server_is_started_again_when_there_is_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervision, "_DELAY_S", 0.001)
    child = Fleeting(tmp_path)
    child.spawn()
    supervised = Supervised(child)
    task = asyncio.create_task(supervised.run())
    async with asyncio.timeout(60):
        await child.stays.wait()
    assert caplog.text.count("router could not be started: Cannot allocate memory") == 2
    await supervised.stop()
    await task
    assert not child.runs


class Resting(Child):
    """A process that ends at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__("router", folder)
        self.tries = 0

    def spawn(self) -> None:
        self.tries += 1
        self._process = subprocess.Popen(["true"], stdin=subprocess.PIPE)


async def test_a_server_that_is_to_stop_in_its_pause_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "_DELAY_S", 600.0)
    child = Resting(tmp_path)
    child.spawn()
    supervised = Supervised(child)
    task = asyncio.create_task(supervised.run())
    await until(lambda: supervised.restarts == 1)
    await supervised.stop()
    async with asyncio.timeout(60):
        await task
    assert child.tries == 1


class Impossible(Child):
    """A process for which there is no room."""

    def spawn(self) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


class Staying(Child):
    def spawn(self) -> None:
        self._process = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE)


async def test_none_is_left_behind_if_another_cannot_be_started(tmp_path: Path) -> None:
    first = Staying("router", tmp_path)
    with pytest.raises(OSError, match="memory"):
        async with supervision.running([first, Impossible("ntf", tmp_path)], asyncio.Event()):
            pass
    assert first.code is not None
