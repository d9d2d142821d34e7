"""Conversations recorded with the reference: its certificates, signed session keys and encrypted blocks."""

from __future__ import annotations

from typing import Any

import pytest

from blindpost.crypto.block_chain import BlockChain, client_chains
from blindpost.crypto.chains import (
    ChainError,
    ChainFailure,
    identity_fingerprint,
    leaf_key,
    validate_router_chain,
    validate_service_chain,
)
from blindpost.crypto.credentials import verify_session_key
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.handshake import read_client_hello, read_server_hello
from tests.support.wire.vectors import VECTORS, vector_file

NOW = 1_800_000_000
LONG_AGO = 1_000_000_000
SMP_FILES = sorted(
    f"transcripts/{path.name}"
    for path in (VECTORS / "transcripts").glob("*.json")
    if not path.name.startswith("3")
)


def payloads(recording: dict[str, Any], note: str) -> list[tuple[str, bytes]]:
    """Connection and payload of every event with this note."""
    return [
        (event["conn"], bytes.fromhex(event["block_plain"]))
        for event in recording["events"]
        if event["note"] == note
    ]


@pytest.mark.parametrize("name", SMP_FILES)
def test_hellos_of_the_reference_verify(name: str) -> None:
    recording = vector_file(name)
    servers, clients = payloads(recording, "server hello"), payloads(recording, "client hello")
    assert [conn for conn, _ in servers] == [conn for conn, _ in clients]
    for (conn, server_payload), (_, client_payload) in zip(servers, clients, strict=True):
        server, client = read_server_hello(Reader(server_payload)), read_client_hello(Reader(client_payload))
        session = recording["sessions"][conn]
        assert server.session_id.hex() == session["session_id"]
        if server.cert_key is None:
            assert server.versions.high == 6
        else:
            chain = server.cert_key.chain
            validate_router_chain(chain, client.key_hash, NOW)
            assert verify_session_key(leaf_key(chain), server.cert_key.signed_key)
            with pytest.raises(ChainError) as caught:
                validate_router_chain(chain, client.key_hash, LONG_AGO)
            assert caught.value.failure is ChainFailure.IN_FUTURE
        if client.service is not None:
            chain = client.service.cert_key.chain
            validate_service_chain(chain, NOW)
            assert verify_session_key(leaf_key(chain), client.service.cert_key.signed_key)
            fingerprint = recording["keys"].get(f"{conn}.service_cert_fingerprint")
            assert fingerprint is None or identity_fingerprint(chain).hex() == fingerprint


def test_recordings_cover_services_and_plain_clients() -> None:
    notes = [len(payloads(vector_file(name), "service response")) for name in SMP_FILES]
    assert sum(notes) >= 5
    assert notes.count(0) >= 20


def next_blocks(chain: BlockChain) -> list[bytes]:
    return [bytes(chain.seal_block([b"x"], 1)) for _ in range(2)]


@pytest.mark.parametrize("name", SMP_FILES)
def test_chain_keys_of_every_encrypted_connection(name: str) -> None:
    recording = vector_file(name)
    keys = recording["keys"]
    for conn in [key.removesuffix(".chain_s2c") for key in keys if key.endswith(".chain_s2c")]:
        private = PrivateKey(Algorithm.X25519, bytes.fromhex(keys[f"{conn}.client_session_x25519"]["priv"]))
        public = PublicKey(Algorithm.X25519, bytes.fromhex(keys[f"{conn}.server_session_x25519_pub"]))
        session_id = bytes.fromhex(recording["sessions"][conn]["session_id"])
        chains = client_chains(session_id, private.agree(public))
        for derived, recorded in ((chains.receiving, "chain_s2c"), (chains.sending, "chain_c2s")):
            expected = BlockChain(bytes.fromhex(keys[f"{conn}.{recorded}"]))
            assert next_blocks(derived) == next_blocks(expected)


def test_recorded_blocks_open_and_seal_again() -> None:
    recording = vector_file("transcripts/01-handshake-v20-encrypted.json")
    chains = {way: bytes.fromhex(recording["keys"][f"A.chain_{way}"]) for way in ("s2c", "c2s")}
    opening = {way: BlockChain(key) for way, key in chains.items()}
    sealing = {way: BlockChain(key) for way, key in chains.items()}
    encrypted = [event for event in recording["events"] if "hello" not in event["note"]]
    assert {event["dir"] for event in encrypted} == {"s2c", "c2s"}
    for event in encrypted:
        block, payload = bytes.fromhex(event["block_raw"]), bytes.fromhex(event["block_plain"])
        assert opening[event["dir"]].open_block(block) == payload
        assert sealing[event["dir"]].seal_block([payload], len(payload)) == block
