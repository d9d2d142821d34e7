"""The double ratchet with encrypted headers and an optional KEM: one message sealed or opened.

Nothing here keeps state: a step takes a `Ratchet` and returns the next one, which the caller must store
before anything that depends on it leaves. Randomness comes through the arguments.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from blindpost.crypto.aead import AeadError, seal, unseal
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.kem import KemSource, decapsulate
from blindpost.crypto.ratchet_state import (
    BodyKey,
    MessageKey,
    NoSkippedChange,
    Ratchet,
    RatchetKem,
    ReceivingChain,
    SendingChain,
    SkippedAdded,
    SkippedChange,
    SkippedKeys,
    SkippedRemoved,
    chain_kdf,
    root_kdf,
    supports_kem,
)
from blindpost.crypto.x3dh import AcceptedKem
from blindpost.crypto.x448 import LowOrderKeyError, generate_x448
from blindpost.wire.e2e import (
    KEM_E2E_VERSION,
    EncryptedHeader,
    KemAccepted,
    KemParams,
    KemProposed,
    RatchetHeader,
    RatchetMessage,
    read_encrypted_header,
    read_ratchet_header,
    read_ratchet_message,
    write_encrypted_header,
    write_ratchet_header,
    write_ratchet_message,
)
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.padding import pad, unpad
from blindpost.wire.primitives import Reader, Writer, decode_whole
from blindpost.wire.value import Buffer, Value

HEADER_SIZE = 88
KEM_HEADER_SIZE = 2310
SKIP_MAX = 512
"""How many messages one message may be ahead of the last one."""


class RatchetErrorKind(Enum):
    """Why a message was not read; by this an agent decides whether the ratchets must be synchronised."""

    HEADER = "no header key fits"
    EARLIER = "the number is before the next expected"
    SKIPPED = "too many messages are missing before this one"
    AES = "the body does not open"
    DUPLICATE = "the number is the last one read"
    MALFORMED = "not a ratchet message"
    PADDING = "the body is badly padded"
    KEM_STATE = "a KEM was accepted that was not proposed"


@dataclass(frozen=True, slots=True)
class RatchetFailure:
    """`count` says by how many messages EARLIER and SKIPPED miss."""

    kind: RatchetErrorKind
    count: int = 0


class RatchetStep(Enum):
    """Which key a message was read with."""

    SKIPPED = "a remembered key"
    SAME = "the current receiving chain"
    ADVANCE = "a new receiving chain"


@dataclass(frozen=True, slots=True, repr=False)
class Opened(Value):
    """What to store after a message, whether it was read or not; it has either a `plaintext` or a `failure`.

    A message may fail and yet change the ratchet: once a header has advanced the chains there is no way back.
    """

    ratchet: Ratchet
    skipped: SkippedChange
    step: RatchetStep | None
    plaintext: Buffer | None
    failure: RatchetFailure | None


class RatchetStateError(CryptoError):
    """There is no chain to send with yet: the peer must send first."""


class _RefusedError(Exception):
    def __init__(self, kind: RatchetErrorKind, count: int = 0) -> None:
        self.failure = RatchetFailure(kind, count)


def encrypt_header(ratchet: Ratchet, pq_wish: bool | None, own_max: int) -> tuple[Ratchet, BodyKey]:
    """Take the next message key and seal a header for it. The body can be sealed at any later time."""
    chain = ratchet.snd
    if chain is None:
        raise RatchetStateError("no message can be sent before one was received")
    chain_key, message_key, header_iv = chain_kdf(chain.chain_key)
    version = ratchet.current
    enable_kem = ratchet.enable_kem if pq_wish is None else pq_wish
    support_kem = supports_kem(version, before=ratchet.support_kem, enabled=enable_kem)
    max_supported = max(own_max, KEM_E2E_VERSION if pq_wish is True else version)
    public = ratchet.dh_key.public
    header = RatchetHeader(max_supported, public, _announced(ratchet.kem), ratchet.pn, ratchet.ns)
    writer = Writer()
    write_ratchet_header(writer, header, version)
    size = KEM_HEADER_SIZE if support_kem and version >= KEM_E2E_VERSION else HEADER_SIZE
    tag, ciphertext = seal(chain.header_key, header_iv, ratchet.ad, pad(writer.done(), size))
    writer = Writer()
    write_encrypted_header(writer, EncryptedHeader(version, header_iv, tag, ciphertext))
    kem = ratchet.kem
    if pq_wish is False and kem is not None:
        kem = replace(kem, accepted=None)
    advanced = replace(
        ratchet,
        max_supported=max_supported,
        kem=kem,
        support_kem=support_kem,
        enable_kem=enable_kem,
        snd=replace(chain, chain_key=chain_key),
        ns=ratchet.ns + 1,
    )
    return advanced, BodyKey(version, ratchet.ad, message_key, writer.done())


def _announced(kem: RatchetKem | None) -> KemParams | None:
    if kem is None:
        return None
    if kem.accepted is None:
        return KemProposed(kem.pair.public_key)
    return KemAccepted(kem.accepted.ciphertext, kem.pair.public_key)


def encrypt_body(body_key: BodyKey, plaintext: Buffer, padded_size: int) -> bytes:
    """The whole message. For one `body_key` always the same plaintext: a retry sends the same bytes."""
    associated = body_key.ad + body_key.encoded_header
    tag, body = seal(body_key.key.key, body_key.key.iv, associated, pad(plaintext, padded_size))
    writer = Writer()
    write_ratchet_message(writer, RatchetMessage(body_key.encoded_header, tag, body), body_key.version)
    return writer.done()


def decrypt(
    ratchet: Ratchet, skipped: SkippedKeys, message: Buffer, *, entropy: Entropy, kem: KemSource
) -> Opened:
    """Open one message. Never raises for what a peer can send."""
    try:
        return _decrypt(ratchet, skipped, message, entropy, kem)
    except _RefusedError as refused:
        return Opened(ratchet, NoSkippedChange(), None, None, refused.failure)


def _decrypt(
    ratchet: Ratchet, skipped: SkippedKeys, message: Buffer, entropy: Entropy, kem: KemSource
) -> Opened:
    try:
        received = decode_whole(message, read_ratchet_message)
        sealed = decode_whole(received.encoded_header, read_encrypted_header)
    except WireError:
        raise _RefusedError(RatchetErrorKind.MALFORMED) from None
    header_key, header = _find_header(ratchet, skipped, sealed)
    known = skipped.get(header_key, {}).get(header.number)
    if known is not None:
        removed = SkippedRemoved(header_key, header.number)
        return _opened(ratchet, removed, RatchetStep.SKIPPED, known, received)
    if ratchet.rcv is not None and header_key == ratchet.rcv.header_key:
        return _read_number(_upgraded(ratchet, header), {}, RatchetStep.SAME, header, received)
    if header_key != ratchet.next_rcv_header_key:
        raise _RefusedError(RatchetErrorKind.HEADER)
    before, added = _skip(_upgraded(ratchet, header), header.previous_count)
    advanced = _advance(before, header, entropy, kem)
    return _read_number(advanced, added, RatchetStep.ADVANCE, header, received)


def _find_header(
    ratchet: Ratchet, skipped: SkippedKeys, sealed: EncryptedHeader
) -> tuple[bytes, RatchetHeader]:
    """The header, and the key that it opened with."""
    candidates = [*skipped]
    if ratchet.rcv is not None:
        candidates.append(ratchet.rcv.header_key)
    candidates.append(ratchet.next_rcv_header_key)
    for header_key in candidates:
        try:
            padded = unseal(header_key, sealed.iv, ratchet.ad, sealed.tag, sealed.ciphertext)
            content = unpad(padded)
        except WireError:
            continue
        try:
            return header_key, read_ratchet_header(Reader(content), sealed.version)
        except WireError:
            raise _RefusedError(RatchetErrorKind.MALFORMED) from None
    raise _RefusedError(RatchetErrorKind.HEADER)


def _upgraded(ratchet: Ratchet, header: RatchetHeader) -> Ratchet:
    version = max(ratchet.current, min(header.max_version, ratchet.max_supported))
    return ratchet if version == ratchet.current else replace(ratchet, current=version)


def _skip(ratchet: Ratchet, until: int) -> tuple[Ratchet, dict[bytes, dict[int, MessageKey]]]:
    """Pass over the messages of the current chain before number `until`, remembering their keys."""
    chain, number = ratchet.rcv, ratchet.nr
    if chain is None or number == until:
        return ratchet, {}
    if number > until + 1:
        raise _RefusedError(RatchetErrorKind.EARLIER, number - until - 1)
    if number == until + 1:
        raise _RefusedError(RatchetErrorKind.DUPLICATE)
    if number + SKIP_MAX < until:
        raise _RefusedError(RatchetErrorKind.SKIPPED, until + 1 - number)
    chain_key = chain.chain_key
    passed: dict[int, MessageKey] = {}
    for missing in range(number, until):
        chain_key, passed[missing], _ = chain_kdf(chain_key)
    return replace(ratchet, rcv=replace(chain, chain_key=chain_key), nr=until), {chain.header_key: passed}


def _read_number(
    ratchet: Ratchet,
    added: dict[bytes, dict[int, MessageKey]],
    step: RatchetStep,
    header: RatchetHeader,
    received: RatchetMessage,
) -> Opened:
    """Open the body with the key of the header's number. From here on the state is kept whatever happens."""
    try:
        before, passed = _skip(ratchet, header.number)
    except _RefusedError as refused:
        return Opened(ratchet, _change(added), step, None, refused.failure)
    assert before.rcv is not None
    chain_key, message_key, _ = chain_kdf(before.rcv.chain_key)
    after = replace(before, rcv=replace(before.rcv, chain_key=chain_key), nr=before.nr + 1)
    return _opened(after, _change({**added, **passed}), step, message_key, received)


def _change(added: dict[bytes, dict[int, MessageKey]]) -> SkippedChange:
    return SkippedAdded(added) if added else NoSkippedChange()


def _opened(
    ratchet: Ratchet, change: SkippedChange, step: RatchetStep, key: MessageKey, received: RatchetMessage
) -> Opened:
    associated = b"".join((ratchet.ad, received.encoded_header))
    try:
        padded = unseal(key.key, key.iv, associated, received.tag, received.body)
        return Opened(ratchet, change, step, unpad(padded), None)
    except AeadError:
        failure = RatchetFailure(RatchetErrorKind.AES)
    except WireError:
        failure = RatchetFailure(RatchetErrorKind.PADDING)
    return Opened(ratchet, change, step, None, failure)


def _advance(ratchet: Ratchet, header: RatchetHeader, entropy: Entropy, kem: KemSource) -> Ratchet:
    """A new receiving chain with the peer's new key, and a new sending chain with a new key of ours."""
    received_secret, sent_secret, kem_state = _kem_step(ratchet, header.kem, kem)
    dh_key = generate_x448(entropy)
    try:
        root_key, rcv_chain_key, next_rcv = root_kdf(
            ratchet.root_key, header.dh_key, ratchet.dh_key, received_secret
        )
        root_key, snd_chain_key, next_snd = root_kdf(root_key, header.dh_key, dh_key, sent_secret)
    except LowOrderKeyError:
        raise _RefusedError(RatchetErrorKind.MALFORMED) from None
    enable_kem = kem_state is not None or received_secret is not None
    return replace(
        ratchet,
        dh_key=dh_key,
        kem=kem_state,
        support_kem=supports_kem(ratchet.current, before=ratchet.support_kem, enabled=enable_kem),
        enable_kem=enable_kem,
        snd_kem=sent_secret is not None,
        rcv_kem=received_secret is not None,
        root_key=root_key,
        snd=SendingChain(header.dh_key, snd_chain_key, ratchet.next_snd_header_key),
        rcv=ReceivingChain(rcv_chain_key, ratchet.next_rcv_header_key),
        ns=0,
        nr=0,
        pn=ratchet.ns,
        next_snd_header_key=next_snd,
        next_rcv_header_key=next_rcv,
    )


def _kem_step(
    ratchet: Ratchet, peer: KemParams | None, kem: KemSource
) -> tuple[bytes | None, bytes | None, RatchetKem | None]:
    """The secret for the receiving chain, the one for the sending chain, and what to announce from now on."""
    wanted = ratchet.enable_kem and ratchet.current >= KEM_E2E_VERSION
    if peer is None:
        proposes = wanted and ratchet.kem is None
        return None, None, RatchetKem(kem.key_pair(), None) if proposes else None
    received = None
    if isinstance(peer, KemAccepted):
        if ratchet.kem is None:
            raise _RefusedError(RatchetErrorKind.KEM_STATE)
        received = decapsulate(ratchet.kem.pair, peer.ciphertext)
    if not wanted:
        return received, None, None
    sent = kem.encapsulate(peer.public_key)
    accepted = AcceptedKem(peer.public_key, sent.secret, sent.ciphertext)
    return received, sent.secret, RatchetKem(kem.key_pair(), accepted)
