"""Making receive queues: the keys are stored, then NEW is sent, so that a repeated NEW has the same keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from blindpost.agent.errors import AgentError, InternalError, NoNewQueuesError, network_error, prohibited
from blindpost.agent.model import CONN_CHANGES, ConnId, QueueLink, QueueStatus, RcvQueue, SndQueue, UserId
from blindpost.agent.notifications.supervisor import notifier_keys, queue_changed
from blindpost.agent.routers.proxying import QueueSender
from blindpost.agent.routers.sessions import Session
from blindpost.agent.store import connections, ntf_subscriptions, queues
from blindpost.agent.store.queues import RcvQueueRequest
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.transactions import Tx
from blindpost.client.calls import Call
from blindpost.client.errors import ClientError, RefusedError, UnexpectedResponseError
from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.errors import TransportError
from blindpost.wire.addresses import RouterAddress, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.queue_addresses import SENDER_KEY_CLIENT_VERSION, QueueInfo
from blindpost.wire.smp.commands import NEW, SKEY
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import IDS
from blindpost.wire.smp.values import NONCE_SIZE, LinkData, NewLink, QueueMode, QueueRequest, SubMode
from blindpost.wire.value import Buffer

Then = Callable[[Tx, RcvQueue], None]
"""What else happens in the transaction that stores a new queue."""


def _known_mode(client_version: int, mode: QueueMode | None) -> QueueMode | None:
    """The mode of a queue, as far as clients of this version know about modes."""
    return mode if client_version >= SENDER_KEY_CLIENT_VERSION else None


def new_snd_queue(
    tx: Tx,
    conn_id: ConnId,
    user_id: UserId,
    info: QueueInfo,
    *,
    given_key: PrivateKey | None = None,
    replaces: int | None = None,
) -> SndQueue:
    """A send queue for an address, stored, with our half of its secret.

    A key that the queue was secured with before, when its short link was read, is kept.
    """
    entropy = tx.config.entropy
    e2e_key = PrivateKey.generate(Algorithm.X25519, entropy)
    queue = SndQueue(
        conn_id=conn_id,
        user_id=user_id,
        number=queues.next_snd_number(tx, conn_id),
        server=info.address.server,
        snd_id=info.address.sender_id,
        mode=_known_mode(info.version, info.address.mode),
        key=given_key or PrivateKey.generate(Algorithm.ED25519, entropy),
        e2e_public=e2e_key.public,
        e2e_secret=e2e_key.agree(info.address.dh_key),
        client_version=info.version,
        status=QueueStatus.NEW if given_key is None else QueueStatus.SECURED,
        replaces=replaces,
    )
    with _changing(tx, conn_id):
        queues.insert_snd(tx, queue)
    return queue


@contextmanager
def _changing(tx: Tx, conn_id: ConnId) -> Iterator[None]:
    """A new queue may change what a connection is, but only as `CONN_CHANGES` says."""
    before = connections.load_whole(tx, conn_id).type
    yield
    after = connections.load_whole(tx, conn_id).type
    assert before is not None
    assert after is not None
    if after is not before and (before, after) not in CONN_CHANGES:
        raise InternalError(f"a connection cannot change from {before.value} to {after.value}")


class QueueMaker:
    """Makes queues at routers, and secures those of peers."""

    def __init__(self, ground: Ground, subscriptions: Subscriptions, sender: QueueSender) -> None:
        self._ground = ground
        self._subscriptions = subscriptions
        self._sender = sender
        self._tried: dict[ConnId, set[Server]] = {}
        """Routers that were away when a queue of a connection was to be made."""

    def choose_server(self, avoiding: Iterable[Server] = (), conn_id: ConnId | None = None) -> RouterAddress:
        """One of our routers: if possible one that has not failed for this connection, and on none of the
        hosts of the given ones."""
        if not self._ground.servers:
            raise prohibited("no message routers are configured")
        tried = self._tried.get(conn_id or "", set())
        if tried.issuperset(address.server for address in self._ground.servers):
            tried.clear()
        avoiding = [*avoiding]
        candidates = [address for address in self._ground.servers if address.server not in tried]
        used = {host for server in avoiding for host in server.hosts}
        unused = [address for address in candidates if used.isdisjoint(address.server.hosts)]
        different = [address for address in candidates if address.server not in avoiding]
        return self._ground.config.chance.choice(unused or different or candidates)

    @contextmanager
    def trying(self, request: RcvQueueRequest) -> Iterator[None]:
        """An attempt to make a queue. When its router is away, the next attempt asks another one."""
        try:
            yield
        except AgentError as error:
            if error.retried and len(self._ground.servers) > 1:
                self._tried.setdefault(request.conn_id, set()).add(request.server)
                with self._ground.transaction() as tx:
                    queues.delete_request(tx, request.conn_id, request.replaces)
            raise
        self._tried.pop(request.conn_id, None)

    def new_request(
        self,
        conn_id: ConnId,
        user_id: UserId,
        server: Server,
        mode: QueueMode,
        replaces: int | None = None,
    ) -> RcvQueueRequest:
        """Keys for a new queue."""
        entropy = self._ground.config.entropy
        return RcvQueueRequest(
            conn_id=conn_id,
            user_id=user_id,
            server=server,
            replaces=replaces,
            key=PrivateKey.generate(Algorithm.ED25519, entropy),
            dh_key=PrivateKey.generate(Algorithm.X25519, entropy),
            e2e_key=PrivateKey.generate(Algorithm.X25519, entropy),
            corr_id=entropy(NONCE_SIZE),
            mode=mode,
            notifier=notifier_keys(self._ground.store.reading, conn_id, entropy),
        )

    async def make(
        self,
        conn_id: ConnId,
        user_id: UserId,
        mode: QueueMode,
        *,
        avoiding: Iterable[Server] = (),
        replaces: int | None = None,
        client_version: int | None = None,
        then: Then | None = None,
    ) -> RcvQueue:
        """A new queue on one of our routers, with the keys of an earlier attempt if there was one."""
        with self._ground.transaction() as tx:
            request = queues.find_request(tx, conn_id, replaces)
            if request is None:
                server = self.choose_server(avoiding, conn_id).server
                request = self.new_request(conn_id, user_id, server, mode, replaces)
                queues.insert_request(tx, request)
        with self.trying(request):
            return await self.send_new(request, client_version=client_version, then=then)

    async def send_new(
        self,
        request: RcvQueueRequest,
        *,
        link: QueueLink | None = None,
        user_data: Buffer = b"",
        client_version: int | None = None,
        password: bytes | None = None,
        then: Then | None = None,
    ) -> RcvQueue:
        """NEW with stored keys, and with link data if the queue is to have a short link.

        The queue is stored when this returns, together with what `then` does.
        """
        new_link = None
        if link is not None:
            chosen_id = link.link_id if request.mode is QueueMode.CONTACT else None
            new_link = NewLink(sender_id_of(request.corr_id), LinkData(link.fixed_data, user_data), chosen_id)
        command = NEW(
            request.key.public,
            request.dh_key.public,
            password or self._password_of(request.server),
            SubMode.SUBSCRIBE,
            QueueRequest(request.mode, new_link),
            None if request.notifier is None else request.notifier.offered,
        )
        session, ids = await self._answered(request, Call(command, b"", request.key, request.corr_id))
        if new_link is not None and (ids.sender_id != new_link.sender_id or ids.link_id is None):
            raise InternalError("the router made another queue than the link leads to")
        queue = RcvQueue(
            conn_id=request.conn_id,
            user_id=request.user_id,
            number=0,
            server=request.server,
            rcv_id=ids.recipient_id,
            snd_id=ids.sender_id,
            mode=_known_mode(self._ground.config.versions.client.high, ids.mode),
            key=request.key,
            dh_secret=request.dh_key.agree(ids.dh_key),
            e2e_key=request.e2e_key,
            e2e_secret=None,
            client_version=client_version or self._ground.config.versions.client.high,
            status=QueueStatus.NEW,
            replaces=request.replaces,
            link=None if link is None else replace(link, link_id=ids.link_id or b""),
            service_associated=ids.service_id is not None,
        )
        try:
            with self._ground.transaction() as tx:
                queue = replace(queue, number=queues.next_rcv_number(tx, request.conn_id))
                with _changing(tx, request.conn_id):
                    queues.insert_rcv(tx, queue)
                if request.notifier is not None and ids.ntf_creds is not None:
                    ntf_subscriptions.set_creds(tx, queue, request.notifier.agreed(ids.ntf_creds))
                queues.delete_request(tx, request.conn_id, request.replaces)
                if request.replaces is None:
                    queue_changed(tx, request.conn_id, is_new=True)
                if then is not None:
                    then(tx, queue)
        except queues.TakenError as error:
            raise network_error(request.server, UnexpectedResponseError(ids)) from error
        self._subscriptions.created(session, queue)
        return queue

    async def _answered(self, request: RcvQueueRequest, call: Call[NEW]) -> tuple[Session, IDS]:
        """The router's answer, and on which session the queue is subscribed."""
        server = request.server
        try:
            session = await self._subscriptions.sessions.session(
                self._subscriptions.sessions.key(request.user_id, server, request.conn_id)
            )
        except TransportError as failure:
            raise network_error(server, failure) from failure
        (result,) = await session.client.send_many([call])
        if isinstance(result, RefusedError) and result.error is Code.AUTH:
            raise NoNewQueuesError(server, result)
        if isinstance(result, ClientError | TransportError):
            raise network_error(server, result)
        if not isinstance(result, IDS):
            raise network_error(server, UnexpectedResponseError(result))
        return session, result

    def _password_of(self, server: Server) -> bytes | None:
        """The password that our router requires to make queues."""
        return next((address.password for address in self._ground.servers if address.server == server), None)

    async def secure(self, queue: SndQueue) -> None:
        """SKEY, unless the queue does not let its sender do that or is secured already."""
        if queue.mode is not QueueMode.MESSAGING or queue.status is not QueueStatus.NEW:
            return
        call = Call(SKEY(queue.key.public), queue.snd_id, queue.key)
        await self._sender.send_to_queue(queue.user_id, queue.server, call, entity=queue.conn_id)
        with self._ground.transaction() as tx:
            queues.set_status(tx, queue, QueueStatus.SECURED)
