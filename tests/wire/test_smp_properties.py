"""Everything SMP can express, generated: what is written reads back, at every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.wire.batch import SMP_BATCH_LIMIT, batch_of_one, pack, padded
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.signed_key import (
    read_cert_key,
    signed_key_from_der,
    signed_key_to_der,
    write_cert_key,
)
from blindpost.wire.smp.commands import Command, read_command
from blindpost.wire.smp.credentials import credentials_error, response_entity_error
from blindpost.wire.smp.error_codec import read_error, write_error
from blindpost.wire.smp.errors import SMPError
from blindpost.wire.smp.handshake import (
    read_client_hello,
    read_server_hello,
    read_service_response,
    write_client_hello,
    write_server_hello,
    write_service_response,
)
from blindpost.wire.smp.messages import (
    read_forwarded_response,
    read_forwarded_transmission,
    read_message,
    read_nmsg_meta,
    write_forwarded_response,
    write_forwarded_transmission,
    write_message,
    write_nmsg_meta,
)
from blindpost.wire.smp.responses import Response, read_response
from blindpost.wire.smp.transmissions import Received, Request, parse_requests, parse_responses
from blindpost.wire.smp.versions import connection_layout
from blindpost.wire.transmission import authorized_bytes, transmission_of
from blindpost.wire.transmissions import Refused, response_transmission, signed_request
from tests.support.wire import smp_strategies as smp
from tests.support.wire.blocks import payload_reader
from tests.support.wire.hostile import survives
from tests.support.wire.ntf_strategies import ids as corr_ids

SESSIONS = st.binary(max_size=48)


def encoded(value: Command | Response, version: int) -> bytes:
    writer = Writer()
    value.write(writer, version)
    return writer.done()


@pytest.mark.parametrize("command", smp.COMMANDS, ids=lambda command: command.__name__)
@settings(max_examples=60)
@given(data=st.data(), version=smp.versions)
def test_command_round_trip(command: type[Command], data: st.DataObject, version: int) -> None:
    value = data.draw(smp.COMMANDS[command](version))
    assert read_command(Reader(encoded(value, version)), version) == value


@pytest.mark.parametrize("response", smp.RESPONSES, ids=lambda response: response.__name__)
@settings(max_examples=60)
@given(data=st.data(), version=smp.versions)
def test_response_round_trip(response: type[Response], data: st.DataObject, version: int) -> None:
    value = data.draw(smp.RESPONSES[response](version))
    assert read_response(Reader(encoded(value, version)), version) == value


@settings(max_examples=100)
@given(smp.commands(20), smp.versions)
def test_every_command_can_be_written_at_every_version(command: Command, version: int) -> None:
    """Fields unknown to an old version are left out; what remains encodes to the same bytes again."""
    data = encoded(command, version)
    read = read_command(Reader(data), version)
    assert type(read) is type(command)
    assert encoded(read, version) == data


@settings(max_examples=100)
@given(smp.responses(20), smp.versions)
def test_every_response_can_be_written_at_every_version(response: Response, version: int) -> None:
    data = encoded(response, version)
    assert encoded(read_response(Reader(data), version), version) == data


@settings(max_examples=150)
@given(smp.errors(20))
def test_error_round_trip(error: SMPError) -> None:
    assert decode_whole(encode(error, write_error), read_error) == error


@settings(max_examples=100)
@given(data=st.data(), version=st.integers(0, 25))
def test_handshake_round_trip(data: st.DataObject, version: int) -> None:
    server = data.draw(smp.server_hellos(version))
    assert decode_whole(encode(server, write_server_hello), read_server_hello) == server
    client = data.draw(smp.client_hellos(version))
    assert decode_whole(encode(client, write_client_hello), read_client_hello) == client
    response = data.draw(smp.service_responses)
    assert decode_whole(encode(response, write_service_response), read_service_response) == response


INNER: dict[str, tuple[st.SearchStrategy[Any], Any, Any]] = {
    "message": (smp.messages, read_message, write_message),
    "notification": (smp.nmsg_metas, read_nmsg_meta, write_nmsg_meta),
    "forwarded": (smp.forwarded_transmissions, read_forwarded_transmission, write_forwarded_transmission),
    "response": (smp.forwarded_responses, read_forwarded_response, write_forwarded_response),
    "chain and key": (smp.cert_keys, read_cert_key, write_cert_key),
}


@pytest.mark.parametrize("kind", INNER)
@settings(max_examples=60)
@given(data=st.data())
def test_inner_round_trip(kind: str, data: st.DataObject) -> None:
    strategy, read, write = INNER[kind]
    value = data.draw(strategy)
    assert decode_whole(encode(value, write), read) == value


@settings(max_examples=60)
@given(smp.signed_keys)
def test_signed_key_round_trip(signed_key: Any) -> None:
    der = signed_key_to_der(signed_key)
    assert signed_key_from_der(der) == signed_key
    assert signed_key.signed in der


@settings(max_examples=150)
@given(
    version=smp.versions,
    session_id=SESSIONS,
    ids=st.tuples(corr_ids, corr_ids),
    authorization=st.one_of(st.just(b""), smp.authorizations),
    service_signature=smp.optional(smp.service_signatures),
    data=st.data(),
)
def test_request_round_trip(
    version: int,
    session_id: bytes,
    ids: tuple[bytes, bytes],
    authorization: bytes,
    service_signature: bytes | None,
    data: st.DataObject,
) -> None:
    """A request arrives complete, or is refused for the credentials it has or lacks."""
    layout = connection_layout(version, session_id)
    command = data.draw(smp.commands(version))
    signed = signed_request(*ids, command, version)
    if version < 16 or not authorization:
        service_signature = None
    item = transmission_of(layout, signed, authorization, service_signature)
    block = padded(batch_of_one(item), 16384)
    (result,) = parse_requests(payload_reader(block), layout, version)
    error = credentials_error(command, authorization != b"", ids[1] != b"")
    assert (result.corr_id, result.entity_id) == ids
    if error is not None:
        assert result == Refused(*ids, error)
        return
    assert isinstance(result, Request)
    assert result.command == command
    assert (result.authorization, result.service_signature) == (authorization, service_signature)
    assert result.authorized(layout) == authorized_bytes(layout, signed)
    assert result.authorized(layout).startswith(bytes((len(session_id),)) + session_id)


@settings(max_examples=60)
@given(version=smp.versions, session_id=SESSIONS, data=st.data())
def test_many_responses_arrive_in_order(version: int, session_id: bytes, data: st.DataObject) -> None:
    layout = connection_layout(version, session_id)
    sent = data.draw(st.lists(st.tuples(corr_ids, corr_ids, smp.responses(version)), min_size=1, max_size=12))
    packed = pack([response_transmission(layout, version, *one) for one in sent], SMP_BATCH_LIMIT)
    assert packed.oversize == ()
    results = [
        result
        for payload in packed.payloads
        for result in parse_responses(payload_reader(padded(payload, 16368)), layout, version)
    ]
    for (corr_id, entity_id, response), result in zip(sent, results, strict=True):
        error = response_entity_error(response, entity_id != b"")
        if error is None:
            assert result == Received(corr_id, entity_id, response)
        else:
            assert result == Refused(corr_id, entity_id, error)


@settings(max_examples=200)
@given(data=st.binary(max_size=400), version=smp.versions)
def test_any_bytes_are_a_value_or_the_one_error(data: bytes, version: int) -> None:
    layout = connection_layout(version, b"session")
    assert parse_requests(Reader(data), layout, version)
    assert parse_responses(Reader(data), layout, version)
    survives(lambda piece: read_server_hello(Reader(piece)), data)
    survives(lambda piece: read_client_hello(Reader(piece)), data)
    survives(lambda piece: read_service_response(Reader(piece)), data)
    survives(lambda piece: read_message(Reader(piece)), data)
    survives(lambda piece: read_nmsg_meta(Reader(piece)), data)
    survives(lambda piece: read_command(Reader(piece), version), data)
    survives(lambda piece: read_response(Reader(piece), version), data)


@settings(max_examples=100)
@given(data=st.data(), version=smp.versions)
def test_any_bytes_as_parameters_after_a_known_tag(data: st.DataObject, version: int) -> None:
    tag = data.draw(st.sampled_from([*smp.COMMANDS, *smp.RESPONSES])).TAG
    tail = data.draw(st.binary(max_size=120))
    for read in (read_command, read_response):
        try:
            value = read(Reader(tag + b" " + tail), version)
        except WireError:
            continue
        assert tag == type(value).TAG
