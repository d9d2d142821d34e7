"""Limits per address and in total, under a clock that the test moves."""

from __future__ import annotations

import weakref

import pytest

from blindpost.serving import limits as limits_module
from blindpost.serving.limits import AddressKey, AddressKeys, Limits, LimitSizes, account_of
from blindpost.serving.memory import QUIET_S, MemoryGuard, anonymous_bytes

ONE, TWO = (b"\x7f\x00\x00\x01",), (b"\x7f\x00\x00\x02",)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Peer:
    """A connecting peer that records why it is closed."""

    def __init__(self, limits: Limits, key: AddressKey | None) -> None:
        self.closed: str | None = None
        self.came = limits.admit(self, key, self._close)

    def _close(self, why: str) -> None:
        self.closed = why


def taken(limits: Limits, key: AddressKey | None, tries: int) -> int:
    """How many of this many NEW are let through."""
    return sum(limits.new_queue(key) for _ in range(tries))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_an_address_is_an_ipv4_address_or_an_ipv6_network(one: str, other: str, same: bool) -> None:
    keys = AddressKeys()
    assert keys.of(one) is not None
    assert (keys.of(one) == keys.of(other)) is same


def test_exempt_addresses_are_not_counted() -> None:
    keys = AddressKeys(["127.0.0.0/8", "::1/128"])
    assert keys.of("127.0.0.1") is None
    assert keys.of("::1") is None
    assert keys.of("::ffff:127.0.0.1") is None
    assert keys.of("192.0.2.1") is not None
    assert keys.of(None) is None
    limits = Limits(LimitSizes(connections_per_address=1, new_per_address_burst=1), Clock())
    assert [Peer(limits, None).came for _ in range(3)] == [True] * 3
    assert taken(limits, None, 10) == 10


def test_a_closed_connection_frees_a_place_of_its_address() -> None:
    limits = Limits(LimitSizes(connections_per_address=2), Clock())
    first, second, third = (Peer(limits, ONE) for _ in range(3))
    assert (first.came, second.came, third.came) == (True, True, False)
    other = Peer(limits, TWO)
    assert other.came
    limits.gone(first)
    again = Peer(limits, ONE)
    assert (again.came, Peer(limits, ONE).came) == (True, False)
    for peer in (second, again, other, third):
        limits.gone(peer)
    assert (limits.addresses, limits.handshakes) == (0, 0)


def test_larger_ipv6_networks_have_larger_but_bounded_limits() -> None:
    keys, limits = AddressKeys(), Limits(LimitSizes(connections_per_address=2), Clock())

    def came(hosts: list[str]) -> int:
        return sum(Peer(limits, keys.of(host)).came for host in hosts)

    assert came([f"2001:db8:1:2::{number}" for number in range(9)]) == 2
    assert came([f"2001:db8:1:{number:x}::1" for number in range(3, 255)]) == 2, "its /56 has twice as many"
    assert came([f"2001:db8:1:{number:x}00::1" for number in range(1, 99)]) == 4, "its /48 four times"
    assert came(["2001:db8:2::1"]) == 1
    assert account_of(keys.of("2001:db8:1:203::1")) == account_of(keys.of("2001:db8:1:2ff::1"))


def test_unfinished_handshakes_make_room_for_others() -> None:
    limits = Limits(LimitSizes(handshakes=16), Clock())
    silent = [Peer(limits, (bytes([10, 0, 0, number % 2]),)) for number in range(100)]
    assert limits.handshakes == 4, "an eighth for each address"
    assert [peer.closed is None for peer in silent[-4:]] == [True] * 4, "the oldest made room"
    crowd = [Peer(limits, (bytes([10, 1, 0, number]),)) for number in range(12)]
    assert all(peer.came for peer in crowd)
    assert limits.handshakes == 16
    bystander = Peer(limits, ONE)
    assert bystander.came, "whoever has most makes room"
    limits.established(bystander)
    assert (limits.handshakes, bystander.closed) == (15, None)


def test_when_all_connections_are_taken_the_largest_holder_makes_room() -> None:
    limits = Limits(LimitSizes(connections=10), Clock())
    many = [Peer(limits, TWO) for _ in range(10)]
    for peer in many:
        limits.established(peer)
    bystander = Peer(limits, ONE)
    assert (bystander.came, many[-1].closed) == (True, "others need the connections that this address holds")
    assert [peer.closed for peer in many[:-1]] == [None] * 9
    assert not Peer(limits, TWO).came, "and has no more for itself"
    assert limits.top() == [{"connections": 9, "handshakes": 0}, {"connections": 1, "handshakes": 1}]
    assert (limits.meters.made_room, limits.meters.refused_total) == (1, 1)
    while limits.close_largest("no memory"):
        pass
    assert limits.top() == [{"connections": 1, "handshakes": 1}, {"connections": 1, "handshakes": 0}]


def test_new_queues_have_a_burst_and_a_rate_per_address() -> None:
    clock = Clock()
    limits = Limits(LimitSizes(new_per_address_per_second=2.0, new_per_address_burst=5), clock)
    assert taken(limits, ONE, 10) == 5
    assert taken(limits, TWO, 10) == 5
    clock.now += 0.4
    assert taken(limits, ONE, 10) == 0
    clock.now += 1.1
    assert taken(limits, ONE, 10) == 3
    clock.now += 1000
    assert taken(limits, ONE, 10) == 5


def test_new_queues_have_a_burst_and_a_rate_in_total() -> None:
    clock = Clock()
    sizes = LimitSizes(new_per_second=1.0, new_burst=4, new_per_address_burst=3)
    limits = Limits(sizes, clock)
    assert [taken(limits, ONE, 10), taken(limits, TWO, 10)] == [3, 1]
    clock.now += 2
    assert taken(limits, TWO, 10) == 2


def test_a_refused_connection_takes_nothing_from_others() -> None:
    limits = Limits(LimitSizes(new_burst=10, new_per_address_burst=1, new_per_second=0.001), Clock())
    assert taken(limits, ONE, 1000) == 1
    assert sum(taken(limits, (bytes([9, 9, 9, number]),), 1) for number in range(20)) == 9


def test_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_SWEEP_MIN", 8)
    clock = Clock()
    limits = Limits(LimitSizes(new_per_address_per_second=1.0, new_per_address_burst=3), clock)
    for number in range(200):
        assert limits.new_queue((number.to_bytes(4, "big"),))
        clock.now += 1
    assert limits.addresses <= 10


def test_refusals_by_the_total_limit_remember_no_address() -> None:
    limits = Limits(LimitSizes(new_burst=5, new_per_second=0.001), Clock())
    for number in range(100):
        limits.new_queue((number.to_bytes(4, "big"),))
    assert limits.addresses == 5


async def test_near_its_memory_limit_a_server_closes_the_largest_holders_and_takes_few_of_each() -> None:
    limits = Limits(LimitSizes(connections_per_address=32, memory=1 << 30), Clock())
    used = 1 << 20
    guard = MemoryGuard(limits, lambda: used)
    many = [Peer(limits, TWO) for _ in range(20)]
    bystander = Peer(limits, ONE)
    await guard.look()
    assert limits.meters.made_room == 0
    used = 1 << 30
    await guard.look()
    assert bystander.closed is None
    assert [peer.closed is None for peer in many] == [True] + [False] * 19
    assert Peer(limits, TWO).came
    assert not Peer(limits, TWO).came
    used = 1 << 20
    await guard.look()
    assert Peer(limits, TWO).came


async def test_memory_of_a_few_ended_connections_is_freed_too() -> None:
    class FailedError(Exception):
        """An error that refers to itself, as a failed handshake does."""

    def left_behind() -> weakref.ref[FailedError]:
        error = FailedError()
        error.args = (error,)
        return weakref.ref(error)

    clock = Clock()
    limits = Limits(LimitSizes(), clock)
    guard = MemoryGuard(limits, lambda: 0, clock)
    found = left_behind()
    limits.gone(Peer(limits, ONE))
    await guard.look()
    assert found() is not None, "more may end soon"
    clock.now += QUIET_S
    await guard.look()
    assert found() is None


def test_the_memory_of_this_process_can_be_read() -> None:
    assert 1 << 20 < anonymous_bytes() < 64 << 30
