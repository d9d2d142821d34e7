"""Two parties with a double ratchet between them, on seeded randomness and recorded KEM pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle

from blindpost.crypto.kem import Encapsulated, KemKeyPair, encapsulate
from blindpost.crypto.ratchet import Opened, decrypt, encrypt_body, encrypt_header
from blindpost.crypto.ratchet_state import (
    Ratchet,
    SkippedKeys,
    receiving_ratchet,
    sending_ratchet,
)
from blindpost.crypto.ratchet_storage import dump_ratchet, load_ratchet
from blindpost.crypto.x3dh import agree_as_receiver, agree_as_sender, answering_params, proposed_params
from blindpost.crypto.x448 import generate_x448
from blindpost.wire.value import Buffer
from tests.support.agent.ratchets import changed_skipped, seeded
from tests.support.wire.vectors import vectors

PADDED = 100

RECORDED_PAIRS = [
    KemKeyPair(bytes.fromhex(entry["pk"]), bytes.fromhex(entry["sk"]))
    for entry in vectors("sntrup761.json")
    if "pk" in entry
]


class RecordedPairs:
    """Real encapsulation with pairs that were made long ago, since making one is slow."""

    def __init__(self) -> None:
        self._pairs = cycle(RECORDED_PAIRS)

    def key_pair(self) -> KemKeyPair:
        return next(self._pairs)

    def encapsulate(self, public_key: bytes) -> Encapsulated:
        return encapsulate(public_key)


@dataclass
class Party:
    """One side: its ratchet is stored and loaded around every step."""

    name: str
    ratchet: Ratchet
    skipped: SkippedKeys = field(default_factory=dict)
    drawn: int = 0

    def __post_init__(self) -> None:
        self._entropy = seeded(self.name)
        self._kem = RecordedPairs()

    def send(
        self, plaintext: bytes, wish: bool | None = None, own_max: int = 3, padded: int = PADDED
    ) -> bytes:
        ratchet, key = encrypt_header(self.ratchet, wish, own_max)
        self._keep(ratchet)
        return encrypt_body(key, plaintext, padded)

    def opened(self, message: Buffer) -> Opened:
        """Open a message and keep nothing."""
        return decrypt(self.ratchet, self.skipped, message, entropy=self.entropy, kem=self._kem)

    def receive(self, message: Buffer) -> Opened:
        opened = self.opened(message)
        self.skipped = changed_skipped(self.skipped, opened.skipped)
        self._keep(opened.ratchet)
        return opened

    def read(self, message: Buffer) -> bytes:
        opened = self.receive(message)
        assert opened.plaintext is not None, opened.failure
        return bytes(opened.plaintext)

    def entropy(self, count: int) -> bytes:
        self.drawn += count
        return self._entropy(count)

    def _keep(self, ratchet: Ratchet) -> None:
        self.ratchet = load_ratchet(dump_ratchet(ratchet))
        assert self.ratchet == ratchet


def joined(
    version: int = 3, *, pq_s: bool = False, pq_r: bool = False, own_max: int = 3, seed: str = ""
) -> tuple[Party, Party]:
    """The joiner S and the link's creator R after their key agreement."""
    pairs = RecordedPairs()
    own_r = proposed_params(version, pq=pq_r, entropy=seeded(f"r{seed}"), kem=pairs)
    own_s = answering_params(own_r.public(version), pq=pq_s, entropy=seeded(f"s{seed}"), kem=pairs)
    dh_key = generate_x448(seeded(f"d{seed}"))
    agreed_s = agree_as_sender(own_s, own_r.public(version))
    agreed_r = agree_as_receiver(own_r, own_s.public(version))
    start_s = sending_ratchet(version, own_max, own_r.key2.public, dh_key, agreed_s)
    start_r = receiving_ratchet(version, own_max, own_r.key2, agreed_r, pq_support=pq_r and version >= 3)
    return Party(f"S{seed}", start_s), Party(f"R{seed}", start_r)
