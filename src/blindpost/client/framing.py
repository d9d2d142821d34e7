"""Filling blocks from the front: which transmissions of a queue share the next one."""

from __future__ import annotations

from collections.abc import Sequence

from blindpost.wire.batch import BATCH_COUNT_MAX, NTF_BATCH_LIMIT, SMP_BATCH_LIMIT, payload_of
from blindpost.wire.frozen import dataclass
from blindpost.wire.ntf.blocks import PAYLOAD_MAX
from blindpost.wire.primitives import Writer

_LENGTH_SIZE = 2
_COUNT_SIZE = 1


@dataclass(frozen=True, slots=True)
class Framing:
    """How transmissions are put into blocks at one version of one protocol."""

    shared_max: int
    """How many bytes transmissions that share a block may take, each with its length."""
    alone_max: int
    """The size of the largest transmission that has a block to itself."""
    count_max: int = BATCH_COUNT_MAX
    batched: bool = True

    def possible(self, size: int) -> bool:
        """Whether a transmission of `size` fits into any block."""
        return size <= self.alone_max

    def room(self, count: int, used: int, size: int) -> bool:
        """Whether it fits into a block that holds `count` others which take `used` bytes."""
        return count == 0 or (count < self.count_max and used + self.taken(size) <= self.shared_max)

    def taken(self, size: int) -> int:
        return _LENGTH_SIZE + size

    def payload(self, transmissions: Sequence[Writer]) -> Writer:
        """The payload of a block with these transmissions."""
        if not self.batched:
            (alone,) = transmissions
            return alone
        return payload_of(transmissions)


SMP_FRAMING = Framing(SMP_BATCH_LIMIT, SMP_BATCH_LIMIT - _LENGTH_SIZE)
NTF_FRAMING = Framing(NTF_BATCH_LIMIT, PAYLOAD_MAX - _COUNT_SIZE - _LENGTH_SIZE)
NTF_V1_FRAMING = Framing(0, PAYLOAD_MAX, count_max=1, batched=False)
