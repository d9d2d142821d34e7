"""One caller's connection: the service's side of the RPC protocol over any byte stream.

A Finish after the Return says that the caller has taken the answer; this is what a fetch waits for
before its payloads leave the queue. A Finish before the Return cancels the call.

A caller may use the id of a question again once it is finished. So the decisions know questions by
numbers, each used once: what is decided late about one never concerns another.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from blindpost.ds.checks import Refusal
from blindpost.ds.model import LARGE_BYTES, MESSAGE_BYTES_MAX
from blindpost.ds.plan import Called, Canceled, Event, Finished
from blindpost.ds.state import Peer
from blindpost.ds.turn import Answer, Taken
from blindpost.serving.connections import WEIGHED_BYTES, Connection
from blindpost.wire.capnp.framing import Framer
from blindpost.wire.capnp.node import NODE_SERVICE, Enqueue, read_request, write_result
from blindpost.wire.capnp.rpc import (
    BOOTSTRAP_CAPABILITY,
    Abort,
    Bootstrap,
    Call,
    ExceptionType,
    Finish,
    Other,
    Release,
    RpcMessage,
    read_rpc,
    write_abort,
    write_bootstrap_results,
    write_canceled,
    write_exception,
    write_results,
)
from blindpost.wire.capnp.structs import Message
from blindpost.wire.errors import WireError

GREETING_S = 30.0
"""A caller that has not asked anything by then is disconnected."""
MESSAGE_S = 120.0
"""How long one message may take to arrive: for the largest, 70 KB a second."""
QUESTIONS_MAX = 4096
"""The limit on unfinished calls of one connection."""
MESSAGES_AT_ONCE = 32
"""How many messages of one connection are handled before others have their turn; one may be 16 bytes long."""
IDLE_MESSAGES_MAX = 256
"""How many messages that ask for nothing a caller may send besides one for each call."""
OUTBOX_BYTES_MAX = 32 << 20
"""A caller that lets this much pile up is disconnected; nothing it did not take is lost."""
PIECE_BYTES = 128 << 10
"""How much of a long answer is encrypted before yielding to the event loop."""


class Stream(Protocol):
    """What a connection needs from TLS or QUIC."""

    @property
    def unsent(self) -> int:
        """Bytes written and not sent yet."""

    def write(self, data: bytes | memoryview) -> None: ...

    def close(self) -> None:
        """Once what was written before is sent."""

    def abort(self) -> None:
        """Now, whatever was written before."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _State(Enum):
    PENDING = "pending"
    CANCELED = "canceled"
    RETURNED = "returned"
    HELD = "held"
    """Returned, and its Finish removes payloads."""
    BOOTSTRAP = "bootstrap"


@dataclass(slots=True)
class _Question:
    """What a caller asked and did not finish."""

    state: _State
    number: int = 0
    """By which the decisions know it, if they do."""


class DsConnection(Connection):
    """One caller's connection, whatever it comes over."""

    def __init__(
        self,
        stream: Stream,
        peer: Peer,
        put: Callable[[DsConnection, Event, int], None],
        broken: Callable[[], None],
        weigh: Callable[[DsConnection], None] = lambda connection: None,
        clock: Callable[[], float] = time.monotonic,
        account: Hashable = None,
    ) -> None:
        super().__init__(peer.number, account)
        self.peer = peer
        self._weigh = weigh
        self._clock = clock
        self._asked = False
        self._since = self._clock()
        self._stream = stream
        self._put = put
        self._broken = broken
        self._framer = Framer(MESSAGE_BYTES_MAX)
        self._questions: dict[int, _Question] = {}
        """By their ids."""
        self._ids: dict[int, int] = {}
        """The ids of those that are not answered yet, by number."""
        self._numbers = itertools.count(1)
        self._idle_left = IDLE_MESSAGES_MAX
        self._closed = False
        self._outbox: deque[memoryview] = deque()
        self._outbox_bytes = 0
        self._sending = False
        self._staging: int | None = None
        self._large = 0
        self._room: asyncio.Future[None] | None = None
        self.large = asyncio.Lock()
        """Held while the large payloads of an answer are read: one answer is in memory at a time."""

    @property
    def in_hand(self) -> int:
        """Bytes received and not processed yet."""
        return self._framer.waiting

    def receive(self, data: bytes) -> None:
        """Bytes from the peer, split anywhere."""
        if not self._closed:
            if not self._framer.waiting:
                self._since = self._clock()
            self._framer.feed(data)
            self._work()
            if self._framer.waiting >= WEIGHED_BYTES:
                self._weigh(self)

    def is_overdue(self, now: float) -> bool:
        """Whether it never asked anything, or has not finished a message it began."""
        if self._asked and not self._framer.waiting:
            return False
        return not self.held and now - self._since > (MESSAGE_S if self._asked else GREETING_S)

    @property
    def waiting(self) -> int:
        return self.in_hand + self._outbox_bytes + self._stream.unsent

    def stop_reading(self) -> None:
        self._stream.pause_reading()

    def read_on(self) -> None:
        if not self._closed:
            self._stream.resume_reading()
            self._work()

    def begin_large(self) -> None:
        """Take no more calls while the large payloads of an answer are read."""
        self._large += 1
        self.hold("large")

    def end_large(self) -> None:
        self._large -= 1
        if not self._large:
            self.let_go("large")

    async def room(self) -> None:
        """Wait until everything written before is sent, or the stream has ended."""
        while self._outbox and not self._closed:
            self._room = self._room or asyncio.get_running_loop().create_future()
            await self._room

    def close(self) -> None:
        """Answers already made are still sent, unless they are too large. What is unfinished is discarded."""
        self._closed = True
        self._framer = Framer(MESSAGE_BYTES_MAX)
        self._flush()
        self._stream.close()

    def cut(self) -> None:
        """Drop what is still to be sent; nothing that its caller did not take is lost."""
        self._outbox.clear()
        self._stream.abort()
        self.close()

    def lost(self) -> None:
        """The stream has ended; discard what is unfinished."""
        self._closed = True
        self._framer = Framer(MESSAGE_BYTES_MAX)
        self._outbox.clear()
        self._has_room()

    def answer(self, answer: Answer) -> None:
        """Send what the engine decided about a call."""
        question = self._ids.pop(answer.question, None)
        if self._closed or question is None:
            return
        self._settle(answer.question)
        asked, outcome = self._questions[question], answer.outcome
        assert not isinstance(outcome, Taken), "an answer that is not read yet"
        if asked.state is _State.CANCELED or outcome is None:
            del self._questions[question]
            if answer.is_held:
                # The call may have been decided after it was canceled, if its turn had to load more.
                self._put(self, Canceled(self.peer, answer.question), 0)
            self._send(write_canceled(question))
        elif isinstance(outcome, Refusal):
            asked.state = _State.RETURNED
            self._send(write_exception(question, outcome.reason, outcome.type))
        else:
            asked.state = _State.HELD if answer.is_held else _State.RETURNED
            self._send(write_results(question, write_result(outcome)))

    def _settle(self, number: int) -> None:
        """Calls that came after an enqueue of a large payload wait until it is answered, to stay in order."""
        if number == self._staging:
            self._staging = None
            asyncio.get_running_loop().call_soon(self.let_go, "staging")

    def _send(self, message: bytes) -> None:
        """Send at once, or in pieces, in order."""
        if not self._outbox and len(message) <= PIECE_BYTES:
            self._stream.write(message)
        else:
            view = memoryview(message)
            self._outbox.extend(view[at : at + PIECE_BYTES] for at in range(0, len(message), PIECE_BYTES))
            self._outbox_bytes += len(message)
            self.pump()
            if self._outbox_bytes >= WEIGHED_BYTES:
                self._weigh(self)
        if self._stream.unsent + self._outbox_bytes > OUTBOX_BYTES_MAX:
            self.cut()

    def pump(self) -> None:
        """Send the next piece, and the one after it when others have had their turn."""
        if self._sending or not self._outbox or self._closed or self.congested:
            return
        self._sending = True
        piece = self._outbox.popleft()
        self._outbox_bytes -= len(piece)
        self._stream.write(piece)
        if self._outbox:
            asyncio.get_running_loop().call_soon(self._pumped)
        else:
            self._sending = False
            self._has_room()

    def _pumped(self) -> None:
        self._sending = False
        self.pump()

    def _flush(self) -> None:
        while self._outbox:
            self._stream.write(self._outbox.popleft())
        self._outbox_bytes = 0
        self._has_room()

    def _has_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _work(self) -> None:
        """Handle complete messages, unless one must wait."""
        try:
            if self.held or self._closed:
                return
            for number, (message, size) in enumerate(self._framer.messages(), start=1):
                self._asked = True
                self._since = self._clock()
                self._handle(message, size)
                if self.held or self._closed:
                    return
                if number >= MESSAGES_AT_ONCE and self._framer.waiting:
                    self.hold("turn")
                    asyncio.get_running_loop().call_soon(self.let_go, "turn")
                    return
        except WireError as error:
            self._broken()
            self._send(write_abort(str(error)))
            self.close()

    def _handle(self, message: Message, size: int) -> None:
        rpc = read_rpc(message)
        match rpc:
            case Bootstrap(question):
                self._ask(question, _State.BOOTSTRAP)
                self._send(write_bootstrap_results(question))
            case Call():
                self._call(rpc, size)
            case Finish(question):
                self._finish(question)
            case Abort():
                self.close()
            case Release() | Other(kind=0):
                # The one capability stays; kind 0 is a peer rejecting a message it does not know.
                self._idle_left -= 1
                if self._idle_left < 0:
                    raise WireError("too many messages that ask for nothing")
            case _:
                raise WireError(_unexpected(rpc))

    def _ask(self, question: int, state: _State) -> _Question:
        if question in self._questions:
            raise WireError("a question was asked twice")
        if len(self._questions) >= QUESTIONS_MAX:
            raise WireError("too many questions are not finished")
        asked = self._questions[question] = _Question(state)
        return asked

    def _call(self, call: Call, size: int) -> None:
        asked = self._ask(call.question, _State.PENDING)
        self._idle_left += 1
        if call.promised is not None:
            promised = self._questions.get(call.promised)
            if promised is None or promised.state is not _State.BOOTSTRAP:
                raise WireError("a call to an answer that is no capability")
        elif call.capability != BOOTSTRAP_CAPABILITY:
            raise WireError("a call to an unknown capability")
        request = read_request(call.method, call.params) if call.interface == NODE_SERVICE else None
        if request is None:
            asked.state = _State.RETURNED
            self._send(write_exception(call.question, "there is no such method", ExceptionType.UNIMPLEMENTED))
        else:
            asked.number = next(self._numbers)
            self._ids[asked.number] = call.question
            if isinstance(request, Enqueue) and len(request.payload) > LARGE_BYTES:
                self._staging = asked.number
                self.hold("staging")
            self._put(self, Called(self.peer, asked.number, request), size)

    def _finish(self, question: int) -> None:
        asked = self._questions.get(question)
        if asked is None or asked.state is _State.CANCELED:
            raise WireError("a question was finished that was not asked")
        if asked.state is _State.PENDING:
            asked.state = _State.CANCELED
            self._put(self, Canceled(self.peer, asked.number), 0)
            return
        del self._questions[question]
        if asked.state is _State.HELD:
            self._put(self, Finished(self.peer, asked.number), 0)


def _unexpected(rpc: RpcMessage) -> str:
    return f"a message that this service has no use for ({type(rpc).__name__})"
