"""What an application holds in its hands: connections, messages that came, and requests to decide on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from blindpost.agent.errors import ConnectionCode, ConnError
from blindpost.agent.handshake import allowing, joining
from blindpost.agent.links import creating
from blindpost.agent.links.values import CreatedLink
from blindpost.agent.messages import acking
from blindpost.agent.messages.integrity import Integrity
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import ConnId, ConnType
from blindpost.agent.stats import ConnectionStats, connection_stats
from blindpost.agent.store import connections, handshakes, ratchets
from blindpost.agent.work.runtime import Runtime
from blindpost.wire.addresses import Server
from blindpost.wire.agent.messages import AMsg
from blindpost.wire.value import Buffer, Value


class Connection:
    """A connection by its id. Two handles of one connection are equal."""

    __slots__ = ("_rt", "id")

    def __init__(self, runtime: Runtime, conn_id: ConnId) -> None:
        self._rt = runtime
        self.id = conn_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Connection) and self.id == other.id and self._rt is other._rt

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Connection({self.id})"

    @property
    def type(self) -> ConnType:
        """What the connection can do by now."""
        found = connections.load_whole(self._rt.store.reading, self.id).type
        assert found is not None
        return found

    @property
    def security_code(self) -> bytes:
        """What two people may compare to know that nobody is between them."""
        ratchet = ratchets.find_ratchet(self._rt.store.reading, self.id)
        if ratchet is None:
            raise ConnError(ConnectionCode.SIMPLEX, "there is nothing to compare before the peer has joined")
        return hashlib.sha256(ratchet.ad).digest()

    @property
    def stats(self) -> ConnectionStats:
        """How the connection stands."""
        return connection_stats(self._rt, self.id)

    async def send(self, body: Buffer, *, notify: bool = True, pq: bool | None = None) -> int:
        """Store a message for the peer; its number, which `Sent` and receipts will name.

        `pq` is a wish for the ratchet: on, off, or as it is.
        """
        self._rt.awake()
        async with self._rt.locked(self.id):
            with self._rt.transaction() as tx:
                whole = connections.load_whole(tx, self.id)
                if not whole.snd:
                    raise ConnError(ConnectionCode.SIMPLEX, "nobody has joined yet")
                return enqueue(tx, whole, AMsg(body), notify=notify, pq_wish=pq).internal_id

    async def ack(self, msg_id: int, receipt: bytes | None = None) -> None:
        """Acknowledge a message by its number; see `ReceivedMessage.ack`."""
        self._rt.awake()
        async with self._rt.locked(self.id):
            with self._rt.transaction() as tx:
                acking.acknowledge(tx, self.id, msg_id, receipt)

    @property
    def link(self) -> CreatedLink:
        """The link of an address, or of an invitation that nobody has joined yet."""
        whole = connections.load_whole(self._rt.store.reading, self.id)
        return creating.stored_link(self._rt, whole, creating.LinkWishes())

    def requests(self) -> list[ContactRequest]:
        """The requests to this address that wait for an answer, also those from before a restart."""
        db, found = self._rt.store.reading, []
        for invitation_id in handshakes.invitations_of(db, self.id):
            stored = handshakes.find_invitation(db, invitation_id)
            if stored is not None:
                servers = tuple(queue.address.server for queue in stored.link.queues)
                pq = joining.pq_offered(self._rt, stored.link)
                found.append(ContactRequest(self, invitation_id, stored.info, pq, servers))
        return found

    def confirmation(self) -> Confirmation | None:
        """Who joined and waits to be allowed, also since before a restart."""
        stored = handshakes.find_confirmation(self._rt.store.reading, self.id)
        if stored is None:
            return None
        servers = tuple(info.address.server for info in stored.reply_queues)
        pq = connections.load(self._rt.store.reading, self.id).pq_support
        return Confirmation(self, stored.confirmation_id, stored.info, pq, servers)

    async def set_link_data(self, user_data: bytes) -> CreatedLink:
        """Change what the short link leads to; an address without one gets one."""
        self._rt.awake()
        async with self._rt.locked(self.id):
            whole = connections.load_whole(self._rt.store.reading, self.id)
            return await creating.set_link_data(self._rt, whole, user_data)

    async def delete_short_link(self) -> None:
        self._rt.awake()
        async with self._rt.locked(self.id):
            whole = connections.load_whole(self._rt.store.reading, self.id)
            await creating.delete_link_data(self._rt, whole)

    async def switch(self) -> None:
        """Move what we receive to a queue on another router."""
        self._rt.awake()
        await self._rt.rotation.switch(self.id)

    async def abort_switch(self) -> None:
        """Stay with the old queue, as long as that is possible."""
        self._rt.awake()
        await self._rt.rotation.abort(self.id)

    async def synchronize(self, *, force: bool = False, pq: bool | None = None) -> None:
        """Agree on a new ratchet, after one side went back to an older state."""
        self._rt.awake()
        await self._rt.sync.synchronize(self.id, force=force, pq=pq)

    async def set_notifications(self, enabled: bool) -> None:
        """Whether pushes tell of messages of this connection; as long as nothing is said, they do."""
        await self._rt.push.set_enabled(self.id, enabled)

    async def delete(self, *, wait_delivery: bool = False) -> None:
        """Delete the connection and its queues; with `wait_delivery` after what waits was sent."""
        self._rt.awake()
        await self._rt.deletion.delete(self.id, wait_delivery=wait_delivery)


@dataclass(frozen=True, slots=True, repr=False)
class ReceivedMessage(Value):
    """A message of the peer, or its receipts. The next one comes when this was acknowledged."""

    conn: Connection
    id: int
    body: bytes
    integrity: Integrity
    sender_number: int
    received_at: int
    broker_id: bytes
    broker_ts: int
    pq: bool

    async def ack(self, receipt: bytes | None = None) -> None:
        """It was processed: the next one may come. With a `receipt`, even an empty one, the peer is told."""
        await self.conn.ack(self.id, receipt)


@dataclass(frozen=True, slots=True, repr=False)
class Confirmation(Value):
    """Somebody joined an invitation, and says so much about themselves."""

    conn: Connection
    id: str
    info: bytes
    pq: bool
    servers: tuple[Server, ...]

    async def allow(self, info: bytes = b"") -> None:
        """Let them in. By default an invitation does so by itself."""
        rt = self.conn._rt
        async with rt.locked(self.conn.id):
            with rt.transaction() as tx:
                allowing.allow(tx, self.conn.id, self.id, info)


@dataclass(frozen=True, slots=True, repr=False)
class ContactRequest(Value):
    """Somebody wants to connect to an address."""

    conn: Connection
    id: str
    info: bytes
    pq: bool
    servers: tuple[Server, ...]
    accepted: Connection | None = None
    """The new connection, if the address accepts everybody."""

    async def accept(self, info: bytes = b"", *, pq: bool | None = None) -> Connection:
        """A new connection with them; `Connected` follows."""
        rt = self.conn._rt
        with rt.transaction() as tx:
            wanted = rt.config.pq if pq is None else pq
            conn_id = joining.accept_request(tx, self.conn.id, self.id, info, wanted)
            rt.stream.hold(conn_id)
        rt.stream.give(conn_id)
        return rt.handle(conn_id)

    async def reject(self) -> None:
        """Forget the request; nothing is sent."""
        with self.conn._rt.transaction() as tx:
            handshakes.delete_invitation(tx, self.id)
