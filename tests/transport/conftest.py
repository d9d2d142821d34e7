"""Every test here leaves no task and no open file behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.transport.sessions import all_is_left, open_files


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    before = open_files()
    yield
    await all_is_left(before)
