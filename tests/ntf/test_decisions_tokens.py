"""Every decision about tokens, with all that it changes, counts and asks for; and rolled back once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.ntf import pushes, tokens
from blindpost.ntf.machines import TOKEN_TABLE, TokenEvent
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import Carrier, NtfRules, PushKind, Token, day_of
from blindpost.ntf.turn import Forget
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.ntf.commands import TCRN, TNEW, TRPL, TVFY
from blindpost.wire.ntf.responses import IDTKN, OK, TKN, Response
from blindpost.wire.ntf.status import InvalidReason, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from tests.support.ntf.in_memory import (
    CODE,
    DH_KEY,
    KEY,
    NULL_DEVICE,
    InMemory,
    a_client,
    a_notification,
    a_subscription,
    a_token,
    web_device,
)
from tests.support.ntf.routers import SMP, START, device_token
from tests.support.router.routers import new_key

S, E = TokenState, TokenEvent
CODE_PUSH = PushKind.VERIFICATION
ELSEWHERE = Server((Host("other.example.org"),), "5223", b"o" * 32)

SPELLINGS = ("push.example.org", "Push.Example.ORG", "push.example.org.")
"""One push service."""


def registration(device: DeviceToken | None = None, dh_key: PublicKey = DH_KEY.public) -> TNEW:
    return TNEW(device or device_token("ab"), KEY.public, dh_key)


def registered(
    router: InMemory, device: DeviceToken | None = None, key: PrivateKey = KEY, host: str = "192.0.2.1"
) -> Response:
    command = replace(registration(device), verify_key=key.public)
    return router.decide(lambda turn: tokens.register(turn, a_client(host), command))


def replaced(router: InMemory, token: Token, device: DeviceToken) -> Response:
    return router.decide(lambda turn: tokens.replace_device(turn, a_client(), token, TRPL(device)))


@pytest.mark.parametrize("state", TokenState)
@pytest.mark.parametrize("event", TokenEvent)
def test_an_event_has_exactly_the_consequences_in_its_row(state: TokenState, event: TokenEvent) -> None:
    """The status, the code, the other tokens, the push of a code or of what waits, what is rejected."""
    before = a_token(state)
    rival, neighbour = a_token(name=b"r"), a_token(S.ACTIVE, device_token("cd"), name=b"n")
    router = InMemory().have(before, rival, neighbour, a_subscription(), a_notification())
    reason = InvalidReason.TOPIC if event is E.REFUSED else None
    after = router.decide(lambda turn: tokens.advance(turn, before, event, reason))
    assert router.tokens[before.token_id] == after
    assert router.tokens[neighbour.token_id] == neighbour
    step = TOKEN_TABLE.get((state, event))
    if step is None:
        assert after is before
        assert (router.counted, router.entered, router.moved) == ({}, {}, {})
        assert len(router.turn.pushes) == len(router.turn.view.changed_tokens) == 0
        return
    same = step.next is state and event is not E.REFUSED
    is_new_code = event is E.REPLACED
    fresh: dict[str, Any] = {"code": after.code, "code_at": START} if is_new_code else {}
    assert after == replace(before, status=TokenStatus(step.next, reason), **fresh)
    assert (after.code == before.code) is not is_new_code
    gone = {(rival.status.state.value, "", ""): 1} if event is E.VERIFIED else {}
    moved = {} if same else {(state.value, step.next.value, "TOPIC" if reason else ""): 1}
    assert router.moved == {**gone, **moved}
    assert (rival.token_id in router.tokens) is (event is not E.VERIFIED)
    assert (before.token_id in router.turn.view.changed_tokens) is not (same and not is_new_code)
    asked = {kind for _, kind in router.turn.pushes}
    match event:
        case E.REPEATED | E.REPLACED:
            assert asked == {CODE_PUSH}
            assert router.pushed(CODE_PUSH).content == after.code.raw
            assert router.counted == {Meter.CODES_QUEUED: 1}
        case E.VERIFIED:
            assert asked == {PushKind.MESSAGE}
            assert router.counted == {Meter.TOKENS_DELETED: 1}
        case _:
            assert asked == set()
    rejected = event is E.REFUSED
    assert router.entered == ({("token_invalid", "TOPIC", "apns"): 1} if rejected else {})
    assert router.states == {"rejected" if rejected else "waiting": 1}


def test_a_refusal_without_a_reason_is_recorded_without_one() -> None:
    router = InMemory().have(a_token(S.INVALID), a_subscription(), a_notification())
    after = router.decide(lambda turn: tokens.advance(turn, router.token, E.REFUSED))
    assert after.status == TokenStatus(S.INVALID)
    assert router.entered == {("token_invalid", "", "apns"): 1}
    assert router.moved == {}
    again = router.decide(lambda turn: tokens.advance(turn, router.token, E.REFUSED, InvalidReason.BAD))
    assert again.status == TokenStatus(S.INVALID, InvalidReason.BAD)
    assert router.moved == {("INVALID", "INVALID", "BAD"): 1}
    assert router.entered == {}, "it has ended already"


def test_a_verified_device_without_notifications_takes_no_place_among_the_pushes() -> None:
    router = InMemory(NtfRules(push_queue=0)).have(a_token(S.CONFIRMED, code_at=START))
    ended = a_notification(is_waiting=False)
    for _ in range(2):
        assert router.decide(lambda turn: tokens.verify(turn, router.token, TVFY(CODE))) == OK()
        assert len(router.turn.pushes) == 0
        assert Meter.DEFERRED not in router.counted
        router.have(a_subscription(), ended)


# --- TNEW


@pytest.mark.parametrize(
    "device", [device_token("ab"), NULL_DEVICE, web_device()], ids=["apple", "null", "web"]
)
def test_a_new_token(device: DeviceToken) -> None:
    router = InMemory(NtfRules(web_push=True, web_key=b"our key"))
    router.now += 3700
    answer = registered(router, device)
    token = router.token
    assert answer == IDTKN(token.token_id, token.dh_key.public)
    assert token == Token(
        token.token_id,
        device,
        TokenStatus(S.REGISTERED),
        KEY.public,
        token.dh_key,
        Secret(token.dh_key.agree(DH_KEY.public)),
        token.code,
        code_at=START + 3700,
        updated_day=day_of(START + 3700),
        key_name=b"our key" if device == web_device() else b"",
    )
    assert (len(token.token_id), len(token.code.raw)) == (24, 32)
    assert router.pushed(CODE_PUSH).content == token.code.raw
    assert router.moved == {("", "REGISTERED", ""): 1}
    counted = {Meter.TOKENS_CREATED: 1, Meter.CODES_QUEUED: 1}
    assert router.counted == ({} if device is NULL_DEVICE else counted)


@pytest.mark.parametrize(
    ("token", "changes"),
    [
        (a_token(S.REGISTERED, code_at=START - 60), {}),
        (a_token(S.ACTIVE), {}),
        (a_token(S.ACTIVE, updated_day=0), {"updated_day": day_of(START)}),
        (a_token(S.CONFIRMED, code_at=START - 60, code_attempts=4), {}),
        (a_token(S.INVALID), {"status": TokenStatus(S.REGISTERED), "code_at": START}),
        (a_token(S.INVALID, code_at=START - 60), {"status": TokenStatus(S.REGISTERED)}),
        (a_token(S.CONFIRMED, code_at=START - 86_399), {}),
        (a_token(S.CONFIRMED, code_at=START - 86_400), {"code": None, "code_at": START}),
        (
            a_token(S.CONFIRMED, code_at=START - 60, code_attempts=5),
            {"code": None, "code_at": START, "code_attempts": 0},
        ),
        (a_token(S.ACTIVE, code_attempts=5), {}),
    ],
)
def test_a_repeated_registration_keeps_its_code_unless_it_is_spent(
    token: Token, changes: dict[str, Any]
) -> None:
    router = InMemory().have(token)
    answer = registered(router)
    assert answer == IDTKN(token.token_id, token.dh_key.public)
    after = router.token
    if "code" in changes:
        changes = {**changes, "code": after.code}
        assert after.code != token.code
    assert after == replace(token, **changes)
    assert router.pushed(CODE_PUSH).content == after.code.raw
    assert router.counted == {Meter.CODES_QUEUED: 1}
    assert (len(router.turn.view.changed_tokens) == 0) is (not changes)


def test_other_keys_do_not_register_the_same_token() -> None:
    router = InMemory().have(a_token())
    stranger = registration(dh_key=new_key(Algorithm.X25519).public)
    assert router.decide(lambda turn: tokens.register(turn, a_client(), stranger)) == tokens.AUTH
    assert len(router.turn.pushes) == len(router.turn.view.changed_tokens) == 0
    assert len(router.state.rates) == 0, "it does not count as a push"


TEST_DEVICE = device_token("ab", PushProvider.APNS_TEST)


@pytest.mark.parametrize(
    ("device", "rules", "allowed"),
    [
        (web_device(), NtfRules(), False),
        (web_device(), NtfRules(test_provider=True), False),
        (web_device(), NtfRules(web_push=True), True),
        (TEST_DEVICE, NtfRules(web_push=True), False),
        (TEST_DEVICE, NtfRules(test_provider=True), True),
        (device_token("ab"), NtfRules(), True),
        (NULL_DEVICE, NtfRules(), True),
    ],
)
def test_only_devices_with_a_provider_are_accepted(
    device: DeviceToken, rules: NtfRules, allowed: bool
) -> None:
    router = InMemory(rules)
    answer = registered(router, device)
    assert isinstance(answer, IDTKN) if allowed else answer == tokens.PROHIBITED
    router = InMemory(rules).have(a_token(S.ACTIVE, device_token("cd")))
    assert replaced(router, router.token, device) == (OK() if allowed else tokens.PROHIBITED)
    assert (router.token.device == device) is allowed


def test_who_did_not_hear_the_answer_may_ask_beyond_the_limit_and_gets_no_further_code() -> None:
    """A connection may take requests for minutes and bring no answer."""
    router = InMemory(NtfRules(device_code_pushes=2))
    command, other = registration(device_token("ab")), device_token("cd")

    def asked() -> Response:
        return router.decide(lambda turn: tokens.register(turn, a_client(), command))

    first = asked()
    assert isinstance(first, IDTKN)
    asked()
    before = dict(router.tokens)
    assert [asked() for _ in range(3)] == [first] * 3
    assert router.tokens == before, "no other code, and no longer time for it"
    for _ in range(4):
        assert replaced(router, router.tokens[first.token_id], other) == OK()
    assert router.counted.get(Meter.REFUSED_LIMIT, 0) == 0
    moved = router.tokens[first.token_id]
    assert (moved.device, moved.status.state) == (other, S.REGISTERED)
    router.have(replace(moved, code_attempts=router.rules.code_attempts))
    assert replaced(router, router.tokens[first.token_id], other) == tokens.QUOTA, "its code is spent"
    router.have(replace(moved, status=TokenStatus(S.ACTIVE), code_at=None))
    assert replaced(router, router.tokens[first.token_id], other) == tokens.QUOTA, "it has no code"


@pytest.mark.parametrize(
    ("rules", "devices", "allowed"),
    [
        (NtfRules(address_code_pushes=2), [device_token(f"0{n}") for n in range(3)], 2),
        (NtfRules(address_code_pushes=2), [NULL_DEVICE] * 3, 2),
        (NtfRules(device_code_pushes=2), [device_token("ab")] * 3, 2),
        (NtfRules(device_code_pushes=2), [NULL_DEVICE] * 3, 3),
        (NtfRules(device_code_pushes=2), [device_token(text) for text in ("ab", "aB", "AB")], 2),
        (NtfRules(device_code_pushes=2), [web_device(host) for host in SPELLINGS], 2),
        (NtfRules(device_code_pushes=2), [web_device(auth=bytes([n]) * 16) for n in range(3)], 2),
        (NtfRules(device_code_pushes=2), [web_device(path=b"/%d" % n) for n in range(3)], 3),
        (NtfRules(service_code_pushes=2), [device_token("ab")] * 3, 3),
        (NtfRules(service_code_pushes=2), [web_device(path=b"/%d" % n) for n in range(3)], 2),
        (NtfRules(service_code_pushes=2), [web_device(f"{n}.example.org") for n in range(3)], 3),
        (NtfRules(service_code_pushes=2), [web_device(host) for host in SPELLINGS], 2),
    ],
    ids=[
        "address",
        "address of null",
        "device",
        "null device",
        "spellings of a device",
        "spellings of an endpoint",
        "endpoint with other keys",
        "endpoints",
        "no service",
        "service",
        "hosts",
        "spellings",
    ],
)
def test_codes_are_limited_by_address_device_and_service(
    rules: NtfRules, devices: list[DeviceToken], allowed: int
) -> None:
    router = InMemory(replace(rules, web_push=True))
    answers = [registered(router, device, new_key()) for device in devices]
    refused = len(devices) - allowed
    assert [isinstance(answer, IDTKN) for answer in answers] == [True] * allowed + [False] * refused
    assert answers[allowed:] == [tokens.QUOTA] * refused
    assert router.counted.get(Meter.REFUSED_LIMIT, 0) == refused
    router.have(moving := a_token(S.ACTIVE, device_token("ef"), name=b"m", key=new_key()))
    assert replaced(router, moving, devices[-1]) == (tokens.QUOTA if refused else OK())
    assert router.counted.get(Meter.REFUSED_LIMIT, 0) == refused
    router.now += rules.code_push_window_s
    again = registered(router, devices[-1])
    assert isinstance(again, IDTKN)


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [
        ([f"192.0.2.{n}" for n in range(20)], 20),
        ([f"2001:db8::{n:x}" for n in range(20)], 2),
        ([f"2001:db8:0:{n:x}::1" for n in range(20)], 4),
        ([f"2001:db8:0:{n:x}00::1" for n in range(20)], 8),
        ([f"2001:db8:{n:x}::1" for n in range(20)], 20),
    ],
    ids=["IPv4", "/64", "/56", "/48", "several /48"],
)
def test_codes_are_limited_by_the_networks_around_an_address_too(hosts: list[str], allowed: int) -> None:
    """Whoever has one IPv6 address has as many as he likes."""
    router = InMemory(NtfRules(address_code_pushes=2))
    answers = [registered(router, device_token(f"{n:02x}"), host=host) for n, host in enumerate(hosts)]
    assert sum(isinstance(answer, IDTKN) for answer in answers) == allowed
    assert answers[allowed:] == [tokens.QUOTA] * (len(hosts) - allowed)


# --- TVFY


@pytest.mark.parametrize(
    ("token", "code", "ok", "changes", "counted"),
    [
        (
            a_token(S.CONFIRMED, code_at=START),
            CODE,
            True,
            {"status": TokenStatus(S.ACTIVE), "code_at": None},
            {Meter.TOKENS_VERIFIED: 1},
        ),
        (
            a_token(S.REGISTERED, code_at=START - 86_399, code_attempts=4),
            CODE,
            True,
            {"status": TokenStatus(S.ACTIVE), "code_at": None, "code_attempts": 0},
            {Meter.TOKENS_VERIFIED: 1},
        ),
        (
            a_token(S.REGISTERED, NULL_DEVICE, code_at=START),
            CODE,
            True,
            {"status": TokenStatus(S.ACTIVE), "code_at": None},
            {},
        ),
        (a_token(S.ACTIVE), CODE, True, {}, {}),
        (a_token(S.ACTIVE, code_attempts=1), CODE, True, {"code_attempts": 0}, {}),
        (a_token(S.ACTIVE, code_attempts=9), CODE, True, {"code_attempts": 0}, {}),
        (a_token(S.ACTIVE, updated_day=0), CODE, True, {"updated_day": day_of(START)}, {}),
        (a_token(S.ACTIVE), b"w" * 32, False, {}, {Meter.CODES_WRONG: 1}),
        (
            a_token(S.CONFIRMED, code_at=START, code_attempts=3),
            b"w" * 32,
            False,
            {"code_attempts": 4},
            {Meter.CODES_WRONG: 1},
        ),
        (
            a_token(S.CONFIRMED, code_at=START, code_attempts=4),
            b"w" * 32,
            False,
            {"code_attempts": 5},
            {Meter.CODES_WRONG: 1, Meter.CODES_LOCKED: 1},
        ),
        (a_token(S.CONFIRMED, code_at=START, code_attempts=5), CODE, False, {}, {}),
        (a_token(S.CONFIRMED, code_at=START - 86_400), CODE, False, {}, {}),
        (a_token(S.CONFIRMED, code_at=START - 86_400), b"w" * 32, False, {}, {}),
        *((a_token(state, code_at=START), CODE, False, {}, {}) for state in (S.NEW, S.INVALID, S.EXPIRED)),
        (a_token(S.INVALID), CODE, False, {}, {}),
    ],
)
def test_codes(
    token: Token, code: bytes, ok: bool, changes: dict[str, Any], counted: dict[Meter, int]
) -> None:
    router = InMemory().have(token)
    answer = router.decide(lambda turn: tokens.verify(turn, token, TVFY(code)))
    assert answer == (OK() if ok else tokens.AUTH)
    assert router.token == replace(token, **changes)
    assert router.counted == counted
    assert (len(router.turn.view.changed_tokens) == 0) is (not changes)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (device_token("ab"), device_token("AB")),
        (device_token("aB"), device_token("ab")),
        (web_device("push.example.org"), web_device("Push.example.org.")),
    ],
)
def test_a_verified_device_loses_its_other_tokens_however_they_spell_it(
    first: DeviceToken, second: DeviceToken
) -> None:
    router = InMemory(NtfRules(web_push=True)).have(a_token(device=first, key=new_key(), name=b"f"))
    assert isinstance(registered(router, second), IDTKN)
    assert isinstance(registered(router, first), IDTKN), "two registrations, as the protocol has it"
    assert len(router.tokens) == 3
    assert {token.device for token in router.tokens.values()} == {first, second}, "stored as given"
    last = router.turn.view.registration(first, KEY.public)
    assert last is not None
    assert router.decide(lambda turn: tokens.verify(turn, last, TVFY(last.code.raw))) == OK()
    assert list(router.tokens) == [last.token_id]


# --- TCHK, TRPL, TCRN


def test_asking_for_the_status_writes_once_a_day() -> None:
    router = InMemory().have(a_token(S.INVALID, reason=InvalidReason.TOPIC))
    for now, writes in ((START, False), (START + 86_400, True), (START + 86_401, False)):
        router.now = now
        answer = router.decide(lambda turn: tokens.check(turn, router.token))
        assert answer == TKN(TokenStatus(S.INVALID, InvalidReason.TOPIC))
        assert router.token.updated_day == day_of(now)
        assert (len(router.turn.view.changed_tokens) > 0) is writes


@pytest.mark.parametrize(
    ("before", "after", "key_name", "is_counted"),
    [
        (device_token("ab"), device_token("cd"), b"", True),
        (device_token("ab"), web_device(), b"our key", True),
        (web_device(), device_token("ab"), b"", True),
        (web_device(), web_device(), b"older key", True),
        (device_token("ab"), NULL_DEVICE, b"", False),
        (NULL_DEVICE, device_token("ab"), b"", True),
    ],
)
def test_a_replaced_device(
    before: DeviceToken, after: DeviceToken, key_name: bytes, is_counted: bool
) -> None:
    token = a_token(S.ACTIVE, before, key_name=b"older key" if before == web_device() else b"")
    router = InMemory(NtfRules(web_push=True, web_key=b"our key")).have(token, a_subscription())
    router.now += 1
    assert replaced(router, token, after) == OK()
    changed = router.token
    assert changed.code != token.code
    assert changed == replace(
        token,
        device=after,
        status=TokenStatus(S.REGISTERED),
        code=changed.code,
        code_at=START + 1,
        key_name=key_name,
    )
    assert router.moved == {("ACTIVE", "REGISTERED", ""): 1}
    assert router.counted == ({Meter.TOKENS_REPLACED: 1, Meter.CODES_QUEUED: 1} if is_counted else {})
    assert router.pushed(CODE_PUSH).device == after
    assert len(router.subscriptions) == 1


def test_a_device_that_has_a_token_with_the_same_key_is_not_taken() -> None:
    twin = a_token(device=device_token("cd"), name=b"w")
    router = InMemory().have(a_token(updated_day=0), twin)
    taken = TRPL(twin.device)
    answer = router.decide(
        lambda turn: tokens.replace_device(turn, a_client(), a_token(updated_day=0), taken)
    )
    assert answer == tokens.AUTH
    assert router.tokens[b"t" * 24] == a_token(), "only the day of its use changed"
    assert router.tokens[b"w" * 24] == twin
    assert router.counted == {}


@pytest.mark.parametrize(
    ("token", "minutes", "chance", "due"),
    [
        (a_token(), 20, 0.0, START + 1),
        (a_token(), 20, 0.5, START + 601),
        (a_token(), 65_535, 0.5, START + 1 + 65_535 * 30),
        (a_token(period_minutes=20, period_due=START + 7), 30, 0.0, START + 1),
        (a_token(period_sent=START - 60), 20, 0.0, START - 60 + 1200),
        (a_token(period_sent=START - 60), 20, 31 / 32, START + 1 + 1162),
        (a_token(period_minutes=20, period_due=START + 7), 0, 0.0, None),
    ],
)
def test_a_period_begins_at_a_random_time_but_not_before_the_last_one_ends(
    token: Token, minutes: int, chance: float, due: int | None
) -> None:
    router = InMemory().have(token)
    router.chance = chance
    assert router.decide(lambda turn: tokens.set_period(turn, token, TCRN(minutes))) == OK()
    assert router.token == replace(token, period_minutes=minutes, period_due=due)


@pytest.mark.parametrize(
    ("minutes", "answer"),
    [(1, tokens.QUOTA), (19, tokens.QUOTA), (25, OK())],
)
def test_a_period_that_is_too_short_or_the_same_changes_nothing(minutes: int, answer: object) -> None:
    token = a_token(period_minutes=25, period_due=START + 7)
    router = InMemory().have(token)
    assert router.decide(lambda turn: tokens.set_period(turn, token, TCRN(minutes))) == answer
    assert len(router.turn.view.changed_tokens) == 0
    router.now += 86_400
    router.decide(lambda turn: tokens.set_period(turn, token, TCRN(minutes)))
    assert router.token == replace(token, updated_day=day_of(router.now))


# --- TDEL, and tokens that were never verified


@pytest.mark.parametrize("device", [device_token("ab"), NULL_DEVICE], ids=["apple", "null"])
def test_a_deleted_token_leaves_nothing(device: DeviceToken) -> None:
    token, other = a_token(device=device, period_minutes=20, period_due=START), a_token(name=b"o")
    elsewhere = a_subscription(3, server=ELSEWHERE)
    others = a_subscription(4, b"o"), a_notification(4, b"o")
    own = (token.device.token,)
    router = InMemory(own=own).have(token, other, elsewhere, *others)
    router.have(*(a_subscription(number) for number in (1, 2)))
    carrier = Carrier.of(device)
    router.have(a_notification(1, carrier=carrier), a_notification(3, is_waiting=False, carrier=carrier))
    router.decide(lambda turn: pushes.request(turn, token, PushKind.MESSAGE))
    router.decide(lambda turn: pushes.request(turn, token, PushKind.CHECK))
    router.decide(lambda turn: pushes.request(turn, token, CODE_PUSH))
    assert len(router.state.jobs) == 3
    assert router.decide(lambda turn: tokens.remove(turn, token)) == OK()
    assert len(router.state.jobs) == 0
    assert (list(router.tokens), list(router.subscriptions), list(router.notifications)) == (
        [other.token_id],
        [others[0].subscription_id],
        [others[1].subscription_id],
    )
    assert set(router.turn.effects) == {
        Forget(ELSEWHERE, (elsewhere.notifier_id,)),
        Forget(SMP, tuple(a_subscription(number).notifier_id for number in (1, 2))),
    }
    assert router.entered == {("no_token", "", carrier.value): 1}
    assert router.told == [(b"1", "no_token")]
    assert router.moved == {("ACTIVE", "", ""): 1}
    assert router.counted == ({} if device is NULL_DEVICE else {Meter.TOKENS_DELETED: 1})


@pytest.mark.parametrize(
    ("token", "owns", "is_deleted"),
    [
        (a_token(S.REGISTERED, code_at=START - 172_801), False, True),
        (a_token(S.REGISTERED, code_at=START - 172_800), False, False),
        (a_token(S.REGISTERED, code_at=START - 172_801), True, False),
        (a_token(S.ACTIVE), False, False),
    ],
)
def test_a_token_is_removed_if_it_was_not_verified_in_time(
    token: Token, owns: bool, is_deleted: bool
) -> None:
    router = InMemory().have(token)
    if owns:
        router.have(a_subscription())
    router.decide(lambda turn: tokens.remove_unverified(turn, token))
    assert (len(router.tokens) == 0) is is_deleted
    assert router.counted == ({Meter.TOKENS_DELETED: 1, Meter.TOKENS_EXPIRED: 1} if is_deleted else {})
