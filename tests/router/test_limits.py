"""Limits per address and in total, under a clock that the test moves."""

from __future__ import annotations

import pytest

from blindpost.serving import limits as limits_module
from blindpost.serving.limits import AddressKeys, Limits, LimitSizes

ONE, TWO = b"\x7f\x00\x00\x01", b"\x7f\x00\x00\x02"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(limits: Limits, key: bytes | None, tries: int) -> int:
    """How many of so many NEW are let through."""
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
    assert [limits.connect(None) for _ in range(3)] == [True] * 3
    assert taken(limits, None, 10) == 10


def test_connections_of_an_address_come_back() -> None:
    limits = Limits(LimitSizes(connections_per_address=2), Clock())
    assert [limits.connect(ONE) for _ in range(3)] == [True, True, False]
    assert limits.connect(TWO)
    limits.disconnect(ONE)
    assert [limits.connect(ONE) for _ in range(2)] == [True, False]
    for key in (ONE, ONE, TWO):
        limits.disconnect(key)
    assert limits.addresses == 0


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


def test_who_is_refused_takes_nothing_from_others() -> None:
    limits = Limits(LimitSizes(new_burst=10, new_per_address_burst=1, new_per_second=0.001), Clock())
    assert taken(limits, ONE, 1000) == 1
    assert sum(taken(limits, bytes([9, 9, 9, number]), 1) for number in range(20)) == 9


def test_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_SWEEP_MIN", 8)
    clock = Clock()
    limits = Limits(LimitSizes(new_per_address_per_second=1.0, new_per_address_burst=3), clock)
    for number in range(200):
        assert limits.new_queue(number.to_bytes(4, "big"))
        clock.now += 1
    assert limits.addresses <= 10


def test_total_refusals_remember_nobody() -> None:
    limits = Limits(LimitSizes(new_burst=5, new_per_second=0.001), Clock())
    for number in range(100):
        limits.new_queue(number.to_bytes(4, "big"))
    assert limits.addresses == 5
