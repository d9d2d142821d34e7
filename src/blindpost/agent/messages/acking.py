"""Acknowledging: to the router, which may then delete the message, and to the peer, that it arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from blindpost.agent.errors import (
    AgentError,
    ConnectionCode,
    ConnError,
    network_error,
    prohibited,
    refused_with,
)
from blindpost.agent.events import ReceiptStatus
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import ConnId, ConnType, MessageKind, RcvQueue, RcvSwitch, Whole
from blindpost.agent.notifications.reading import Reading
from blindpost.agent.routers.sessions import Sessions
from blindpost.agent.store import commands, connections, messages, queues
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.transactions import Tx
from blindpost.client.calls import Call
from blindpost.client.errors import ClientError
from blindpost.transport.errors import TransportError
from blindpost.wire.agent.messages import ARcvd, Receipt
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.smp.commands import ACK
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import MSG
from blindpost.wire.value import Value

ACK_TAG = "ACK"
RECEIPTS_AGENT_VERSION = 4


@dataclass(frozen=True, slots=True, repr=False)
class AckCommand(Value):
    """Which message of which queue; `delete`: its record here, which goes as well, where the row of the
    command does not name it: as it was once."""

    queue_number: int
    broker_id: bytes
    delete: int | None = None


def _write_ack(writer: Writer, ack: AckCommand) -> None:
    writer.i64(ack.queue_number).short(ack.broker_id).opt(ack.delete, Writer.i64)


def _read_ack(reader: Reader) -> AckCommand:
    return AckCommand(reader.i64(), reader.short(), reader.opt(Reader.i64))


def ack_later(tx: Tx, queue: RcvQueue, broker_id: bytes, msg_id: int | None = None) -> None:
    """Store that a message is to be acknowledged. One that is stored here is marked by the same row, so that
    it is never shown again, and goes together with it."""
    content = encode(AckCommand(queue.number, broker_id), _write_ack)
    tx.command(queue.conn_id, queue.server, ACK_TAG, content, internal_id=msg_id)


def _can_receipt(whole: Whole) -> bool:
    """Whether the peer understands receipts and can be told now."""
    record = whole.record
    return (
        whole.type is ConnType.DUPLEX
        and record.agent_version >= RECEIPTS_AGENT_VERSION
        and not record.sync_state.send_prohibited
    )


def acknowledge(tx: Tx, conn_id: ConnId, msg_id: int, receipt: bytes | None, *, once: bool = False) -> None:
    """The application has processed a message: it is marked, so that it is never shown again, then the
    router may send the next one, then the receipt goes out if one is wanted. `once`: a second time is an
    error."""
    whole = connections.load_whole(tx, conn_id)
    message = messages.to_acknowledge(tx, conn_id, msg_id)
    if message is None or (once and message.user_ack):
        raise ConnError(ConnectionCode.NOT_FOUND, "there is no such message, or it was acknowledged")
    if receipt is not None and message.kind is not MessageKind.A_MSG:
        raise prohibited("only messages of the peer's application can have receipts")
    messages.acknowledging(tx, conn_id, msg_id)
    if not message.user_ack:
        tx.acknowledged(conn_id, msg_id)
        if receipt is not None and _can_receipt(whole):
            told = Receipt(message.external_id, message.msg_hash, receipt)
            enqueue(tx, whole, ARcvd((told,)))
        if message.kind is MessageKind.A_RCVD:
            for sent in messages.receipted(tx, conn_id, msg_id, ReceiptStatus.OK.value):
                messages.delete(tx, conn_id, sent)
    queue = next((one for one in whole.rcv if one.number == message.queue_number), None)
    if queue is None:
        messages.delete(tx, conn_id, msg_id)
    else:
        ack_later(tx, queue, message.broker_id, msg_id)


Answered = Callable[[ConnId, object, float], None]
"""Told of each connection what its router answered to an acknowledgement, and after how long."""


class Acks:
    """Acknowledges messages to routers."""

    def __init__(self, ground: Ground, sessions: Sessions, reading: Reading, answered: Answered) -> None:
        self._ground = ground
        self._sessions = sessions
        self._reading = reading
        self._answered = answered

    async def run_ack(self, command: StoredCommand) -> None:
        ack = decode_whole(command.content, _read_ack)
        queue = queues.find_rcv_number(self._ground.store.reading, command.conn_id, ack.queue_number)
        if queue is not None:
            await self._send_ack(queue, ack.broker_id)
            self._reading.acknowledged(queue, ack.broker_id)
        with self._ground.joined(sure=True, spare=True) as tx:
            if ack.delete is not None:
                messages.delete(tx, command.conn_id, ack.delete)
            commands.delete(tx, command)
        tx.group.lazily()  # if it is forgotten, the router is told again, and has no such message any more

    async def _send_ack(self, queue: RcvQueue, broker_id: bytes) -> None:
        """ACK; the answer may be the next message. A router that no longer has the message accepts it."""
        server, call = queue.server, Call(ACK(broker_id), queue.rcv_id, queue.key)
        try:
            session = await self._sessions.session(self._sessions.key(queue.user_id, server, queue.conn_id))
            began = asyncio.get_running_loop().time()
            (response,) = await session.client.send_many([call])
        except TransportError as failure:
            raise network_error(server, failure) from failure
        self._answered(queue.conn_id, response, asyncio.get_running_loop().time() - began)
        if isinstance(response, MSG):
            self._ground.spawn(self._sessions.hand_over(session, [(queue.rcv_id, response)]))
        elif isinstance(response, ClientError | TransportError):
            error = network_error(server, response)
            if not refused_with(error, Code.NO_MSG) and not self._is_gone(queue, error):
                raise error

    def _is_gone(self, queue: RcvQueue, error: AgentError) -> bool:
        """Whether the router has no such queue because we left it: it was deleted with its messages, and the
        answer to that was lost or is under way."""
        if not refused_with(error, Code.AUTH):
            return False
        found = queues.find_rcv_number(self._ground.store.reading, queue.conn_id, queue.number)
        return found is None or found.deleted or found.switch is RcvSwitch.RECEIVED_MESSAGE
