"""A transmission as it was received, whose command is not parsed yet."""

from __future__ import annotations

from typing import NamedTuple

from blindpost.wire.primitives import Reader
from blindpost.wire.transmission import Layout, read_fields
from blindpost.wire.value import Buffer


class Transmission(NamedTuple):
    """What `read_fields` finds, by name."""

    authorization: bytes
    service_signature: bytes | None
    corr_id: bytes
    entity_id: bytes
    signed: Buffer
    command: Reader

    def authorized(self, layout: Layout) -> bytes:
        """What the authorization covers."""
        return layout.session_field + bytes(self.signed)


def read_transmission(reader: Reader, layout: Layout) -> Transmission:
    return Transmission(*read_fields(reader, layout), reader)
