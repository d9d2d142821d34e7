"""The bytes of the notification protocol: every command, response, status and error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blindpost.wire.addresses import Host
from blindpost.wire.batch import batch_of_one
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.commands import (
    PING,
    SNEW,
    TNEW,
    TRPL,
    TVFY,
    Command,
    read_command,
)
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN, SUB, TKN, read_response
from blindpost.wire.ntf.status import (
    SUB_ERROR_MAX,
    InvalidReason,
    SubState,
    SubStatus,
    TokenState,
    TokenStatus,
)
from blindpost.wire.ntf.transmissions import Received, Request, parse_responses
from blindpost.wire.primitives import Reader, decode_whole
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.smp.error_codec import read_error
from blindpost.wire.smp.errors import (
    HAS_AUTH,
    NO_AUTH,
    PROHIBITED,
    STORE,
    SYNTAX,
    UNKNOWN_COMMAND,
    Code,
    RefusedError,
    SMPError,
)
from blindpost.wire.transmissions import response_transmission
from tests.support.wire.ntf_samples import (
    COMMANDS,
    CORR_ID,
    DH_KEY,
    ENTITY_ID,
    KEY,
    NOTIFIER_KEY,
    SERVER,
    SESSION_ID,
    SIGNATURE,
    TAGS,
    TOKEN,
    layout_of,
    parsed,
    refused,
    sent,
    written,
)


@pytest.mark.claim("NTF-02")
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.TAG.decode())
def test_a_transmission_is_laid_out_as_in_smp_and_its_reply_repeats_the_corr_id(
    command: Command, version: int
) -> None:
    alone = isinstance(command, PING)
    entity_id = b"" if isinstance(command, TNEW | SNEW | PING) else ENTITY_ID
    authorization = b"" if alone else SIGNATURE
    session = b"\x20" + SESSION_ID if version == 1 else b""
    ids = b"\x18" + CORR_ID + bytes((len(entity_id),)) + entity_id
    expected = bytes((len(authorization),)) + authorization + session + ids + written(command)
    transmission = sent(command, authorization, entity_id, version)
    assert transmission.done() == expected

    request = parsed(transmission, version)
    assert isinstance(request, Request)
    assert request.authorized(layout_of(version)) == b"\x20" + SESSION_ID + ids + written(command)
    error = ERR(Code.AUTH)
    reply = response_transmission(layout_of(version), version, request.corr_id, request.entity_id, error)
    assert reply.done() == b"\0" + session + ids + b"ERR AUTH"
    (payload,) = pack_transmissions([reply], version).payloads
    assert parse_responses(Reader(payload.done()), layout_of(version), version) == [
        Received(CORR_ID, entity_id, error)
    ]


@pytest.mark.claim("NTF-07")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.TAG.decode())
def test_ten_commands_are_known_and_their_parameters_checked(command: Command) -> None:
    data = written(command)
    assert read_command(Reader(data), 3) == command
    bare = data == command.TAG
    for count in range(len(data)):
        expected = UNKNOWN_COMMAND if count < len(command.TAG) else SYNTAX
        assert refused(data[:count]) == expected
    assert refused(data + (b" " if bare else b"x")) == SYNTAX


@pytest.mark.claim("NTF-07")
@pytest.mark.parametrize(
    "tag", [b"", b"NEW", b"SUB", b"tnew", b"TNEWX", b"TNE", b"OK", b"IDTKN", b" PING", b"X" * 99]
)
def test_other_tags_are_unknown(tag: bytes) -> None:
    assert refused(tag) == UNKNOWN_COMMAND
    if b" " not in tag:
        assert refused(tag + b" parameters") == UNKNOWN_COMMAND
    assert len(TAGS) == len(set(TAGS)) == 10


@pytest.mark.claim("NTF-08")
def test_tnew_bytes_and_key_types() -> None:
    token, spki, dh_spki = b"AP\x40" + b"ab" * 32, b"\x2c" + KEY.spki, b"\x2c" + DH_KEY.spki
    data = b"TNEW T" + token + spki + dh_spki
    assert written(TNEW(TOKEN, KEY, DH_KEY)) == data
    assert read_command(Reader(data), 3) == TNEW(TOKEN, KEY, DH_KEY)
    assert refused(b"TNEW S" + token + spki + dh_spki) == SYNTAX
    x448 = b"\x44" + PublicKey(Algorithm.X448, bytes(56)).spki
    for verify_key, dh_key in ((x448, dh_spki), (spki, spki), (spki, x448), (b"\x20" + bytes(32), dh_spki)):
        assert refused(b"TNEW T" + token + verify_key + dh_key) == SYNTAX


@pytest.mark.claim("NTF-09")
@pytest.mark.parametrize("letters", [b"AD", b"AP", b"AT", b"AN"])
def test_four_providers_are_known(letters: bytes) -> None:
    command = read_command(Reader(b"TRPL " + letters + b"\x03abc"), 3)
    assert isinstance(command, TRPL)
    assert (command.token.provider.letters, command.token.token) == (letters, b"abc")
    assert written(command) == b"TRPL " + letters + b"\x03abc"
    assert refused(b"TRPL " + letters + b"\x04abc") == SYNTAX


@pytest.mark.claim("NTF-09")
@pytest.mark.parametrize("letters", [b"AX", b"ap", b"FP", b"A", b"\0\0"])
def test_other_providers_are_refused(letters: bytes) -> None:
    assert refused(b"TRPL " + letters + b"\x03abc") == SYNTAX


@pytest.mark.claim("NTF-11")
def test_idtkn_bytes() -> None:
    data = b"IDTKN \x18" + ENTITY_ID + b"\x2c" + DH_KEY.spki
    assert written(IDTKN(ENTITY_ID, DH_KEY)) == data
    assert read_response(Reader(data), 3) == IDTKN(ENTITY_ID, DH_KEY)
    with pytest.raises(RefusedError):
        read_response(Reader(b"IDTKN \x18" + ENTITY_ID + b"\x2c" + KEY.spki), 3)


@pytest.mark.claim("NTF-28")
def test_idsub_bytes() -> None:
    data = b"IDSUB \x18" + ENTITY_ID
    assert written(IDSUB(ENTITY_ID)) == data
    assert read_response(Reader(data), 3) == IDSUB(ENTITY_ID)


@pytest.mark.claim("NTF-27")
@pytest.mark.parametrize("hosts", [("a.example",), ("a.example", "b.onion", "192.0.2.1")])
def test_snew_bytes(hosts: tuple[str, ...]) -> None:
    listed = b"".join(bytes((len(host),)) + host.encode() for host in hosts)
    rest = b"\x045223\x20" + b"h" * 32 + b"\x08notifier\x30" + NOTIFIER_KEY.pkcs8
    data = b"SNEW S\x18" + ENTITY_ID + bytes((len(hosts),)) + listed + rest
    server = replace(SERVER, hosts=tuple(map(Host, hosts)))
    command = SNEW(ENTITY_ID, server, b"notifier", NOTIFIER_KEY)
    assert written(command) == data
    assert read_command(Reader(data), 3) == command
    assert refused(b"SNEW S\x18" + ENTITY_ID + b"\0" + rest) == SYNTAX
    assert refused(b"SNEW T\x18" + data[8:]) == SYNTAX
    with pytest.raises(WireError):
        replace(SERVER, hosts=())


def test_snew_accepts_only_private_keys_that_sign_or_authenticate() -> None:
    head = written(COMMANDS[6])[: -len(NOTIFIER_KEY.pkcs8) - 1]
    for algorithm in (Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519):
        key = EncodedPrivateKey(algorithm, bytes(algorithm.raw_size))
        command = read_command(Reader(head + bytes((len(key.pkcs8),)) + key.pkcs8), 3)
        assert isinstance(command, SNEW)
        assert command.notifier_key == key
    x448 = EncodedPrivateKey(Algorithm.X448, bytes(56)).pkcs8
    attributed = b"\x30\x51\x02\x01\x01" + NOTIFIER_KEY.pkcs8[5:] + b"\x81\x21\0" + bytes(32)
    for wrong in (x448, KEY.spki, NOTIFIER_KEY.pkcs8 + b"x", NOTIFIER_KEY.pkcs8[:-1], attributed, b""):
        assert refused(head + bytes((len(wrong),)) + wrong) == SYNTAX


@pytest.mark.claim("NTF-16")
@pytest.mark.parametrize("name", ["NEW", "REGISTERED", "INVALID", "CONFIRMED", "ACTIVE", "EXPIRED"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_tkn_bytes(name: str, version: int) -> None:
    status = TokenStatus(TokenState[name])
    assert written(TKN(status), version) == b"TKN " + name.encode()
    assert read_response(Reader(b"TKN " + name.encode()), version) == TKN(status)
    assert {state.name for state in TokenState} == {
        *("NEW", "REGISTERED", "INVALID", "CONFIRMED", "ACTIVE", "EXPIRED")
    }
    with pytest.raises(RefusedError):
        read_response(Reader(b"TKN " + name.encode() + b" "), version)


@pytest.mark.claim("NTF-17")
@pytest.mark.parametrize("reason", ["BAD", "TOPIC", "EXPIRED", "UNREGISTERED"])
def test_reasons_are_sent_from_version_3_on(reason: str) -> None:
    token = TKN(TokenStatus(TokenState.INVALID, InvalidReason[reason]))
    told = b"TKN INVALID," + reason.encode()
    assert [written(token, version) for version in (1, 2, 3)] == [b"TKN INVALID", b"TKN INVALID", told]
    assert read_response(Reader(told), 3) == token
    assert read_response(Reader(b"TKN INVALID"), 2) == TKN(TokenStatus(TokenState.INVALID))
    for state in TokenState:
        if state is not TokenState.INVALID:
            with pytest.raises(WireError):
                TokenStatus(state, InvalidReason[reason])


@pytest.mark.claim("NTF-31")
@pytest.mark.parametrize(
    "name", ["NEW", "PENDING", "ACTIVE", "INACTIVE", "END", "AUTH", "DELETED", "SERVICE"]
)
def test_sub_bytes(name: str) -> None:
    assert written(SUB(SubStatus(SubState[name]))) == b"SUB " + name.encode()
    assert read_response(Reader(b"SUB " + name.encode()), 3) == SUB(SubStatus(SubState[name]))
    with pytest.raises(RefusedError):
        read_response(Reader(b"SUB " + name.encode() + b" "), 3)
    with pytest.raises(WireError):
        SubStatus(SubState[name], b"text")


@pytest.mark.claim("NTF-31")
def test_sub_err_has_a_text() -> None:
    assert written(SUB(SubStatus.failed(b"SMP error QUOTA"))) == b"SUB ERR SMP error QUOTA"
    assert read_response(Reader(b"SUB ERR SMP error QUOTA"), 3) == SUB(
        SubStatus(SubState.ERR, b"SMP error QUOTA")
    )
    with pytest.raises(RefusedError):
        read_response(Reader(b"SUB ERR"), 3)
    with pytest.raises(WireError):
        SubStatus(SubState.ERR)
    assert {state.name for state in SubState} == {
        *("NEW", "PENDING", "ACTIVE", "INACTIVE", "END", "AUTH", "DELETED", "SERVICE", "ERR")
    }


def test_a_long_error_text_is_cut_to_fit_into_a_block() -> None:
    status = SubStatus.failed(b"x" * 600)
    assert status.error == b"x" * SUB_ERROR_MAX
    reply = response_transmission(layout_of(1), 1, b"c" * 24, ENTITY_ID, SUB(status))
    assert not pack_transmissions([reply], 1).oversize


@pytest.mark.claim("NTF-37")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Code.AUTH, b"AUTH"),
        (Code.BLOCK, b"BLOCK"),
        (Code.SESSION, b"SESSION"),
        (Code.QUOTA, b"QUOTA"),
        (Code.INTERNAL, b"INTERNAL"),
        (UNKNOWN_COMMAND, b"CMD UNKNOWN"),
        (SYNTAX, b"CMD SYNTAX"),
        (NO_AUTH, b"CMD NO_AUTH"),
        (HAS_AUTH, b"CMD HAS_AUTH"),
        (PROHIBITED, b"CMD PROHIBITED"),
        (STORE("no room"), b"STORE no room"),
    ],
)
def test_errors_are_those_of_smp(error: SMPError, text: bytes) -> None:
    for version in (1, 2, 3):
        assert written(ERR(error), version) == b"ERR " + text
    assert read_response(Reader(b"ERR " + text), 3) == ERR(error)
    assert decode_whole(text, read_error) == error
    for command in COMMANDS:
        entity_id = b"" if isinstance(command, TNEW | SNEW | PING) else ENTITY_ID
        reply = response_transmission(layout_of(3), 3, CORR_ID, entity_id, ERR(error))
        assert parse_responses(Reader(batch_of_one(reply).done()), layout_of(3), 3) == [
            Received(CORR_ID, entity_id, ERR(error))
        ]


def test_nothing_secret_is_printed() -> None:
    secret = EncodedPrivateKey(Algorithm.ED25519, b"secret bytes of a private key ..")
    shown = (
        repr(SNEW(b"token id", SERVER, b"notifier id", secret))
        + repr(TNEW(TOKEN, KEY, DH_KEY))
        + repr(TVFY(b"code"))
    )
    for hidden in ("secret", "7365", "token id", "notifier id", "abab", "'code'", "smp.example"):
        assert hidden not in shown


def test_private_keys_are_equal_only_in_algorithm_and_bytes() -> None:
    key = EncodedPrivateKey(Algorithm.ED25519, bytes(32))
    assert key == EncodedPrivateKey.from_pkcs8(key.pkcs8)
    assert hash(key) == hash(EncodedPrivateKey.from_pkcs8(key.pkcs8))
    assert key != EncodedPrivateKey(Algorithm.X25519, bytes(32))
    assert key != EncodedPrivateKey(Algorithm.ED25519, bytes(31) + b"x")
    assert key != key.pkcs8
    with pytest.raises(WireError):
        EncodedPrivateKey(Algorithm.ED25519, bytes(31))
