"""The canary's records, against a list of everything that happened."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.canary.book import LATENCIES_KEPT, Became, Book, Entry, Way
from blindpost.canary.nodes import Letter, body_of, letter_in

WAY = Way("one", "two")
LOST_AFTER_US = 1_000


def test_a_message_from_sending_to_its_acknowledgement() -> None:
    book = Book(LOST_AFTER_US)
    entries = [
        book.sent(WAY, 7, 100),
        book.accepted(WAY, 7, 150),
        book.delivered(WAY, 7, 100, 2_100, "ok"),
        book.acked(WAY, 7, 2_200),
    ]
    assert [entry.became for entry in entries] == [
        Became.SENT,
        Became.ACCEPTED,
        Became.DELIVERED,
        Became.ACKED,
    ]
    assert entries[2] == Entry(WAY, 7, Became.DELIVERED, 2_100, 0, "ok")
    assert book.latency_ms(0.5) == 2.0
    assert (book.under_way, book.broken) == (0, 0)


def test_the_last_minute_is_measured_apart() -> None:
    book = Book(LOST_AFTER_US)
    times = ((0, 9_000), (50_000_000, 50_001_000), (50_000_000, 50_004_000))
    for number, (sent_us, came_us) in enumerate(times):
        book.sent(WAY, number, sent_us)
        book.delivered(WAY, number, sent_us, came_us, "ok")
    assert book.last_minute_ms(51_000_000) == (4.0, 9.0)
    assert book.last_minute_ms(70_000_000) == (4.0, 4.0)
    assert book.last_minute_ms(120_000_000) is None
    assert book.latency_ms(1.0) == 9.0


def test_a_message_that_does_not_arrive_in_time_is_lost_once() -> None:
    book = Book(LOST_AFTER_US)
    book.sent(WAY, 1, 0)
    book.sent(WAY, 2, 500)
    assert book.overdue(1_000) == []
    assert book.overdue(1_001) == [Entry(WAY, 1, Became.LOST, 1_001)]
    assert book.overdue(1_001) == []
    assert book.under_way == 1


def test_a_message_no_router_accepted_is_not_lost() -> None:
    book = Book(LOST_AFTER_US)
    book.sent(WAY, 1, 0)
    book.refused(WAY, 1, 10)
    assert book.overdue(10_000) == []
    assert book.counts[Became.REFUSED] == 1


def test_a_repeated_message_is_a_duplicate_and_adds_no_latency() -> None:
    book = Book(LOST_AFTER_US)
    book.sent(WAY, 1, 0)
    book.delivered(WAY, 1, 0, 1_000, "ok")
    assert book.delivered(WAY, 1, 0, 90_000, "duplicate").became is Became.DUPLICATE
    assert book.latency_ms(1.0) == 1.0
    assert book.broken == 0


def test_an_outcome_other_than_ok_is_counted() -> None:
    book = Book(LOST_AFTER_US)
    book.delivered(WAY, 3, 0, 5, "skipped")
    assert book.broken == 1


def test_only_the_last_latencies_count() -> None:
    book = Book(LOST_AFTER_US)
    for number in range(LATENCIES_KEPT + 100):
        book.delivered(WAY, number, 0, 1_000_000 if number < 100 else 1_000, "ok")
    assert book.latency_ms(1.0) == 1.0
    assert Book(LOST_AFTER_US).latency_ms(0.5) is None


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["sent", "delivered", "refused", "overdue"]), st.integers(0, 5)),
        max_size=40,
    )
)
def test_every_message_ends_in_one_way(steps: list[tuple[str, int]]) -> None:
    """Against a plain list: a sent message is under way, arrived, refused or lost, never two of these."""
    book, now = Book(LOST_AFTER_US), 0
    sent: dict[int, int] = {}
    ended: Counter[int] = Counter()
    arrived: set[int] = set()
    for kind, number in steps:
        now += 300
        if kind == "sent" and number not in sent:
            sent[number] = now
            if number not in arrived:
                book.sent(WAY, number, now)
        elif kind == "delivered" and number in sent and not ended[number]:
            assert book.delivered(WAY, number, sent[number], now, "ok").became is Became.DELIVERED
            ended[number] += 1
            arrived.add(number)
        elif kind == "refused" and number in sent and not ended[number]:
            book.refused(WAY, number, now)
            ended[number] += 1
        elif kind == "overdue":
            late = {n for n, at in sent.items() if not ended[n] and now - at > LOST_AFTER_US}
            assert {entry.number for entry in book.overdue(now)} == late
            ended.update(late)
    assert book.under_way == len([number for number in sent if not ended[number]])
    assert max(ended.values(), default=0) <= 1


def test_a_message_keeps_its_number_across_midnight_and_a_restart() -> None:
    """The journals of the next day and the next process name its connection too."""
    book = Book(LOST_AFTER_US)
    sent = book.sent(WAY, 7, 100, connection=-5)
    assert {book.accepted(WAY, 7, 150).connection, sent.connection} == {-5}
    letter = letter_in(body_of(Letter(7, 100, sent.connection), 32))
    assert letter is not None
    again = Book(LOST_AFTER_US)
    came = again.delivered(WAY, letter.number, letter.sent_us, 2_100, "ok", letter.connection)
    assert (came.connection, again.acked(WAY, 7, 2_200).connection) == (-5, -5)
    book.sent(WAY, 8, 100, connection=-6)
    assert [entry.connection for entry in book.overdue(9_000)] == [-5, -6]


@pytest.mark.parametrize("jump_us", [7_200_000_000, -7_200_000_000])
def test_setting_the_clock_neither_delays_nor_loses_a_message(jump_us: int) -> None:
    steady = [0]
    book = Book(LOST_AFTER_US, lambda: steady[0])
    book.sent(WAY, 1, 5_000)
    book.sent(WAY, 2, 5_000)
    steady[0] = 400
    after_us = 5_400 + jump_us
    assert book.overdue(after_us) == []
    assert book.delivered(WAY, 1, 5_000, after_us, "ok").at_us == 5_400
    assert book.latency_ms(1.0) == 0.4
    steady[0] = 1_001
    assert book.overdue(after_us + 601) == [Entry(WAY, 2, Became.LOST, 6_001)]


def test_a_pause_of_the_canary_itself_does_not_count() -> None:
    """Messages under way, or sent by an earlier process, say nothing about the routers."""
    book = Book(LOST_AFTER_US, lambda: 0, since_us=100)
    book.sent(WAY, 1, 150)
    book.sent(WAY, 2, 150)
    assert book.paused() == 2
    assert book.overdue(90_000) == []
    assert book.delivered(WAY, 1, 150, 90_000, "ok").became is Became.DELIVERED
    book.delivered(WAY, 9, 50, 90_000, "ok")
    assert book.latency_ms(1.0) is None
    book.delivered(WAY, 10, 89_000, 90_000, "ok")
    assert book.latency_ms(1.0) == 1.0


def test_both_directions_of_a_single_router_are_numbered_separately() -> None:
    book, back = Book(LOST_AFTER_US), Way("one'", "one")
    there = Way("one", "one'")
    book.sent(there, 1, 0)
    book.sent(back, 1, 0)
    book.delivered(there, 1, 0, 10, "ok")
    assert book.under_way == 1
    assert there.routers == back.routers == ("one", "one")


def test_a_message_received_before_its_sending_was_noted_is_not_under_way() -> None:
    book = Book(LOST_AFTER_US)
    book.delivered(WAY, 1, 100, 200, "ok")
    book.sent(WAY, 1, 100)
    assert (book.under_way, book.overdue(10_000)) == (0, [])


@given(*[st.integers(-(2**63), 2**63 - 1)] * 2, st.integers(0, 2**62), st.integers(32, 500))
def test_a_body_identifies_its_message(number: int, connection: int, sent_us: int, size: int) -> None:
    body = body_of(Letter(number, sent_us, connection), size)
    assert len(body) == size
    assert letter_in(body) == (number, sent_us, connection)


@given(st.binary(max_size=40))
def test_other_bodies_are_not_ours(body: bytes) -> None:
    assert letter_in(body) is None
