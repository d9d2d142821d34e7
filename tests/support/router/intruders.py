"""Connections that do not follow the protocol: raw bytes below TLS, raw bytes inside TLS, and narrow ears."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from blindpost.transport.network import TCP, Network, P, TcpNetwork
from blindpost.transport.plans import SMP_ALPN, smp_client_plan
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.versions import VersionRange
from tests.support.router.lines import ALPN_VERSION, Line
from tests.support.serving.processes import RouterInProcess
from tests.support.transport.streams import connect

BLOCK = 16_384


class NarrowNetwork(TcpNetwork):
    """TCP whose client side has room for little, so that a peer notices soon when nobody reads."""

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, (host, port))
        _, protocol = await loop.create_connection(factory, sock=sock)
        return protocol


class FromElsewhere(TcpNetwork):
    """TCP from another address of this machine."""

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(factory, host, port, local_addr=("127.0.0.2", 0))
        return protocol


async def line_to(
    router: RouterInProcess,
    version: int = SMP_VERSIONS.high,
    *,
    offer_key: bool = True,
    network: Network = TCP,
) -> Line:
    """A connection at exactly this version."""
    plan = smp_client_plan(
        router.server.key_hash,
        versions=VersionRange(version, version),
        alpn=SMP_ALPN if version >= ALPN_VERSION else None,
        offer_key=offer_key,
    )
    return Line(await connect(plan, "127.0.0.1", router.port, network))


@functools.cache
def tls_context(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["smp/1"])
    return context


@asynccontextmanager
async def raw(
    router: RouterInProcess, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A plain or TLS connection without anything of the protocol."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def hung_up(reader: asyncio.StreamReader) -> bytes:
    """What came until the router closed the connection, which it must."""
    try:
        return await reader.read()
    except OSError:
        return b""


def reset(sock: socket.socket) -> None:
    """Close so that the other end gets a reset instead of an end."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
