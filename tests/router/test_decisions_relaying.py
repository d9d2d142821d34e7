"""What a proxy asks of relays, and what it makes of their answers, on rows in memory."""

from __future__ import annotations

import pytest

from blindpost.router.config import RouterRules
from blindpost.router.meters import Meter
from blindpost.router.relaying import relay_answered
from blindpost.router.turn import Forward, OpenRelay
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import PFWD, PRXY
from blindpost.wire.smp.errors import BROKER, PROTOCOL, PROXY, BrokerCode, Code, ProxyCode
from blindpost.wire.smp.responses import ERR, OK, PRES, Response
from tests.support.router.in_memory import Desk, asked
from tests.support.router.routers import new_key

RELAY = Server((Host("relay.example"),), "5223", b"r" * 32)
SESSION = b"session id"
FORWARDED = PFWD(9, new_key(Algorithm.X25519).public, b"sealed")


@pytest.mark.parametrize(
    ("password", "offered"), [(None, None), (None, b"any"), (b"word", b"word")], ids=["none", "any", "right"]
)
def test_a_session_with_a_relay_is_opened(password: bytes | None, offered: bytes | None) -> None:
    desk = Desk(rules=RouterRules(password=password))
    client = desk.client(None)
    assert desk.say(client, asked(PRXY(RELAY, offered))) == []
    assert desk.turn.effects == [OpenRelay(client, b"corr", RELAY)]
    assert desk.counted == {}


@pytest.mark.parametrize(
    ("rules", "offered"),
    [
        (RouterRules(proxy=False), None),
        (RouterRules(proxy=False, password=b"word"), b"word"),
        (RouterRules(password=b"word"), None),
        (RouterRules(password=b"word"), b"other"),
    ],
    ids=["no proxy", "no proxy, password", "no password", "another password"],
)
def test_who_may_not_use_the_proxy(rules: RouterRules, offered: bytes | None) -> None:
    desk = Desk(rules=rules)
    answered = desk.say(desk.client(None), asked(PRXY(RELAY, offered)))
    assert answered == [ERR(PROXY(ProxyCode.BASIC_AUTH))]
    assert desk.turn.effects == []


def test_what_is_for_a_relay_is_handed_on() -> None:
    desk = Desk()
    client = desk.client(None)
    assert desk.say(client, asked(FORWARDED, SESSION)) == []
    assert desk.turn.effects == [Forward(client, b"corr", SESSION, FORWARDED)]


@pytest.mark.parametrize(
    ("response", "meter"),
    [(OK(), Meter.RELAYS_OPENED), (ERR(PROXY(ProxyCode.NO_SESSION)), Meter.RELAYS_FAILED)],
    ids=["opened", "failed"],
)
def test_a_session_is_open_or_not(response: Response, meter: Meter) -> None:
    desk = Desk()
    client = desk.client(None)
    effect = OpenRelay(client, b"corr", RELAY)
    desk.decide(lambda turn: relay_answered(turn, effect, response))
    assert desk.counted == {Meter.RELAYS: 1, meter: 1}
    ((_, *said),) = desk.turn.outbox
    assert said == [b"corr", b"", response]


@pytest.mark.parametrize(
    ("response", "meter"),
    [
        (PRES(b"sealed"), Meter.RELAYED_ANSWERED),
        (ERR(PROXY(PROTOCOL(Code.AUTH))), Meter.RELAYED_ANSWERED),
        (ERR(PROXY(BROKER(BrokerCode.TIMEOUT))), Meter.RELAYED_FAILED),
        (ERR(PROXY(ProxyCode.NO_SESSION)), Meter.RELAYED_FAILED),
        (ERR(Code.INTERNAL), Meter.RELAYED_FAILED),
    ],
    ids=["answer", "its error", "no answer", "no session", "ours"],
)
def test_a_relay_answers_or_not(response: Response, meter: Meter) -> None:
    desk = Desk()
    client = desk.client(None)
    effect = Forward(client, b"corr", SESSION, FORWARDED)
    desk.decide(lambda turn: relay_answered(turn, effect, response))
    assert desk.counted == {Meter.RELAYED: 1, meter: 1}
    ((client_id, *said),) = desk.turn.outbox
    assert (client_id, said) == (client.client_id, [b"corr", SESSION, response])
