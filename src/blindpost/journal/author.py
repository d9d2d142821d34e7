"""Who writes: a server's name, its role and the boot, which is one process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from blindpost.crypto.entropy import system_entropy
from blindpost.journal.schema import ROLES

_BOOT_SIZE = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def checked_name(name: str) -> str:
    """A server's name as it may appear in rows and file names."""
    if _NAME.fullmatch(name) is None:
        raise ValueError("up to 64 letters, digits, dots, - and _ expected, the first a letter or a digit")
    return name


@dataclass(frozen=True, slots=True)
class Author:
    """One process that writes a journal."""

    router: str
    role: str
    boot: str

    def __post_init__(self) -> None:
        checked_name(self.router)
        if self.role not in ROLES:
            raise ValueError(f"one of {', '.join(ROLES)} expected")

    @classmethod
    def started(cls, router: str, role: str, entropy: Callable[[int], bytes] = system_entropy) -> Author:
        """This process, from now on."""
        return cls(router, role, entropy(_BOOT_SIZE).hex())

    @property
    def stem(self) -> str:
        """The prefix of its file names."""
        return f"{self.router}-{self.role}-{self.boot}"
