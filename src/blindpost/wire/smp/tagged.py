"""What commands and responses have in common: a tag that tells how the rest is laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import SYNTAX, UNKNOWN_COMMAND, RefusedError
from blindpost.wire.value import Value

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Bare(Value):
    """A command or response that is only its tag."""

    TAG: ClassVar[bytes]

    def write(self, writer: Writer, version: int) -> None:
        writer.raw(self.TAG)


def read_tagged(reader: Reader, version: int, readers: dict[bytes, Callable[[Reader, int], T]]) -> T:
    """Read by tag, to the end. Which error to answer with depends on whether the tag was known."""
    try:
        read = readers[reader.tag()]
    except (KeyError, WireError) as error:
        raise RefusedError(UNKNOWN_COMMAND) from error
    try:
        value = read(reader, version)
        reader.end()
    except WireError as error:
        raise RefusedError(SYNTAX) from error
    return value
