"""Generated records of the reference's saved state round-trip; hostile lines give a value or one error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.message_log import (
    JournalPosition,
    JournalState,
    MessageLine,
    NotificationLine,
    SavedMessage,
    decode_journal_message,
    decode_journal_state,
    decode_message_line,
    decode_notification_line,
    encode_journal_message,
    encode_message_line,
    encode_notification_line,
)
from blindpost.wire.scanner import Scanner
from blindpost.wire.store_log import CreateQueue, StoreRecord, decode_store_line, encode_store_line
from blindpost.wire.text import b64
from tests.support.wire import store_strategies as stored
from tests.support.wire.hostile import (
    Decode,
    calls_made,
    changed_everywhere,
    memory_peak,
    truncated_everywhere,
)
from tests.support.wire.journal_states import encode_journal_state
from tests.support.wire.vectors import vectors

EXAMPLES = settings(max_examples=60)
FILE = "store_log.json"


@settings(max_examples=150)
@given(stored.store_records)
def test_store_records_round_trip(record: StoreRecord) -> None:
    assert decode_store_line(encode_store_line(record)) == record


@EXAMPLES
@given(stored.queues(), st.sampled_from([False, True]))
def test_trailing_bytes_in_a_line_are_refused(queue: CreateQueue, spaced: bool) -> None:
    line = encode_store_line(queue)
    if line.endswith(b"}"):
        return
    with pytest.raises(WireError):
        decode_store_line(line + (b" " if spaced else b"!"))


@EXAMPLES
@given(stored.message_lines)
def test_messages_round_trip(line: MessageLine) -> None:
    assert decode_message_line(encode_message_line(line)) == line
    assert decode_journal_message(encode_journal_message(line.message)) == line.message


@EXAMPLES
@given(stored.notification_lines)
def test_notifications_round_trip(line: NotificationLine) -> None:
    assert decode_notification_line(encode_notification_line(line)) == line


@EXAMPLES
@given(stored.journal_states)
def test_journal_states_round_trip(state: JournalState) -> None:
    assert decode_journal_state(encode_journal_state(state)) == state


@pytest.mark.parametrize(
    ("write", "read", "size", "valid"),
    [
        (("a", 3, 3, 30, 30), ("a", 1, 3, 10, 30), 2, True),
        (("a", 3, 3, 30, 30), ("a", 1, 3, 10, 30), 3, False),
        (("a", 2, 3, 30, 30), ("a", 1, 3, 10, 30), 2, False),
        (("a", 3, 3, 29, 30), ("a", 1, 3, 10, 30), 2, False),
        (("a", 3, 3, 30, 30), ("a", 4, 3, 10, 30), -1, False),
        (("a", 3, 3, 30, 30), ("a", 1, 3, 31, 30), 2, False),
        (("a", 3, 3, 30, 30), ("a", 1, 4, 10, 30), 3, False),
        (("a", 3, 3, 30, 30), ("a", 1, 3, 10, 31), 2, False),
        (("a", 3, 3, 30, 30), ("b", 1, 256, 10, 999), 258, True),
        (("a", 3, 3, 30, 30), ("b", 1, 256, 10, 999), 255, False),
    ],
)
def test_valid_journal_states(
    write: tuple[str, int, int, int, int], read: tuple[str, int, int, int, int], size: int, valid: bool
) -> None:
    assert JournalState(JournalPosition(*write), JournalPosition(*read), True, size).valid is valid


@pytest.mark.parametrize("tail", [" ", "0x", ",", "\n"])
def test_trailing_bytes_in_a_state_line_are_refused(tail: str) -> None:
    line = vectors(FILE, "journal_state")[0]["line"]
    decode_journal_state(line.encode())
    with pytest.raises(WireError):
        decode_journal_state((line + tail).encode())


def test_names_that_would_break_a_line_are_not_written() -> None:
    position = JournalPosition("a,b", 0, 0, 0, 0)
    with pytest.raises(WireError):
        encode_journal_state(JournalState(position, position, True, 0))


MSG = b64(b"id")


@pytest.mark.parametrize(
    "line",
    [
        f"{MSG} 1 flags=Tmore AAAA",
        f"{MSG} 1 flags=T AAAA",
    ],
)
def test_flags_may_be_followed_by_unknown_ones(line: str) -> None:
    assert decode_journal_message(line.encode()) == SavedMessage(b"id", 1, True, bytes(3))


@pytest.mark.parametrize(
    "line",
    [
        f"{MSG} 1 flags=X AAAA",
        f"{MSG} 1 flags=TAAAA",
        f"{MSG} 1 quotas",
        f"{MSG} 1 quota ",
        f"{MSG} 1 AAAA ",
        f"{MSG} 1 A",
        f"{MSG} x AAAA",
        f"{MSG}  1 AAAA",
        f" {MSG} 1 AAAA",
    ],
)
def test_messages_that_cannot_be_read(line: str) -> None:
    with pytest.raises(WireError):
        decode_journal_message(line.encode())


@pytest.mark.parametrize("count", [0, 23, 25])
def test_a_notification_has_a_nonce_of_24_bytes(count: int) -> None:
    line = NotificationLine(b"n", b"m", 1, bytes(count), b"meta")
    with pytest.raises(WireError):
        decode_notification_line(encode_notification_line(line))


@pytest.mark.parametrize(
    "change",
    [
        (" rdh=qE3H", " rdh="),
        (" rk=MCow", " rk=,MCow"),
        (" sk=", " sk=AAAA"),
        ("queue_mode=M", "queue_mode=X"),
        ("queue_mode=M", "queue_mode=MM"),
        ("updated_at=1699920000", "updated_at="),
        ("updated_at=1699920000", "updated_at=1699920000 status=on"),
        ("updated_at=1699920000", "updated_at=1699920000 status=blocked,reason=spamm"),
        ("updated_at=1699920000", "updated_at=1699920000 status=blocked,reason=spam,notice=[]"),
        ("updated_at=1699920000", "updated_at=1699920000 rsrv="),
        ("CREATE ", "CREATE  "),
        ("CREATE ", "create "),
        (" sid=", " sender="),
    ],
)
def test_queues_that_cannot_be_read(change: tuple[str, str]) -> None:
    (line,) = (entry["line"] for entry in vectors(FILE, "store_log") if entry["name"] == "CREATE messaging")
    assert change[0] in line
    decode_store_line(line.encode())
    with pytest.raises(WireError):
        decode_store_line(line.replace(*change).encode())


@pytest.mark.parametrize(
    "line",
    [
        "NEW_SERVICE service_id=AAAA role=X cert=AAAA cert_hash=AAAA created_at=1",
        "NEW_SERVICE service_id=AAAA role=M cert= cert_hash=AAAA created_at=1",
        "NEW_SERVICE service_id=AAAA role=M cert=AAAA, cert_hash=AAAA created_at=1",
        "NEW_SERVICE service_id=AAAA role=M cert=AAAA cert_hash=AAAA created_at=1 ",
        "QUEUE_SERVICE AAAA X AAAA",
        "QUEUE_SERVICE AAAA N AAAA ",
        "KEYS AAAA ",
        "SECURE AAAA AAAA",
        f"SECURE AAAA {b64(PublicKey(Algorithm.X448, bytes(56)).spki)}",
        "TIME AAAA 1.5",
        "LINK AAAA AAAA AAAA",
        "SUSPEND AAAA AAAA",
        "DELETE",
        "DELETE\n",
        "DELETE AAAA\n",
        "DELETE YQ=",
        "DELETE Y+==",
    ],
)
def test_lines_that_cannot_be_read(line: str) -> None:
    with pytest.raises(WireError):
        decode_store_line(line.encode())


def test_scanner_says_what_it_expected() -> None:
    scanner = Scanner("ab")
    with pytest.raises(WireError, match="'b' expected"):
        scanner.expect("b")
    scanner.expect("a")
    with pytest.raises(WireError, match="1 characters left over"):
        scanner.end()
    with pytest.raises(WireError, match="a number expected"):
        scanner.integer()
    with pytest.raises(WireError, match="not negative"):
        Scanner("-1").natural()
    assert (scanner.until(","), scanner.rest()) == ("b", "")


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_numbers_are_limited_to_64_bits(number: int) -> None:
    assert Scanner(str(number)).integer() == number
    beyond = number + (1 if number > 0 else -1)
    with pytest.raises(WireError, match="64-bit"):
        Scanner(str(beyond)).integer()


DECODERS: dict[str, Decode] = {
    "store_log": decode_store_line,
    "store_log_parse": decode_store_line,
    "message_log": decode_message_line,
    "message_log_parse": decode_message_line,
    "ntf_log": decode_notification_line,
    "journal_state": decode_journal_state,
}


def hostile_cases() -> list[Any]:
    return [
        pytest.param(
            DECODERS[entry["kind"]], entry["line" if "line" in entry else "text"].encode(), id=entry["name"]
        )
        for entry in vectors(FILE)
        if entry["kind"] in DECODERS
    ]


@pytest.mark.parametrize(("decode", "data"), hostile_cases())
def test_changed_lines_give_a_value_or_the_one_error(decode: Decode, data: bytes) -> None:
    truncated_everywhere(decode, data)
    changed_everywhere(decode, data, seed=data[:40].decode())


@EXAMPLES
@given(st.sampled_from(sorted(DECODERS)), st.binary(max_size=100))
def test_any_bytes_give_a_value_or_the_one_error(kind: str, data: bytes) -> None:
    for prefix in (b"", b"CREATE ", b"BLOCK AAAA reason=spam,notice=", b"v3 ", b"v1 ", b"write="):
        truncated_everywhere(DECODERS[kind], prefix + data)


@pytest.mark.parametrize(
    ("decode", "make"),
    [
        (decode_store_line, lambda count: b"DELETE " + b"A" * count),
        (decode_store_line, lambda count: b"KEYS AAAA " + b"AAAA," * count),
        (decode_store_line, lambda count: b"NEW_SERVICE service_id=AAAA role=M cert=" + b"AAAA," * count),
        (decode_store_line, lambda count: b"BLOCK AAAA reason=spam,notice=" + b"[" * count),
        (decode_message_line, lambda count: b"v3 AAAA AAAA 1 flags=T " + b"A" * count),
        (decode_message_line, lambda count: b"v3 AAAA AAAA " + b"9" * count),
    ],
)
def test_reading_is_linear(decode: Decode, make: Any) -> None:
    small, large = calls_made(decode, make(400)), calls_made(decode, make(8000))
    assert large <= 21 * small + 100
    assert memory_peak(decode, make(8000)) < 2_000_000
