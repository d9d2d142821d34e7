"""Messages and notifications arrive in their queues and in order; old or damaged ones do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.router.config import MESSAGE_TTL_S, NOTIFICATION_TTL_S
from blindpost.router.model import Ends, StoredMessage
from blindpost.router.moving.replay import NO_QUEUE
from blindpost.router.moving.waiting import NO_NOTIFIER
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.message_log import (
    JournalPosition,
    JournalState,
    MessageLine,
    NotificationLine,
    Saved,
    SavedMessage,
    SavedQuota,
    encode_journal_message,
)
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.store_log import CreateQueue, NewService, NotifierRecord
from blindpost.wire.text import b64
from tests.support.router.moving import NOW, files, imported
from tests.support.wire.journal_states import encode_journal_state
from tests.support.wire.vectors import vectors

KEY = PublicKey(Algorithm.ED25519, bytes(32))
FIRST, SECOND, NOTIFIER, SERVICE = (bytes([number]) * 24 for number in range(1, 5))
OWNER = NewService(SERVICE, ServiceRole.MESSAGING, (b"c",), bytes(32), 0)
QUEUES = (
    OWNER,
    CreateQueue(FIRST, (KEY,), bytes(32), b"\x0b" * 24, service_id=SERVICE),
    CreateQueue(SECOND, (KEY,), bytes(32), b"\x0c" * 24, notifier=NotifierRecord(NOTIFIER, KEY, bytes(32))),
)
OLD = NOW - MESSAGE_TTL_S - 1


def message(number: int, seconds: int = NOW, *, notify: bool = False) -> SavedMessage:
    return SavedMessage(bytes([number]) * 24, seconds, notify, bytes([number]) * 50)


def marker(number: int, seconds: int = NOW) -> SavedQuota:
    return SavedQuota(bytes([number]) * 24, seconds)


def stored(saved: Saved) -> StoredMessage:
    if isinstance(saved, SavedQuota):
        return StoredMessage(saved.msg_id, saved.seconds, False, None)
    return StoredMessage(saved.msg_id, saved.seconds, saved.notification, saved.body)


@pytest.mark.parametrize("chunk_lines", [1, 2, 100])
async def test_messages_keep_their_order(tmp_path: Path, chunk_lines: int) -> None:
    first, second = [message(1), message(2, notify=True), message(3)], [message(4)]
    lines = [*(MessageLine(FIRST, one) for one in first), *(MessageLine(SECOND, one) for one in second)]
    found = await imported(
        tmp_path, files(tmp_path, QUEUES, [*lines, MessageLine(FIRST, message(5))]), chunk_lines
    )
    assert found.messages[FIRST] == [*map(stored, first), stored(message(5))]
    assert found.messages[SECOND] == [stored(second[0])]
    assert found.queues[FIRST].ends == Ends(0, 4, True)
    assert found.counts["messages: taken"] == 5


@pytest.mark.parametrize("chunk_lines", [1, 100])
async def test_expired_messages_are_dropped_and_markers_are_not(tmp_path: Path, chunk_lines: int) -> None:
    saved: list[Saved] = [message(1, OLD), message(2, OLD + 1), marker(3, OLD)]
    lines = [MessageLine(FIRST, one) for one in saved]
    found = await imported(tmp_path, files(tmp_path, QUEUES, lines), chunk_lines)
    assert found.messages == {FIRST: [stored(message(2, OLD + 1)), stored(marker(3, OLD))]}
    assert found.queues[FIRST].ends == Ends(0, 2, False)
    assert found.counts["messages: expired"] == 1
    assert found.report == []


@pytest.mark.parametrize("chunk_lines", [1, 100])
async def test_a_full_queue_stays_full_and_has_one_marker(tmp_path: Path, chunk_lines: int) -> None:
    saved: list[Saved] = [message(1), marker(2), message(3, OLD), marker(4)]
    lines = [*(MessageLine(FIRST, one) for one in saved), MessageLine(SECOND, marker(5))]
    found = await imported(tmp_path, files(tmp_path, QUEUES, lines), chunk_lines)
    assert found.messages[FIRST] == [stored(message(1)), stored(marker(2))]
    assert found.messages[SECOND] == [stored(marker(5))]
    assert not found.queues[FIRST].ends.can_write
    assert not found.queues[SECOND].ends.can_write
    assert found.counts["messages: merged with the marker before it"] == 1
    assert found.result["full queues"] == 2


async def test_more_messages_than_the_quota_are_all_kept(tmp_path: Path) -> None:
    lines = [MessageLine(FIRST, message(number)) for number in range(200)]
    found = await imported(tmp_path, files(tmp_path, QUEUES, lines))
    assert len(found.messages[FIRST]) == 200
    assert found.queues[FIRST].ends == Ends(0, 200, True)


async def test_damaged_lines_and_unknown_queues_are_reported(tmp_path: Path) -> None:
    lines: list[MessageLine | bytes] = [
        b"v2 x",
        MessageLine(b"\7" * 24, message(1)),
        MessageLine(FIRST, message(2)),
        b"v3 torn",
    ]
    found = await imported(tmp_path, files(tmp_path, QUEUES, lines))
    assert found.messages == {FIRST: [stored(message(2))]}
    assert [line.split(":")[0] for line in found.report] == [
        f"smp-server-messages.log, line {number}" for number in (1, 2, 4)
    ]
    assert found.reasons[1] == NO_QUEUE


LINES = [
    vector for vector in vectors("store_log.json") if vector["kind"].startswith(("message_log", "ntf_log"))
]


@pytest.mark.parametrize("vector", LINES, ids=lambda vector: f"{vector['kind']}, {vector['name']}")
async def test_recorded_lines(tmp_path: Path, vector: dict[str, object]) -> None:
    """They are from November 2023, at the same second as these tests' now."""
    line = str(vector["line"]).encode()
    readable = vector.get("read_back", vector.get("result", True))
    taken = readable is True or (isinstance(readable, dict) and "error" not in readable)
    queue = CreateQueue(
        bytes(range(0xA0, 0xB8)),
        (KEY,),
        bytes(32),
        b"\x0b" * 24,
        notifier=NotifierRecord(bytes(range(0xC0, 0xD8)), KEY, bytes(32)),
    )
    is_message = str(vector["kind"]).startswith("message_log")
    source = files(tmp_path, [queue], [line] if is_message else [], [] if is_message else [line])
    found = await imported(tmp_path, source)
    assert len(found.report) == (0 if taken else 1)
    assert sum(map(len, found.messages.values())) + len(found.notifications) == (1 if taken else 0)


def notice(number: int, seconds: int = NOW, notifier_id: bytes = NOTIFIER) -> NotificationLine:
    return NotificationLine(
        notifier_id, b"\1" * 24, seconds, number.to_bytes(24, "big"), number.to_bytes(100, "big")
    )


@pytest.mark.parametrize("chunk_lines", [1, 100])
async def test_notifications(tmp_path: Path, chunk_lines: int) -> None:
    lines: list[NotificationLine | bytes] = [
        notice(1, NOW - NOTIFICATION_TTL_S - 1),
        notice(2, NOW - NOTIFICATION_TTL_S),
        notice(3),
        notice(4, notifier_id=FIRST),
        b"v1 torn",
    ]
    messages = [MessageLine(SECOND, message(1))]
    found = await imported(tmp_path, files(tmp_path, QUEUES, messages, lines), chunk_lines)
    kept = sorted(found.notifications, key=lambda one: one.number)
    assert [(one.seconds, one.nonce, one.enc_meta) for one in kept] == [
        (line.seconds, line.nonce, line.encrypted_meta)
        for line in (notice(2, NOW - NOTIFICATION_TTL_S), notice(3))
    ]
    assert kept[-1].number < 1, "behind those that come with the next messages"
    assert found.counts["notifications: expired"] == 1
    assert found.reasons[0] == NO_NOTIFIER
    assert len(found.report) == 2


@pytest.mark.parametrize("chunk_lines", [7, 1000])
async def test_of_too_many_notifications_the_oldest_are_dropped(tmp_path: Path, chunk_lines: int) -> None:
    lines = [notice(number) for number in range(300)]
    found = await imported(tmp_path, files(tmp_path, QUEUES, (), lines), chunk_lines)
    kept = sorted(found.notifications, key=lambda one: one.number)
    assert [one.nonce for one in kept] == [line.nonce for line in lines[-256:]]
    assert [one.number for one in kept] == list(range(-256, 0))


class Journal:
    """A journal store in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def folder(self, recipient_id: bytes) -> Path:
        text = b64(recipient_id)
        folder = self.root.joinpath(text[:2], text[2:4], text[4:6], text[6:8], text[8:])
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def messages(
        self, recipient_id: bytes, name: str, messages: Sequence[Saved], extra: bytes = b""
    ) -> list[int]:
        """Write a file; return where each message starts and where the last one ends."""
        lines = [encode_journal_message(one) + b"\n" for one in messages]
        (self.folder(recipient_id) / f"messages.{name}.log").write_bytes(b"".join(lines) + extra)
        return [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]

    def state_file(self, recipient_id: bytes) -> Path:
        return self.folder(recipient_id) / f"queue_state.{b64(recipient_id)}.log"

    def state(self, recipient_id: bytes, *states: JournalState | bytes) -> None:
        lines = [one if isinstance(one, bytes) else encode_journal_state(one) for one in states]
        self.state_file(recipient_id).write_bytes(b"".join(line + b"\n" for line in lines))

    def one_file(
        self, recipient_id: bytes, messages: Sequence[Saved], read: int, *, can_write: bool = True
    ) -> None:
        """A queue with one file, of which `read` messages were read."""
        places = self.messages(recipient_id, "one", messages)
        self.state(recipient_id, self.one_state(places, read, can_write=can_write))

    def one_state(self, places: list[int], read: int, *, can_write: bool = True) -> JournalState:
        count, size = len(places) - 1, places[-1]
        return JournalState(
            JournalPosition("one", count, count, size, size),
            JournalPosition("one", read, count, places[read], size),
            can_write,
            count - read,
        )


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "messages")


async def test_a_journal_is_read_from_its_readers_position(tmp_path: Path, journal: Journal) -> None:
    journal.one_file(FIRST, [message(1), message(2), message(3)], 1)
    journal.one_file(SECOND, [message(4, OLD), message(5), marker(6)], 0, can_write=False)
    found = await imported(tmp_path, files(tmp_path, QUEUES, journal=journal.root))
    assert found.messages == {
        FIRST: [stored(message(2)), stored(message(3))],
        SECOND: [stored(message(5)), stored(marker(6))],
    }
    assert found.queues[FIRST].ends.can_write
    assert not found.queues[SECOND].ends.can_write
    assert found.report == []


async def test_a_journal_continues_in_its_second_file(tmp_path: Path, journal: Journal) -> None:
    old = journal.messages(FIRST, "old", [message(1), message(2)], extra=b"torn")
    new = journal.messages(FIRST, "new", [message(3)], extra=b"torn as well")
    journal.state(
        FIRST,
        JournalState(
            JournalPosition("new", 1, 1, new[1], new[1]),
            JournalPosition("old", 1, 2, old[1], old[2]),
            True,
            2,
        ),
    )
    found = await imported(tmp_path, files(tmp_path, QUEUES, journal=journal.root))
    assert found.messages == {FIRST: [stored(message(2)), stored(message(3))]}
    assert found.report == []


async def test_the_last_valid_state_counts(tmp_path: Path, journal: Journal) -> None:
    places = journal.messages(FIRST, "one", [message(1), message(2)])
    right = journal.one_state(places, 1)
    journal.state(FIRST, journal.one_state(places, 0), right, replace(right, size=9), b"write=torn")
    found = await imported(tmp_path, files(tmp_path, QUEUES, journal=journal.root))
    assert found.messages == {FIRST: [stored(message(2))]}
    assert [line.split(":")[0].rsplit(" ")[-1] for line in found.report] == ["4", "3"]


async def test_a_state_that_was_being_rewritten_wins(tmp_path: Path, journal: Journal) -> None:
    journal.one_file(FIRST, [message(1), message(2)], 0)
    state = journal.state_file(FIRST)
    state.rename(state.with_name(state.name + ".bak"))
    journal.state(FIRST, b"")
    found = await imported(tmp_path, files(tmp_path, QUEUES, journal=journal.root))
    assert len(found.messages[FIRST]) == 2


async def test_damage_in_a_journal_is_reported_and_the_rest_arrives(tmp_path: Path, journal: Journal) -> None:
    journal.one_file(FIRST, [message(1), message(2), message(3)], 0)
    file = journal.folder(FIRST) / "messages.one.log"
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join((lines[0], b"!" * len(lines[1]), *lines[2:])))
    journal.one_file(SECOND, [message(4)], 0)
    (journal.folder(SECOND) / "messages.one.log").unlink()
    journal.one_file(b"\x21" * 24, [message(5)], 0)
    (journal.root / "!!" / "a" / "b" / "c" / "d").mkdir(parents=True)
    found = await imported(tmp_path, files(tmp_path, QUEUES, journal=journal.root))
    assert found.messages == {FIRST: [stored(message(1)), stored(message(3))]}
    assert found.counts["messages: taken"] == 2
    assert sorted(found.reasons) == [
        "1 messages expected, 0 found",
        "base64url text expected",
        NO_QUEUE,
        "not the folder of a queue",
        "the file is missing",
    ]


async def test_a_journal_file_that_is_too_short(tmp_path: Path, journal: Journal) -> None:
    journal.one_file(FIRST, [message(1), message(2)], 0)
    file = journal.folder(FIRST) / "messages.one.log"
    file.write_bytes(file.read_bytes()[:-20])
    found = await imported(tmp_path, files(tmp_path, QUEUES, journal=journal.root))
    assert found.messages == {FIRST: [stored(message(1))]}
    assert any("bytes" in reason for reason in found.reasons)


async def test_many_queues_of_a_journal(tmp_path: Path, journal: Journal) -> None:
    """More than are committed at once."""
    ids = [number.to_bytes(24, "big") for number in range(1, 451)]
    for recipient_id in ids:
        journal.one_file(recipient_id, [message(recipient_id[-1])], 0)
    queues = [CreateQueue(one, (KEY,), bytes(32), b"\1" + one[1:]) for one in ids]
    found = await imported(tmp_path, files(tmp_path, queues, journal=journal.root))
    assert found.messages.keys() == set(ids)
