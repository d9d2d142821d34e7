"""Every vector of `ntf.json`: read, rewritten, refused where the reference refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blindpost.crypto.authorizers import NoRouterKeyError, authorize
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.batch import padded
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.commands import SCHK, SNEW, Command, read_command
from blindpost.wire.ntf.handshake import (
    read_client_hello,
    read_server_hello,
    write_client_hello,
    write_server_hello,
)
from blindpost.wire.ntf.pushes import (
    PADDED_SIZE,
    CheckPush,
    MessagePush,
    PushItem,
    VerificationPush,
    decode_apns_body,
    decode_items,
    encode_apns_body,
    encode_items,
)
from blindpost.wire.ntf.responses import OK, TKN, Response, read_response
from blindpost.wire.ntf.status import SubStatus, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.ntf.transmissions import Received, Request, parse_requests, parse_responses
from blindpost.wire.ntf.versions import NTF_VERSIONS, connection_layout, offered_versions
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.queue_addresses import with_onion_host
from blindpost.wire.smp.errors import RefusedError
from blindpost.wire.transmission import authorized_bytes, transmission_of
from blindpost.wire.transmissions import response_transmission, signed_request
from blindpost.wire.versions import VersionRange
from tests.support.wire.blocks import payload_reader
from tests.support.wire.long_values import ramp, same
from tests.support.wire.ntf_values import command_of, error_of, response_of, server_of, token_of
from tests.support.wire.vectors import named, vectors

FILE = "ntf.json"


def with_versions(kind: str) -> list[Any]:
    return [
        pytest.param(entry, version, id=f"{entry['name']} v{version}")
        for entry in vectors(FILE, kind)
        for version in entry["versions"]
    ]


def written(item: Command | Response, version: int) -> bytes:
    writer = Writer()
    item.write(writer, version)
    return writer.done()


@pytest.mark.parametrize(("entry", "version"), with_versions("command"))
def test_commands(entry: dict[str, Any], version: int) -> None:
    data = bytes.fromhex(entry["bytes"])
    command = command_of(entry.get("encoded_from", entry["value"]))
    assert written(command, version) == data
    assert read_command(Reader(data), version) == command
    if isinstance(command, SNEW):
        assert with_onion_host(command.server) == server_of(entry["value"])
    else:
        assert "encoded_from" not in entry


@pytest.mark.parametrize(("entry", "version"), with_versions("response"))
def test_responses(entry: dict[str, Any], version: int) -> None:
    data = bytes.fromhex(entry["bytes"])
    assert written(response_of(entry.get("encoded_from", entry["value"])), version) == data
    read = read_response(Reader(data), version)
    assert read == response_of(entry["value"])
    assert written(read, version) == data
    if "encoded_from" in entry:
        assert isinstance(read, TKN)
        assert version < 3


@pytest.mark.parametrize(("entry", "version"), with_versions("command_parse"))
def test_refused_commands(entry: dict[str, Any], version: int) -> None:
    reader, result = Reader(bytes.fromhex(entry["bytes"])), entry["result"]
    if "error" not in result:
        assert read_command(reader, version) == command_of(result)
        return
    with pytest.raises(RefusedError) as refused:
        read_command(reader, version)
    assert refused.value.error == error_of(result["error"])


@pytest.mark.parametrize(("entry", "version"), with_versions("response_parse"))
def test_refused_responses(entry: dict[str, Any], version: int) -> None:
    reader, result = Reader(bytes.fromhex(entry["bytes"])), entry["result"]
    if "error" not in result:
        assert read_response(reader, version) == response_of(result)
        return
    with pytest.raises(RefusedError) as refused:
        read_response(reader, version)
    assert refused.value.error == error_of(result["error"])


@pytest.mark.parametrize("entry", vectors(FILE, "device_token_text"), ids=named)
def test_device_token_text(entry: dict[str, Any]) -> None:
    if "error" in entry["result"]:
        with pytest.raises(WireError):
            DeviceToken.from_text(entry["text"])
        return
    token = DeviceToken.from_text(entry["text"])
    assert token == token_of(entry["result"])
    assert token.text == entry["text"]


CLIENT_KEYS = {
    "Ed25519": PrivateKey(Algorithm.ED25519, ramp(0, 32)),
    "Ed448": PrivateKey(Algorithm.ED448, ramp(0, 57)),
    "X25519": PrivateKey(Algorithm.X25519, ramp(0x60, 32)),
}


def authorization_of(entry: dict[str, Any], authorized: bytes) -> bytes:
    if entry["key"] == "none":
        return b""
    session_key = PrivateKey(Algorithm.X25519, bytes.fromhex(entry["router_session_key"]["private"]))
    router_key = session_key.public if entry["version"] > 1 else None
    return authorize(CLIENT_KEYS[entry["key"]], authorized, bytes.fromhex(entry["corrId"]), router_key)


@pytest.mark.parametrize("entry", vectors(FILE, "transmission"), ids=named)
def test_transmissions(entry: dict[str, Any]) -> None:
    version, corr_id = entry["version"], bytes.fromhex(entry["corrId"])
    layout = connection_layout(version, bytes.fromhex(entry["sessionId"]))
    command = read_command(Reader(bytes.fromhex(entry["command"])), version)
    signed = signed_request(corr_id, bytes.fromhex(entry["entityId"]), command, version)
    authorized = authorized_bytes(layout, signed)
    assert authorized.hex() == entry["authorized"]
    if "error" in entry:
        assert entry["error"] == "NO_AUTH"
        with pytest.raises(NoRouterKeyError):
            authorization_of(entry, authorized)
        return
    authorization = authorization_of(entry, authorized)
    transmission = transmission_of(layout, signed, authorization)
    assert transmission.done().hex() == entry["bytes"]
    packed = pack_transmissions([transmission], version)
    assert [payload.done().hex() for payload in packed.payloads] == [entry["payload"]]
    block = padded(packed.payloads[0], 512)
    assert block.hex() == entry["block"]
    (request,) = parse_requests(payload_reader(block), layout, version)
    assert isinstance(request, Request)
    assert (request.corr_id, request.entity_id) == (corr_id, bytes.fromhex(entry["entityId"]))
    assert (request.command, request.authorization) == (command, authorization)
    assert request.authorized(layout) == authorized


SESSION_ID = ramp(0, 32)


def schk_transmission(number: int, version: int) -> Writer:
    layout = connection_layout(version, SESSION_ID)
    signed = signed_request(ramp(number, 24), ramp(number + 7, 24), SCHK(), version)
    authorization = CLIENT_KEYS["Ed25519"].sign(authorized_bytes(layout, signed))
    return transmission_of(layout, signed, authorization)


def ok_transmission(number: int, version: int) -> Writer:
    layout = connection_layout(version, SESSION_ID)
    return response_transmission(layout, version, ramp(number, 24), ramp(number + 7, 24), OK())


@pytest.mark.parametrize("entry", vectors(FILE, "batch"), ids=named)
def test_batches(entry: dict[str, Any]) -> None:
    version = entry["version"]
    _, tag, _, count = entry["name"].split()
    make = {"SCHK": schk_transmission, "OK": ok_transmission}[tag]
    packed = pack_transmissions([make(number, version) for number in range(int(count))], version)
    assert not packed.oversize
    payloads = [payload.done() for payload in packed.payloads]
    expected = [bytes.fromhex(item["payload"]) for item in entry["payloads"]]
    if version == 1:
        assert len(payloads) == int(count)
        assert payloads[: len(expected)] == expected
    else:
        assert payloads == expected
    for payload, item in zip(payloads, entry["payloads"], strict=False):
        layout = connection_layout(version, SESSION_ID)
        parse = parse_requests if tag == "SCHK" else parse_responses
        found = parse(Reader(payload), layout, version)
        assert len(found) == item.get("count", 1)
        assert all(isinstance(part, Request | Received) for part in found)


@pytest.mark.parametrize("entry", vectors(FILE, "token_status"), ids=named)
def test_token_statuses(entry: dict[str, Any]) -> None:
    status = TokenStatus.from_text(entry["name"])
    assert status.text == entry["name"]
    assert status.text.encode().hex() == entry["bytes"]
    assert status.verification_allowed is entry["verification_allowed"]
    assert status.subscription_commands_allowed is entry["subscription_commands_allowed"]


@pytest.mark.parametrize("entry", vectors(FILE, "sub_status"), ids=named)
def test_sub_statuses(entry: dict[str, Any]) -> None:
    status = SubStatus.from_encoded(entry["name"].encode())
    assert status.encoded.hex() == entry["bytes"]
    assert status.counted is entry["counted (subscribed at start)"]


def item_of(value: dict[str, Any]) -> PushItem:
    return PushItem(
        RouterAddress.from_text(value["server"]).server,
        bytes.fromhex(value["notifierId"]),
        value["time"],
        bytes.fromhex(value["nonce"]),
        bytes.fromhex(value["encNMsgMeta"]),
    )


@pytest.mark.parametrize("entry", vectors(FILE, "pn_message"), ids=named)
def test_push_items(entry: dict[str, Any]) -> None:
    items = tuple(map(item_of, entry["value"]))
    assert encode_items(items) == entry["text"].encode()
    assert decode_items(entry["text"].encode()) == items


@pytest.mark.parametrize("entry", vectors(FILE, "pn_parse"), ids=named)
def test_push_items_read(entry: dict[str, Any]) -> None:
    text = entry["text"].encode()
    if isinstance(entry["result"], dict):
        assert entry["result"]["error"]
        with pytest.raises(WireError):
            decode_items(text)
        return
    items = decode_items(text)
    expected = [item_of(value) for value in entry["result"]]
    assert [replace(item, server=with_onion_host(item.server)) for item in items] == expected
    assert encode_items(items) == text


@pytest.mark.parametrize("entry", vectors(FILE, "push"), ids=named)
def test_pushes(entry: dict[str, Any]) -> None:
    device = PrivateKey(Algorithm.X25519, bytes.fromhex(entry["device_private"]["private"]))
    router = PrivateKey(Algorithm.X25519, bytes.fromhex(entry["router_private"]["private"]))
    secret = device.agree(router.public)
    assert secret.hex() == entry["tokenSecret"]
    if entry["plaintext"] is None:
        body = encode_apns_body(CheckPush())
        assert body == entry["json"].encode()
        assert decode_apns_body(body) == CheckPush()
        return
    nonce, plaintext = bytes.fromhex(entry["nonce"]), bytes.fromhex(entry["plaintext"])
    ciphertext = bytes(BoxKey(secret).seal_padded(nonce, plaintext, PADDED_SIZE))
    assert same(ciphertext, entry["ciphertext"])
    kind = {"verification": VerificationPush}.get(entry["name"], MessagePush)
    body = encode_apns_body(kind(nonce, ciphertext))
    assert same(body, entry["json"])
    assert len(body) == entry["json_length"]
    received = decode_apns_body(body)
    assert received == kind(nonce, ciphertext)
    opened = bytes(BoxKey(secret).open_padded(nonce, ciphertext))
    assert opened == plaintext
    if kind is MessagePush:
        assert encode_items(decode_items(opened)) == plaintext


def router_offer(entry: dict[str, Any]) -> VersionRange:
    alpn = None if entry["alpn"] is None else entry["alpn"].encode()
    return offered_versions(VersionRange(*entry["router_range"]), alpn)


@pytest.mark.parametrize("entry", vectors(FILE, "handshake"), ids=named)
def test_handshakes(entry: dict[str, Any]) -> None:
    content = bytes.fromhex(entry["server_hello"])
    hello = decode_whole(content, read_server_hello)
    assert encode(hello, write_server_hello) == content
    assert entry["block_length"] == 512
    assert hello.versions == router_offer(entry)
    assert hello.session_id.hex() == entry["sessionId"]
    if hello.versions.high >= 2:
        assert hello.signed_key is not None
        leaf = PrivateKey.from_pkcs8(bytes.fromhex(entry["leaf_key"]["private_pkcs8"]))
        assert hello.signed_key.key.raw.hex() == entry["router_session_key"]["public"]
        assert hello.signed_key.signer is leaf.algorithm
        assert leaf.sign(hello.signed_key.signed) == hello.signed_key.signature
        assert verify(leaf.public, hello.signed_key.signed, hello.signed_key.signature)
        assert len(content) - 39 == {Algorithm.ED25519: 122, Algorithm.ED448: 173}[leaf.algorithm]
    else:
        assert hello.signed_key is None
    if entry["client_hello"] is None:
        assert entry["client_result"] == {"error": "SESSION"}
        return
    answer = bytes.fromhex(entry["client_hello"])
    client_hello = decode_whole(answer, read_client_hello)
    assert encode(client_hello, write_client_hello) == answer
    assert client_hello.version == NTF_VERSIONS.agreed(hello.versions) == entry["client_result"]["version"]
    layout = connection_layout(client_hello.version, hello.session_id)
    assert layout.session_sent is not entry["client_result"]["implySessId"]
    expected = client_hello.key_hash.hex() == entry["identity_fingerprint"]
    assert ("error" not in entry["router_result"]) is expected


def test_every_kind_has_its_test() -> None:
    known = {
        *("command", "response", "command_parse", "response_parse", "device_token_text", "transmission"),
        *("batch", "token_status", "sub_status", "pn_message", "pn_parse", "push", "handshake"),
    }
    assert {entry["kind"] for entry in vectors(FILE)} == known
