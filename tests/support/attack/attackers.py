"""Strangers with raw sockets and TLS, in a process of their own (`tests.support.attack.attacks`).

They come from other addresses of this machine, to loopback only, and every loop ends with their time. They
run at a low priority: what is measured is what they do to a server, not that they use its processors.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blindpost.wire.addresses import Host, Server
from blindpost.wire.batch import NTF_BLOCK_SIZE, SMP_BLOCK_SIZE
from blindpost.wire.ntf import handshake as ntf
from blindpost.wire.primitives import encode
from blindpost.wire.smp import handshake as smp
from blindpost.wire.smp.commands import PRXY

CORRUPT_RECORD = b"\x17\x03\x03\x00\x20" + bytes(32)
SMP_VERSION, NTF_VERSION = 10, 2
"""Old ones, whose blocks are not encrypted once more inside TLS."""
UNFINISHED = 8 << 20
CROWD = 800
STEP_S = 0.01


@dataclass(frozen=True)
class Aim:
    """Whom to attack, for how long."""

    kind: str
    port: int
    key_hash: str
    until: float
    attack: str = ""

    @property
    def block(self) -> int:
        return NTF_BLOCK_SIZE if self.kind == "ntf" else SMP_BLOCK_SIZE

    @property
    def alpn(self) -> str:
        return {"router": "smp/1", "ntf": "ntf/1", "ds": "capnp"}[self.kind]

    def hello(self) -> bytes:
        key_hash = bytes.fromhex(self.key_hash)
        if self.kind == "ntf":
            return encode(ntf.ClientHello(NTF_VERSION, key_hash), ntf.write_client_hello)
        return encode(smp.ClientHello(SMP_VERSION, key_hash), smp.write_client_hello)

    def padded(self, payload: bytes) -> bytes:
        return (len(payload).to_bytes(2, "big") + payload).ljust(self.block, b"#")

    def turns(self) -> Iterator[int]:
        for number in itertools.count():
            if time.time() >= self.until:
                return
            yield number


def address(number: int, crowd: int = 2) -> str:
    """One of the attackers' addresses; a bystander has 127.0.0.1."""
    return f"127.0.1.{1 + number % crowd}"


def context(aim: Aim) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.set_alpn_protocols([aim.alpn])
    return made


def dialed(aim: Aim, number: int, crowd: int = 2, room: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(10)
    if room:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    sock.bind((address(number, crowd), 0))
    sock.connect(("127.0.0.1", aim.port))
    return sock


class Tls:
    """TLS by hand, so that what is below it can be broken."""

    def __init__(self, aim: Aim, tls: ssl.SSLContext, number: int, crowd: int = 2, room: int = 0) -> None:
        self.sock = dialed(aim, number, crowd, room)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = tls.wrap_bio(self._in, self._out)
        self._do(self.tls.do_handshake)

    def _do(self, work: Callable[[], object]) -> None:
        while True:
            try:
                work()
            except ssl.SSLWantReadError:
                self.sock.sendall(self._out.read())
                received = self.sock.recv(1 << 16)
                if not received:
                    raise ConnectionError("hung up") from None
                self._in.write(received)
            else:
                self.sock.sendall(self._out.read())
                return

    def read(self, count: int) -> bytes:
        found = bytearray()

        def more() -> None:
            while len(found) < count:
                found.extend(self.tls.read(count - len(found)))

        self._do(more)
        return bytes(found)

    def sealed(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._out.read()

    def send(self, data: bytes) -> None:
        self.sock.sendall(self.sealed(data))


def shaken(aim: Aim, tls: ssl.SSLContext, number: int, crowd: int = 2, room: int = 0) -> Tls:
    """A session whose handshake is complete."""
    session = Tls(aim, tls, number, crowd, room)
    if aim.kind != "ds":
        session.read(aim.block)
        session.send(aim.padded(aim.hello()))
    return session


def ping(aim: Aim, count: int) -> bytes:
    """A block of so many PINGs."""
    one = b"\x00" + b"\x18" + os.urandom(24) + b"\x00" + b"PING"
    return aim.padded(bytes([count]) + (len(one).to_bytes(2, "big") + one) * count)


def heavy(aim: Aim) -> bytes:
    """A block of commands signed, wrongly, with the slowest kind of key."""
    name = b"TCHK" if aim.kind == "ntf" else b"SUB"
    room, items = aim.block - 32, list[bytes]()
    while True:
        # Zeros are a point and a number below the order: random bytes would be refused without any work.
        one = b"\x72" + bytes(114) + b"\x18" + os.urandom(24) + b"\x18" + os.urandom(24) + name
        if sum(map(len, items)) + len(one) + 2 > room:
            break
        items.append(len(one).to_bytes(2, "big") + one)
    return aim.padded(bytes([len(items)]) + b"".join(items))


async def silent_sockets(aim: Aim) -> None:
    """Connect from two addresses and say nothing."""
    held: list[socket.socket] = []
    for number in aim.turns():
        if len(held) < CROWD:
            with contextlib.suppress(OSError):
                held.append(dialed(aim, number))
        await asyncio.sleep(0 if len(held) < CROWD else STEP_S)


async def half_handshakes(aim: Aim) -> None:
    """Noise and parts of a hello, from fifty addresses, cut at once."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context(aim).wrap_bio(incoming, outgoing).do_handshake()
    hello = outgoing.read()
    for number in aim.turns():
        with contextlib.suppress(OSError):
            sock = dialed(aim, number, 50)
            sock.sendall((hello[: 40 + number % 400], os.urandom(600), b"GET / HTTP/1.1\r\n\r\n")[number % 3])
            sock.close()
        await asyncio.sleep(STEP_S / 4)


async def corrupt_records(aim: Aim) -> None:
    """A valid block and a corrupt record in one write."""
    tls = context(aim)
    for number in aim.turns():
        with contextlib.suppress(OSError):
            session = shaken(aim, tls, number)
            block = ping(aim, 1) if aim.kind != "ds" else os.urandom(64)
            session.sock.sendall(session.sealed(block) + CORRUPT_RECORD)
            session.sock.close()
        await asyncio.sleep(STEP_S)


async def noise_in_blocks(aim: Aim) -> None:
    tls = context(aim)
    for number in aim.turns():
        with contextlib.suppress(OSError):
            session = shaken(aim, tls, number)
            for _ in range(4):
                session.send(aim.padded(os.urandom(aim.block - 2)))
            session.sock.close()
        await asyncio.sleep(STEP_S)


async def heavy_commands(aim: Aim) -> None:
    """Blocks full of the commands that cost most, on several sessions at once."""
    tls = context(aim)
    sessions = [shaken(aim, tls, number, 4) for number in range(8)]
    block = heavy(aim)
    for session in sessions:
        session.sock.setblocking(False)
    for _ in aim.turns():
        for session in sessions:
            with contextlib.suppress(OSError):
                session.sock.send(session.sealed(block))
            with contextlib.suppress(OSError):
                session.sock.recv(1 << 16)
        await asyncio.sleep(STEP_S)


def relay_to(host: str, port: int) -> bytes:
    """PRXY to a router that is not there."""
    relay = Server((Host(host),), str(port), os.urandom(32))
    command = encode(PRXY(relay, None), lambda writer, one: one.write(writer, SMP_VERSION))
    return b"\x00" + b"\x18" + os.urandom(24) + b"\x00" + command


async def relays_to_nowhere(aim: Aim) -> None:
    """Have the router look for relays that do not exist, or that it may not connect to."""
    tls = context(aim)
    sessions = [shaken(aim, tls, number, 4) for number in range(8)]
    for session in sessions:
        session.sock.setblocking(False)
    for number in aim.turns():
        hosts = (f"x{number}.invalid", f"{'a' * 70}.example", "127.0.0.1", f"10.0.0.{1 + number % 250}")
        items = [relay_to(host, 1 + number % 60_000) for host in hosts]
        block = b"".join(len(one).to_bytes(2, "big") + one for one in items)
        for session in sessions[number % 2 :: 2]:
            with contextlib.suppress(OSError):
                session.sock.send(session.sealed(aim.padded(bytes([len(items)]) + block)))
            with contextlib.suppress(OSError):
                session.sock.recv(1 << 16)
        await asyncio.sleep(STEP_S)


async def non_readers(aim: Aim) -> None:
    """Ask and never read the answers."""
    tls, sessions = context(aim), list[Tls]()
    block = ping(aim, 200 if aim.kind == "router" else 10)
    for number in aim.turns():
        if len(sessions) < CROWD // 4:
            with contextlib.suppress(OSError):
                sessions.append(shaken(aim, tls, number, room=4096))
                sessions[-1].sock.setblocking(False)
        for session in sessions[number % 10 :: 10]:
            with contextlib.suppress(OSError):
                session.sock.send(session.sealed(block))
        await asyncio.sleep(STEP_S / 4)


async def unfinished_messages(aim: Aim) -> None:
    """Begin messages of eight MiB and do not end them."""
    tls, sessions = context(aim), list[Tls]()
    first = (0).to_bytes(4, "little") + (UNFINISHED // 8).to_bytes(4, "little") + bytes(UNFINISHED - 4096)
    for number in aim.turns():
        if len(sessions) < 30:
            with contextlib.suppress(OSError):
                sessions.append(Tls(aim, tls, number))
                await asyncio.to_thread(sessions[-1].send, first)
        await asyncio.sleep(STEP_S)


async def quic_handshakes(aim: Aim) -> None:
    """Shake hands over QUIC and say nothing."""
    from blindpost.ds.quic import dial

    held: list[asyncio.Protocol] = []
    for _ in aim.turns():
        if len(held) < 100:
            held.append(asyncio.Protocol())
            with contextlib.suppress(OSError, TimeoutError):
                await dial(
                    held[-1], "127.0.0.1", aim.port, authorities=None, pinned=bytes.fromhex(aim.key_hash)
                )
        await asyncio.sleep(STEP_S)
