"""Frames round-trip; torn, damaged and misplaced ones are dropped."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.journal.author import Author
from blindpost.journal.blinding import Blinding
from blindpost.journal.folder import SEGMENTS
from blindpost.journal.frames import (
    BUFFER_EVENTS,
    CLOSED,
    OPEN,
    EventWriter,
    Layout,
    RecordWriter,
    SegmentError,
    read_segment,
)
from blindpost.journal.schema import L_DELIVERY, L_MESSAGES, L_NOTIFICATIONS, S_QUEUES, Table

AUTHOR = Author("canary-1", "canary", "00112233aabbccdd")


def segments(root: Path, suffix: str = CLOSED) -> list[Path]:
    return sorted((root / SEGMENTS).glob(f"[!.]*{suffix}"))


def events_of(content: bytes, table: Table = L_MESSAGES) -> list[tuple[Any, ...]]:
    return [Layout(table).body.unpack(body) for body in read_segment(content).bodies]


def written(root: Path, count: int) -> tuple[bytes, list[tuple[int, ...]]]:
    """A closed segment with this many events."""
    writer = EventWriter(root, L_MESSAGES, AUTHOR)
    here, there = writer.word("from_router", "a"), writer.word("to_router", "b")
    events: list[tuple[int, ...]] = [
        (1_000 + number, here, there, -number, number, 1, 0, 16_000) for number in range(count)
    ]
    for event in events:
        writer.add(*event)
    writer.close()
    (path,) = segments(root)
    return path.read_bytes(), events


INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.tuples(INT64, INT64, INT64, st.integers(0, 7), INT32, INT64), max_size=20))
@settings(deadline=None, max_examples=30)
def test_events_of_any_values_round_trip(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, ...]]
) -> None:
    root = tmp_path_factory.mktemp("frames")
    writer = EventWriter(root, L_DELIVERY, AUTHOR)
    for event in events:
        writer.add(*event)
    writer.close()
    found = [event for path in segments(root) for event in events_of(path.read_bytes(), L_DELIVERY)]
    assert found == events
    assert writer.events == len(events)


def test_every_table_of_events_has_frames_and_others_have_none() -> None:
    assert [Layout(table).width for table in (L_MESSAGES, L_NOTIFICATIONS, L_DELIVERY)] == [38, 29, 41]
    with pytest.raises(ValueError, match="no fixed width"):
        Layout(S_QUEUES)


def test_a_segment_torn_at_any_byte_keeps_every_whole_frame(tmp_path: Path) -> None:
    content, events = written(tmp_path, 5)
    width = Layout(L_MESSAGES).width
    start = len(content) - 5 * width
    for end in range(len(content) + 1):
        if end < start:
            with pytest.raises(SegmentError):
                read_segment(content[:end])
            continue
        found = read_segment(content[:end])
        whole = (end - start) // width
        assert events_of(content[:end]) == events[:whole]
        assert list(found.numbers) == list(range(whole))
        assert (found.damaged, found.torn_bytes) == (0, (end - start) % width)


def test_a_changed_bit_costs_its_frame_and_no_other(tmp_path: Path) -> None:
    content, events = written(tmp_path, 4)
    width = Layout(L_MESSAGES).width
    start = len(content) - 4 * width
    for offset in range(len(content)):
        changed = bytearray(content)
        changed[offset] ^= 1 << offset % 8
        if offset < start:
            with pytest.raises(SegmentError):
                read_segment(bytes(changed))
            continue
        hit = (offset - start) // width
        found = read_segment(bytes(changed))
        assert list(found.numbers) == [number for number in range(4) if number != hit]
        assert events_of(bytes(changed)) == events[:hit] + events[hit + 1 :]
        assert (found.damaged, found.torn_bytes) == ((0, width) if hit == 3 else (1, 0))


def test_a_good_frame_in_the_wrong_place_is_rejected(tmp_path: Path) -> None:
    content, _ = written(tmp_path, 2)
    width = Layout(L_MESSAGES).width
    swapped = content[: -2 * width] + content[-width:] + content[-2 * width : -width]
    assert read_segment(swapped).bodies == []
    zeros = content[: -2 * width] + bytes(2 * width)
    assert read_segment(zeros).bodies == []


def test_records_end_at_the_first_incomplete_one(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, AUTHOR)
    for number in range(3):
        writer.add({"number": number, "rows": "x" * number})
    writer.close()
    writer.add({"number": 3})
    writer.close()
    first, second = (path.read_bytes() for path in segments(tmp_path))
    assert list(read_segment(second).numbers) == [3]
    sizes = [len(bytes(body)) for body in read_segment(first).bodies]
    ends = [len(first) - sum(size + 8 for size in sizes[number:]) for number in range(4)]
    for end in range(ends[0], len(first) + 1):
        found = read_segment(first[:end])
        assert len(found.bodies) == sum(end >= stop for stop in ends[1:])
    for offset in range(ends[0], len(first)):
        changed = bytearray(first)
        changed[offset] ^= 0x10
        kept = sum(offset >= stop for stop in ends[1:])
        assert len(read_segment(bytes(changed)).bodies) == kept


def test_foreign_and_future_segments_are_refused(tmp_path: Path) -> None:
    content, _ = written(tmp_path, 1)
    for foreign in (b"", b"PAR1" + content[4:], content.replace(b"l_messages", b"l_strangers")):
        with pytest.raises(SegmentError):
            read_segment(foreign)


def test_segments_are_bounded_and_numbering_continues_across_them(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, L_DELIVERY, AUTHOR, segment_bytes=50_000)
    for number in range(3 * BUFFER_EVENTS):
        writer.add(number, 1, 2, 0, 3, 4)
    writer.close()
    found = [read_segment(path.read_bytes()) for path in segments(tmp_path)]
    assert [segment.header.first for segment in found] == [0, 2 * BUFFER_EVENTS]
    numbers = [number for segment in found for number in segment.numbers]
    assert numbers == list(range(3 * BUFFER_EVENTS))


def test_a_new_word_starts_a_segment_whose_header_has_it(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, L_MESSAGES, AUTHOR)
    here, there = writer.word("from_router", "a"), writer.word("to_router", "a")
    writer.add(1, here, there, 0, 0, 0, 0, 0)
    other = writer.word("to_router", "b")
    assert writer.word("to_router", "b") == other != there
    writer.add(2, here, other, 0, 0, 0, 0, 0)
    writer.flush()
    (closed,), (still_open,) = segments(tmp_path), segments(tmp_path, OPEN)
    assert read_segment(closed.read_bytes()).header.words["to_router"] == ["a"]
    assert read_segment(still_open.read_bytes()).header.words["to_router"] == ["a", "b"]
    writer.close()


def test_a_block_refused_by_the_disk_leaves_no_partial_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RecordWriter(tmp_path, AUTHOR)
    writer.add({"number": 0})
    write = os.write

    def half(descriptor: int, content: memoryview) -> int:
        if len(content) < 5:
            raise OSError(errno.ENOSPC, "no space")
        return write(descriptor, content[: len(content) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(OSError, match="no space"):
            writer.add({"number": 1})
    writer.add({"number": 2})
    writer.close()
    found = read_segment(segments(tmp_path)[0].read_bytes())
    assert [bytes(body) for body in found.bodies] == [b'{"number":0}', b'{"number":2}']


def test_a_segment_that_could_not_be_started_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RecordWriter(tmp_path, AUTHOR)

    def full(descriptor: int, content: memoryview) -> int:
        raise OSError(errno.ENOSPC, "no space")

    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                writer.add({"number": 0})
    assert list((tmp_path / SEGMENTS).iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    writer.add({"number": 1})
    writer.close()
    (path,) = segments(tmp_path)
    assert [bytes(body) for body in read_segment(path.read_bytes()).bodies] == [b'{"number":1}']


def test_a_segment_is_ended_while_the_next_one_is_written(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, L_DELIVERY, AUTHOR)
    assert writer.cut() is None
    writer.add(1, 1, 2, 0, 3, 4)
    finish = writer.cut()
    assert finish is not None
    writer.add(2, 1, 2, 0, 3, 4)
    writer.flush()
    assert (len(segments(tmp_path)), len(segments(tmp_path, OPEN))) == (0, 2)
    finish()
    (closed,), (still_open,) = segments(tmp_path), segments(tmp_path, OPEN)
    assert list(read_segment(closed.read_bytes()).numbers) == [0]
    assert list(read_segment(still_open.read_bytes()).numbers) == [1]
    writer.close()


def test_server_names_are_safe_in_file_names() -> None:
    for name in ("", "a/b", "..", ".a", "a b", "é", "a" * 65, "a\n"):
        with pytest.raises(ValueError, match="letters"):
            Author(name, "smp", "0" * 16)
    with pytest.raises(ValueError, match="smp"):
        Author("a", "other", "0" * 16)
    assert Author.started("a", "smp").boot != Author.started("a", "smp").boot


def test_blinded_numbers_are_stable_within_a_day_and_a_process() -> None:
    blinding, other = Blinding(), Blinding()
    day, next_day = 86_400.0 * 20_000, 86_400.0 * 20_001
    same = blinding.number(b"connection 1", day)
    assert blinding.number(b"connection 1", day + 86_399) == same
    assert blinding.number(b"connection 2", day) != same
    assert blinding.number(b"connection 1", next_day) != same
    assert other.number(b"connection 1", day) != same
    blinding.number(b"connection 1", next_day + 86_400)
    assert blinding.number(b"connection 1", day) != same, "the key of a day is forgotten"
