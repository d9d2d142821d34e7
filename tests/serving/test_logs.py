"""Log lines: ours only, and each kind of warning once a minute."""

from __future__ import annotations

import logging

import pytest

from blindpost.serving import logs
from tests.support.serving.log_lines import restored_logs

__all__ = ["restored_logs"]

pytestmark = pytest.mark.usefixtures("restored_logs")

LIBRARIES = ("h2", "hpack.hpack", "httpx", "asyncio", "asyncpg", "quic", "uvicorn.error", "starlette")
SECRET = "bearer eyJhbGciOiJFUzI1NiJ9"


@pytest.mark.parametrize("form", ["plain", "json"])
def test_libraries_write_nothing_at_any_level(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(form, "debug")
    for name in LIBRARIES:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            logging.getLogger(name).log(level, SECRET)
    logging.getLogger("blindpost.ntf").debug("ours")
    said = capsys.readouterr().err
    assert SECRET not in said
    assert said.count("\n") == 1


def test_a_repeated_warning_is_counted_and_logged_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(logs, "_repeated", logs.Repeated(lambda: now[0]))
    logs.set_up("plain", "info")
    for number in range(1, 100_001):
        logs.log.error("the store refused a batch of %d events: %s", number, "the disk is full")
    logs.log.error("the store refused a batch of %d events: %s", 7, "the database is away")
    logs.log.info("a line for a person")
    logs.log.info("a line for a person")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4, "one line for each kind, and every line that is no warning"
    now[0] += logs.COUNTED_S
    logs.tell_all_repeated()
    (told,) = capsys.readouterr().err.splitlines()
    assert "this came 99999 times more in the last minute" in told
    logs.log.error("the store refused a batch of %d events: %s", 1, "the disk is full")
    assert capsys.readouterr().err.count("\n") == 1, "after its minute it is told again"


def test_the_number_of_remembered_kinds_of_warnings_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("plain", "info")
    for number in range(3_000):
        logs.log.warning("name %s", "x" * number)
    assert capsys.readouterr().err.count("\n") == 3_000
