"""Recorded conversations with the reference router, opened layer by layer and reassembled."""

from __future__ import annotations

import pytest

from blindpost.crypto.block_chain import BlockChain, client_chains, router_chains
from blindpost.crypto.boxes import BoxKey, nonce_of, reversed_nonce
from blindpost.crypto.chains import leaf_key
from blindpost.crypto.credentials import verify_session_key
from blindpost.crypto.keys import verify
from blindpost.wire.batch import batch_of_one, unpack
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.smp.commands import LKEY, NEW, NSUBS, PFWD, RFWD, SEND, SKEY, SUBS
from blindpost.wire.smp.handshake import (
    ServiceAccepted,
    encrypts_blocks,
    read_client_hello,
    read_server_hello,
    read_service_response,
    write_client_hello,
    write_server_hello,
    write_service_response,
)
from blindpost.wire.smp.messages import (
    Message,
    QuotaMarker,
    read_forwarded_response,
    read_forwarded_transmission,
    read_message,
    read_nmsg_meta,
    write_forwarded_response,
    write_forwarded_transmission,
    write_message,
    write_nmsg_meta,
)
from blindpost.wire.smp.responses import ERR, IDS, INFO, MSG, NMSG, OK, PKEY, PRES, RRES
from blindpost.wire.smp.transmissions import (
    Received,
    Request,
    parse_forwarded_request,
    parse_requests,
    parse_responses,
)
from blindpost.wire.smp.versions import (
    FORWARDED_PADDED_SIZE,
    MSG_PADDED_SIZE,
    NMSG_PADDED_SIZE,
    forwarded_layout,
)
from blindpost.wire.transmission import Layout, transmission_of
from blindpost.wire.transmissions import Refused, response_transmission, signed_request
from tests.support.wire.smp_transcripts import FILES, Event, Transcript, made_by

HELLOS = {"server hello", "client hello", "service response"}

UNAUTHORIZED = {
    "04-key-secure.json": {24, 26},
    "15-errors.json": {30, 132, 140, 142, 160, 172},
    "20-service-new-sub.json": {17, 19, 21},
    "25-service-roles.json": {15, 17},
    "27-blocked.json": {33},
}
"""Events whose authorization no listed key made: wrong on purpose, all answered with an error."""

BAD_SERVICE_SIGNATURES = {"15-errors.json": {146, 148}, "20-service-new-sub.json": {15, 19}}

WRITTEN_OTHERWISE = {("15-errors.json", "SEND long flags")}
"""Read as sent, but nobody writes flags like these."""

transcripts = pytest.mark.parametrize("name", FILES)


def batches(transcript: Transcript, *, to_router: bool) -> list[tuple[int, Event]]:
    return [
        (place, event)
        for place, event in enumerate(transcript.events)
        if event.note not in HELLOS and event.to_router is to_router
    ]


def items_of(payload: bytes) -> list[bytes]:
    try:
        return [bytes(reader.rest()) for reader in unpack(Reader(payload))]
    except WireError:
        return [b""]


def requests_of(transcript: Transcript, event: Event) -> list[Request | Refused]:
    return parse_requests(Reader(event.payload), *transcript.layout(event.connection))


def received(transcript: Transcript) -> list[tuple[Event, Received]]:
    """All responses of a transcript; none of them may be refused."""
    found = []
    for _, event in batches(transcript, to_router=False):
        for result in parse_responses(Reader(event.payload), *transcript.layout(event.connection)):
            assert isinstance(result, Received), event.note
            found.append((event, result))
    return found


def payload_of(items: list[Writer]) -> bytes:
    payload = Writer().u8(len(items))
    for item in items:
        payload.u16(item.size).extend(item)
    return payload.done()


def test_all_smp_transcripts_are_here() -> None:
    assert len(FILES) == 34
    assert FILES[0].startswith("01-")
    assert FILES[-1].startswith("27-")


@transcripts
def test_hellos(name: str) -> None:
    transcript = Transcript(name)
    offered = {}
    for event in transcript.events:
        session = transcript.session(event.connection)
        if event.note == "server hello":
            hello = offered[event.connection] = decode_whole(event.payload, read_server_hello)
            assert encode(hello, write_server_hello) == event.payload
            assert hello.session_id.hex() == session["session_id"]
            router_key = transcript.router_key(event.connection)
            if hello.cert_key is None:
                assert router_key is None
                continue
            assert hello.cert_key.signed_key.key == router_key
            assert verify_session_key(leaf_key(hello.cert_key.chain), hello.cert_key.signed_key)
        elif event.note == "client hello":
            client = decode_whole(event.payload, read_client_hello)
            assert encode(client, write_client_hello) == event.payload
            assert client.version == session["version"]
            assert client.proxy_server is session["proxy_flag"]
            assert encrypts_blocks(offered[event.connection], client) is session["encrypted"]
            own = transcript.private_keys.get(f"{event.connection}.client_session_x25519")
            assert client.client_key == (None if own is None else own.public)
            assert (client.service is not None) is (session["service_id"] is not None)
        elif event.note == "service response":
            response = decode_whole(event.payload, read_service_response)
            assert encode(response, write_service_response) == event.payload
            assert response == ServiceAccepted(bytes.fromhex(session["service_id"]))


@transcripts
def test_requests_are_reassembled(name: str) -> None:
    transcript = Transcript(name)
    for _, event in batches(transcript, to_router=True):
        layout, version = transcript.layout(event.connection)
        for item, request in zip(items_of(event.payload), requests_of(transcript, event), strict=True):
            if isinstance(request, Request):
                again = rewritten(request, layout, version)
                assert (again == item) is ((name, event.note) not in WRITTEN_OTHERWISE), event.note


def rewritten(request: Request, layout: Layout, version: int) -> bytes:
    signed = signed_request(request.corr_id, request.entity_id, request.command, version)
    return transmission_of(layout, signed, request.authorization, request.service_signature).done()


@transcripts
def test_responses_are_reassembled(name: str) -> None:
    transcript = Transcript(name)
    for _, event in batches(transcript, to_router=False):
        layout, version = transcript.layout(event.connection)
        results = parse_responses(Reader(event.payload), layout, version)
        items = []
        for result in results:
            assert isinstance(result, Received), event.note
            items.append(
                response_transmission(layout, version, result.corr_id, result.entity_id, result.response)
            )
        assert payload_of(items) == event.payload, event.note
        for result, noted in zip(results, event.note.split("; "), strict=False):
            assert isinstance(result, Received)
            assert noted.split(" ")[0] == type(result.response).TAG.decode()
        assert event.note.endswith("(event)") is (results[-1].corr_id == b"")


@transcripts
def test_the_router_refused_what_we_refuse(name: str) -> None:
    """What does not parse got the same error and ids that we would answer with."""
    transcript = Transcript(name)
    for place, event in batches(transcript, to_router=True):
        refused = [one for one in requests_of(transcript, event) if isinstance(one, Refused)]
        answers = answers_after(transcript, place) if refused else []
        for one in refused:
            expected = Received(one.corr_id, one.entity_id, ERR(one.error))
            assert expected in answers, event.note


def answers_after(transcript: Transcript, place: int) -> list[Received | Refused]:
    """Responses on the same connection before its next request."""
    connection = transcript.events[place].connection
    answers: list[Received | Refused] = []
    for event in transcript.events[place + 1 :]:
        if event.connection == connection:
            if event.to_router:
                break
            answers += parse_responses(Reader(event.payload), *transcript.layout(connection))
    return answers


@transcripts
def test_authorizations(name: str) -> None:
    transcript = Transcript(name)
    unauthorized, bad_signatures = set(), set()
    for place, event in batches(transcript, to_router=True):
        layout, _ = transcript.layout(event.connection)
        for request in requests_of(transcript, event):
            if not isinstance(request, Request) or not request.authorization:
                continue
            if not authorized_by_a_known_key(transcript, event, request, layout):
                unauthorized.add(place)
            if request.service_signature is not None:
                key = transcript.private_keys.get(f"{event.connection}.service_session_ed25519")
                signed = request.authorized(layout)
                if key is None or not verify(key.public, signed, request.service_signature):
                    bad_signatures.add(place)
    assert unauthorized == UNAUTHORIZED.get(name, set())
    assert bad_signatures == BAD_SERVICE_SIGNATURES.get(name, set())
    for place in unauthorized | bad_signatures:
        assert all(
            isinstance(answer, Received) and isinstance(answer.response, ERR)
            for answer in answers_after(transcript, place)
            if answer.corr_id
        )


def authorized_by_a_known_key(transcript: Transcript, event: Event, request: Request, layout: Layout) -> bool:
    connection, authorization, corr_id = event.connection, request.authorization, request.corr_id
    dual = request.service_signature is not None
    covered = transcript.covered(connection, request.authorized(layout), dual)
    names = transcript.authorizers(connection, authorization, covered, corr_id)
    command = request.command
    if isinstance(command, SUBS | NSUBS) and transcript.session(connection)["service_id"] is not None:
        return names == {f"{connection}.service_session_ed25519"}
    if isinstance(command, NEW) and names:
        assert command.auth_key in {transcript.private_keys[name].public for name in names}
    if isinstance(command, SKEY | LKEY) and not names:
        assert command.key.algorithm is Algorithm.ED25519
        return verify(command.key, covered, authorization)
    return bool(names)


@transcripts
def test_created_queues(name: str) -> None:
    """IDS carries the listed ids, and its key agrees on the listed secrets."""
    transcript = Transcript(name)
    for _, result in received(transcript):
        if not isinstance(result.response, IDS):
            continue
        ids = result.response
        queue = transcript.owner(ids.recipient_id)
        assert ids.sender_id == transcript.id(f"{queue}.snd_id")
        own = transcript.private_keys[f"{queue}.rcv_dh_x25519"]
        assert own.agree(ids.dh_key) == transcript.secret(f"{queue}.delivery_secret")
        if ids.ntf_creds is not None:
            assert ids.ntf_creds.notifier_id == transcript.id(f"{queue}.ntf_id")
            own = transcript.private_keys[f"{queue}.ntf_dh_x25519"]
            assert own.agree(ids.ntf_creds.dh_key) == transcript.secret(f"{queue}.ntf_secret")


@transcripts
def test_messages_open_and_seal_again(name: str) -> None:
    transcript = Transcript(name)
    for _, result in received(transcript):
        match result.response:
            case MSG(msg_id, enc_body):
                box, nonce = transcript.delivery_box(result.entity_id), nonce_of(msg_id)
                plain = box.open_padded(nonce, enc_body)
                message = decode_whole(plain, read_message)
                again = encode(message, write_message)
                assert plain == again
                assert box.seal_padded(nonce, again, MSG_PADDED_SIZE) == enc_body
            case NMSG(nonce, enc_meta):
                box = transcript.notification_box(result.entity_id)
                meta = decode_whole(box.open_padded(nonce, enc_meta), read_nmsg_meta)
                assert box.seal_padded(nonce, encode(meta, write_nmsg_meta), NMSG_PADDED_SIZE) == enc_meta


def opened(transcript: Transcript) -> list[Message | QuotaMarker]:
    """The plaintexts of all messages in order."""
    plains: list[Message | QuotaMarker] = []
    for _, result in received(transcript):
        if isinstance(result.response, MSG):
            nonce = nonce_of(result.response.msg_id)
            plain = transcript.delivery_box(result.entity_id).open_padded(nonce, result.response.enc_body)
            plains.append(decode_whole(plain, read_message))
    return plains


@pytest.mark.parametrize("version", ["06", "07", "09", "11", "15", "16", "19", "20"])
def test_the_body_that_was_sent_arrives(version: str) -> None:
    transcript = Transcript(f"02-basic-flow-v{version}.json")
    sent = [
        (request.command.notify, bytes(request.command.body))
        for _, event in batches(transcript, to_router=True)
        for request in requests_of(transcript, event)
        if isinstance(request, Request) and isinstance(request.command, SEND)
    ]
    arrived = [(one.notify, bytes(one.body)) for one in opened(transcript) if isinstance(one, Message)]
    assert arrived == sent[:2]
    assert len(sent) == 3


def test_the_quota_marker_comes_last_before_sending_resumes() -> None:
    plains = opened(Transcript("14-quota.json"))
    assert [type(plain) for plain in plains] == [Message, QuotaMarker, Message]
    infos = [result.response for _, result in received(Transcript("14-quota.json"))]
    assert any(isinstance(info, INFO) and info.info.msg is not None for info in infos)


@transcripts
def test_chain_keys(name: str) -> None:
    """The keys in both hellos and the session id give the chains that the recording used."""
    transcript = Transcript(name)
    for connection in {event.connection for event in transcript.events}:
        to_client, to_router = (transcript.secret(f"{connection}.chain_{way}") for way in ("s2c", "c2s"))
        if to_client is None or to_router is None:
            continue
        own = transcript.private_keys[f"{connection}.client_session_x25519"]
        router_key = transcript.router_key(connection)
        assert router_key is not None
        session_id = bytes.fromhex(transcript.session(connection)["session_id"])
        chains = client_chains(session_id, own.agree(router_key))
        assert chains.sending.seal_block([b"x"], 1) == BlockChain(to_router).seal_block([b"x"], 1)
        other = router_chains(session_id, own.agree(router_key))
        assert other.sending.seal_block([b"x"], 1) == BlockChain(to_client).seal_block([b"x"], 1)


def test_raw_blocks_open_through_the_chains() -> None:
    transcript = Transcript(FILES[0])
    own = transcript.private_keys["A.client_session_x25519"]
    router_key = transcript.router_key("A")
    assert router_key is not None
    session_id = bytes.fromhex(transcript.session("A")["session_id"])
    client = client_chains(session_id, own.agree(router_key))
    router = router_chains(session_id, own.agree(router_key))
    sealed = [event for event in transcript.events if event.raw is not None]
    assert len(sealed) == 4
    for event in sealed:
        assert event.raw is not None
        sender, receiver = (client, router) if event.to_router else (router, client)
        assert receiver.receiving.open_block(event.raw) == event.payload
        assert sender.sending.seal_block([event.payload], len(event.payload)) == event.raw


def test_commands_through_a_proxy() -> None:
    transcript = Transcript("18-proxy.json")
    relay_key = PublicKey(Algorithm.X25519, transcript.secret("relay_session_x25519_pub") or b"")
    relay_session = transcript.id("relay_session_id")
    (told, again) = [
        result.response for _, result in received(transcript) if isinstance(result.response, PKEY)
    ]
    assert told == again
    assert (told.session_id, told.cert_key.signed_key.key) == (relay_session, relay_key)
    assert verify_session_key(leaf_key(told.cert_key.chain), told.cert_key.signed_key)
    kinds = []
    for place, event in batches(transcript, to_router=True):
        (request,) = requests_of(transcript, event)
        if not isinstance(request, Request) or not isinstance(request.command, PFWD):
            continue
        pfwd, n = request.command, request.corr_id
        assert request.entity_id == relay_session
        kind = event.note.split(" ")[1]
        command_key = transcript.private_keys[f"cmd_x25519_{kind}"]
        assert pfwd.command_key == command_key.public
        box = BoxKey.agreed(command_key, relay_key)
        inner = box.open_padded(n, pfwd.enc_transmission)
        layout = forwarded_layout(pfwd.version, relay_session)
        forwarded = parse_forwarded_request(Reader(inner), pfwd.version, relay_session)
        assert isinstance(forwarded, Request)
        assert forwarded.entity_id == transcript.id("q.snd_id")
        assert type(forwarded.command).TAG.decode() == kind
        key = transcript.private_keys["snd_auth"]
        assert made_by(key, forwarded.authorization, forwarded.authorized(layout), n, relay_key)
        rebuilt = batch_of_one(Writer().raw(rewritten(forwarded, layout, pfwd.version)))
        sealed = box.seal_parts(n, rebuilt.parts, rebuilt.size, FORWARDED_PADDED_SIZE)
        assert sealed == pfwd.enc_transmission
        (answer,) = answers_after(transcript, place)
        assert isinstance(answer, Received)
        assert isinstance(answer.response, PRES)
        back = box.open_padded(reversed_nonce(n), answer.response.enc_response)
        assert parse_responses(Reader(back), layout, pfwd.version) == [Received(n, forwarded.entity_id, OK())]
        kinds.append(kind)
    assert kinds == ["SKEY", "SEND"]


def test_a_proxy_hands_a_command_to_the_relay() -> None:
    transcript = Transcript("19-rfwd-as-proxy.json")
    router_key = transcript.router_key("X")
    assert router_key is not None
    outer = BoxKey.agreed(transcript.private_keys["X.client_session_x25519"], router_key)
    inner = BoxKey.agreed(transcript.private_keys["cmd_x25519"], router_key)
    session_id = bytes.fromhex(transcript.session("X")["session_id"])
    ((place, event),) = batches(transcript, to_router=True)
    (request,) = requests_of(transcript, event)
    assert isinstance(request, Request)
    assert isinstance(request.command, RFWD)
    plain = outer.open(nonce_of(request.corr_id), request.command.enc_forward)
    forwarded = decode_whole(plain, read_forwarded_transmission)
    assert encode(forwarded, write_forwarded_transmission) == plain
    batch = inner.open_padded(nonce_of(forwarded.corr_id), forwarded.enc_transmission)
    command = parse_forwarded_request(Reader(batch), forwarded.version, session_id)
    assert isinstance(command, Request)
    assert isinstance(command.command, SEND)
    (answer,) = answers_after(transcript, place)
    assert isinstance(answer, Received)
    assert isinstance(answer.response, RRES)
    back_plain = outer.open(reversed_nonce(nonce_of(request.corr_id)), answer.response.enc_forward_response)
    back = decode_whole(back_plain, read_forwarded_response)
    assert encode(back, write_forwarded_response) == back_plain
    assert back.corr_id == forwarded.corr_id
    response = inner.open_padded(reversed_nonce(nonce_of(forwarded.corr_id)), back.enc_response)
    layout = forwarded_layout(forwarded.version, session_id)
    results = parse_responses(Reader(response), layout, forwarded.version)
    assert results == [Received(command.corr_id, command.entity_id, OK())]
