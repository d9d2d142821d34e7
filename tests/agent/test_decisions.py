"""Decisions of the agent that are pure: undelivered messages, replies to SUB, delays, kinds of failures."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blindpost.agent.config import Retention
from blindpost.agent.errors import (
    AgentError,
    ConnectionCode,
    ConnError,
    ProtocolCode,
    ProtocolError,
    network_error,
)
from blindpost.agent.failures import Kind, is_service_error
from blindpost.agent.messages.verdicts import Again, Verdict, verdict
from blindpost.agent.model import MessageKind
from blindpost.agent.store.subscriptions import SubQueue
from blindpost.agent.subscriptions.replies import sort_replies
from blindpost.agent.work.retries import MESSAGE_FAST, TOLD_AGAIN_S, Retry, Schedule, Told
from blindpost.client.calls import Failure
from blindpost.client.errors import (
    NoHostError,
    NoServiceError,
    ProxyFailedError,
    RefusedError,
    ResponseTimeoutError,
    UnexpectedResponseError,
)
from blindpost.transport.errors import PeerClosedError
from blindpost.wire.smp.errors import BROKER, PROXY, STORE, BrokerCode, Code
from blindpost.wire.smp.responses import MSG, OK, PONG, SOK, Response
from tests.support.ntf.routers import SMP
from tests.support.router.routers import new_key

K = MessageKind
KEPT = Retention(undelivered_s=100, quota_s=200)
CONFIRMATIONS = (K.CONN_INFO, K.CONN_INFO_REPLY)
OF_QUEUES = (K.QADD, K.QKEY, K.QUSE, K.QTEST)


def refused(code: Code) -> AgentError:
    return network_error(SMP, RefusedError(code))


@pytest.mark.parametrize("kind", MessageKind)
@pytest.mark.parametrize(("age_s", "is_old"), [(200, False), (201, True)])
def test_a_full_queue_is_tried_slowly_and_a_confirmation_not_at_all(
    kind: MessageKind, age_s: int, is_old: bool
) -> None:
    error = refused(Code.QUOTA)
    found = verdict(kind, error, age_s, KEPT, receives=True)
    if kind in CONFIRMATIONS:
        assert (found.again, found.told, found.expired_s) == (Again.NO, False, None)
        assert isinstance(found.error, ConnError)
        assert found.error.code is ConnectionCode.NOT_AVAILABLE
    elif is_old:
        assert found == Verdict(Again.NO, error, expired_s=200)
    else:
        assert found == Verdict(Again.SLOW, error, told=True)
        assert error.temporary


@pytest.mark.parametrize("kind", MessageKind)
@pytest.mark.parametrize("receives", [True, False])
def test_what_a_refused_message_means_depends_on_what_it_was(kind: MessageKind, receives: bool) -> None:
    error = refused(Code.AUTH)
    found = verdict(kind, error, 0, KEPT, receives=receives)
    assert found == Verdict(Again.NO, found.error)
    if kind in OF_QUEUES:
        assert isinstance(found.error, ProtocolError)
        assert found.error.code is ProtocolCode.A_QUEUE
        assert str(found.error).endswith(f": {kind.name}: AUTH")
    elif kind in (*CONFIRMATIONS, K.HELLO, K.RATCHET_INFO):
        assert isinstance(found.error, ConnError)
        is_refused = kind is K.HELLO and not receives
        code = ConnectionCode.NOT_ACCEPTED if is_refused else ConnectionCode.NOT_AVAILABLE
        assert found.error.code is code
    else:
        assert found.error is error


@pytest.mark.parametrize(
    ("failure", "age_s", "again", "told", "expired_s"),
    [
        (ResponseTimeoutError(), 100, Again.FAST, False, None),
        (ResponseTimeoutError(), 101, Again.NO, False, 100),
        (NoHostError("none"), 100, Again.FAST, True, None),
        (NoHostError("none"), 101, Again.NO, False, 100),
        (RefusedError(STORE("busy")), 100, Again.FAST, False, None),
        (RefusedError(Code.INTERNAL), 0, Again.NO, False, None),
        (RefusedError(Code.INTERNAL), 101, Again.NO, False, None),
    ],
)
def test_other_failures_are_tried_again_while_that_may_help(
    failure: Failure, age_s: int, again: Again, told: bool, expired_s: int | None
) -> None:
    error = network_error(SMP, failure)
    assert verdict(K.A_MSG, error, age_s, KEPT, receives=True) == Verdict(again, error, told, expired_s)


def test_replies_to_sub_queue_by_queue() -> None:
    key, ours = new_key(), b"our service"
    names = ["ok", "ours", "theirs", "message", "gone", "refused", "later", "cut", "strange"]
    queues = [SubQueue(name, name.encode(), key) for name in names]
    message = MSG(b"id", b"body")
    gone, inner, later = RefusedError(Code.AUTH), RefusedError(Code.INTERNAL), ResponseTimeoutError()
    cut = PeerClosedError()
    results: list[Response | Failure] = [
        OK(),
        SOK(ours),
        SOK(b"another"),
        message,
        gone,
        inner,
        later,
        cut,
        PONG(),
    ]

    def named(pairs: list[tuple[SubQueue, Failure]]) -> list[tuple[str, Failure]]:
        return [(queue.conn_id, failure) for queue, failure in pairs]

    done = sort_replies(queues, results, ours)
    services = {queue.conn_id: service for queue, service in done.subscribed}
    assert services == {"ok": None, "ours": ours, "theirs": None, "message": ours}
    assert done.messages == [(b"message", message)]
    *permanent, (strange, unexpected) = named(done.refused)
    assert permanent == [("gone", gone), ("refused", inner)]
    assert strange == "strange"
    assert isinstance(unexpected, UnexpectedResponseError)
    assert named(done.retried) == [("later", later), ("cut", cut)]
    assert (done.joined, done.left, done.first_time) == ([b"ours", b"message"], [], [])
    ours_already = [replace(queue, associated=True, to_subscribe=queue.conn_id == "ok") for queue in queues]
    again = sort_replies(ours_already, results, ours)
    assert (again.joined, again.left) == ([], [b"ok", b"theirs", b"gone"])
    assert again.first_time == [b"ok"]
    assert sort_replies(queues[:2], [OK(), SOK(ours)], None).joined == []


def test_a_delay_stays_and_then_grows_by_half_to_the_longest() -> None:
    retry = Retry.first(Schedule(2, 10, 7))
    found = []
    for _ in range(8):
        found.append((retry.delay_us, retry.elapsed_us))
        retry = retry.next()
    assert found == [(2, 0), (2, 2), (2, 4), (2, 6), (2, 8), (3, 10), (4, 13), (6, 17)]
    assert [retry.delay_us, retry.next().delay_us] == [7, 7]
    resumed = Retry.resumed(MESSAGE_FAST, 3_000_000)
    assert resumed.delay_s == 3.0
    assert resumed.next().delay_s == 4.5, "it grows at once"
    chance = random.Random(1)
    jittered = [resumed.jittered_s(chance) for _ in range(300)]
    assert 1.5 <= min(jittered) < 1.6
    assert 2.9 < max(jittered) <= 3.0


def test_the_same_is_told_again_after_an_hour() -> None:
    told = Told()
    assert told.is_news("a", 10.0)
    assert not told.is_news("a", 10.0 + TOLD_AGAIN_S - 1)
    assert told.is_news("b", 11.0)
    assert told.is_news("a", 12.0)
    assert told.is_news("a", 12.0 + TOLD_AGAIN_S)
    assert not told.is_news("a", 13.0 + TOLD_AGAIN_S)


@pytest.mark.parametrize(
    ("failure", "is_refused"),
    [
        (NoServiceError("none"), True),
        (RefusedError(Code.SERVICE), True),
        (ProxyFailedError(PROXY(BROKER(BrokerCode.NO_SERVICE))), True),
        (RefusedError(Code.AUTH), False),
        (ResponseTimeoutError(), False),
    ],
)
def test_when_a_service_as_such_is_refused(failure: Failure, is_refused: bool) -> None:
    assert is_service_error(failure) is is_refused


def test_a_failure_that_workers_repeat_is_not_permanent() -> None:
    kinds = [network_error(SMP, failure).kind for failure in (ResponseTimeoutError(), NoHostError(""))]
    assert kinds == [Kind.TEMPORARY, Kind.HOST]
    assert not refused(Code.AUTH).retried
