"""Pushes over real TLS and HTTP/2 to a server of ours that checks what Apple checks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.pushes import open_message, open_verification
from blindpost.crypto.secret import Secret
from blindpost.ntf import turn
from blindpost.ntf.model import PushKind
from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater, TokenInvalid
from blindpost.ntf.push.apns import DEVELOPMENT_HOST, PAYLOAD_MAX, PRODUCTION_HOST, Apns
from blindpost.ntf.push.http2 import tls_context
from blindpost.ntf.push.null import NullProvider
from blindpost.ntf.push.outcome import RETRY_AFTER_MAX_S, outcome_of
from blindpost.ntf.push.provider_tokens import ProviderTokens, SigningKey
from blindpost.ntf.push.providers import apple_endpoints, providers_at
from blindpost.ntf.pusher import sealed
from blindpost.testing import apns as apple_side
from blindpost.testing.apns import Answer, ApnsServer, Fault, Reaction
from blindpost.wire.addresses import Host, Server
from blindpost.wire.ntf.pushes import (
    APPLE_PADDED_SIZE,
    PADDED_SIZE,
    CheckPush,
    MessagePush,
    Push,
    PushItem,
    VerificationPush,
    encode_items,
)
from blindpost.wire.ntf.status import InvalidReason
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from tests.support.ntf.hostile_push import goodbye
from tests.support.serving.waiting import until

SECRET = bytes(range(32))
CODE = bytes(range(32, 64))
TOKEN = DeviceToken(PushProvider.APNS_TEST, b"0a" * 32)
HEX = TOKEN.token.decode()
ITEM = PushItem(
    Server((Host("smp.example.org"),), "5223", bytes(32)), bytes(24), 1_700_000_000, bytes(24), bytes(144)
)


def pushed(kind: PushKind, content: bytes, padded_size: int = APPLE_PADDED_SIZE) -> Push:
    """A push as the router seals it."""
    return sealed(turn.Push(b"", kind, 1, TOKEN, Secret(SECRET), content), padded_size, system_entropy)


VERIFICATION = pushed(PushKind.VERIFICATION, CODE)
MESSAGE = pushed(PushKind.MESSAGE, encode_items([ITEM]))


@asynccontextmanager
async def pushing(
    apple: ApnsServer, response_timeout_s: float = 25.0, ping_s: float = 300.0
) -> AsyncIterator[Apns]:
    endpoint = replace(apple.endpoint, response_timeout_s=response_timeout_s, ping_s=ping_s)
    provider = Apns(endpoint, ProviderTokens(apple.signing, time.time))
    try:
        yield provider
    finally:
        await provider.close()


async def test_each_kind_of_push_has_the_headers_and_the_body_that_devices_expect() -> None:
    async with ApnsServer() as apple, pushing(apple) as provider:
        for push in (VERIFICATION, MESSAGE, CheckPush()):
            assert await provider.push(TOKEN, push) == Accepted()
    verification, message, check = apple.received
    common = {":method": "POST", ":path": f"/3/device/{HEX}", "apns-topic": "chat.simplex.app"}
    for delivered in apple.received:
        assert common.items() <= delivered.headers.items()
        assert delivered.headers["authorization"].startswith("bearer eyJ")
        assert not delivered.headers.keys() & {"apns-id", "apns-expiration", "content-type"}
    for background in (verification, check):
        assert background.headers["apns-push-type"] == "background"
        assert background.headers["apns-priority"] == "5"
    assert message.headers["apns-push-type"] == "alert"
    assert "apns-priority" not in message.headers
    assert json.loads(verification.body)["aps"] == {"content-available": 1}
    assert json.loads(check.body)["notificationData"] == {"checkMessages": True}
    assert json.loads(message.body)["aps"] == {
        "mutable-content": 1,
        "alert": "Encrypted message or another app event",
        "category": "NTF_CAT_CHECK_MESSAGE",
    }
    assert message.push == MESSAGE
    assert isinstance(message.push, MessagePush)
    assert open_message(SECRET, message.push) == (ITEM,)
    assert isinstance(verification.push, VerificationPush)
    assert open_verification(SECRET, verification.push) == CODE


async def test_all_pushes_share_one_connection_and_one_provider_token() -> None:
    async with ApnsServer() as apple, pushing(apple) as provider:
        outcomes = await asyncio.gather(*(provider.push(TOKEN, MESSAGE) for _ in range(300)))
        assert set(outcomes) == {Accepted()}
        assert apple.connections_made == 1
        assert len({delivered.headers["authorization"] for delivered in apple.received}) == 1
        assert len(apple.sent_to(HEX)) == 300


REASONS: list[tuple[Answer, PushOutcome]] = [
    (Answer(400, "BadDeviceToken"), TokenInvalid(InvalidReason.BAD)),
    (Answer(400, "DeviceTokenNotForTopic"), TokenInvalid(InvalidReason.TOPIC)),
    (Answer(410, "ExpiredToken"), TokenInvalid(InvalidReason.EXPIRED)),
    (Answer(410, "Unregistered"), TokenInvalid(InvalidReason.UNREGISTERED)),
    (Answer(400, "TopicDisallowed"), Failed("400 TopicDisallowed")),
    (Answer(400, "BadPriority"), Failed("400 BadPriority")),
    (Answer(400), Failed("400")),
    (Answer(403, "InvalidProviderToken"), Failed("403 InvalidProviderToken")),
    (Answer(403, "ExpiredProviderToken"), RetryLater("403 ExpiredProviderToken", 0.0)),
    (Answer(404, "BadPath"), Failed("404 BadPath")),
    (Answer(410), RetryLater("410")),
    (Answer(413, "PayloadTooLarge"), Failed("413 PayloadTooLarge")),
    (Answer(429, "TooManyRequests"), RetryLater("429 TooManyRequests")),
    (Answer(500, "InternalServerError"), RetryLater("500 InternalServerError")),
    (Answer(503, "ServiceUnavailable"), RetryLater("503 ServiceUnavailable")),
    (Answer(400, "with\nanother line"), Failed("400")),
]


@pytest.mark.parametrize(("answer", "outcome"), REASONS, ids=lambda value: str(value)[:40])
async def test_every_answer_of_apple_has_one_meaning(answer: Answer, outcome: PushOutcome) -> None:
    async with ApnsServer() as apple, pushing(apple) as provider:
        apple.decide = lambda device_token: answer
        assert await provider.push(TOKEN, MESSAGE) == outcome


def test_only_reasons_about_the_device_token_invalidate_it() -> None:
    """Each of the four reasons does so with its own status alone; no outage does."""
    reasons = ("BadDeviceToken", "DeviceTokenNotForTopic", "ExpiredToken", "Unregistered", "")
    invalid = {
        (status, reason)
        for status in range(100, 600)
        for reason in reasons
        if isinstance(outcome_of(status, reason), TokenInvalid)
    }
    assert invalid == {
        (400, "BadDeviceToken"),
        (400, "DeviceTokenNotForTopic"),
        (410, "ExpiredToken"),
        (410, "Unregistered"),
    }
    assert all(isinstance(outcome_of(status, ""), RetryLater) for status in (429, *range(500, 600)))


async def test_a_malformed_error_body_gives_no_reason() -> None:
    assert outcome_of(410, "") == RetryLater("410")
    async with ApnsServer() as apple, pushing(apple) as provider:
        apple.decide = lambda device_token: Answer(410, "x" * 200)
        assert await provider.push(TOKEN, MESSAGE) == RetryLater("410")


@pytest.mark.parametrize("fault", Fault)
async def test_silence_and_broken_connections_are_outages(fault: Fault) -> None:
    async with ApnsServer() as apple, pushing(apple, response_timeout_s=1.5) as provider:
        apple.decide = lambda device_token: fault
        outcomes = await asyncio.gather(*(provider.push(TOKEN, MESSAGE) for _ in range(3)))
        assert all(isinstance(outcome, RetryLater) for outcome in outcomes)
        apple.decide = lambda device_token: Answer()
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        assert apple.connections_made == 2


async def test_an_outage_of_all_of_apple_is_survived() -> None:
    async with ApnsServer() as apple, pushing(apple) as provider:
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        await apple.stop()
        outcomes = await asyncio.gather(*(provider.push(TOKEN, MESSAGE) for _ in range(5)))
        assert all(isinstance(outcome, RetryLater) for outcome in outcomes)
        await apple.start()
        assert await provider.push(TOKEN, MESSAGE) == Accepted()


async def test_a_connection_that_answers_503_is_retired_without_losing_other_pushes() -> None:
    async with ApnsServer() as apple, pushing(apple) as provider:
        other = replace(TOKEN, token=b"bb" * 32)
        apple.decide = lambda token: apple_side.UNAVAILABLE if token == HEX else Answer()
        refused, accepted = await asyncio.gather(provider.push(TOKEN, MESSAGE), provider.push(other, MESSAGE))
        assert isinstance(refused, RetryLater)
        assert accepted == Accepted()
        assert await provider.push(other, MESSAGE) == Accepted()
        assert apple.connections_made == 2


def say_goodbye(apple: ApnsServer, last_stream_id: int) -> None:
    for connection in apple._connections:
        connection._transport.write(goodbye(last_stream_id))


async def test_pushes_that_apple_does_not_take_any_more_go_over_a_new_connection_at_once() -> None:
    """And the one that it has taken is answered over the old one, and not pushed again."""
    async with ApnsServer() as apple, pushing(apple) as provider:

        def last_one(_device_token: str) -> Reaction:
            if apple.connections_made > 1:
                return Answer()
            if len(apple.received) > 0:
                return Fault.SILENCE
            say_goodbye(apple, 1)
            return Answer()

        apple.decide = last_one
        outcomes = await asyncio.gather(*(provider.push(TOKEN, MESSAGE) for _ in range(3)))
        assert outcomes == [Accepted()] * 3
        assert apple.connections_made == 2
        assert len(apple.accepted) == 3


async def test_an_apple_that_takes_nothing_is_asked_later() -> None:
    async with ApnsServer() as apple, pushing(apple) as provider:

        def nothing(_device_token: str) -> Reaction:
            say_goodbye(apple, 0)
            return Fault.SILENCE

        apple.decide = nothing
        assert await provider.push(TOKEN, MESSAGE) == RetryLater("Apple ends its connections")
        assert apple.connections_made == 2


async def test_an_idle_connection_is_pinged() -> None:
    async with ApnsServer() as apple, pushing(apple, response_timeout_s=2.0, ping_s=0.01) as provider:
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        await apple.until(lambda: apple.pings >= 2)
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        assert apple.connections_made == 1


async def test_a_silently_dead_connection_is_replaced_before_a_push_waits_for_it() -> None:
    async with ApnsServer() as apple, pushing(apple, response_timeout_s=1.5, ping_s=0.01) as provider:
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        dead = provider._connection
        assert dead is not None
        apple.deafen()
        await until(lambda: not dead.usable)
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        assert apple.connections_made == 2


@pytest.mark.parametrize(
    ("header", "after_s"),
    [
        ("", None),
        ("30", 30.0),
        ("0", 0.0),
        ("86400", RETRY_AFTER_MAX_S),
        ("9" * 400, RETRY_AFTER_MAX_S),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("Tue, 14 Nov 9999 22:00:00 GMT", RETRY_AFTER_MAX_S),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
    ],
)
@pytest.mark.parametrize("answer", [apple_side.TOO_MANY_REQUESTS, apple_side.UNAVAILABLE])
async def test_apple_may_ask_for_a_longer_pause_within_bounds(
    answer: Answer, header: str, after_s: float | None
) -> None:
    async with ApnsServer(now=lambda: 1_700_000_000.0) as apple:
        provider = Apns(apple.endpoint, ProviderTokens(apple.signing, lambda: 1_700_000_000.0))
        apple.decide = lambda _: replace(answer, retry_after=header)
        outcome = await provider.push(TOKEN, MESSAGE)
        await provider.close()
    assert isinstance(outcome, RetryLater)
    assert outcome.after_s == after_s


async def test_concurrent_pushes_wait_for_the_same_new_connection() -> None:
    async with ApnsServer() as apple, pushing(apple) as provider:
        await asyncio.gather(*(provider.push(TOKEN, CheckPush()) for _ in range(20)))
        assert apple.connections_made == 1
        first = asyncio.create_task(provider.push(TOKEN, MESSAGE))
        await asyncio.sleep(0)
        first.cancel()
        assert await provider.push(TOKEN, MESSAGE) == Accepted()


async def test_nothing_is_sent_to_a_server_that_apple_did_not_certify() -> None:
    async with ApnsServer() as apple:
        endpoint = replace(apple.endpoint, tls=tls_context())
        provider = Apns(endpoint, ProviderTokens(apple.signing, time.time))
        assert isinstance(await provider.push(TOKEN, MESSAGE), RetryLater)
        endpoint = replace(apple.endpoint, host="127.0.0.1")
        other_name = Apns(endpoint, ProviderTokens(apple.signing, time.time))
        assert isinstance(await other_name.push(TOKEN, MESSAGE), RetryLater)
        assert apple.received == []
        await provider.close()
        await other_name.close()


@pytest.mark.parametrize("token", [b"", b"../../x", b"0a" * 31 + b"\r\n", b"0", b"\xff" * 64, b"0a" * 101])
async def test_a_malformed_device_token_is_invalid_and_not_sent(token: bytes) -> None:
    async with ApnsServer() as apple, pushing(apple) as provider:
        outcome = await provider.push(DeviceToken(PushProvider.APNS_PROD, token), MESSAGE)
        assert outcome == TokenInvalid(InvalidReason.BAD)
        assert apple.connections_made == 0


async def test_the_padding_decides_whether_a_payload_fits() -> None:
    """The reference pads to more than Apple accepts; ours pads to exactly the maximum."""
    async with ApnsServer() as apple, pushing(apple) as provider:
        as_reference = pushed(PushKind.MESSAGE, encode_items([ITEM]), PADDED_SIZE)
        assert isinstance(await provider.push(TOKEN, as_reference), Failed)
        assert apple.received == []
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        one_more = pushed(PushKind.MESSAGE, encode_items([ITEM]), APPLE_PADDED_SIZE + 1)
        assert isinstance(await provider.push(TOKEN, one_more), Failed)
    assert PAYLOAD_MAX - 4 < len(apple.received[0].body) <= PAYLOAD_MAX


async def test_the_server_takes_provider_tokens_of_its_key_only() -> None:
    now = 1_700_000_000.0
    stranger = SigningKey(ec.generate_private_key(ec.SECP256R1()), "ABCDE12345", "5NN7GUYB6T")
    async with ApnsServer(now=lambda: now) as apple:
        signing = apple.signing
        cases = {
            "InvalidProviderToken": [
                (stranger, now),
                (replace(signing, key_id="OTHER"), now),
                (replace(signing, team_id="OTHER"), now),
            ],
            "ExpiredProviderToken": [(signing, now - 3601)],
        }
        for reason, keys in cases.items():
            for key, at in keys:
                provider = Apns(apple.endpoint, ProviderTokens(key, lambda at=at: at))  # type: ignore[misc]
                outcome = await provider.push(TOKEN, MESSAGE)
                assert isinstance(outcome, Failed | RetryLater)
                assert outcome.why == f"403 {reason}"
                await provider.close()


async def test_an_expired_provider_token_is_replaced_by_a_new_one() -> None:
    """Our clock stood still for more than an hour and was then corrected."""
    ours = theirs = 1_700_000_000.0
    async with ApnsServer(now=lambda: theirs) as apple:
        provider = Apns(apple.endpoint, ProviderTokens(apple.signing, lambda: ours))
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        theirs += 4000
        assert await provider.push(TOKEN, MESSAGE) == RetryLater("403 ExpiredProviderToken", 0.0)
        ours = theirs
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        await provider.close()


async def test_a_clock_that_was_wrong_for_a_while_costs_no_more_than_that() -> None:
    """Apple takes no new token for twenty minutes after the last one: the one from before is used again."""
    ours = theirs = 1_700_000_000.0
    async with ApnsServer(now=lambda: theirs) as apple:
        provider = Apns(apple.endpoint, ProviderTokens(apple.signing, lambda: ours))
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        ours -= 7200
        assert await provider.push(TOKEN, MESSAGE) == RetryLater("403 ExpiredProviderToken", 0.0)
        ours = theirs = theirs + 60
        assert await provider.push(TOKEN, MESSAGE) == RetryLater("429 TooManyProviderTokenUpdates")
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        ours = theirs = theirs + 1800
        assert await provider.push(TOKEN, MESSAGE) == Accepted()
        await provider.close()
    assert len({delivered.headers["authorization"] for delivered in apple.accepted}) == 2


async def test_a_provider_token_is_kept_long_enough_for_apple() -> None:
    now = 1_700_000_000.0
    async with ApnsServer(now=lambda: now) as apple:
        provider = Apns(apple.endpoint, ProviderTokens(apple.signing, lambda: now))
        for _ in range(40):
            assert await provider.push(TOKEN, CheckPush()) == Accepted()
            now += 300
        await provider.close()
        assert len({delivered.headers["authorization"] for delivered in apple.received}) == 7


@pytest.mark.claim("NTF-10")
async def test_each_kind_of_token_goes_to_its_own_service_and_null_tokens_nowhere() -> None:
    kinds = (PushProvider.APNS_DEV, PushProvider.APNS_PROD, PushProvider.APNS_TEST)
    async with ApnsServer() as dev, ApnsServer() as prod, ApnsServer() as test:
        servers = dict(zip(kinds, (dev, prod, test), strict=True))
        for server in servers.values():
            server.signing = dev.signing
        endpoints = {kind: server.endpoint for kind, server in servers.items()}
        providers = providers_at(endpoints, ProviderTokens(dev.signing, time.time))
        for kind in (*kinds, PushProvider.APNS_NULL):
            for push in (VERIFICATION, MESSAGE, CheckPush()):
                assert await providers[kind].push(DeviceToken(kind, kind.letters.hex().encode()), push) == (
                    Accepted()
                )
        for kind, server in servers.items():
            assert {delivered.device_token for delivered in server.received} == {kind.letters.hex()}
            assert len(server.accepted) == 3
        for provider in providers.values():
            await provider.close()
    places = apple_endpoints(tls_context())
    assert places.keys() == {PushProvider.APNS_DEV, PushProvider.APNS_PROD}
    assert (places[PushProvider.APNS_DEV].host, places[PushProvider.APNS_DEV].port) == (DEVELOPMENT_HOST, 443)
    assert places[PushProvider.APNS_PROD].host == PRODUCTION_HOST == "api.push.apple.com"
    assert DEVELOPMENT_HOST == "api.sandbox.push.apple.com"


async def test_the_null_provider_accepts_everything() -> None:
    provider = NullProvider()
    assert (
        await provider.push(DeviceToken(PushProvider.APNS_NULL, b"test_ntf_token"), CheckPush()) == Accepted()
    )
    await provider.close()
