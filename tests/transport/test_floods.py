"""Records that say nothing, or one byte each: a peer that sends little else is cut off, others may."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from blindpost.transport.blocks import PIECES_MAX
from blindpost.transport.errors import TlsError
from blindpost.transport.guarded import FREE, TIMES, GuardedTls, Overhead
from blindpost.transport.tls import SILENT_MAX
from tests.support.attack.key_changes import BATCH, Flooder
from tests.support.ds.delivery import certificate_in
from tests.support.transport.sessions import Recorder, serving, smp_router

CUT = 4_000
"""So many records are sent at most before a server's hanging up is noticed."""


@pytest.mark.parametrize("tiny", [False, True])
async def test_a_session_ends_whose_peer_sends_records_without_content(tiny: bool, tmp_path: Path) -> None:
    router = Recorder()
    async with serving(smp_router(), router) as port:
        sent = await Flooder("smp/1", tmp_path).until_cut(port, tiny=tiny)
        await router.until("reasons")
    assert sent <= CUT
    (reason,) = router.reasons
    assert type(reason) is TlsError


async def test_keys_may_change_now_and_then_and_blocks_come_in_pieces(tmp_path: Path) -> None:
    router = Recorder()
    async with serving(smp_router(), router) as port:
        flooder = Flooder("smp/1", tmp_path)
        assert SILENT_MAX >= BATCH
        assert PIECES_MAX >= BATCH
        for tiny in (False, True):
            assert await flooder.until_cut(port, tiny=tiny, most=BATCH) == 2 * BATCH, "it was not cut"


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.mark.parametrize("tiny", [False, True])
async def test_the_guard_of_tls_cuts_off_who_says_nothing(tiny: bool, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate_in(tmp_path))
    context.set_alpn_protocols(["echo"])
    server = await asyncio.get_running_loop().create_server(
        lambda: GuardedTls(Echo(), context, server_side=True), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await Flooder("echo", tmp_path).until_cut(port, tiny=tiny) <= CUT
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        said = os.urandom(2 << 20)
        writer.write(said)
        assert await reader.readexactly(len(said)) == said
        for _ in range(3_000):
            writer.write(b"sixteen bytes ok")
        assert len(await reader.readexactly(48_000)) == 48_000
        writer.close()
        await writer.wait_closed()


def test_much_that_was_said_is_no_credit_for_saying_nothing() -> None:
    overhead = Overhead()
    assert overhead.is_bearable(1 << 20, 1 << 20)
    assert overhead.is_bearable(FREE, 0)
    assert overhead.is_bearable(TIMES, 1)
    assert not overhead.is_bearable(1, 0)
