"""Making links: invitations and addresses, with or without a short link, new or prepared."""

from __future__ import annotations

import functools
from dataclasses import replace

from blindpost.agent.connection import CreatedLink
from blindpost.agent.errors import AgentError, prohibited, refused_with
from blindpost.agent.events import LinkCreated
from blindpost.agent.links.values import (
    PreparedLink,
    contact_link,
    invitation_link,
    sealed_link,
    sealed_user_data,
    short_of,
    signed_link,
    user_link_data,
)
from blindpost.agent.model import ConnId, ConnMode, ConnType, UserId, Whole
from blindpost.agent.queues.making import QueueMaker
from blindpost.agent.routers.sessions import Sessions
from blindpost.agent.store import commands, connections, queues, ratchets
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.store.queues import RcvQueueRequest
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.transactions import Tx
from blindpost.client.calls import Call
from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.x3dh import PrivateParams, proposed_params
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm
from blindpost.wire.links.data import OwnerAuth
from blindpost.wire.links.full import FullLink
from blindpost.wire.links.short import ShortContact
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.queue_addresses import QueueAddress
from blindpost.wire.smp.commands import LDEL, LSET
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.values import LinkData, QueueMode
from blindpost.wire.value import Value

NEW_TAG = "NEW"
MODES = {ConnMode.INVITATION: QueueMode.MESSAGING, ConnMode.CONTACT: QueueMode.CONTACT}


@dataclass(frozen=True, slots=True, repr=False)
class LinkWishes(Value):
    """What kind of link is wanted. With `user_data`, which may be empty, it gets a short form.

    The KEM key of a post-quantum invitation goes into link data; with `kem_in_link` into the text as well.
    """

    user_data: bytes | None = None
    kem_in_link: bool = False
    client_data: str | None = None


def write_wishes(writer: Writer, wishes: LinkWishes) -> None:
    writer.opt(wishes.user_data, Writer.large).flag(wishes.kem_in_link)
    writer.opt(None if wishes.client_data is None else wishes.client_data.encode(), Writer.large)


def read_wishes(reader: Reader) -> LinkWishes:
    user_data, kem_in_link = reader.opt(Reader.large), reader.flag()
    client_data = reader.opt(Reader.large)
    return LinkWishes(
        None if user_data is None else bytes(user_data),
        kem_in_link,
        None if client_data is None else str(client_data, "utf-8"),
    )


# Link data of an address that exists


def _with_kem(mode: ConnMode, wishes: LinkWishes, pq: bool) -> bool:
    """Whether the keys of a new connection have a KEM key among them."""
    wanted = wishes.kem_in_link or wishes.user_data is not None
    return pq and mode is ConnMode.INVITATION and wanted


def insert_new(
    tx: Tx,
    conn_id: ConnId,
    user_id: UserId,
    mode: ConnMode,
    wishes: LinkWishes,
    *,
    info: bytes,
    auto_allow: bool,
    pq: bool,
    later: bool,
) -> None:
    """Store a new connection with its keys, as part of a transaction."""
    if wishes.kem_in_link and mode is ConnMode.CONTACT:
        raise prohibited("an address has no keys that a KEM key could go with")
    versions, entropy = tx.config.versions, tx.config.entropy
    connections.insert(
        tx,
        conn_id,
        user_id,
        mode,
        agent_version=versions.agent.high,
        pq_support=pq,
        auto_allow=auto_allow,
        own_info=info,
    )
    if mode is ConnMode.INVITATION:
        with_kem = _with_kem(mode, wishes, pq)
        params = proposed_params(versions.e2e.high, pq=with_kem, entropy=entropy, kem=tx.kem)
        ratchets.set_params(tx, conn_id, params)
    if later:
        tx.command(conn_id, None, NEW_TAG, encode(wishes, write_wishes))
    else:
        connections.set_unclaimed(tx, conn_id)


class Links:
    """Makes links and changes their data."""

    def __init__(self, ground: Ground, sessions: Sessions, maker: QueueMaker) -> None:
        self._ground = ground
        self._sessions = sessions
        self._maker = maker

    async def register(
        self,
        conn_id: ConnId,
        user_id: UserId,
        mode: ConnMode,
        wishes: LinkWishes,
        *,
        info: bytes,
        auto_allow: bool,
        pq: bool,
        later: bool = False,
    ) -> None:
        """Store a new connection with its keys; nothing is sent. `later`: a command makes the rest."""
        async with self._ground.kem_source(_with_kem(mode, wishes, pq)) as kem:
            with self._ground.transaction(kem) as tx:
                insert_new(
                    tx, conn_id, user_id, mode, wishes, info=info, auto_allow=auto_allow, pq=pq, later=later
                )

    async def run_new(self, command: StoredCommand) -> None:
        """The stored command; run again after the queue was made, it gives the link of what is stored."""
        wishes = decode_whole(command.content, read_wishes)
        whole = connections.load_whole(self._ground.store.reading, command.conn_id)
        if whole.type is ConnType.NEW:
            created = await self.create(command.conn_id, wishes)
        else:
            created = self.stored_link(whole, wishes)
        with self._ground.transaction() as tx:
            commands.delete(tx, command)
            tx.emit(LinkCreated(created.conn, created))

    def stored_link(self, whole: Whole, wishes: LinkWishes) -> CreatedLink:
        """The link of an address, or of an invitation that nobody has joined yet."""
        params = ratchets.find_params(self._ground.store.reading, whole.conn_id)
        usable = whole.type is ConnType.CONTACT or (whole.type is ConnType.RCV and params is not None)
        if not usable:
            raise prohibited("the connection has no link that could be given to anybody")
        queue = whole.rcv[0]
        full = self.full_link(queue.address, params, wishes, kem=wishes.kem_in_link)
        short = None if queue.link is None else short_of(queue.mode, queue.server, queue.link)
        return CreatedLink(self._ground.handle(whole.conn_id), full, short)

    async def create(self, conn_id: ConnId, wishes: LinkWishes) -> CreatedLink:
        """The queue and the link of a registered connection; safe to repeat until it succeeds.

        A router whose answer to an earlier attempt was lost may refuse to repeat it: then new keys are made.
        """
        request, repeated = self._request(conn_id, wishes)
        try:
            with self._maker.trying(request):
                return await self._created(request, wishes)
        except AgentError as error:
            if not (repeated and request.root_key is not None and refused_with(error, Code.AUTH)):
                raise
        with self._ground.transaction() as tx:
            queues.delete_request(tx, conn_id)
        request, _ = self._request(conn_id, wishes)
        return await self._created(request, wishes)

    async def find_again(self, conn_id: ConnId) -> None:
        """Learn of the queue that a router may have made for a connection before the agent ended.

        Only a NEW with link data can be repeated, since it names the queue; whatever else a router made then
        cannot be named by anybody.
        """
        request = queues.find_request(self._ground.store.reading, conn_id)
        if request is None or request.root_key is None:
            return
        try:
            await self._created(request, LinkWishes(b""))
        except AgentError as error:
            if error.retried:
                raise

    def _request(self, conn_id: ConnId, wishes: LinkWishes) -> tuple[RcvQueueRequest, bool]:
        with self._ground.transaction() as tx:
            request = queues.find_request(tx, conn_id)
            if request is not None:
                return request, True
            record = connections.load(tx, conn_id)
            server = self._maker.choose_server(conn_id=conn_id).server
            request = self._maker.new_request(conn_id, record.user_id, server, MODES[record.mode])
            if wishes.user_data is not None:
                root_key = PrivateKey.generate(Algorithm.ED25519, self._ground.config.entropy)
                request = replace(request, root_key=root_key)
            queues.insert_request(tx, request)
        return request, False

    async def _created(self, request: RcvQueueRequest, wishes: LinkWishes) -> CreatedLink:
        params = ratchets.find_params(self._ground.store.reading, request.conn_id)
        handle = self._ground.handle(request.conn_id)
        if request.root_key is None:
            queue = await self._maker.send_new(request)
            return CreatedLink(handle, self.full_link(queue.address, params, wishes, kem=wishes.kem_in_link))
        sender_id = sender_id_of(request.corr_id)
        address = QueueAddress(request.server, sender_id, request.e2e_key.public, request.mode)
        versions, entropy = self._ground.config.versions, self._ground.config.entropy
        inner = self.full_link(address, params, wishes, kem=True)
        link = signed_link(versions, inner, request.root_key, None, entropy)
        data = user_link_data(versions, request.mode, wishes.user_data or b"")
        blob = sealed_user_data(short_of(request.mode, request.server, link), request.root_key, data, entropy)
        queue = await self._maker.send_new(request, link=link, user_data=blob)
        assert queue.link is not None
        full = self.full_link(queue.address, params, wishes, kem=wishes.kem_in_link)
        return CreatedLink(handle, full, short_of(queue.mode, queue.server, queue.link))

    def full_link(
        self, address: QueueAddress, params: PrivateParams | None, wishes: LinkWishes, *, kem: bool
    ) -> FullLink:
        """The full link of a queue: an invitation if there are keys to agree with."""
        if params is None:
            return contact_link(self._ground.config.versions, address, wishes.client_data)
        return invitation_link(
            self._ground.config.versions, address, params, with_kem=kem, client_data=wishes.client_data
        )

    async def create_prepared(
        self,
        conn_id: ConnId,
        user_id: UserId,
        prepared: PreparedLink,
        user_data: bytes,
        *,
        auto_allow: bool,
        info: bytes,
        pq: bool,
    ) -> CreatedLink:
        """The address of a prepared link, with one NEW. On failure nothing remains and it can be retried.

        A router that made the queue but whose answer was lost may refuse to make it again. Then the link is
        lost, and another one with the same owner replaces it: the caller must be told.
        """
        store = functools.partial(
            self._prepared_created,
            conn_id,
            user_id,
            user_data=user_data,
            auto_allow=auto_allow,
            info=info,
            pq=pq,
        )
        try:
            return await store(prepared)
        except AgentError as error:
            if not refused_with(error, Code.AUTH):
                raise
        another = prepared.anew(self._ground.config.versions, self._ground.config.entropy)
        return replace(await store(another), changed=True)

    async def _prepared_created(
        self,
        conn_id: ConnId,
        user_id: UserId,
        prepared: PreparedLink,
        *,
        user_data: bytes,
        auto_allow: bool,
        info: bytes,
        pq: bool,
    ) -> CreatedLink:
        versions, entropy = self._ground.config.versions, self._ground.config.entropy
        link = sealed_link(prepared.link, prepared.fixed, prepared.root_key, entropy)
        data = user_link_data(versions, QueueMode.CONTACT, user_data)
        blob = sealed_user_data(prepared.short, prepared.root_key, data, entropy)
        request = RcvQueueRequest(
            conn_id,
            user_id,
            prepared.address.server,
            None,
            prepared.key,
            prepared.dh_key,
            prepared.e2e_key,
            prepared.corr_id,
            QueueMode.CONTACT,
            prepared.root_key,
        )
        with self._ground.transaction() as tx:
            connections.insert(
                tx,
                conn_id,
                user_id,
                ConnMode.CONTACT,
                agent_version=versions.agent.high,
                pq_support=pq,
                auto_allow=auto_allow,
                own_info=info,
            )
            queues.insert_request(tx, request)
        try:
            await self._maker.send_new(request, link=link, user_data=blob, password=prepared.address.password)
        except BaseException:
            with self._ground.transaction() as tx:
                connections.delete(tx, conn_id)
            raise
        return CreatedLink(self._ground.handle(conn_id), prepared.link, prepared.short)

    async def set_link_data(
        self,
        whole: Whole,
        user_data: bytes,
        *,
        owners: tuple[OwnerAuth, ...] = (),
        relays: tuple[ShortContact, ...] = (),
    ) -> CreatedLink:
        """New user data for a short link; an address without a short link gets one."""
        queue = whole.rcv[0] if whole.rcv else None
        if queue is None or whole.type not in (ConnType.CONTACT, ConnType.RCV):
            raise prohibited("only addresses and invitations have links")
        if queue.link is None and whole.type is not ConnType.CONTACT:
            raise prohibited("an invitation gets its short link when it is made")
        versions, entropy = self._ground.config.versions, self._ground.config.entropy
        params = ratchets.find_params(self._ground.store.reading, whole.conn_id)
        full = self.full_link(queue.address, params, LinkWishes(), kem=False)
        link = queue.link
        if link is None:
            root_key = PrivateKey.generate(Algorithm.ED25519, entropy)
            link = signed_link(versions, full, root_key, None, entropy)
            with self._ground.transaction() as tx:
                queues.set_rcv_link(tx, queue, link)
        short = short_of(queue.mode, queue.server, link)
        mode = QueueMode.CONTACT if whole.type is ConnType.CONTACT else QueueMode.MESSAGING
        data = user_link_data(versions, mode, user_data, owners=owners, relays=relays)
        blob = sealed_user_data(short, link.root_key, data, entropy)
        command = LSET(link.link_id, LinkData(link.fixed_data, blob))
        call = Call(command, queue.rcv_id, queue.key)
        await self._sessions.send(queue.user_id, queue.server, call, entity=whole.conn_id)
        return CreatedLink(self._ground.handle(whole.conn_id), full, short)

    async def delete_link_data(self, whole: Whole) -> None:
        """Remove the short link; the full link stays."""
        queue = whole.rcv[0] if whole.rcv else None
        if queue is None or queue.link is None:
            raise prohibited("the connection has no short link")
        call = Call(LDEL(), queue.rcv_id, queue.key)
        await self._sessions.send(queue.user_id, queue.server, call, entity=whole.conn_id)
        with self._ground.transaction() as tx:
            queues.set_rcv_link(tx, queue, None)
