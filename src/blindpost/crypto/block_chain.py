"""Encryption of blocks from version 11 on: one key for each block, derived from the one before.

Keys must be derived in the order in which blocks travel, so the owner of a chain seals and sends (or receives
and opens) with nothing in between.
"""

from __future__ import annotations

import threading

from blindpost.crypto.errors import CryptoError
from blindpost.crypto.kdf import chain_step, hkdf
from blindpost.crypto.sodium import open_once, seal_once
from blindpost.wire.batch import PADDING_SIZE, SMP_BLOCK_SIZE, TAG_SIZE
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.padding import unpadded_size
from blindpost.wire.value import Buffer

SEALED_PADDED_SIZE = SMP_BLOCK_SIZE - TAG_SIZE
SEALED_PAYLOAD_MAX = SEALED_PADDED_SIZE - PADDING_SIZE


_TAG_ROOM = bytes(TAG_SIZE)
_FILLER = memoryview(b"#" * SEALED_PAYLOAD_MAX)


class _Scratch(threading.local):
    """Where blocks of a thread are opened, one after another; what was in them is copied out once."""

    def __init__(self) -> None:
        self.opened = bytearray(SEALED_PADDED_SIZE)
        self.view = memoryview(self.opened)


_scratch = _Scratch()


class BlockChain:
    """The keys of one direction of one connection. Written out: every block takes a step."""

    __slots__ = ("_chain_key",)

    def __init__(self, chain_key: bytes) -> None:
        self._chain_key = chain_key

    def seal_block(self, parts: list[Buffer], count: int) -> bytearray:
        """A block of 16384 bytes around a payload of `count` bytes, split into `parts`."""
        if count > SEALED_PAYLOAD_MAX:
            raise WireError(f"{count} bytes do not fit into {SEALED_PADDED_SIZE} padded bytes")
        derived = chain_step(self._chain_key)
        self._chain_key = derived[:32]
        block = bytearray().join((_TAG_ROOM, count.to_bytes(2, "big"), *parts, _FILLER[count:]))
        seal_once(block, derived[32:64], derived[64:])
        return block

    def open_block(self, block: Buffer | bytearray) -> bytes:
        """The payload of `block`.

        The chain advances first: a block that does not open costs its own key and no other.
        """
        derived = chain_step(self._chain_key)
        self._chain_key = derived[:32]
        if len(block) != SMP_BLOCK_SIZE:
            raise CryptoError(f"a block of {SMP_BLOCK_SIZE} bytes expected, not {len(block)}")
        view = _scratch.view
        open_once(_scratch.opened, block, derived[32:64], derived[64:])
        return bytes(view[2 : 2 + unpadded_size(view)])

    def __repr__(self) -> str:
        return "BlockChain(32 secret bytes)"


@dataclass(frozen=True, slots=True)
class BlockChains:
    """Both directions, as one end of the connection uses them."""

    sending: BlockChain
    receiving: BlockChain


def _both(session_id: bytes, secret: bytes) -> tuple[BlockChain, BlockChain]:
    derived = hkdf(session_id, secret, b"SimpleXSbChainInit", 64)
    return BlockChain(derived[:32]), BlockChain(derived[32:])


def router_chains(session_id: bytes, secret: bytes) -> BlockChains:
    """The router's chains; `secret` is the shared X25519 point of the keys in both hellos."""
    to_client, to_router = _both(session_id, secret)
    return BlockChains(sending=to_client, receiving=to_router)


def client_chains(session_id: bytes, secret: bytes) -> BlockChains:
    """The client's chains: the router's, seen from the other end."""
    to_client, to_router = _both(session_id, secret)
    return BlockChains(sending=to_router, receiving=to_client)
