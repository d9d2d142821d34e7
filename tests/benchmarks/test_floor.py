"""The floor benchmark: that it counts what one message cycle needs, and reports it as it says."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from benchmarks.figures.rows import parsed
from benchmarks.floor import (
    HKDF_COMPRESSIONS,
    box_items,
    figures,
    measure,
    shown,
    signature_items,
    summary,
    tls_items,
)
from blindpost.crypto import kdf

ROOT = Path(__file__).parents[2]


def test_a_message_cycle_is_two_blocks_in_and_three_out() -> None:
    floor = measure(rounds=2)
    assert {item.name: item.times for item in floor.items} == {
        "TLS record opened": 2,
        "TLS record sealed": 3,
        "block key: HKDF-SHA512": 5,
        "block key: HSalsa20": 5,
        "block box opened": 2,
        "block box sealed": 3,
        "message box sealed": 1,
        "Ed25519 verified, SEND": 1,
        "Ed25519 verified, ACK": 1,
        "Ed25519 faster, SEND": 0,
        "Ed25519 faster, ACK": 0,
    }
    for measured in (*floor.items, floor.total, floor.least):
        assert 0 <= measured.lower_us <= measured.median_us <= measured.upper_us
    assert floor.total.median_us > max(item.times * item.median_us for item in floor.items) / 2
    told = {one.name: one for one in figures(floor)}
    assert told["the floor"].median == floor.total.median_us
    assert len(told) == 2 + 11
    assert f"{floor.total.median_us:.0f} us" in shown(floor)
    assert f"{floor.least.median_us:.0f} us" in shown(floor)
    assert all(item.name in shown(floor) for item in floor.items)


def test_the_least_floor_has_the_same_calls_with_the_faster_verification() -> None:
    items = [*tls_items(), *box_items(), *signature_items()]
    assert {item.name for item in items if item.times != item.times_at_least} == {
        f"Ed25519 {kind}, {command}" for kind in ("verified", "faster") for command in ("SEND", "ACK")
    }
    assert sum(item.times for item in items) == sum(item.times_at_least for item in items)


def test_medians_and_quartiles() -> None:
    measured = summary("some", 1, [5.0, 1.0, 4.0, 2.0, 3.0])
    assert (measured.lower_us, measured.median_us, measured.upper_us) == (2.0, 3.0, 4.0)


def test_a_chain_step_hashes_as_many_blocks_as_the_floor_says() -> None:
    """HMAC of a short text is one block inside and one outside; a new key adds a block to each."""
    extract, new_key, expand = 2, 2, 2 * 2
    assert extract + new_key + expand == HKDF_COMPRESSIONS
    block = hashlib.sha512().block_size
    largest = kdf.HASH_SIZE + len(b"SimpleXSbChain") + 1
    assert largest + 17 <= block, "the longest text hashed fits into one block with its end mark"


def test_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "benchmarks.floor", "--rounds", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT)
    assert {one.unit for one in parsed(done.stdout)} == {"us of CPU"}
