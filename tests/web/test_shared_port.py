"""Browsers and SMP clients on one port, over real sockets."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from blindpost.transport.ends import open_session
from blindpost.web import connection
from blindpost.web.site import Reply
from tests.support.attack.key_changes import Flooder
from tests.support.transport.sessions import HOST, Recorder, smp_client
from tests.support.web.sites import browse, shared_port, write_certificate

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def visitor(*, http2: bool = False) -> httpx.AsyncClient:
    """A browser that takes the test's own certificate."""
    return httpx.AsyncClient(verify=_trusting(), http1=not http2, http2=http2)


async def test_a_browser_and_a_client_use_the_same_port_at_once(tmp_path: Path) -> None:
    async with shared_port(tmp_path) as shared, visitor() as old, visitor(http2=True) as new:
        client = Recorder()
        session = await open_session(smp_client(), client, HOST, shared.port)
        session.send(b"before")
        await client.until("payloads", 1)
        pages = await asyncio.gather(*(who.get(f"https://localhost:{shared.port}/") for who in (old, new)))
        session.send(b"after")
        await client.until("payloads", 2)
        assert [payload[: len(b"before")].rstrip(b"#") for payload in client.payloads] == [
            b"before",
            b"after",
        ]
        assert [page.http_version for page in pages] == ["HTTP/1.1", "HTTP/2"]
        for page in pages:
            assert page.status_code == 200
            assert "smp://AAAA@localhost" in page.text
            assert "default-src 'none'" in page.headers["content-security-policy"]
        session.close()


async def test_a_client_with_a_server_name_that_speaks_smp_is_not_a_browser(tmp_path: Path) -> None:
    async with shared_port(tmp_path) as shared:
        reader, writer = await browse(shared.port, b"", protocols=("smp/1",))
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "smp/1"
        writer.close()
        assert not shared.visitors.here
        del reader


async def test_an_unknown_name_gets_the_router(tmp_path: Path) -> None:
    async with shared_port(tmp_path) as shared:
        _, writer = await browse(shared.port, b"", name="elsewhere.example", protocols=("smp/1",))
        shown = writer.get_extra_info("ssl_object").getpeercert(True)
        assert ssl.DER_cert_to_PEM_cert(shown) != (tmp_path / "web.crt").read_text()
        writer.close()


async def test_a_hello_that_comes_byte_by_byte_is_understood(tmp_path: Path) -> None:
    async with shared_port(tmp_path) as shared:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("localhost", shared.port)
        text = b""
        while b"</html>" not in text:
            try:
                if tls.version() is None:
                    tls.do_handshake()
                    tls.write(GET)
                text += tls.read(65_536)
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    writer.write(bytes([byte]))
                    await writer.drain()
                incoming.write(await reader.read(65_536))
        writer.close()
        assert b"200" in text.splitlines()[0]


async def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared_port(tmp_path) as shared:
        assert not shared.certificate.renew()
        write_certificate(tmp_path, "localhost", "new.example")
        assert shared.certificate.renew()
        _, writer = await browse(shared.port, GET, name="new.example")
        shown = writer.get_extra_info("ssl_object").getpeercert(True)
        assert ssl.DER_cert_to_PEM_cert(shown) == (tmp_path / "web.crt").read_text()
        writer.close()
        secret = load_pem_private_key((tmp_path / "web.key").read_bytes(), None)
        sealed = secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hello"))
        for unusable in (b"not a key", sealed):
            (tmp_path / "web.key").write_bytes(unusable)
            assert not shared.certificate.renew()
        assert "nobody to ask" in caplog.messages[-1], "nor is anybody asked on the terminal"
        reader, writer = await browse(shared.port, GET)
        await reader.readuntil(b"</html>")
        writer.close()


async def test_a_proxy_tells_the_address_of_its_client(tmp_path: Path) -> None:
    proxies = (ipaddress.IPv4Network("127.0.0.0/8"),)
    async with shared_port(tmp_path, proxies=proxies) as shared:
        header = b"PROXY TCP4 192.0.2.7 192.0.2.1 51234 443\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", shared.port)
        writer.write(header)
        await shared.router.until("sessions", 0)
        await writer.start_tls(_trusting(), server_hostname="localhost")
        await asyncio.sleep(0)
        assert [one.address for one in shared.visitors.here] == ["192.0.2.7"]
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
        writer.write(b"\x16\x03\x01\x00\x05hello")
        assert await _ended(reader)
        writer.close()


async def test_one_address_cannot_take_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "VISITORS_PER_ADDRESS_MAX", 3)
    async with shared_port(tmp_path) as shared:
        writers = [(await browse(shared.port, b""))[1] for _ in range(3)]
        with pytest.raises((ssl.SSLError, OSError)):
            await browse(shared.port, GET)
        assert (len(shared.visitors.here), shared.visitors.refused) == (3, 1)
        for writer in writers:
            writer.close()


async def test_the_address_with_the_most_places_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "VISITORS_MAX", 4)
    visitors = connection.Visitors(lambda host: host.partition(".")[0])

    class Guest(connection.Visitor):
        def __init__(self, address: str) -> None:
            super().__init__(lambda *_: Reply(404, "text/plain", b""), visitors, None)
            self.address, self.is_aborted = address, False

        def abort(self) -> None:
            self.is_aborted = True

    crowd = [Guest(f"1.{number}") for number in range(4)]
    assert all(map(visitors.admit, crowd))
    assert not visitors.admit(Guest("1.9")), "one network in many addresses"
    bystander = Guest("2.1")
    assert visitors.admit(bystander)
    assert [one.is_aborted for one in crowd] == [True, False, False, False]
    for one in (*crowd, bystander):
        visitors.leave(one)
    assert not visitors.here


async def test_a_silent_visitor_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "QUIET_S", 0.05)
    async with shared_port(tmp_path) as shared:
        reader, writer = await browse(shared.port, b"GET / HT")
        assert await _ended(reader)
        writer.close()
        assert not shared.visitors.here


async def test_a_visitor_who_only_changes_keys_is_sent_away(tmp_path: Path) -> None:
    async with shared_port(tmp_path) as shared:
        for tiny in (False, True):
            assert await Flooder("http/1.1", tmp_path).until_cut(shared.port, tiny=tiny) <= 4_000
        assert not shared.visitors.here


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
