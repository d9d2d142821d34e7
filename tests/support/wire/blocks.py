"""Blocks as tests look into them."""

from __future__ import annotations

from blindpost.wire.primitives import Reader
from blindpost.wire.value import Buffer


def payload_reader(padded_block: Buffer) -> Reader:
    """A reader over the content of a padded block, in place."""
    reader = Reader(padded_block)
    return reader.sub(reader.u16())
