"""Whole transmissions and payloads: layout, what is authorized, and the answers to bad ones."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import pytest

from blindpost.crypto.authorizers import NoRouterKeyError, authorize, with_fingerprint
from blindpost.crypto.boxes import BoxKey, nonce_of, reversed_nonce
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.batch import (
    SMP_BATCH_LIMIT,
    SMP_BLOCK_SIZE,
    batch_of_one,
    pack,
    padded,
)
from blindpost.wire.errors import WireError
from blindpost.wire.padding import pad
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.smp.commands import LGET, PFWD, PING, RFWD, SEND, SUB, Command, read_command
from blindpost.wire.smp.errors import PROHIBITED, Code, RefusedError
from blindpost.wire.smp.messages import (
    ForwardedResponse,
    ForwardedTransmission,
    read_forwarded_response,
    read_forwarded_transmission,
    write_forwarded_response,
    write_forwarded_transmission,
)
from blindpost.wire.smp.responses import END, NMSG, OK, PRES, RRES, read_response
from blindpost.wire.smp.transmissions import (
    Received,
    Request,
    parse_forwarded_request,
    parse_requests,
    parse_responses,
)
from blindpost.wire.smp.versions import (
    FORWARDED_PADDED_SIZE,
    body_size_max,
    connection_layout,
    forwarded_layout,
)
from blindpost.wire.transmission import authorized_bytes, transmission_of
from blindpost.wire.transmissions import BAD_BLOCK, Refused, response_transmission, signed_request
from tests.support.wire.blocks import payload_reader
from tests.support.wire.hostile import calls_made, changed_everywhere, memory_peak, truncated_everywhere
from tests.support.wire.long_values import ramp, same, whole
from tests.support.wire.smp_keys import private_key, verified
from tests.support.wire.smp_values import command_of, error_of_text, response_of
from tests.support.wire.vectors import named, vector_file, vectors

FILE = "transmissions.json"
KEYS = vector_file(FILE)["keys"]
ROUTER = private_key(KEYS["router_session_key"])
SERVICE = private_key(KEYS["service_session_key"])
FINGERPRINT = bytes.fromhex(KEYS["service_certFingerprint"])
SESSION = ramp(0, 32)
KINDS = {"transmission", "response", "batch", "router_parse", "client_parse", "proxy", "pfwd_budget"}


def queue_key(vector: dict[str, Any]) -> PrivateKey | None:
    name = vector["queue_key"]
    if name == "none":
        return None
    return SERVICE if name == "service session key" else private_key(KEYS[name])


def test_no_kind_of_vector_is_left_out() -> None:
    assert {vector["kind"] for vector in vectors(FILE)} == KINDS


@pytest.mark.parametrize("vector", vectors(FILE, "transmission"), ids=named)
def test_transmission(vector: dict[str, Any]) -> None:
    version, session_id = vector["version"], bytes.fromhex(vector["sessionId"])
    layout = connection_layout(version, session_id)
    corr_id, entity_id = bytes.fromhex(vector["corrId"]), bytes.fromhex(vector["entityId"])
    command = read_command(Reader(bytes.fromhex(vector["command"])), version)
    signed = signed_request(corr_id, entity_id, command, version)
    authorized = authorized_bytes(layout, signed)
    assert authorized.hex() == vector["authorized"]

    key, router_key = queue_key(vector), ROUTER.public if version >= 7 else None
    if vector.get("error") == "TENoServerAuth":
        assert key is not None
        with pytest.raises(NoRouterKeyError):
            authorize(key, authorized, corr_id, router_key)
        return
    dual = vector.get("serviceSignature") is not None
    service_signature = None
    authorization = b""
    if key is not None and dual:
        authorization = authorize(key, with_fingerprint(FINGERPRINT, authorized), corr_id, router_key)
        service_signature = SERVICE.sign(authorized)
        assert service_signature.hex() == vector["serviceSignature"]
    elif key is not None:
        authorization = authorize(key, authorized, corr_id, router_key)
    assert authorization.hex() == (vector["authorization"] or "")

    transmission = transmission_of(layout, signed, authorization, service_signature)
    assert transmission.done().hex() == vector["bytes"]
    assert transmission.size == len(vector["bytes"]) // 2
    payload = batch_of_one(transmission).done()
    if "batch_of_one" in vector:
        assert payload.hex() == vector["batch_of_one"]

    (request,) = parse_requests(Reader(payload), layout, version)
    assert isinstance(request, Request)
    assert (request.corr_id, request.entity_id, request.command) == (corr_id, entity_id, command)
    assert (request.authorization, request.service_signature) == (authorization, service_signature)
    assert request.authorized(layout) == authorized
    if key is not None:
        covered = with_fingerprint(FINGERPRINT, authorized) if dual else authorized
        assert verified(key.public, authorization, covered, corr_id, ROUTER)
        assert not verified(key.public, authorization, covered + b" ", corr_id, ROUTER)
    truncated_everywhere(lambda data: parse_requests(Reader(data), layout, version), payload)
    changed_everywhere(lambda data: parse_requests(Reader(data), layout, version), payload, vector["name"])


@pytest.mark.parametrize("vector", vectors(FILE, "response"), ids=named)
def test_response(vector: dict[str, Any]) -> None:
    version = vector["version"]
    layout = connection_layout(version, bytes.fromhex(vector["sessionId"]))
    corr_id, entity_id = bytes.fromhex(vector["corrId"]), bytes.fromhex(vector["entityId"])
    response = read_response(Reader(bytes.fromhex(vector["command"])), version)
    transmission = response_transmission(layout, version, corr_id, entity_id, response)
    assert transmission.done().hex() == vector["bytes"]
    payload = batch_of_one(transmission).done()
    assert payload.hex() == vector["batch_of_one"]
    assert parse_responses(Reader(payload), layout, version) == [Received(corr_id, entity_id, response)]
    truncated_everywhere(lambda data: parse_responses(Reader(data), layout, version), payload)
    changed_everywhere(lambda data: parse_responses(Reader(data), layout, version), payload, vector["name"])


def batch_item(vector: dict[str, Any], index: int) -> Writer:
    """Item `index` by the rule that batch vectors state."""
    version, words = vector["version"], vector["name"].split()
    layout = connection_layout(version, SESSION)
    entity_id = ramp(index + 7, 24)
    if "END" in words:
        return response_transmission(layout, version, b"", entity_id, END())
    corr_id = ramp(index, 24)
    if "SUB" in words:
        signed = signed_request(corr_id, entity_id, SUB(), version)
        key = private_key(KEYS[words[words.index("SUB") + 1]])
        authorized = authorized_bytes(layout, signed)
        return transmission_of(layout, signed, authorize(key, authorized, corr_id, ROUTER.public))
    body = b"a" * int(words[words.index("SEND") + 1])
    return transmission_of(layout, signed_request(corr_id, entity_id, SEND(False, body), version))


@pytest.mark.parametrize("vector", vectors(FILE, "batch"), ids=named)
def test_batch(vector: dict[str, Any]) -> None:
    items = [batch_item(vector, index) for index in range(vector["count"])]
    assert same(items[0].done(), vector["first_item"])
    packed = pack(items, SMP_BATCH_LIMIT)
    if vector["blocks"] == [{"error": "LARGE_MSG"}]:
        assert packed.payloads == ()
        assert packed.oversize == (0,)
        return
    assert packed.oversize == ()
    for payload, block in zip(packed.payloads, vector["blocks"], strict=True):
        content = payload.done()
        assert content[0] == block["count"]
        assert len(content) == payload.size == block["payload_length"]
        assert content.hex().startswith(block["payload_prefix"])
        assert hashlib.sha256(content).hexdigest() == block["payload_sha256"]
        plain = padded(payload, SMP_BLOCK_SIZE)
        assert hashlib.sha256(plain).hexdigest() == block["plain_block_sha256"]
        assert payload_reader(plain).rest() == content


@pytest.mark.parametrize("vector", vectors(FILE, "router_parse"), ids=named)
def test_router_parse(vector: dict[str, Any]) -> None:
    layout = connection_layout(vector["version"], bytes.fromhex(vector["sessionId"]))
    payload = bytes.fromhex(vector["payload"])
    results = parse_requests(Reader(payload), layout, vector["version"])
    for result, expected in zip(results, vector["results"], strict=True):
        assert result.corr_id.hex() == expected["corrId"]
        assert result.entity_id.hex() == expected["entityId"]
        if "error" in expected:
            assert isinstance(result, Refused)
            assert result.error == error_of_text(expected["error"])
        else:
            assert isinstance(result, Request)
            assert result.command == command_of(expected["command"])
            assert result.authorization.hex() == (expected["authorization"] or "")
            assert result.authorized(layout).hex() == expected["authorized"]
            signature = result.service_signature
            assert (None if signature is None else signature.hex()) == expected["serviceSignature"]
    truncated_everywhere(lambda data: parse_requests(Reader(data), layout, vector["version"]), payload)
    changed_everywhere(
        lambda data: parse_requests(Reader(data), layout, vector["version"]), payload, vector["name"]
    )


@pytest.mark.parametrize("vector", vectors(FILE, "client_parse"), ids=named)
def test_client_parse(vector: dict[str, Any]) -> None:
    layout = connection_layout(vector["version"], bytes.fromhex(vector["sessionId"]))
    payload = bytes.fromhex(vector["payload"])
    results = parse_responses(Reader(payload), layout, vector["version"])
    for result, expected in zip(results, vector["results"], strict=True):
        assert result.corr_id.hex() == expected["corrId"]
        assert result.entity_id.hex() == expected["entityId"]
        if "error" in expected:
            assert isinstance(result, Refused)
            assert result.error == error_of_text(expected["error"])
        else:
            assert isinstance(result, Received)
            assert result.response == response_of(expected["message"])


@pytest.mark.parametrize("vector", vectors(FILE, "proxy"), ids=named)
def test_proxy(vector: dict[str, Any]) -> None:
    """A command through a proxy and its response, each layer against the reference's bytes."""
    version, session_id = vector["version"], bytes.fromhex(vector["relaySessionId"])
    n = bytes.fromhex(vector["n (corrId of PFWD and of the inner transmission)"])
    m = bytes.fromhex(vector["m (corrId of RFWD)"])
    entity_id = bytes.fromhex(vector["entityId"])
    command_key, relay_key = private_key(vector["command_key"]), private_key(vector["relay_session_key"])
    proxy_key = private_key(vector["proxy_client_key"])
    client_box = BoxKey.agreed(command_key, relay_key.public)
    proxy_box = BoxKey.agreed(proxy_key, relay_key.public)
    layout = forwarded_layout(version, session_id)

    command = decode_whole(whole(vector["inner_command"]), partial(read_command, version=version))
    signed = signed_request(n, entity_id, command, version)
    authorized = authorized_bytes(layout, signed)
    assert same(authorized, vector["authorized"])
    key = queue_key(vector)
    authorization = b"" if key is None else authorize(key, authorized, n, relay_key.public)
    batch = batch_of_one(transmission_of(layout, signed, authorization))
    assert same(batch.done(), vector["inner_batch"])
    enc_transmission = client_box.seal_parts(n, batch.parts, batch.size, FORWARDED_PADDED_SIZE)
    assert same(enc_transmission, vector["encTransmission"])
    pfwd = PFWD(version, command_key.public, enc_transmission)
    assert same(encode(pfwd, lambda writer, item: item.write(writer, 20)), vector["PFWD"])

    forwarded = ForwardedTransmission(n, version, command_key.public, enc_transmission)
    plain = encode(forwarded, write_forwarded_transmission)
    assert same(plain, vector["forward_plaintext"])
    assert decode_whole(plain, read_forwarded_transmission) == forwarded
    enc_forward = proxy_box.seal(m, plain)
    assert same(enc_forward, vector["encForward"])
    assert same(encode(RFWD(enc_forward), lambda writer, item: item.write(writer, 20)), vector["RFWD"])

    inner = client_box.open_padded(n, enc_transmission)
    request = parse_forwarded_request(Reader(inner), version, session_id)
    assert isinstance(request, Request)
    assert request.command == command
    assert key is None or verified(key.public, authorization, request.authorized(layout), n, relay_key)

    response = read_response(Reader(bytes.fromhex(vector["response_command"])), version)
    answer = batch_of_one(response_transmission(layout, version, n, entity_id, response))
    assert answer.done().hex() == vector["response_batch"]
    enc_response = client_box.seal_parts(reversed_nonce(n), answer.parts, answer.size, FORWARDED_PADDED_SIZE)
    assert same(enc_response, vector["encResponse"])
    back = ForwardedResponse(n, enc_response)
    back_plain = encode(back, write_forwarded_response)
    assert same(back_plain, vector["forward_response_plaintext"])
    assert decode_whole(back_plain, read_forwarded_response) == back
    assert same(proxy_box.seal(reversed_nonce(nonce_of(m)), back_plain), vector["encForwardResponse"])


@pytest.mark.parametrize("vector", vectors(FILE, "pfwd_budget"), ids=named)
def test_pfwd_budget(vector: dict[str, Any]) -> None:
    version = vector["version"]
    layout = forwarded_layout(version, SESSION)
    key = private_key(KEYS[vector["queue_key"]])
    signed = signed_request(ramp(0, 24), ramp(7, 24), SEND(False, bytes(vector["body_length"])), version)
    authorization = authorize(key, authorized_bytes(layout, signed), ramp(0, 24), ROUTER.public)
    batch = batch_of_one(transmission_of(layout, signed, authorization))
    assert batch.size == vector["inner_batch_length"]
    if vector["result"] == "fits":
        assert len(padded(batch, vector["padded_to"])) == FORWARDED_PADDED_SIZE
    else:
        assert vector["result"] == "CryptoLargeMsgError"
        with pytest.raises(WireError):
            padded(batch, vector["padded_to"])


def test_largest_bodies() -> None:
    limits = {version: body_size_max(version) for version in (5, 6, 7, 8, 10, 11, 20, 21)}
    assert limits == {5: 16088, 6: 16088, 7: 16088, 8: 16064, 10: 16064, 11: 16048, 20: 16048, 21: 16048}


@pytest.mark.parametrize(("version", "algorithm", "count"), [(6, "Ed25519", 106), (15, "Ed25519", 136)])
def test_capacity_of_sub_before_services(version: int, algorithm: str, count: int) -> None:
    assert capacity(subscription(version, algorithm)) == count


@pytest.mark.parametrize("version", range(16, 21))
def test_capacities_from_version_16(version: int) -> None:
    layout = connection_layout(version, SESSION)
    assert capacity(subscription(version, "Ed25519")) == 135
    assert capacity(response_transmission(layout, version, b"", bytes(24), END())) == 255
    notification = NMSG(bytes(24), bytes(144))
    assert capacity(response_transmission(layout, version, b"", bytes(24), notification)) == 80


def subscription(version: int, algorithm: str) -> Writer:
    size = {"Ed25519": 64}[algorithm]
    signed = signed_request(bytes(24), bytes(24), SUB(), version)
    return transmission_of(connection_layout(version, SESSION), signed, bytes(size))


def capacity(item: Writer) -> int:
    (full,) = pack([item] * 255, SMP_BATCH_LIMIT).payloads[-1:]
    return full.done()[0]


@pytest.mark.parametrize("version", [5, 6, 7, 16, 20, 21, 65535])
def test_forwarded_session_is_implied_at_every_version(version: int) -> None:
    signed = signed_request(bytes(24), bytes(24), SEND(True, b"body"), version)
    layout = forwarded_layout(version, SESSION)
    payload = batch_of_one(transmission_of(layout, signed, bytes(64))).done()
    assert SESSION not in payload
    request = parse_forwarded_request(Reader(payload), version, SESSION)
    assert isinstance(request, Request)
    assert request.command == SEND(True, b"body")
    assert (payload[68:69] == b"0") is (version >= 16)


def test_forwarded_batch_of_two_is_refused_in_the_answer_to_the_proxy() -> None:
    signed = signed_request(bytes(24), bytes(24), SEND(True, b"body"), 20)
    item = transmission_of(forwarded_layout(20, SESSION), signed)
    (two,) = pack([item, item], SMP_BATCH_LIMIT).payloads
    with pytest.raises(RefusedError) as refused:
        parse_forwarded_request(Reader(two.done()), 20, SESSION)
    assert refused.value.error is Code.BLOCK


def test_unreadable_forwarded_batch_is_refused_in_the_answer_to_the_client() -> None:
    assert parse_forwarded_request(Reader(b"\0"), 20, SESSION) is BAD_BLOCK
    assert Refused(b"", b"", Code.BLOCK) == BAD_BLOCK


@pytest.mark.parametrize(
    ("command", "entity_id", "allowed"), [(PING(), b"", False), (LGET(), bytes(24), True)]
)
def test_only_some_commands_are_forwarded(command: Command, entity_id: bytes, allowed: bool) -> None:
    signed = signed_request(ramp(0, 24), entity_id, command, 20)
    payload = batch_of_one(transmission_of(forwarded_layout(20, SESSION), signed)).done()
    result = parse_forwarded_request(Reader(payload), 20, SESSION)
    if allowed:
        assert isinstance(result, Request)
    else:
        assert result == Refused(ramp(0, 24), entity_id, PROHIBITED)


def test_client_refuses_another_session_at_version_6() -> None:
    foreign = connection_layout(6, ramp(1, 32))
    payload = batch_of_one(response_transmission(foreign, 6, ramp(0, 24), bytes(24), OK())).done()
    results = parse_responses(Reader(payload), connection_layout(6, SESSION), 6)
    assert results == [Refused(ramp(0, 24), b"", Code.SESSION)]


def test_client_does_not_judge_authorizations() -> None:
    """A router sends none; one of an odd length is ignored, as peers do."""
    layout = connection_layout(15, SESSION)
    signed = Writer().raw(b"\0\x01eOK")
    payload = batch_of_one(transmission_of(layout, signed, b"strange")).done()
    assert parse_responses(Reader(payload), layout, 15) == [Received(b"", b"e", OK())]


def test_service_signature_needs_its_field() -> None:
    signed = signed_request(bytes(24), bytes(24), SUB(), 15)
    with pytest.raises(WireError):
        transmission_of(connection_layout(15, SESSION), signed, bytes(64), bytes(64))
    with pytest.raises(WireError):
        transmission_of(connection_layout(16, SESSION), signed, b"", bytes(64))


@pytest.mark.parametrize("response", [PRES(b"body"), RRES(b"body")])
def test_bodies_of_responses_are_views(response: PRES | RRES) -> None:
    layout = connection_layout(20, SESSION)
    entity_id = b"" if isinstance(response, RRES) else b"e"
    data = batch_of_one(response_transmission(layout, 20, b"c", entity_id, response)).done()
    (received,) = parse_responses(Reader(data), layout, 20)
    assert isinstance(received, Received)
    body = received.response
    assert isinstance(body, PRES | RRES)
    view = body.enc_response if isinstance(body, PRES) else body.enc_forward_response
    assert isinstance(view, memoryview)
    assert view.obj is data


def test_a_body_is_not_copied_in_transit() -> None:
    layout = connection_layout(20, SESSION)
    body = bytes(16000)
    item = transmission_of(layout, signed_request(bytes(24), bytes(24), SEND(False, body), 20))
    assert any(part is body for part in item.parts)
    (payload,) = pack([item], SMP_BATCH_LIMIT).payloads
    assert any(part is body for part in payload.parts)
    block = padded(payload, SMP_BLOCK_SIZE)
    (request,) = parse_requests(payload_reader(block), layout, 20)
    assert isinstance(request, Request)
    assert isinstance(request.command, SEND)
    assert isinstance(request.command.body, memoryview)
    assert request.command.body.obj is block
    assert memory_peak(lambda data: parse_requests(payload_reader(data), layout, 20), block) < 4096


def worst_payloads(size: int) -> list[bytes]:
    """Payloads of `size` bytes that are expensive to parse: many items, many bad ones, one long one."""
    head = b"\0\0\x01e"
    longest = (size - 3).to_bytes(2, "big")
    return [
        bytes((min(255, (size - 1) // 2),)) + b"\0\0" * min(255, (size - 1) // 2),
        b"\xff" + b"\0\x01\0" * ((size - 1) // 3),
        b"\x01" + longest + head + b"ERR " + b"PROXY PROTOCOL " * ((size - 11) // 15),
        b"\x01" + longest + head + b"SEND T" + b"x" * (size - 13),
        b"\x01" + longest + head + b"RSLV " + b"a." * ((size - 12) // 2),
        b"\x01" + longest + head + b"RKEY \xff" + b"\x2c" * (size - 13),
    ]


@pytest.mark.parametrize("index", range(6))
def test_cost_of_hostile_payloads_is_linear_and_bounded(index: int) -> None:
    layout = connection_layout(20, SESSION)

    def parse(data: bytes) -> object:
        return parse_requests(Reader(data), layout, 20), parse_responses(Reader(data), layout, 20)

    small, large = worst_payloads(2048)[index], worst_payloads(16382)[index]
    assert calls_made(parse, large) <= 8 * calls_made(parse, small) + 8 * 255 * 20
    assert memory_peak(parse, large) < 400_000


def test_padded_payload_must_fit() -> None:
    with pytest.raises(WireError):
        padded(Writer().raw(bytes(16383)), SMP_BLOCK_SIZE)
    assert padded(Writer().raw(b"hello"), 16) == pad(b"hello", 16)
