"""The HTTP/2 connection against peers that are slow, small, rude or wrong; over TLS, as always."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes, Settings

from blindpost.ds.certificate import make_certificate
from blindpost.ntf.push.goodbyes import Goodbyes
from blindpost.ntf.push.http2 import (
    RESPONSE_MAX,
    ConnectionFailedError,
    Http2Connection,
    NotSentError,
    Response,
    tls_context,
)
from blindpost.wire.http2_allowance import ALLOWED_MAX
from tests.support.ntf.hostile_push import DATA, GOAWAY, PING, SETTINGS, frame, goodbye

HEADERS = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", b"/x")]
CERTIFICATE, KEY = make_certificate("localhost", int(time.time()))


class Peer(asyncio.Protocol):
    """Speaks minimal HTTP/2 and leaves the rest to the test."""

    def __init__(self, settings: dict[SettingCodes, int], react: Callable[[Peer, Event], None]) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.h2.local_settings = Settings(client=False, initial_values={**settings})
        self.react = react
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.h2.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            self.events.append(event)
            self.react(self, event)
        self.flush()
        self.changed.set()

    def answer(self, stream_id: int, body: bytes = b"", status: bytes = b"200") -> None:
        self.h2.send_headers(stream_id, [(b":status", status)], end_stream=not body)
        if body:
            self.h2.send_data(stream_id, body, end_stream=True)

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


def answer_at_end(peer: Peer, event: Event) -> None:
    if isinstance(event, DataReceived):
        peer.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
    if isinstance(event, StreamEnded):
        peer.answer(event.stream_id)


@asynccontextmanager
async def connected(
    folder: Path,
    react: Callable[[Peer, Event], None] = answer_at_end,
    settings: dict[SettingCodes, int] | None = None,
    alpn: list[str] | None = None,
) -> AsyncIterator[tuple[Http2Connection, Peer]]:
    (folder / "peer.pem").write_bytes(KEY + CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "peer.pem")
    context.set_alpn_protocols(["h2"] if alpn is None else alpn)
    peers: list[Peer] = []

    def accept() -> Peer:
        peers.append(Peer(settings or {}, react))
        return peers[-1]

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0, ssl=context)
    ours = tls_context()
    ours.load_verify_locations(cadata=CERTIFICATE.decode("ascii"))
    port = server.sockets[0].getsockname()[1]
    connection = None
    try:
        connection = await Http2Connection.connect("localhost", port, ours, 5)
        yield connection, peers[0]
    finally:
        server.close()
        if connection is not None:
            await connection.close()
        for peer in peers:
            peer.transport.abort()
        await asyncio.sleep(0)


async def test_more_requests_than_the_peer_takes_at_once_wait_their_turn(tmp_path: Path) -> None:
    held: list[int] = []

    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, StreamEnded):
            held.append(event.stream_id)

    settings = {SettingCodes.MAX_CONCURRENT_STREAMS: 3}
    async with connected(tmp_path, react, settings) as (connection, peer):
        posting = [asyncio.create_task(connection.post(HEADERS, b"body", 5)) for _ in range(7)]
        for answered, at_once in ((0, 3), (3, 3), (6, 1)):
            await peer.until(lambda at_once=at_once: len(held) == at_once)  # type: ignore[misc]
            assert sum(task.done() for task in posting) == answered
            for stream_id in held:
                peer.answer(stream_id)
            held.clear()
            peer.flush()
        assert [(await task).status for task in posting] == [200] * 7


async def test_a_body_larger_than_the_window_is_sent_as_the_window_opens(tmp_path: Path) -> None:
    settings = {SettingCodes.INITIAL_WINDOW_SIZE: 100}
    received: dict[int, bytearray] = {}

    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, DataReceived):
            received.setdefault(event.stream_id, bytearray()).extend(event.data)
        answer_at_end(peer, event)

    async with connected(tmp_path, react, settings) as (connection, _):
        await connection.post(HEADERS, b"", 5)
        bodies = [bytes([number]) * 4000 for number in range(5)]
        await asyncio.gather(*(connection.post(HEADERS, body, 5) for body in bodies))
        assert sorted(map(bytes, received.values())) == bodies


async def test_a_long_response_is_cut_and_still_ends(tmp_path: Path) -> None:
    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, StreamEnded):
            stream_id = event.stream_id
            peer.h2.send_headers(stream_id, [(b":status", b"410")])
            sending.append(asyncio.get_running_loop().call_soon(more, peer, stream_id, 200_000))

    def more(peer: Peer, stream_id: int, left: int) -> None:
        size = min(left, peer.h2.local_flow_control_window(stream_id), 16_000)
        peer.h2.send_data(stream_id, b"x" * size, end_stream=size == left)
        peer.flush()
        if size < left:
            sending.append(asyncio.get_running_loop().call_later(0.001, more, peer, stream_id, left - size))

    sending: list[asyncio.Handle] = []
    async with connected(tmp_path, react) as (connection, _):
        response = await connection.post(HEADERS, b"body", 5)
        assert response.status == 410
        assert RESPONSE_MAX <= len(response.body) < 100_000


def no_answer(peer: Peer, event: Event) -> None:
    pass


async def asked(connection: Http2Connection, peer: Peer, count: int) -> list[asyncio.Task[Response]]:
    """So many requests that have come to the peer."""
    posting = [asyncio.create_task(connection.post(HEADERS, b"body", 5)) for _ in range(count)]
    await peer.until(lambda: peer.count(StreamEnded) == count)
    return posting


@pytest.mark.parametrize("error", [0, 2])
async def test_a_peer_that_leaves_still_answers_what_it_has_begun_with(tmp_path: Path, error: int) -> None:
    """As a service that takes so many requests on a connection: it says goodbye before its last answers."""
    async with connected(tmp_path, no_answer) as (connection, peer):
        first, second, third = await asked(connection, peer, 3)
        peer.transport.write(goodbye(3, error, b"enough"))
        with pytest.raises(NotSentError):
            await third
        assert not connection.usable
        with pytest.raises(NotSentError):
            await connection.post(HEADERS, b"body", 5)
        peer.answer(3, status=b"201")
        peer.flush()
        assert (await second).status == 201
        assert not first.done()
        assert not connection.closed
        peer.answer(1)
        peer.flush()
        assert (await first).status == 200
        await peer.until(lambda: peer.count(ConnectionTerminated) == 1)
        assert connection.closed


async def test_a_goodbye_and_the_answer_after_it_may_come_together(tmp_path: Path) -> None:
    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, StreamEnded):
            peer.answer(event.stream_id)
            peer.transport.write(goodbye(event.stream_id) + peer.h2.data_to_send())

    async with connected(tmp_path, react) as (connection, _):
        assert (await connection.post(HEADERS, b"body", 5)).status == 200
        assert not connection.usable


async def test_requests_that_were_not_sent_when_the_peer_leaves_may_go_elsewhere(tmp_path: Path) -> None:
    settings = {SettingCodes.MAX_CONCURRENT_STREAMS: 1}
    async with connected(tmp_path, no_answer, settings) as (connection, peer):
        (sent,) = await asked(connection, peer, 1)
        waiting = asyncio.create_task(connection.post(HEADERS, b"body", 5))
        await asyncio.sleep(0)
        peer.transport.write(goodbye(1))
        with pytest.raises(NotSentError):
            await waiting
        peer.answer(1)
        peer.flush()
        assert (await sent).status == 200
        assert peer.count(RequestReceived) == 1


async def test_a_peer_may_say_goodbye_in_two_steps(tmp_path: Path) -> None:
    """First that it leaves, then, when it has seen what was on its way, which requests it answers."""
    async with connected(tmp_path, no_answer) as (connection, peer):
        first, second = await asked(connection, peer, 2)
        peer.transport.write(goodbye(2**31 - 1))
        peer.answer(1)
        peer.flush()
        assert (await first).status == 200
        assert not connection.usable
        assert not second.done()
        peer.transport.write(goodbye(1))
        with pytest.raises(NotSentError):
            await second


async def test_the_rest_of_a_body_is_sent_to_a_peer_that_leaves(tmp_path: Path) -> None:
    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, RequestReceived):
            peer.transport.write(goodbye(event.stream_id))
        answer_at_end(peer, event)

    async with connected(tmp_path, react, {SettingCodes.INITIAL_WINDOW_SIZE: 100}) as (connection, _):
        assert (await connection.post(HEADERS, b"x" * 1000, 5)).status == 200


@pytest.mark.parametrize("ends", [True, False], ids=["it ends the connection", "it falls silent"])
async def test_a_peer_that_leaves_without_its_answers_may_have_taken_the_requests(
    tmp_path: Path, ends: bool
) -> None:
    async with connected(tmp_path, no_answer) as (connection, peer):
        posting = asyncio.create_task(connection.post(HEADERS, b"body", 5 if ends else 0.2))
        await peer.until(lambda: peer.count(StreamEnded) == 1)
        peer.transport.write(goodbye(1))
        if ends:
            peer.transport.close()
        with pytest.raises(ConnectionFailedError) as failed:
            await posting
        assert failed.type is ConnectionFailedError, "it is not pushed again at once"
        assert connection.closed


async def test_a_goodbye_ends_a_connection_that_waits_for_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path) as (connection, peer):
        assert (await connection.post(HEADERS, b"body", 5)).status == 200
        peer.transport.write(goodbye(1))
        await peer.until(lambda: peer.count(ConnectionTerminated) == 1)
        assert connection.closed


@pytest.mark.parametrize(
    "wrong",
    [frame(GOAWAY, 0, 0, bytes(7)), frame(GOAWAY, 0, 1, bytes(8)), frame(GOAWAY, 0, 0, bytes(2**14 + 1))],
    ids=["too short", "of a stream", "too long"],
)
async def test_a_malformed_goodbye_ends_the_connection(tmp_path: Path, wrong: bytes) -> None:
    async with connected(tmp_path, no_answer) as (connection, peer):
        (posting,) = await asked(connection, peer, 1)
        peer.transport.write(wrong)
        with pytest.raises(ConnectionFailedError) as failed:
            await posting
        assert failed.type is ConnectionFailedError
        assert connection.closed


def test_goodbyes_are_taken_out_wherever_they_are_split() -> None:
    others = frame(PING, 0, 0, bytes(8)), frame(SETTINGS, 1, 0), frame(DATA, 0, 1, goodbye(5))
    reserved = frame(GOAWAY, 0, 1 << 31, (1 << 31 | 7).to_bytes(4, "big") + bytes(4))
    longest = goodbye(9, text=bytes(2**14 - 8))
    sent = others[0] + goodbye(2**31 - 1) + others[1] + reserved + others[2] + longest + goodbye(3, 2, b"why")
    for size in (1, 2, 3, 8, 9, 10, 17, 100, len(sent)):
        goodbyes, rest, last = Goodbyes(), b"", list[int]()
        for place in range(0, len(sent), size):
            other, said = goodbyes.take_out(sent[place : place + size])
            rest, last = rest + other, last + said
        assert rest == b"".join(others)
        assert last == [2**31 - 1, 7, 9, 3]
    for wrong in (frame(GOAWAY, 0, 0, bytes(7)), frame(GOAWAY, 0, 1, bytes(8)), frame(GOAWAY, 0, 0)):
        assert Goodbyes().take_out(wrong + others[0]) == (wrong + others[0], [])


async def test_a_reset_request_fails_alone(tmp_path: Path) -> None:
    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, RequestReceived) and event.stream_id == 1:
            peer.h2.reset_stream(1)
        elif isinstance(event, StreamEnded) and event.stream_id != 1:
            peer.answer(event.stream_id)

    async with connected(tmp_path, react) as (connection, _):
        first, second = await asyncio.gather(
            connection.post(HEADERS, b"body", 5), connection.post(HEADERS, b"body", 5), return_exceptions=True
        )
        assert isinstance(first, ConnectionFailedError)
        assert not isinstance(second, BaseException)
        assert second.status == 200


async def test_an_early_answer_counts_although_the_body_is_not_sent_yet(tmp_path: Path) -> None:
    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, RequestReceived):
            peer.answer(event.stream_id, status=b"413")

    settings = {SettingCodes.INITIAL_WINDOW_SIZE: 10}
    async with connected(tmp_path, react, settings) as (connection, peer):
        for _ in range(3):
            assert (await connection.post(HEADERS, b"x" * 1000, 5)).status == 413
        assert connection.usable
        assert peer.count(StreamReset) >= 1


async def test_a_canceled_caller_cancels_its_request(tmp_path: Path) -> None:
    async with connected(tmp_path, lambda peer, event: None) as (connection, peer):
        leaving = asyncio.create_task(connection.post(HEADERS, b"body", 5))
        await peer.until(lambda: peer.count(StreamEnded) == 1)
        leaving.cancel()
        await peer.until(lambda: peer.count(StreamReset) == 1)
        peer.react = answer_at_end
        assert (await connection.post(HEADERS, b"body", 5)).status == 200


async def test_a_request_canceled_before_its_turn_is_never_sent(tmp_path: Path) -> None:
    async with connected(tmp_path) as (connection, peer):
        leaving = asyncio.create_task(connection.post(HEADERS, b"body", 5))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await connection.post(HEADERS, b"body", 5)).status == 200
        assert peer.count(RequestReceived) == 1


async def test_bytes_that_are_not_http2_end_the_connection(tmp_path: Path) -> None:
    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, StreamEnded):
            peer.transport.write(bytes(9))

    async with connected(tmp_path, react) as (connection, _):
        with pytest.raises(ConnectionFailedError):
            await connection.post(HEADERS, b"body", 5)
        assert not connection.usable


@pytest.mark.parametrize("what", ["a promise", "pings", "settings"])
async def test_a_hostile_peer_ends_only_its_connection(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A hostile push service answers unasked, or keeps us busy with empty frames."""

    def react(peer: Peer, event: Event) -> None:
        if not isinstance(event, StreamEnded):
            return
        if what == "a promise":
            peer.transport.write(b"\0\0\x05\x05\x04\0\0\0\x01" + (2).to_bytes(4, "big") + b"\x88")
        else:
            ping, settings = b"\0\0\x08\x06\0\0\0\0\0" + bytes(8), b"\0\0\0\x04\0\0\0\0\0"
            peer.transport.write((ping if what == "pings" else settings) * 3 * ALLOWED_MAX)

    async with connected(tmp_path, react) as (connection, _):
        with pytest.raises(ConnectionFailedError):
            await connection.post(HEADERS, b"body", 30)
        assert not connection.usable
    assert "Fatal error" not in caplog.text


@pytest.mark.parametrize("status", ["9" * 5000, "0200", "2", "abc", "-20"])
async def test_a_status_that_is_none_is_an_answer_without_one(
    tmp_path: Path, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Python refuses to read a number of thousands of digits."""

    def react(peer: Peer, event: Event) -> None:
        if isinstance(event, StreamEnded):
            peer.h2.send_headers(event.stream_id, [(":status", status)], end_stream=True)

    async with connected(tmp_path, react) as (connection, _):
        assert (await connection.post(HEADERS, b"body", 5)).status == 0
        assert connection.usable
    assert caplog.text == ""


@pytest.mark.parametrize(("alpn", "fine"), [([], True), (["h2"], True)])
async def test_a_peer_without_alpn_works_too(tmp_path: Path, alpn: list[str], fine: bool) -> None:
    async with connected(tmp_path, alpn=alpn) as (connection, _):
        assert (await connection.post(HEADERS, b"body", 5)).status == 200


async def test_an_unreachable_host_is_a_named_failure() -> None:
    with pytest.raises(ConnectionFailedError, match="ConnectionRefusedError"):
        await Http2Connection.connect("127.0.0.1", 1, tls_context(), 5)
