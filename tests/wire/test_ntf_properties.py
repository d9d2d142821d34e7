"""Generated values of the notification protocol round-trip; hostile bytes give a value or the one error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.wire.batch import padded
from blindpost.wire.errors import WireError
from blindpost.wire.json_text import JsonObject
from blindpost.wire.ntf.blocks import pack_transmissions, unpack_payload
from blindpost.wire.ntf.commands import PING, SNEW, TNEW, Command, read_command
from blindpost.wire.ntf.handshake import (
    ClientHello,
    ServerHello,
    read_client_hello,
    read_server_hello,
    write_client_hello,
    write_server_hello,
)
from blindpost.wire.ntf.pushes import (
    CheckPush,
    MessagePush,
    Push,
    PushItem,
    VerificationPush,
    decode_apns_body,
    decode_items,
    encode_apns_body,
    encode_items,
    push_from_data,
)
from blindpost.wire.ntf.responses import IDSUB, IDTKN, PONG, TKN, Response, read_response
from blindpost.wire.ntf.status import TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.ntf.transmissions import Received, Request, parse_requests, parse_responses
from blindpost.wire.ntf.versions import connection_layout
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.text import b64
from blindpost.wire.transmission import transmission_of
from blindpost.wire.transmissions import Refused, response_transmission, signed_request
from tests.support.wire import ntf_strategies as ntf
from tests.support.wire.blocks import payload_reader
from tests.support.wire.hostile import (
    Decode,
    calls_made,
    changed_everywhere,
    memory_peak,
    truncated_everywhere,
)
from tests.support.wire.vectors import vectors

SESSION_ID = b"session"
EXAMPLES = settings(max_examples=60)


def written(item: Command | Response, version: int) -> bytes:
    writer = Writer()
    item.write(writer, version)
    return writer.done()


@EXAMPLES
@given(ntf.commands, ntf.versions)
def test_commands_round_trip(command: Command, version: int) -> None:
    assert read_command(Reader(written(command, version)), version) == command


@EXAMPLES
@given(ntf.responses, ntf.versions)
def test_responses_round_trip_except_reasons_below_version_3(response: Response, version: int) -> None:
    if isinstance(response, TKN) and version < 3:
        expected: Response = TKN(TokenStatus(response.status.state))
    else:
        expected = response
    assert read_response(Reader(written(response, version)), version) == expected


@EXAMPLES
@given(ntf.server_hellos(), ntf.client_hellos)
def test_hellos_round_trip(server: ServerHello, client: ClientHello) -> None:
    assert decode_whole(encode(server, write_server_hello), read_server_hello) == server
    assert decode_whole(encode(client, write_client_hello), read_client_hello) == client


@EXAMPLES
@given(ntf.text_tokens)
def test_device_tokens_round_trip_as_text(token: DeviceToken) -> None:
    assert DeviceToken.from_text(token.text) == token


@EXAMPLES
@given(ntf.device_tokens)
def test_a_device_token_has_a_text_only_if_it_reads_back(token: DeviceToken) -> None:
    try:
        text = token.text
    except WireError:
        assert token.token.strip(b"0123456789abcdef") or len(token.token) % 2
    else:
        assert DeviceToken.from_text(text) == token


@EXAMPLES
@given(ntf.private_keys(*ntf.AUTHS))
def test_private_keys_round_trip(key: EncodedPrivateKey) -> None:
    assert EncodedPrivateKey.from_pkcs8(key.pkcs8) == key


def credentials(data: st.DataObject, command: Command) -> tuple[bytes, bytes]:
    """An authorization and an entity that fit the command."""
    entity_id = b"" if isinstance(command, TNEW | SNEW | PING) else data.draw(ntf.short_ids)
    return b"" if isinstance(command, PING) else data.draw(ntf.authorizations), entity_id


@EXAMPLES
@given(st.data(), st.lists(ntf.commands, min_size=1, max_size=4), ntf.versions)
def test_requests_round_trip_in_order(data: st.DataObject, commands: list[Command], version: int) -> None:
    layout = connection_layout(version, SESSION_ID)
    sent, transmissions = [], []
    for command in commands:
        authorization, entity_id = credentials(data, command)
        corr_id = data.draw(st.binary(max_size=24))
        transmissions.append(
            transmission_of(layout, signed_request(corr_id, entity_id, command, version), authorization)
        )
        sent.append((corr_id, entity_id, command, authorization))
    packed = pack_transmissions(transmissions, version)
    found: list[Request | Refused] = []
    for payload in packed.payloads:
        found += parse_requests(payload_reader(padded(payload, 512)), layout, version)
    fitting = [item for place, item in enumerate(sent) if place not in packed.oversize]
    read = [(item.corr_id, item.entity_id, item.command, item.authorization) for item in requests_of(found)]
    assert read == fitting


def requests_of(found: list[Request | Refused]) -> list[Request]:
    requests = [item for item in found if isinstance(item, Request)]
    assert len(requests) == len(found)
    return requests


@EXAMPLES
@given(ntf.responses, ntf.entity_ids, st.binary(max_size=255))
def test_replies_round_trip_at_version_3(response: Response, entity_id: bytes, corr_id: bytes) -> None:
    layout = connection_layout(3, SESSION_ID)
    named = b"" if isinstance(response, IDTKN | IDSUB | PONG) else entity_id
    transmission = response_transmission(layout, 3, corr_id, named, response)
    payload = Writer().u8(1).large(transmission.done())
    assert parse_responses(Reader(payload.done()), layout, 3) == [Received(corr_id, named, response)]


@EXAMPLES
@given(st.lists(st.integers(0, 520), max_size=12), ntf.versions)
def test_packing_loses_nothing_and_keeps_order(sizes: list[int], version: int) -> None:
    packed = pack_transmissions([Writer().raw(bytes(size)) for size in sizes], version)
    found: list[int] = []
    for payload in packed.payloads:
        readers = unpack_payload(payload_reader(padded(payload, 512)), version)
        assert version > 1 or len(readers) == 1
        found += (reader.remaining for reader in readers)
    largest = 510 if version == 1 else 507
    assert packed.oversize == tuple(place for place, size in enumerate(sizes) if size > largest)
    assert found == [size for size in sizes if size <= largest]


@EXAMPLES
@given(st.lists(ntf.push_items, min_size=1, max_size=6))
def test_push_items_round_trip(items: list[PushItem]) -> None:
    assert decode_items(encode_items(items)) == tuple(items)


@EXAMPLES
@given(ntf.pushes)
def test_pushes_round_trip(push: Push) -> None:
    body = encode_apns_body(push)
    assert decode_apns_body(body) == push
    assert push_from_data(JsonObject(json.loads(body)["notificationData"])) == push


def test_push_items_that_cannot_be_sent() -> None:
    (item,) = decode_items(vectors("ntf.json", "pn_message")[0]["text"].encode())
    with pytest.raises(WireError):
        encode_items([])
    for nonce in (b"", bytes(23), bytes(25)):
        with pytest.raises(WireError):
            encode_items([PushItem(item.server, item.notifier_id, 0, nonce, b"m")])


@pytest.mark.parametrize(
    "text",
    [
        "ntf://{hash}@smp.example.org/{id} 1 {nonce} AAAA",
        "smp://{hash}:password@smp.example.org/{id} 1 {nonce} AAAA",
        "smp://{hash}@smp.example.org/{id} 1 AAAA AAAA",
        "smp://{hash}@smp.example.org/{id} 1 {nonce} AAAA ",
        "smp://{hash}@smp.example.org/{id} 1 {nonce}",
        "smp://{hash}@smp.example.org/ 1 {nonce} AAAA",
        "smp://{hash}@smp.example.org {id} 1 {nonce} AAAA",
        "smp://{hash}@smp.example.org/{id} 99999999999999999999 {nonce} AAAA",
        "smp://{hash}@smp.example.org/{id} x {nonce} AAAA",
        "smp://{hash}@/{id} 1 {nonce} AAAA",
        ";",
        "\udcff",
    ],
)
def test_push_items_that_cannot_be_read(text: str) -> None:
    filled = text.format(hash=b64(bytes(32)), id=b64(b"id"), nonce=b64(bytes(24)))
    with pytest.raises(WireError):
        decode_items(filled.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"notificationData":[]}',
        b'{"notificationData":{}}',
        b'{"notificationData":{"checkMessages":1}}',
        b'{"notificationData":{"checkMessages":false}}',
        b'{"notificationData":{"nonce":"AAAA","message":"AAAA"}}',
        b'{"notificationData":{"nonce":5,"message":"AAAA"}}',
        b'{"notificationData":{"nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}',
        b'{"notificationData":{"nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","message":"+"}}',
        b'{"notificationData":{"nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","verification":null}}',
        b"\xff",
        b"[" * 100_000,
        b"9" * 10_000,
    ],
    ids=lambda body: body[:70],
)
def test_bodies_that_are_not_a_push(body: bytes) -> None:
    with pytest.raises(WireError):
        decode_apns_body(body)


def test_a_device_ignores_keys_it_does_not_know() -> None:
    nonce = bytes(24)
    body = json.dumps({"x": 1, "notificationData": {"nonce": b64(nonce), "message": b64(b"m"), "y": [2]}})
    assert decode_apns_body(body.encode()) == MessagePush(nonce, b"m")
    both = {"nonce": b64(nonce), "message": b64(b"m"), "verification": b64(b"v")}
    assert push_from_data(JsonObject(both)) == VerificationPush(nonce, b"v")
    assert push_from_data(JsonObject({**both, "checkMessages": True})) == VerificationPush(nonce, b"v")
    assert push_from_data(JsonObject({"checkMessages": True, "message": b64(b"m")})) == CheckPush()


def requests_decoder(version: int) -> Decode:
    layout = connection_layout(version, bytes(range(32)))
    return lambda data: parse_requests(payload_reader(data), layout, version)


def responses_decoder(version: int) -> Decode:
    layout = connection_layout(version, bytes(range(32)))
    return lambda data: parse_responses(payload_reader(data), layout, version)


def unpadded(content: bytes) -> bytes:
    return len(content).to_bytes(2, "big") + content


def hostile_cases() -> list[Any]:
    """Every vector with the decoder of its kind."""
    cases: list[tuple[str, str, Decode, bytes]] = []
    for entry in vectors("ntf.json"):
        kind, name = entry["kind"], entry["name"]
        if kind in ("command", "command_parse"):
            cases.append(
                (kind, name, lambda data: read_command(Reader(data), 3), bytes.fromhex(entry["bytes"]))
            )
        elif kind in ("response", "response_parse"):
            cases.append(
                (kind, name, lambda data: read_response(Reader(data), 3), bytes.fromhex(entry["bytes"]))
            )
        elif kind == "transmission" and "payload" in entry:
            payload = unpadded(bytes.fromhex(entry["payload"]))
            cases.append((kind, name, requests_decoder(entry["version"]), payload))
        elif kind == "batch":
            decoder = requests_decoder if "SCHK" in name else responses_decoder
            payload = unpadded(bytes.fromhex(entry["payloads"][-1]["payload"]))
            cases.append((kind, name, decoder(entry["version"]), payload))
        elif kind in ("pn_message", "pn_parse"):
            cases.append((kind, name, decode_items, entry["text"].encode()))
        elif kind == "device_token_text":
            cases.append((kind, name, decode_token_text, entry["text"].encode()))
        elif kind == "push" and entry["plaintext"] is None:
            cases.append((kind, name, decode_apns_body, entry["json"].encode()))
        elif kind == "handshake":
            hello = bytes.fromhex(entry["server_hello"])
            cases.append((kind, name, lambda data: read_server_hello(Reader(data)), hello))
            if entry["client_hello"] is not None:
                answer = bytes.fromhex(entry["client_hello"])
                cases.append((kind, f"{name} client", lambda data: read_client_hello(Reader(data)), answer))
    body = encode_apns_body(MessagePush(bytes(24), bytes(60)))
    cases.append(("push", "message", decode_apns_body, body))
    return [pytest.param(decode, data, id=f"{kind} {name}") for kind, name, decode, data in cases]


def decode_token_text(data: bytes) -> DeviceToken:
    return DeviceToken.from_text(data.decode("latin-1"))


@pytest.mark.parametrize(("decode", "data"), hostile_cases())
def test_changed_bytes_give_a_value_or_the_one_error(decode: Decode, data: bytes) -> None:
    truncated_everywhere(decode, data)
    changed_everywhere(decode, data, seed=data.hex()[:40])


@EXAMPLES
@given(st.binary(max_size=300), ntf.versions)
def test_any_bytes_give_a_value_or_the_one_error(data: bytes, version: int) -> None:
    """Parsing a payload never raises: what cannot be read is answered with an error."""
    layout = connection_layout(version, b"")
    assert parse_requests(Reader(data), layout, version)
    assert parse_responses(Reader(data), layout, version)


def worst_payload(count: int) -> bytes:
    """Many small transmissions, each with a command that must be read to its end."""
    item = b"\0\0\0SNEW S\0" + b"\x01\x01a" * 2
    return unpadded(bytes((count,)) + (len(item).to_bytes(2, "big") + item) * count)


def test_work_grows_with_the_number_of_transmissions() -> None:
    decode = requests_decoder(3)
    small, large = calls_made(decode, worst_payload(10)), calls_made(decode, worst_payload(200))
    assert large < 22 * small
    assert memory_peak(decode, worst_payload(200)) < 200_000


@pytest.mark.parametrize(
    "make",
    [
        lambda count: b";" * count,
        lambda count: b"smp://" + b"A" * count,
        lambda count: b"smp://AAAA@" + b"a," * count,
        lambda count: b"smp://AAAA@a.b/AAAA " + b"9" * count,
        lambda count: b"smp://AAAA@a.b/AAAA 1 " + b"A" * count,
    ],
)
def test_reading_pushes_is_linear(make: Any) -> None:
    small, large = calls_made(decode_items, make(100)), calls_made(decode_items, make(3000))
    assert large <= 31 * small + 100
    assert memory_peak(decode_items, make(3000)) < 3_000_000
