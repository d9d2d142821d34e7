"""The tables of tokens and subscriptions are complete and match the protocol."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from blindpost.agent import PushMode, QueueStatus, Token
from blindpost.agent.model import RcvQueue
from blindpost.agent.notifications import tables
from blindpost.agent.notifications.model import (
    CHECK,
    REGISTER,
    Action,
    ActionKind,
    NotifierCreds,
    NtfSubscription,
    Step,
)
from blindpost.agent.notifications.tables import Change, Deed, Given, Row, Stored, Wish
from blindpost.agent.store.ntf_subscriptions import PrimaryQueue
from blindpost.wire.addresses import Host, Server
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.status import SubState, TokenState
from tests.support.ntf.routers import SMP, device_token
from tests.support.router.routers import new_key

ELSEWHERE = Server((Host("other.example.org"),), "5223", b"o" * 32)
TOKEN = Token(device_token("ab"), SMP, new_key(), new_key(Algorithm.X25519), PushMode.INSTANT)


def test_every_pair_of_each_table_is_listed() -> None:
    assert set(tables.DEEDS) == set(itertools.product(Stored, Given))
    assert set(tables.CHANGES) == set(itertools.product(Wish, Row))
    assert set(tables.STILL_CHECKED) == set(TokenState)
    assert set(tables.HEALTHY) == set(SubState)
    assert set(tables.WHEN_ACTIVE) == set(PushMode)


def test_every_stored_token_has_a_row_in_the_table() -> None:
    assert tables.stored(None) is Stored.NOTHING
    kinds = (None, *ActionKind)
    found = {
        tables.stored(replace(TOKEN, token_id=token_id, action=None if kind is None else Action(kind)))
        for token_id, kind in itertools.product((None, b"id"), kinds)
    }
    assert found == set(Stored) - {Stored.NOTHING}


WRITTEN = [
    (None, None, Deed.CREATE, Deed.CREATE),
    (None, REGISTER, Deed.TNEW, Deed.RENAME),
    (b"id", None, Deed.TNEW, Deed.TRPL),
    (b"id", Action(ActionKind.VERIFY, b"code"), Deed.TVFY, Deed.TRPL),
    (b"id", CHECK, Deed.TCHK, Deed.TRPL),
    (b"id", Action(ActionKind.DELETE), Deed.DELETE, Deed.DELETE),
]


def test_token_actions_are_as_listed_and_otherwise_nothing() -> None:
    listed = set()
    for place, (token_id, action, same, different) in enumerate(WRITTEN):
        row = tables.stored(None if place == 0 else replace(TOKEN, token_id=token_id, action=action))
        assert tables.DEEDS[row, Given.SAME] is same
        assert tables.DEEDS[row, Given.DIFFERENT] is different
        listed.add(row)
    others = {deed for (row, _), deed in tables.DEEDS.items() if row not in listed}
    assert others == {Deed.NOTHING}


@pytest.mark.parametrize("action", [REGISTER, CHECK, Action(ActionKind.VERIFY, b"c" * 32)])
def test_actions_read_back(action: Action) -> None:
    assert Action.from_encoded(action.encoded) == action
    with pytest.raises(WireError):
        Action.from_encoded(action.encoded + b"x")


def test_actions_are_encoded_as_in_the_protocol() -> None:
    assert REGISTER.encoded == b"R"
    assert Action(ActionKind.VERIFY, b"code").encoded == b"V\x04code"
    with pytest.raises(WireError):
        Action.from_encoded(b"X")


def queue(server: Server = SMP, notifier_id: bytes | None = b"n") -> PrimaryQueue:
    key, dh_key = new_key(), new_key(Algorithm.X25519)
    owner = RcvQueue("conn", 1, 1, server, b"r", b"s", None, key, b"", dh_key, None, 4, QueueStatus.ACTIVE)
    return PrimaryQueue(owner, None if notifier_id is None else NotifierCreds(notifier_id, key, b""))


@pytest.mark.parametrize(
    ("step", "notifier_id", "server", "expected"),
    [
        (None, b"n", SMP, Row.CLEARED),
        (Step.DELETE, b"n", SMP, Row.DELETING),
        (Step.KEY, None, SMP, Row.FITS),
        (Step.KEY, None, ELSEWHERE, Row.OTHER),
        (Step.NEW, b"n", SMP, Row.FITS),
        (Step.NEW, b"m", SMP, Row.OTHER),
        (Step.CHECK, b"n", SMP, Row.FITS),
        (Step.CHECK, b"n", ELSEWHERE, Row.OTHER),
        (Step.CHECK, b"m", SMP, Row.OTHER),
    ],
)
def test_state_of_a_row(step: Step | None, notifier_id: bytes | None, server: Server, expected: Row) -> None:
    row = NtfSubscription("conn", server, notifier_id, SMP, None, "NEW", step)
    assert tables.row_state(row, queue()) is expected
    assert tables.row_state(None, queue()) is Row.NONE


def test_supervisor_changes_are_as_listed() -> None:
    changes = {
        wish: [
            tables.CHANGES[wish, row] for row in (Row.NONE, Row.FITS, Row.OTHER, Row.DELETING, Row.CLEARED)
        ]
        for wish in Wish
    }
    new, wake, reset, off = Change.INSERT, Change.WAKE, Change.RESET, Change.DELETE
    assert changes[Wish.CREATE] == [new, wake, reset, reset, reset]
    assert changes[Wish.DELETE_AT_SMP] == [Change.NOTHING, off, off, wake, off]


def test_healthy_subscriptions_are_those_the_router_keeps() -> None:
    healthy = {state for state, fine in tables.HEALTHY.items() if fine}
    assert healthy == {SubState.NEW, SubState.PENDING, SubState.ACTIVE, SubState.INACTIVE}
    dropped = {state for state, kept in tables.STILL_CHECKED.items() if not kept}
    assert dropped == {TokenState.INVALID, TokenState.EXPIRED}
