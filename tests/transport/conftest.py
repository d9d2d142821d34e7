"""Every test here leaves no task and no open file behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.transport.sessions import open_files


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    before = open_files()
    yield
    for _ in range(3):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left
    assert open_files() == before
