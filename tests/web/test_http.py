"""HTTP as strangers speak it: pieces, floods, nonsense, and peers that do not read."""

from __future__ import annotations

import contextlib

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.web.http import HEAD_MAX, PIECE, REQUESTS_MAX, RESETS_MAX, STREAMS_MAX, Http1, Http2, Speaker
from blindpost.web.site import Reply

BODY = bytes(range(256)) * 1_000


def answer(method: str, target: str) -> Reply:
    return Reply(404, "text/plain", b"") if target == "/empty" else Reply(200, "text/plain", BODY)


def said(speaker: Speaker) -> bytes:
    return b"".join(iter(speaker.more, b""))


def get(target: str = "/", more: str = "") -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: h\r\n{more}\r\n".encode()


class TestHttp1:
    def test_a_request_in_pieces_is_answered_once(self) -> None:
        one = Http1(answer)
        for byte in get():
            assert one.more() == b""
            one.received(bytes([byte]))
        told = said(one)
        assert told.startswith(b"HTTP/1.1 200")
        assert told.endswith(BODY)
        assert not one.is_done

    def test_pipelined_requests_are_answered_in_order(self) -> None:
        one = Http1(answer)
        one.received(get() + get("/empty") + get())
        told = said(one)
        assert told.count(BODY) == 2
        assert told.count(b"HTTP/1.1 404") == 1
        assert told.index(b"404") > told.index(BODY)

    def test_a_body_is_handed_out_in_pieces(self) -> None:
        one = Http1(answer)
        one.received(get())
        sizes = [len(part) for part in iter(one.more, b"")]
        assert max(sizes) <= PIECE + 1_000
        assert len(sizes) > len(BODY) // PIECE

    def test_head_has_no_body(self) -> None:
        one = Http1(answer)
        one.received(get().replace(b"GET", b"HEAD"))
        assert BODY[:100] not in said(one)

    def test_a_known_page_is_not_sent_again(self) -> None:
        one = Http1(answer)
        one.received(get(more=f"If-None-Match: {answer('GET', '/').tag}\r\n"))
        told = said(one)
        assert told.startswith(b"HTTP/1.1 304")
        assert len(told) < 1_000

    @pytest.mark.parametrize("target", ["/", "/empty"])
    @pytest.mark.parametrize("request_head", [get(more="Connection: close\r\n"), b"GET / HTTP/1.0\r\n\r\n"])
    def test_a_client_that_wants_one_answer_is_disconnected_after_it(
        self, request_head: bytes, target: str
    ) -> None:
        one = Http1(answer)
        one.received(request_head.replace(b" / ", f" {target} ".encode()))
        assert one.is_done == (target == "/empty"), "not before the body has left"
        assert said(one).endswith(BODY) == (target == "/")
        assert one.is_done

    @pytest.mark.parametrize("more", ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"])
    def test_a_request_with_a_body_ends_the_connection(self, more: str) -> None:
        one = Http1(answer)
        one.received(get(more=more) + b"GET /smuggled HTTP/1.1\r\n\r\n")
        assert said(one).count(b"HTTP/1.1 ") == 1
        assert one.is_done

    @pytest.mark.parametrize(
        "data",
        [
            b"\x00\x01\x02\r\n\r\n",
            b"GET / HTTP/9\r\n\r\n",
            b"GET / HTTP/1.1\r\nHo st: x\r\n\r\n",
            b"x" * HEAD_MAX * 2,
        ],
    )
    def test_nonsense_is_refused_and_ends_the_connection(self, data: bytes) -> None:
        one = Http1(answer)
        one.received(data)
        assert said(one).startswith(b"HTTP/1.1 4")
        assert one.is_done

    def test_a_connection_has_an_end(self) -> None:
        one = Http1(answer)
        one.received(get("/empty") * (REQUESTS_MAX + 50))
        assert said(one).count(b"HTTP/1.1 404") == REQUESTS_MAX
        assert one.is_done

    @given(st.lists(st.binary(max_size=100), max_size=8))
    def test_arbitrary_bytes_are_handled(self, parts: list[bytes]) -> None:
        one = Http1(answer)
        for part in (*parts, b""):
            if not one.is_done:
                one.received(part)
            said(one)


def texts(field: tuple[bytes, bytes] | tuple[str, str]) -> tuple[str, str]:
    name, value = (one.decode() if isinstance(one, bytes) else one for one in field)
    return name, value


class Browser:
    """The other end of an HTTP/2 connection."""

    def __init__(self, window: int | None = None) -> None:
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.connection.initiate_connection()
        if window is not None:
            self.connection.update_settings({4: window})
        self.bodies: dict[int, int] = {}
        self.statuses: list[str] = []
        self.ended = False

    def ask(self, target: str = "/", method: str = "GET") -> int:
        stream = int(self.connection.get_next_available_stream_id())
        fields = [(":method", method), (":path", target), (":scheme", "https"), (":authority", "h")]
        self.connection.send_headers(stream, fields, end_stream=True)
        return stream

    def talk(self, speaker: Speaker, *, reading: bool = True) -> None:
        while data := self.connection.data_to_send():
            speaker.received(data)
            self.hear(said(speaker), reading=reading)

    def hear(self, data: bytes, *, reading: bool = True) -> None:
        for event in self.connection.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                self.statuses += [value for name, value in map(texts, event.headers) if name == ":status"]
            elif isinstance(event, h2.events.DataReceived):
                size = len(event.data)
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, 0) + size
                if reading:
                    self.connection.acknowledge_received_data(size, event.stream_id)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.ended = True


class TestHttp2:
    def test_pages_are_answered_concurrently(self) -> None:
        one, browser = Http2(answer), Browser()
        for _ in range(STREAMS_MAX):
            browser.ask()
        browser.talk(one)
        assert browser.statuses == ["200"] * STREAMS_MAX
        assert set(browser.bodies.values()) == {len(BODY)}

    def test_a_peer_that_does_not_read_gets_one_window(self) -> None:
        one, browser = Http2(answer), Browser()
        for _ in range(STREAMS_MAX):
            browser.ask()
        browser.talk(one, reading=False)
        assert sum(browser.bodies.values()) <= 65_535
        assert one.more() == b""

    def test_a_peer_that_keeps_resetting_requests_is_disconnected(self) -> None:
        one, browser = Http2(answer), Browser()
        with contextlib.suppress(h2.exceptions.ProtocolError):
            for _ in range(RESETS_MAX + 5):
                browser.connection.reset_stream(browser.ask())
                browser.talk(one)
        assert one.is_done
        assert browser.ended

    def test_a_connection_has_an_end(self) -> None:
        one, browser = Http2(answer), Browser()
        for _ in range(REQUESTS_MAX):
            browser.ask("/empty")
            browser.talk(one)
        assert browser.ended
        assert one.is_done

    def test_requests_end_though_one_answer_is_never_read(self) -> None:
        one, browser = Http2(answer), Browser(window=0)
        browser.ask()
        browser.talk(one)
        with contextlib.suppress(h2.exceptions.ProtocolError):
            for _ in range(REQUESTS_MAX + 5):
                browser.ask("/empty")
                browser.talk(one)
        assert browser.ended
        assert one.is_done

    @pytest.mark.parametrize(
        "flood", ["requests", "pings", "priorities", "settings", "reset", "over", "alternatives"]
    )
    def test_little_is_read_of_a_flood_in_one_write(
        self, flood: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Twenty thousand tiny frames in one write would block the router."""
        one, browser = Http2(answer), Browser()
        browser.ask("/")
        browser.talk(one)
        head = bytes([0x82, 0x84, 0x87, 0x41, 1]) + b"h"
        frames = bytearray()
        for number in range(20_000):
            stream = (2 * number + 1).to_bytes(4, "big")
            frames += {
                "requests": len(head).to_bytes(3, "big") + b"\x01\x05" + stream + head,
                "pings": b"\0\0\x08\x06\0\0\0\0\0" + bytes(8),
                "priorities": b"\0\0\x05\x02\0" + stream + bytes(5),
                "settings": b"\0\0\0\x04\0\0\0\0\0",
                "reset": b"\0\0\x04\x03\0\0\0\0\x01" + bytes(4),
                "over": b"\0\0\x04\x08\0\0\0\0\x01\0\0\0\x01",
                "alternatives": b"\0\0\x04\x0a\0\0\0\0\0\0\x01hx",
            }[flood]
        read, take = [0], one._connection.receive_data

        def counted(data: bytes) -> list[h2.events.Event]:
            read[0] += len(data)
            return take(data)

        monkeypatch.setattr(one._connection, "receive_data", counted)
        one.received(bytes(frames))
        assert one.is_done
        assert read[0] <= len(frames) // 8

    def test_a_head_that_is_too_large_is_refused(self) -> None:
        one, browser = Http2(answer), Browser()
        browser.ask("/" + "a" * HEAD_MAX * 2)
        with contextlib.suppress(h2.exceptions.ProtocolError):
            browser.talk(one)
        assert one.is_done
        assert browser.statuses == []

    @given(st.lists(st.binary(max_size=100), max_size=8), st.booleans())
    def test_arbitrary_bytes_are_handled(self, parts: list[bytes], prefaced: bool) -> None:
        one = Http2(answer)
        if prefaced:
            one.received(Browser().connection.data_to_send())
        for part in (*parts, b""):
            if not one.is_done:
                one.received(part)
            said(one)
