"""The table of one session, without a session: what is pending or active, which replies still count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.agent import Mismatch, QueueState, ServiceSub
from blindpost.agent.subscriptions.table import SessionTable, mismatch
from blindpost.crypto.ids_hash import QueueSet

OLD, NEW = b"old session", b"new session"
A, B, C = b"queue a", b"queue b", b"queue c"
SERVICE, OTHER = b"our service", b"another service"


def connected(*asked: tuple[bytes, str]) -> SessionTable:
    table = SessionTable()
    table.connected(OLD)
    table.ask(asked)
    return table


def test_a_reply_makes_a_pending_queue_active_and_names_its_connection_once() -> None:
    table = connected((A, "one"), (B, "one"), (C, "two"))
    assert table.subscribed(OLD, [(A, "one", None)]) == ("one",)
    assert table.subscribed(OLD, [(B, "one", None), (C, "two", None)]) == ("two",)
    assert [table.state(queue) for queue in (A, B, C)] == [QueueState.ACTIVE] * 3
    assert table.subscribed(OLD, [(A, "one", None)]) == ()
    assert (table.active_count, table.pending_count) == (3, 0)


@pytest.mark.claim("SUB-51")
def test_a_reply_of_an_older_session_changes_nothing() -> None:
    table = connected((A, "one"))
    table.connected(NEW)
    assert table.subscribed(OLD, [(A, "one", None)]) == ()
    assert table.state(A) is QueueState.PENDING
    assert table.subscribed(NEW, [(A, "one", None)]) == ("one",)


def test_a_reply_for_a_queue_no_longer_wanted_changes_nothing() -> None:
    table = connected((A, "one"))
    table.remove(A)
    assert table.subscribed(OLD, [(A, "one", None)]) == ()
    assert table.state(A) is None
    assert table.is_empty


def test_a_new_session_takes_over_all_queues_as_pending() -> None:
    table = connected((A, "one"), (B, "two"))
    table.subscribed(OLD, [(A, "one", None)])
    table.service_subscribed(OLD, ServiceSub(SERVICE, QueueSet.of([C])))
    table.connected(OLD)
    assert table.state(A) is QueueState.ACTIVE
    table.connected(NEW)
    assert table.state(A) is table.state(B) is QueueState.PENDING
    assert table.pending_service == ServiceSub(SERVICE, QueueSet.of([C]))
    assert table.active_service is None
    assert table.disconnected(OLD) is None
    assert table.session_id == NEW


def test_the_end_of_a_session_names_exactly_the_active_connections() -> None:
    table = connected((A, "one"), (B, "one"), (C, "two"))
    table.subscribed(OLD, [(A, "one", None), (B, "one", None)])
    lost = table.disconnected(OLD)
    assert lost is not None
    assert (lost.conn_ids, lost.service) == (("one",), None)
    assert table.pending_count == 3
    assert table.session_id is None
    assert table.disconnected(OLD) is None


@pytest.mark.claim("SVC-46")
@pytest.mark.claim("SVC-49")
def test_queues_of_a_service_are_counted_and_not_listed() -> None:
    table = connected((A, "one"), (B, "two"), (C, "three"))
    assert table.subscribed(OLD, [(A, "one", SERVICE), (B, "two", None), (C, "three", SERVICE)]) == (
        "one",
        "two",
        "three",
    )
    assert table.state(A) is None
    assert not table.is_active(A)
    assert table.state(B) is QueueState.ACTIVE
    assert table.active_service == ServiceSub(SERVICE, QueueSet.of([A, C]))
    table.ask([(b"queue d", "four")])
    table.subscribed(OLD, [(b"queue d", "four", SERVICE)])
    assert table.active_service == ServiceSub(SERVICE, QueueSet.of([A, C, b"queue d"]))
    table.service_left(A)
    assert table.active_service == ServiceSub(SERVICE, QueueSet.of([C, b"queue d"]))


def test_a_queue_that_joins_the_service_leaves_the_list() -> None:
    table = connected((A, "one"))
    table.subscribed(OLD, [(A, "one", None)])
    table.created(OLD, A, "one", SERVICE)
    assert table.state(A) is None
    lost = table.disconnected(OLD)
    assert lost is not None
    assert lost.conn_ids == ()


def test_another_service_does_not_inherit_the_count() -> None:
    table = connected((A, "one"), (B, "two"))
    table.subscribed(OLD, [(A, "one", OTHER)])
    table.subscribed(OLD, [(B, "two", SERVICE)])
    assert table.active_service == ServiceSub(SERVICE, QueueSet.of([B]))


@pytest.mark.claim("SVC-48")
def test_the_service_becomes_active_only_on_the_current_session() -> None:
    expected = ServiceSub(SERVICE, QueueSet.of([A]))
    table = connected()
    table.ask_service(expected)
    table.connected(NEW)
    assert not table.service_subscribed(OLD, expected)
    assert (table.active_service, table.pending_service) == (None, expected)
    assert table.service_subscribed(NEW, expected)
    assert (table.active_service, table.pending_service) == (expected, None)


@pytest.mark.claim("SVC-50")
def test_count_and_hash_survive_the_end_of_a_session_but_not_of_the_service() -> None:
    service = ServiceSub(SERVICE, QueueSet.of([A, B]))
    table = connected()
    table.service_subscribed(OLD, service)
    lost = table.disconnected(OLD)
    assert lost is not None
    assert lost.service == service
    assert (table.active_service, table.pending_service) == (None, service)
    assert table.service_ended() == service
    assert (table.active_service, table.pending_service) == (None, None)
    table.connected(NEW)
    table.service_subscribed(NEW, service)
    assert table.service_ended() == service
    assert (table.active_service, table.pending_service) == (None, None)
    assert table.service_ended() is None


def test_a_queue_made_on_a_lost_session_is_pending() -> None:
    table = connected()
    assert table.created(OLD, A, "one", None)
    assert table.state(A) is QueueState.ACTIVE
    table.connected(NEW)
    assert not table.created(OLD, B, "two", SERVICE)
    assert table.state(B) is QueueState.PENDING
    assert table.active_service is None


def test_pending_queues_come_in_order_without_those_already_requested() -> None:
    table = connected((A, "one"), (B, "two"), (C, "three"))
    assert table.pending(2) == [(A, "one"), (B, "two")]
    assert table.pending(2, frozenset({A})) == [(B, "two"), (C, "three")]
    assert table.conn_of(C) == "three"


def test_a_table_is_empty_when_nothing_is_subscribed_or_asked_for() -> None:
    service = ServiceSub(SERVICE, QueueSet.of([A]))
    assert SessionTable().is_empty
    assert not SessionTable().has_pending
    pending, active, asked, served = connected((A, "one")), connected((A, "one")), connected(), connected()
    active.subscribed(OLD, [(A, "one", None)])
    asked.ask_service(service)
    served.service_subscribed(OLD, service)
    assert [table.has_pending for table in (pending, active, asked, served)] == [True, False, True, False]
    assert not any(table.is_empty for table in (pending, active, asked, served))


def test_connections_rise_again_with_each_session() -> None:
    table = connected((A, "one"))
    table.subscribed(OLD, [(A, "one", None)])
    for session in (NEW, OLD):
        table.connected(session)
        assert table.subscribed(session, [(A, "one", None)]) == ("one",)


def test_a_connection_is_up_while_one_of_its_queues_is() -> None:
    table = connected((A, "one"), (B, "one"))
    table.subscribed(OLD, [(A, "one", None), (B, "one", None)])
    table.ask([(A, "one")])
    assert (table.state(A), table.pending_count) == (QueueState.ACTIVE, 0)
    table.created(OLD, A, "one", None)
    table.remove(A)
    assert table.state(A) is None
    table.ask([(C, "one")])
    assert table.subscribed(OLD, [(C, "one", None)]) == (), "it is up with its other queue"
    table.remove(B)
    table.remove(C)
    assert table.is_empty
    lost = table.disconnected(OLD)
    assert lost is not None
    assert lost.conn_ids == ()


def test_a_service_that_is_asked_for_stays_so_until_its_session_answers() -> None:
    expected, actual = ServiceSub(SERVICE, QueueSet.of([A])), ServiceSub(SERVICE, QueueSet.of([B]))
    table = connected()
    table.service_left(A)
    assert table.active_service is None
    table.ask_service(expected)
    assert table.pending_service == expected
    table.connected(NEW)
    assert table.pending_service == expected
    assert not table.service_subscribed(OLD, actual)
    assert (table.active_service, table.pending_service) == (None, actual)


@pytest.mark.parametrize(
    ("actual", "found"),
    [
        (ServiceSub(SERVICE, QueueSet(3, bytes(16))), None),
        (ServiceSub(OTHER, QueueSet(2, bytes(15) + b"1")), Mismatch.SERVICE_ID),
        (ServiceSub(SERVICE, QueueSet(2, bytes(15) + b"1")), Mismatch.COUNT),
        (ServiceSub(SERVICE, QueueSet(5, bytes(16))), Mismatch.COUNT),
        (ServiceSub(SERVICE, QueueSet(3, bytes(15) + b"1")), Mismatch.IDS_HASH),
    ],
)
def test_the_first_mismatch_is_named(actual: ServiceSub, found: Mismatch | None) -> None:
    assert mismatch(ServiceSub(SERVICE, QueueSet(3, bytes(16))), actual) is found


_steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "reply", "stale", "remove", "connect", "disconnect", "service"]),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(_steps)
def test_a_queue_is_never_in_two_places_and_ups_and_downs_alternate(steps: list[tuple[str, int]]) -> None:
    table, sessions = SessionTable(), 0
    up: set[str] = set()
    for step, number in steps:
        queue, conn = b"queue %d" % number, f"conn {number // 2}"
        now = b"session %d" % sessions
        match step:
            case "ask":
                table.ask([(queue, conn)])
            case "reply":
                risen = table.subscribed(now, [(queue, conn, None)])
                assert up.isdisjoint(risen)
                up.update(risen)
            case "stale":
                assert table.subscribed(b"session %d" % (sessions - 1), [(queue, conn, None)]) == ()
            case "remove":
                table.remove(queue)
                up &= {f"conn {n // 2}" for n in range(6) if table.is_active(b"queue %d" % n)}
            case "connect":
                sessions += 1
                table.connected(b"session %d" % sessions)
                up.clear()
            case "disconnect":
                lost = table.disconnected(now)
                assert lost is None or set(lost.conn_ids) == up
                up = up if lost is None else set()
            case "service":
                table.subscribed(now, [(queue, conn, SERVICE)])
        queues = [b"queue %d" % n for n in range(6)]
        states = [table.state(queue) for queue in queues]
        assert states.count(QueueState.ACTIVE) == table.active_count
        assert states.count(QueueState.PENDING) == table.pending_count
