"""What is answered before anyone looks at a queue: blocks, transmissions, syntax, credentials."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from blindpost.wire.batch import pack
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    LDEL,
    LGET,
    LKEY,
    LSET,
    NDEL,
    NEW,
    NKEY,
    NSUB,
    NSUBS,
    OFF,
    PFWD,
    PING,
    PRXY,
    QUE,
    RFWD,
    RKEY,
    RSLV,
    SEND,
    SKEY,
    SUB,
    SUBS,
    Command,
)
from blindpost.wire.smp.errors import (
    HAS_AUTH,
    NAME,
    NO_AUTH,
    NO_ENTITY,
    PROXY,
    SYNTAX,
    UNKNOWN_COMMAND,
    Code,
    NameCode,
    ProxyCode,
    SMPError,
)
from blindpost.wire.smp.responses import ERR, OK, PONG, SOK
from blindpost.wire.smp.transmissions import Received
from blindpost.wire.smp.values import LinkData, NtfCreds
from blindpost.wire.transmission import start_signed, transmission_of
from tests.support.router.lines import Line, Said, create, error, open_line
from tests.support.router.routers import RunningRouter, new_key

KEY_PAIR = new_key()
DH = new_key(Algorithm.X25519).public
PUBLIC = KEY_PAIR.public

BOTH_NEEDED: list[Command] = [
    SUB(),
    NSUB(),
    KEY(PUBLIC),
    SKEY(PUBLIC),
    LKEY(PUBLIC),
    RKEY((PUBLIC,)),
    LSET(b"link", LinkData(b"", b"")),
    LDEL(),
    NKEY(NtfCreds(PUBLIC, DH)),
    NDEL(),
    GET(),
    ACK(bytes(24)),
    OFF(),
    DEL(),
    QUE(),
    SUBS(1, bytes(16)),
    NSUBS(1, bytes(16)),
]
PROXIED = PFWD(20, DH, b"sealed")


async def refusal(line: Line, command: Command | bytes, *, entity: bool, auth: bool) -> SMPError:
    key = KEY_PAIR if auth else None
    return error(await line.ask(command, os.urandom(24) if entity else b"", key))


@pytest.mark.parametrize("version", [7, 15, 16, 20])
async def test_credentials_that_do_not_fit_the_command(running: RunningRouter, version: int) -> None:
    line = await open_line(running, version)
    for command in BOTH_NEEDED:
        for entity, auth in ((False, False), (True, False), (False, True)):
            assert await refusal(line, command, entity=entity, auth=auth) == NO_AUTH, command
    new = NEW(PUBLIC, DH)
    assert await refusal(line, new, entity=False, auth=False) == NO_AUTH
    assert await refusal(line, new, entity=True, auth=False) == NO_AUTH
    assert await refusal(line, new, entity=True, auth=True) == HAS_AUTH
    for auth in (True, False):
        assert await refusal(line, SEND(False, b""), entity=False, auth=auth) == NO_ENTITY
    for command in (LGET(), PROXIED):
        assert await refusal(line, command, entity=False, auth=False) == NO_ENTITY
        assert await refusal(line, command, entity=False, auth=True) == NO_ENTITY
        assert await refusal(line, command, entity=True, auth=True) == HAS_AUTH
    for command in (PING(), RFWD(b"sealed"), RSLV("example.simplex")):
        for entity, auth in ((True, False), (False, True), (True, True)):
            assert await refusal(line, command, entity=entity, auth=auth) == HAS_AUTH, command


async def test_unsupported_commands(running: RunningRouter) -> None:
    line = await open_line(running)
    assert await refusal(line, RSLV("example.simplex"), entity=False, auth=False) == NAME(
        NameCode.NO_RESOLVER
    )
    assert await refusal(line, PROXIED, entity=True, auth=False) == PROXY(ProxyCode.NO_SESSION)
    assert await refusal(line, RFWD(b"not sealed"), entity=False, auth=False) is Code.CRYPTO


@pytest.mark.parametrize("version", [6, 7, 15, 20])
async def test_unknown_command_words(running: RunningRouter, version: int) -> None:
    line = await open_line(running, version)
    queue = await create(line)
    for words in (b"", b"XXX", b"sub", b"SUBX", b"SUB\n", b"OK", b"MSG x", b"ERR AUTH", b"IDS", b" SUB"):
        assert error(await line.ask(words, queue.recipient_id, queue.key)) == UNKNOWN_COMMAND, words
    known = (b"SUB ", b"KEY", b"KEY x", b"ACK", b"ACK ", b"DEL x", b"NEW", b"RKEY \0", b"LSET x")
    for words in known:
        assert error(await line.ask(words, queue.recipient_id, queue.key)) == SYNTAX, words
    for words in (b"SEND", b"SEND T", b"SEND X body", b"SEND  "):
        assert error(await line.ask(words, queue.sender_id)) == SYNTAX, words
    assert await queue.ask(line, GET()) == OK()


async def test_one_bad_transmission_does_not_harm_its_neighbours(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line)
    good = [line.written(Said(PING(), corr_id=b"one")), line.written(Said(PING(), corr_id=b"two"))]
    short = Writer().raw(b"\0\x05abc")
    no_service_field = Writer().short(bytes(64)).raw(b"2\x01c\0PING")
    short_service = Writer().short(bytes(64)).raw(b"1").short(bytes(63)).raw(b"\x01c\0PING")
    line.send([good[0], short, no_service_field, short_service, good[1]])
    for corr_id in (b"one", b"two"):
        assert (await line.reply(corr_id)).response == PONG()
    bad = [await line.event(b"") for _ in range(3)]
    assert bad == [Received(b"", b"", ERR(Code.BLOCK))] * 3
    for size in (1, 63, 65, 79, 81, 113, 115, 255):
        said = Said(SUB(), queue.recipient_id, corr_id=b"size", authorization=bytes(size))
        line.send([line.written(said)])
        assert await line.reply(b"size") == Received(b"size", b"", ERR(Code.BLOCK))
    assert await queue.ask(line, SUB()) == SOK(None)


@pytest.mark.parametrize("version", [7, 20])
@pytest.mark.parametrize(
    "payload", [b"", b"\0", b"\x01", b"\x01\0", b"\x01\0\x05\0", b"\x02\0\x01\0", b"\x01\0\x07\0\x01c\0PINGx"]
)
async def test_a_block_that_is_not_a_batch(running: RunningRouter, version: int, payload: bytes) -> None:
    line = await open_line(running, version)
    line.stream.send(payload)
    assert await line.event(b"") == Received(b"", b"", ERR(Code.BLOCK))
    assert await line.settle() == []


@pytest.mark.parametrize("version", [7, 20])
async def test_a_block_that_cannot_be_opened(running: RunningRouter, version: int) -> None:
    line = await open_line(running, version)
    blocks = line.stream.session._blocks
    if blocks._chains is None:
        block = bytearray(b"\xff" * 16384)
    else:
        block = bytearray(blocks._chains.sending.seal_block([b"payload"], 7))
        block[1000] ^= 1
    blocks._tls.write(bytes(block))
    line.stream.session._write_out()
    assert await line.event(b"") == Received(b"", b"", ERR(Code.BLOCK))
    assert await line.settle() == []


async def test_version_6_requires_the_id_of_its_own_session(running: RunningRouter) -> None:
    line, other = await open_line(running, 6), await open_line(running, 6)
    queue = await create(line)
    foreign = Line(line.stream)
    foreign.layout = other.layout
    line.send([foreign.written(Said(SUB(), queue.recipient_id, queue.key, b"foreign"))])
    assert await line.reply(b"foreign") == Received(b"foreign", b"", ERR(Code.SESSION))
    no_session = replace(line.layout, session_id=b"")
    signed = start_signed(b"none", b"").raw(b"PING")
    line.send([transmission_of(no_session, signed)])
    assert await line.reply(b"none") == Received(b"none", b"", ERR(Code.SESSION))
    assert await queue.ask(line, SUB()) == OK()


async def test_a_signature_for_another_session_is_invalid(running: RunningRouter) -> None:
    line, other = await open_line(running), await open_line(running)
    queue = await create(line)
    foreign = other.written(Said(SUB(), queue.recipient_id, queue.key, b"foreign"))
    line.send([foreign])
    assert (await line.reply(b"foreign")).response == ERR(Code.AUTH)


@pytest.mark.parametrize("version", [16, 19, 20])
async def test_a_service_signature_on_a_plain_connection(running: RunningRouter, version: int) -> None:
    line = await open_line(running, version)
    queue = await create(line, notifier=version >= 17)
    signature = bytes(64)
    recipient = (SUB(), OFF(), GET(), DEL(), QUE())
    said = [Said(command, queue.recipient_id, queue.key) for command in recipient]
    said.append(Said(NEW(PUBLIC, DH), b"", KEY_PAIR))
    if version >= 17:
        said.append(Said(NSUB(), queue.notifier_id, queue.notifier_key))
    for one in said:
        one.service_signature = signature
    assert await line.ask_many(said) == [ERR(Code.SERVICE)] * len(said)
    unknown = Said(SUB(), os.urandom(24), queue.key, service_signature=signature)
    assert await line.ask_many([unknown]) == [ERR(Code.AUTH)]
    assert await queue.ask(line, GET()) == OK()


@pytest.mark.parametrize("version", [16, 19, 20])
async def test_service_subscriptions_on_a_plain_connection(running: RunningRouter, version: int) -> None:
    line = await open_line(running, version)
    for command in (SUBS(0, bytes(16)), NSUBS(0, bytes(16))):
        for key in (KEY_PAIR, new_key(Algorithm.X25519)):
            assert await line.ask(command, os.urandom(24), key) == ERR(Code.SERVICE)


async def test_every_kind_of_authorization_at_version_6(running: RunningRouter) -> None:
    """There is no session key, so an authenticator has nothing to verify against."""
    line = await open_line(running, 6)
    queue = await create(line, algorithm=Algorithm.ED448)
    offered = Said(SUB(), queue.recipient_id, authorization=bytes(80))
    assert await line.ask_many([offered]) == [ERR(Code.AUTH)]
    assert await queue.ask(line, SUB()) == OK()


async def test_a_block_of_255_commands_is_answered_in_order(running: RunningRouter) -> None:
    line = await open_line(running)
    said = [Said(PING()) for _ in range(255)]
    assert await line.ask_many(said) == [PONG()] * 255


async def test_replies_keep_the_order_of_the_commands(running: RunningRouter) -> None:
    line = await open_line(running)
    queue = await create(line)
    said = [queue.said(SUB()), Said(b"XXX"), queue.said(QUE()), Said(SUB(), os.urandom(24), KEY_PAIR)]
    said += [Said(PING()), Said(SUB(), queue.recipient_id), queue.said(GET())]
    line.send([line.written(one) for one in said])
    (payload,) = pack([line.written(one) for one in said], 1 << 15).payloads
    assert payload.size < 16366
    block = bytes(await line.stream.read_block())
    places = [block.index(one.corr_id) for one in said]
    assert places == sorted(places)


def test_the_tables_cover_every_command() -> None:
    kinds = {type(command) for command in BOTH_NEEDED} | {NEW, SEND, LGET, PFWD, PING, RFWD, RSLV, PRXY}
    assert len(kinds) == 25
