"""The listeners of operators: who does not read, does not end a line or stays for ever holds little."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blindpost.serving import control, http
from blindpost.serving.control import ControlSocket, HungUpError
from blindpost.serving.failures import OperatorError
from blindpost.serving.health import Health
from blindpost.serving.http import MetricsListener
from blindpost.serving.sections import MetricsSection
from tests.support.serving import kinds as serving
from tests.support.serving.waiting import until

ASK = b'{"command": "status"}\n'


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_whoever_asks_for_metrics_and_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_TIMEOUT_S", 0.3)

    asked = 0

    async def render() -> str:
        nonlocal asked
        asked += 1
        return "a line\n" * (1 << 20)

    listener = MetricsListener(render, lambda: Health(True, "fine"))
    port = await listener.move(MetricsSection(enabled=True, port=0))
    assert port is not None
    before = open_files()
    held = []
    for _ in range(5):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        held.append(sock)
    await until(lambda: asked == len(held) and open_files() == before + len(held))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /live HTTP/1.1\r\n\r\n")
    assert b"the event loop turns" in await reader.read()
    writer.close()
    for sock in held:
        sock.close()
    await listener.close()


async def test_a_control_socket_that_was_deleted_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def status(request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    path = tmp_path / "folder" / "control"
    path.parent.mkdir()
    listening = ControlSocket(path, {"status": status})
    await listening.keep()
    assert not path.exists(), "it was never opened"
    await listening.listen()
    path.unlink()
    for _ in range(2):
        await listening.keep()
        assert await asyncio.to_thread(control.ask, path, "status") == {}
    assert caplog.text.count("was deleted") == 1
    path.unlink()
    path.parent.rmdir()
    await listening.keep()
    assert "cannot be opened" in caplog.text
    path.parent.mkdir()
    await listening.keep()
    assert await asyncio.to_thread(control.ask, path, "status") == {}
    await listening.close()
    assert not path.exists()


async def test_a_command_that_is_not_answered_yet_ends_with_its_socket(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it would look at is closed next."""
    asked, closed = asyncio.Event(), asyncio.Event()

    async def status(request: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.set()
        await closed.wait()
        raise RuntimeError("the store is closed")

    path = tmp_path / "control"
    listening = ControlSocket(path, {"status": status})
    await listening.listen()
    asking = asyncio.create_task(asyncio.to_thread(control.ask, path, "status"))
    await asked.wait()
    await listening.close()
    closed.set()
    with pytest.raises(HungUpError):
        await asking
    assert caplog.text == ""


async def test_whoever_asks_while_the_control_socket_closes_is_answered_or_hung_up_on(tmp_path: Path) -> None:
    """A connection in the making must not wait for the end of the process, which may live on as a standby."""

    async def status(request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    loop, path, answers = asyncio.get_running_loop(), tmp_path / "control", []
    for turns in range(8):
        listening = ControlSocket(path, {"status": status})
        await listening.listen()
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(path))
            asking.sendall(ASK)
            asking.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await listening.close()
            answer = b""
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionResetError):
                    answer = await loop.sock_recv(asking, 100)
        answers.append(answer)
    assert set(answers) == {b"", b'{"ok": true, "result": {}}\n'}
    assert answers == sorted(answers), "after the socket is closed nothing is answered"


async def test_control_connections_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 3)

    async def status(request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    path = tmp_path / "control"
    listening = ControlSocket(path, {"status": status})
    await listening.listen()
    opened = []
    for _ in range(5):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(ASK)
        assert b'"ok": true' in await reader.readline()
        opened.append((reader, writer))
    for reader, _ in opened[:2]:
        assert await reader.read() == b"", "the oldest made room"
    for reader, writer in opened[2:]:
        writer.write(ASK)
        assert b'"ok": true' in await reader.readline()
    opened[-1][1].write(b"x" * (control.LINE_MAX + 2))
    with contextlib.suppress(ConnectionError):
        assert await opened[-1][0].read() == b"", "a line without an end"
    for _, writer in opened:
        writer.close()
    await listening.close()


async def render() -> str:
    return ""


async def test_metrics_move_between_addresses_at_the_same_port_and_stay_where_they_are_if_they_cannot() -> (
    None
):
    listener = MetricsListener(render, lambda: Health(True, "fine"))
    port = await listener.move(MetricsSection(enabled=True, port=0))
    assert port is not None

    def at(address: str) -> MetricsSection:
        return MetricsSection(enabled=True, address=address, port=port)

    with pytest.raises(OperatorError, match="cannot be listened on"):
        await listener.move(at("192.0.2.1"))  # nobody has this address
    for address, others in (("*", True), ("127.0.0.1", False), ("*", True)):
        assert (await serving.http(port, "/live"))[0] == 200
        assert await listener.move(at(address)) == port
        assert await is_served("127.0.0.2", port) is others
    assert await listener.move(MetricsSection(enabled=False, port=port)) is None
    assert not await is_served("127.0.0.1", port)
    assert await listener.move(at("127.0.0.1")) == port
    await listener.close()


async def is_served(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True
