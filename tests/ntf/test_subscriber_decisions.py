"""What the subscriber concludes, as tables: how a session begins, what is drift, what an answer means."""

from __future__ import annotations

from random import Random

import pytest

from blindpost.client.calls import Failure
from blindpost.client.errors import (
    EncodingError,
    GarbledResponseError,
    NoRouterKeyError,
    NoServiceError,
    RefusedError,
    ResponseTimeoutError,
    UnexpectedResponseError,
)
from blindpost.crypto.ids_hash import QueueSet
from blindpost.ntf.machines import SubEvent
from blindpost.ntf.model import NO_QUEUES, Service, SmpRouter
from blindpost.ntf.subscriber.backoff import Backoff
from blindpost.ntf.subscriber.decisions import (
    ASSOCIATED,
    CONFIRMED,
    Opening,
    QueueAnswer,
    ServiceAnswer,
    drifted,
    opening_of,
    queue_answer,
    service_answer,
    surplus_of,
)
from blindpost.transport.errors import ConnectionCutError, PeerClosedError
from blindpost.wire.smp.errors import BLOCKED, STORE, SYNTAX, BlockingReason, Code
from blindpost.wire.smp.responses import OK, PONG, SOK, SOKS, Response
from tests.support.ntf.routers import SMP
from tests.support.transport.sessions import service_credentials

ID, OTHER = b"s" * 24, b"o" * 24
THREE = QueueSet.of([b"a", b"b", b"c"])
FOUR = QueueSet.of([b"a", b"b", b"c", b"d"])


def router(service_id: bytes | None, members: QueueSet = NO_QUEUES) -> SmpRouter:
    return SmpRouter(SMP, Service(service_credentials(), service_id), members)


@pytest.mark.parametrize(
    ("stored", "session", "opening"),
    [
        (SmpRouter(SMP), None, Opening.QUEUES),
        (router(None), None, Opening.QUEUES),
        (router(None), ID, Opening.SERVICE_NAMED),
        (router(ID), ID, Opening.QUEUES),
        (router(ID, THREE), ID, Opening.SERVICE_FIRST),
        (router(OTHER, THREE), ID, Opening.SERVICE_NAMED),
        (router(ID, THREE), None, Opening.SERVICE_LOST),
        (router(ID), None, Opening.SERVICE_LOST),
        (SmpRouter(SMP, None, QueueSet.of([b"a"])), None, Opening.SERVICE_LOST),
    ],
)
def test_how_a_session_begins(stored: SmpRouter, session: bytes | None, opening: Opening) -> None:
    assert opening_of(stored, session) is opening


def soks(queues: QueueSet) -> SOKS:
    return SOKS(queues.count, queues.ids_hash)


def test_drift_is_another_count_or_another_hash() -> None:
    assert not drifted(THREE, soks(THREE), NO_QUEUES, 19)
    assert drifted(THREE, soks(FOUR), NO_QUEUES, 19)
    assert drifted(THREE, SOKS(3, FOUR.ids_hash), NO_QUEUES, 19)
    assert drifted(THREE, SOKS(5, THREE.ids_hash), NO_QUEUES, 19)


def test_routers_without_hashes_are_compared_by_count() -> None:
    assert not drifted(THREE, SOKS(3, bytes(16)), NO_QUEUES, 18)
    assert drifted(THREE, SOKS(4, bytes(16)), NO_QUEUES, 18)


def test_known_leftovers_of_deleted_queues_are_not_drift() -> None:
    surplus = surplus_of(THREE, soks(FOUR))
    assert surplus == QueueSet.of([b"d"])
    assert not drifted(THREE, soks(FOUR), surplus, 19)
    assert drifted(THREE, soks(THREE), surplus, 19)
    more = QueueSet.of([b"a", b"b", b"c", b"d", b"e"])
    assert drifted(THREE, soks(more), surplus, 19)
    grown = QueueSet.of([b"a", b"b", b"c", b"x"])
    assert not drifted(grown, soks(QueueSet.of([b"a", b"b", b"c", b"d", b"x"])), surplus, 19)
    assert surplus_of(FOUR, soks(THREE)) == NO_QUEUES
    assert surplus_of(THREE, SOKS(3, FOUR.ids_hash)) == NO_QUEUES, "others, but no more"


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (soks(THREE), ServiceAnswer.SUBSCRIBED),
        (RefusedError(Code.SERVICE), ServiceAnswer.UNAVAILABLE),
        (RefusedError(Code.AUTH), ServiceAnswer.UNAVAILABLE),
        (RefusedError(Code.INTERNAL), ServiceAnswer.AGAIN),
        (RefusedError(STORE("full")), ServiceAnswer.AGAIN),
        (ResponseTimeoutError(), ServiceAnswer.AGAIN),
        (PeerClosedError(), ServiceAnswer.AGAIN),
        (OK(), ServiceAnswer.AGAIN),
    ],
)
def test_what_the_answer_to_nsubs_means(result: Response | Failure, answer: ServiceAnswer) -> None:
    assert service_answer(result) is answer


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (OK(), CONFIRMED),
        (SOK(None), CONFIRMED),
        (SOK(ID), ASSOCIATED),
        (SOK(OTHER), CONFIRMED),
        (RefusedError(Code.AUTH), QueueAnswer(SubEvent.REFUSED_AUTH)),
        (RefusedError(Code.SERVICE), QueueAnswer(SubEvent.REFUSED_SERVICE)),
        (RefusedError(SYNTAX), QueueAnswer(SubEvent.REFUSED, b"SMP error CMD SYNTAX")),
        (
            RefusedError(BLOCKED(BlockingReason.SPAM)),
            QueueAnswer(SubEvent.REFUSED, b"SMP error BLOCKED reason=spam"),
        ),
        (GarbledResponseError(Code.BLOCK), QueueAnswer(SubEvent.REFUSED, b"ResponseError BLOCK")),
        (UnexpectedResponseError(PONG()), QueueAnswer(SubEvent.REFUSED, b"UnexpectedResponse PONG")),
        (PONG(), QueueAnswer(SubEvent.REFUSED, b"UnexpectedResponse PONG")),
        (
            EncodingError("it cannot be written"),
            QueueAnswer(SubEvent.REFUSED, b"TransportError it cannot be written"),
        ),
        (
            NoRouterKeyError("no session key"),
            QueueAnswer(SubEvent.REFUSED, b"CryptoError no session key"),
        ),
        (NoServiceError("\u00e9"), QueueAnswer(SubEvent.REFUSED, b"TransportError ?")),
        (RefusedError(Code.INTERNAL), None),
        (RefusedError(STORE("full")), None),
        (ResponseTimeoutError(), None),
        (ConnectionCutError(), None),
    ],
)
def test_what_the_answer_to_nsub_means(result: Response | Failure, answer: QueueAnswer | None) -> None:
    assert queue_answer(result, ID) == answer


def test_without_a_service_no_answer_associates() -> None:
    assert queue_answer(SOK(ID), None) is CONFIRMED
    assert queue_answer(SOK(None), None) is CONFIRMED


def test_pauses_grow_to_the_longest_and_differ() -> None:
    backoff = Backoff(first_s=1, factor=2, max_s=10, jitter=0.5)
    chance = Random(1)
    for failures, length in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (1000, 10)):
        pauses = [backoff.pause_s(failures, chance) for _ in range(200)]
        assert length * 0.5 <= min(pauses) < length * 0.6
        assert length * 1.4 < max(pauses) <= length * 1.5
    assert Backoff(jitter=0).pause_s(1, chance) == 1.0
