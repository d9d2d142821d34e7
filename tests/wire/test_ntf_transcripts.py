"""Recorded sessions with the reference's notification router, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from blindpost.crypto.authorizers import authenticator, kind_of
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.commands import SNEW, TNEW, TRPL
from blindpost.wire.ntf.handshake import (
    read_client_hello,
    read_server_hello,
    write_client_hello,
    write_server_hello,
)
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN
from blindpost.wire.ntf.tokens import PushProvider
from blindpost.wire.ntf.transmissions import Received, Request, parse_requests, parse_responses
from blindpost.wire.ntf.versions import NTF_VERSIONS, connection_layout
from blindpost.wire.primitives import Reader, decode_whole, encode
from blindpost.wire.smp.errors import PROHIBITED, Code
from blindpost.wire.transmission import Layout, transmission_of
from blindpost.wire.transmissions import Refused, response_transmission, signed_request
from tests.support.wire.vectors import vector_file

FILES = ("30-ntf-token.json", "31-ntf-subscription.json")
WRONGLY_SIGNED = {"TCHK wrong key", "SNEW signed by wrong key", "SCHK wrong key"}


def private_keys(transcript: dict[str, Any]) -> dict[bytes, PrivateKey]:
    """The recorded private keys by their public ones."""
    kinds = {"ed25519": Algorithm.ED25519, "ed448": Algorithm.ED448, "x25519": Algorithm.X25519}
    listed = (entry for entry in transcript["keys"].values() if isinstance(entry, dict))
    found = [PrivateKey(kinds[entry["alg"]], bytes.fromhex(entry["priv"])) for entry in listed]
    return {key.public.spki: key for key in found}


@dataclass
class Session:
    """What a reader of the recording knows after the events so far."""

    layout: Layout
    version: int
    router_key: PublicKey
    keys: dict[bytes, PrivateKey]
    asked: dict[bytes, Request] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)
    token_keys: dict[bytes, PublicKey] = field(default_factory=dict)
    sub_keys: dict[bytes, PublicKey] = field(default_factory=dict)

    def sent(self, note: str, payload: bytes) -> None:
        found = parse_requests(Reader(payload), self.layout, self.version)
        requests = [item for item in found if isinstance(item, Request)]
        for request in requests:
            self.asked[request.corr_id] = request
            key = self.key_of(request)
            if key is not None and request.authorization:
                assert self.authorized(request, key) is (note not in WRONGLY_SIGNED)
        self.refused += [item for item in found if isinstance(item, Refused)]
        if len(requests) == len(found):
            assert self.rebuilt(requests) == [payload]

    def rebuilt(self, requests: list[Request]) -> list[bytes]:
        sent = []
        for request in requests:
            signed = signed_request(request.corr_id, request.entity_id, request.command, self.version)
            sent.append(transmission_of(self.layout, signed, request.authorization))
        return [part.done() for part in pack_transmissions(sent, self.version).payloads]

    def key_of(self, request: Request) -> PublicKey | None:
        match request.command:
            case TNEW(_, verify_key, _):
                return verify_key
            case SNEW(token_id):
                return self.token_keys.get(token_id)
            case _:
                return self.token_keys.get(request.entity_id) or self.sub_keys.get(request.entity_id)

    def authorized(self, request: Request, key: PublicKey) -> bool:
        """Authenticators are recomputed: only their two owners could verify them."""
        if kind_of(request.authorization) is not Algorithm.X25519:
            return verify(key, request.authorized(self.layout), request.authorization)
        box_key = BoxKey.agreed(self.keys[key.spki], self.router_key)
        made = authenticator(box_key, request.corr_id, request.authorized(self.layout))
        return made == request.authorization

    def received(self, payload: bytes) -> None:
        sent = []
        for reply in parse_responses(Reader(payload), self.layout, self.version):
            assert isinstance(reply, Received)
            ids = reply.corr_id, reply.entity_id
            sent.append(response_transmission(self.layout, self.version, *ids, reply.response))
            self.matched(reply)
        assert [part.done() for part in pack_transmissions(sent, self.version).payloads] == [payload]

    def matched(self, reply: Received) -> None:
        """A refusal must be what we would answer; any other response must fit its request."""
        request = self.asked.pop(reply.corr_id, None)
        if request is None:
            assert isinstance(reply.response, ERR)
            assert Refused(reply.corr_id, reply.entity_id, reply.response.error) in self.refused
            return
        assert reply.entity_id == request.entity_id
        if isinstance(reply.response, ERR):
            if reply.response.error == PROHIBITED:
                assert isinstance(request.command, TNEW | TRPL)
                assert request.command.token.provider is PushProvider.APNS_TEST
            else:
                assert reply.response.error in (Code.AUTH, Code.QUOTA)
        elif isinstance(reply.response, IDTKN):
            assert isinstance(request.command, TNEW)
            self.token_keys[reply.response.token_id] = request.command.verify_key
        elif isinstance(reply.response, IDSUB):
            assert isinstance(request.command, SNEW)
            self.sub_keys[reply.response.subscription_id] = self.token_keys[request.command.token_id]


def opened(transcript: dict[str, Any]) -> Session:
    """The session after its two hellos."""
    first, second = (bytes.fromhex(event["block_plain"]) for event in transcript["events"][:2])
    hello = decode_whole(first, read_server_hello)
    assert encode(hello, write_server_hello) == first
    answer = decode_whole(second, read_client_hello)
    assert encode(answer, write_client_hello) == second
    assert hello.session_id.hex() == transcript["session_id"]
    assert hello.signed_key is not None
    assert hello.signed_key.key.raw.hex() == transcript["keys"]["A.server_session_x25519_pub"]
    assert answer.version == NTF_VERSIONS.agreed(hello.versions) == transcript["version"]
    layout = connection_layout(answer.version, hello.session_id)
    return Session(layout, answer.version, hello.signed_key.key, private_keys(transcript))


@pytest.mark.parametrize("name", FILES)
def test_recorded_sessions(name: str) -> None:
    transcript = vector_file(f"transcripts/{name}")
    session = opened(transcript)
    for event in transcript["events"][2:]:
        payload = bytes.fromhex(event["block_plain"])
        if event["dir"] == "c2s":
            session.sent(event["note"], payload)
        else:
            session.received(payload)
    assert not session.asked, "every request was answered under its correlation id"
    assert session.token_keys.keys() >= {
        bytes.fromhex(found) for label, found in transcript["ids"].items() if label.startswith("token")
    }
    assert len(session.refused) == {FILES[0]: 13, FILES[1]: 0}[name]
