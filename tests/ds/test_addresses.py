"""Where a service is, and QUIC where a machine has IPv4 and IPv6, or only one of them."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from blindpost.cli.ds import place_of
from blindpost.ds import quic
from blindpost.ds.client import ConnectionLostError, DsClient
from blindpost.ds.model import DS_PORT
from blindpost.ds.quic import QuicListener
from blindpost.serving.failures import OperatorError
from tests.support.ds.delivery import BOB, Running, running


async def fetched(ds: Running, host: str, port: int) -> None:
    """A client that connects there gets an answer."""
    connecting = DsClient.connect(host, port, fingerprint=ds.fingerprint, quic=True)
    async with await connecting as client:
        assert await client.fetch(BOB) == ()


async def everywhere(ds: Running) -> tuple[QuicListener, int]:
    """One more listener, at all addresses."""
    listener = QuicListener(ds.service, ds.pair)
    return listener, await listener.listen(None, 0)


PLACES = {
    "ds.example.org": ("ds.example.org", DS_PORT),
    "localhost:5225": ("localhost", 5225),
    "127.0.0.1:1": ("127.0.0.1", 1),
    "[::1]:5225": ("::1", 5225),
    "[::1]": ("::1", DS_PORT),
    "2001:db8::1": ("2001:db8::1", DS_PORT),
}


@pytest.mark.parametrize(("text", "place"), PLACES.items())
def test_where_a_service_is(text: str, place: tuple[str, int]) -> None:
    assert place_of(text) == place


@pytest.mark.parametrize(
    "text", ["", ":5", "a:", "a:0", "a:65536", "a:" + "9" * 5000, "a:x", "a:²", "[::1", "[::1]5", "[a]:5"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(OperatorError, match=r"--server: HOST, HOST:PORT or \[IPV6\]:PORT expected"):
        place_of(text)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_all_addresses_are_of_both_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system gives a socket of IPv6 nothing else."""

    class Apart(socket.socket):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            if self.family == socket.AF_INET6:
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

    async with running(tmp_path) as ds:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Apart)
            listener, port = await everywhere(ds)
        for host in ("127.0.0.1", "::1"):
            await fetched(ds, host, port)
        listener.close()


async def test_a_machine_without_ipv6_listens_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(socket.socket):
        def __init__(self, family: int = -1, *others: Any, **named: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *others, **named)

    async with running(tmp_path) as ds:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Old)
            listener, port = await everywhere(ds)
        await fetched(ds, "127.0.0.1", port)
        listener.close()


async def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as ds:
        listener, port = await everywhere(ds)
        other = QuicListener(ds.service, ds.pair)
        with pytest.raises(OSError, match="in use"):
            await other.listen(None, port)
        listener.close()


async def test_the_next_address_of_a_host_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `localhost` where the service is at 127.0.0.1 only."""
    monkeypatch.setattr(quic, "CONNECT_S", 2.0)
    async with running(tmp_path) as ds:
        asked: list[str] = []

        async def both(host: str, port: int, **_: Any) -> list[Any]:
            asked.append(host)
            kind = socket.SOCK_DGRAM
            return [
                (socket.AF_INET6, kind, 17, "", ("::1", port, 0, 0)),
                (socket.AF_INET, kind, 17, "", ("127.0.0.1", port)),
            ]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
        await fetched(ds, "localhost", ds.quic_port)
        assert asked == ["localhost"]
        with pytest.raises(ConnectionLostError, match="no answer"):
            await fetched(ds, "localhost", 1)


async def test_a_connection_that_ends_soon_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = quic.QuicDialed.wait_connected

    async def too_late(dialed: quic.QuicDialed) -> None:
        await real(dialed)
        dialed.abort()

    async with running(tmp_path) as ds:
        monkeypatch.setattr(quic.QuicDialed, "wait_connected", too_late)
        with pytest.raises(ConnectionLostError, match="ended at once"):
            await fetched(ds, "127.0.0.1", ds.quic_port)
