"""Who may do what: what is loaded for a command, who must have signed it, and when it is allowed."""

from __future__ import annotations

import pytest

from blindpost.crypto.authorizers import AuthenticatorKeys, authorize
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.verifying import OneByOne
from blindpost.engine.undo import Undo
from blindpost.ntf.authority import Asked, is_allowed, token_of, verify, want
from blindpost.ntf.model import Token
from blindpost.ntf.state import Client
from blindpost.ntf.view import View, Wanted
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import PING, SCHK, SDEL, SNEW, TCHK, TCRN, TDEL, TNEW, TRPL, TVFY, Command
from blindpost.wire.ntf.status import TokenState
from blindpost.wire.ntf.transmissions import Request
from tests.support.ntf.in_memory import (
    DH_KEY,
    KEY,
    QUEUE_KEY,
    SESSION_KEY,
    a_client,
    a_subscription,
    a_token,
)
from tests.support.ntf.routers import SMP, device_token
from tests.support.router.routers import new_key

S = TokenState
TOKEN, OTHER = a_token(), a_token(name=b"o")
QUEUE = a_subscription(1)
REGISTRATION = TNEW(device_token("ab"), KEY.public, DH_KEY.public)
SUBSCRIPTION = SNEW(TOKEN.token_id, SMP, QUEUE.notifier_id, QUEUE_KEY.encoded)
OF_TOKENS: tuple[Command, ...] = (TVFY(b"c"), TCHK(), TRPL(device_token("cd")), TDEL(), TCRN(20))
OF_SUBSCRIPTIONS: tuple[Command, ...] = (SCHK(), SDEL())


def asked(command: Command, entity_id: bytes = b"") -> Request:
    return Request(b"corr" * 6, entity_id, command, b"", None, b"signed")


def view_of(*rows: Token) -> View:
    view = View(Undo(), 0)
    for row in rows:
        view.fill_token(row)
    return view


def test_what_a_command_needs_before_it_can_be_verified() -> None:
    def wanted(*requests: Request) -> Wanted:
        found = Wanted()
        for request in requests:
            want(found, request)
        return found

    assert wanted(asked(PING())) == Wanted()
    assert wanted(asked(REGISTRATION)) == Wanted(registrations={(device_token("ab"), KEY.public)})
    assert wanted(asked(SUBSCRIPTION)) == Wanted(
        tokens={TOKEN.token_id}, queues={(SMP, QUEUE.notifier_id)}, routers={SMP}
    )
    for command in OF_SUBSCRIPTIONS:
        assert wanted(asked(command, b"s")) == Wanted(subscriptions={b"s"})
    for command in OF_TOKENS:
        assert wanted(asked(command, b"t")) == Wanted(tokens={b"t"})


def test_a_command_belongs_to_the_token_that_it_names_directly_or_not() -> None:
    view = view_of(TOKEN, OTHER)
    view.fill_subscription(QUEUE)
    assert token_of(view, asked(SUBSCRIPTION)) is TOKEN
    for command in OF_SUBSCRIPTIONS:
        assert token_of(view, asked(command, QUEUE.subscription_id)) is TOKEN
        assert token_of(view, asked(command, b"unknown")) is None
    for command in OF_TOKENS:
        assert token_of(view, asked(command, OTHER.token_id)) is OTHER
        assert token_of(view, asked(command, b"unknown")) is None


@pytest.mark.parametrize("state", TokenState)
def test_subscriptions_need_a_token_in_the_right_state_and_new_ones_a_verified_one(state: TokenState) -> None:
    may = state in (S.ACTIVE, S.INVALID, S.EXPIRED)
    for code_at in (None, 1):
        view = view_of(a_token(state, code_at=code_at), OTHER)
        view.fill_subscription(QUEUE)
        assert is_allowed(view, asked(SUBSCRIPTION)) is (may and code_at is None)
        for command in OF_SUBSCRIPTIONS:
            assert is_allowed(view, asked(command, QUEUE.subscription_id)) is may
        for command in OF_TOKENS:
            assert is_allowed(view, asked(command, TOKEN.token_id))


def test_nothing_is_allowed_about_what_is_unknown_or_of_another_token() -> None:
    view = view_of(OTHER)
    for command in (*OF_TOKENS, *OF_SUBSCRIPTIONS, SUBSCRIPTION):
        assert not is_allowed(view, asked(command, TOKEN.token_id))
    assert is_allowed(view, asked(PING()))
    assert is_allowed(view, asked(REGISTRATION))
    view = view_of(TOKEN, OTHER)
    view.fill_subscription(a_subscription(1, b"o"))
    assert not is_allowed(view, asked(SUBSCRIPTION)), "the queue is taken"
    fresh = SNEW(TOKEN.token_id, SMP, b"another", QUEUE_KEY.encoded)
    assert is_allowed(view, asked(fresh))


def test_a_secret_is_kept_once_it_has_verified_something() -> None:
    mac_key = new_key(Algorithm.X25519)
    view = view_of(a_token(key=mac_key), a_token(name=b"o", key=KEY))
    client = a_client()

    def verdict(command: Command, entity_id: bytes, key: PrivateKey) -> bool:
        request = asked(command, entity_id)
        signature = authorize(key, request.authorized(client.layout), request.corr_id, SESSION_KEY.public)
        given = Asked(client, request._replace(authorization=signature))
        verify(view, OneByOne(), [given])
        return given.is_signed

    assert verdict(TCHK(), b"o" * 24, KEY)
    assert not verdict(TCHK(), b"o" * 24, new_key())
    assert not verdict(TCHK(), b"t" * 24, new_key(Algorithm.X25519))
    assert not verdict(TCHK(), b"unknown", mac_key)
    assert client.secrets._kept == {}
    assert verdict(TCHK(), b"t" * 24, mac_key)
    assert list(client.secrets._kept) == [mac_key.public.raw]
    assert verdict(REGISTRATION, b"", KEY)
    assert not verdict(REGISTRATION, b"", new_key())
    ping = Asked(client, asked(PING()))
    verify(view, OneByOne(), [ping])
    assert ping.is_signed


def test_a_connection_counts_for_its_address_or_for_itself() -> None:
    layout, secrets = a_client().layout, AuthenticatorKeys(SESSION_KEY)
    assert Client(7, 3, layout, secrets).origins == (7,)
    assert Client(7, 3, layout, secrets, (b"/64", b"/56", b"/48")).origins == (b"/64", b"/56", b"/48")
