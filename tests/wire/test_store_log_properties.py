"""Generated records of the reference's saved state come back; hostile lines give a value or the one error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.wire.daily_csv import (
    NOTIFIER_COLUMNS,
    ROUTER_COLUMNS,
    DailyRow,
    decode_daily_row,
    encode_daily_row,
)
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
    encode_journal_state,
    encode_message_line,
    encode_notification_line,
)
from blindpost.wire.scanner import Scanner
from blindpost.wire.stats_backup import (
    HostCounts,
    NotifierStats,
    PeriodHashes,
    RouterStats,
    decode_notifier_stats,
    decode_router_stats,
    encode_notifier_stats,
    encode_router_stats,
)
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
from tests.support.wire.vectors import vectors

EXAMPLES = settings(max_examples=60)
FILE = "store_log.json"


@settings(max_examples=150)
@given(stored.store_records)
def test_store_records_come_back(record: StoreRecord) -> None:
    assert decode_store_line(encode_store_line(record)) == record


@EXAMPLES
@given(stored.queues(), st.sampled_from([False, True]))
def test_a_line_is_read_whole(queue: CreateQueue, spaced: bool) -> None:
    line = encode_store_line(queue)
    if line.endswith(b"}"):
        return
    with pytest.raises(WireError):
        decode_store_line(line + (b" " if spaced else b"!"))


@EXAMPLES
@given(stored.message_lines)
def test_messages_come_back(line: MessageLine) -> None:
    assert decode_message_line(encode_message_line(line)) == line
    assert decode_journal_message(encode_journal_message(line.message)) == line.message


@EXAMPLES
@given(stored.notification_lines)
def test_notifications_come_back(line: NotificationLine) -> None:
    assert decode_notification_line(encode_notification_line(line)) == line


@EXAMPLES
@given(stored.journal_states)
def test_journal_states_come_back(state: JournalState) -> None:
    assert decode_journal_state(encode_journal_state(state)) == state


@settings(max_examples=20)
@given(stored.router_stats)
def test_router_stats_come_back(stats: RouterStats) -> None:
    assert decode_router_stats(encode_router_stats(stats)) == stats


@settings(max_examples=20)
@given(stored.notifier_stats)
def test_notifier_stats_come_back(stats: NotifierStats) -> None:
    assert decode_notifier_stats(encode_notifier_stats(stats)) == stats


@settings(max_examples=20)
@given(stored.daily_rows(ROUTER_COLUMNS), stored.daily_rows(NOTIFIER_COLUMNS))
def test_daily_rows_come_back(router: DailyRow, notifier: DailyRow) -> None:
    assert decode_daily_row(encode_daily_row(router, ROUTER_COLUMNS), ROUTER_COLUMNS) == router
    assert decode_daily_row(encode_daily_row(notifier, NOTIFIER_COLUMNS), NOTIFIER_COLUMNS) == notifier


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
def test_a_state_line_is_read_whole(tail: str) -> None:
    line = vectors(FILE, "journal_state")[0]["line"]
    decode_journal_state(line.encode())
    with pytest.raises(WireError):
        decode_journal_state((line + tail).encode())


def test_names_that_would_break_a_line_are_not_written() -> None:
    position = JournalPosition("a,b", 0, 0, 0, 0)
    with pytest.raises(WireError):
        encode_journal_state(JournalState(position, position, True, 0))
    stats = decode_notifier_stats(vectors(FILE, "ntf_stats_backup")[0]["text"].encode())
    for host in ("a b", "a,b", "a\nb"):
        with pytest.raises(WireError):
            encode_notifier_stats(replace(stats, ntf_failed_own=HostCounts(((host, 1),))))


def test_what_a_file_may_leave_out_counts_as_nothing() -> None:
    none = PeriodHashes()
    router = RouterStats(
        from_time="2023-11-14T00:00:00Z",
        q_created=0,
        q_secured=0,
        q_deleted_all=0,
        q_deleted_new=0,
        q_deleted_secured=0,
        msg_sent=0,
        msg_recv=0,
        active_queues=none,
    )
    assert encode_router_stats(router).decode() == vectors(FILE, "stats_backup")[0]["text"]
    notifier = NotifierStats(
        from_time="2023-11-14T00:00:00Z",
        tkn_created=0,
        tkn_verified=0,
        tkn_deleted=0,
        sub_created=0,
        sub_deleted=0,
        ntf_received=0,
        ntf_delivered=0,
        active_tokens=none,
        active_subs=none,
    )
    assert encode_notifier_stats(notifier).decode() == vectors(FILE, "ntf_stats_backup")[0]["text"]


@pytest.mark.parametrize(
    "name",
    ["tknReplaced", "ntfReceivedAuth", "ntfFailed", "ntfReceivedOwn", "ntfFailedOwn", "ntfVrfInvalidTkn"],
)
def test_lines_that_older_notification_routers_did_not_write_may_be_missing(name: str) -> None:
    text = vectors(FILE, "ntf_stats_backup")[0]["text"]
    value = "" if name.endswith("Own") else "0"
    older = text.replace(f"\n{name}={value}\n", "\n")
    assert older.count("\n") == 28
    assert decode_notifier_stats(older.encode()) == decode_notifier_stats(text.encode())


@pytest.mark.parametrize("name", ["fromTime", "tknCreated", "subDeleted", "ntfDelivered"])
def test_other_lines_may_not_be_missing(name: str) -> None:
    lines = vectors(FILE, "ntf_stats_backup")[0]["text"].splitlines(keepends=True)
    with pytest.raises(WireError):
        decode_notifier_stats("".join(line for line in lines if not line.startswith(f"{name}=")).encode())


def test_sections_are_missing_whole_or_not_at_all() -> None:
    text = vectors(FILE, "stats_backup")[0]["text"]
    section = "rslvStats:\nreqs=0\nsucc=0\nnotFound=0\nresolverErrs=0\ndisabled=0\n"
    assert decode_router_stats(text.replace(section, "").encode()) == decode_router_stats(text.encode())
    for wrong in (
        text.replace("succ=0\n", ""),
        text.replace("activeQueues:\ndayHashes=\nweekHashes=\nmonthHashes=\n", ""),
        text + "more=0\n",
        text + "\n",
        text.replace("qCreated=0", "qCreated=x"),
        text.replace("qCreated=0", "qCreated="),
        text.replace("qCreated=0", "qCreated=9223372036854775808"),
        text.replace("dayHashes=\n", "dayHashes=1,,2\n", 1),
        text.replace("qCreated=0", "qCreated=0x"),
        text.replace("2023-11-14T00:00:00Z", "2023-11-14"),
        "",
    ):
        with pytest.raises(WireError):
            decode_router_stats(wrong.encode())


@pytest.mark.parametrize("value", ["a.example 1", "a.example 1,b.example 22"])
def test_counts_by_host(value: str) -> None:
    text = vectors(FILE, "ntf_stats_backup")[0]["text"]
    own = text.replace("ntfFailedOwn=", f"ntfFailedOwn={value}").encode()
    stats = decode_notifier_stats(own)
    assert stats.ntf_failed_own.by_host[0] == ("a.example", 1)
    assert encode_notifier_stats(stats) == own
    for wrong in (f"{value}x", f"{value},", f",{value}", "a.example", "a.example -1", "a.example  1"):
        with pytest.raises(WireError):
            decode_notifier_stats(text.replace("ntfFailedOwn=", f"ntfFailedOwn={wrong}").encode())


def test_hashes_are_a_set_written_in_order() -> None:
    text = vectors(FILE, "stats_backup")[1]["text"]
    shuffled = text.replace("weekHashes=-5,1,2", "weekHashes=2,-5,1,1")
    stats = decode_router_stats(shuffled.encode())
    assert stats.active_queues == PeriodHashes(frozenset({1, 2}), frozenset({-5, 1, 2}), frozenset({3}))
    assert encode_router_stats(stats) == text.encode()


MSG = b64(b"id")


@pytest.mark.parametrize(
    "line",
    [
        f"{MSG} 1 flags=Tmore AAAA",
        f"{MSG} 1 flags=T AAAA",
    ],
)
def test_flags_may_go_on_with_what_nobody_knows_yet(line: str) -> None:
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
def test_numbers_have_64_bits(number: int) -> None:
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
    "stats_backup": decode_router_stats,
    "ntf_stats_backup": decode_notifier_stats,
}


def hostile_cases() -> list[Any]:
    return [
        pytest.param(
            DECODERS[entry["kind"]], entry["line" if "line" in entry else "text"].encode(), id=entry["name"]
        )
        for entry in vectors(FILE)
        if entry["kind"] != "stats_csv"
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
        (decode_router_stats, lambda count: b"fromTime=" + b"\n" * count),
        (lambda data: decode_daily_row(data, ROUTER_COLUMNS), lambda count: b"," * count),
    ],
)
def test_reading_is_linear(decode: Decode, make: Any) -> None:
    small, large = calls_made(decode, make(400)), calls_made(decode, make(8000))
    assert large <= 21 * small + 100
    assert memory_peak(decode, make(8000)) < 2_000_000
