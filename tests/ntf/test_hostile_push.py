"""Hostile push services: what they send is bounded, they are paused, and others are served."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from blindpost.client.outbound import Outbound
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.webpush import new_private_key
from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater
from blindpost.ntf.push.rests import Rests
from blindpost.ntf.push.vapid import VapidKey, VapidTokens
from blindpost.ntf.push.webpush import Way, WebPush, web_tls
from blindpost.testing.webpush import PushService
from blindpost.transport import guarded
from blindpost.wire.http2_allowance import ALLOWED_MAX, EARNED, Allowance
from blindpost.wire.ntf.pushes import MessagePush
from blindpost.wire.ntf.tokens import DeviceToken
from tests.support.ntf.hostile_push import (
    ATTACKS,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    OK_HEAD,
    PING,
    READY,
    Hostile,
    frame,
    hostile_service,
)

PUSH = MessagePush(bytes(24), bytes(2928))
SENT_MAX = 8 << 20
"""What a flood can send before it is cut off: system buffers, mostly."""
OUTCOMES: dict[str, PushOutcome] = {
    "endless body": Accepted(),
    "endless chunks": Accepted(),
    "one answer per connection": Accepted(),
    "goaway before each answer": Accepted(),
    "interim answer": Accepted(),
    "redirect": Failed("the push service answered 307"),
}
"""Those whose answer itself is valid; all others must be retried."""
ONE_BY_ONE = ("one answer per connection", "goaway before each answer")
OVERDUE = frozenset(
    {"no answer", "slow answer", "reset stream", "huge header list", "no room", "redirect", "interim answer"}
)
"""Those that end only when an answer is overdue; the others end long before."""


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_hostile_push_service_is_cut_off_and_left_alone(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindpost.ntf.push.rests._now", lambda: 0.0)  # no rest ends while this runs
    pem, outbound = tmp_path / "push.pem", Outbound(("127.0.0.0/8",))
    tokens = VapidTokens([VapidKey(new_private_key(system_entropy))], "mailto:a@example.org", time.time)
    async with (
        PushService(certificate=pem) as good,
        hostile_service(attack, pem, elsewhere=good.port) as bad,
    ):
        patience_s = 1.5 if attack in OVERDUE else 60.0
        way = Way(outbound.network, outbound.gate, good.tls(web_tls()), response_timeout_s=patience_s)
        provider = WebPush(way, tokens)
        victim = DeviceToken.web(good.subscribe().subscription)
        async with asyncio.timeout(30):
            attacked = [asyncio.create_task(provider.push(bad.device(), PUSH)) for _ in range(8)]
            assert await provider.push(victim, PUSH) == Accepted()
            outcomes = await asyncio.gather(*attacked)
        wanted = OUTCOMES.get(attack)
        for outcome in outcomes:
            assert isinstance(outcome, RetryLater) or outcome == wanted
        assert wanted is None or wanted in outcomes
        assert attack not in ONE_BY_ONE or set(map(type, outcomes)) == {Accepted}
        assert bad.sent < SENT_MAX
        before = bad.connections
        again = await provider.push(bad.device(), PUSH)
        if wanted is None:
            assert isinstance(again, RetryLater)
            assert bad.connections == before, "it is left alone for a while"
        assert await provider.push(victim, PUSH) == Accepted()
        assert good.connections == 1, "nothing led here but our own pushes"
        await asyncio.wait_for(provider.close(), 5)


async def test_a_push_is_made_once_although_the_service_leaves_before_it_answers(tmp_path: Path) -> None:
    pem, outbound = tmp_path / "push.pem", Outbound(("127.0.0.0/8",))
    tokens = VapidTokens([VapidKey(new_private_key(system_entropy))], "mailto:a@example.org", time.time)
    async with (
        PushService(certificate=pem) as other,
        hostile_service("goaway before each answer", pem) as service,
    ):
        provider = WebPush(Way(outbound.network, outbound.gate, other.tls(web_tls())), tokens)
        for number in (1, 2, 3):
            assert await provider.push(service.device(), PUSH) == Accepted()
            assert (service.connections, service.asked) == (number, number)
        await provider.close()


async def test_a_service_that_does_not_say_goodbye_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can be one: a router would end, or hand over, half a minute later."""

    async def deaf(_hostile: Hostile, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(READY)
        await reader.readuntil(b"\x01\x04\x00\x00\x00\x01")
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one of TLS
        writer.write(frame(HEADERS, END_HEADERS | END_STREAM, 1, OK_HEAD))
        try:
            await asyncio.Event().wait()
        finally:
            writer.transport.abort()

    monkeypatch.setitem(ATTACKS, "deaf", deaf)
    monkeypatch.setattr(guarded, "GOODBYE_S", 0.1)
    pem, outbound = tmp_path / "push.pem", Outbound(("127.0.0.0/8",))
    tokens = VapidTokens([VapidKey(new_private_key(system_entropy))], "mailto:a@example.org", time.time)
    async with PushService(certificate=pem) as good, hostile_service("deaf", pem) as bad:
        provider = WebPush(Way(outbound.network, outbound.gate, good.tls(web_tls())), tokens)
        assert await provider.push(bad.device(), PUSH) == Accepted()
        await asyncio.wait_for(provider.close(), 5)


def test_frames_are_counted_wherever_they_are_split() -> None:
    pings = frame(PING, 0, 0, bytes(8))
    for size in (1, 3, 10, 17, 4096):
        allowance, sent = Allowance(), pings * (2 * ALLOWED_MAX)
        taken = next(
            place for place in range(0, len(sent), size) if not allowance.spend(sent[place : place + size])
        )
        assert ALLOWED_MAX * 0.95 <= taken / len(pings) + size / len(pings) <= ALLOWED_MAX + 4096 / len(pings)
    allowance, long = Allowance(), frame(DATA, 0, 1, bytes(16_000))
    assert sum(allowance.spend(long) for _ in range(1000)) == pytest.approx(ALLOWED_MAX / 16.6, rel=0.1)
    allowance = Allowance()
    assert allowance.spend(pings * (ALLOWED_MAX - 50))
    allowance.earn()
    assert allowance.spend(pings * (EARNED // 2))
    assert not allowance.spend(pings * 2 * EARNED)


async def test_a_service_rests_longer_each_time_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("blindpost.ntf.push.rests._now", lambda: now)
    rests, place = Rests(), ("push.example.org", 443)
    pauses = []
    for _ in range(9):
        for _ in range(8):
            rests.failed(place)
        began = now
        while rests.is_resting(place):
            now += 0.25
        pauses.append(now - began)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    rests.answered(place)
    rests.failed(place)
    now += 0.5
    assert not rests.is_resting(place)
