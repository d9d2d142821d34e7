"""Replays one side of a recorded agent connection from its own secrets and compares every layer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from blindpost.crypto.aead import AeadError, unseal
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.kem import Encapsulated, KemKeyPair
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet import (
    RatchetErrorKind,
    RatchetFailure,
    RatchetStep,
    decrypt,
    encrypt_body,
    encrypt_header,
)
from blindpost.crypto.ratchet_state import (
    Ratchet,
    SkippedKeys,
    receiving_ratchet,
    sending_ratchet,
)
from blindpost.crypto.ratchet_storage import dump_ratchet, load_ratchet
from blindpost.crypto.x3dh import (
    KeyAgreement,
    PrivateParams,
    SyncRole,
    agree_as_receiver,
    agree_as_sender,
    sync_hash,
    sync_role,
)
from blindpost.wire.agent.envelopes import (
    AgentEnvelope,
    ClientEnvelope,
    ClientMessage,
    Confirmation,
    Invitation,
    MessageEnvelope,
    PublicHeader,
    RatchetKey,
    read_agent_envelope,
    read_client_envelope,
    read_client_message,
    write_agent_envelope,
    write_client_envelope,
    write_client_message,
)
from blindpost.wire.agent.messages import (
    AgentMessage,
    KeyedQueue,
    QKey,
    read_agent_message,
    write_agent_message,
)
from blindpost.wire.e2e import (
    E2EParams,
    KemAccepted,
    KemProposed,
    read_e2e_params,
    read_encrypted_header,
    read_ratchet_message,
    write_e2e_params,
)
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.links.full import InvitationLink, full_link_from_text, read_full_link
from blindpost.wire.padding import unpad
from blindpost.wire.primitives import Reader, decode_whole, encode
from blindpost.wire.value import Buffer
from tests.support.agent.ratchets import Played, changed_skipped, x448, x448_public
from tests.support.wire.vectors import VECTORS, vector_file

FOLDER = VECTORS / "agent_transcripts"
MATRICES = {"error_matrix", "link_text_matrix", "short_link_data_matrix"}
STEPS = {"adv": RatchetStep.ADVANCE, "same": RatchetStep.SAME, "skipped": RatchetStep.SKIPPED}
CONFIRMATION_SIZES = {11106: True, 14832: False}


def transcript(name: str) -> dict[str, Any]:
    return vector_file(f"agent_transcripts/{name}.json")


def transcript_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json") if path.stem not in MATRICES)


def x25519(private: str) -> PrivateKey:
    return PrivateKey(Algorithm.X25519, bytes.fromhex(private))


def x25519_public(raw: str) -> PublicKey:
    return PublicKey(Algorithm.X25519, bytes.fromhex(raw))


def sha256(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


class Replay:
    """The recorded side of one connection."""

    def __init__(self, name: str) -> None:
        self.record = transcript(name)
        self.keys: dict[str, Any] = self.record["keys"]
        self.own_max = 2 if name == "ratchet_v2" else 3
        self.ratchet: Ratchet | None = None
        self.skipped: SkippedKeys = {}
        self.secrets: dict[str, bytes] = {}
        self.last_sent: tuple[str, bytes] | None = None
        self.received: dict[str, bytes] = {}
        self.sent_sync: RatchetKey | None = None
        self.received_sync: RatchetKey | None = None
        self.roles: list[SyncRole] = []
        if "x3dh_S" in self.keys:
            self.ratchet = self.join(self.keys["x3dh_S"])

    def run(self, seen: Callable[[Replay, dict[str, Any], AgentEnvelope], None] | None = None) -> None:
        """Process all events; `seen` is told of every envelope before the ratchet turns for it."""
        for event in self.record["events"]:
            handle = {"in": self.receive, "out": self.send}[event["dir"]]
            handle(event, seen or (lambda replay, event, envelope: None))

    def join(self, recorded: dict[str, Any]) -> Ratchet:
        """The ratchet of a joiner, from its private keys and the link."""
        version = recorded["e2e_version"]
        kem = recorded.get("kem")
        pair = made = None
        if kem is not None:
            pair = KemKeyPair(bytes.fromhex(kem["pk"]), bytes.fromhex(kem["sk"]))
            if "ct" in kem:
                made = Encapsulated(bytes.fromhex(kem["ct"]), bytes.fromhex(kem["ss"]))
        own = PrivateParams(x448(recorded["s1_priv"]), x448(recorded["s2_priv"]), pair, made)
        peer = self.linked_params(version)
        if peer is None:
            peer = E2EParams(version, x448_public(recorded["r1_pub"]), x448_public(recorded["r2_pub"]))
        assert (peer.key1.raw.hex(), peer.key2.raw.hex()) == (recorded["r1_pub"], recorded["r2_pub"])
        agreed = agree_as_sender(own, peer)
        check_agreed(agreed, recorded)
        self.sent_params = own.public(version)
        ratchet = sending_ratchet(version, self.own_max, peer.key2, x448(recorded["sD_priv"]), agreed)
        check_state(ratchet, recorded["ratchet_initial"])
        return ratchet

    def linked_params(self, version: int) -> E2EParams | None:
        """The link creator's parameters, from the text of the link or from the data of a short one."""
        if "short_link_read" in self.keys:
            reader = Reader(bytes.fromhex(self.keys["short_link_read"]["fixed_data"]))
            reader.u32()
            reader.short()
            link = read_full_link(reader)
        elif "link" in self.record:
            link = full_link_from_text(self.record["link"])
        else:
            return None
        assert isinstance(link, InvitationLink)
        return link.e2e.at(version)

    def receive(self, event: dict[str, Any], seen: Callable[..., None]) -> None:
        if "client_envelope" in event:
            self.received[event["client_message_sha256"]] = bytes.fromhex(event["client_envelope"])
        data = self.received[self.original(event)]
        envelope = decode_whole(data, read_client_envelope)
        secret = self.receiving_secret(event, envelope)
        message = decode_whole(BoxKey(secret).open_padded(envelope.nonce, envelope.box), read_client_message)
        self.check_client_layer(event, envelope, secret, message)
        assert encode(envelope, write_client_envelope) == data
        agent = decode_whole(message.agent_envelope, read_agent_envelope)
        assert encode(agent, write_agent_envelope) == message.agent_envelope
        assert agent.agent_version == event["agent_version"]
        match agent:
            case Invitation():
                assert event["agent_tag"] == "I"
                assert agent.link.text == event["decoded"]["link"]
                assert str(agent.info, "utf-8") == event["decoded"]["info"]
                seen(self, event, agent)
            case RatchetKey():
                assert event["agent_tag"] == "R"
                self.receive_ratchet_key(event, agent)
                seen(self, event, agent)
            case Confirmation():
                assert event["agent_tag"] == "C"
                self.receive_confirmation(event, agent)
                seen(self, event, agent)
                self.open(event, agent.encrypted_info)
            case MessageEnvelope():
                assert event["agent_tag"] == "M"
                seen(self, event, agent)
                self.open(event, agent.encrypted_message)

    def original(self, event: dict[str, Any]) -> str:
        """Of a second copy only the hash of the ratchet message is recorded."""
        if "client_envelope" in event:
            return str(event["client_message_sha256"])
        (first,) = {
            earlier["client_message_sha256"]
            for earlier in self.record["events"]
            if earlier.get("ratchet_message_sha256") == event["ratchet_message_sha256"]
            and "client_envelope" in earlier
        }
        return str(first)

    def receiving_secret(self, event: dict[str, Any], envelope: ClientEnvelope) -> bytes:
        queue = event["queue"]
        if envelope.header.dh_key is not None:
            self.secrets[queue] = x25519(self.keys[queue]["e2e_priv"]).agree(envelope.header.dh_key)
        return self.secrets[queue]

    def check_client_layer(
        self, event: dict[str, Any], envelope: ClientEnvelope, secret: bytes, message: ClientMessage
    ) -> None:
        dh_key = envelope.header.dh_key
        assert envelope.header.client_version == event["client_version"]
        assert (dh_key.raw.hex() if dh_key is not None else None) == event["sender_dh"]
        assert secret.hex() == event["e2e_secret"]
        assert len(envelope.box) - 16 == event["padded_client_message"] == envelope.header.box_size
        whole = encode(message, write_client_message)
        assert len(whole) == event["client_message_len"]
        assert sha256(whole) == event["client_message_sha256"]
        assert whole[: len(event["client_message_prefix"]) // 2].hex() == event["client_message_prefix"]
        key = message.sender_key
        assert (key.spki.hex() if key is not None else None) == event["priv_header_key"]
        if "client_envelope" in event:
            assert envelope.nonce.hex() == event["nonce"]
            assert sha256(encode(envelope, write_client_envelope)) == event["client_envelope_sha256"]

    def receive_confirmation(self, event: dict[str, Any], confirmation: Confirmation) -> None:
        if confirmation.e2e is None:
            assert "e2e_params" not in event
            return
        recorded, params = self.keys["x3dh_R"], confirmation.e2e
        check_params(params, event["e2e_params"])
        own = PrivateParams(x448(recorded["r1_priv"]), x448(recorded["r2_priv"]), recorded_pair(recorded))
        agreed = agree_as_receiver(own, params)
        check_agreed(agreed, recorded)
        assert (agreed.accepted.secret.hex() if agreed.accepted else None) == recorded["ss"]
        initial = recorded["ratchet_initial"]
        self.ratchet = receiving_ratchet(
            params.version, self.own_max, own.key2, agreed, pq_support=initial["supportKEM"]
        )
        check_state(self.ratchet, initial)

    def receive_ratchet_key(self, event: dict[str, Any], key: RatchetKey) -> None:
        decoded = event["decoded"]
        assert key.e2e.version == decoded["e2e_version"]
        assert (key.e2e.key1.raw.hex(), key.e2e.key2.raw.hex()) == (decoded["k1"], decoded["k2"])
        assert sync_hash(key.e2e.key1, key.e2e.key2).hex() == decoded["hash"]
        assert key.info.hex() == decoded["info"]
        self.received_sync = key
        self.synchronise()

    def synchronise(self) -> None:
        """Once both keys are known: the roles, and a new ratchet without the old one's skipped keys."""
        if self.sent_sync is None or self.received_sync is None:
            return
        recorded, peer = self.keys["sync1"], self.received_sync.e2e
        own = PrivateParams(x448(recorded["k1_priv"]), x448(recorded["k2_priv"]), recorded_pair(recorded))
        assert own.public(peer.version) == self.sent_sync.e2e
        own_hash = sync_hash(own.key1.public, own.key2.public)
        peer_hash = sync_hash(peer.key1, peer.key2)
        assert (own_hash.hex(), peer_hash.hex()) == (recorded["hash"], recorded["peer_hash"])
        role = sync_role(own_hash, peer_hash)
        self.roles.append(role)
        initial = recorded["ratchet_initial"]
        if role is SyncRole.SENDER:
            assert recorded["role"] == "S"
            agreed = agree_as_sender(own, peer)
            dh_key = x448(recorded["sD_priv"])
            self.ratchet = sending_ratchet(peer.version, self.own_max, peer.key2, dh_key, agreed)
        else:
            assert recorded["role"] == "R"
            agreed = agree_as_receiver(own, peer)
            self.ratchet = receiving_ratchet(
                peer.version, self.own_max, own.key2, agreed, pq_support=initial["supportKEM"]
            )
        check_agreed(agreed, recorded)
        check_state(self.ratchet, initial)
        self.skipped = {}
        self.sent_sync = self.received_sync = None

    def open(self, event: dict[str, Any], message: Buffer) -> None:
        """Open the ratchet with the recorded draws, and read the agent message."""
        assert self.ratchet is not None
        assert (len(message), sha256(message)) == (
            event["ratchet_message_len"],
            event["ratchet_message_sha256"],
        )
        used = event.get("random_used", {})
        source = played(used)
        opened = decrypt(self.ratchet, self.skipped, message, entropy=source.entropy, kem=source)
        assert source.exhausted
        if "error" in event:
            assert event["error"] == "RErr('RATCHET_HEADER')"
            assert opened.failure == RatchetFailure(RatchetErrorKind.HEADER)
            assert opened.ratchet is self.ratchet
            return
        assert opened.plaintext is not None, opened.failure
        assert opened.step is STEPS[event["ratchet_step"]]
        assert self.opened_header(message).hex() == event["ratchet_header"]
        assert opened.plaintext.hex() == event["agent_message"]
        assert sha256(opened.plaintext) == event["agent_message_sha256"]
        if "pq_received" in event:
            assert opened.ratchet.rcv_kem == event["pq_received"]
        check_state(opened.ratchet, event["ratchet_after"])
        self.skipped = changed_skipped(self.skipped, opened.skipped)
        self.keep(opened.ratchet)
        self.read(event, opened.plaintext)

    def opened_header(self, message: Buffer) -> Buffer:
        """The plaintext of the header, by whichever key opens it."""
        assert self.ratchet is not None
        sealed = decode_whole(
            decode_whole(message, read_ratchet_message).encoded_header, read_encrypted_header
        )
        current = [] if self.ratchet.rcv is None else [self.ratchet.rcv.header_key]
        for key in (*self.skipped, *current, self.ratchet.next_rcv_header_key):
            try:
                return unpad(unseal(key, sealed.iv, self.ratchet.ad, sealed.tag, sealed.ciphertext))
            except AeadError:
                continue
        raise AssertionError("no header key fits")

    def read(self, event: dict[str, Any], plaintext: Buffer) -> None:
        message = decode_whole(plaintext, read_agent_message)
        assert encode(message, write_agent_message) == plaintext
        if isinstance(message, AgentMessage):
            assert message.snd_msg_id == event["decoded"]["number"]
            assert message.prev_msg_hash.hex() == event["decoded"]["prev_hash"]
            if isinstance(message.message, QKey):
                for keyed in message.message.queues:
                    self.learn_queue(keyed)

    def learn_queue(self, keyed: KeyedQueue) -> None:
        """The peer sends its key of a new queue in QKEY, not in the header of a message."""
        for name, queue in self.keys.items():
            if name.startswith("rq") and queue["sender_id"] == keyed.queue.address.sender_id.hex():
                self.secrets[name] = x25519(queue["e2e_priv"]).agree(keyed.queue.address.dh_key)

    def send(self, event: dict[str, Any], seen: Callable[..., None]) -> None:
        queue = self.keys[event["queue"]]
        own, secret = x25519(queue["e2e_priv"]), bytes.fromhex(event["e2e_secret"])
        assert own.public.raw.hex() == queue["e2e_pub"]
        assert own.agree(x25519_public(queue["peer_dh_pub"])) == secret
        agent = self.sent_envelope(event)
        seen(self, event, agent)
        body = encode(agent, write_agent_envelope)
        with_key = isinstance(agent, Confirmation | Invitation)
        signed = event["client_message_prefix"].startswith("4b")
        assert with_key or not signed
        sender_key = (
            PrivateKey(Algorithm.ED25519, bytes.fromhex(queue["snd_auth_priv"])).public if signed else None
        )
        message = encode(ClientMessage(sender_key, body), write_client_message)
        assert message[: len(event["client_message_prefix"]) // 2].hex() == event["client_message_prefix"]
        assert (len(message), sha256(message)) == (
            event["client_message_len"],
            event["client_message_sha256"],
        )
        header = PublicHeader(queue["client_version"], own.public if with_key else None)
        nonce = bytes.fromhex(event["nonce"])
        box = BoxKey(secret).seal_padded(nonce, message, header.box_size)
        made = encode(ClientEnvelope(header, nonce, box), write_client_envelope)
        assert sha256(made) == event["client_envelope_sha256"]
        assert made.hex() == event.get("client_envelope", made.hex())
        if isinstance(agent, RatchetKey):
            self.sent_sync = agent
            self.synchronise()

    def sent_envelope(self, event: dict[str, Any]) -> AgentEnvelope:
        if "agent_envelope" in event:
            envelope = decode_whole(bytes.fromhex(event["agent_envelope"]), read_agent_envelope)
            assert isinstance(envelope, Invitation | RatchetKey)
            if isinstance(envelope, Invitation):
                assert envelope.link.text == self.record["sent_invitation"]
            return envelope
        sealed = self.seal(event)
        prefix = bytes.fromhex(event["agent_envelope_prefix"])
        version, tag = int.from_bytes(prefix[:2], "big"), prefix[2:3]
        if tag == b"M":
            return MessageEnvelope(version, sealed)
        assert tag == b"C"
        params = None
        if event["e2e_params"] is not None:
            params = decode_whole(bytes.fromhex(event["e2e_params"]), read_e2e_params)
            assert params == self.sent_params
            assert encode(params, write_e2e_params).hex() == event["e2e_params"]
        assert (params is not None) == (prefix[3:4] == b"1")
        return Confirmation(version, params, sealed)

    def seal(self, event: dict[str, Any]) -> bytes:
        """The ratchet message; one that goes to two queues is sealed once."""
        if self.last_sent is not None and self.last_sent[0] == event["ratchet_message_sha256"]:
            return self.last_sent[1]
        assert self.ratchet is not None
        padded = event["padded_to"]
        wish = event["pq_wish"] if "pq_wish" in event else CONFIRMATION_SIZES[padded]
        ratchet, key = encrypt_header(self.ratchet, wish, self.own_max)
        plaintext = bytes.fromhex(event["agent_message"])
        decode_whole(plaintext, read_agent_message)
        sealed = encrypt_body(key, plaintext, padded)
        assert (len(sealed), sha256(sealed)) == (
            event["ratchet_message_len"],
            event["ratchet_message_sha256"],
        )
        assert self.sealed_header(sealed).hex() == event["ratchet_header"]
        check_state(ratchet, event["ratchet_after"])
        self.keep(ratchet)
        self.last_sent = (event["ratchet_message_sha256"], sealed)
        return sealed

    def sealed_header(self, message: bytes) -> Buffer:
        assert self.ratchet is not None
        assert self.ratchet.snd is not None
        sealed = decode_whole(
            decode_whole(message, read_ratchet_message).encoded_header, read_encrypted_header
        )
        key = self.ratchet.snd.header_key
        return unpad(unseal(key, sealed.iv, self.ratchet.ad, sealed.tag, sealed.ciphertext))

    def keep(self, ratchet: Ratchet) -> None:
        self.ratchet = load_ratchet(dump_ratchet(ratchet))
        assert self.ratchet == ratchet


def recorded_pair(recorded: dict[str, Any]) -> KemKeyPair | None:
    if "kem_pk" not in recorded:
        return None
    return KemKeyPair(bytes.fromhex(recorded["kem_pk"]), bytes.fromhex(recorded["kem_sk"]))


def played(used: dict[str, str]) -> Played:
    drawn = {name: bytes.fromhex(value) for name, value in used.items()}
    keys = [drawn.pop("dh_priv")] if "dh_priv" in drawn else []
    if not drawn:
        return Played(keys)
    pair = KemKeyPair(drawn.pop("kem_pk"), drawn.pop("kem_sk"))
    made = Encapsulated(drawn.pop("kem_ct"), drawn.pop("kem_ss"))
    assert not drawn
    return Played(keys, [pair], [made])


def check_params(params: E2EParams, recorded: dict[str, Any]) -> None:
    assert params.version == recorded["version"]
    assert (params.key1.raw.hex(), params.key2.raw.hex()) == (recorded["k1"], recorded["k2"])
    match params.kem:
        case None:
            assert recorded["kem"] is None
        case KemProposed(public_key):
            assert recorded["kem"]["kind"] == "P"
            assert sha256(public_key) == recorded["kem"]["pk_sha256"]
        case KemAccepted(ciphertext, public_key):
            assert recorded["kem"]["kind"] == "A"
            assert ciphertext.hex() == recorded["kem"]["ct"]
            assert sha256(public_key) == recorded["kem"]["pk_sha256"]


def check_agreed(agreed: KeyAgreement, recorded: dict[str, Any]) -> None:
    assert (agreed.header_key.hex(), agreed.next_header_key.hex()) == (recorded["hk"], recorded["nhk"])
    assert agreed.root_key.hex() == recorded["sk"]
    assert agreed.security_code.hex() == recorded["ad_sha256"]
    assert agreed.ad.hex() == recorded.get("ad", agreed.ad.hex())


def check_state(ratchet: Ratchet, recorded: dict[str, Any]) -> None:
    """All that the record keeps of a state."""
    kem, snd, rcv = ratchet.kem, ratchet.snd, ratchet.rcv
    kept = {
        "current": ratchet.current,
        "ad": ratchet.ad.hex(),
        "dhs_priv": ratchet.dh_key.raw.hex(),
        "rk": ratchet.root_key.hex(),
        "snd": snd and {"ck": snd.chain_key.hex(), "hk": snd.header_key.hex()},
        "rcv": rcv and {"ck": rcv.chain_key.hex(), "hk": rcv.header_key.hex()},
        "nhks": ratchet.next_snd_header_key.hex(),
        "nhkr": ratchet.next_rcv_header_key.hex(),
        "ns": ratchet.ns,
        "nr": ratchet.nr,
        "pn": ratchet.pn,
        "supportKEM": ratchet.support_kem,
        "enableKEM": ratchet.enable_kem,
        "sndKEM": ratchet.snd_kem,
        "rcvKEM": ratchet.rcv_kem,
        "kem": kem and {"pk_sha256": sha256(kem.pair.public_key), "accepted": kem.accepted is not None},
    }
    assert kept == recorded
