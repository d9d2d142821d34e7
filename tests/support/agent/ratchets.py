"""Ratchets out of recorded values, and sources of randomness that play recorded values back."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from typing import Any

from blindpost.crypto.entropy import Entropy
from blindpost.crypto.kem import Encapsulated, KemKeyPair
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet_state import (
    MessageKey,
    Ratchet,
    RatchetKem,
    ReceivingChain,
    SendingChain,
    SkippedAdded,
    SkippedChange,
    SkippedKeys,
    SkippedRemoved,
)
from blindpost.crypto.x3dh import AcceptedKem, PrivateParams
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.text import b64


def x448(private: str) -> PrivateKey:
    return PrivateKey(Algorithm.X448, bytes.fromhex(private))


def x448_public(raw: str) -> PublicKey:
    return PublicKey(Algorithm.X448, bytes.fromhex(raw))


class Played:
    """Plays recorded draws of a step back, in any order of kinds; a draw too many fails the test."""

    def __init__(
        self,
        x448_keys: Iterable[bytes] = (),
        pairs: Iterable[KemKeyPair] = (),
        encapsulations: Iterable[Encapsulated] = (),
    ) -> None:
        self._x448_keys = deque(x448_keys)
        self._pairs = deque(pairs)
        self._encapsulations = deque(encapsulations)
        self.encapsulated_to: list[bytes] = []

    def entropy(self, count: int) -> bytes:
        drawn = self._x448_keys.popleft()
        assert len(drawn) == count
        return drawn

    def key_pair(self) -> KemKeyPair:
        return self._pairs.popleft()

    def encapsulate(self, public_key: bytes) -> Encapsulated:
        self.encapsulated_to.append(public_key)
        return self._encapsulations.popleft()

    @property
    def exhausted(self) -> bool:
        return not (self._x448_keys or self._pairs or self._encapsulations)


def seeded(seed: str) -> Entropy:
    """An endless stream of bytes that a seed decides."""
    count = 0

    def entropy(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{seed} {count}".encode()).digest(size)

    return entropy


def recorded_params(side: dict[str, Any]) -> PrivateParams:
    """The private parameters of one side of a `setup`."""
    kem, made = side["kem"], None
    if kem is not None and kem["state"] == "accepted":
        made = Encapsulated(bytes.fromhex(kem["ct"]), bytes.fromhex(kem["shared"]))
    pair = KemKeyPair(bytes.fromhex(kem["public"]), bytes.fromhex(kem["secret"])) if kem is not None else None
    return PrivateParams(x448(side["k1"]["private"]), x448(side["k2"]["private"]), pair, made)


def recorded_ratchet(state: dict[str, Any], before: Ratchet | None = None) -> Ratchet:
    """A state as the vectors print it; a KEM that did not change is taken from the state before."""
    kem: RatchetKem | None
    if state["KEM"] == "unchanged":
        assert before is not None
        kem = before.kem
    else:
        kem = _recorded_kem(state["KEM"])
    dh_key = x448(state["DHs_private"])
    assert dh_key.public == x448_public(state["DHs_public"])
    snd, rcv = state["snd"], state["rcv"]
    return Ratchet(
        current=state["current"],
        max_supported=state["maxSupported"],
        ad=bytes.fromhex(state["AD"]),
        dh_key=dh_key,
        kem=kem,
        support_kem=state["supportKEM"],
        enable_kem=state["enableKEM"],
        snd_kem=state["sndKEM"],
        rcv_kem=state["rcvKEM"],
        root_key=bytes.fromhex(state["RK"]),
        snd=snd
        and SendingChain(x448_public(snd["peer_DH"]), bytes.fromhex(snd["CKs"]), bytes.fromhex(snd["HKs"])),
        rcv=rcv and ReceivingChain(bytes.fromhex(rcv["CKr"]), bytes.fromhex(rcv["HKr"])),
        ns=state["Ns"],
        nr=state["Nr"],
        pn=state["PN"],
        next_snd_header_key=bytes.fromhex(state["NHKs"]),
        next_rcv_header_key=bytes.fromhex(state["NHKr"]),
    )


def _recorded_kem(kem: dict[str, Any] | None) -> RatchetKem | None:
    if kem is None:
        return None
    accepted = kem["accepted"]
    return RatchetKem(
        KemKeyPair(bytes.fromhex(kem["own_public"]), bytes.fromhex(kem["own_secret"])),
        accepted
        and AcceptedKem(
            bytes.fromhex(accepted["peer_public"]),
            bytes.fromhex(accepted["shared"]),
            bytes.fromhex(accepted["ct"]),
        ),
    )


def recorded_skipped(entries: list[dict[str, Any]]) -> SkippedKeys:
    return {
        bytes.fromhex(entry["headerKey"]): {
            key["n"]: MessageKey(bytes.fromhex(key["mk"]), bytes.fromhex(key["iv"])) for key in entry["keys"]
        }
        for entry in entries
    }


def reference_json(ratchet: Ratchet) -> dict[str, Any]:
    """The JSON that the reference keeps of this state."""
    kept: dict[str, Any] = {
        "rcVersion": [ratchet.current, ratchet.max_supported],
        "rcAD": b64(ratchet.ad),
        "rcDHRs": b64(b64(ratchet.dh_key.pkcs8).encode()),
        "rcSupportKEM": ratchet.support_kem,
        "rcEnableKEM": ratchet.enable_kem,
        "rcSndKEM": ratchet.snd_kem,
        "rcRcvKEM": ratchet.rcv_kem,
        "rcRK": b64(ratchet.root_key),
        "rcNs": ratchet.ns,
        "rcNr": ratchet.nr,
        "rcPN": ratchet.pn,
        "rcNHKs": b64(ratchet.next_snd_header_key),
        "rcNHKr": b64(ratchet.next_rcv_header_key),
    }
    if ratchet.snd is not None:
        kept["rcSnd"] = {
            "rcDHRr": b64(ratchet.snd.peer_key.spki),
            "rcCKs": b64(ratchet.snd.chain_key),
            "rcHKs": b64(ratchet.snd.header_key),
        }
    if ratchet.rcv is not None:
        kept["rcRcv"] = {"rcCKr": b64(ratchet.rcv.chain_key), "rcHKr": b64(ratchet.rcv.header_key)}
    if ratchet.kem is not None:
        pair, accepted = ratchet.kem.pair, ratchet.kem.accepted
        kept["rcKEM"] = {"rcPQRs": [b64(pair.public_key), b64(pair.secret_key)]}
        if accepted is not None:
            kept["rcKEM"]["rcKEMs"] = {
                "rcPQRr": b64(accepted.peer_key),
                "rcPQRss": b64(accepted.secret),
                "rcPQRct": b64(accepted.ciphertext),
            }
    return kept


def changed_skipped(keys: SkippedKeys, change: SkippedChange) -> dict[bytes, dict[int, MessageKey]]:
    """The skipped keys after `change`, for a caller that keeps them in memory."""
    changed = {header_key: dict(numbered) for header_key, numbered in keys.items()}
    if isinstance(change, SkippedRemoved):
        left = changed[change.header_key]
        del left[change.number]
        if not left:
            del changed[change.header_key]
    elif isinstance(change, SkippedAdded):
        for header_key, numbered in change.keys.items():
            changed.setdefault(header_key, {}).update(numbered)
    return changed
