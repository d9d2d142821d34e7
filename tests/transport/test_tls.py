"""Our TLS against Python's `ssl` module, an independent implementation."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blindpost.transport import errors
from blindpost.transport.tls import CIPHER_SUITE, Tls, client_context, router_context, scratch
from blindpost.wire.padding import pad, unpad
from blindpost.wire.primitives import Reader, encode
from blindpost.wire.smp.handshake import (
    ClientHello,
    ServerHello,
    read_client_hello,
    read_server_hello,
    write_server_hello,
)
from blindpost.wire.versions import VersionRange
from tests.support.transport.certificates import chain_of
from tests.support.transport.sessions import (
    HOST,
    QUICK,
    Recorder,
    router_credentials,
    service_credentials,
    serving,
    smp_client,
    smp_router,
)
from tests.support.transport.streams import connect


def stdlib_client(*alpn: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def stdlib_server(folder: Path) -> ssl.SSLContext:
    credentials = router_credentials()
    certificates = (x509.load_der_x509_certificate(der) for der in credentials.chain)
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates))
    private = credentials.key.for_certificates()
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    context.set_alpn_protocols(["smp/1"])
    return context


async def hello_for(context: ssl.SSLContext) -> tuple[ServerHello, ssl.SSLObject]:
    """What our router sends to such a client."""
    router = Recorder()
    async with serving(smp_router(limits=QUICK), router) as port:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        block = await reader.readexactly(16384)
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.close()
        await writer.wait_closed()
        await router.until("reasons")
    return read_server_hello(Reader(unpad(block))), tls


async def test_a_router_names_the_session_by_the_clients_finished_message() -> None:
    hello, tls = await hello_for(stdlib_client("smp/1"))
    assert hello.session_id == tls.get_channel_binding("tls-unique")
    assert tls.version() == "TLSv1.3"
    cipher = tls.cipher()
    assert cipher is not None
    assert cipher[0] == CIPHER_SUITE.decode()
    assert tls.getpeercert(binary_form=True) == router_credentials().chain[0]
    assert hello.cert_key is not None
    assert hello.cert_key.chain == router_credentials().chain
    assert hello.versions == VersionRange(6, 20)


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        (["smp/1"], "smp/1"),
        (["smp/1", "h2"], "smp/1"),
        (["http/1.1", "smp/1"], "http/1.1"),
        (["xftp/1", "h2", "smp/1"], "h2"),
        ([], None),
    ],
)
async def test_the_clients_order_of_protocol_names_decides(offered: list[str], selected: str | None) -> None:
    hello, tls = await hello_for(stdlib_client(*offered))
    assert tls.selected_alpn_protocol() == selected
    assert hello.versions == VersionRange(6, 6 if selected is None else 20)
    assert (hello.cert_key is None) is (selected is None)


async def test_other_groups_than_x25519_and_x448_are_refused() -> None:
    context = stdlib_client("smp/1")
    context.set_ecdh_curve("prime256v1")
    router = Recorder()
    async with serving(smp_router(limits=QUICK), router) as port:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(HOST, port, ssl=context)
        await router.until("reasons")
    assert type(router.reasons[0]) is errors.TlsParametersError


async def test_a_client_sends_no_server_name_and_names_the_same_session(tmp_path: Path) -> None:
    context = stdlib_server(tmp_path)
    names: list[str | None] = []
    hellos: list[object] = []
    context.sni_callback = lambda tls, name, _: names.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        session_id = tls.get_channel_binding("tls-unique")
        assert session_id is not None
        hello = ServerHello(VersionRange(6, 6), session_id, None)
        writer.write(pad(encode(hello, write_server_hello), 16384))
        hellos.append(read_client_hello(Reader(unpad(await reader.readexactly(16384)))))
        hellos.append(tls.selected_alpn_protocol())
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    stream = await connect(smp_client(limits=QUICK), HOST, port)
    assert stream.session.agreed.version == 6
    with pytest.raises(errors.ClosedError):
        await stream.read_block()
    server.close()
    assert names == [None]
    assert hellos == [ClientHello(6, router_credentials().fingerprint), "smp/1"]


def shake(server: Tls, client: Tls) -> None:
    """Run a handshake between two of our ends, byte by byte in memory."""
    done = [False, False]
    while not all(done):
        for place, (own, peer) in enumerate(((client, server), (server, client))):
            if not done[place]:
                done[place] = own.handshake()
            move(own, peer)


def move(source: Tls, target: Tls) -> bytes:
    data = bytes(source.outgoing())
    scratch.received[: len(data)] = data
    target.received(len(data))
    return data


def anything(chain: tuple[bytes, ...]) -> None:
    """Accept every chain."""


def test_both_ends_name_one_session_and_see_the_whole_chain_of_the_other() -> None:
    router, client = chain_of(3), chain_of(2)
    server_context = router_context(router.chain, router.key.for_certificates(), (b"smp/1",))
    own_context = client_context(b"smp/1", client.chain, client.key.for_certificates())
    seen = set()
    for _ in range(2):
        server, own = Tls(server_context, anything, server=True), Tls(own_context, anything, server=False)
        shake(server, own)
        assert server.session_id == own.session_id
        assert server.peer_chain == client.chain
        assert own.peer_chain == router.chain
        assert server.alpn == own.alpn == b"smp/1"
        assert own.certificate_sent
        seen.add(own.session_id)
    assert len(seen) == 2


def test_without_a_certificate_none_is_sent() -> None:
    router = router_credentials()
    server = Tls(router_context(router.chain, router.key.for_certificates(), ()), anything, server=True)
    client = Tls(client_context(None), anything, server=False)
    shake(server, client)
    assert server.peer_chain == ()
    assert not client.certificate_sent
    assert server.alpn is client.alpn is None


def test_a_client_shows_its_certificate_only_to_a_verified_router() -> None:
    """The router is verified before anything that identifies the client is sent."""
    router, service = router_credentials(), service_credentials()
    server = Tls(router_context(router.chain, router.key.for_certificates(), ()), anything, server=True)

    def refuse(chain: tuple[bytes, ...]) -> None:
        raise errors.UnknownCaError

    context = client_context(None, service.chain, service.key.for_certificates())
    client = Tls(context, refuse, server=False)
    assert not client.handshake()
    move(client, server)
    assert not server.handshake()
    move(server, client)
    with pytest.raises(errors.UnknownCaError):
        client.handshake()
    last = move(client, server)
    assert len(last) < 100, "an alert and nothing else"
    with pytest.raises(errors.UnknownCaError):
        server.handshake()
    assert server.peer_chain == ()


def test_sessions_are_never_resumed() -> None:
    router = router_credentials()
    context = router_context(router.chain, router.key.for_certificates(), (b"smp/1",))
    own, session = stdlib_client("smp/1"), None
    for _ in range(2):
        server = Tls(context, anything, server=True)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = own.wrap_bio(incoming, outgoing, session=session)
        done = False
        while not done:
            try:
                client.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            data = outgoing.read()
            scratch.received[: len(data)] = data
            server.received(len(data))
            server.handshake()
            incoming.write(server.outgoing())
        server.write(b"hello")
        incoming.write(server.outgoing())
        assert client.read(5) == b"hello"
        assert not client.session_reused
        session = client.session


@pytest.mark.parametrize("size", [1, 7, 100, 16384])
def test_bytes_arrive_unchanged_however_they_are_fragmented(size: int) -> None:
    router = router_credentials()
    server = Tls(router_context(router.chain, router.key.for_certificates(), ()), anything, server=True)
    client = Tls(client_context(None), anything, server=False)
    shake(server, client)
    sent = hashlib.shake_256(b"content").digest(40_000)
    client.write(sent)
    data, received = bytes(client.outgoing()), bytearray()
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        scratch.received[: len(piece)] = piece
        server.received(len(piece))
        while count := server.read(16384):
            received += scratch.plain[:count]
    assert received == sent
    client.shutdown()
    move(client, server)
    with pytest.raises(errors.PeerClosedError):
        server.read(16384)


def test_a_broken_record_is_a_tls_error() -> None:
    router = router_credentials()
    server = Tls(router_context(router.chain, router.key.for_certificates(), ()), anything, server=True)
    client = Tls(client_context(None), anything, server=False)
    shake(server, client)
    client.write(bytes(100))
    data = client.outgoing()
    data[50] ^= 1
    scratch.received[: len(data)] = data
    server.received(len(data))
    with pytest.raises(errors.TlsError, match=r"(?i)mac|decrypt"):
        server.read(16384)


def test_releasing_buffers_changes_nothing_for_the_peer() -> None:
    router = router_credentials()
    server = Tls(router_context(router.chain, router.key.for_certificates(), ()), anything, server=True)
    client = Tls(client_context(None), anything, server=False)
    shake(server, client)
    assert client.read(1) == 0, "what follows a handshake is read like anything else"
    for number in range(3):
        client.write(bytes([number]) * 20_000)
        assert not client.release(), "what waits to be sent is kept"
        move(client, server)
        assert client.release()
        assert not server.release(), "what was not read yet is kept"
        count = 0
        while got := server.read(16384):
            assert set(scratch.plain[:got]) == {number}
            count += got
        assert count == 20_000
        assert server.release()
