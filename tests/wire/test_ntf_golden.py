"""The golden vectors of the notification protocol's document: same inputs, same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.ids_hash import ids_hash
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Host, Server
from blindpost.wire.batch import padded
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.commands import SNEW, TCRN, TNEW, Command, read_command
from blindpost.wire.ntf.handshake import ClientHello, ServerHello, write_client_hello, write_server_hello
from blindpost.wire.ntf.pushes import PADDED_SIZE, PushItem, encode_items
from blindpost.wire.ntf.responses import IDTKN
from blindpost.wire.ntf.tokens import NULL_TOKEN, DeviceToken, PushProvider
from blindpost.wire.ntf.transmissions import Request, parse_requests
from blindpost.wire.ntf.versions import NTF_VERSIONS, connection_layout
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.signed_key import SignedKey, signed_key_content, signed_key_to_der
from blindpost.wire.transmission import authorized_bytes, transmission_of
from blindpost.wire.transmissions import signed_request
from tests.support.wire.blocks import payload_reader
from tests.support.wire.long_values import ramp, same
from tests.support.wire.vectors import vectors

SESSION_ID = KEY_HASH = ramp(0, 32)
CORR_ID = NONCE = ramp(0, 24)
TOKEN_ID = ramp(0x32, 24)
NOTIFIER_ID = ramp(0x64, 24)
TOKEN_KEY = PrivateKey(Algorithm.ED25519, b"\x0a" * 32)
DEVICE_KEY = PrivateKey(Algorithm.X25519, b"\x0b" * 32)
ROUTER_KEY = PrivateKey(Algorithm.X25519, b"\x0c" * 32)
LEAF_KEY = PrivateKey(Algorithm.ED25519, b"\x0e" * 32)
SESSION_KEY = PrivateKey(Algorithm.X25519, b"\x0f" * 32)
SERVER = Server((Host("smp.example.org"),), "5223", KEY_HASH)

TNEW_COMMAND = TNEW(DeviceToken(PushProvider.APNS_NULL, NULL_TOKEN), TOKEN_KEY.public, DEVICE_KEY.public)
SNEW_COMMAND = SNEW(TOKEN_ID, SERVER, NOTIFIER_ID, EncodedPrivateKey(Algorithm.ED25519, b"\x0d" * 32))
ITEM = PushItem(SERVER, NOTIFIER_ID, 1_700_000_000, NONCE, bytes(144))
LATER_ITEM = PushItem(SERVER, NOTIFIER_ID, 1_700_000_060, NONCE, bytes(144))
SECRET = DEVICE_KEY.agree(ROUTER_KEY.public)


def block_of(write: Callable[[Writer], object]) -> bytes:
    writer = Writer()
    write(writer)
    return padded(writer, 512)


def signed_session_key() -> SignedKey:
    content = signed_key_content(SESSION_KEY.public)
    return SignedKey(SESSION_KEY.public, Algorithm.ED25519, LEAF_KEY.sign(content))


def signed_tnew(version: int) -> tuple[bytes, bytes]:
    """The signature of TNEW and the block it travels in."""
    layout = connection_layout(version, SESSION_ID)
    signed = signed_request(CORR_ID, b"", TNEW_COMMAND, version)
    signature = TOKEN_KEY.sign(authorized_bytes(layout, signed))
    packed = pack_transmissions([transmission_of(layout, signed, signature)], version)
    block = padded(packed.payloads[0], 512)
    (request,) = parse_requests(payload_reader(block), layout, version)
    assert isinstance(request, Request)
    assert (request.command, request.authorization) == (TNEW_COMMAND, signature)
    assert request.authorized(layout) == authorized_bytes(layout, signed)
    return signature, block


def encoded(command: Command) -> bytes:
    writer = Writer()
    command.write(writer, 3)
    assert read_command(Reader(writer.done()), 3) == command
    return writer.done()


def idtkn() -> bytes:
    writer = Writer()
    IDTKN(TOKEN_ID, ROUTER_KEY.public).write(writer, 3)
    return writer.done()


def sealed(plaintext: bytes) -> bytes:
    return bytes(BoxKey(SECRET).seal_padded(NONCE, plaintext, PADDED_SIZE))


GOLDEN: dict[str, Callable[[], bytes]] = {
    "ntf signedKey": lambda: signed_key_to_der(signed_session_key()),
    "ntf server hello block": lambda: block_of(
        lambda writer: write_server_hello(writer, ServerHello(NTF_VERSIONS, SESSION_ID, signed_session_key()))
    ),
    "ntf client hello block": lambda: block_of(
        lambda writer: write_client_hello(writer, ClientHello(3, KEY_HASH))
    ),
    "ntf TNEW": lambda: encoded(TNEW_COMMAND),
    "ntf TNEW signature": lambda: signed_tnew(1)[0],
    "ntf v1 block": lambda: signed_tnew(1)[1],
    "ntf v3 block": lambda: signed_tnew(3)[1],
    "ntf IDTKN": idtkn,
    "ntf TCRN 20": lambda: encoded(TCRN(20)),
    "ntf SNEW": lambda: encoded(SNEW_COMMAND),
    "ntf token secret": lambda: SECRET,
    "ntf verification ciphertext": lambda: sealed(ramp(0, 32)),
    "ntf one item": lambda: encode_items([ITEM]),
    "ntf two items ciphertext": lambda: sealed(encode_items([ITEM, LATER_ITEM])),
    "ntf ids hash": lambda: ids_hash([NOTIFIER_ID]),
}

ENTRIES = {entry["name"]: entry for entry in vectors("doc_golden.json") if entry["name"].startswith("ntf ")}


def test_all_golden_vectors_are_compared() -> None:
    assert ENTRIES.keys() == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    entry: dict[str, Any] = ENTRIES[name]
    data = GOLDEN[name]()
    assert len(data) == entry["length"]
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    assert data.decode() == entry["text"] if "text" in entry else same(data, entry["bytes"])


def test_versions_2_and_3_sign_and_send_the_same() -> None:
    assert signed_tnew(2) == signed_tnew(3)
