"""The reference's journal store: a folder for each queue, with its messages and how far they were read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from blindpost.router.moving.waiting import check_message
from blindpost.wire.errors import WireError
from blindpost.wire.message_log import (
    JournalPosition,
    JournalState,
    Saved,
    decode_journal_message,
    decode_journal_state,
)
from blindpost.wire.text import unb64

_LEVELS = 5
_STATE, _MESSAGES, _END, _BACKUP = "queue_state.", "messages.", ".log", ".bak"


@dataclass(slots=True)
class JournalQueue:
    """What one folder says."""

    recipient_id: bytes
    messages: list[Saved] = field(default_factory=list)
    can_write: bool = True
    problems: list[tuple[str, int, str]] = field(default_factory=list)
    """File, line and what is wrong there."""


def queue_folders(root: Path, after: str = "") -> Iterator[tuple[str, Path]]:
    """The folders of queues in the order of their names, after `after`."""
    yield from _folders(root, "", tuple(after.split("/")) if after else (), 1)


def _folders(folder: Path, name: str, after: tuple[str, ...], level: int) -> Iterator[tuple[str, Path]]:
    for child in sorted(folder.iterdir()):
        if not child.is_dir() or (after and child.name < after[0]):
            continue
        path = f"{name}/{child.name}" if name else child.name
        behind = after[1:] if after and child.name == after[0] else ()
        if level == _LEVELS:
            if not after or child.name != after[0]:
                yield path, child
        else:
            yield from _folders(child, path, behind, level + 1)


def read_queue(name: str, folder: Path) -> JournalQueue | None:
    """The messages that wait in a queue; None for a folder that is not a queue's."""
    text = name.replace("/", "")
    try:
        queue = JournalQueue(unb64(text))
    except WireError:
        return None
    state_file = folder / f"{_STATE}{text}{_END}"
    backup = state_file.with_name(state_file.name + _BACKUP)
    state = _read_state(queue, backup if backup.exists() else state_file)
    if state is None or not state.size:
        return queue
    read, write = state.read, state.write
    found = _read_messages(queue, folder, read, read.byte_position, read.byte_count)
    if write.journal != read.journal:
        found += _read_messages(queue, folder, write, 0, write.byte_count)
    if found != state.size:
        queue.problems.append((state_file.name, 0, f"{state.size} messages expected, {found} found"))
    queue.can_write = state.can_write or not queue.messages
    return queue


def _read_state(queue: JournalQueue, path: Path) -> JournalState | None:
    """The last line with a valid state."""
    if not path.exists():
        return None
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    for number in range(len(lines), 0, -1):
        try:
            state = decode_journal_state(lines[number - 1])
        except WireError as error:
            queue.problems.append((path.name, number, str(error)))
            continue
        if state.valid:
            return state
        queue.problems.append((path.name, number, "positions that fit each other expected"))
    return None


def _read_messages(queue: JournalQueue, folder: Path, position: JournalPosition, start: int, end: int) -> int:
    """Add the messages in these bytes of a journal file; returns how many there were, readable or not."""
    path = folder / f"{_MESSAGES}{position.journal}{_END}"
    if start >= end:
        return 0
    if "/" in position.journal or not path.is_file():
        queue.problems.append((path.name, 0, "the file is missing"))
        return 0
    with path.open("rb") as file:
        before = file.read(start).count(b"\n")
        content = file.read(end - start)
    if len(content) < end - start:
        queue.problems.append((path.name, 0, f"the file has {start + len(content)} of {end} bytes"))
    *lines, torn = content.split(b"\n")
    if torn:
        queue.problems.append((path.name, before + len(lines) + 1, "the end of the line is missing"))
    for number, line in enumerate(lines, start=before + 1):
        try:
            message = decode_journal_message(line)
            check_message(message)
            queue.messages.append(message)
        except WireError as error:
            queue.problems.append((path.name, number, str(error)))
    return len(lines)
