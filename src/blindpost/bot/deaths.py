"""Messages whose handlers end the whole program: found out, tried a few more times, and then set aside.

What is being handled is noted in a small file beside the store. Writing it takes microseconds and needs no
disk: it must survive the end of the program, not of the machine. Whatever was being handled when a program
died is handled alone after the next start, so that the next death tells whose fault it is.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from blindpost.agent import Agent, StoreFailedError, Transaction

log = logging.getLogger("blindpost.bot")

DEATHS = "bot.deaths"
DEATHS_MAX = 5
"""A message during which, and nothing else, the program died so often is not handled again."""
TRUNCATED_BYTES = 1 << 20
NAME_SIZE = 32
_BEGUN, _ENDED = b"+", b"-"


class DiedError(Exception):
    """The program ended, again and again, while this was handled."""

    def __init__(self) -> None:
        super().__init__(f"the program ended {DEATHS_MAX} times while this was handled")


class Deaths:
    """What is being handled now, and what was when earlier lives ended; by conversation, of which one message
    is handled at a time."""

    def __init__(self, agent: Agent, path: Path) -> None:
        self._agent = agent
        # An object and not a bare descriptor: what comes after its end must never reach another file.
        try:
            self._file = open(path, "ab+", buffering=0, opener=_private)  # noqa: SIM115  # `close` ends it
        except OSError as error:
            raise StoreFailedError(f"{path} cannot be opened: {error.strerror}") from error
        self._size = 0
        self._torn = False
        """Whether the last line may be incomplete."""
        self._begun: set[bytes] = set()
        self._suspects: dict[str, int] = {}

    async def load(self) -> None:
        """Count what the last life left behind."""
        self._file.seek(0)
        left = _left_in(self._file.read())
        alone = len(left) == 1

        def count(tx: Transaction) -> dict[str, int]:
            for name in left:
                stored = tx.get(DEATHS, name)
                before = 0 if stored is None else int(stored)
                tx.put(DEATHS, name, b"%d" % (before + alone))
            return {name: int(value) for name, value in tx.scan(DEATHS)}

        self._suspects = await self._agent.transact(count)
        self._file.truncate(0)

    def is_suspect(self, key: str) -> bool:
        return _name(key) in self._suspects

    def is_hopeless(self, key: str) -> bool:
        return self._suspects.get(_name(key), 0) >= DEATHS_MAX

    def begin(self, key: str) -> None:
        self._note(_BEGUN, key)

    def end(self, key: str) -> None:
        """It was handled, or set aside, or the program closes in an orderly way."""
        self._note(_ENDED, key)
        if self._size > TRUNCATED_BYTES:
            self._file.truncate(0)
            self._size = 0
            self._write(b"".join(_BEGUN + name + b"\n" for name in self._begun))

    async def acquit(self, key: str) -> None:
        """The message that was suspected is done with."""
        name = _name(key)
        if name in self._suspects:
            await self._agent.transact(lambda tx: tx.delete(DEATHS, name))
            self._suspects.pop(name, None)

    def close(self) -> None:
        self._file.close()

    def _note(self, mark: bytes, key: str) -> None:
        name = _name(key).encode()
        (self._begun.add if mark == _BEGUN else self._begun.discard)(name)
        self._write(mark + name + b"\n")

    def _write(self, lines: bytes) -> None:
        """Nobody is left unanswered because the disk has no room for a note."""
        lines = b"\n" + lines if self._torn else lines
        try:
            written = self._file.write(lines)
        except OSError as error:
            log.error("what is being handled cannot be noted: %s", error.strerror)
            written = 0
        self._torn = written < len(lines)
        self._size += written


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _name(key: str) -> str:
    """Who talks with the bot is not to be read from the file."""
    return hashlib.sha256(key.encode()).hexdigest()[:NAME_SIZE]


def _left_in(content: bytes) -> set[str]:
    left: set[str] = set()
    for line in content.split(b"\n")[:-1]:
        name = line[1:].decode("ascii", "replace")
        if len(name) != NAME_SIZE:
            continue  # the disk had no room for all of it
        (left.add if line[:1] == _BEGUN else left.discard)(name)
    return left
