"""A block and, in the same write, bytes that are no record of this TLS session."""

from __future__ import annotations

from blindpost.transport.session import Session
from blindpost.wire.primitives import Writer

CORRUPT_RECORD = b"\x17\x03\x03\x00\x20" + bytes(32)


def send_with_corrupt_record(session: Session, payload: Writer) -> None:
    session._blocks.write(payload.parts, payload.size)
    session._transport.write(session._tls.outgoing() + CORRUPT_RECORD)
