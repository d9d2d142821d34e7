"""The command in this process, and databases for routers that the real command starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blindpost.cli.main import main
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]

Call = Callable[..., str]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command in this process, expecting this exit code; its output, or its error message."""

    def called(*arguments: str | Path, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["blindpost", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        said = capsys.readouterr()
        assert caught.value.code == code, said
        return said.err if code else said.out

    return called


@pytest.fixture
def failed(call: Call) -> Call:
    """Run the command, expecting failure; its single message."""

    def called(*arguments: str | Path) -> str:
        said = call(*arguments, code=1)
        assert said.startswith("blindpost: ")
        assert said.count("\n") == 1, said
        return said

    return called
