"""Everything a chat or a bot writes in these tests is also read by the second reader."""

from __future__ import annotations

import pytest

from tests.support.chat.second_opinion import read_everything


@pytest.fixture(autouse=True)
def second_opinion(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of events written so far."""
    return read_everything(monkeypatch)
