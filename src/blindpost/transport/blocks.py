"""Blocks from and into a TLS stream: the only place where they are cut, sealed and opened."""

from __future__ import annotations

from blindpost.crypto.block_chain import SEALED_PAYLOAD_MAX, BlockChains
from blindpost.transport.errors import BlockError, LargeMessageError, TlsError
from blindpost.transport.tls import Tls, scratch
from blindpost.wire.errors import WireError
from blindpost.wire.padding import pad_parts, unpad
from blindpost.wire.value import Buffer

PIECES_MAX = 128
"""One block may come in so many TLS records: one of a single byte costs us as much as a full one."""


class Blocks:
    """The blocks of one session, plain until `encrypt` is called."""

    __slots__ = ("_chains", "_partial", "_pieces", "_tls", "payload_max", "size")

    def __init__(self, tls: Tls, size: int) -> None:
        self._tls = tls
        self._chains: BlockChains | None = None
        self._partial: bytearray | None = None
        self._pieces = 0
        self.size = size
        self.payload_max = size - 2

    def encrypt(self, chains: BlockChains) -> None:
        """All blocks after this one are encrypted, in both directions."""
        self._chains = chains
        self.payload_max = SEALED_PAYLOAD_MAX

    @property
    def inside(self) -> bool:
        """Whether only part of a block has arrived."""
        return self._partial is not None

    def write(self, parts: list[Buffer], count: int) -> None:
        """Send one block with a payload of `count` bytes, split into `parts`."""
        if count > self.payload_max:
            raise LargeMessageError(f"{count} bytes do not fit into a block: {self.payload_max} do")
        chains = self._chains
        if chains is None:
            self._tls.write(pad_parts(parts, count, self.size))
        else:
            self._tls.write(chains.sending.seal_block(parts, count))

    @property
    def received(self) -> bool:
        """Whether the received bytes may contain another block."""
        return self._tls.pending

    def read(self) -> bytes | None:
        """The payload of the next whole block, None when more must be received first."""
        block = self._assembled()
        if block is None:
            return None
        chains = self._chains
        try:
            return bytes(unpad(block)) if chains is None else chains.receiving.open_block(block)
        except WireError as error:
            raise BlockError from error

    def _assembled(self) -> memoryview | None:
        """The next block; the view is valid until the next call of anything here."""
        size, partial = self.size, self._partial
        read = self._tls.read
        if partial is None:
            count = read(size)
            if count == size:
                return scratch.plain_view[:size]
            if count == 0:
                return None
            partial = self._partial = bytearray(scratch.plain_view[:count])
            self._pieces = 1
        while (missing := size - len(partial)) > 0:
            count = read(missing)
            if count == 0:
                return None
            partial += scratch.plain_view[:count]
            self._pieces += 1
            if self._pieces > PIECES_MAX:
                raise TlsError("the peer sends blocks in tiny pieces")
        self._partial = None
        return memoryview(partial)
