"""One value of each kind in the notification protocol, and short ways to send and read them."""

from __future__ import annotations

import pytest

from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.commands import (
    PING,
    SCHK,
    SDEL,
    SNEW,
    TCHK,
    TCRN,
    TDEL,
    TNEW,
    TRPL,
    TVFY,
    Command,
    read_command,
)
from blindpost.wire.ntf.responses import Response
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.ntf.transmissions import Request, parse_requests
from blindpost.wire.ntf.versions import connection_layout
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.smp.errors import (
    RefusedError,
    SMPError,
)
from blindpost.wire.transmission import Layout, transmission_of
from blindpost.wire.transmissions import Refused, signed_request

SESSION_ID = bytes(range(32))
CORR_ID = b"c" * 24
ENTITY_ID = b"e" * 24
SIGNATURE = b"s" * 64
KEY = PublicKey(Algorithm.ED25519, b"k" * 32)
DH_KEY = PublicKey(Algorithm.X25519, b"d" * 32)
TOKEN = DeviceToken(PushProvider.APNS_PROD, b"ab" * 32)
SERVER = Server((Host("smp.example.org"),), "5223", b"h" * 32)
NOTIFIER_KEY = EncodedPrivateKey(Algorithm.ED25519, b"n" * 32)

COMMANDS: tuple[Command, ...] = (
    TNEW(TOKEN, KEY, DH_KEY),
    TVFY(b"code"),
    TCHK(),
    TRPL(TOKEN),
    TDEL(),
    TCRN(20),
    SNEW(ENTITY_ID, SERVER, b"notifier", NOTIFIER_KEY),
    SCHK(),
    SDEL(),
    PING(),
)
TAGS = tuple(command.TAG for command in COMMANDS)


def layout_of(version: int) -> Layout:
    return connection_layout(version, SESSION_ID)


def written(item: Command | Response, version: int = 3) -> bytes:
    writer = Writer()
    item.write(writer, version)
    return writer.done()


def refused(data: bytes) -> SMPError:
    """The error that a command is answered with."""
    with pytest.raises(RefusedError) as caught:
        read_command(Reader(data), 3)
    return caught.value.error


def sent(command: Command, authorization: bytes, entity_id: bytes, version: int = 3) -> Writer:
    signed = signed_request(CORR_ID, entity_id, command, version)
    return transmission_of(layout_of(version), signed, authorization)


def parsed(transmission: Writer, version: int = 3) -> Request | Refused:
    (payload,) = pack_transmissions([transmission], version).payloads
    (found,) = parse_requests(Reader(payload.done()), layout_of(version), version)
    return found
