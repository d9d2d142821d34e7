"""Whatever is thrown at the router, the result is a protocol error or the end of that connection."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.router.running.guard import TOO_MANY_NEW
from blindpost.transport.errors import TransportError
from blindpost.transport.session import KEEPALIVE_IDLE_S
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader, Writer, encode
from blindpost.wire.smp.commands import ACK, DEL, GET, NEW, PING, SEND, SUB
from blindpost.wire.smp.errors import CMD, Code
from blindpost.wire.smp.handshake import ClientHello, write_client_hello
from blindpost.wire.smp.responses import ERR, IDS, OK, PONG, SOK
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.smp.values import SubMode
from blindpost.wire.smp.versions import connection_layout
from tests.support.router.intruders import (
    BLOCK,
    FromElsewhere,
    NarrowNetwork,
    hung_up,
    line_to,
    raw,
    reset,
    tls_context,
)
from tests.support.router.lines import Line, Queue, Said, create, error, pushed, quiet
from tests.support.router.routers import new_key
from tests.support.serving.processes import RouterInProcess, router_in_process, until

CONNECTIONS = int(os.environ.get("BLINDPOST_CONNECTIONS", "1000"))
SLOW_QUEUES = int(os.environ.get("BLINDPOST_SLOW_QUEUES", "300"))
AT_ONCE = 100
MEMORY_TOLERANCE = 4 << 20
"""How much more anonymous memory a router may hold after an attack than before it."""
UNLIMITED = (
    ("new_per_address_per_second = 10.0", "new_per_address_per_second = 1e6"),
    ("new_per_address_burst = 500", "new_per_address_burst = 1000000"),
)
OUTBOX_KIB = 1024
ATTACK_S = 20.0
"""By then the router has answered or hung up, on the slowest machine."""
Attack = Callable[[RouterInProcess, Queue], Awaitable[None]]


@asynccontextmanager
async def router_with_queue(
    folder: Path, *edits: tuple[str, str]
) -> AsyncIterator[tuple[RouterInProcess, Queue]]:
    """A running router with a secured queue that has a message; it must stop cleanly."""
    async with router_in_process(folder / "router", *edits) as router:
        await router.start()
        line = await line_to(router)
        queue = await create(line, secured=True)
        await queue.send(line, b"precious", signed=True)
        await line.stream.close()
        yield router, queue
        assert await router.end(signal.SIGTERM) == 0
        assert b"unexpected" not in router.log
        assert b"failed" not in router.log


@asynccontextmanager
async def unharmed(router: RouterInProcess) -> AsyncIterator[None]:
    """After this block descriptors, memory and every row of the store must be as before."""
    await router.emptied()
    rows, memory, pid = router.dump(), router.memory(), router.pid
    yield
    await router.emptied()
    assert router.dump() == rows
    await router.as_few_descriptors_as_at_start()
    assert router.memory() - memory < MEMORY_TOLERANCE
    line = await line_to(router)
    assert await line.ask(PING()) == PONG()
    await line.stream.close()
    assert (await router.ask("status"))["pid"] == pid


async def closed(line: Line) -> None:
    """The router ends the connection, whatever it says before."""
    with pytest.raises(TransportError):
        await read_to_the_end(line)


async def read_to_the_end(line: Line) -> None:
    while True:
        await line.stream.read_block()


# Below TLS


async def no_tls(router: RouterInProcess, queue: Queue) -> None:
    seeded = random.Random(1)
    for bytes_ in (b"GET / HTTP/1.1\r\n\r\n", bytes(BLOCK), seeded.randbytes(BLOCK), b"\x16\x03\x01\xff\xff"):
        async with raw(router) as (reader, writer):
            writer.write(bytes_)
            writer.write_eof()
            await hung_up(reader)


async def old_tls(router: RouterInProcess, queue: Queue) -> None:
    with pytest.raises(ssl.SSLError):
        async with raw(router, tls=tls_context(ssl.TLSVersion.TLSv1_2)):
            pass


async def half_of_a_client_hello(router: RouterInProcess, queue: Queue) -> None:
    """Cut at several places: before the router can answer, and after it did."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls_context().wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    for count in (1, 5, len(hello) // 2, len(hello)):
        async with raw(router) as (reader, writer):
            writer.write(hello[:count])
            writer.write_eof()
            await hung_up(reader)


# Inside TLS, before the handshake is complete


async def said_instead_of_hello(router: RouterInProcess, block: bytes) -> None:
    """Answer the router's hello with this: the router hangs up without another word."""
    async with raw(router, tls=tls_context()) as (reader, writer):
        await reader.readexactly(BLOCK)
        writer.write(block)
        if len(block) % BLOCK:
            writer.transport.abort()
            return
        assert await hung_up(reader) == b""


async def no_hello(router: RouterInProcess, queue: Queue) -> None:
    seeded = random.Random(2)
    for block in (bytes(BLOCK), b"\xff" * BLOCK, seeded.randbytes(BLOCK), bytes(100), bytes(BLOCK + 1)):
        await said_instead_of_hello(router, block)


async def unknown_version(router: RouterInProcess, queue: Queue) -> None:
    for version in (0, 5, 21, 999, 65_535):
        hello = encode(ClientHello(version, router.server.key_hash, None, False, None), write_client_hello)
        await said_instead_of_hello(router, padded(hello))


async def unknown_router(router: RouterInProcess, queue: Queue) -> None:
    hello = encode(ClientHello(20, bytes(32), None, False, None), write_client_hello)
    await said_instead_of_hello(router, padded(hello))


def padded(payload: bytes, length: int | None = None) -> bytes:
    """A block around a payload, which may lie about its length."""
    count = len(payload) if length is None else length
    return (count.to_bytes(2, "big") + payload).ljust(BLOCK, b"#")


# Inside a session


def write_sealed(line: Line, block: bytes) -> None:
    """These bytes as the next block inside TLS, whatever they are."""
    session = line.stream.session
    session._tls.write(memoryview(block))
    session._write_out()


def sealed(line: Line, payload: Writer) -> bytes:
    """The encrypted block around a payload; the chain has moved on."""
    chains = line.stream.session._blocks._chains
    assert chains is not None
    return bytes(chains.sending.seal_block(payload.parts, payload.size))


async def one_block(line: Line) -> list[Received]:
    """All that the next block of the router says."""
    items = parse_responses(Reader(await line.stream.read_block()), line.layout, line.version)
    return [item for item in items if isinstance(item, Received)]


async def oversized(router: RouterInProcess, queue: Queue) -> None:
    line = await line_to(router)
    large = Said(SEND(False, bytes(16_100)), queue.sender_id, queue.sender_key)
    assert error((await line.ask_many([large]))[0]) is Code.LARGE_MSG
    await line.stream.close()
    plain = await line_to(router, offer_key=False)
    for block in (padded(b"", BLOCK), padded(b"", 65_535), padded(b"\xff" * 16_000), padded(b"\x01\xff\xff")):
        write_sealed(plain, block)
        assert error((await plain.event(b"")).response) is Code.BLOCK
    assert await plain.ask(PING()) == PONG()
    await plain.stream.close()


async def truncated(router: RouterInProcess, queue: Queue) -> None:
    """Every prefix of a SEND, well-formed except for its end, and a block that never ends."""
    line = await line_to(router, offer_key=False)
    said = Said(SEND(False, b"hello"), queue.sender_id, queue.sender_key)
    whole = b"".join(map(bytes, line.written(said).parts))
    for count in range(len(whole)):
        write_sealed(line, padded(b"\x01" + count.to_bytes(2, "big") + whole[:count]))
        (received,) = await one_block(line)
        assert isinstance(received.response, ERR)
        refusal = received.response.error
        assert refusal in (Code.BLOCK, Code.AUTH) or isinstance(refusal, CMD)
    assert await line.ask(PING()) == PONG()
    write_sealed(line, b"half a block")
    line.stream.session.abort()
    await closed(line)


async def garbage(router: RouterInProcess, queue: Queue) -> None:
    seeded = random.Random(3)
    for offer_key in (True, False):
        line = await line_to(router, offer_key=offer_key)
        for _ in range(5):
            write_sealed(line, seeded.randbytes(BLOCK))
            assert isinstance((await line.event(b"")).response, ERR)
        assert offer_key or await line.ask(PING()) == PONG()
        await line.stream.close()


async def wrong_session(router: RouterInProcess, queue: Queue) -> None:
    line = await line_to(router, version=6)
    right = line.layout
    line.layout = connection_layout(6, os.urandom(32))
    line.send([line.written(Said(DEL(), queue.recipient_id, queue.key, b"1" * 24))])
    line.layout = right
    assert error((await line.reply(b"1" * 24)).response) is Code.SESSION
    assert await line.ask(PING()) == PONG()
    await line.stream.close()


async def replayed_block(router: RouterInProcess, queue: Queue) -> None:
    """A repeated encrypted block does not decrypt, and costs the sender only its place in the chain."""
    line = await line_to(router)
    other = await create(line)
    said = Said(SEND(False, b"once"), other.sender_id)
    payload = Writer()
    payload.raw(b"\x01")
    transmission = line.written(said)
    payload.raw(transmission.size.to_bytes(2, "big"))
    for part in transmission.parts:
        payload.raw(part)
    block = sealed(line, payload)
    write_sealed(line, block)
    assert (await line.reply(said.corr_id)).response == OK()
    write_sealed(line, block)
    refused = error((await line.event(b"")).response)
    assert refused in (Code.BLOCK, Code.CRYPTO)
    sealed(line, Writer())
    fresh = await line_to(router)
    assert other.body(await other.ask(fresh, GET())) == b"once"
    assert await other.ask(fresh, ACK(other.last_id)) == OK()
    assert await other.ask(fresh, GET()) == OK()
    assert await other.ask(fresh, DEL()) == OK()
    await line.stream.close()
    await fresh.stream.close()


async def replayed_commands(router: RouterInProcess, queue: Queue) -> None:
    """Commands signed for one connection are invalid on another; on their own they change nothing twice."""
    line, other = await line_to(router), await line_to(router)
    for said in (
        Said(DEL(), queue.recipient_id, queue.key),
        Said(SEND(False, b"stolen"), queue.sender_id, queue.sender_key),
        Said(GET(), queue.recipient_id, queue.key),
    ):
        other.send([line.written(said)])
        assert error((await other.reply(said.corr_id)).response) is Code.AUTH
    mine = await create(line)
    for body in (b"one", b"two"):
        await mine.send(line, body)
    assert mine.body(await mine.ask(line, GET())) == b"one"
    ack = line.written(mine.said(ACK(mine.last_id)))
    for expected in (OK(), ERR(Code.NO_MSG)):
        line.send([ack])
        (received,) = await one_block(line)
        assert received.response == expected
    assert mine.body(await mine.ask(line, GET())) == b"two"
    assert await mine.ask(line, DEL()) == OK()
    await line.stream.close()
    await other.stream.close()


ATTACKS: list[Attack] = [
    no_tls,
    old_tls,
    half_of_a_client_hello,
    no_hello,
    unknown_version,
    unknown_router,
    oversized,
    truncated,
    garbage,
    wrong_session,
    replayed_block,
    replayed_commands,
]


async def test_protocol_violations_change_nothing(tmp_path: Path) -> None:
    async with router_with_queue(tmp_path) as (router, queue):
        for attack in ATTACKS:
            async with asyncio.timeout(ATTACK_S):
                await attack(router, queue)
        for attack in ATTACKS:
            async with asyncio.timeout(ATTACK_S), unharmed(router):
                await attack(router, queue)
        line = await line_to(router)
        assert queue.body(await queue.ask(line, GET())) == b"precious"
        await line.stream.close()


# Too much of what is allowed


def creation() -> Said:
    key = new_key()
    return Said(NEW(key.public, new_key(Algorithm.X25519).public, None, SubMode.ONLY_CREATE, None), key=key)


async def flood(line: Line, count: int) -> tuple[list[tuple[Said, IDS]], int]:
    """Send `NEW` many times, many in a block; return the queues created and the number refused."""
    created, refused = [], 0
    for _ in range(count // 50):
        said = [creation() for _ in range(50)]
        for one, response in zip(said, await line.ask_many(said), strict=True):
            if isinstance(response, IDS):
                created.append((one, response))
            else:
                assert error(response) == TOO_MANY_NEW
                refused += 1
    return created, refused


async def test_a_flood_of_new_queues_is_held_back_at_its_address(tmp_path: Path) -> None:
    few = (
        ("new_per_address_per_second = 10.0", "new_per_address_per_second = 0.0001"),
        ("new_per_address_burst = 500", "new_per_address_burst = 50"),
    )
    async with router_with_queue(tmp_path, *few) as (router, _), unharmed(router):
        attackers = [await line_to(router) for _ in range(4)]
        floods = await asyncio.gather(*(flood(line, 200) for line in attackers))
        created = [one for made, _ in floods for one in made]
        assert (len(created), sum(refused for _, refused in floods)) == (49, 751)
        elsewhere = await line_to(router, network=FromElsewhere())
        others, refused = await flood(elsewhere, 50)
        assert refused == 0
        assert len(router.dump()["queues"]) == 1 + 49 + 50
        for said, ids in [*created, *others]:
            assert await elsewhere.ask(DEL(), ids.recipient_id, said.key) == OK()
        for line in (*attackers, elsewhere):
            await line.stream.close()


async def do_not_read(router: RouterInProcess) -> None:
    """Subscribe to many queues and stop reading: twice, with messages due and with queues taken away."""
    slow = await line_to(router, network=NarrowNetwork())
    sender, bystander = await line_to(router), await line_to(router)
    theirs = await create(bystander, subscribe=True)
    queues = [await create(slow, subscribe=True) for _ in range(SLOW_QUEUES)]
    memory = router.memory()
    slow.stream.session.pause_reading()
    for number, one in enumerate(queues):
        await one.send(sender, bytes(16_000))
        if number % 50 == 0:
            await theirs.send(sender, b"%d" % number)
            assert await pushed(bystander, theirs) == b"%d" % number
            assert await theirs.ask(bystander, ACK(theirs.last_id)) == OK()
            assert router.memory() - memory < OUTBOX_KIB * 1024 + MEMORY_TOLERANCE
    assert (await router.ask("status"))["congested"] == 1
    slow.stream.session.resume_reading()
    for one in queues:
        assert await pushed(slow, one) == bytes(16_000)
    await quiet(slow)
    slow.stream.session.pause_reading()
    for one in queues:
        assert await one.ask(sender, SUB()) == SOK(None)
        assert await pushed(sender, one) == bytes(16_000)

    async def dropped() -> bool:
        return int((await router.ask("status"))["connections"]) == 2

    await until(dropped)
    slow.stream.session.resume_reading()
    await closed(slow)
    for one in (*queues, theirs):
        assert await one.ask(sender, DEL()) == OK()
    await sender.stream.close()
    await bystander.stream.close()


@pytest.mark.timeout(120 + SLOW_QUEUES // 5)
async def test_a_reader_that_does_not_read_is_held_back_and_then_dropped(tmp_path: Path) -> None:
    """Thousands of messages are due to it: they wait in the store, not in memory, and delay nobody else.

    What cannot wait there, END for each queue that is taken from it, ends the connection at the limit.
    """
    short = ("outbox_kib = 8192", f"outbox_kib = {OUTBOX_KIB}")
    async with router_with_queue(tmp_path, *UNLIMITED, short) as (router, _):
        await do_not_read(router)
        async with unharmed(router):
            await do_not_read(router)


# Connections that are not used


def keepalive_s(router: RouterInProcess, port: int) -> float:
    """After how long TCP keepalive probes the peer at this port; infinite if never."""
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = row.split()
        if local.endswith(f":{router.port:04X}") and remote.endswith(f":{port:04X}"):
            kind, when = timer.split(":")
            return int(when, 16) / os.sysconf("SC_CLK_TCK") if kind == "02" else float("inf")
    raise AssertionError("no such connection")


async def test_half_open_connections_are_closed(tmp_path: Path) -> None:
    async with router_with_queue(tmp_path) as (router, queue):
        await open_halves(router, queue)
        async with unharmed(router):
            await open_halves(router, queue)


async def open_halves(router: RouterInProcess, queue: Queue) -> None:
    """Peers that close only their direction are hung up on; a vanished one is found by TCP keepalive."""
    async with raw(router) as (reader, writer):
        writer.write_eof()
        assert await hung_up(reader) == b""
    line = await line_to(router)
    assert await queue.ask(line, SUB()) == SOK(None)
    assert await pushed(line, queue) == b"precious"
    transport = line.stream.session._transport
    _, port = transport.get_extra_info("sockname")

    async def watched() -> bool:
        return 0 < keepalive_s(router, port) <= KEEPALIVE_IDLE_S

    await until(watched)
    transport.write_eof()
    await closed(line)


async def test_unfinished_handshakes_are_bounded_and_others_get_through(tmp_path: Path) -> None:
    async with (
        router_with_queue(tmp_path, ("handshakes = 2000", "handshakes = 32")) as (router, _),
        unharmed(router),
    ):
        unfinished = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(30)]
        for _, writer in unfinished:
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00")

        async def settled() -> bool:
            counts = await router.ask("connections")
            return (counts["handshakes"], counts["limited"]["made_room"]) == (4, 26)

        await until(settled)
        line = await line_to(router)
        assert await line.ask(PING()) == PONG()
        await line.stream.close()
        for _, writer in unfinished:
            writer.close()


async def dropped_at_once(router: RouterInProcess, queue: Queue, kind: int) -> None:
    """Connect and drop: before, during and after TLS, in a session, with a subscription."""
    if kind in (0, 1, 2):
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", router.port))
        if kind == 2:
            sock.send(b"\x16\x03\x01\x02\x00\x01\x00")
        sock.close() if kind == 0 else reset(sock)
    elif kind == 3:
        async with raw(router, tls=tls_context()) as (_, writer):
            writer.transport.abort()
    else:
        line = await line_to(router)
        if kind == 5:
            await queue.ask(line, SUB())
        line.stream.session.abort()
        await closed(line)


async def open_and_drop(router: RouterInProcess, queue: Queue, count: int) -> None:
    for _ in range(count // AT_ONCE):
        await asyncio.gather(*(dropped_at_once(router, queue, number % 6) for number in range(AT_ONCE)))


@pytest.mark.timeout(120 + CONNECTIONS // 20)
async def test_many_connections_opened_and_dropped_leave_nothing(tmp_path: Path) -> None:
    async with router_with_queue(tmp_path) as (router, queue):
        await open_and_drop(router, queue, AT_ONCE)
        async with unharmed(router):
            await open_and_drop(router, queue, CONNECTIONS)
        counts = await router.ask("connections")
        assert counts["accepted"] >= CONNECTIONS
        assert counts["addresses"] <= 1
        assert (await router.ask("status"))["subscriptions"] == 0
