"""Every recorded conversation with a plain client, replayed to our router: it answers alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.router.left_out import LEFT_OUT, PLAIN
from tests.support.router.replay import Replay
from tests.support.router.routers import running_router


def test_every_recording_is_replayed_here_or_is_about_proxies_or_services() -> None:
    assert len(PLAIN) == 25
    assert {name[:2] for name in PLAIN} == {f"{number:02}" for number in (*range(1, 18), 27)}


@pytest.mark.parametrize("name", PLAIN)
async def test_our_router_answers_as_recorded(name: str, tmp_path: Path) -> None:
    async with running_router(tmp_path) as running:
        replay = Replay.of(name, running)
        try:
            await replay.run(LEFT_OUT.get(name, {}))
        finally:
            await replay.close()
