"""What every store promises, and how it says that it cannot be opened."""

from __future__ import annotations

from enum import Enum

from blindpost.engine.loop import StoreFailedError
from blindpost.wire.frozen import dataclass


class Durability(Enum):
    """What an answered OK survives."""

    FULL = "full"
    """`kill -9` and power loss: every commit is synced."""
    OS = "os"
    """`kill -9`; after a power loss the last moments may be missing, never torn."""


class NotTheirStoreError(StoreFailedError):
    """The store belongs to another kind of server; nothing in it was touched."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(
            f"this store belongs to a {found}, not to a {wanted}, and was not touched: "
            "give each server a store of its own"
        )


class StoreVersionError(Exception):
    """The store was written by a newer version of this program."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"this store has schema version {found}, this program knows versions up to {known}: "
            "use the newer program that wrote it, or restore a backup"
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """A store before a server opens it: its schema version, and whether a process has it open."""

    version: int
    in_use: bool = False
    identity: str = ""
    """By which name clients know the server that it belongs to, if it says so."""


def seen(version: int, known: int, *, in_use: bool = False, identity: str = "") -> Seen:
    """What was found, unless this program is too old for it."""
    if version > known:
        raise StoreVersionError(version, known)
    return Seen(version, in_use, identity)


def of_another(theirs: str, own: str) -> str:
    """Why a server must not have the store of another one, and what to do."""
    return (
        f"the server {theirs}, and this one is {own}: clients would refuse it. Copy that server's whole "
        "folder here"
    )
