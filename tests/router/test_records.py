"""Rows of queues round-trip, and damage is reported, never guessed around."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from blindpost.crypto.secret import Secret
from blindpost.router import records
from blindpost.router.model import Notifier, QueueRecord, Status
from blindpost.router.records import queue_from_row, queue_to_row
from blindpost.router.tables import STRANGER, UNREADABLE
from blindpost.wire.keys import AUTH_ALGORITHMS, Algorithm, PublicKey
from blindpost.wire.smp.errors import BLOCKED, BlockingReason
from blindpost.wire.smp.values import QueueMode

USUAL_IDS = st.binary(min_size=24, max_size=24)
ANY_IDS = USUAL_IDS | st.binary(max_size=40)
DAYS = st.integers(-(2**63), 2**63 - 1)


def keys(*algorithms: Algorithm) -> st.SearchStrategy[PublicKey]:
    return st.sampled_from(algorithms).flatmap(
        lambda algorithm: st.builds(
            PublicKey, st.just(algorithm), st.binary(min_size=algorithm.raw_size, max_size=algorithm.raw_size)
        )
    )


RAW_KEYS = st.binary(min_size=32, max_size=32)
SECRETS = st.builds(Secret, RAW_KEYS)


def queue_records(
    ids: st.SearchStrategy[bytes],
    auth_keys: st.SearchStrategy[PublicKey],
    keys_max: int,
    statuses: st.SearchStrategy[Status | BLOCKED],
) -> st.SearchStrategy[QueueRecord]:
    dh_keys = keys(Algorithm.X25519)
    notifiers = st.builds(Notifier, ids, auth_keys, SECRETS, st.none() | dh_keys, st.none() | ids)
    return st.builds(
        QueueRecord,
        ids,
        ids,
        st.lists(auth_keys, min_size=1, max_size=keys_max).map(tuple),
        st.none() | RAW_KEYS,
        SECRETS,
        st.none() | RAW_KEYS,
        st.none() | st.sampled_from(QueueMode),
        st.none() | auth_keys,
        st.none() | ids,
        st.none() | notifiers,
        statuses,
        DAYS,
        st.none() | ids,
    )


STATUSES = st.sampled_from(Status)
USUAL = queue_records(USUAL_IDS, keys(Algorithm.ED25519, Algorithm.X25519), 1, STATUSES)
ANY = queue_records(
    ANY_IDS,
    keys(*sorted(AUTH_ALGORITHMS, key=lambda one: one.label)),
    2,
    STATUSES | st.builds(BLOCKED, st.sampled_from(BlockingReason)),
)


@given(ANY)
def test_a_row_round_trips(record: QueueRecord) -> None:
    assert queue_from_row(queue_to_row(record)) == record


@given(USUAL)
def test_a_row_of_the_usual_shape_is_read_like_any_other(record: QueueRecord) -> None:
    row = queue_to_row(record)
    assert records._usual_row(row) is not None
    assert queue_from_row(row) == records._walked(row) == record


def damaged(row: bytes) -> Iterator[bytes]:
    """The row cut short at each byte, with one more, and with one change at each offset."""
    chance, work = random.Random("rows"), bytearray(row)
    yield from (row[:size] for size in range(len(row)))
    yield row + b"A"
    for offset, byte in enumerate(row):
        work[offset] = byte ^ chance.randrange(1, 256)
        yield bytes(work)
        work[offset] = byte


def outcome(read: Callable[[bytes], QueueRecord], row: bytes) -> QueueRecord | str:
    try:
        return read(row)
    except UNREADABLE:
        return "unreadable"


def test_damage_is_reported_for_rows_of_any_shape() -> None:
    notifier = Notifier(bytes(24), PublicKey(Algorithm.ED25519, bytes(32)), Secret(bytes(32)), None)
    record = queue_from_row(STRANGER)._replace(notifier=notifier, service_id=bytes(24))
    told = 0
    for row in damaged(queue_to_row(record)):
        found = outcome(queue_from_row, row)
        assert found == outcome(records._walked, row)
        told += found == "unreadable"
    assert told > len(STRANGER)


def test_the_dummy_row_has_the_usual_shape() -> None:
    """Otherwise the time of a refusal would reveal that there is no queue."""
    assert records._usual_row(STRANGER) is not None
