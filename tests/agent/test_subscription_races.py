"""Replies that come out of order, late, or from a closed session, from a scripted router."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import QueueState, SessionMode
from blindpost.client.calls import Failure, Late
from blindpost.client.errors import RefusedError, ResponseTimeoutError, UnexpectedResponseError
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.transport.errors import ClosedError
from blindpost.wire.primitives import encode
from blindpost.wire.smp.commands import ACK, SUB
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.smp.messages import Message, write_message
from blindpost.wire.smp.responses import DELD, END, ERR, MSG, OK, SOK, Response
from blindpost.wire.smp.transmissions import Request
from tests.support.agent.network import SECRET, USER, cut, staged
from tests.support.client.scripted_router import settle, virtual

_PADDED_SIZE = 16104


def a_message(number: int, body: bytes = b"hello") -> MSG:
    msg_id = number.to_bytes(24, "big")
    content = encode(Message(0, False, body), write_message)
    return MSG(msg_id, BoxKey(SECRET).seal_padded(nonce_of(msg_id), content, _PADDED_SIZE))


@pytest.mark.claim("SUB-37")
@virtual
async def test_each_queue_gets_its_own_reply(tmp_path: Path) -> None:
    answers: dict[bytes, Response] = {}

    def answer(request: Request) -> Response | None:
        return answers.get(request.entity_id) if isinstance(request.command, SUB) else OK()

    async with staged(tmp_path, 6, answer) as stage:
        agent, made = stage.agent, stage.made
        replies: list[Response] = [OK(), SOK(None), a_message(1), ERR(Code.AUTH), END(), ERR(STORE("full"))]
        answers.update(zip((queue.rcv_id for queue in made), replies, strict=True))
        refs = agent.insert(made)
        results = await agent.subs.subscribe(refs)

        def failure(number: int) -> Failure | None:
            return results[made[number].rcv_id]

        assert [failure(number) for number in range(3)] == [None] * 3
        refused, strange, temporary = failure(3), failure(4), failure(5)
        assert isinstance(refused, RefusedError)
        assert refused.error is Code.AUTH
        assert isinstance(strange, UnexpectedResponseError)
        assert isinstance(temporary, RefusedError)
        assert agent.messages == [(made[2].rcv_id, b"hello")]
        states = [agent.subs.state(queue) for queue in refs]
        active = QueueState.ACTIVE
        assert states == [active, active, active, None, None, QueueState.PENDING]
        assert agent.told.of("UP") == [tuple(queue.conn_id for queue in refs[:3])]
        ((first, _), (second, _)) = agent.told.of("ERRS")[0]
        assert [first, second] == [refs[3].conn_id, refs[4].conn_id]
        answers[made[5].rcv_id] = SOK(None)
        await agent.told.until(lambda: agent.told.of("UP")[1:] == [(refs[5].conn_id,)])
        assert len(agent.told.of("ERRS")) == 1


@pytest.mark.claim("SUB-51")
@virtual
async def test_a_reply_of_an_old_session_raises_no_event_on_either_path(tmp_path: Path) -> None:
    async with staged(tmp_path, 2) as stage:
        agent, router = stage.agent, stage.router
        refs = agent.insert(stage.made)
        subscribing = asyncio.create_task(agent.subs.subscribe(refs))
        first, second = await stage.until_subs(2)
        old = agent.session(refs[0].server)
        await asyncio.sleep(31)
        results = await subscribing
        assert all(isinstance(failure, ResponseTimeoutError) for failure in results.values())
        await settle()
        old.client._events.put(Late(first.command, first.entity_id, SOK(None)))
        agent.sessions.retire(old.key)
        await stage.until_subs(4)
        assert agent.session(refs[0].server) is not old
        await settle()
        assert agent.told.words == []
        work = agent.work(refs[0].server)
        for queue in stage.made:
            work.late(old, queue.rcv_id, SOK(None))
        assert work.table.subscribed(old.session_id, [(second.entity_id, refs[1].conn_id, None)]) == ()
        assert [agent.subs.state(queue) for queue in refs] == [QueueState.PENDING] * 2
        assert agent.told.words == []
        for request in router.requests[-2:]:
            router.reply(request, SOK(None))
        await agent.told.until(lambda: agent.told.words == ["UP"])
        await old.client.close()


@pytest.mark.claim("SUB-44")
@virtual
async def test_a_reply_after_its_timeout_still_counts_once(tmp_path: Path) -> None:
    async with staged(tmp_path, 3) as stage:
        agent, router = stage.agent, stage.router
        refs = agent.insert(stage.made)
        subscribing = asyncio.create_task(agent.subs.subscribe(refs))
        punctual, late, later = await stage.until_subs(3)
        router.reply(punctual, SOK(None))
        await subscribing
        assert agent.told.conns("UP") == {refs[0].conn_id: 1}
        replies: list[tuple[Request, Response]] = [(late, SOK(None)), (later, a_message(7))]
        router.say(*((request.corr_id, request.entity_id, reply) for request, reply in replies))
        await agent.told.until(lambda: len(agent.told.conns("UP")) == 3)
        await settle()
        assert agent.told.of("UP")[1:] == [(refs[1].conn_id, refs[2].conn_id)]
        assert [agent.subs.state(queue) for queue in refs] == [QueueState.ACTIVE] * 3
        assert agent.messages == [(refs[2].rcv_id, b"hello")]
        assert len(router.sessions) == 1
        assert set(agent.told.conns("UP").values()) == {1}


@pytest.mark.claim("SUB-58")
@virtual
async def test_a_message_in_a_reply_of_a_lost_session_is_neither_lost_nor_acknowledged(
    tmp_path: Path,
) -> None:
    """The session is replaced between the reply and its processing; the new one delivers the message."""
    async with staged(tmp_path, 1) as stage:
        agent, router = stage.agent, stage.router
        (ref,) = agent.insert(stage.made)
        subscribing = asyncio.create_task(agent.subs.subscribe([ref]))
        (request,) = await stage.until_subs(1)
        old = agent.session(ref.server)
        router.reply(request, a_message(1))
        answered = old.client._dispatch

        def dispatch(corr_id: bytes, entity_id: bytes, content: Any) -> None:
            answered(corr_id, entity_id, content)
            agent.sessions.retire(old.key)

        old.client._dispatch = dispatch  # type: ignore[method-assign]
        (failure,) = (await subscribing).values()
        assert isinstance(failure, ClosedError)
        await stage.until_subs(2)
        assert agent.messages == []
        assert not any(isinstance(request.command, ACK) for request in router.requests)
        router.answer = lambda request: OK() if isinstance(request.command, ACK) else None
        router.reply(router.requests[-1], a_message(1))
        await agent.told.until(lambda: agent.told.of("UP") == [(ref.conn_id,)])
        await router.until(lambda: any(isinstance(request.command, ACK) for request in router.requests))
        assert agent.messages == [(ref.rcv_id, b"hello")]
        assert agent.repeated == 0
        await old.client.close()


@virtual
async def test_end_of_an_old_session_is_ignored(tmp_path: Path) -> None:
    async with staged(tmp_path, 1, lambda request: SOK(None)) as stage:
        agent = stage.agent
        (ref,) = agent.insert(stage.made)
        await agent.subs.subscribe([ref])
        old = agent.session(ref.server)
        agent.sessions.retire(old.key)
        stage.router.push(ref.rcv_id, END())
        await asyncio.sleep(1)
        assert agent.told.of("END") == []
        await old.client.close()


@virtual
async def test_a_queue_that_another_client_took_is_asked_for_once_more(tmp_path: Path) -> None:
    """What a former process wrote may arrive late and take what nobody else wants."""
    async with staged(tmp_path, 2, lambda request: SOK(None)) as stage:
        agent, router = stage.agent, stage.router
        refs = agent.insert(stage.made)
        await agent.subs.subscribe(refs)
        asked = len(router.requests)
        for state in (QueueState.ACTIVE, None):
            router.push(refs[0].rcv_id, END())
            await asyncio.sleep(10)
            assert agent.subs.state(refs[0]) is None
            await asyncio.sleep(3600)
            assert agent.subs.state(refs[0]) is state
        again = [request for request in router.requests[asked:] if isinstance(request.command, SUB)]
        assert [request.entity_id for request in again] == [refs[0].rcv_id]
        assert agent.told.words == ["UP", "END", "UP", "END"]


OTHERS = {
    "another connection's": (SessionMode.ENTITY, USER),
    "another user's": (SessionMode.SESSION, 2),
}


@pytest.mark.parametrize(("mode", "user_id"), OTHERS.values(), ids=OTHERS)
@virtual
async def test_what_is_said_of_a_queue_on_the_session_of_others_changes_nothing(
    tmp_path: Path, mode: SessionMode, user_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A router could find out whose queues are one program's, by whether they are asked for there."""
    async with staged(tmp_path, 2, lambda request: SOK(None), mode=mode) as stage:
        agent, router = stage.agent, stage.router
        with agent.store.transaction() as db:
            db.sql.execute("INSERT INTO users (user_id) VALUES (2)")
        (theirs,), (ours,) = agent.insert(stage.made[:1], user_id=user_id), agent.insert(stage.made[1:])
        for ref in (theirs, ours):
            await agent.subs.subscribe([ref])
        assert len(router.sessions) == 2
        asked, told = len(router.requests), list(agent.told.log)
        for event in (END(), DELD(), ERR(Code.AUTH), END()):
            router.push(theirs.rcv_id, event)
        await asyncio.sleep(500)
        assert len(router.requests) == asked
        assert agent.told.log == told
        assert [agent.subs.state(ref) for ref in (theirs, ours)] == [QueueState.ACTIVE] * 2
        assert caplog.text.count("speaks of a queue on a session that is not the queue's") == 1
        for event in (END(), DELD(), ERR(Code.AUTH)):
            router.push(ours.rcv_id, event)
        await asyncio.sleep(1)
        assert [word for word, _ in agent.told.log[len(told) :]] == ["END", "DELD", "ERRS"]


@virtual
async def test_after_only_temporary_errors_the_next_attempt_uses_a_new_connection(
    tmp_path: Path,
) -> None:
    failing = True

    def answer(request: Request) -> Response | None:
        return ERR(STORE("busy")) if failing else SOK(None)

    async with staged(tmp_path, 2, answer) as stage:
        agent = stage.agent
        refs = agent.insert(stage.made)
        await agent.subs.subscribe(refs)
        await asyncio.sleep(5)
        assert len(stage.router.sessions) >= 2
        failing = False
        await agent.told.until(lambda: agent.told.words == ["UP"])
        cut(agent.session(refs[0].server))
        await agent.told.until(lambda: agent.told.words == ["UP", "DOWN", "UP"])


@virtual
async def test_a_queue_that_was_deleted_here_is_not_asked_for_again(tmp_path: Path) -> None:
    async with staged(tmp_path, 2, lambda request: SOK(None)) as stage:
        agent = stage.agent
        refs = agent.insert(stage.made)
        await agent.subs.subscribe(refs)
        with agent.store.transaction() as db:
            db.sql.execute("UPDATE rcv_queues SET deleted = 1 WHERE rcv_id = ?", (refs[0].rcv_id,))
        cut(agent.session(refs[0].server))
        await agent.told.until(lambda: agent.told.of("UP")[1:] == [(refs[1].conn_id,)])
        await settle()
        assert not agent.work(refs[0].server).is_working
        assert agent.subs.state(replace(refs[0])) is None
