"""What people wrote is shown as they wrote it: brackets in it are no markup."""

from __future__ import annotations

import pytest

from blindpost.cli.adopted import tell_adopted
from blindpost.cli.output import show
from blindpost.serving.ini import Fate, Row

WRITTEN = "[/x] [red]mail[/red]"


def test_values_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    show({"health": WRITTEN, "counts": {WRITTEN: 3}}, as_json=False, title="Status")
    assert capsys.readouterr().out.count(WRITTEN) == 2


def test_settings_of_an_old_server(capsys: pytest.CaptureFixture[str]) -> None:
    tell_adopted([Row(WRITTEN, WRITTEN, Fate.LEFT, WRITTEN)], "smp-server.ini")
    assert "".join(capsys.readouterr().out.split()).count("[red]") == 3
