"""Certificate chains: what is accepted, and every way a chain can be wrong."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from blindpost.crypto.chains import (
    ChainError,
    ChainFailure,
    Roles,
    chain_roles,
    fingerprint,
    identity_fingerprint,
    leaf_key,
    validate_router_chain,
    validate_service_chain,
)
from blindpost.crypto.credentials import make_service
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.keys import Algorithm
from tests.support.wire.hostile import changed_everywhere, truncated_everywhere
from tests.support.wire.long_values import ramp

NOW = 1_700_000_000
DAY = 86_400
_seeds = itertools.count(1)


@dataclass(frozen=True)
class Made:
    """A certificate made for a test, with its key and name."""

    der: bytes
    key: PrivateKey
    name: str


def make(
    name: str,
    issuer: Made | None = None,
    *,
    ca: bool | None = None,
    path_length: int | None = None,
    may_sign: bool | None = None,
    days: tuple[int, int] = (-1, 365),
    algorithm: Algorithm = Algorithm.ED25519,
    issuer_name: str | None = None,
) -> Made:
    """A certificate issued by `issuer`, or self-signed; `issuer_name` is a false issuer name."""
    key = PrivateKey(algorithm, ramp(next(_seeds), algorithm.raw_size))
    by_name = issuer_name or (issuer.name if issuer else name)
    start = datetime.fromtimestamp(NOW, UTC)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by_name)]),
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        public_key=key.for_certificates().public_key(),
        serial_number=next(_seeds),
        not_valid_before=start + timedelta(days=days[0]),
        not_valid_after=start + timedelta(days=days[1]),
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca, path_length), critical=True)
    if may_sign is not None:
        usage = x509.KeyUsage(True, False, False, False, False, may_sign, False, False, False)
        builder = builder.add_extension(usage, critical=True)
    signer = (issuer.key if issuer else key).for_certificates()
    return Made(builder.sign(signer, None).public_bytes(Encoding.DER), key, name)


def chain_of(*made: Made) -> tuple[bytes, ...]:
    return tuple(certificate.der for certificate in made)


def check_router(*made: Made, now: int = NOW) -> None:
    chain = chain_of(*made)
    validate_router_chain(chain, identity_fingerprint(chain), now)


def failure(*made: Made, now: int = NOW) -> ChainFailure:
    """Why a client refuses this chain from a router whose address matches it."""
    with pytest.raises(ChainError) as caught:
        check_router(*made, now=now)
    return caught.value.failure


def service_failure(*made: Made, now: int = NOW) -> ChainFailure:
    with pytest.raises(ChainError) as caught:
        validate_service_chain(chain_of(*made), now)
    return caught.value.failure


CA = make("ca", ca=True)
LEAF = make("leaf", CA)
IDENTITY = make("identity", CA, ca=True)
LEAF_OF_IDENTITY = make("leaf", IDENTITY)
NETWORK = make("network", CA, ca=True)
OPERATOR = make("operator", NETWORK, ca=True)
LEAF_OF_OPERATOR = make("leaf", OPERATOR)
ALONE = make("alone")


def test_roles_by_length() -> None:
    a, b, c, d, e = (bytes([number]) for number in range(5))
    assert chain_roles((a,)) == Roles(leaf=a, identity=a, anchor=a)
    assert chain_roles((a, b)) == Roles(leaf=a, identity=b, anchor=b)
    assert chain_roles((a, b, c)) == Roles(leaf=a, identity=b, anchor=c)
    assert chain_roles((a, b, c, d)) == Roles(leaf=a, identity=b, anchor=d)
    for chain, expected in (((), ChainFailure.EMPTY), ((a, b, c, d, e), ChainFailure.TOO_LONG)):
        with pytest.raises(ChainError) as caught:
            chain_roles(chain)
        assert caught.value.failure is expected


def test_the_fingerprint_is_of_the_whole_identity_certificate() -> None:
    assert identity_fingerprint(chain_of(LEAF, CA)) == fingerprint(CA.der)
    assert identity_fingerprint(chain_of(LEAF_OF_IDENTITY, IDENTITY, CA)) == fingerprint(IDENTITY.der)
    assert identity_fingerprint(chain_of(ALONE)) == fingerprint(ALONE.der)


@pytest.mark.parametrize(
    "chain",
    [(LEAF, CA), (LEAF_OF_IDENTITY, IDENTITY, CA), (LEAF_OF_OPERATOR, OPERATOR, NETWORK, CA)],
    ids=["two", "three", "four"],
)
def test_good_chains(chain: tuple[Made, ...]) -> None:
    check_router(*chain)
    validate_service_chain(chain_of(*chain), NOW)


@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448])
def test_both_algorithms(algorithm: Algorithm) -> None:
    ca = make("ca", ca=True, algorithm=algorithm)
    leaf = make("leaf", ca, algorithm=algorithm)
    check_router(leaf, ca)
    assert leaf_key(chain_of(leaf, ca)) == leaf.key.public


def test_a_router_needs_at_least_two_certificates_a_service_one() -> None:
    assert failure(ALONE) is ChainFailure.EMPTY
    validate_service_chain(chain_of(ALONE), NOW)
    assert service_failure() is ChainFailure.EMPTY
    with pytest.raises(ChainError) as caught:
        validate_router_chain((), bytes(32), NOW)
    assert caught.value.failure is ChainFailure.EMPTY


def test_five_certificates_are_too_many() -> None:
    chain = (LEAF_OF_OPERATOR, OPERATOR, NETWORK, CA, CA)
    assert failure_of_length(chain) is ChainFailure.TOO_LONG
    assert service_failure(*chain) is ChainFailure.TOO_LONG


def failure_of_length(chain: tuple[Made, ...]) -> ChainFailure:
    with pytest.raises(ChainError) as caught:
        validate_router_chain(chain_of(*chain), fingerprint(chain[1].der), NOW)
    return caught.value.failure


def test_the_address_must_name_the_identity() -> None:
    for address in (fingerprint(LEAF.der), bytes(32), fingerprint(CA.der)[:31], b""):
        with pytest.raises(ChainError) as caught:
            validate_router_chain(chain_of(LEAF, CA), address, NOW)
        assert caught.value.failure is ChainFailure.UNKNOWN_CA
    three = chain_of(LEAF_OF_IDENTITY, IDENTITY, CA)
    with pytest.raises(ChainError):
        validate_router_chain(three, fingerprint(CA.der), NOW)


def test_dates_of_every_certificate_on_the_path_are_checked() -> None:
    old = make("leaf", CA, days=(-10, -1))
    assert failure(old, CA) is ChainFailure.EXPIRED
    assert service_failure(old, CA) is ChainFailure.EXPIRED
    assert failure(make("leaf", CA, days=(1, 10)), CA) is ChainFailure.IN_FUTURE
    old_identity = make("identity", CA, ca=True, days=(-10, -1))
    assert failure(make("leaf", old_identity), old_identity, CA) is ChainFailure.EXPIRED
    assert service_failure(make("alone", days=(-10, -1))) is ChainFailure.EXPIRED


def test_the_first_and_last_second_of_validity() -> None:
    check_router(LEAF, CA, now=NOW - DAY)
    check_router(LEAF, CA, now=NOW + 365 * DAY)
    assert failure(LEAF, CA, now=NOW - DAY - 1) is ChainFailure.IN_FUTURE
    assert failure(LEAF, CA, now=NOW + 365 * DAY + 1) is ChainFailure.EXPIRED


def test_the_anchor_is_trusted_as_it_is() -> None:
    """Neither its dates nor its constraints matter: the address vouches for it."""
    old = make("old", days=(-10, -1))
    check_router(make("leaf", old), old)
    no_authority = make("plain", ca=False, may_sign=False)
    check_router(make("leaf", no_authority), no_authority)


def test_a_signature_by_another_authority_of_the_same_name() -> None:
    other = make("ca", ca=True)
    assert failure(LEAF, other) is ChainFailure.INVALID_SIGNATURE
    assert service_failure(LEAF, other) is ChainFailure.INVALID_SIGNATURE


def test_a_changed_leaf_signature() -> None:
    changed = bytearray(LEAF.der)
    changed[-1] ^= 1
    assert failure(Made(bytes(changed), LEAF.key, "leaf"), CA) is ChainFailure.INVALID_SIGNATURE


def test_a_wrong_signature_between_leaf_and_anchor() -> None:
    forged_identity = make("identity", make("ca", ca=True), ca=True)
    assert failure(make("leaf", forged_identity), forged_identity, CA) is ChainFailure.INVALID_SIGNATURE
    other_identity = make("identity", CA, ca=True)
    assert failure(make("leaf", other_identity), IDENTITY, CA) is ChainFailure.INVALID_SIGNATURE


def test_a_leaf_from_a_stranger() -> None:
    assert failure(make("leaf", make("stranger", ca=True)), CA) is ChainFailure.UNKNOWN_CA
    assert service_failure(ALONE, CA) is ChainFailure.SELF_SIGNED


def test_a_self_signed_leaf_before_an_anchor() -> None:
    assert failure(ALONE, CA) is ChainFailure.SELF_SIGNED


def test_a_self_signed_certificate_with_a_wrong_signature() -> None:
    forged = make("alone", make("alone"))
    assert service_failure(forged) is ChainFailure.INVALID_SIGNATURE


def test_a_single_certificate_that_is_not_self_signed() -> None:
    assert service_failure(LEAF) is ChainFailure.UNKNOWN_CA


def test_between_leaf_and_anchor_only_authorities() -> None:
    for between in (
        make("identity", CA),
        make("identity", CA, ca=False),
        make("identity", CA, ca=True, may_sign=False),
    ):
        assert failure(make("leaf", between), between, CA) is ChainFailure.NOT_AN_AUTHORITY
    signing = make("identity", CA, ca=True, may_sign=True)
    check_router(make("leaf", signing), signing, CA)


def test_the_allowed_depth_below_an_authority() -> None:
    for path_length, allowed in ((None, True), (0, False), (1, True)):
        network = make("network", CA, ca=True, path_length=path_length)
        operator = make("operator", network, ca=True, path_length=0)
        chain = (make("leaf", operator), operator, network, CA)
        if allowed:
            check_router(*chain)
        else:
            assert failure(*chain) is ChainFailure.NOT_AN_AUTHORITY


def test_certificates_after_the_leaf_may_come_in_any_order() -> None:
    network = make("network", CA, ca=True)
    identity = make("identity", network, ca=True)
    chain = chain_of(make("leaf", identity), network, identity, CA)
    validate_service_chain(chain, NOW)


def test_a_borrowed_identity_is_refused() -> None:
    """Someone else's identity between one's own leaf and anchor proves nothing."""
    own = make("own", ca=True)
    own_leaf = make("leaf", own)
    assert failure(own_leaf, CA, own) is ChainFailure.UNKNOWN_CA
    assert service_failure(own_leaf, CA, own) is ChainFailure.UNKNOWN_CA
    own_network = make("network", own, ca=True)
    assert failure(make("leaf", own_network), CA, own_network, own) is ChainFailure.UNKNOWN_CA


def test_a_cycle_of_issuers() -> None:
    first = make("first", ca=True, issuer_name="second")
    second = make("second", first, ca=True)
    circle = make("first", second, ca=True)
    assert service_failure(circle, second, CA) is ChainFailure.UNKNOWN_CA


def test_a_leaf_of_version_one() -> None:
    """The version is the only difference: same names, same key, signed again."""
    version_three = bytes.fromhex("a003020102")
    fields = x509.load_der_x509_certificate(ALONE.der).tbs_certificate_bytes.partition(version_three)[2]
    content = element(0x30, fields)
    signature = element(0x03, b"\0" + ALONE.key.sign(content))
    version_one = element(0x30, content + bytes.fromhex("300506032b6570") + signature)
    assert x509.load_der_x509_certificate(version_one).version is x509.Version.v1
    assert service_failure(Made(version_one, ALONE.key, "alone")) is ChainFailure.NOT_V3


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes(1 if size < 0x100 else 2, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def test_bytes_that_are_not_a_certificate() -> None:
    for junk in (b"", b"junk", bytes(300), LEAF.der[:-1], LEAF.der + b"\0"):
        with pytest.raises(ChainError) as caught:
            validate_service_chain((junk, CA.der), NOW)
        assert caught.value.failure is ChainFailure.MALFORMED
        with pytest.raises(ChainError):
            leaf_key((junk, CA.der))


def test_a_leaf_key_of_another_algorithm() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "elliptic")])
    start = datetime.fromtimestamp(NOW, UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )
    validate_service_chain((certificate,), NOW)
    with pytest.raises(CryptoError, match="Ed25519 or Ed448"):
        leaf_key((certificate,))


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_broken_certificates_give_the_one_error() -> None:
    service = make_service(NOW, lambda count: ramp(1, count)).chain[0]

    def validate(der: bytes) -> None:
        validate_service_chain((der,), NOW)
        leaf_key((der,))

    validate(service)
    assert truncated_everywhere(validate, service) == 0
    assert changed_everywhere(validate, service, "service certificate") == 0
    for good in (LEAF.der, IDENTITY.der):
        truncated_everywhere(lambda der: validate_service_chain((der, CA.der), NOW), good)
        changed_everywhere(lambda der: validate_service_chain((der, CA.der), NOW), good, "issued")
        changed_everywhere(lambda der: leaf_key((der,)), good, "leaf key")
    between = IDENTITY.der
    changed_everywhere(
        lambda der: validate_service_chain((LEAF_OF_IDENTITY.der, der, CA.der), NOW), between, "between"
    )
    changed_everywhere(lambda der: validate_service_chain((LEAF.der, der), NOW), CA.der, "anchor")
