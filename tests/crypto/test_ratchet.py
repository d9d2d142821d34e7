"""Conversations: order, wishes for a KEM, sizes, versions, deferred bodies, storage."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from blindpost.crypto.ratchet import (
    RatchetErrorKind,
    RatchetFailure,
    RatchetStep,
    encrypt_body,
    encrypt_header,
)
from blindpost.crypto.ratchet_state import Ratchet, SkippedAdded, SkippedRemoved, supports_kem
from blindpost.crypto.ratchet_storage import (
    dump_body_key,
    dump_message_key,
    dump_params,
    dump_ratchet,
    load_body_key,
    load_message_key,
    load_params,
    load_ratchet,
)
from blindpost.crypto.x3dh import PrivateParams
from blindpost.wire.e2e import read_encrypted_header, read_ratchet_message
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import decode_whole
from tests.support.agent.parties import Party, joined
from tests.support.agent.ratchets import changed_skipped, seeded, x448
from tests.support.wire.hostile import changed_everywhere, truncated_everywhere
from tests.support.wire.vectors import vector_file


def turn(first: Party, second: Party, wishes: tuple[bool | None, bool | None]) -> None:
    """One message each way; after the second both sides have made a step."""
    second.read(first.send(b"there", wishes[0]))
    first.read(second.send(b"back", wishes[1]))


def pq_of(first: Party, second: Party) -> tuple[bool, bool, bool, bool]:
    return first.ratchet.snd_kem, first.ratchet.rcv_kem, second.ratchet.snd_kem, second.ratchet.rcv_kem


def test_conversation_in_and_out_of_order() -> None:
    sender, receiver = joined()
    for round_number in range(3):
        sent = [sender.send(b"s%d" % number) for number in range(4)]
        for number in (2, 0, 3, 1):
            assert receiver.read(sent[number]) == b"s%d" % number
        answers = [receiver.send(b"r%d" % number) for number in range(3)]
        assert sender.read(answers[2]) == b"r2"
        late = sender.send(b"next %d" % round_number)
        assert sender.read(answers[0]) == b"r0"
        assert receiver.read(late) == b"next %d" % round_number
        assert sender.read(answers[1]) == b"r1"
    assert (sender.skipped, receiver.skipped) == ({}, {})


def test_skipped_across_several_steps() -> None:
    sender, receiver = joined()
    late = []
    for number in range(5):
        late.append(sender.send(b"late %d" % number))
        receiver.read(sender.send(b"on time"))
        sender.read(receiver.send(b"answer"))
    assert len(receiver.skipped) == 5
    for number, message in reversed(list(enumerate(late))):
        opened = receiver.receive(message)
        assert opened.plaintext == b"late %d" % number
        assert opened.step is RatchetStep.SKIPPED
        assert isinstance(opened.skipped, SkippedRemoved)
    assert receiver.skipped == {}
    for message in late[:-1]:
        assert receiver.receive(message).failure == RatchetFailure(RatchetErrorKind.HEADER)
    assert receiver.receive(late[-1]).failure == RatchetFailure(RatchetErrorKind.EARLIER, 1)


def test_repeated_message_of_an_old_chain_with_a_key_still_missing() -> None:
    """Its header key is still known, but its chain can no longer advance."""
    sender, receiver = joined()
    receiver.read(sender.send(b"first"))
    late, later = sender.send(b"late"), sender.send(b"later")
    for _ in range(2):
        sender.read(receiver.send(b"answer"))
        receiver.read(sender.send(b"next chain"))
    assert receiver.read(late) == b"late"
    assert len(receiver.skipped) == 1
    before = receiver.ratchet
    opened = receiver.receive(late)
    assert opened.failure == RatchetFailure(RatchetErrorKind.HEADER)
    assert receiver.ratchet == before
    assert receiver.read(later) == b"later"


@pytest.mark.claim("CON-24")
@pytest.mark.parametrize(
    ("version", "pq", "size"), [(2, False, 88), (2, True, 88), (3, False, 88), (3, True, 2310)]
)
def test_sizes_of_encrypted_headers(version: int, pq: bool, size: int) -> None:
    """The sealed header has one size per mode, whatever is in it: proposal, acceptance or no KEM at all."""
    for pq_r in (False, pq):
        parties = joined(version, pq_s=pq, pq_r=pq_r, own_max=version)
        for number in range(6):
            first, second = parties if number % 2 == 0 else parties[::-1]
            wish = pq if version == 3 else None
            message = first.send(b"turn", wish, own_max=version)
            received = decode_whole(message, read_ratchet_message)
            sealed = decode_whole(received.encoded_header, read_encrypted_header)
            assert len(sealed.ciphertext) == size
            assert (len(sealed.iv), len(sealed.tag)) == (16, 16)
            second.read(message)
        assert pq_of(*parties) == (pq and version == 3,) * 4


def test_kem_needs_the_wish_of_both() -> None:
    first, second = joined()
    for _ in range(3):
        turn(first, second, (True, None))
    assert not any(pq_of(first, second))
    first, second = joined()
    history = []
    for _ in range(4):
        turn(first, second, (True, True))
        history.append(pq_of(first, second))
    assert history == [
        (False, False, False, False),
        (True, True, True, False),
        (True, True, True, True),
        (True, True, True, True),
    ], "proposed in the first turn, accepted by both in the second"


def test_kem_stays_on_without_further_wishes_and_either_side_ends_it() -> None:
    first, second = joined(pq_s=True, pq_r=True)
    turn(first, second, (None, None))
    assert pq_of(first, second) == (True,) * 4
    for _ in range(3):
        turn(first, second, (None, None))
    assert pq_of(first, second) == (True,) * 4
    turn(first, second, (None, False))
    turn(first, second, (None, None))
    turn(first, second, (None, None))
    assert not any(pq_of(first, second))
    assert first.ratchet.support_kem
    assert second.ratchet.support_kem
    for _ in range(3):
        turn(first, second, (True, True))
    assert pq_of(first, second) == (True,) * 4


def test_wish_off_takes_the_ciphertext_from_later_headers() -> None:
    """So the message with the wish, or an earlier one, must be the first of its chain to arrive."""
    first, second = joined(pq_s=True, pq_r=True)
    turn(first, second, (None, None))
    wished = first.send(b"off", False)
    later = first.send(b"later")
    assert second.opened(later).failure == RatchetFailure(RatchetErrorKind.AES)
    assert second.read(wished) == b"off"
    assert second.read(later) == b"later"


@pytest.mark.parametrize("own_max", [2, 3])
def test_version_rises_with_traffic_and_never_above_our_maximum(own_max: int) -> None:
    sender, receiver = joined(2, own_max=own_max)
    message = sender.send(b"version 2", own_max=own_max)
    assert message[0] == 123, "a length of one byte"
    receiver.read(message)
    assert receiver.ratchet.current == own_max
    answer = receiver.send(b"answer", own_max=own_max)
    assert (answer[0] == 0) == (own_max == 3), "a length of two bytes from version 3"
    assert sender.read(answer) == b"answer"
    assert sender.ratchet.current == own_max


def test_version_of_a_newer_peer_is_bounded_by_ours() -> None:
    sender, receiver = joined(2, own_max=3)
    receiver.read(sender.send(b"from the future", own_max=9))
    assert receiver.ratchet.current == 3
    assert sender.ratchet.max_supported == 9


@pytest.mark.claim("CON-23")
def test_version_never_falls() -> None:
    sender, receiver = joined(3)
    message = sender.send(b"an older maximum", own_max=2)
    assert sender.ratchet.max_supported == 3
    receiver.read(message)
    assert receiver.ratchet.current == 3


@pytest.mark.claim("CON-23")
@pytest.mark.parametrize("version", [2, 3])
def test_support_stays_on_whatever_the_version_and_the_wish(version: int) -> None:
    for enabled in (True, False):
        assert supports_kem(version, before=True, enabled=enabled)
        assert supports_kem(version, before=False, enabled=enabled) is (version == 3 and enabled)


def test_wish_on_offers_version_3() -> None:
    sender, _ = joined(2, own_max=2)
    sender.send(b"wish", True, own_max=2)
    assert sender.ratchet.max_supported == 3
    assert sender.ratchet.enable_kem
    assert not sender.ratchet.support_kem


def test_wish_from_version_2_takes_effect_with_the_upgrade() -> None:
    sender, receiver = joined(2)
    sender.send(b"lost wish", True)
    assert sender.ratchet.enable_kem
    assert not sender.ratchet.support_kem
    receiver.read(sender.send(b"as before"))
    sender.read(receiver.send(b"answer"))
    assert sender.ratchet.current == 3
    assert sender.ratchet.support_kem, "large headers come with the step that proposes"
    assert sender.ratchet.kem is not None


ERROR_TEXTS = {
    "DECRYPT_AES": RatchetErrorKind.AES,
    "RATCHET_EARLIER": RatchetErrorKind.EARLIER,
    "RATCHET_SKIPPED": RatchetErrorKind.SKIPPED,
    "A_DUPLICATE": RatchetErrorKind.DUPLICATE,
    "A_MESSAGE": RatchetErrorKind.MALFORMED,
}


def reported(events: list[str]) -> RatchetFailure | None:
    """What the reference reported for a message, as a failure of the ratchet."""
    for event in events:
        found = re.search(r"(DECRYPT_AES|RATCHET_\w+|A_DUPLICATE|A_MESSAGE) ?(\d*)", event)
        if found is not None:
            return RatchetFailure(ERROR_TEXTS[found[1]], int(found[2] or 0))
    return None


def test_errors_are_those_that_the_reference_reported() -> None:
    """The ratchet's part of the recorded matrix of stimuli, in its order."""
    sender, receiver = joined()
    again, damaged = sender, b""
    handled = 0
    for step in vector_file("agent_transcripts/error_matrix.json")["steps"]:
        before = Party("before", sender.ratchet)
        match step["stimulus"]:
            case "good":
                message = sender.send(b"good")
            case "same ratchet number, other ciphertext":
                message = again.send(b"other")
            case "corrupt body":
                damaged = sender.send(b"damaged")
                message = damaged[:-1] + bytes([damaged[-1] ^ 1])
            case "the uncorrupted original of it (number already passed)":
                message = damaged
            case "earlier by 1 (other ciphertext)":
                message = replace_number(again, -1)
            case "random ratchet message":
                message = seeded("random ratchet message")(200)
            case "short ratchet message":
                message = bytes(10)
            case "512 skipped":
                sender.ratchet = replace_chain(sender, 512)
                message = sender.send(b"after 512")
            case "513 skipped":
                message = Party("far", replace_chain(sender, 513)).send(b"after 513")
            case _:
                continue
        handled += 1
        if step["stimulus"] == "good" or "skipped" in step["stimulus"]:
            expected = None if step["stimulus"] != "513 skipped" else reported(step["events"])
        else:
            expected = reported(step["events"])
            assert expected is not None
        assert receiver.receive(message).failure == expected, step["stimulus"]
        again = before
    assert handled >= 17


def replace_chain(party: Party, count: int) -> Ratchet:
    """The sender after `count` more messages that nobody sees."""
    ratchet = party.ratchet
    for _ in range(count):
        ratchet, _ = encrypt_header(ratchet, None, 3)
    return ratchet


def replace_number(party: Party, by: int) -> bytes:
    ratchet = replace(party.ratchet, ns=party.ratchet.ns + by)
    return encrypt_body(encrypt_header(ratchet, None, 3)[1], b"other", 100)


def test_deferred_body_is_the_same_at_every_attempt() -> None:
    sender, receiver = joined(pq_s=True, pq_r=True)
    ratchet, key = encrypt_header(sender.ratchet, None, 3)
    stored = dump_body_key(key)
    sender.ratchet = ratchet
    next_message = sender.send(b"queued later")
    attempts = {encrypt_body(load_body_key(stored), b"queued", 1000) for _ in range(3)}
    (message,) = attempts
    assert receiver.read(next_message) == b"queued later"
    assert receiver.read(message) == b"queued"


def test_steps_do_not_modify_their_input() -> None:
    sender, receiver = joined()
    sender.send(b"lost")
    message = sender.send(b"second")
    before, stored = receiver.ratchet, dump_ratchet(receiver.ratchet)
    keys = receiver.skipped
    first, again = receiver.opened(message), receiver.opened(message)
    assert first.plaintext == again.plaintext == b"second"
    assert dump_ratchet(before) == stored
    assert keys == {}
    assert first.ratchet != before
    assert isinstance(first.skipped, SkippedAdded)
    assert changed_skipped(keys, first.skipped) == first.skipped.keys
    assert keys == {}


def test_reading_in_a_known_chain_draws_no_randomness() -> None:
    sender, receiver = joined()
    receiver.read(sender.send(b"first"))
    drawn = receiver.drawn
    receiver.read(sender.send(b"second"))
    assert receiver.drawn == drawn == 56


def ratchets() -> list[Ratchet]:
    """States of every shape: with and without chains, KEM pair and acceptance."""
    found = []
    for pq_s, pq_r in ((False, False), (True, False), (True, True)):
        first, second = joined(pq_s=pq_s, pq_r=pq_r)
        found += [first.ratchet, second.ratchet]
        turn(first, second, (None, None))
        found += [first.ratchet, second.ratchet]
    return found


@pytest.mark.parametrize("ratchet", ratchets())
def test_stored_ratchet(ratchet: Ratchet) -> None:
    stored = dump_ratchet(ratchet)
    assert load_ratchet(stored) == ratchet
    assert truncated_everywhere(load_ratchet, stored) == 0
    with pytest.raises(WireError):
        load_ratchet(stored + b"\0")
    with pytest.raises(WireError):
        load_ratchet(b"\2" + stored[1:])


def test_changed_stored_forms_are_read_or_refused() -> None:
    first, _ = joined(pq_s=True, pq_r=True)
    ratchet, key = encrypt_header(first.ratchet, None, 3)
    params = PrivateParams(x448("01" * 56), x448("02" * 56))
    changed_everywhere(load_ratchet, dump_ratchet(ratchet), "ratchet")
    changed_everywhere(load_body_key, dump_body_key(key), "body key")
    changed_everywhere(load_params, dump_params(params), "params")
    assert truncated_everywhere(load_body_key, dump_body_key(key)) == 0
    assert truncated_everywhere(load_message_key, dump_message_key(key.key)) == 0
    assert truncated_everywhere(load_params, dump_params(params)) == 0
    assert load_message_key(dump_message_key(key.key)) == key.key


def test_ratchets_print_no_secrets() -> None:
    first, _ = joined(pq_s=True, pq_r=True)
    ratchet, key = encrypt_header(replace(first.ratchet, rcv=None), None, 3)
    shown = f"{ratchet!r} {key!r}"
    assert ratchet.kem is not None
    assert ratchet.snd is not None
    secrets = (
        ratchet.root_key,
        ratchet.dh_key.raw,
        ratchet.snd.chain_key,
        ratchet.kem.pair.secret_key,
        key.key.key,
    )
    for secret in secrets:
        assert secret.hex()[:16] not in shown
        assert repr(secret)[2:20] not in shown
