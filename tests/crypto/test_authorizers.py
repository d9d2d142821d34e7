"""Authorizations: who may, who may not, and that a refusal always costs the work of the offered kind."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto import authorizers, verifying
from blindpost.crypto.authorizers import (
    DUMMY_KEYS,
    AuthenticatorCheck,
    AuthenticatorKeys,
    NoRouterKeyError,
    SignatureCheck,
    Verifier,
    authenticator,
    authorize,
    check_of,
    kind_of,
    with_fingerprint,
)
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.verifying import OneByOne
from blindpost.wire.keys import Algorithm, PublicKey
from tests.support.wire.long_values import ramp

KINDS = (Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519)
SIZES = {Algorithm.ED25519: 64, Algorithm.ED448: 114, Algorithm.X25519: 80}
CORR_ID = ramp(0x80, 24)
SESSION = PrivateKey(Algorithm.X25519, ramp(0x40, 32))
SECRETS = AuthenticatorKeys(SESSION)
AUTHORIZED = b"\x20" + ramp(0, 32) + b"\x18" + CORR_ID + b"\x18" + ramp(0xA0, 24) + b"SUB"
FINGERPRINT = ramp(0xE0, 32)
VERIFIER: Verifier = OneByOne()


def queue_key(algorithm: Algorithm, first: int = 1) -> PrivateKey:
    return PrivateKey(algorithm, ramp(first, algorithm.raw_size))


def accepted(
    key: PublicKey | None, authorization: bytes, authorized: bytes = AUTHORIZED, corr_id: bytes = CORR_ID
) -> bool:
    check = check_of(key, authorization, authorized, corr_id, SECRETS)
    return VERIFIER.verify_many([check]) == [True]


def by(key: PrivateKey, authorized: bytes = AUTHORIZED, corr_id: bytes = CORR_ID) -> bytes:
    return authorize(key, authorized, corr_id, SESSION.public)


@pytest.mark.parametrize("algorithm", KINDS)
@given(authorized=st.binary(max_size=200), corr_id=st.binary(max_size=30))
@settings(deadline=None, max_examples=20)
def test_what_a_key_authorizes_verifies_with_the_same_key(
    algorithm: Algorithm, authorized: bytes, corr_id: bytes
) -> None:
    key = queue_key(algorithm)
    authorization = by(key, authorized, corr_id)
    assert len(authorization) == SIZES[algorithm]
    assert kind_of(authorization) is algorithm
    assert accepted(key.public, authorization, authorized, corr_id)
    assert not accepted(queue_key(algorithm, 2).public, authorization, authorized, corr_id)
    assert not accepted(key.public, authorization, authorized + b"\0", corr_id)


@pytest.mark.parametrize("algorithm", KINDS)
def test_every_changed_byte_is_refused(algorithm: Algorithm) -> None:
    key = queue_key(algorithm)
    good = by(key)
    assert accepted(key.public, good)
    for place in range(len(good)):
        changed = bytearray(good)
        changed[place] ^= 0x10
        assert not accepted(key.public, bytes(changed)), place


def test_an_authenticator_is_bound_to_its_correlation_id_and_session() -> None:
    key = queue_key(Algorithm.X25519)
    authorization = by(key)
    assert not accepted(key.public, authorization, corr_id=ramp(0x81, 24))
    other = AuthenticatorKeys(PrivateKey(Algorithm.X25519, ramp(0x41, 32)))
    check = check_of(key.public, authorization, AUTHORIZED, CORR_ID, other)
    assert VERIFIER.verify_many([check]) == [False]


def test_an_authenticator_needs_the_session_key_of_the_router() -> None:
    with pytest.raises(NoRouterKeyError):
        authorize(queue_key(Algorithm.X25519), AUTHORIZED, CORR_ID, None)
    for algorithm in (Algorithm.ED25519, Algorithm.ED448):
        assert accepted(
            queue_key(algorithm).public, authorize(queue_key(algorithm), AUTHORIZED, CORR_ID, None)
        )


def test_an_x448_key_authorizes_nothing() -> None:
    with pytest.raises(CryptoError, match="do not sign"):
        by(queue_key(Algorithm.X448))


@pytest.mark.parametrize("size", [0, 1, 63, 65, 79, 81, 113, 115, 255])
def test_other_lengths_are_refused(size: int) -> None:
    with pytest.raises(CryptoError, match="64, 80 or 114"):
        kind_of(bytes(size))


@pytest.mark.parametrize("offered", KINDS)
def test_without_a_key_a_dummy_of_the_offered_kind_is_checked(offered: Algorithm) -> None:
    check = check_of(None, by(queue_key(offered)), AUTHORIZED, CORR_ID, SECRETS)
    assert check.key == DUMMY_KEYS[offered]
    assert check.key.algorithm is offered
    assert not check.genuine
    assert VERIFIER.verify_many([check]) == [False]


@pytest.mark.parametrize("offered", KINDS)
@pytest.mark.parametrize("stored", KINDS)
def test_a_key_of_another_kind_is_replaced_by_a_dummy(offered: Algorithm, stored: Algorithm) -> None:
    stored_key = queue_key(stored).public
    check = check_of(stored_key, by(queue_key(offered)), AUTHORIZED, CORR_ID, SECRETS)
    assert check.key == (stored_key if stored is offered else DUMMY_KEYS[offered])
    assert check.genuine is (stored is offered)
    assert VERIFIER.verify_many([check]) == [stored is offered]


@pytest.mark.parametrize("offered", KINDS)
def test_a_dummy_never_passes_even_with_its_own_private_key(
    offered: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = queue_key(offered, 3)
    monkeypatch.setitem(authorizers.DUMMY_KEYS, offered, known.public)
    assert not accepted(None, by(known))
    assert accepted(known.public, by(known))


class Counting:
    """Counts agreements and verifications while it is installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agreements = 0
        self.verifications = 0
        agreed = BoxKey.agreed

        def counted_agreed(private: PrivateKey, public: PublicKey) -> BoxKey:
            self.agreements += 1
            return agreed(private, public)

        signed = verifying._signed

        def counted_signed(check: SignatureCheck) -> bool:
            self.verifications += 1
            return signed(check)

        monkeypatch.setattr(BoxKey, "agreed", counted_agreed)
        monkeypatch.setattr(verifying, "_signed", counted_signed)


@pytest.mark.parametrize("offered", KINDS)
def test_every_refusal_costs_the_same_work(offered: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown queue, key of another kind, wrong key: one operation of the offered kind, each time."""
    secrets = AuthenticatorKeys(SESSION)
    authorization = by(queue_key(offered))
    other_kind = next(kind for kind in KINDS if kind is not offered)
    costs = []
    for key in (
        None,
        queue_key(other_kind).public,
        queue_key(offered, 2).public,
        None,
        queue_key(offered, 2).public,
    ):
        with monkeypatch.context() as patch:
            counting = Counting(patch)
            check = check_of(key, authorization, AUTHORIZED, CORR_ID, secrets)
            assert VERIFIER.verify_many([check]) == [False]
            costs.append((counting.agreements, counting.verifications))
    expected = (1, 0) if offered is Algorithm.X25519 else (0, 1)
    assert costs == [expected] * 5


def test_only_a_secret_that_verified_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = AuthenticatorKeys(SESSION)
    key = queue_key(Algorithm.X25519)
    authorization = by(key)
    first = check_of(key.public, authorization, AUTHORIZED, CORR_ID, secrets)
    assert isinstance(first, AuthenticatorCheck)
    secrets.keep(first)
    counting = Counting(monkeypatch)
    again = check_of(key.public, authorization, AUTHORIZED, CORR_ID, secrets)
    assert VERIFIER.verify_many([again]) == [True]
    assert counting.agreements == 0
    check_of(queue_key(Algorithm.X25519, 2).public, authorization, AUTHORIZED, CORR_ID, secrets)
    assert counting.agreements == 1


def test_cached_secrets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = AuthenticatorKeys(SESSION, kept_max=2)
    keys = [queue_key(Algorithm.X25519, first).public for first in (1, 2, 3)]
    for key in (*keys[:2], keys[0], keys[2]):
        check = check_of(key, bytes(80), AUTHORIZED, CORR_ID, secrets)
        assert isinstance(check, AuthenticatorCheck)
        secrets.keep(check)
    counting = Counting(monkeypatch)
    for key, agreements in ((keys[1], 0), (keys[2], 0), (keys[0], 1)):
        secrets.secret_with(key)
        assert counting.agreements == agreements


def test_many_checks_are_answered_in_order() -> None:
    checks = [
        check_of(key, by(queue_key(kind)), AUTHORIZED, CORR_ID, SECRETS)
        for kind in KINDS
        for key in (queue_key(kind).public, None, queue_key(kind, 2).public)
    ]
    assert VERIFIER.verify_many(checks) == [True, False, False] * 3
    assert VERIFIER.verify_many([]) == []


def test_the_opened_hash_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = hmac.compare_digest

    def watched(first: bytes, second: bytes) -> bool:
        compared.append(len(second))
        return real(first, second)

    key = queue_key(Algorithm.X25519)
    forged = BoxKey.agreed(key, SESSION.public).seal(CORR_ID, bytes(64))
    monkeypatch.setattr(hmac, "compare_digest", watched)
    assert accepted(key.public, by(key))
    assert not accepted(key.public, forged), "a box of the right key around another hash"
    assert compared == [64, 64]


@pytest.mark.parametrize("algorithm", KINDS)
def test_each_of_two_signatures_covers_its_own_bytes(algorithm: Algorithm) -> None:
    key, session_key = queue_key(algorithm), queue_key(Algorithm.ED25519, 7)
    covered = with_fingerprint(FINGERPRINT, AUTHORIZED)
    by_queue = authorize(key, covered, CORR_ID, SESSION.public)
    by_service = session_key.sign(AUTHORIZED)
    assert covered == FINGERPRINT + AUTHORIZED
    assert accepted(key.public, by_queue, covered)
    assert not accepted(key.public, by_queue, AUTHORIZED)
    assert not accepted(key.public, by_queue, with_fingerprint(bytes(32), AUTHORIZED))
    assert accepted(session_key.public, by_service, AUTHORIZED)
    assert not accepted(session_key.public, by_service, covered)
    assert not accepted(key.public, by_service, covered)
    assert not accepted(session_key.public, by_queue, AUTHORIZED)


def test_a_fingerprint_has_32_bytes() -> None:
    for size in (0, 31, 33):
        with pytest.raises(CryptoError, match="32 bytes"):
            with_fingerprint(bytes(size), AUTHORIZED)


def test_a_prepared_secret_makes_the_same_authenticator() -> None:
    key = queue_key(Algorithm.X25519)
    assert authenticator(BoxKey.agreed(key, SESSION.public), CORR_ID, memoryview(AUTHORIZED)) == by(key)


def test_checks_print_lengths_and_fingerprints() -> None:
    key = queue_key(Algorithm.ED25519)
    shown = repr(SignatureCheck(key.public, by(key), AUTHORIZED))
    assert shown == (
        f"SignatureCheck(key={key.public!r}, authorization=<64 bytes>, authorized=<86 bytes>, genuine=True)"
    )
