"""The device token: what is asked of its router, and what is stored before and after."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Any, cast

import pytest

from blindpost.agent import AgentError, CommandError, PushMode, PushRefusedError
from blindpost.agent.errors import BrokerError
from blindpost.agent.notifications.errors import NtfError
from blindpost.agent.notifications.model import (
    ACTIVE,
    CHECK,
    CONFIRMED,
    EXPIRED,
    REGISTER,
    REGISTERED,
    Action,
    ActionKind,
    Step,
)
from blindpost.agent.notifications.tokens import Tokens
from blindpost.agent.store import ntf_tokens
from blindpost.agent.store.database import AgentStore
from blindpost.client.calls import Call
from blindpost.crypto.boxes import BoxKey
from blindpost.testing import virtual
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.commands import TNEW, TRPL, TVFY, Command
from blindpost.wire.ntf.pushes import VerificationPush
from blindpost.wire.ntf.responses import IDTKN, OK, TKN, Response
from blindpost.wire.ntf.status import TokenState, TokenStatus
from blindpost.wire.smp.errors import STORE, Code
from tests.support.agent.push_desk import (
    CODE,
    NTF,
    ONE,
    OTHER,
    ROUTER_KEY,
    SECRET,
    TOKEN_ID,
    PushDesk,
    away,
    digest,
    refusal,
)
from tests.support.agent.rows import CONFIG, CONN, NOW

INVALID = TokenStatus(TokenState.INVALID)
VERIFY = Action(ActionKind.VERIFY, CODE)
ID = IDTKN(TOKEN_ID, ROUTER_KEY.public)
USUAL: dict[str, Response] = {"TNEW": ID, "TCHK": TKN(ACTIVE)}


def push(code: bytes = CODE, secret: bytes = SECRET) -> VerificationPush:
    return VerificationPush(bytes(24), bytes(BoxKey(secret).seal_padded(bytes(24), code, 64)))


class Router:
    """A notification router that answers as it is told to, or as usual."""

    def __init__(self) -> None:
        self.calls: list[tuple[Server, Call[Command]]] = []
        self.answers: dict[str, deque[Response | AgentError]] = {}

    def will(self, tag: str, *answers: Response | AgentError) -> None:
        self.answers[tag] = deque(answers)

    async def send(self, server: Server, call: Call[Command]) -> Response:
        self.calls.append((server, call))
        await asyncio.sleep(0.001)
        tag = call.command.TAG.decode()
        waiting = self.answers.get(tag)
        answer = waiting.popleft() if waiting else USUAL.get(tag, OK())
        if isinstance(answer, AgentError):
            raise answer
        return answer

    def asked(self) -> list[str]:
        """What it was asked since the last time."""
        tags = [call.command.TAG.decode() for _, call in self.calls]
        self.calls.clear()
        return tags


class Phone(PushDesk):
    """An agent with a connection, and its device token."""

    def __init__(self, store: AgentStore) -> None:
        super().__init__(store)
        self.receives()
        self.router = Router()
        self.tokens = Tokens(self.ground, [NTF], cast(Any, self.router))


@pytest.fixture
def phone(store: AgentStore) -> Phone:
    return Phone(store)


# A new token


@virtual
async def test_a_new_token_is_stored_before_it_is_registered(phone: Phone) -> None:
    phone.router.will("TNEW", away())
    with pytest.raises(BrokerError):
        await phone.tokens.register(ONE, PushMode.PERIODIC)
    first = phone.token
    assert first is not None
    assert (first.device, first.server, first.mode, first.action) == (ONE, NTF, PushMode.PERIODIC, REGISTER)
    assert (first.token_id, first.secret) == (None, None)
    assert await phone.tokens.register(ONE, PushMode.PERIODIC) == REGISTERED
    (_, _), (server, call) = phone.router.calls
    command = TNEW(ONE, first.key.public, first.dh_key.public)
    assert (server, call) == (NTF, Call(command, b"", first.key))
    secret = first.dh_key.agree(ROUTER_KEY.public)
    assert phone.token == replace(first, token_id=TOKEN_ID, secret=secret, status=REGISTERED, action=None)


@virtual
async def test_a_token_that_is_not_registered_yet_may_be_for_another_device(phone: Phone) -> None:
    first = phone.has(token_id=None, secret=None, action=REGISTER)
    assert await phone.tokens.register(OTHER, PushMode.INSTANT) == REGISTERED
    (_, call) = phone.router.calls[0]
    assert call.command == TNEW(OTHER, first.key.public, first.dh_key.public)
    assert phone.token is not None
    assert phone.token.device == OTHER


@virtual
async def test_no_router_to_register_with(phone: Phone) -> None:
    tokens = Tokens(phone.ground, [], cast(Any, phone.router))
    with pytest.raises(CommandError, match="no notification routers"):
        await tokens.register(ONE, PushMode.INSTANT)
    assert (phone.token, phone.router.asked()) == (None, [])


@pytest.mark.parametrize("given", [PushMode.INSTANT, PushMode.PERIODIC])
@virtual
async def test_the_mode_is_the_one_that_was_asked_for_last(phone: Phone, given: PushMode) -> None:
    first = phone.has(mode=PushMode.PERIODIC)
    await phone.tokens.register(ONE, given)
    assert phone.token == replace(first, mode=given)
    assert phone.router.asked() == ["TNEW"]


@virtual
async def test_what_is_to_be_deleted_is_not_registered(phone: Phone) -> None:
    phone.is_used()
    phone.has(status=ACTIVE, action=Action(ActionKind.DELETE))
    assert await phone.tokens.register(ONE, PushMode.PERIODIC) == EXPIRED
    assert phone.token is None
    assert phone.row().step is Step.DELETE
    await asyncio.sleep(1)
    assert (phone.router.asked(), phone.failures()) == (["TDEL"], [])


@pytest.mark.parametrize(("tag", "answer"), [("TNEW", OK()), ("TVFY", TKN(ACTIVE)), ("TCHK", OK())])
@virtual
async def test_an_answer_to_something_else_changes_nothing(phone: Phone, tag: str, answer: Response) -> None:
    before = phone.has(action={"TVFY": VERIFY, "TCHK": CHECK}.get(tag))
    phone.router.will(tag, answer)
    with pytest.raises(AgentError, match="UNEXPECTED"):
        await phone.tokens.register(ONE, PushMode.INSTANT)
    assert phone.token == before


# The code


@virtual
async def test_a_code_is_stored_returned_and_makes_the_token_active(phone: Phone) -> None:
    first = phone.has()
    phone.router.will("TVFY", away())
    with pytest.raises(BrokerError):
        await phone.tokens.verify(push(), ONE)
    assert phone.token == replace(first, status=CONFIRMED, action=VERIFY)
    assert phone.find() is None
    assert await phone.tokens.register(ONE, PushMode.INSTANT) == ACTIVE
    active = replace(first, status=ACTIVE, action=CHECK, returned=digest(CODE))
    assert phone.token == active
    assert phone.router.calls[-1] == (NTF, Call(TVFY(CODE), TOKEN_ID, first.key))
    assert (phone.row().ntf_server, phone.row().step, phone.worked) == (NTF, Step.KEY, [CONN])
    await asyncio.sleep(1)
    assert phone.token == replace(active, period=20)
    assert phone.router.asked() == ["TVFY", "TVFY", "TCRN"]


@virtual
async def test_who_wants_no_push_for_each_message_gets_no_subscriptions(phone: Phone) -> None:
    phone.is_used()
    phone.has(mode=PushMode.PERIODIC, period=20)
    assert await phone.tokens.verify(push(), None) == ACTIVE
    assert phone.row().step is Step.DELETE
    await asyncio.sleep(1)
    assert phone.router.asked() == ["TVFY"], "the period was told before"


@virtual
async def test_who_changes_the_mode_with_the_code_gets_what_was_asked_last(phone: Phone) -> None:
    phone.has(mode=PushMode.INSTANT, status=CONFIRMED, action=VERIFY)
    assert await phone.tokens.register(ONE, PushMode.PERIODIC) == ACTIVE
    assert phone.token is not None
    assert (phone.token.mode, phone.find()) == (PushMode.PERIODIC, None)


@virtual
async def test_a_push_that_is_not_for_this_token_changes_nothing(phone: Phone) -> None:
    with pytest.raises(CommandError, match="register a device token first"):
        await phone.tokens.verify(push(), ONE)
    phone.has(token_id=None, secret=None, action=REGISTER)
    with pytest.raises(CommandError, match="register a device token first"):
        await phone.tokens.verify(push(), ONE)
    before = phone.has(spent=(digest(b"earlier"),))
    with pytest.raises(PushRefusedError, match="not from the router"):
        await phone.tokens.verify(push(secret=bytes(32)), ONE)
    with pytest.raises(PushRefusedError, match="earlier device token"):
        await phone.tokens.verify(push(b"earlier"), ONE)
    with pytest.raises(CommandError, match="another device token"):
        await phone.tokens.verify(push(), OTHER)
    assert (phone.token, phone.router.asked()) == (before, [])


@virtual
async def test_an_active_token_needs_no_code(phone: Phone) -> None:
    before = phone.is_used(spent=(digest(CODE),))
    assert await phone.tokens.verify(push(), ONE) == ACTIVE
    assert (phone.token, phone.router.asked()) == (before, [])


@virtual
async def test_a_wrong_code_is_forgotten_and_the_status_is_what_the_router_says(phone: Phone) -> None:
    first = phone.has(token_id=TOKEN_ID)
    phone.router.will("TVFY", refusal())
    phone.router.will("TCHK", TKN(CONFIRMED))
    with pytest.raises(NtfError, match="AUTH"):
        await phone.tokens.verify(push(), ONE)
    assert phone.token == replace(first, status=CONFIRMED)
    assert phone.router.asked() == ["TVFY", "TCHK"]


@virtual
async def test_a_router_that_lost_the_token_is_given_a_new_one(phone: Phone) -> None:
    first = phone.is_used()
    phone.has(status=CONFIRMED, action=VERIFY)
    phone.router.will("TVFY", refusal())
    phone.router.will("TCHK", refusal())
    with pytest.raises(NtfError, match="AUTH"):
        await phone.tokens.register(ONE, PushMode.PERIODIC)
    assert phone.token is not None
    assert (phone.token.status, phone.token.device) == (REGISTERED, ONE)
    assert phone.token.mode is PushMode.PERIODIC
    assert phone.token.key != first.key
    assert phone.token.dh_key != first.dh_key
    assert phone.find() is None, "it was made with the token that is gone"
    assert phone.router.asked() == ["TVFY", "TCHK", "TNEW"]


@pytest.mark.parametrize("failure", [away(), refusal(Code.QUOTA)], ids=["away", "refuses"])
@pytest.mark.parametrize("tag", ["TVFY", "TCHK"])
@virtual
async def test_a_code_that_nobody_judged_is_returned_again(
    phone: Phone, tag: str, failure: AgentError
) -> None:
    before = phone.has(status=CONFIRMED, action=VERIFY)
    phone.router.will("TVFY", refusal())
    phone.router.will(tag, failure)
    with pytest.raises(type(failure)) as told:
        await phone.tokens.register(ONE, PushMode.INSTANT)
    assert told.value is failure
    assert phone.token == before
    assert phone.router.asked() == ["TVFY", "TCHK"][: 1 if tag == "TVFY" else 2]


# Looking


@pytest.mark.parametrize(
    ("status", "action"), [(ACTIVE, VERIFY), (CONFIRMED, VERIFY), (INVALID, None), (EXPIRED, None)]
)
@virtual
async def test_a_status_that_is_asked_for_is_stored(
    phone: Phone, status: TokenStatus, action: Action | None
) -> None:
    before = phone.has(action=VERIFY)
    phone.router.will("TCHK", TKN(status), TKN(status))
    assert await phone.tokens.check(None) == status
    assert await phone.tokens.check(ONE) == status
    assert phone.token == replace(before, status=status, action=action)
    with pytest.raises(CommandError, match="another device token"):
        await phone.tokens.check(OTHER)
    assert phone.router.asked() == ["TCHK", "TCHK"]


@virtual
async def test_nobody_looks_again_at_a_token_that_is_not_active(phone: Phone) -> None:
    await phone.tokens.look_again()
    before = phone.has()
    await phone.tokens.look_again()
    assert (phone.token, phone.router.asked()) == (before, [])


@pytest.mark.parametrize("status", [ACTIVE, REGISTERED, INVALID])
@virtual
async def test_who_looks_again_notes_what_became_of_the_token(phone: Phone, status: TokenStatus) -> None:
    before = phone.is_used()
    phone.router.will("TCHK", TKN(status))
    await phone.tokens.look_again()
    assert phone.token == replace(before, status=status)
    assert phone.router.asked() == ["TCHK"]


@virtual
async def test_a_refusal_is_reported_once_by_whoever_met_it(phone: Phone) -> None:
    before = phone.is_used()
    phone.router.will("TCHK", refusal(), refusal(Code.LARGE_MSG), refusal(STORE("no room")), away())
    await phone.tokens.look_again()
    await phone.tokens.look_again()
    with pytest.raises(NtfError, match="STORE"):
        await phone.tokens.look_again()
    with pytest.raises(BrokerError):
        await phone.tokens.look_again()
    assert phone.token == before


@virtual
async def test_an_active_token_is_checked_at_each_start(phone: Phone) -> None:
    first = phone.has(status=ACTIVE, action=CHECK, returned=digest(CODE))
    assert await phone.tokens.register(ONE, PushMode.INSTANT) == ACTIVE
    assert phone.find() is not None, "subscriptions that are missing are made"
    await asyncio.sleep(1)
    assert phone.token == replace(first, period=20)
    await phone.tokens.register(ONE, PushMode.INSTANT)
    await asyncio.sleep(1)
    assert phone.router.asked() == ["TCHK", "TCRN", "TCHK", "TCRN"]


@virtual
async def test_a_replacement_that_was_not_heard_of_is_repeated(phone: Phone) -> None:
    first = phone.is_used()
    phone.router.will("TCHK", TKN(REGISTERED))
    assert await phone.tokens.register(ONE, PushMode.INSTANT) == REGISTERED
    assert phone.router.calls[-1] == (NTF, Call(TRPL(ONE), TOKEN_ID, first.key))
    assert phone.token == first.replaced(ONE)
    assert phone.token.spent == (digest(CODE),)


@pytest.mark.parametrize(
    ("status", "returned"),
    [(REGISTERED, None), (CONFIRMED, None), (INVALID, digest(CODE)), (EXPIRED, digest(CODE))],
)
@virtual
async def test_a_token_that_is_not_active_any_more_waits_for_the_program(
    phone: Phone, status: TokenStatus, returned: bytes | None
) -> None:
    first = phone.has(status=ACTIVE, action=CHECK, returned=returned)
    phone.router.will("TCHK", TKN(status))
    assert await phone.tokens.register(ONE, PushMode.INSTANT) == status
    assert phone.token == replace(first, status=status, action=None)
    assert phone.router.asked() == ["TCHK"]


# Another device


@virtual
async def test_another_device_takes_the_token_over(phone: Phone) -> None:
    first = phone.is_used()
    assert await phone.tokens.register(OTHER, PushMode.PERIODIC) == REGISTERED
    assert phone.router.calls == [(NTF, Call(TRPL(OTHER), TOKEN_ID, first.key))]
    assert phone.token == replace(first.replaced(OTHER), mode=PushMode.PERIODIC)
    assert phone.find() is not None


@pytest.mark.parametrize("failure", [away(), refusal(Code.QUOTA), refusal(STORE("no room"))])
@virtual
async def test_a_router_that_does_not_replace_now_knows_the_device_of_before(
    phone: Phone, failure: AgentError
) -> None:
    before = phone.is_used()
    phone.router.will("TRPL", failure)
    with pytest.raises(type(failure)):
        await phone.tokens.register(OTHER, PushMode.INSTANT)
    assert (phone.token, phone.router.asked()) == (before, ["TRPL"])


@pytest.mark.parametrize("answer", [refusal(), ID], ids=["refused", "garbled"])
@virtual
async def test_a_token_that_cannot_be_replaced_is_made_anew(
    phone: Phone, answer: Response | AgentError
) -> None:
    first = phone.is_used()
    phone.router.will("TRPL", answer)
    assert await phone.tokens.register(OTHER, PushMode.PERIODIC) == REGISTERED
    assert phone.token is not None
    assert (phone.token.device, phone.token.mode) == (OTHER, PushMode.PERIODIC)
    assert phone.token.key != first.key
    assert phone.find() is None
    assert phone.router.asked() == ["TRPL", "TNEW"]


@virtual
async def test_a_token_that_is_lost_is_gone_although_there_is_no_router_for_another(phone: Phone) -> None:
    phone.is_used()
    phone.router.will("TRPL", refusal())
    tokens = Tokens(phone.ground, [], cast(Any, phone.router))
    with pytest.raises(CommandError, match="no notification routers"):
        await tokens.register(OTHER, PushMode.INSTANT)
    assert (phone.token, phone.find()) == (None, None)


# The period


@pytest.mark.parametrize(("failure", "told"), [(away(), []), (refusal(), ["NTF AUTH"])])
@virtual
async def test_a_period_that_cannot_be_told_is_told_at_the_next_start(
    phone: Phone, failure: AgentError, told: list[str]
) -> None:
    phone.has(action=VERIFY)
    phone.router.will("TCRN", failure)
    await phone.tokens.register(ONE, PushMode.INSTANT)
    await asyncio.sleep(1)
    assert phone.token is not None
    assert phone.token.period is None
    assert [failed.partition(":")[0] for failed in phone.failures()] == told
    await phone.tokens.resume()
    assert phone.token.period == 20
    assert phone.router.asked() == ["TVFY", "TCRN", "TCRN"]


@pytest.mark.parametrize("left", [None, "not registered"])
@virtual
async def test_no_period_is_told_of_a_token_that_is_gone_by_then(phone: Phone, left: str | None) -> None:
    phone.has(action=VERIFY)
    async with phone.ground.locked("device token"):
        await phone.tokens._go_on(ONE, PushMode.INSTANT)
        if left is None:
            with phone.change() as tx:
                ntf_tokens.delete(tx)
        else:
            phone.has(token_id=None, secret=None, action=REGISTER)
    await asyncio.sleep(1)
    assert (phone.router.asked(), phone.failures()) == (["TVFY"], [])


# After a start


@pytest.mark.parametrize(
    ("action", "tag"), [(REGISTER, "TNEW"), (VERIFY, "TVFY"), (CHECK, None), (None, None)]
)
@virtual
async def test_what_was_begun_is_done_at_the_start(
    phone: Phone, action: Action | None, tag: str | None
) -> None:
    phone.has(token_id=None if action == REGISTER else TOKEN_ID, action=action, period=20)
    await phone.tokens.resume()
    assert phone.router.asked() == ([] if tag is None else [tag])


@virtual
async def test_nothing_is_asked_where_there_is_no_token(phone: Phone) -> None:
    await phone.tokens.resume()
    await asyncio.sleep(1)
    assert (phone.router.asked(), phone.failures()) == ([], [])


@pytest.mark.parametrize("status", [REGISTERED, ACTIVE])
@pytest.mark.parametrize("period", [None, 20])
@virtual
async def test_a_period_that_was_not_told_is_told_at_the_start(
    phone: Phone, status: TokenStatus, period: int | None
) -> None:
    phone.has(status=status, action=CHECK, period=period)
    await phone.tokens.resume()
    assert phone.router.asked() == (["TCRN"] if status == ACTIVE and period is None else [])


@virtual
async def test_a_router_that_is_away_at_the_start_is_asked_until_it_answers(phone: Phone) -> None:
    phone.has(status=CONFIRMED, action=VERIFY, period=20)
    phone.router.will("TVFY", away(), away())
    began = asyncio.get_running_loop().time()
    await phone.tokens.resume()
    assert phone.router.asked() == ["TVFY"] * 3
    assert asyncio.get_running_loop().time() - began > 2
    assert phone.token is not None
    assert phone.token.is_active


@virtual
async def test_a_stored_code_that_is_not_taken_any_more_is_nobodys_failure(phone: Phone) -> None:
    first = phone.has(status=CONFIRMED, action=VERIFY, period=20)
    phone.router.will("TVFY", refusal())
    phone.router.will("TCHK", TKN(REGISTERED))
    await phone.tokens.resume()
    assert phone.token == replace(first, status=REGISTERED, action=None)


@pytest.mark.parametrize(
    ("action", "code"), [(VERIFY, Code.INTERNAL), (VERIFY, Code.QUOTA), (REGISTER, Code.AUTH)]
)
@virtual
async def test_any_other_refusal_at_the_start_is_told(phone: Phone, action: Action, code: Code) -> None:
    phone.has(token_id=None if action == REGISTER else TOKEN_ID, action=action)
    phone.router.will("TVFY", refusal(code))
    phone.router.will("TNEW", refusal(code))
    with pytest.raises(NtfError, match=code.name):
        await phone.tokens.resume()


# Deleting


@virtual
async def test_a_token_that_is_deleted_is_told_to_its_router_until_it_answers(phone: Phone) -> None:
    with pytest.raises(CommandError, match="no device token to delete"):
        await phone.tokens.delete()
    first = phone.is_used()
    phone.router.will("TDEL", away(), away())
    await phone.tokens.delete()
    assert phone.token is None
    assert phone.row().step is Step.DELETE
    assert [one.token_id for one in ntf_tokens.doomed(phone.store.reading)] == [TOKEN_ID]
    await asyncio.sleep(0.1)
    assert phone.router.asked() == ["TDEL"]
    await asyncio.sleep(600)
    assert [(server, call.entity_id, call.key) for server, call in phone.router.calls] == [
        (NTF, TOKEN_ID, first.key)
    ] * 2
    assert ntf_tokens.doomed(phone.store.reading) == []
    assert phone.failures() == []


@virtual
async def test_a_router_that_was_not_told_is_told_at_the_next_start(phone: Phone) -> None:
    token = phone.has()
    with phone.change() as tx:
        ntf_tokens.doom(tx, token, NOW)
        ntf_tokens.delete(tx)
    await phone.tokens.resume()
    await asyncio.sleep(1)
    assert phone.router.asked() == ["TDEL"]


@virtual
async def test_a_router_that_does_not_know_a_deleted_token_is_content(phone: Phone) -> None:
    phone.has()
    phone.router.will("TDEL", refusal())
    await phone.tokens.delete()
    await asyncio.sleep(600)
    assert (phone.router.asked(), ntf_tokens.doomed(phone.store.reading)) == (["TDEL"], [])


@pytest.mark.parametrize("late_s", [0, 1])
@virtual
async def test_a_router_that_was_away_for_weeks_is_given_up(phone: Phone, late_s: int) -> None:
    token = phone.has()
    with phone.change() as tx:
        ntf_tokens.doom(tx, token, NOW - CONFIG.retention.remembered_s - late_s)
    began = asyncio.get_running_loop().time()
    await phone.tokens.forget_doomed()
    assert asyncio.get_running_loop().time() - began < 1
    assert phone.router.asked() == ([] if late_s else ["TDEL"])
    assert ntf_tokens.doomed(phone.store.reading) == []
