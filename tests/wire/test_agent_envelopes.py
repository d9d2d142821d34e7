"""Client and agent envelopes: every vector, unknown tags, and what a hostile peer may send."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.agent.envelopes import (
    AgentEnvelope,
    ClientEnvelope,
    ClientMessage,
    Confirmation,
    Invitation,
    MessageEnvelope,
    PublicHeader,
    RatchetKey,
    read_agent_envelope,
    read_client_envelope,
    read_client_message,
    read_private_header,
    read_public_header,
    write_agent_envelope,
    write_client_envelope,
    write_client_message,
    write_private_header,
    write_public_header,
)
from blindpost.wire.agent.sizes import padded_sizes
from blindpost.wire.e2e import E2EParams, KemAccepted, read_e2e_params, write_e2e_params
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.links.full import ContactLink, InvitationLink, full_link_from_text
from blindpost.wire.primitives import decode_whole, encode
from tests.support.wire import agent_strategies as some
from tests.support.wire import agent_values as build
from tests.support.wire.hostile import (
    calls_made,
    changed_everywhere,
    memory_peak,
    survives,
    truncated_everywhere,
)
from tests.support.wire.long_values import same
from tests.support.wire.vectors import named, vectors

ENVELOPES = vectors("agent_messages.json", "AgentMsgEnvelope")
ENVELOPE_BYTES = vectors("agent_messages.json", "AgentMsgEnvelope parse")
PRIVATE_HEADERS = vectors("agent_messages.json", "PrivHeader")
PUBLIC_HEADERS = vectors("agent_messages.json", "PubHeader")
CLIENT_ENVELOPES = vectors("agent_messages.json", "ClientMsgEnvelope")
E2E_PARAMS = vectors("agent_messages.json", "e2eParams")
SIZES = vectors("agent_messages.json", "padded sizes")
GOLDEN = {vector["name"]: vector for vector in vectors("doc_golden.json")}


def agent_envelope(value: dict[str, Any]) -> AgentEnvelope:
    version = value["agentVersion"]
    match value["tag"]:
        case "C":
            e2e = None if value["e2eParams"] is None else build.e2e_params(value["e2eParams"])
            return Confirmation(version, e2e, bytes.fromhex(value["encConnInfo"]))
        case "M":
            return MessageEnvelope(version, bytes.fromhex(value["encAgentMessage"]))
        case "I":
            link = full_link_from_text(value["link"])
            assert isinstance(link, InvitationLink)
            return Invitation(version, link, bytes.fromhex(value["connInfo"]))
        case "R":
            return RatchetKey(version, build.e2e_params(value["e2eParams"]), bytes.fromhex(value["info"]))
    raise AssertionError(f"a vector of an unknown envelope {value['tag']}")


@pytest.mark.claim("CON-48")
@pytest.mark.parametrize("vector", ENVELOPES, ids=named)
def test_agent_envelopes(vector: dict[str, Any]) -> None:
    envelope = agent_envelope(vector["value"])
    data = bytes.fromhex(vector["bytes"])
    assert data[2:3].decode() == vector["value"]["tag"]
    assert encode(envelope, write_agent_envelope) == data
    assert decode_whole(data, read_agent_envelope) == envelope


@pytest.mark.claim("CON-48")
def test_unknown_agent_envelopes_are_rejected() -> None:
    """Every other discriminant, before the content of each known one. Decoding keeps no state."""
    assert {vector["value"]["tag"] for vector in ENVELOPES} == set("CMIR")
    for vector in ENVELOPES:
        data = bytes.fromhex(vector["bytes"])
        for tag in sorted(set(range(256)) - set(b"CMIR")):
            with pytest.raises(WireError):
                decode_whole(data[:2] + bytes([tag]) + data[3:], read_agent_envelope)
        assert decode_whole(data, read_agent_envelope) == agent_envelope(vector["value"])


@pytest.mark.parametrize("vector", ENVELOPE_BYTES, ids=named)
def test_bytes_of_agent_envelopes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    if "error" in vector["result"]:
        with pytest.raises(WireError):
            decode_whole(data, read_agent_envelope)
        return
    assert vector["result"] == {"ok": True}
    envelope = decode_whole(data, read_agent_envelope)
    assert encode(envelope, write_agent_envelope) == data


def test_in_parameters_without_a_kem_its_byte_belongs_to_the_info() -> None:
    vector = next(vector for vector in ENVELOPE_BYTES if "becomes part of info" in vector["name"])
    envelope = decode_whole(bytes.fromhex(vector["bytes"]), read_agent_envelope)
    assert isinstance(envelope, Confirmation)
    assert bytes(envelope.encrypted_info) == b"0x"


def test_a_ratchet_key_cannot_accept_a_kem() -> None:
    accepted = next(vector for vector in ENVELOPES if vector["name"] == "C v7 e2e v3 accepted")
    e2e = build.e2e_params(accepted["value"]["e2eParams"])
    assert isinstance(e2e.kem, KemAccepted)
    with pytest.raises(WireError):
        encode(RatchetKey(7, e2e, b"R"), write_agent_envelope)


def test_an_invitation_envelope_needs_a_full_invitation_link() -> None:
    good = next(vector for vector in ENVELOPES if vector["value"]["tag"] == "I")
    link = full_link_from_text(good["value"]["link"])
    contact = ContactLink(link.agent_versions, link.queues).text
    short = "https://a/i#AAAA/AAAA"
    for text in (contact.encode(), short.encode(), b"", b"\xff", good["value"]["link"].encode() + b" "):
        with pytest.raises(WireError):
            decode_whole(b"\0\7I" + len(text).to_bytes(2, "big") + text, read_agent_envelope)
    site = good["value"]["link"].replace("simplex:", "https://simplex.chat").encode()
    read_back = decode_whole(b"\0\7I" + len(site).to_bytes(2, "big") + site + b"info", read_agent_envelope)
    assert isinstance(link, InvitationLink)
    assert read_back == Invitation(7, link, b"info")


@pytest.mark.parametrize("vector", PRIVATE_HEADERS, ids=named)
def test_private_headers(vector: dict[str, Any]) -> None:
    sender_key = None if vector["value"] is None else build.key(vector["value"])
    data = bytes.fromhex(vector["bytes"])
    assert encode(sender_key, write_private_header) == data
    assert decode_whole(data, read_private_header) == sender_key


def test_other_private_headers() -> None:
    key = next(vector["bytes"] for vector in PRIVATE_HEADERS if vector["name"] == "Ed25519 key")
    for tag in sorted(set(range(256)) - set(b"K_")):
        for rest in (b"", bytes.fromhex(key)[1:]):
            with pytest.raises(WireError):
                decode_whole(bytes([tag]) + rest, read_client_message)
    with pytest.raises(WireError):
        decode_whole(b"K\x44" + Algorithm.X448.spki_prefix + bytes(56), read_client_message)


@pytest.mark.parametrize("vector", PUBLIC_HEADERS, ids=named)
def test_public_headers(vector: dict[str, Any]) -> None:
    value = vector["value"]
    dh_key = None if value["senderDh"] is None else build.key(value["senderDh"])
    header = PublicHeader(value["clientVersion"], dh_key)
    assert encode(header, write_public_header).hex() == vector["bytes"]
    assert decode_whole(bytes.fromhex(vector["bytes"]), read_public_header) == header


@pytest.mark.parametrize("vector", CLIENT_ENVELOPES, ids=named)
def test_client_envelopes(vector: dict[str, Any]) -> None:
    value = vector["value"]
    dh_key = None if value["senderDh"] is None else build.key(value["senderDh"]["public_spki"])
    header = PublicHeader(value["clientVersion"], dh_key)
    assert encode(header, write_public_header).hex() == vector["header_bytes"]
    assert header.box_size == value["paddedLen"]
    sender_key = decode_whole(bytes.fromhex(value["privHeader"]), read_private_header)
    message = ClientMessage(sender_key, bytes.fromhex(value["agentEnvelope"]))
    content = encode(message, write_client_message)
    assert content.hex() == value["clientMessage"]
    assert decode_whole(content, read_client_message) == message
    key, nonce = BoxKey(bytes.fromhex(value["secret"])), bytes.fromhex(value["nonce"])
    envelope = ClientEnvelope(header, nonce, key.seal_padded(nonce, content, header.box_size))
    data = encode(envelope, write_client_envelope)
    assert len(data) == vector["length"]
    assert same(data, vector["bytes"])
    read_back = decode_whole(data, read_client_envelope)
    assert read_back == envelope
    assert key.open_padded(read_back.nonce, read_back.box) == content


def test_client_envelopes_of_the_document() -> None:
    recipient = PrivateKey(Algorithm.X25519, bytes([7]) * 32)
    sender = PrivateKey(Algorithm.X25519, bytes([8]) * 32)
    secret = recipient.agree(sender.public)
    assert secret.hex() == GOLDEN["S of X25519(07, 08)"]["bytes"]
    inner = encode(MessageEnvelope(7, b"X" * 10), write_agent_envelope)
    content = encode(ClientMessage(None, inner), write_client_message)
    for dh_key, name in ((None, "without"), (sender.public, "with")):
        header = PublicHeader(4, dh_key)
        box = BoxKey(secret).seal_padded(bytes(24), content, header.box_size)
        data = encode(ClientEnvelope(header, bytes(24), box), write_client_envelope)
        golden = GOLDEN[f"client envelope {name} key"]
        assert len(data) == golden["length"]
        assert hashlib.sha256(data).hexdigest() == golden["sha256"]


def test_nonces_have_24_bytes() -> None:
    for size in (0, 23, 25):
        with pytest.raises(WireError):
            encode(ClientEnvelope(PublicHeader(4), bytes(size), b""), write_client_envelope)


@pytest.mark.parametrize("vector", E2E_PARAMS, ids=named)
def test_end_to_end_parameters(vector: dict[str, Any]) -> None:
    params: E2EParams = build.e2e_params(vector["value"])
    data = bytes.fromhex(vector["bytes"])
    assert encode(params, write_e2e_params) == data
    assert decode_whole(data, read_e2e_params) == params


@pytest.mark.parametrize("vector", SIZES, ids=named)
def test_padded_sizes(vector: dict[str, Any]) -> None:
    version, pq = vector["name"].removeprefix("agent v").split(", pq ")
    sizes = padded_sizes(int(version), {"True": True, "False": False}[pq])
    assert (sizes.conn_info, sizes.message) == (vector["connInfo"], vector["agentMsg"])


def test_what_fits_into_padded_content() -> None:
    assert [padded_sizes(version, True).message for version in range(2, 8)] == [15840] * 3 + [13618] * 3
    assert padded_sizes(7, False).body_max == 15795
    assert padded_sizes(7, True).body_max == 13573
    assert padded_sizes(7, True).message_max == 13616
    assert padded_sizes(7, True).conn_info_max == 11104


@given(some.public_headers)
def test_public_headers_round_trip(value: PublicHeader) -> None:
    assert decode_whole(encode(value, write_public_header), read_public_header) == value


@given(some.client_envelopes)
def test_client_envelopes_round_trip(value: ClientEnvelope) -> None:
    assert decode_whole(encode(value, write_client_envelope), read_client_envelope) == value


@given(some.client_messages)
def test_client_messages_round_trip(value: ClientMessage) -> None:
    assert decode_whole(encode(value, write_client_message), read_client_message) == value


@given(some.agent_envelopes)
def test_agent_envelopes_round_trip(value: AgentEnvelope) -> None:
    assert decode_whole(encode(value, write_agent_envelope), read_agent_envelope) == value


def read_envelope(data: bytes) -> object:
    return decode_whole(data, read_agent_envelope)


@pytest.mark.parametrize("vector", [*ENVELOPES, *ENVELOPE_BYTES], ids=named)
def test_envelopes_cut_and_changed(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    truncated_everywhere(read_envelope, data)
    changed_everywhere(read_envelope, data, vector["name"])


@pytest.mark.parametrize("vector", CLIENT_ENVELOPES, ids=named)
def test_client_layers_cut_and_changed(vector: dict[str, Any]) -> None:
    header = bytes.fromhex(vector["header_bytes"])
    whole = header + bytes(24)
    assert truncated_everywhere(lambda cut: decode_whole(cut, read_client_envelope), whole) == 0
    changed_everywhere(lambda changed: decode_whole(changed, read_client_envelope), whole, vector["name"])
    private = bytes.fromhex(vector["value"]["privHeader"])
    assert truncated_everywhere(lambda cut: decode_whole(cut, read_client_message), private) == 0
    changed_everywhere(lambda changed: decode_whole(changed, read_client_message), private, vector["name"])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_layer_or_a_wire_error(data: bytes) -> None:
    for read in (read_client_envelope, read_client_message, read_agent_envelope):
        survives(partial(decode_whole, item=read), data)


def test_bodies_are_not_copied() -> None:
    """Decoding a full envelope takes almost no memory: the body stays in its buffer."""
    body = bytes(16000)
    for read, data in (
        (read_client_envelope, b"\0\x040" + bytes(24) + body),
        (read_client_message, b"_" + body),
        (read_agent_envelope, b"\0\7M" + body),
    ):
        assert memory_peak(partial(decode_whole, item=read), data) < 4000


def test_cost_of_a_long_invitation_is_linear() -> None:
    def data(count: int) -> bytes:
        text = b"simplex:/invitation#/?v=2&smp=" + b"%3B" * count
        return b"\0\7I" + len(text).to_bytes(2, "big") + text

    assert calls_made(read_envelope, data(20_000)) <= 2.2 * calls_made(read_envelope, data(10_000)) + 100
    assert memory_peak(read_envelope, data(20_000)) < 100 * len(data(20_000))
