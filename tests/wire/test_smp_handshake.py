"""Hellos against handshakes that the reference ran with itself: layout, signatures, first blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from blindpost.crypto.block_chain import client_chains, router_chains
from blindpost.crypto.chains import fingerprint, identity_fingerprint, leaf_key
from blindpost.crypto.credentials import verify_session_key
from blindpost.crypto.errors import CryptoError
from blindpost.wire.batch import SMP_BLOCK_SIZE
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.padding import pad
from blindpost.wire.primitives import Reader, decode_whole, encode
from blindpost.wire.signed_key import CertKey, SignedKey
from blindpost.wire.smp.errors import TransportCode
from blindpost.wire.smp.handshake import (
    SERVICE_VERSIONS,
    ClientHello,
    ClientService,
    ServerHello,
    ServiceAccepted,
    ServiceRefused,
    ServiceRole,
    encrypts_blocks,
    read_client_hello,
    read_server_hello,
    read_service_response,
    write_client_hello,
    write_server_hello,
    write_service_response,
)
from blindpost.wire.smp.versions import LEGACY_VERSIONS, connection_layout, proxy_versions
from blindpost.wire.text import b64
from blindpost.wire.versions import VersionRange
from tests.support.wire.blocks import payload_reader
from tests.support.wire.hostile import changed_everywhere, truncated_everywhere
from tests.support.wire.long_values import ramp, same
from tests.support.wire.smp_keys import private_key
from tests.support.wire.smp_values import key_of
from tests.support.wire.vectors import named, vectors

FILE = "handshake.json"
HANDSHAKES = vectors(FILE, "handshake")
READERS: dict[str, Callable[[Reader], object]] = {
    "server_hello": read_server_hello,
    "client_hello": read_client_hello,
    "service_response": read_service_response,
}
KINDS = {"handshake", "certificates", "fingerprint", "address", "host", "host_binary"}
"""The last three are the business of the tests of addresses."""


def test_no_kind_of_vector_is_left_out() -> None:
    assert {vector["kind"] for vector in vectors(FILE)} == KINDS


def hellos(vector: dict[str, Any]) -> tuple[ServerHello, ClientHello | None]:
    server = decode_whole(bytes.fromhex(vector["server_hello"]), read_server_hello)
    if not vector["client_hello"]:
        return server, None
    return server, decode_whole(bytes.fromhex(vector["client_hello"]), read_client_hello)


@pytest.mark.parametrize("vector", HANDSHAKES, ids=named)
def test_server_hello(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["server_hello"])
    hello, _ = hellos(vector)
    offered = LEGACY_VERSIONS if vector["alpn"] is None else VersionRange(*vector["router_range"])
    assert hello.versions == offered
    assert encode(hello, write_server_hello) == data
    block = pad(data, SMP_BLOCK_SIZE)
    assert hashlib.sha256(block).hexdigest() == vector["server_hello_block_sha256"]
    assert read_server_hello(payload_reader(block)) == hello
    if "session ID differs" not in vector["name"]:
        assert hello.session_id.hex() == vector["sessionId"]
    if offered.high < 7:
        assert hello.cert_key is None
        return
    assert hello.cert_key is not None
    signed_key = hello.cert_key.signed_key
    assert [certificate.hex() for certificate in hello.cert_key.chain] == vector["chain"]
    assert signed_key.key == key_of(vector["router_session_key"]["public_spki"])
    honest = "signs with another key" not in vector["name"]
    assert verify_session_key(leaf_key(hello.cert_key.chain), signed_key) is honest


@pytest.mark.parametrize("vector", HANDSHAKES, ids=named)
def test_client_hello(vector: dict[str, Any]) -> None:
    server, hello = hellos(vector)
    agreed = proxy_agreed(vector, server)
    if hello is None:
        assert "error" in vector["client_result"]
        if vector["client_result"]["error"] == "VERSION":
            assert agreed is None
        return
    assert hello.version == agreed
    assert encode(hello, write_client_hello).hex() == vector["client_hello"]
    given_key = None if vector["client_key"] is None else key_of(vector["client_key"]["public_spki"])
    assert hello.client_key == (given_key if hello.version >= 7 else None)
    assert hello.proxy_server is (vector["proxyServer"] and hello.version >= 14)
    check_service(vector, hello)
    if "another fingerprint" not in vector["name"]:
        assert hello.key_hash.hex() == vector["identity_fingerprint"]
    result = vector["router_result"]
    if "error" not in result:
        layout = connection_layout(hello.version, server.session_id)
        assert result["version"] == hello.version
        assert result["implySessId"] is not layout.session_sent
        assert result["blockEncryption"] is encrypts_blocks(server, hello)


def proxy_agreed(vector: dict[str, Any], server: ServerHello) -> int | None:
    own = VersionRange(*vector["client_range"])
    if vector["proxyServer"]:
        own = proxy_versions(own, server.versions)
    return own.agreed(server.versions)


def check_service(vector: dict[str, Any], hello: ClientHello) -> None:
    """A service part is present when the role may be offered, and proves possession of its key."""
    service = vector["service"]
    if service is None:
        assert hello.service is None
        return
    role = ServiceRole(service["role"].encode())
    offered = hello.version >= SERVICE_VERSIONS[role] and service["client_certificate_sent"]
    assert (hello.service is not None) is offered
    if hello.service is None:
        return
    chain = tuple(bytes.fromhex(certificate) for certificate in service["chain"])
    assert hello.service.role is role
    assert hello.service.cert_key.chain == chain
    assert hello.service.cert_key.signed_key.key == private_key(service["session_key"]).public
    assert verify_session_key(leaf_key(chain), hello.service.cert_key.signed_key)
    assert identity_fingerprint(chain).hex() == service["fingerprint"]


@pytest.mark.parametrize("vector", HANDSHAKES, ids=named)
def test_service_response(vector: dict[str, Any]) -> None:
    data = vector["service_response"]
    if data is None:
        return
    response = decode_whole(bytes.fromhex(data), read_service_response)
    result = vector["router_result"]
    if "error" in result:
        assert response == ServiceRefused(TransportCode(result["error"].encode()))
    else:
        assert response == ServiceAccepted(ramp(0xD0, 24))
    assert encode(response, write_service_response).hex() == data


@pytest.mark.parametrize("vector", HANDSHAKES, ids=named)
def test_first_blocks(vector: dict[str, Any]) -> None:
    """The first blocks after the hellos, encrypted or plain, in both directions."""
    server, hello = hellos(vector)
    if hello is None or not vector["first_blocks"]:
        assert "error" in vector["client_result"] or "error" in vector["router_result"]
        return
    said = {"client": [b"client says", b"client again"], "router": [b"server says"]}
    assert len(vector["first_blocks"]) == len(said)
    for label, blocks in vector["first_blocks"].items():
        payloads = said[label.partition(":")[0]]
        if not encrypts_blocks(server, hello):
            made = [pad(payload, SMP_BLOCK_SIZE) for payload in payloads]
        else:
            router, client = private_key(vector["router_session_key"]), private_key(vector["client_key"])
            secret = router.agree(client.public)
            ends = client_chains if label.startswith("client") else router_chains
            chain = ends(server.session_id, secret).sending
            made = [bytes(chain.seal_block([payload], len(payload))) for payload in payloads]
        for block, expected in zip(made, blocks, strict=True):
            assert same(block, expected)


@pytest.mark.parametrize("vector", vectors(FILE, "certificates"), ids=named)
def test_certificates(vector: dict[str, Any]) -> None:
    chain = tuple(bytes.fromhex(certificate) for certificate in vector["chain"])
    assert leaf_key(chain) == private_key(vector["keys"][0]).public


@pytest.mark.parametrize("vector", vectors(FILE, "fingerprint"), ids=named)
def test_fingerprint(vector: dict[str, Any]) -> None:
    found = fingerprint(bytes.fromhex(vector["certificate"]))
    assert found.hex() == vector["bytes"]
    assert b64(found) == vector["text"]


@pytest.mark.parametrize("vector", HANDSHAKES, ids=named)
def test_hostile_hellos_give_a_value_or_the_one_error(vector: dict[str, Any]) -> None:
    for name, read in READERS.items():
        data = bytes.fromhex(vector[name] or "")

        def decode(piece: bytes, read: Callable[[Reader], object] = read) -> object:
            return read(Reader(piece))

        truncated_everywhere(decode, data)
        changed_everywhere(decode, data, vector["name"])


CERT_KEY = CertKey(
    (b"leaf", b"identity"), SignedKey(PublicKey(Algorithm.X25519, ramp(1, 32)), Algorithm.ED25519, bytes(64))
)
CLIENT_KEY = PublicKey(Algorithm.X25519, ramp(2, 32))


@pytest.mark.parametrize("version", range(6, 21))
@pytest.mark.parametrize("client_key", [None, CLIENT_KEY])
@pytest.mark.parametrize("service", [None, ClientService(ServiceRole.MESSAGING, CERT_KEY)])
def test_bytes_after_a_hello_are_ignored(
    version: int, client_key: PublicKey | None, service: ClientService | None
) -> None:
    hello = ClientHello(
        version,
        ramp(3, 32),
        client_key if version >= 7 else None,
        proxy_server=version >= 14,
        service=service if version >= 16 else None,
    )
    data = encode(hello, write_client_hello)
    assert decode_whole(data, read_client_hello) == hello
    assert read_client_hello(Reader(data + b"later")) == hello
    server = ServerHello(VersionRange(6, version), ramp(4, 32), CERT_KEY if version >= 7 else None)
    data = encode(server, write_server_hello)
    assert decode_whole(data, read_server_hello) == server
    assert read_server_hello(Reader(data + b"later")) == server


def test_bytes_after_a_service_response_are_ignored() -> None:
    assert read_service_response(Reader(b"R\x01sxyz")) == ServiceAccepted(b"s")
    for error in TransportCode:
        data = encode(ServiceRefused(error), write_service_response)
        assert read_service_response(Reader(data + b" more")) == ServiceRefused(error)
    with pytest.raises(WireError):
        read_service_response(Reader(b"X\x01s"))


def test_fields_unknown_to_a_version_are_not_written() -> None:
    service = ClientService(ServiceRole.NOTIFIER, CERT_KEY)
    full = {version: ClientHello(version, b"hash", CLIENT_KEY, True, service) for version in range(6, 21)}
    sizes = [len(encode(full[version], write_client_hello)) for version in range(6, 21)]
    bare, key, flag = 2 + 5, 45, 1
    assert sizes[0] == bare
    assert set(sizes[1:8]) == {bare + key}
    assert set(sizes[8:10]) == {bare + key + flag}
    assert len(set(sizes[10:])) == 1
    assert sizes[10] > bare + key + flag + 122


def test_signed_key_is_present_exactly_from_version_7() -> None:
    with pytest.raises(WireError):
        ServerHello(VersionRange(6, 6), b"", CERT_KEY)
    with pytest.raises(WireError):
        ServerHello(VersionRange(6, 7), b"", None)


def test_unknown_role_is_refused() -> None:
    hello = ClientHello(20, b"h", None, False, ClientService(ServiceRole.PROXY, CERT_KEY))
    data = encode(hello, write_client_hello)
    assert data[5:7] == b"1P"
    with pytest.raises(WireError):
        read_client_hello(Reader(data[:6] + b"X" + data[7:]))


@pytest.mark.parametrize(
    ("version", "proxy", "client_key", "encrypted"),
    [
        (11, False, CLIENT_KEY, True),
        (20, False, CLIENT_KEY, True),
        (10, False, CLIENT_KEY, False),
        (20, True, CLIENT_KEY, False),
        (20, False, None, False),
    ],
)
def test_when_blocks_are_encrypted(
    version: int, proxy: bool, client_key: PublicKey | None, encrypted: bool
) -> None:
    server = ServerHello(VersionRange(6, 20), b"", CERT_KEY)
    assert encrypts_blocks(server, ClientHello(version, b"", client_key, proxy)) is encrypted
    keyless = ServerHello(VersionRange(6, 6), b"", None)
    assert not encrypts_blocks(keyless, ClientHello(version, b"", client_key, proxy))


def test_a_changed_block_does_not_open() -> None:
    secret = bytes(range(32))
    block = bytearray(client_chains(b"session", secret).sending.seal_block([b"payload"], 7))
    block[100] ^= 1
    with pytest.raises(CryptoError):
        router_chains(b"session", secret).receiving.open_block(bytes(block))
