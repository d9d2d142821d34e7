"""The reference's handshakes replayed through both sides of ours: same bytes, same outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from blindpost.crypto.block_chain import BlockChains
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.transport import errors
from blindpost.transport.handshake import (
    Effect,
    Established,
    Failed,
    FindService,
    Handshake,
    HandshakeState,
    Peer,
    Send,
)
from blindpost.transport.ntf_handshake import NtfClient, NtfRouter
from blindpost.transport.smp_handshake import SmpClient, SmpRouter
from blindpost.wire.padding import pad
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.versions import VersionRange
from tests.support.wire.vectors import named, vectors

SMP = vectors("handshake.json", "handshake")
NTF = vectors("ntf.json", "handshake")
WAITING = "still waiting (peer closed)"


def exactly(*hexes: str) -> Entropy:
    """Randomness that yields these values, in this order, each of the requested size."""
    numbers: Iterator[bytes] = (bytes.fromhex(text) for text in hexes)

    def entropy(count: int) -> bytes:
        number = next(numbers)
        assert len(number) == count
        return number

    return entropy


def ders(texts: list[str]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(text) for text in texts)


def private(entry: dict[str, str]) -> PrivateKey:
    return PrivateKey.from_pkcs8(bytes.fromhex(entry["private_pkcs8"]))


def sent(effects: list[Effect]) -> list[bytes]:
    return [effect.payload for effect in effects if isinstance(effect, Send)]


def error_of(effects: list[Effect]) -> str | None:
    failed = [effect.error for effect in effects if isinstance(effect, Failed)]
    if not failed:
        return None
    assert failed[0].wire is not None
    return failed[0].wire.value.decode()


def established(effects: list[Effect]) -> Established:
    (found,) = (effect for effect in effects if isinstance(effect, Established))
    assert effects[-1] is found
    return found


def signing_credentials(vector: dict[str, Any]) -> Credentials:
    """The chain of the vector and the key that signs, which is not always the leaf's."""
    return Credentials(ders(vector["chain"]), private(vector["leaf_key"]))


def smp_router(vector: dict[str, Any]) -> Handshake:
    service = vector["service"]
    router = SmpRouter(
        signing_credentials(vector),
        exactly(vector["router_session_key"]["private"]),
        VersionRange(*vector["router_range"]),
    )
    chain = ders(service["tls_chain_seen_by_router"] or []) if service else ()
    alpn = vector["alpn"].encode() if vector["alpn"] else None
    return router.handshake(Peer(bytes.fromhex(vector["sessionId"]), alpn, chain))


def smp_client(vector: dict[str, Any]) -> Handshake:
    service, key = vector["service"], vector["client_key"]
    numbers = [key["private"]] if key else []
    presented = None
    if service:
        credentials = Credentials(ders(service["chain"]), private(service["cert_key"]))
        presented = (ServiceRole(service["role"].encode()), credentials)
        numbers.append(service["session_key"]["private"])
    key_hash, session_id = vector["identity_fingerprint"], vector["sessionId"]
    if "expects another fingerprint" in vector["name"]:
        key_hash = "01" * 32
    if vector["name"].startswith("session ID differs"):
        session_id = "02" * 32
    client = SmpClient(
        bytes.fromhex(key_hash),
        exactly(*numbers),
        VersionRange(*vector["client_range"]),
        vector["proxyServer"],
        presented,
        key is not None,
    )
    certificate_sent = bool(service and service["client_certificate_sent"])
    return client.handshake(Peer(bytes.fromhex(session_id), None, ders(vector["chain"]), certificate_sent))


def shown(result: Established) -> dict[str, Any]:
    """An outcome in the vectors' terms."""
    agreement = result.agreement
    assert agreement.encrypted is (result.chains is not None)
    return {"version": agreement.version, "blockEncryption": agreement.encrypted}


def check_outcome(
    effects: list[Effect], expected: dict[str, Any] | str, machine: Handshake
) -> BlockChains | None:
    if isinstance(expected, str):
        assert expected == WAITING
        assert machine.state not in {HandshakeState.ESTABLISHED, HandshakeState.FAILED}
        return None
    if "error" in expected:
        assert error_of(effects) == expected["error"]
        assert machine.state is HandshakeState.FAILED
        return None
    assert machine.state is HandshakeState.ESTABLISHED
    result = established(effects)
    assert shown(result) == {name: expected[name] for name in ("version", "blockEncryption")}
    assert expected["implySessId"] is (result.agreement.version >= 7)
    assert expected["serviceAuth"] is (result.agreement.version >= 16)
    return result.chains


def check_blocks(
    entries: list[dict[str, Any]], payloads: list[bytes], chains: BlockChains | None
) -> list[bytes]:
    """The first blocks that a side sends are those of the vector."""
    blocks = []
    for entry, payload in zip(entries, payloads, strict=True):
        if chains is None:
            block = pad(payload, 16384)
        else:
            block = bytes(chains.sending.seal_block([payload], len(payload)))
        assert len(block) == entry["length"]
        assert block.hex().startswith(entry["prefix"])
        assert hashlib.sha256(block).hexdigest() == entry["sha256"]
        blocks.append(block)
    return blocks


@pytest.mark.parametrize("vector", SMP, ids=named)
def test_smp_handshake(vector: dict[str, Any]) -> None:
    router, client = smp_router(vector), smp_client(vector)
    assert client.start() == []
    (server_hello,) = sent(router.start())
    assert server_hello.hex() == vector["server_hello"]
    assert hashlib.sha256(pad(server_hello, 16384)).hexdigest() == vector["server_hello_block_sha256"]

    client_effects = client.received(memoryview(server_hello))
    hellos = sent(client_effects)
    assert [hello.hex() for hello in hellos] == ([vector["client_hello"]] if vector["client_hello"] else [])
    router_effects: list[Effect] = []
    if hellos:
        router_effects = router.received(memoryview(hellos[0]))
        requests = [effect for effect in router_effects if isinstance(effect, FindService)]
        if requests:
            service = vector["service"]
            assert requests[0].fingerprint.hex() == service["fingerprint"]
            assert requests[0].role.value.decode() == service["role"]
            refused = "store refuses" in vector["name"]
            found = bytes.fromhex(vector["service_response"])[2:]
            router_effects = router.service_refused() if refused else router.service_found(found)
    responses = sent(router_effects)
    expected = [vector["service_response"]] if vector["service_response"] else []
    assert [response.hex() for response in responses] == expected
    if responses:
        assert client.state is HandshakeState.SERVICE_RESPONSE
        client_effects = client.received(memoryview(responses[0]))

    client_chains = check_outcome(client_effects, vector["client_result"], client)
    router_chains = check_outcome(router_effects, vector["router_result"], router)
    blocks = vector["first_blocks"]
    if blocks is None:
        return
    (from_router,) = (blocks[key] for key in blocks if key.startswith("router"))
    (from_client,) = (blocks[key] for key in blocks if key.startswith("client"))
    down = check_blocks(from_router, [b"server says"], router_chains)
    up = check_blocks(from_client, [b"client says", b"client again"], client_chains)
    if client_chains is not None and router_chains is not None:
        assert [bytes(client_chains.receiving.open_block(block)) for block in down] == [b"server says"]
        assert [bytes(router_chains.receiving.open_block(block)) for block in up] == [
            b"client says",
            b"client again",
        ]


@pytest.mark.parametrize("vector", NTF, ids=named)
@pytest.mark.claim("NTF-03")
def test_ntf_handshake(vector: dict[str, Any]) -> None:
    session_id, key_hash = vector["sessionId"], vector["identity_fingerprint"]
    router = NtfRouter(
        signing_credentials(vector),
        exactly(vector["router_session_key"]["private"]),
        VersionRange(*vector["router_range"]),
    ).handshake(Peer(bytes.fromhex(session_id), vector["alpn"] and vector["alpn"].encode(), ()))
    if vector["name"].startswith("other fingerprint"):
        key_hash = bytes(range(32)).hex()
    if vector["name"] == "other session ID":
        session_id = "02" * 32
    client = NtfClient(bytes.fromhex(key_hash)).handshake(
        Peer(bytes.fromhex(session_id), None, ders(vector["chain"]))
    )
    assert client.start() == []
    (server_hello,) = sent(router.start())
    assert server_hello.hex() == vector["server_hello"]
    assert all(certificate not in server_hello for certificate in ders(vector["chain"]))
    client_effects = client.received(memoryview(server_hello))
    hellos = sent(client_effects)
    assert [hello.hex() for hello in hellos] == ([vector["client_hello"]] if vector["client_hello"] else [])
    router_effects = router.received(memoryview(hellos[0])) if hellos else []
    for effects, expected, machine in (
        (client_effects, vector["client_result"], client),
        (router_effects, vector["router_result"], router),
    ):
        if isinstance(expected, str):
            assert expected == WAITING
            assert machine.state is HandshakeState.CLIENT_HELLO
        elif "error" in expected:
            assert error_of(effects) == expected["error"]
            assert machine.state is HandshakeState.FAILED
        else:
            result = established(effects)
            assert shown(result) == {"version": expected["version"], "blockEncryption": False}
            assert expected["batch"] is expected["implySessId"] is (result.agreement.version >= 2)


def test_every_failure_in_the_vectors_has_a_named_error() -> None:
    seen = {
        result["error"]
        for vector in (*SMP, *NTF)
        for result in (vector["client_result"], vector["router_result"])
        if isinstance(result, dict) and "error" in result
    }
    known = {kind.wire.value.decode() for kind in errors.HandshakeError.__subclasses__() if kind.wire}
    assert seen <= known
