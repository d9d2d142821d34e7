"""Letting a joiner in: the queues of a new connection are secured, and HELLO is sent if we had to do it.

Which of the two handshakes runs is decided for each direction by its queue: one that its sender can secure
needs no HELLO, any other one is secured by its recipient with the key in the confirmation.
"""

from __future__ import annotations

from blindpost.agent.errors import AgentError, InternalError, ProtocolCode, ProtocolError, prohibited
from blindpost.agent.events import Connected
from blindpost.agent.messages.sending import enqueue, enqueue_confirmation
from blindpost.agent.model import ConnId, ConnType, QueueStatus, RcvQueue, Whole
from blindpost.agent.queues.making import QueueMaker, new_snd_queue
from blindpost.agent.routers.sessions import Sessions
from blindpost.agent.store import commands, connections, handshakes, queues
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.transactions import Tx
from blindpost.client.calls import Call
from blindpost.wire.agent.messages import AgentConnInfo, Hello
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey, read_auth_key, write_key
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.smp.commands import KEY
from blindpost.wire.value import Value

ALLOW_SECURE = "ALLOW_SECURE"
DUPLEX_SECURE = "DUPLEX_SECURE"


def allow(tx: Tx, conn_id: ConnId, confirmation_id: str, own_info: bytes) -> None:
    """Let the joiner in: a stored command does the rest."""
    whole = connections.load_whole(tx, conn_id)
    if whole.type is not ConnType.RCV:
        raise prohibited("the connection is not waiting to be allowed")
    if handshakes.find_confirmation(tx, conn_id, confirmation_id) is None:
        raise prohibited("there is no such confirmation, or it was allowed before")
    handshakes.accept_confirmation(tx, confirmation_id, own_info)
    tx.command(conn_id, whole.rcv[0].server, ALLOW_SECURE, confirmation_id.encode())


@dataclass(frozen=True, slots=True, repr=False)
class SecureCommand(Value):
    """Which of our queues to secure, with which key of its sender."""

    queue_number: int
    sender_key: PublicKey


def duplex_secure(tx: Tx, queue: RcvQueue, sender_key: PublicKey) -> None:
    """Store that our queue is to be secured and HELLO said."""
    content = encode(SecureCommand(queue.number, sender_key), _write_secure)
    tx.command(queue.conn_id, queue.server, DUPLEX_SECURE, content)


def _write_secure(writer: Writer, secure_command: SecureCommand) -> None:
    write_key(writer.i64(secure_command.queue_number), secure_command.sender_key)


def _read_secure(reader: Reader) -> SecureCommand:
    return SecureCommand(reader.i64(), read_auth_key(reader))


def hello_received(tx: Tx, whole: Whole, queue: RcvQueue, *, pq: bool) -> None:
    """HELLO says that a queue secured by its recipient works; it is answered once."""
    if queue.status is QueueStatus.ACTIVE:
        raise ProtocolError(ProtocolCode.A_PROHIBITED, "hello: active")
    if whole.type is not ConnType.DUPLEX:
        return
    if whole.snd[0].status is QueueStatus.ACTIVE:
        tx.emit(Connected(tx.handle(whole.conn_id), pq))
    else:
        enqueue(tx, whole, Hello(), queues=whole.snd[:1])


class Allowing:
    """Runs the stored commands that secure the queues of a new connection."""

    def __init__(self, ground: Ground, sessions: Sessions, maker: QueueMaker) -> None:
        self._ground = ground
        self._sessions = sessions
        self._maker = maker

    async def run_allow_secure(self, command: StoredCommand) -> None:
        """Secure our queue if we must, make the send queue, and confirm."""
        conn_id = command.conn_id
        with self._ground.transaction() as tx:
            whole = connections.load_whole(tx, conn_id)
            confirmation = handshakes.find_confirmation(tx, conn_id, command.content.decode(), accepted=True)
            if confirmation is None or whole.type not in (ConnType.RCV, ConnType.DUPLEX):
                raise InternalError("the confirmation to allow is gone")
        if confirmation.sender_key is not None and whole.rcv[0].status is QueueStatus.CONFIRMED:
            await self._secure_own(whole.rcv[0], confirmation.sender_key)
        if whole.type is ConnType.RCV:
            with self._ground.transaction() as tx:
                info = confirmation.reply_queues[0]
                if info.version not in self._ground.config.versions.client:
                    raise ProtocolError(ProtocolCode.A_VERSION)
                new_snd_queue(tx, conn_id, whole.record.user_id, info)
                whole = connections.load_whole(tx, conn_id)
        try:
            await self._maker.secure(whole.snd[0])
        except AgentError as error:
            if error.temporary and command.server is not None and whole.snd[0].server != command.server:
                with self._ground.transaction() as tx:
                    commands.move(tx, command.command_id, whole.snd[0].server)
                    tx.wake_commands(conn_id, whole.snd[0].server)
                return
            raise
        with self._ground.transaction() as tx:
            info_message = AgentConnInfo(confirmation.own_info or b"")
            enqueue_confirmation(tx, whole.record, whole.snd[0], info_message)
            commands.delete(tx, command)

    async def _secure_own(self, queue: RcvQueue, sender_key: PublicKey) -> None:
        call = Call(KEY(sender_key), queue.rcv_id, queue.key)
        await self._sessions.send(queue.user_id, queue.server, call, entity=queue.conn_id)
        with self._ground.transaction() as tx:
            queues.set_status(tx, queue, QueueStatus.SECURED)

    async def run_duplex_secure(self, command: StoredCommand) -> None:
        """In the slow handshake the joiner secures its queue and says HELLO."""
        content = decode_whole(command.content, _read_secure)
        queue = queues.find_rcv_number(self._ground.store.reading, command.conn_id, content.queue_number)
        if queue is None:
            raise InternalError("the queue to secure is gone")
        if queue.status is QueueStatus.CONFIRMED:
            await self._secure_own(queue, content.sender_key)
        with self._ground.transaction() as tx:
            whole = connections.load_whole(tx, command.conn_id)
            enqueue(tx, whole, Hello(), queues=whole.snd[:1])
            commands.delete(tx, command)
