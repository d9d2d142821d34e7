"""Cheap stand-ins for what these promises are not about: TLS, and that secrets cannot be guessed.

Nine runs of ten have them: they cost a third less, and whoever uses a wrong key is found out all the same.
The tenth has the real ones.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from blindpost.agent.work import key_pairs
from blindpost.crypto import (
    block_chain,
    chains,
    credentials,
    ed25519,
    keys,
    link_data,
    ratchet,
    sodium,
    verifying,
    x3dh,
)
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.kem import SHARED_SECRET_SIZE, Encapsulated, KemKeyPair
from blindpost.router.fronts import channel
from blindpost.transport import errors, plans, session
from blindpost.transport.tls import RECORD_MAX, ChainCheck, scratch
from blindpost.wire.e2e import KEM_CIPHERTEXT_SIZE
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.value import Buffer

REAL_EVERY = 10
"""Each tenth seed has none."""
HEADER_SIZE = 22
"""As much as a record of TLS has beside its content."""
HELLO, CHAIN, FINISHED, DATA, CLOSE, ALERT = b"HRFDCA"
KINDS = frozenset((HELLO, CHAIN, FINISHED, DATA, CLOSE, ALERT))
FINISHED_SIZE = 32
ALPN_SIZE = 16
HELLO_SIZE = 300
REMEMBERED_MAX = 4096


@dataclass(frozen=True, slots=True)
class PlainContext:
    """What connections of one identity share."""

    chain: Sequence[bytes]
    alpns: Sequence[bytes]


def router_context(chain: Sequence[bytes], key: object, alpn: Sequence[bytes]) -> PlainContext:
    return PlainContext(chain, alpn)


def client_context(alpn: bytes | None, chain: Sequence[bytes] = (), key: object = None) -> PlainContext:
    return PlainContext(chain, () if alpn is None else (alpn,))


class PlainTls:
    """One end of one connection: who shows which certificates, in as many flights as TLS, and no secrecy."""

    def __init__(self, context: PlainContext, check: ChainCheck, *, server: bool) -> None:
        self._context = context
        self._check = check
        self._server = server
        self._in = bytearray()
        self._out = bytearray()
        self._plain = b""
        self._begun = False
        self.session_id = b""
        self.peer_chain: tuple[bytes, ...] = ()
        self.alpn: bytes | None = None
        self.certificate_sent = False

    def handshake(self) -> bool:
        """Advance; whether it is complete."""
        if not self._server and not self._begun:
            self._begun = True
            offered = b"".join(self._context.alpns)
            self._put(HELLO, offered.ljust(HELLO_SIZE, b"\0"))
        while (record := self._next()) is not None:
            if self._step(*record):
                return True
        return False

    def _step(self, kind: int, body: bytes) -> bool:
        """Whether the handshake is complete after this record."""
        if self._server and kind == HELLO:
            offered = body.rstrip(b"\0")
            if offered and offered not in self._context.alpns:
                raise errors.AlpnError
            self.alpn = offered or None
            self._put(CHAIN, body[:ALPN_SIZE] + _packed(self._context.chain))
            return False
        if not self._server and kind == CHAIN:
            self._judge(_unpacked(body[ALPN_SIZE:]))
            self.alpn = body[:ALPN_SIZE].rstrip(b"\0") or None
            self.session_id = os.urandom(FINISHED_SIZE)
            self.certificate_sent = bool(self._context.chain)
            self._put(FINISHED, self.session_id + _packed(self._context.chain))
            return True
        if self._server and kind == FINISHED:
            self.session_id = body[:FINISHED_SIZE]
            self._judge(_unpacked(body[FINISHED_SIZE:]))
            return True
        raise errors.TlsError("the peer ended TLS")

    def _judge(self, chain: tuple[bytes, ...]) -> None:
        self.peer_chain = chain
        try:
            self._check(chain)
        except errors.CertificateError:
            self._put(ALERT, b"")
            raise

    def _put(self, kind: int, body: Buffer) -> None:
        header = bytes((kind,)) + len(body).to_bytes(4, "big")
        self._out += header.ljust(HEADER_SIZE, b"\0")
        self._out += body

    def _next(self) -> tuple[int, bytes] | None:
        """The next whole record."""
        waiting = self._in
        if len(waiting) < HEADER_SIZE:
            return None
        if waiting[0] not in KINDS:
            raise errors.NotTlsError
        end = HEADER_SIZE + int.from_bytes(waiting[1:5], "big")
        if len(waiting) < end:
            return None
        kind, body = waiting[0], bytes(waiting[HEADER_SIZE:end])
        del waiting[:end]
        return kind, body

    def received(self, count: int) -> None:
        self._in += memoryview(scratch.received)[:count]

    def read(self, size: int) -> int:
        if not self._plain:
            record = self._next()
            if record is None:
                return 0
            if record[0] == CLOSE:
                raise errors.PeerClosedError
            if record[0] != DATA:
                raise errors.TlsError("the peer ended TLS")
            self._plain = record[1]
        part, self._plain = self._plain[:size], self._plain[size:]
        scratch.plain[: len(part)] = part
        return len(part)

    @property
    def pending(self) -> bool:
        return bool(self._in or self._plain)

    def write(self, data: Buffer | bytearray) -> None:
        for start in range(0, len(data), RECORD_MAX):
            self._put(DATA, memoryview(data)[start : start + RECORD_MAX])

    def outgoing(self) -> bytearray:
        out, self._out = self._out, bytearray()
        return out

    def shutdown(self) -> None:
        self._put(CLOSE, b"")

    def forget(self) -> None:
        pass

    def release(self) -> bool:
        return True


def _packed(chain: Sequence[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in chain)


def _unpacked(body: bytes) -> tuple[bytes, ...]:
    found = []
    while body:
        end = 4 + int.from_bytes(body[:4], "big")
        found.append(body[4:end])
        body = body[end:]
    return tuple(found)


def _tag(*parts: Buffer, size: int) -> bytes:
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(part)
    return digest.digest()


def seal_once(work: bytearray, secret: bytes, nonce: bytes) -> None:
    """The content stays readable; the tag tells which key and nonce it is for."""
    work[: sodium.TAG_SIZE] = _tag(secret, nonce, size=sodium.TAG_SIZE)


def open_once(out: bytearray, box: Buffer | bytearray, secret: bytes, nonce: bytes) -> None:
    if box[: sodium.TAG_SIZE] != _tag(secret, nonce, size=sodium.TAG_SIZE):
        raise CryptoError("the box does not open")
    out[: len(box) - sodium.TAG_SIZE] = box[sodium.TAG_SIZE :]


def ed25519_sign(expanded: bytes, message: Buffer) -> bytes:
    """Anybody could sign so; nobody in these runs forges a signature."""
    return _tag(expanded[sodium.KEY_SIZE :], message, size=sodium.SIGNATURE_SIZE)


def verify_raw(public: bytes, message: Buffer, signature: Buffer) -> bool:
    return bytes(signature) == _tag(public, message, size=sodium.SIGNATURE_SIZE)


def verify(public: PublicKey, message: Buffer, signature: Buffer) -> bool:
    if public.algorithm is Algorithm.ED25519:
        return verify_raw(public.raw, message, signature)
    return _really_verify(public, message, signature)


def x25519_public(private: bytes) -> bytes:
    return _tag(private, size=sodium.KEY_SIZE)


def x25519(private: bytes, public: Buffer) -> bytes:
    """The same for both of a pair."""
    return _tag(*sorted((x25519_public(private), bytes(public))), size=sodium.KEY_SIZE)


class QuickX448(bytes):
    """A private key of X448, and of its kind the public one."""

    @classmethod
    def from_private_bytes(cls, raw: bytes) -> QuickX448:
        return cls(_tag(raw, size=Algorithm.X448.raw_size))

    @classmethod
    def from_public_bytes(cls, raw: bytes) -> QuickX448:
        return cls(raw)

    def public_key(self) -> QuickX448:
        return self

    def public_bytes_raw(self) -> bytes:
        return bytes(self)

    def exchange(self, public: QuickX448) -> bytes:
        return _tag(*sorted((self, public)), size=Algorithm.X448.raw_size)


def encapsulate(public_key: bytes) -> Encapsulated:
    """A secret beside the name of the key that it is for."""
    secret = os.urandom(SHARED_SECRET_SIZE)
    named = _tag(public_key, size=SHARED_SECRET_SIZE) + secret
    return Encapsulated(named.ljust(KEM_CIPHERTEXT_SIZE, b"\0"), secret)


def decapsulate(pair: KemKeyPair, ciphertext: bytes) -> bytes:
    if ciphertext[:SHARED_SECRET_SIZE] == _tag(pair.public_key, size=SHARED_SECRET_SIZE):
        return ciphertext[SHARED_SECRET_SIZE : 2 * SHARED_SECRET_SIZE]
    return _tag(pair.secret_key, ciphertext, size=SHARED_SECRET_SIZE)


_really_verify = keys.verify
_REPLACED: tuple[tuple[object, str, Any], ...] = (
    (session, "Tls", PlainTls),
    (plans, "router_context", router_context),
    (plans, "client_context", client_context),
    (block_chain, "seal_once", seal_once),
    (block_chain, "open_once", open_once),
    (sodium, "ed25519_sign", ed25519_sign),
    (sodium, "x25519_public", x25519_public),
    (sodium, "x25519", x25519),
    (keys, "X448PrivateKey", QuickX448),
    (keys, "X448PublicKey", QuickX448),
    (key_pairs, "encapsulate", encapsulate),
    (ratchet, "decapsulate", decapsulate),
    (x3dh, "decapsulate", decapsulate),
    (ed25519, "verify", verify_raw),
    (credentials, "verify", verify),
    (link_data, "verify", verify),
    (verifying, "verify", verify),
)
_SMALLER = ((channel, "HIGH", 20 << 10), (channel, "LOW", 5 << 10))
"""What is said to a front in a short run would never fill its channel."""
_REMEMBERED = ((chains, "_load"), (chains, "_check_signature"), (sodium, "ed25519_expand"))
"""Always the same for the same, and asked again in every run."""
_MEMORIES = [functools.lru_cache(REMEMBERED_MAX)(getattr(*place)) for place in _REMEMBERED]


def is_quick(seed: int | str) -> bool:
    """Whether the run of this seed has them."""
    return not isinstance(seed, int) or seed % REAL_EVERY != 0


@contextmanager
def stand_ins(*, quick: bool) -> Iterator[None]:
    """Use them meanwhile, if it is to be quick."""
    with ExitStack() as used:
        for where, memory in zip(_REMEMBERED, _MEMORIES, strict=True):
            used.enter_context(patch.object(*where, memory))
        for standing in (*_SMALLER, *_REPLACED) if quick else _SMALLER:
            used.enter_context(patch.object(*standing))
        yield
