"""Which calls are refused before anything is stored, and which queue a call is about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blindpost.ds.auth import Caller
from blindpost.ds.checks import NOT_IDENTITY, NOT_OWNER, UNAUTHENTICATED, Refusal, queue_of, refusal
from blindpost.ds.model import (
    CHANNEL_ID_BYTES_MAX,
    KEY_PACKAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    delivery_queue,
    is_of,
    package_queue,
)
from blindpost.wire.capnp.node import (
    ACK_IDS_MAX,
    Ack,
    Auth,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    Lease,
    Request,
    UploadKeyPackage,
)
from tests.support.ds.delivery import ALICE, BOB

AUTH, ANYBODY = Auth(), Caller()
ENQUEUE = Enqueue(ALICE, b"p", b"c", 1, AUTH)
FETCH = Fetch(ALICE, b"c", 1, AUTH)
ACK = Ack(ALICE, b"c", 1, (b"id",), AUTH)
OWNERS: tuple[Fetch | FetchWait | Lease | Ack, ...] = (
    FETCH,
    FetchWait(ALICE, b"c", 1, 9, AUTH),
    Lease(ALICE, b"c", 1, 9, 9, 9, AUTH),
    ACK,
)
UPLOAD, FETCH_PACKAGE = UploadKeyPackage(ALICE, b"p", AUTH), FetchKeyPackage(ALICE, AUTH)
ALL: tuple[Request, ...] = (ENQUEUE, *OWNERS, UPLOAD, FETCH_PACKAGE)


@pytest.mark.parametrize("request_", ALL)
def test_who_may_call(request_: Request) -> None:
    assert refusal(request_, None) == UNAUTHENTICATED
    assert refusal(request_, ANYBODY) is None
    assert refusal(request_, Caller(ALICE)) is None
    others = {Enqueue: None, UploadKeyPackage: NOT_IDENTITY, FetchKeyPackage: None}
    assert refusal(request_, Caller(BOB)) == others.get(type(request_), NOT_OWNER)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_keys_have_one_size(length: int) -> None:
    wrong = b"k" * length
    for call in (ENQUEUE, *OWNERS):
        said = Refusal(f"recipientKey must be exactly 32 bytes, got {length}")
        assert refusal(replace(call, recipient_key=wrong), Caller(BOB)) == said
    for package_call in (UPLOAD, FETCH_PACKAGE):
        said = Refusal(f"identityKey must be exactly 32 bytes, got {length}")
        assert refusal(replace(package_call, identity_key=wrong), Caller(BOB)) == said


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (replace(ENQUEUE, payload=b""), "payload must not be empty"),
        (replace(ENQUEUE, payload=bytes(PAYLOAD_BYTES_MAX)), None),
        (replace(ENQUEUE, payload=bytes(PAYLOAD_BYTES_MAX + 1)), "payload exceeds max size (5242880 bytes)"),
        (replace(UPLOAD, package=b""), "package must not be empty"),
        (replace(UPLOAD, package=bytes(KEY_PACKAGE_BYTES_MAX)), None),
        (
            replace(UPLOAD, package=bytes(KEY_PACKAGE_BYTES_MAX + 1)),
            "package exceeds max size (1048576 bytes)",
        ),
        (replace(FETCH, version=0), None),
        (replace(FETCH, version=2), "unsupported wire version 2 (expected 0 or 1)"),
        (replace(FETCH, channel_id=bytes(CHANNEL_ID_BYTES_MAX)), None),
        (replace(FETCH, channel_id=bytes(256)), "channelId exceeds max size (255 bytes)"),
        (replace(FETCH, version=0, channel_id=bytes(256)), None),
        (replace(ACK, ids=(b"",) * ACK_IDS_MAX), None),
        (replace(ACK, ids=(b"",) * (ACK_IDS_MAX + 1)), "too many ids (4096 at most)"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_what_a_call_may_carry(request_: Request, reason: str | None) -> None:
    assert refusal(request_, ANYBODY) == (None if reason is None else Refusal(reason))


def test_which_queue_a_call_is_about() -> None:
    """Also of calls that are refused: their names are cut, not trusted."""
    for call in (ENQUEUE, *OWNERS):
        assert queue_of(call) == delivery_queue(ALICE, b"c")
        assert queue_of(replace(call, version=0)) == delivery_queue(ALICE, b"")
        long = replace(call, recipient_key=ALICE + b"more", channel_id=bytes(999))
        assert queue_of(long) == delivery_queue(ALICE, bytes(255))
    assert queue_of(UPLOAD) == queue_of(FETCH_PACKAGE) == package_queue(ALICE)
    assert queue_of(replace(UPLOAD, identity_key=ALICE + b"more")) == package_queue(ALICE)


def test_whose_queue_it_is() -> None:
    assert is_of(delivery_queue(ALICE, b"c"), [BOB, ALICE])
    assert not is_of(delivery_queue(ALICE, b"c"), [BOB])
    assert not is_of(delivery_queue(ALICE, b"c"), [])
    assert not is_of(package_queue(ALICE), [ALICE])
