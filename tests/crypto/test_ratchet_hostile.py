"""What a damaged or hostile message can do to a ratchet: only what the rules allow, at a bounded cost."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.aead import seal
from blindpost.crypto.ratchet import (
    SKIP_MAX,
    Opened,
    RatchetErrorKind,
    RatchetFailure,
    RatchetStep,
    encrypt_body,
    encrypt_header,
)
from blindpost.crypto.ratchet_state import NoSkippedChange, SkippedAdded, SkippedRemoved, chain_kdf
from blindpost.wire.e2e import (
    EncryptedHeader,
    KemAccepted,
    KemProposed,
    RatchetHeader,
    RatchetMessage,
    read_encrypted_header,
    read_ratchet_message,
    write_encrypted_header,
    write_ratchet_header,
    write_ratchet_message,
)
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.padding import pad
from blindpost.wire.primitives import Writer, decode_whole, encode
from tests.support.agent.parties import PADDED, Party, joined
from tests.support.wire.hostile import calls_made, memory_peak

HUGE = 2**31
LAST = 2**32 - 1


def refused(opened: Opened, party: Party, *kinds: RatchetErrorKind) -> None:
    """The message failed and left no trace."""
    assert opened.failure is not None
    assert opened.failure.kind in kinds
    assert opened.plaintext is None
    assert opened.ratchet is party.ratchet
    assert opened.skipped == NoSkippedChange()


def conversing(version: int = 3, *, pq: bool = False, own_max: int = 3) -> tuple[Party, Party]:
    """Both sides have chains in both directions, and R's last message is read."""
    sender, receiver = joined(version, pq_s=pq, pq_r=pq, own_max=own_max)
    receiver.read(sender.send(b"first", own_max=own_max))
    sender.read(receiver.send(b"second", own_max=own_max))
    return sender, receiver


@pytest.mark.parametrize(("version", "pq"), [(2, False), (3, False), (3, True)])
def test_change_at_every_byte(version: int, pq: bool) -> None:
    sender, receiver = conversing(version, pq=pq, own_max=version)
    message = sender.send(b"to be damaged", own_max=version)
    header_end = len(message) - 16 - PADDED
    version_at = 1 if version == 2 else 2
    chance = random.Random(f"every byte {version} {pq}")
    for offset in range(len(message)):
        damaged = bytearray(message)
        damaged[offset] ^= chance.randrange(1, 256)
        opened = receiver.opened(bytes(damaged))
        if version_at <= offset < version_at + 2:
            assert opened.failure is not None
        elif offset < header_end:
            refused(opened, receiver, RatchetErrorKind.HEADER, RatchetErrorKind.MALFORMED)
        else:
            assert opened.failure == RatchetFailure(RatchetErrorKind.AES)
            assert opened.step is RatchetStep.ADVANCE
            assert opened.ratchet.nr == 1
    assert receiver.read(message) == b"to be damaged"


@pytest.mark.parametrize("pq", [False, True])
def test_truncation_at_every_byte(pq: bool) -> None:
    sender, receiver = conversing(pq=pq)
    message = sender.send(b"to be cut")
    header_end = len(message) - 16 - PADDED
    for size in range(len(message)):
        opened = receiver.opened(message[:size])
        if size < header_end + 16:
            refused(opened, receiver, RatchetErrorKind.MALFORMED)
        else:
            assert opened.failure == RatchetFailure(RatchetErrorKind.AES)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_without_a_trace(data: bytes) -> None:
    _, receiver = CONVERSING
    refused(receiver.opened(data), receiver, RatchetErrorKind.HEADER, RatchetErrorKind.MALFORMED)


CONVERSING = conversing()


def test_messages_of_another_conversation_do_not_open() -> None:
    sender, _ = joined(seed="other")
    _, receiver = CONVERSING
    refused(receiver.opened(sender.send(b"elsewhere")), receiver, RatchetErrorKind.HEADER)


@pytest.mark.claim("CON-63")
@pytest.mark.parametrize("number", [SKIP_MAX + 2, HUGE, LAST])
def test_gap_in_the_same_chain(number: int) -> None:
    """Far too many missing messages: an error that says how many, no keys kept, no proportional work."""
    sender, receiver = joined()
    receiver.read(sender.send(b"first"))
    ahead = replace(sender.ratchet, ns=number)
    message = encrypt_body(encrypt_header(ahead, None, 3)[1], b"far ahead", PADDED)
    opened = receiver.opened(message)
    assert opened.failure == RatchetFailure(RatchetErrorKind.SKIPPED, number)
    assert (opened.ratchet, opened.skipped) == (receiver.ratchet, NoSkippedChange())
    nearby = encrypt_body(encrypt_header(replace(sender.ratchet, ns=2), None, 3)[1], b"near", PADDED)
    assert calls_made(receiver.opened, message) <= calls_made(receiver.opened, nearby)
    assert memory_peak(receiver.opened, message) < 100_000


@pytest.mark.claim("CON-63")
@pytest.mark.parametrize("count", [SKIP_MAX + 2, HUGE, LAST])
def test_gap_at_the_end_of_the_previous_chain_changes_nothing(count: int) -> None:
    sender, receiver = conversing()
    ahead = replace(sender.ratchet, pn=count)
    message = encrypt_body(encrypt_header(ahead, None, 3)[1], b"new chain", PADDED)
    drawn = receiver.drawn
    opened = receiver.opened(message)
    refused(opened, receiver, RatchetErrorKind.SKIPPED)
    assert opened.failure == RatchetFailure(RatchetErrorKind.SKIPPED, count)
    assert receiver.drawn == drawn
    assert receiver.read(sender.send(b"the true one")) == b"the true one"


@pytest.mark.parametrize("count", [0, LAST])
def test_previous_chain_that_ends_before_what_was_read_changes_nothing(count: int) -> None:
    sender, receiver = joined()
    for _ in range(3):
        receiver.read(sender.send(b"first chain"))
    sender.read(receiver.send(b"answer"))
    before = replace(sender.ratchet, pn=count)
    message = encrypt_body(encrypt_header(before, None, 3)[1], b"new chain", PADDED)
    kind = RatchetErrorKind.EARLIER if count == 0 else RatchetErrorKind.SKIPPED
    refused(receiver.opened(message), receiver, kind)


@pytest.mark.parametrize("number", [SKIP_MAX + 1, HUGE])
def test_gap_after_an_advance_keeps_the_advance(number: int) -> None:
    sender, receiver = conversing()
    sender.send(b"lost")
    ahead = replace(sender.ratchet, ns=number)
    message = encrypt_body(encrypt_header(ahead, None, 3)[1], b"far ahead", PADDED)
    before = receiver.ratchet
    opened = receiver.receive(message)
    assert opened.failure == RatchetFailure(RatchetErrorKind.SKIPPED, number + 1)
    assert opened.step is RatchetStep.ADVANCE
    assert receiver.ratchet.dh_key != before.dh_key
    assert receiver.ratchet.nr == 0
    assert receiver.read(sender.send(b"the next one")) == b"the next one"


def test_gap_after_an_advance_keeps_the_keys_of_the_previous_chain() -> None:
    sender, receiver = joined()
    receiver.read(sender.send(b"first"))
    late = sender.send(b"late")
    sender.read(receiver.send(b"answer"))
    ahead = replace(sender.ratchet, ns=HUGE)
    opened = receiver.receive(encrypt_body(encrypt_header(ahead, None, 3)[1], b"far ahead", PADDED))
    assert opened.failure == RatchetFailure(RatchetErrorKind.SKIPPED, HUGE + 1)
    assert isinstance(opened.skipped, SkippedAdded)
    assert receiver.read(late) == b"late"


@pytest.mark.claim("CON-63")
def test_keys_kept_by_one_message_are_bounded() -> None:
    """At most 512 at the end of the previous chain and 512 at the start of the new one."""
    sender, receiver = joined()
    receiver.read(sender.send(b"first"))
    late = [sender.send(b"late %d" % number) for number in range(SKIP_MAX)]
    sender.read(receiver.send(b"answer"))
    more = [sender.send(b"more %d" % number) for number in range(SKIP_MAX)]
    opened = receiver.receive(sender.send(b"now"))
    assert opened.plaintext == b"now"
    assert sorted(len(numbered) for numbered in receiver.skipped.values()) == [SKIP_MAX, SKIP_MAX]
    for number in (0, 1, SKIP_MAX - 1):
        assert receiver.read(late[number]) == b"late %d" % number
        assert receiver.read(more[number]) == b"more %d" % number


def test_damaged_body_uses_up_its_key() -> None:
    sender, receiver = joined()
    missing, message = sender.send(b"missing"), sender.send(b"damaged")
    opened = receiver.receive(message[:-1] + bytes([message[-1] ^ 1]))
    assert opened.failure == RatchetFailure(RatchetErrorKind.AES)
    assert isinstance(opened.skipped, SkippedAdded)
    assert receiver.ratchet.nr == 2
    assert receiver.receive(message).failure == RatchetFailure(RatchetErrorKind.DUPLICATE)
    assert receiver.read(missing) == b"missing"


def test_damaged_body_of_a_skipped_message_uses_up_its_key() -> None:
    sender, receiver = joined()
    missing = sender.send(b"missing")
    receiver.read(sender.send(b"came first"))
    before = receiver.ratchet
    opened = receiver.receive(missing[:-1] + bytes([missing[-1] ^ 1]))
    assert opened.failure == RatchetFailure(RatchetErrorKind.AES)
    assert isinstance(opened.skipped, SkippedRemoved)
    assert opened.step is RatchetStep.SKIPPED
    assert receiver.ratchet == before
    assert receiver.skipped == {}
    assert receiver.receive(missing).failure == RatchetFailure(RatchetErrorKind.EARLIER, 1)


def sealed_by_hand(
    party: Party, header: bytes, *, size: int = 88, filler: bytes = b"#", body: bytes | None = None
) -> bytes:
    """A message with any header and body, as the holder of the keys could make it."""
    chain = party.ratchet.snd
    assert chain is not None
    _, key, header_iv = chain_kdf(chain.chain_key)
    padded = (len(header).to_bytes(2, "big") + header).ljust(size, filler)
    tag, ciphertext = seal(chain.header_key, header_iv, party.ratchet.ad, padded)
    encoded = encode(
        EncryptedHeader(party.ratchet.current, header_iv, tag, ciphertext), write_encrypted_header
    )
    plaintext = pad(b"by hand", PADDED) if body is None else body
    body_tag, sealed = seal(key.key, key.iv, party.ratchet.ad + encoded, plaintext)
    writer = Writer()
    write_ratchet_message(writer, RatchetMessage(encoded, body_tag, sealed), party.ratchet.current)
    return writer.done()


def header_of(party: Party, version: int = 3) -> RatchetHeader:
    return RatchetHeader(version, party.ratchet.dh_key.public, None, party.ratchet.pn, party.ratchet.ns)


def header_bytes(header: RatchetHeader, version: int = 3) -> bytes:
    writer = Writer()
    write_ratchet_header(writer, header, version)
    return writer.done()


def test_extra_header_bytes_and_other_filler_are_ignored() -> None:
    sender, receiver = conversing()
    header = header_bytes(header_of(sender))
    for message in (
        sealed_by_hand(sender, header),
        sealed_by_hand(sender, header + b"later"),
        sealed_by_hand(sender, header, filler=b"\0"),
        sealed_by_hand(sender, header, size=120),
        sealed_by_hand(sender, header, body=pad(b"by hand", PADDED).replace(b"#", b"?")),
    ):
        opened = receiver.opened(message)
        assert opened.plaintext == b"by hand"


def test_malformed_header_under_the_right_key() -> None:
    sender, receiver = conversing()
    header = header_bytes(header_of(sender))
    for size in range(len(header)):
        message = sealed_by_hand(sender, header[:size])
        refused(receiver.opened(message), receiver, RatchetErrorKind.MALFORMED)
    other = header_bytes(replace(header_of(sender), dh_key=PublicKey(Algorithm.X25519, bytes(32))))
    refused(receiver.opened(sealed_by_hand(sender, other)), receiver, RatchetErrorKind.MALFORMED)


def test_header_without_room_for_its_length_opens_with_no_key() -> None:
    sender, receiver = conversing()
    header = header_bytes(header_of(sender))
    long = len(header) + 100
    message = sealed_by_hand(sender, header)
    assert receiver.opened(message).plaintext == b"by hand"
    chain = sender.ratchet.snd
    assert chain is not None
    received = decode_whole(message, read_ratchet_message)
    sealed = decode_whole(received.encoded_header, read_encrypted_header)
    padded = long.to_bytes(2, "big") + header
    tag, ciphertext = seal(chain.header_key, sealed.iv, sender.ratchet.ad, padded)
    encoded = encode(EncryptedHeader(3, sealed.iv, tag, ciphertext), write_encrypted_header)
    writer = Writer()
    write_ratchet_message(writer, RatchetMessage(encoded, received.tag, received.body), 3)
    refused(receiver.opened(writer.done()), receiver, RatchetErrorKind.HEADER)


@pytest.mark.parametrize("body", [b"", b"\0", (PADDED).to_bytes(2, "big") + bytes(PADDED - 2)])
def test_bad_padding_of_the_body(body: bytes) -> None:
    sender, receiver = conversing()
    opened = receiver.receive(sealed_by_hand(sender, header_bytes(header_of(sender)), body=body))
    assert opened.failure == RatchetFailure(RatchetErrorKind.PADDING)
    assert receiver.ratchet.nr == 1


@pytest.mark.parametrize("wanted", [False, True])
def test_acceptance_of_a_kem_that_was_not_proposed(wanted: bool) -> None:
    sender, receiver = conversing()
    receiver.ratchet = replace(receiver.ratchet, enable_kem=wanted)
    kem = KemAccepted(bytes(1039), bytes(1158))
    header = header_bytes(replace(header_of(sender), kem=kem))
    message = sealed_by_hand(sender, header, size=2310)
    refused(receiver.opened(message), receiver, RatchetErrorKind.KEM_STATE)


def test_ciphertext_for_another_key_fails_at_the_body() -> None:
    sender, receiver = joined(pq_s=True, pq_r=True)
    header = replace(header_of(sender), kem=KemAccepted(bytes(1039), bytes(1158)))
    opened = receiver.opened(sealed_by_hand(sender, header_bytes(header), size=2310))
    assert opened.failure == RatchetFailure(RatchetErrorKind.AES)


def test_peer_key_of_low_order_is_refused() -> None:
    sender, receiver = conversing()
    header = header_bytes(replace(header_of(sender), dh_key=PublicKey(Algorithm.X448, bytes(56))))
    refused(receiver.opened(sealed_by_hand(sender, header)), receiver, RatchetErrorKind.MALFORMED)


def test_kem_of_wrong_length_is_malformed() -> None:
    sender, receiver = conversing()
    header = header_bytes(replace(header_of(sender), kem=KemProposed(bytes(1158))))
    shorter = header.replace((1158).to_bytes(2, "big"), (1157).to_bytes(2, "big"))
    message = sealed_by_hand(sender, shorter, size=2310)
    refused(receiver.opened(message), receiver, RatchetErrorKind.MALFORMED)


@pytest.mark.parametrize("number", [LAST, LAST - 1])
def test_last_numbers_of_a_chain(number: int) -> None:
    """Counters do not wrap: after the last number there is nothing, and storing it works."""
    sender, receiver = joined()
    receiver.read(sender.send(b"first"))
    sender.ratchet = replace(sender.ratchet, ns=number)
    receiver.ratchet = replace(receiver.ratchet, nr=number)
    message = encrypt_body(encrypt_header(sender.ratchet, None, 3)[1], b"late", PADDED)
    assert receiver.read(message) == b"late"
    assert receiver.ratchet.nr == number + 1
    assert receiver.receive(message).failure == RatchetFailure(RatchetErrorKind.DUPLICATE)


def test_many_header_keys_cost_one_attempt_each() -> None:
    """Each chain with a missing message adds one header key to try; a refusal tries all, and no more."""
    sender, receiver = joined()
    receiver.read(sender.send(b"first"))
    costs = []
    for _ in range(4):
        other = joined(seed="other")[0].send(b"elsewhere")
        costs.append(calls_made(receiver.opened, other))
        sender.read(receiver.send(b"turn"))
        sender.send(b"lost")
        receiver.read(sender.send(b"turn back"))
    steps = [later - earlier for earlier, later in itertools.pairwise(costs)]
    assert len(receiver.skipped) == 4
    assert max(steps) <= 30
    assert len(set(steps)) == 1
