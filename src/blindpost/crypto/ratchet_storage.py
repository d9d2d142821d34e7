"""Ratchets and the keys of messages as bytes at rest, in a form of our own."""

from __future__ import annotations

from blindpost.crypto.kem import Encapsulated, KemKeyPair
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet_state import (
    BodyKey,
    MessageKey,
    Ratchet,
    RatchetKem,
    ReceivingChain,
    SendingChain,
)
from blindpost.crypto.x3dh import AcceptedKem, PrivateParams
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, read_x448, write_key
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode

FORM = 1
"""The first byte of a stored ratchet, so that a later form can be told apart."""


def dump_ratchet(ratchet: Ratchet) -> bytes:
    return encode(ratchet, _write_ratchet)


def load_ratchet(stored: bytes) -> Ratchet:
    return decode_whole(stored, _read_ratchet)


def dump_params(params: PrivateParams) -> bytes:
    """The private half of parameters that were sent, until the answer comes."""
    return encode(params, _write_params)


def load_params(stored: bytes) -> PrivateParams:
    return decode_whole(stored, _read_params)


def dump_body_key(key: BodyKey) -> bytes:
    """What a queued message needs until it is delivered."""
    return encode(key, _write_body_key)


def load_body_key(stored: bytes) -> BodyKey:
    return decode_whole(stored, _read_body_key)


def dump_message_key(key: MessageKey) -> bytes:
    return encode(key, _write_message_key)


def load_message_key(stored: bytes) -> MessageKey:
    return decode_whole(stored, _read_message_key)


def _read_form(reader: Reader) -> None:
    if reader.u8() != FORM:
        raise WireError("a stored form that this version knows expected")


def _write_ratchet(writer: Writer, ratchet: Ratchet) -> None:
    writer.u8(FORM).u16(ratchet.current).u16(ratchet.max_supported).short(ratchet.ad)
    _write_private(writer, ratchet.dh_key)
    writer.opt(ratchet.kem, _write_kem)
    for flag in (ratchet.support_kem, ratchet.enable_kem, ratchet.snd_kem, ratchet.rcv_kem):
        writer.flag(flag)
    writer.short(ratchet.root_key)
    writer.opt(ratchet.snd, _write_snd)
    writer.opt(ratchet.rcv, _write_rcv)
    writer.i64(ratchet.ns).i64(ratchet.nr).i64(ratchet.pn)
    writer.short(ratchet.next_snd_header_key).short(ratchet.next_rcv_header_key)


def _read_ratchet(reader: Reader) -> Ratchet:
    _read_form(reader)
    return Ratchet(
        current=reader.u16(),
        max_supported=reader.u16(),
        ad=reader.short(),
        dh_key=_read_private(reader),
        kem=reader.opt(_read_kem),
        support_kem=reader.flag(),
        enable_kem=reader.flag(),
        snd_kem=reader.flag(),
        rcv_kem=reader.flag(),
        root_key=reader.short(),
        snd=reader.opt(_read_snd),
        rcv=reader.opt(_read_rcv),
        ns=reader.i64(),
        nr=reader.i64(),
        pn=reader.i64(),
        next_snd_header_key=reader.short(),
        next_rcv_header_key=reader.short(),
    )


def _write_params(writer: Writer, params: PrivateParams) -> None:
    writer.u8(FORM)
    _write_private(writer, params.key1)
    _write_private(writer, params.key2)
    writer.opt(params.kem, _write_pair)
    writer.opt(params.encapsulated, _write_encapsulated)


def _read_params(reader: Reader) -> PrivateParams:
    _read_form(reader)
    key1, key2 = _read_private(reader), _read_private(reader)
    return PrivateParams(key1, key2, reader.opt(_read_pair), reader.opt(_read_encapsulated))


def _write_private(writer: Writer, key: PrivateKey) -> None:
    writer.short(key.pkcs8)


def _read_private(reader: Reader) -> PrivateKey:
    key = PrivateKey.from_pkcs8(reader.short())
    if key.algorithm is not Algorithm.X448:
        raise WireError("a private X448 key expected")
    return key


def _write_pair(writer: Writer, pair: KemKeyPair) -> None:
    writer.large(pair.public_key).large(pair.secret_key)


def _read_pair(reader: Reader) -> KemKeyPair:
    return KemKeyPair(bytes(reader.large()), bytes(reader.large()))


def _write_encapsulated(writer: Writer, made: Encapsulated) -> None:
    writer.large(made.ciphertext).short(made.secret)


def _read_encapsulated(reader: Reader) -> Encapsulated:
    return Encapsulated(bytes(reader.large()), reader.short())


def _write_kem(writer: Writer, kem: RatchetKem) -> None:
    _write_pair(writer, kem.pair)
    writer.opt(kem.accepted, _write_accepted)


def _read_kem(reader: Reader) -> RatchetKem:
    return RatchetKem(_read_pair(reader), reader.opt(_read_accepted))


def _write_accepted(writer: Writer, accepted: AcceptedKem) -> None:
    writer.large(accepted.peer_key).short(accepted.secret).large(accepted.ciphertext)


def _read_accepted(reader: Reader) -> AcceptedKem:
    return AcceptedKem(bytes(reader.large()), reader.short(), bytes(reader.large()))


def _write_snd(writer: Writer, chain: SendingChain) -> None:
    write_key(writer, chain.peer_key)
    writer.short(chain.chain_key).short(chain.header_key)


def _read_snd(reader: Reader) -> SendingChain:
    return SendingChain(read_x448(reader), reader.short(), reader.short())


def _write_rcv(writer: Writer, chain: ReceivingChain) -> None:
    writer.short(chain.chain_key).short(chain.header_key)


def _read_rcv(reader: Reader) -> ReceivingChain:
    return ReceivingChain(reader.short(), reader.short())


def _write_message_key(writer: Writer, key: MessageKey) -> None:
    writer.short(key.key).short(key.iv)


def _read_message_key(reader: Reader) -> MessageKey:
    return MessageKey(reader.short(), reader.short())


def _write_body_key(writer: Writer, key: BodyKey) -> None:
    writer.u16(key.version).short(key.ad)
    _write_message_key(writer, key.key)
    writer.large(key.encoded_header)


def _read_body_key(reader: Reader) -> BodyKey:
    return BodyKey(reader.u16(), reader.short(), _read_message_key(reader), bytes(reader.large()))
