"""Collection is fair and bounded, and keeps each source's order."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from blindpost.engine.inbox import DEBT_MAX, DEBT_PER_S, FULL, Budget, Inbox


@dataclass(eq=False)
class Peer:
    name: str
    told: list[str] = field(default_factory=list)
    account: str | None = None

    def hold(self, reason: str) -> None:
        assert reason == FULL
        self.told.append("pause")

    def let_go(self, reason: str) -> None:
        assert reason == FULL
        self.told.append("resume")


def test_one_busy_source_does_not_hold_up_another() -> None:
    inbox: Inbox[str] = Inbox(Budget(batch_commands=4, source_commands=100))
    busy, quiet = Peer("busy"), Peer("quiet")
    for number in range(10):
        inbox.put(busy, f"busy {number}", 1, 0)
    inbox.put(quiet, "quiet 0", 1, 0)
    assert inbox.collect() == ["busy 0", "quiet 0", "busy 1", "busy 2"]


def test_a_batch_ends_at_its_budget_of_commands_or_bytes() -> None:
    inbox: Inbox[str] = Inbox(
        Budget(batch_commands=3, batch_bytes=100, source_commands=100, source_bytes=1000)
    )
    peers = [Peer(str(number)) for number in range(3)]
    for peer in peers:
        inbox.put(peer, peer.name, 2, 10)
    assert inbox.collect() == ["0", "1"]
    assert inbox.collect() == ["2"]
    for peer in peers:
        inbox.put(peer, peer.name, 1, 60)
    assert inbox.collect() == ["0", "1"]
    assert inbox.collect() == ["2"]
    assert not inbox


def test_a_full_source_is_paused_once_and_resumed_when_half_empty() -> None:
    inbox: Inbox[int] = Inbox(Budget(batch_commands=1, source_commands=4))
    peer = Peer("p")
    for number in range(5):
        inbox.put(peer, number, 1, 0)
    assert peer.told == ["pause"]
    inbox.collect()
    inbox.collect()
    assert peer.told == ["pause"]
    inbox.collect()
    assert peer.told == ["pause", "resume"]


def test_a_source_is_paused_for_its_bytes_too() -> None:
    inbox: Inbox[int] = Inbox(Budget(source_bytes=100))
    peer = Peer("p")
    inbox.put(peer, 0, 1, 99)
    assert peer.told == []
    inbox.put(peer, 1, 1, 1)
    assert peer.told == ["pause"]


def test_the_engines_own_events_come_first_and_are_never_refused() -> None:
    inbox: Inbox[str] = Inbox(Budget(batch_commands=2))
    inbox.put(Peer("p"), "command", 1, 0)
    for number in range(3):
        inbox.put_own(f"own {number}")
    assert inbox.collect() == ["own 0", "own 1"]
    assert inbox.collect() == ["own 2", "command"]


def test_an_idle_source_costs_no_memory() -> None:
    """Ten thousand connections that were once busy must not cost memory forever."""
    inbox: Inbox[int] = Inbox(Budget(batch_commands=1, source_commands=2))
    peers = [Peer(str(number)) for number in range(3)]
    for peer in peers:
        inbox.put(peer, 0, 1, 0)
        inbox.put(peer, 1, 1, 0)
    while inbox:
        inbox.collect()
    assert (inbox._waiting, inbox._accounts) == ({}, {})
    assert [peer.told for peer in peers] == [["pause", "resume"]] * 3


@given(arrivals=st.lists(st.integers(0, 4), max_size=60), commands=st.integers(1, 7))
def test_every_event_is_collected_once_and_in_its_sources_order(arrivals: list[int], commands: int) -> None:
    inbox: Inbox[tuple[int, int]] = Inbox(Budget(batch_commands=commands, source_commands=3))
    peers = [Peer(str(number)) for number in range(5)]
    for order, number in enumerate(arrivals):
        inbox.put(peers[number], (number, order), 1, 0)
    collected: list[tuple[int, int]] = []
    while inbox:
        batch = inbox.collect()
        assert 0 < len(batch) <= commands
        collected += batch
    for number in range(5):
        assert [order for peer, order in collected if peer == number] == [
            order for order, peer in enumerate(arrivals) if peer == number
        ]
    assert all(peer.told.count("pause") == peer.told.count("resume") for peer in peers)


def test_the_sources_of_one_account_share_its_turns() -> None:
    inbox: Inbox[str] = Inbox(Budget(batch_commands=4, source_commands=100))
    crowd = [Peer(f"crowd {number}", account="crowd") for number in range(10)]
    for peer in crowd:
        inbox.put(peer, peer.name, 1, 0)
    inbox.put(Peer("other", account="other"), "other", 1, 0)
    assert inbox.collect() == ["crowd 0", "other", "crowd 1", "crowd 2"]


def test_an_undecided_event_comes_again_before_the_rest_of_its_source() -> None:
    inbox: Inbox[str] = Inbox(Budget(source_commands=3))
    peer = Peer("p")
    for word in ("a", "b"):
        inbox.put(peer, word, 1, 0)
    inbox.put_own("own")
    assert inbox.collect() == ["own", "a", "b"]
    inbox.put(peer, "c", 1, 0)
    inbox.put_back([(0, "own"), (1, "rest of a"), (2, "b")])
    assert peer.told == ["pause"]
    assert inbox.collect() == ["own", "rest of a", "b", "c"]
    assert peer.told == ["pause", "resume"]
    assert not inbox


def test_an_account_in_debt_is_served_last_until_the_debt_has_run_off() -> None:
    now = 0.0
    inbox: Inbox[str] = Inbox(Budget(batch_commands=2, source_commands=100), lambda: now)
    heavy, heavier = Peer("heavy", account="h"), Peer("heavier", account="h")
    light = [Peer(f"light {number}") for number in range(3)]
    inbox.put(heavy, "heavy", 1, 0)
    inbox.collect()
    inbox.charge(0, DEBT_MAX + 1)
    for peer in (heavy, heavier, *light):
        inbox.put(peer, peer.name, 1, 0)
    assert inbox.in_debt == 1
    assert inbox.collect() == ["light 0", "light 1", "heavy"], "a little of it in each batch"
    now = DEBT_MAX / DEBT_PER_S
    inbox.put(light[0], "light 0", 1, 0)
    assert inbox.collect() == ["light 2", "light 0"]
    assert inbox.collect() == ["heavier"]
    assert inbox.in_debt == 0


def test_it_knows_how_much_waits() -> None:
    inbox: Inbox[str] = Inbox(Budget())
    peer = Peer("p")
    inbox.put_own("own")
    for word in ("a", "b"):
        inbox.put(peer, word, 1, 0)
    assert len(inbox) == 3


def test_a_batch_may_be_filled_to_its_last_byte_and_no_further() -> None:
    inbox: Inbox[str] = Inbox(Budget(batch_bytes=100))
    for word, size in (("a", 99), ("b", 1), ("c", 5)):
        inbox.put(Peer(word), word, 1, size)
    assert inbox.collect() == ["a", "b"]
    assert inbox.collect() == ["c"]


def test_a_source_paused_for_its_bytes_is_resumed_when_half_of_them_are_taken() -> None:
    inbox: Inbox[str] = Inbox(Budget(batch_commands=1, source_bytes=100))
    peer = Peer("p")
    for word in ("a", "b"):
        inbox.put(peer, word, 1, 50)
    assert peer.told == ["pause"]
    inbox.collect()
    assert peer.told == ["pause", "resume"]


def test_what_is_put_back_counts_against_its_source_again() -> None:
    inbox: Inbox[str] = Inbox(Budget(source_bytes=100))
    peer = Peer("p")
    inbox.put(peer, "a", 1, 60)
    inbox.collect()
    inbox.put(peer, "b", 1, 50)
    inbox.put_back([(0, "a")])
    assert peer.told == ["pause"]


def test_what_is_put_back_comes_before_what_its_source_brought_meanwhile() -> None:
    inbox: Inbox[str] = Inbox(Budget(batch_commands=1))
    peer = Peer("p")
    for word in ("a", "b", "c"):
        inbox.put(peer, word, 1, 0)
    assert inbox.collect() == ["a"]
    inbox.put(peer, "d", 1, 0)
    inbox.put_back([(0, "a")])
    assert [inbox.collect() for _ in range(4)] == [["a"], ["b"], ["c"], ["d"]]


def in_debt(budget: Budget, work: float, at: float = 1000.0) -> tuple[Inbox[str], Peer]:
    """An inbox with one peer that asked for so much work."""
    inbox: Inbox[str] = Inbox(budget, lambda: at)
    peer = Peer("p", account="a")
    inbox.put(peer, "asks for much", 1, 0)
    inbox.collect()
    inbox.charge(0, work)
    return inbox, peer


def test_a_debt_of_just_what_is_allowed_changes_nothing() -> None:
    inbox, peer = in_debt(Budget(batch_commands=1), DEBT_MAX)
    assert inbox.in_debt == 0
    inbox.put(peer, "first", 1, 0)
    inbox.put(Peer("other"), "second", 1, 0)
    assert inbox.collect() == ["first"]
    assert inbox.collect() == ["second"]


@given(budget=st.sampled_from([Budget(batch_commands=2), Budget(batch_bytes=100)]))
def test_accounts_in_debt_fill_a_batch_that_nobody_else_needs(budget: Budget) -> None:
    inbox, peer = in_debt(budget, DEBT_MAX + 1)
    assert inbox.in_debt == 1
    for number in range(5):
        inbox.put(peer, str(number), 1, 50)
    assert [inbox.collect() for _ in range(3)] == [["0", "1"], ["2", "3"], ["4"]]


def test_small_debts_add_up_and_those_run_off_are_forgotten() -> None:
    now = 1000.0
    inbox: Inbox[str] = Inbox(Budget(), lambda: now)
    peer = Peer("p", account="a")
    for _ in range(2 * int(DEBT_MAX) + 2):
        inbox.put(peer, "asks for a little more", 1, 0)
        inbox.collect()
        inbox.charge(0, 0.5)
    assert inbox.in_debt == 1
    now += 2.0
    inbox.put(peer, "later", 1, 0)
    assert inbox.collect() == ["later"]
    assert inbox._debts == {}


def test_the_engines_own_events_owe_nothing() -> None:
    inbox: Inbox[str] = Inbox(Budget())
    inbox.put_own("own")
    inbox.collect()
    inbox.charge(0, 2 * DEBT_MAX)
    assert inbox.in_debt == 0
