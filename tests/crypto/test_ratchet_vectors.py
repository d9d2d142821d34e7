"""Whole sessions of the reference's double ratchet, replayed step by step from its own states."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from blindpost.crypto.kem import Encapsulated
from blindpost.crypto.ratchet import (
    HEADER_SIZE,
    KEM_HEADER_SIZE,
    RatchetErrorKind,
    RatchetFailure,
    RatchetStateError,
    RatchetStep,
    decrypt,
    encrypt_body,
    encrypt_header,
)
from blindpost.crypto.ratchet_state import (
    NoSkippedChange,
    Ratchet,
    SkippedAdded,
    SkippedChange,
    SkippedKeys,
    SkippedRemoved,
    sending_ratchet,
)
from blindpost.crypto.ratchet_storage import (
    dump_body_key,
    dump_message_key,
    dump_ratchet,
    load_body_key,
    load_message_key,
    load_ratchet,
)
from blindpost.crypto.x3dh import PrivateParams, agree_as_sender
from blindpost.wire.e2e import (
    KemAccepted,
    KemProposed,
    RatchetHeader,
    read_encrypted_header,
    read_ratchet_header,
    read_ratchet_message,
    write_encrypted_header,
    write_ratchet_header,
    write_ratchet_message,
)
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.value import Buffer
from tests.support.agent.ratchets import (
    Played,
    changed_skipped,
    recorded_params,
    recorded_ratchet,
    recorded_skipped,
    reference_json,
    x448,
)
from tests.support.wire.vectors import named, vectors

SESSIONS = [
    entry
    for name in ("nopq", "v2", "pq_accepted", "pq_proposed", "pq_switch")
    for entry in vectors(f"ratchet_{name}.json")
]
BULK = 520
DIGEST = "sha256 of concatenated u32 n, mk, iv in order"
STORED_KEY = "msg_key (v, AD, mk, iv, encHeader stored form)"

ERRORS = {
    "CERatchetHeader": RatchetErrorKind.HEADER,
    "CERatchetEarlierMessage": RatchetErrorKind.EARLIER,
    "CERatchetTooManySkipped": RatchetErrorKind.SKIPPED,
    "CERatchetDuplicateMessage": RatchetErrorKind.DUPLICATE,
    "AESDecryptError": RatchetErrorKind.AES,
    "CryptoHeaderError": RatchetErrorKind.MALFORMED,
}


def same_bytes(made: Buffer, recorded: str | dict[str, Any]) -> bool:
    """Whether bytes are those of a vector, which gives long ones by length, start and hash."""
    if isinstance(recorded, str):
        return made.hex() == recorded
    described = {"length": len(made), "prefix": made[:64].hex(), "sha256": hashlib.sha256(made).hexdigest()}
    return described == recorded


class Session:
    """Two parties and the messages between them; each step is compared with the record at once."""

    def __init__(self, entry: dict[str, Any]) -> None:
        setup = entry["setup"]
        self.states = {party: recorded_ratchet(setup[f"initial_{party}"]) for party in ("R", "S")}
        self.skipped: dict[str, SkippedKeys] = {"R": {}, "S": {}}
        self.messages: dict[int, bytes] = {}
        self.bulk: list[bytes] = []

    def encrypt(self, step: dict[str, Any]) -> None:
        party = step["party"]
        before = self.states[party]
        if "error" in step:
            assert step["state_after"] == "unchanged"
            self.refuse_to_encrypt(before, step["error"])
            return
        plaintext = bytes.fromhex(step["plaintext"])
        after, key = encrypt_header(before, step["pq_wish"], step["own_max_version"])
        assert same_bytes(dump_body_key(key), step[STORED_KEY])
        message = encrypt_body(load_body_key(dump_body_key(key)), plaintext, step["paddedLen"])
        assert same_bytes(message, step["message"])
        assert after == recorded_ratchet(step["state_after"], before)
        self.messages[step["message_id"]] = message
        self.keep(party, after)

    def refuse_to_encrypt(self, state: Ratchet, error: str) -> None:
        if error == "CERatchetState":
            with pytest.raises(RatchetStateError):
                encrypt_header(state, None, 3)
        else:
            assert error == "CryptoLargeMsgError"
            _, key = encrypt_header(state, None, 3)
            with pytest.raises(WireError):
                encrypt_body(key, bytes(99), 100)
            assert encrypt_body(key, bytes(98), 100)

    def decrypt(self, step: dict[str, Any]) -> None:
        party, of = step["party"], step["of"]
        before, keys = self.states[party], self.skipped[party]
        message = self.messages[of["message_id"]] if "message_id" in of else bytes.fromhex(of["message"])
        unchanged = step["state_after"] == "unchanged"
        after = before if unchanged else recorded_ratchet(step["state_after"], before)
        source = draws(before, after)
        opened = decrypt(before, keys, message, entropy=source.entropy, kem=source)
        assert source.exhausted
        assert opened.ratchet == after
        assert (opened.step is RatchetStep.ADVANCE) == (before.dh_key != after.dh_key)
        assert (opened.plaintext is None) == ("error" in step) == (opened.failure is not None)
        if opened.plaintext is None:
            assert opened.failure == recorded_failure(step["error"])
        else:
            assert opened.plaintext.hex() == step["plaintext"]
        if unchanged:
            assert opened.skipped == NoSkippedChange()
            return
        check_change(opened.skipped, step["skipped_change"])
        self.skipped[party] = changed_skipped(keys, opened.skipped)
        check_skipped(self.skipped[party], step["skipped_after"])
        self.keep(party, opened.ratchet)

    def note(self, step: dict[str, Any]) -> None:
        assert f"S encrypted {BULK} messages 'bulk'" in step["text"]
        for _ in range(BULK):
            self.states["S"], key = encrypt_header(self.states["S"], None, 3)
            self.bulk.append(encrypt_body(key, b"bulk", 100))

    def state(self, step: dict[str, Any]) -> None:
        party = step["party"]
        assert self.states[party] == recorded_ratchet(step["state_after"], self.states[party])

    def keep(self, party: str, ratchet: Ratchet) -> None:
        """From here on use the state as read back from storage."""
        self.states[party] = load_ratchet(dump_ratchet(ratchet))
        assert self.states[party] == ratchet


def draws(before: Ratchet, after: Ratchet) -> Played:
    """What the recorded step drew, seen from the state that it led to."""
    if before.dh_key == after.dh_key:
        return Played()
    kem = after.kem
    if kem is None or kem == before.kem:
        return Played([after.dh_key.raw])
    accepted = kem.accepted
    made = [] if accepted is None else [Encapsulated(accepted.ciphertext, accepted.secret)]
    return Played([after.dh_key.raw], [kem.pair], made)


def recorded_failure(error: str) -> RatchetFailure:
    name, _, detail = error.partition(" ")
    return RatchetFailure(ERRORS[name], int(detail) if detail.isdigit() else 0)


def check_change(change: SkippedChange, recorded: dict[str, Any]) -> None:
    match recorded["change"]:
        case "none":
            assert change == NoSkippedChange()
        case "remove":
            assert change == SkippedRemoved(bytes.fromhex(recorded["headerKey"]), recorded["n"])
        case "add":
            assert isinstance(change, SkippedAdded)
            check_skipped(change.keys, recorded["added"])
        case other:
            pytest.fail(f"unknown change {other}")


def check_skipped(keys: SkippedKeys, recorded: list[dict[str, Any]] | str) -> None:
    assert not isinstance(recorded, str)
    short = [entry for entry in recorded if isinstance(entry["keys"], list)]
    digested = [entry for entry in recorded if not isinstance(entry["keys"], list)]
    expected = recorded_skipped(short)
    assert {key: numbered for key, numbered in keys.items() if key in expected} == expected
    assert len(keys) == len(recorded)
    for entry in digested:
        numbered = keys[bytes.fromhex(entry["headerKey"])]
        joined = b"".join(
            number.to_bytes(4, "big") + numbered[number].key + numbered[number].iv
            for number in sorted(numbered)
        )
        assert len(numbered) == entry["keys"]["count"]
        assert hashlib.sha256(joined).hexdigest() == entry["keys"][DIGEST]
    for numbered in keys.values():
        for key in numbered.values():
            assert load_message_key(dump_message_key(key)) == key


@pytest.mark.parametrize("entry", SESSIONS, ids=named)
def test_recorded_session(entry: dict[str, Any]) -> None:
    session = Session(entry)
    operations: dict[str, Callable[[dict[str, Any]], None]] = {
        "encrypt": session.encrypt,
        "decrypt": session.decrypt,
        "note": session.note,
        "state": session.state,
    }
    for step in entry["steps"]:
        operations[step["op"]](step)
    for party in ("R", "S"):
        assert reference_json(session.states[party]) == entry[f"final_{party}_aeson"]
    given = [step["of"] for step in entry["steps"] if step["op"] == "decrypt" and session.bulk]
    for of in given:
        if "message" in of:
            number = int(of["changed"].split()[1].rstrip(":"))
            assert session.bulk[number - 1].hex() == of["message"]


@pytest.mark.parametrize("entry", vectors("ratchet.json", "header"), ids=named)
def test_recorded_header(entry: dict[str, Any]) -> None:
    data, version = bytes.fromhex(entry["bytes"]), entry["current_version"]
    header = read_ratchet_header(Reader(data), version)
    key = PublicKey.from_spki(bytes.fromhex(entry["DHs_public_spki"]))
    kinds = {None: type(None), "proposed": KemProposed, "accepted": KemAccepted}
    assert type(header.kem) is kinds[entry["kem"]]
    assert header == RatchetHeader(entry["maxVersion"], key, header.kem, entry["PN"], entry["Ns"])
    writer = Writer()
    write_ratchet_header(writer, header, version)
    assert writer.done() == data
    if isinstance(header.kem, KemProposed):
        assert header.kem.public_key == bytes(i % 256 for i in range(1158))
    if isinstance(header.kem, KemAccepted):
        assert header.kem.ciphertext == bytes((7 + i) % 256 for i in range(1039))
    assert read_ratchet_header(Reader(data + b"what a later version adds"), version) == header


@pytest.mark.parametrize("entry", vectors("ratchet.json", "full_size"), ids=named)
def test_recorded_sizes_of_first_messages(entry: dict[str, Any]) -> None:
    plaintext, padded, message = bytes.fromhex(entry["plaintext"]), entry["paddedLen"], entry["message"]
    if not isinstance(entry["setup"], dict):
        prefix = bytes.fromhex(message["prefix"])
        header_size = int.from_bytes(prefix[:2], "big")
        assert header_size == 2 + 16 + 16 + 2 + KEM_HEADER_SIZE
        assert prefix[2:4] == (3).to_bytes(2, "big")
        assert message["length"] == 2 + header_size + 16 + padded
        return
    setup = entry["setup"]
    own_s, own_r = recorded_params(setup["S"]), recorded_params(setup["R"])
    agreed = agree_as_sender(own_s, own_r.public(3))
    start = sending_ratchet(3, 3, own_r.key2.public, x448(setup["S"]["sD"]["private"]), agreed)
    _, key = encrypt_header(start, None, 3)
    assert key.encoded_header.hex() == entry["encHeader"]
    made = encrypt_body(key, plaintext, padded)
    assert same_bytes(made, message)
    assert len(key.encoded_header) == 2 + 16 + 16 + 2 + HEADER_SIZE


def test_every_vector_in_the_file_has_a_tested_kind() -> None:
    for entry in vectors("ratchet.json"):
        assert entry.get("kind") in {"header", "full_size"} or set(entry) == {"name", "setup"}


def all_messages() -> list[tuple[int, bytes]]:
    found = []
    for entry in SESSIONS:
        for step in entry["steps"]:
            if step["op"] == "encrypt" and isinstance(step.get("message"), str):
                message = bytes.fromhex(step["message"])
                found.append((2 if message[0] >= 32 else 3, message))
    return found


def test_recorded_messages_decode_and_encode() -> None:
    messages = all_messages()
    assert {version for version, _ in messages} == {2, 3}
    for version, message in messages:
        received = decode_whole(message, read_ratchet_message)
        sealed = decode_whole(received.encoded_header, read_encrypted_header)
        assert sealed.version == version
        assert encode(sealed, write_encrypted_header) == received.encoded_header
        writer = Writer()
        write_ratchet_message(writer, received, version)
        assert writer.done() == message


def golden(name: str) -> bytes:
    (entry,) = [entry for entry in vectors("doc_golden.json") if entry["name"] == name]
    return bytes.fromhex(entry["bytes"])


@pytest.mark.parametrize(("version", "name"), [(3, "first message v3"), (2, "first message v2")])
def test_golden_first_message_of_the_wire_document(version: int, name: str) -> None:
    own_r = PrivateParams(x448("01" * 56), x448("02" * 56))
    own_s = PrivateParams(x448("03" * 56), x448("04" * 56))
    agreed = agree_as_sender(own_s, own_r.public(version))
    start = sending_ratchet(version, 3, own_r.key2.public, x448("05" * 56), agreed)
    assert start.snd is not None
    assert start.root_key == golden("S: RK")
    assert start.snd.chain_key == golden("S: CKs")
    assert start.next_snd_header_key == golden("S: NHKs")
    _, key = encrypt_header(start, None, 3)
    assert key.key.key == golden("first mk")
    assert key.key.iv == golden("ivBody")
    assert decode_whole(key.encoded_header, read_encrypted_header).iv == golden("ivHeader")
    assert encrypt_body(key, b"hello", 100) == golden(name)
