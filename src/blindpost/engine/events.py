"""What every server that reads blocks is told about its connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Generic, TypeVar

from blindpost.wire.frozen import dataclass

ClientT = TypeVar("ClientT")
ItemT = TypeVar("ItemT")
AskedT = TypeVar("AskedT")


@dataclass(slots=True, eq=False)
class AnyCommands(Generic[ClientT, ItemT, AskedT]):
    """The transmissions of one block of one connection."""

    client: ClientT
    items: Sequence[ItemT]
    asked: Sequence[AskedT] = field(default=(), init=False)
    """The same with what is known about each; from when the turn prepares them."""


@dataclass(frozen=True, slots=True)
class Gone(Generic[ClientT]):
    """A connection has ended; comes after everything that it sent."""

    client: ClientT
