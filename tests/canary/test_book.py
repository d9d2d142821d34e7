"""What the canary writes down, against a list of everything that happened."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.canary.book import LATENCIES_KEPT, Became, Book, Entry, Way
from blindpost.canary.nodes import body_of, number_in

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
    assert entries[2] == Entry(WAY, 7, Became.DELIVERED, 2_100, "ok")
    assert book.latency_ms(0.5) == 2.0
    assert (book.under_way, book.broken) == (0, 0)


def test_what_does_not_arrive_in_time_is_lost_once() -> None:
    book = Book(LOST_AFTER_US)
    book.sent(WAY, 1, 0)
    book.sent(WAY, 2, 500)
    assert book.overdue(1_000) == []
    assert book.overdue(1_001) == [Entry(WAY, 1, Became.LOST, 1_001)]
    assert book.overdue(1_001) == []
    assert book.under_way == 1


def test_what_no_router_took_is_not_lost() -> None:
    book = Book(LOST_AFTER_US)
    book.sent(WAY, 1, 0)
    book.refused(WAY, 1, 10)
    assert book.overdue(10_000) == []
    assert book.counts[Became.REFUSED] == 1


def test_a_message_that_comes_again_is_a_duplicate_and_no_latency() -> None:
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
    """Against a plain list: sent messages are under way, arrived, refused or lost; never two of them."""
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


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**62), st.integers(32, 500))
def test_a_body_says_which_message_it_is(number: int, sent_us: int, size: int) -> None:
    body = body_of(number, sent_us, size)
    assert len(body) == size
    assert number_in(body) == (number, sent_us)


@given(st.binary(max_size=40))
def test_other_bodies_are_not_ours(body: bytes) -> None:
    assert number_in(body) is None
