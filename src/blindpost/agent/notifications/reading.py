"""What a push leads to: connections with news, and reading one message from a queue without a subscription.

Nothing in a push is shown or kept. It only names queues; what is shown is what was read from them and
decrypted.
"""

from __future__ import annotations

from blindpost.agent.connection import Fetched, News
from blindpost.agent.errors import ConnectionCode, ConnError, network_error, prohibited
from blindpost.agent.events import MessageTaken
from blindpost.agent.messages.layers import open_delivery
from blindpost.agent.model import ConnId, RcvQueue
from blindpost.agent.notifications.errors import PushRefusedError
from blindpost.agent.notifications.model import Token
from blindpost.agent.store import connections, ntf_tokens, queues
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.store.ntf_subscriptions import PrimaryQueue
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.work.ground import Ground
from blindpost.client.calls import Call
from blindpost.client.errors import ClientError, UnexpectedResponseError
from blindpost.crypto.pushes import NotifiedQueue, announced, open_message
from blindpost.transport.errors import TransportError
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.pushes import MessagePush, PushItem
from blindpost.wire.smp.commands import GET
from blindpost.wire.smp.responses import MSG, OK


class Reading:
    """Opens pushes, and reads what they announce."""

    def __init__(self, ground: Ground, subscriptions: Subscriptions) -> None:
        self._ground = ground
        self._subscriptions = subscriptions
        self._fetched: dict[tuple[ConnId, int], Fetched] = {}

    def news(self, push: MessagePush) -> list[News]:
        """The connections to look into, the one that caused the push last; `PushRefusedError` if none."""
        token = ntf_tokens.find(self._ground.store.reading)
        if token is None or not token.is_active:
            raise prohibited("the device token is not active")
        found = announced(self._items(token, push), self._find)
        if not found:
            raise PushRefusedError("it is about no queue of ours")
        return [
            News(
                self._ground.handle(each.queue.queue.conn_id),
                each.queue.queue.number,
                None if each.meta is None else each.meta.msg_id,
                None if each.meta is None else each.meta.seconds,
            )
            for each in found
        ]

    def _items(self, token: Token, push: MessagePush) -> tuple[PushItem, ...]:
        assert token.secret is not None
        try:
            return open_message(token.secret, push)
        except WireError as error:
            raise PushRefusedError("it is not from the router of this token") from error

    def _find(self, item: PushItem) -> NotifiedQueue[PrimaryQueue] | None:
        db = self._ground.store.reading
        found = rows.notifying(db, item.server, item.notifier_id)
        if found is None or connections.find(db, found[0].queue.conn_id) is None:
            return None
        queue, last_seconds = found
        assert queue.creds is not None
        return NotifiedQueue(queue, queue.creds.secret, last_seconds)

    def everywhere(self) -> list[News]:
        """All connections that receive something: for a push that only says to look."""
        db = self._ground.store.reading
        found = ((conn_id, rows.primary(db, conn_id)) for conn_id in connections.conn_ids(db))
        listed = [(conn_id, queue.queue.number) for conn_id, queue in found if queue is not None]
        return [News(self._ground.handle(conn_id), number, None, None) for conn_id, number in listed]

    async def fetch(self, conn_id: ConnId, number: int, announced_ts: int | None) -> Fetched | None:
        """GET. The message goes the way of all others; its acknowledgement frees the queue again."""
        self._ground.awake()
        queue = queues.find_rcv_number(self._ground.store.reading, conn_id, number)
        if queue is None or queue.deleted:
            raise ConnError(ConnectionCode.NOT_FOUND, "the queue of this push is gone")
        subscriptions = self._subscriptions
        if subscriptions.state(queue) is not None:
            raise prohibited("the connection is subscribed: its messages come by themselves")
        if subscriptions.is_get_locked(queue):
            raise prohibited("a message that was read before is to be acknowledged first")
        subscriptions.lock_get(queue)
        try:
            fetched = await self._get(queue)
        except BaseException:
            subscriptions.release_get(queue)
            raise
        if fetched is None:
            subscriptions.release_get(queue)
            if announced_ts is not None:
                with self._ground.transaction() as tx:
                    rows.came(tx, queue, announced_ts)
        return fetched

    async def _get(self, queue: RcvQueue) -> Fetched | None:
        server, sessions = queue.server, self._subscriptions.sessions
        try:
            session = await sessions.session(sessions.key(queue.user_id, server, queue.conn_id))
        except TransportError as failure:
            raise network_error(server, failure) from failure
        (result,) = await session.client.send_many([Call(GET(), queue.rcv_id, queue.key)])
        match result:
            case OK():
                return None
            case MSG():
                fetched = Fetched(result.msg_id, _broker_ts(queue, result, int(self._ground.now())))
                self._fetched[queue.conn_id, queue.number] = fetched
                await sessions.hand_over(session, [(queue.rcv_id, result)], subscribed=False)
                return fetched
            case ClientError() | TransportError():
                raise network_error(server, result)
        raise network_error(server, UnexpectedResponseError(result))

    def acknowledged(self, queue: RcvQueue, broker_id: bytes) -> None:
        """A message was acknowledged: one that was read with GET leaves its queue free for the next."""
        key = (queue.conn_id, queue.number)
        fetched = self._fetched.get(key)
        if fetched is not None and fetched.broker_id == broker_id:
            del self._fetched[key]
            self._subscriptions.release_get(queue)
            handle = self._ground.handle(queue.conn_id)
            self._ground.stream.put(MessageTaken(handle, fetched.broker_id, fetched.broker_ts))


def _broker_ts(queue: RcvQueue, msg: MSG, now: int) -> int:
    """When the router received a message; now, if it does not say so readably."""
    try:
        delivered = open_delivery(queue, msg)
    except WireError:
        return now
    return delivered.seconds
