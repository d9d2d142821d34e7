"""Failures are logged with the code, not the user; the control socket is private to its owner."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest

from blindpost.serving import logs
from blindpost.serving.control import ControlSocket, ask, short_path
from blindpost.serving.failures import OperatorError
from tests.support.serving.log_lines import restored_logs

__all__ = ["restored_logs"]

pytestmark = pytest.mark.usefixtures("restored_logs")

SECRET = "a queue's id"


def fail() -> None:
    raise KeyError(SECRET)


@pytest.mark.parametrize("form", ["plain", "json"])
def test_an_exception_is_logged_without_its_text(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(form, "info")
    try:
        fail()
    except KeyError:
        logs.log.exception("something failed")
    said = capsys.readouterr().err
    assert "something failed" in said
    assert "KeyError" in said
    assert f"{Path(__file__).name}:" in said
    assert SECRET not in said
    assert said.count("\n") == (1 if form == "json" else 2)
    if form == "json":
        line = json.loads(said)
        assert (line["level"], line["message"]) == ("error", "something failed")


def test_what_the_event_loop_reports_is_logged_without_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("plain", "info")
    loop = asyncio.new_event_loop()
    logs.keep_quiet(loop, {"message": SECRET, "exception": ValueError(SECRET), "transport": SECRET})
    logs.keep_quiet(loop, {"message": SECRET})
    loop.close()
    said = capsys.readouterr().err
    assert "ValueError" in said
    assert SECRET not in said


async def test_the_control_socket_is_private_and_survives_nonsense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def broken(request: object) -> dict[str, object]:
        raise KeyError(SECRET)

    async def fine(request: object) -> dict[str, object]:
        return {"fine": True}

    logs.set_up("plain", "info")
    path = tmp_path / ("long" * 30) / "control.sock"
    path.parent.mkdir()
    control = ControlSocket(path, {"broken": broken, "fine": fine})
    await control.listen()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with short_path(path) as short:
        reader, writer = await asyncio.open_unix_connection(short)
    for line, part in (
        (b"nonsense", "a JSON object on one line expected"),
        (b"[]", "a JSON object on one line expected"),
        (b"{}", "unknown command; commands are: broken, fine"),
        (b'{"command": "broken"}', "its log says where"),
    ):
        writer.write(line + b"\n")
        answer = json.loads(await reader.readline())
        assert answer["ok"] is False
        assert part in answer["error"]
    writer.write(b'{"command": "fine"}\n')
    assert json.loads(await reader.readline()) == {"ok": True, "result": {"fine": True}}
    writer.write(b"x" * 100_000 + b"\n")
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(OperatorError, match="unknown command"):
        await asyncio.to_thread(ask, path, "other")
    await control.close()
    assert not path.exists()
    assert SECRET not in capsys.readouterr().err
