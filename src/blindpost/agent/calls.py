"""What handles ask for, done by the parts of the agent; nothing of it while the agent is suspended."""

from __future__ import annotations

import hashlib

from blindpost.agent.connection import Confirmation, Connection, ContactRequest, CreatedLink, Fetched
from blindpost.agent.errors import ConnectionCode, ConnError
from blindpost.agent.handshake.allowing import allow
from blindpost.agent.handshake.joining import accept_request, pq_offered
from blindpost.agent.links.creating import Links, LinkWishes
from blindpost.agent.machines import Move
from blindpost.agent.messages.acking import acknowledge
from blindpost.agent.messages.flows import Flows
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import ConnId, ConnType, RcvQueue, Whole
from blindpost.agent.notifications.push import PushNotifications
from blindpost.agent.notifications.reading import Reading
from blindpost.agent.queues.deletion import Deletion
from blindpost.agent.rotation.rotation import Rotation
from blindpost.agent.rotation.tables import RECIPIENT, RecipientEvent
from blindpost.agent.stats import ConnectionStats, RcvQueueStats, SndQueueStats, Switch
from blindpost.agent.store import connections, handshakes, messages, ratchets
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.sync.synchronisation import SYNC_AGENT_VERSION, Synchronisation
from blindpost.agent.work.ground import Ground
from blindpost.wire.agent.messages import AMsg
from blindpost.wire.value import Buffer


class ConnectionCalls:
    """One for an agent; all its handles share it."""

    def __init__(
        self,
        ground: Ground,
        *,
        subscriptions: Subscriptions,
        links: Links,
        rotation: Rotation,
        sync: Synchronisation,
        deletion: Deletion,
        push: PushNotifications,
        reading: Reading,
        flows: Flows,
    ) -> None:
        self._ground = ground
        self._subscriptions = subscriptions
        self._links = links
        self._rotation = rotation
        self._sync = sync
        self._deletion = deletion
        self._push = push
        self._reading = reading
        self._flows = flows

    def _whole(self, conn_id: ConnId) -> Whole:
        return connections.load_whole(self._ground.store.reading, conn_id)

    def connection_type(self, conn_id: ConnId) -> ConnType:
        found = self._whole(conn_id).type
        assert found is not None
        return found

    def security_code(self, conn_id: ConnId) -> bytes:
        ratchet = ratchets.find_ratchet(self._ground.store.reading, conn_id)
        if ratchet is None:
            raise ConnError(ConnectionCode.SIMPLEX, "there is nothing to compare before the peer has joined")
        return hashlib.sha256(ratchet.ad).digest()

    # Messages

    async def send(self, conn_id: ConnId, body: Buffer, *, notify: bool, pq: bool | None) -> int:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(
                f"a message is bytes, not {type(body).__name__}: encode text, as in text.encode()"
            )
        self._ground.awake()
        async with self._ground.locked(conn_id):
            with self._ground.joined(sure=True) as tx:
                whole = connections.load_whole(tx, conn_id)
                if not whole.snd:
                    raise ConnError(ConnectionCode.SIMPLEX, "nobody has joined yet")
                number = enqueue(tx, whole, AMsg(body), notify=notify, pq_wish=pq).internal_id
        await tx.durable()
        return number

    async def ack(self, conn_id: ConnId, msg_id: int, receipt: bytes | None) -> None:
        self._ground.awake()
        if receipt is None and await self._flows.acknowledge(conn_id, msg_id):
            return
        async with self._ground.locked(conn_id):
            with self._ground.joined(sure=receipt is None) as tx:
                acknowledge(tx, conn_id, msg_id, receipt)
        await tx.durable()

    async def fetch(self, conn_id: ConnId, queue_number: int, announced_ts: int | None) -> Fetched | None:
        return await self._reading.fetch(conn_id, queue_number, announced_ts)

    # Links

    def link(self, conn_id: ConnId) -> CreatedLink:
        return self._links.stored_link(self._whole(conn_id), LinkWishes())

    async def set_link_data(self, conn_id: ConnId, user_data: bytes) -> CreatedLink:
        self._ground.awake()
        async with self._ground.locked(conn_id):
            return await self._links.set_link_data(self._whole(conn_id), user_data)

    async def delete_short_link(self, conn_id: ConnId) -> None:
        self._ground.awake()
        async with self._ground.locked(conn_id):
            await self._links.delete_link_data(self._whole(conn_id))

    # Who wants to connect

    def requests(self, conn_id: ConnId) -> list[ContactRequest]:
        db, found, versions = self._ground.store.reading, [], self._ground.config.versions
        for invitation_id in handshakes.invitations_of(db, conn_id):
            stored = handshakes.find_invitation(db, invitation_id)
            if stored is not None:
                servers = tuple(queue.address.server for queue in stored.link.queues)
                pq, conn = pq_offered(versions, stored.link), self._ground.handle(conn_id)
                found.append(ContactRequest(conn, invitation_id, stored.info, pq, servers))
        return found

    def confirmation(self, conn_id: ConnId) -> Confirmation | None:
        db = self._ground.store.reading
        stored = handshakes.find_confirmation(db, conn_id)
        if stored is None:
            return None
        servers = tuple(info.address.server for info in stored.reply_queues)
        pq, conn = connections.load(db, conn_id).pq_support, self._ground.handle(conn_id)
        return Confirmation(conn, stored.confirmation_id, stored.info, pq, servers)

    async def allow(self, conn_id: ConnId, confirmation_id: str, info: bytes) -> None:
        self._ground.awake()
        async with self._ground.locked(conn_id):
            with self._ground.transaction() as tx:
                allow(tx, conn_id, confirmation_id, info)

    async def accept(self, request: ContactRequest, info: bytes, pq: bool | None) -> Connection:
        ground, conn_id = self._ground, ""
        ground.awake()
        try:
            with ground.transaction() as tx:
                wanted = connections.load(tx, request.conn.id).pq_support if pq is None else pq
                conn_id = accept_request(tx, request.conn.id, request.id, info, wanted)
                ground.stream.hold(conn_id)
        except BaseException:
            ground.stream.forget(conn_id)
            raise
        ground.stream.give(conn_id)
        return ground.handle(conn_id)

    async def reject(self, request: ContactRequest) -> None:
        self._ground.awake()
        with self._ground.transaction() as tx:
            handshakes.delete_invitation(tx, request.id)

    # Queues and ratchets

    async def switch(self, conn_id: ConnId) -> None:
        self._ground.awake()
        await self._rotation.switch(conn_id)

    async def abort_switch(self, conn_id: ConnId) -> None:
        self._ground.awake()
        await self._rotation.abort(conn_id)

    async def synchronize(self, conn_id: ConnId, *, force: bool, pq: bool | None) -> None:
        self._ground.awake()
        await self._sync.synchronize(conn_id, force=force, pq=pq)

    async def set_notifications(self, conn_id: ConnId, enabled: bool) -> None:
        await self._push.set_enabled(conn_id, enabled)

    async def delete(self, conn_id: ConnId, *, wait_delivery: bool) -> None:
        self._ground.awake()
        await self._deletion.delete(conn_id, wait_delivery=wait_delivery)

    def waiting(self, conn_id: ConnId) -> int:
        return messages.count_pending(self._ground.store.reading, conn_id)

    def stats(self, conn_id: ConnId) -> ConnectionStats:
        whole = self._whole(conn_id)
        record, now = whole.record, int(self._ground.now())

        def age(since: int | None) -> int:
            return 0 if since is None else max(0, now - since)

        def switch(queue: RcvQueue) -> Switch | None:
            if queue.switch is None:
                return None
            can_abort = isinstance(RECIPIENT.cells[queue.switch, RecipientEvent.ABORTED], Move)
            return Switch(queue.switch, age(queue.switch_at), can_abort)

        return ConnectionStats(
            agent_version=record.agent_version,
            pq_support=record.pq_support,
            rcv=tuple(
                RcvQueueStats(queue.server, queue.status, switch(queue), self._subscriptions.state(queue))
                for queue in whole.rcv
            ),
            snd=tuple(
                SndQueueStats(
                    queue.server,
                    queue.status,
                    None if queue.switch is None else Switch(queue.switch, age(queue.switch_at), False),
                )
                for queue in whole.snd
            ),
            sync_state=record.sync_state,
            sync_supported=whole.type is ConnType.DUPLEX and record.agent_version >= SYNC_AGENT_VERSION,
        )
