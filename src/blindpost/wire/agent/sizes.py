"""The padded sizes of what goes into the ratchet, so that lengths reveal nothing.

A ratchet header with a KEM takes room from the content, so both sizes depend on the connection.
"""

from __future__ import annotations

from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

PQ_AGENT_VERSION = 5
"""From here on a connection may use the post-quantum ratchet."""

_MESSAGE_OVERHEAD = 1 + 8 + 33 + 1
_LENGTH_SIZE = 2


@dataclass(frozen=True, slots=True, repr=False)
class PaddedSizes(Value):
    """Sizes of ratchet plaintext: `conn_info` inside confirmations, `message` inside message envelopes."""

    conn_info: int
    message: int

    @property
    def conn_info_max(self) -> int:
        """The longest encoded agent message that fits into a confirmation."""
        return self.conn_info - _LENGTH_SIZE

    @property
    def message_max(self) -> int:
        """The longest encoded agent message that fits into a message envelope."""
        return self.message - _LENGTH_SIZE

    @property
    def body_max(self) -> int:
        """The longest message of an application."""
        return self.message_max - _MESSAGE_OVERHEAD


_PLAIN = PaddedSizes(conn_info=14832, message=15840)
_POST_QUANTUM = PaddedSizes(conn_info=11106, message=13618)


def padded_sizes(agent_version: int, pq_support: bool) -> PaddedSizes:
    """The sizes for a connection of this agent version that supports the post-quantum ratchet or not."""
    return _POST_QUANTUM if pq_support and agent_version >= PQ_AGENT_VERSION else _PLAIN
