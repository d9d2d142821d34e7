"""The ratchet against a model, under reordering, loss, repetition, damage and changing wishes for a KEM."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from blindpost.crypto.ratchet import Opened, RatchetErrorKind, RatchetFailure, RatchetStateError, RatchetStep
from blindpost.crypto.ratchet_state import NoSkippedChange
from tests.support.agent.parties import Party, joined


@dataclass(eq=False)
class Sent:
    """A message in flight, and its place in its sender's chains."""

    sender: int
    chain: int
    number: int
    plaintext: bytes
    data: bytes
    snd_kem: bool
    opens_chain: bool
    used: bool = False


@dataclass
class Place:
    """The model's state of one side: which of the peer's chains it reads, and how far."""

    snd_chain: int = 0
    ns: int = 0
    rcv_chain: int = -1
    nr: int = 0
    missing: set[tuple[int, int]] = field(default_factory=set)


def announces_secret(party: Party) -> bool:
    """Whether the next header carries the ciphertext of the sending chain's KEM secret.

    It does not after the wish "off": such a message cannot be the first of its chain to arrive.
    """
    return party.ratchet.kem is not None and party.ratchet.kem.accepted is not None


class TwoParties(RuleBasedStateMachine):
    messages = Bundle("messages")

    @initialize(
        version=st.sampled_from([2, 3]),
        pq_s=st.booleans(),
        pq_r=st.booleans(),
    )
    def start(self, version: int, pq_s: bool, pq_r: bool) -> None:
        self.parties: tuple[Party, Party] = joined(version, pq_s=pq_s, pq_r=pq_r)
        self.places = (Place(), Place(snd_chain=-1))
        self.counts: dict[tuple[int, int], int] = {}
        self.sent = 0
        self.supported = [False, False]

    @rule(target=messages, sender=st.sampled_from([0, 1]), wish=st.sampled_from([None, None, True, False]))
    def send(self, sender: int, wish: bool | None) -> Sent | None:
        party, place = self.parties[sender], self.places[sender]
        if place.snd_chain < 0:
            with pytest.raises(RatchetStateError):
                party.send(b"too early", wish)
            return None
        plaintext = b"message %d" % self.sent
        self.sent += 1
        version = party.ratchet.current
        opens_chain = not party.ratchet.snd_kem or announces_secret(party)
        data = party.send(plaintext, wish)
        big = party.ratchet.support_kem and version >= 3
        assert len(data) == (240 if version == 2 else 2464 if big else 242)
        message = Sent(sender, place.snd_chain, place.ns, plaintext, data, party.ratchet.snd_kem, opens_chain)
        place.ns += 1
        self.counts[sender, place.snd_chain] = place.ns
        return message

    @rule(message=messages)
    def deliver(self, message: Sent | None) -> None:
        if message is not None:
            self.check(message, message.data, None)

    @rule(message=messages, offset=st.integers(0, 99 + 15), change=st.integers(1, 255))
    def damage_body(self, message: Sent | None, offset: int, change: int) -> None:
        """A damaged body is lost for good: its key has been used."""
        if message is not None:
            damaged = bytearray(message.data)
            damaged[-1 - offset] ^= change
            self.check(message, bytes(damaged), RatchetFailure(RatchetErrorKind.AES))

    @rule(message=messages, offset=st.integers(4, 119), change=st.integers(1, 255))
    def damage_header(self, message: Sent | None, offset: int, change: int) -> None:
        """Everything behind the version, which only the body's tag protects."""
        if message is None:
            return
        receiver = self.parties[1 - message.sender]
        damaged = bytearray(message.data)
        damaged[offset] ^= change
        before, drawn = (receiver.ratchet, receiver.skipped), receiver.drawn
        opened = receiver.receive(bytes(damaged))
        assert opened.failure is not None
        assert opened.failure.kind in {RatchetErrorKind.HEADER, RatchetErrorKind.MALFORMED}
        assert (receiver.ratchet, receiver.skipped, receiver.drawn) == (*before, drawn)

    def check(self, message: Sent, data: bytes, failure: RatchetFailure | None) -> None:
        receiver, place = self.parties[1 - message.sender], self.places[1 - message.sender]
        if message.chain > place.rcv_chain and not message.opens_chain:
            return
        before, drawn = (receiver.ratchet, receiver.skipped), receiver.drawn
        opened = receiver.receive(data)
        key = (message.chain, message.number)
        if message.used:
            self.check_repeated(message, opened)
            assert (receiver.ratchet, receiver.skipped, receiver.drawn) == (*before, drawn)
            return
        message.used = True
        assert opened.failure == failure
        assert opened.plaintext == (None if failure is not None else message.plaintext)
        if key in place.missing:
            assert opened.step is RatchetStep.SKIPPED
            assert (receiver.ratchet, receiver.drawn) == (before[0], drawn)
            place.missing.remove(key)
            return
        if message.chain > place.rcv_chain:
            self.advance(place, message)
            assert opened.step is RatchetStep.ADVANCE
            assert receiver.drawn == drawn + 56
        else:
            assert opened.step is RatchetStep.SAME
            assert receiver.drawn == drawn
        place.missing |= {(message.chain, number) for number in range(place.nr, message.number)}
        place.nr = message.number + 1
        assert receiver.ratchet.rcv_kem == message.snd_kem

    def check_repeated(self, message: Sent, opened: Opened) -> None:
        place = self.places[1 - message.sender]
        expected = RatchetFailure(RatchetErrorKind.HEADER)
        if message.chain == place.rcv_chain:
            behind = place.nr - message.number - 1
            expected = (
                RatchetFailure(RatchetErrorKind.EARLIER, behind)
                if behind
                else RatchetFailure(RatchetErrorKind.DUPLICATE)
            )
        assert opened.failure == expected
        assert opened.skipped == NoSkippedChange()

    def advance(self, place: Place, message: Sent) -> None:
        assert message.chain == place.rcv_chain + 1, "no chain can be left out"
        if place.rcv_chain >= 0:
            count = self.counts[message.sender, place.rcv_chain]
            place.missing |= {(place.rcv_chain, number) for number in range(place.nr, count)}
        place.rcv_chain, place.nr = message.chain, 0
        place.snd_chain += 1
        place.ns = 0

    @invariant()
    def counts_and_keys_are_those_of_the_model(self) -> None:
        if not hasattr(self, "parties"):
            return
        for side, (party, place) in enumerate(zip(self.parties, self.places, strict=True)):
            kept = sum(len(numbered) for numbered in party.skipped.values())
            assert kept == len(place.missing)
            assert (party.ratchet.ns, party.ratchet.nr) == (place.ns, place.nr)
            assert party.ratchet.support_kem or not self.supported[side], "big headers never turn off"
            self.supported[side] = party.ratchet.support_kem
            assert party.ratchet.snd_kem <= (party.ratchet.current >= 3)


TestTwoParties = TwoParties.TestCase
TestTwoParties.settings = settings(deadline=None, max_examples=80, stateful_step_count=50)
