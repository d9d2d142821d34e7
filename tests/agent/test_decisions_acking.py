"""ACK to the router of a message, on the rows of a store: what its answer means, and what goes then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from blindpost.agent import AgentError, Received
from blindpost.agent.messages.acking import ACK_TAG, AckCommand, Acks, _write_ack, acknowledge
from blindpost.agent.model import RcvQueue, RcvSwitch
from blindpost.agent.store import commands, messages, queues
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.store.database import AgentStore
from blindpost.client.errors import RefusedError, ResponseTimeoutError
from blindpost.testing.clock import run_virtual
from blindpost.transport.errors import ClosedHereError
from blindpost.wire.addresses import Server
from blindpost.wire.agent.messages import AMsg
from blindpost.wire.primitives import encode
from blindpost.wire.smp.commands import ACK
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import MSG, OK
from tests.support.agent.desk import Desk
from tests.support.agent.rows import CONN, ROUTER, rcv_queue

NO_MSG, AUTH = RefusedError(Code.NO_MSG), RefusedError(Code.AUTH)


class Sessions:
    """One session, whose router has one answer."""

    def __init__(self) -> None:
        self.answer: Any = OK()
        self.connects = True
        self.takes_s = 0.25
        self.asked: list[bytes] = []
        self.handed: list[tuple[bytes, MSG]] = []
        self.client = self

    def key(self, user_id: int, server: Server, entity: str) -> tuple[int, Server, str]:
        return user_id, server, entity

    async def session(self, key: tuple[int, Server, str]) -> Any:
        assert key == (1, ROUTER, CONN)
        if not self.connects:
            raise ClosedHereError("it is away")
        await asyncio.sleep(1)
        return SimpleNamespace(client=self)

    async def send_many(self, calls: Sequence[Any]) -> list[Any]:
        (call,) = calls
        assert (call.entity_id, call.key) == (rcv_queue().rcv_id, rcv_queue().key)
        assert isinstance(call.command, ACK)
        self.asked.append(call.command.msg_id)
        await asyncio.sleep(self.takes_s)
        return [self.answer]

    async def hand_over(self, session: Any, some: list[tuple[bytes, MSG]]) -> None:
        assert session.client is self
        self.handed += some


class Acking(Desk):
    """A connection with one message that the program has taken."""

    def __init__(self, store: AgentStore) -> None:
        super().__init__(store)
        self.sessions, self.known = Sessions(), cast(list[bytes], [])
        self.answers: list[tuple[str, object, float]] = []
        self._acks = Acks(self.ground, cast(Any, self.sessions), cast(Any, self), self.answered)
        self.receives()
        self.take(self.said(AMsg(b"first")))
        (event,) = self.events
        assert isinstance(event, Received)
        self.number = event.msg.id
        with self.change() as tx:
            acknowledge(tx, CONN, self.number, None)

    def answered(self, conn_id: str, response: object, taken_s: float) -> None:
        """What looks for flows is told."""
        self.answers.append((conn_id, response, taken_s))

    def acknowledged(self, queue: RcvQueue, broker_id: bytes) -> None:
        """What reads notifications is told."""
        assert queue.number == 1
        self.known.append(broker_id)

    def command(self) -> StoredCommand:
        found = commands.next_command(self.store.reading, CONN, ROUTER)
        assert found is not None
        return found

    def run(self) -> None:
        async def main() -> None:
            await self._acks.run_ack(self.command())
            await asyncio.sleep(1)
            assert self.store._group is None, "after a moment it is stored"

        run_virtual(main())

    def fails(self) -> AgentError:
        with pytest.raises(AgentError) as raised:
            self.run()
        assert (self.is_done, self.known) == (False, [])
        return raised.value

    @property
    def is_done(self) -> bool:
        """Whether the command and the message are gone, both or neither."""
        gone = messages.find_rcv(self.store.reading, CONN, self.number) is None
        assert gone == (commands.next_command(self.store.reading, CONN, ROUTER) is None)
        return gone


@pytest.fixture
def acking(store: AgentStore) -> Acking:
    return Acking(store)


@pytest.mark.parametrize("answer", [OK(), NO_MSG], ids=["taken", "gone before"])
def test_the_router_is_told(acking: Acking, answer: Any) -> None:
    acking.sessions.answer = answer
    acking.run()
    assert (acking.sessions.asked, acking.known) == ([b"broker 1"], [b"broker 1"])
    assert (acking.sessions.handed, acking.is_done) == ([], True)


def test_the_answer_is_the_next_message(acking: Acking) -> None:
    acking.sessions.answer = MSG(b"next", b"body")
    acking.run()
    assert acking.sessions.handed == [(rcv_queue().rcv_id, MSG(b"next", b"body"))]
    assert acking.answers == [(CONN, MSG(b"next", b"body"), acking.sessions.takes_s)]
    assert acking.is_done


def test_a_router_that_is_away(acking: Acking) -> None:
    acking.sessions.connects = False
    assert acking.fails().retried
    acking.sessions.connects = True
    acking.run()
    assert acking.is_done


@pytest.mark.parametrize(
    ("answer", "retried"), [(ResponseTimeoutError(), True), (ClosedHereError("gone"), True), (AUTH, False)]
)
def test_a_router_that_does_not_take_it(acking: Acking, answer: Any, retried: bool) -> None:
    acking.sessions.answer = answer
    assert acking.fails().retried is retried
    assert acking.sessions.handed == []


def leaves(acking: Acking, how: str) -> None:
    with acking.change() as tx:
        match how:
            case "moved":
                queues.set_switch(tx, acking.queue, RcvSwitch.RECEIVED_MESSAGE, 1)
            case "moving":
                queues.set_switch(tx, acking.queue, RcvSwitch.SENDING_QUSE, 1)
            case "deleting":
                queues.set_rcv_deleted(tx, acking.queue)


@pytest.mark.parametrize(
    ("how", "code", "done"),
    [
        ("moved", Code.AUTH, True),
        ("deleting", Code.AUTH, True),
        ("moving", Code.AUTH, False),
        ("moved", Code.INTERNAL, False),
        ("deleting", Code.INTERNAL, False),
    ],
)
def test_a_queue_that_we_left(acking: Acking, how: str, code: Code, done: bool) -> None:
    """Its router has no such queue any more: it was deleted with its messages."""
    acking.sessions.answer = RefusedError(code)
    leaves(acking, how)
    if done:
        acking.run()
        assert acking.is_done
    else:
        acking.fails()


def test_a_queue_that_goes_while_its_router_is_asked(acking: Acking, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(calls: Sequence[Any]) -> list[Any]:
        with acking.change() as tx:
            queues.delete(tx, acking.queue)
        return [AUTH]

    monkeypatch.setattr(acking.sessions, "send_many", gone)
    acking.run()
    assert acking.is_done


def test_a_queue_that_is_gone_is_not_asked(acking: Acking) -> None:
    with acking.change() as tx:
        queues.delete(tx, acking.queue)
    acking.run()
    assert (acking.sessions.asked, acking.known, acking.is_done) == ([], [], True)


def test_a_command_of_an_older_program_names_the_message_itself(acking: Acking) -> None:
    acking.run()
    acking.take(acking.said(AMsg(b"second")))
    event = acking.events[-1]
    assert isinstance(event, Received)
    acking.number = event.msg.id
    content = encode(AckCommand(1, b"broker 2", acking.number), _write_ack)
    with acking.change() as tx:
        tx.command(CONN, ROUTER, ACK_TAG, content)
    acking.run()
    assert (acking.sessions.asked, acking.is_done) == ([b"broker 1", b"broker 2"], True)
