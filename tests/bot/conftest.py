"""Whatever the tests of this folder let a chat or a bot write is read by the second reader too."""

from __future__ import annotations

import pytest

from tests.support.chat.second_opinion import read_everything


@pytest.fixture(autouse=True)
def second_opinion(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of events that were written so far."""
    return read_everything(monkeypatch)
