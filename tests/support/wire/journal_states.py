"""The state files of the reference's journals, as tests write them; the router only reads them."""

from __future__ import annotations

from blindpost.wire.errors import WireError
from blindpost.wire.message_log import JournalPosition, JournalState


def encode_journal_state(state: JournalState) -> bytes:
    write, read = _position(state.write), _position(state.read)
    return f"write={write} read={read} canWrite={'T' if state.can_write else 'F'} size={state.size}".encode()


def _position(position: JournalPosition) -> str:
    if "," in position.journal:
        raise WireError("the name of a journal file without commas expected")
    numbers = (position.msg_position, position.msg_count, position.byte_position, position.byte_count)
    return ",".join((position.journal, *map(str, numbers)))
