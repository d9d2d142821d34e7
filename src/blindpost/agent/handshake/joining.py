"""Joining: an invitation, or a contact address by sending it our own invitation. Runs as a stored command.

Every step leaves what the next one needs in the store, so that the command can stop anywhere and
continue with the same keys.
"""

from __future__ import annotations

from blindpost.agent.errors import (
    AgentError,
    ConnectionCode,
    ConnError,
    ProtocolCode,
    ProtocolError,
    prohibited,
    refused_with,
)
from blindpost.agent.events import Joined
from blindpost.agent.failures import Kind
from blindpost.agent.links.reading import LinkReader
from blindpost.agent.links.values import invitation_link, parse_link
from blindpost.agent.messages.layers import seal_invitation
from blindpost.agent.messages.sending import enqueue_confirmation
from blindpost.agent.model import ConnId, ConnMode, ConnType, QueueStatus, UserId, Whole
from blindpost.agent.queues.making import QueueMaker, new_snd_queue
from blindpost.agent.routers.proxying import QueueSender
from blindpost.agent.store import commands, connections, handshakes, ratchets
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.versions import Versions
from blindpost.agent.work.commands import JOIN
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.transactions import Tx
from blindpost.client.calls import Call
from blindpost.crypto.ratchet_state import sending_ratchet
from blindpost.crypto.x3dh import agree_as_sender, answering_params, proposed_params
from blindpost.crypto.x448 import generate_x448
from blindpost.wire.agent.envelopes import Invitation
from blindpost.wire.agent.messages import AgentConnInfoReply
from blindpost.wire.agent.sizes import PQ_AGENT_VERSION
from blindpost.wire.e2e import KEM_E2E_VERSION
from blindpost.wire.frozen import dataclass
from blindpost.wire.links.full import ContactLink, FullLink, InvitationLink
from blindpost.wire.links.short import ShortContact
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.queue_addresses import QueueInfo
from blindpost.wire.smp.commands import SEND
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.value import Value

SECURED_AGENT_VERSION = 7
"""From here on the initiator reads messages that come before it has allowed the connection."""


@dataclass(frozen=True, slots=True, repr=False)
class JoinCommand(Value):
    """What a stored join needs; `invitation_id` is that of a request which is being accepted."""

    link: str
    info: bytes
    pq: bool
    invitation_id: str | None = None


def write_join(writer: Writer, join: JoinCommand) -> None:
    writer.large(join.link.encode()).large(join.info).flag(join.pq)
    writer.opt(None if join.invitation_id is None else join.invitation_id.encode(), Writer.short)


def read_join(reader: Reader) -> JoinCommand:
    link, info, pq = str(reader.large(), "utf-8"), bytes(reader.large()), reader.flag()
    invitation_id = reader.opt(Reader.short)
    return JoinCommand(link, info, pq, None if invitation_id is None else invitation_id.decode())


@dataclass(frozen=True, slots=True)
class Agreed:
    """The versions for a connection with the maker of a link; an address has no ratchet version yet."""

    agent: int
    client: int
    e2e: int | None

    @property
    def pq_usable(self) -> bool:
        return self.agent >= PQ_AGENT_VERSION and (self.e2e is None or self.e2e >= KEM_E2E_VERSION)


def negotiate(own: Versions, link: FullLink) -> Agreed:
    """Versions that both sides know, or `A_VERSION`."""
    agent = own.agent.agreed(link.agent_versions)
    client = own.client.agreed(link.queues[0].versions)
    e2e = own.e2e.agreed(link.e2e.versions) if isinstance(link, InvitationLink) else None
    if agent is None or client is None or (e2e is None and isinstance(link, InvitationLink)):
        raise ProtocolError(ProtocolCode.A_VERSION, "the link is of versions that this agent does not know")
    return Agreed(agent, client, e2e)


def pq_offered(own: Versions, link: FullLink) -> bool:
    """Whether a connection by this link could be post-quantum; not if it cannot be made at all."""
    try:
        return negotiate(own, link).pq_usable
    except ProtocolError:
        return False


def register_join(
    tx: Tx,
    conn_id: ConnId,
    user_id: UserId,
    join: JoinCommand,
    corr_id: str = "",
    *,
    reply: bytes | None = None,
) -> None:
    """Store a new connection and the command to join; nothing is sent.

    `reply` is what the owner of an address gets once it has accepted; by default, what the request said.
    """
    own_info = join.info if reply is None else reply
    link = parse_link(join.link, tx.servers)
    version, pq = tx.config.versions.agent.high, join.pq
    if isinstance(link, InvitationLink | ContactLink):
        agreed = negotiate(tx.config.versions, link)
        version, pq = agreed.agent, pq and agreed.pq_usable
    connections.insert(
        tx,
        conn_id,
        user_id,
        ConnMode.INVITATION,
        agent_version=version,
        pq_support=pq,
        own_info=own_info,
    )
    tx.command(conn_id, None, JOIN, encode(join, write_join), corr_id)


def _may_go_on(whole: Whole) -> bool:
    """Whether a join that was started can be continued."""
    if whole.type is ConnType.SND:
        return True
    return (
        whole.type is ConnType.DUPLEX
        and whole.rcv[0].status is QueueStatus.NEW
        and whole.snd[0].status in (QueueStatus.NEW, QueueStatus.SECURED)
    )


def accept_request(tx: Tx, address_id: ConnId, request_id: str, info: bytes, pq: bool) -> ConnId:
    """Store a connection that joins the invitation of a request; a request is accepted once."""
    invitation = handshakes.find_invitation(tx, request_id)
    if invitation is None:
        raise ConnError(ConnectionCode.NOT_FOUND, "the request is gone, or was accepted before")
    conn_id = tx.new_id()
    user_id = connections.load(tx, address_id).user_id
    offered = pq_offered(tx.config.versions, invitation.link)
    command = JoinCommand(invitation.link.text, info, pq and offered, request_id)
    register_join(tx, conn_id, user_id, command)
    handshakes.set_invitation_accepted(tx, request_id, True)
    return conn_id


class Joining:
    """Runs stored joins."""

    def __init__(self, ground: Ground, sender: QueueSender, maker: QueueMaker, reader: LinkReader) -> None:
        self._ground = ground
        self._sender = sender
        self._maker = maker
        self._reader = reader
        self._taken: set[ConnId] = set()
        """Connections whose request was taken, while that is not stored yet: a full disk must not fill the
        address with copies of it."""

    async def run_join(self, command: StoredCommand) -> None:
        """The command itself."""
        join = decode_whole(command.content, read_join)
        try:
            await self._run(command, join)
        except AgentError as error:
            if join.invitation_id is not None and not error.retried:
                with self._ground.transaction() as tx:
                    handshakes.set_invitation_accepted(tx, join.invitation_id, False)
            raise

    async def _run(self, command: StoredCommand, join: JoinCommand) -> None:
        whole = connections.load_whole(self._ground.store.reading, command.conn_id)
        link = parse_link(join.link, self._ground.servers)
        if isinstance(link, ContactLink | ShortContact) and self._is_answered(whole):
            self._requested(command)
            return
        if not isinstance(link, InvitationLink | ContactLink):
            if whole.type is ConnType.SND or whole.type is ConnType.DUPLEX:
                await self._finish_invitation(command, whole, join.info)
                return
            link = (await self._reader.read(whole.record.user_id, link)).link
        if isinstance(link, ContactLink):
            await self._join_contact(command, whole, link, join)
            return
        if whole.type is ConnType.NEW:
            whole = await self._start_sending(whole, link, join.pq)
        await self._finish_invitation(command, whole, join.info)

    async def _start_sending(self, whole: Whole, link: InvitationLink, pq: bool) -> Whole:
        """The send queue and the ratchet, stored together."""
        agreed = negotiate(self._ground.config.versions, link)
        assert agreed.e2e is not None
        conn_id, entropy = whole.conn_id, self._ground.config.entropy
        pq = pq and agreed.pq_usable
        peer = link.e2e.at(agreed.e2e)
        async with self._ground.kem_source(pq) as kem:
            own = answering_params(peer, pq=pq, entropy=entropy, kem=kem)
            keys = agree_as_sender(own, peer)
            own_max = self._ground.config.versions.e2e.high
            ratchet = sending_ratchet(agreed.e2e, own_max, peer.key2, generate_x448(entropy), keys)
            with self._ground.transaction() as tx:
                connections.set_version(tx, conn_id, agreed.agent)
                connections.set_pq_support(tx, conn_id, pq)
                address = link.queues[0].address
                given = handshakes.given_key(tx, address.server, address.sender_id)
                info = QueueInfo(agreed.client, address)
                new_snd_queue(tx, conn_id, whole.record.user_id, info, given_key=given)
                ratchets.set_sending(tx, conn_id, ratchet, own.public(agreed.e2e))
                return connections.load_whole(tx, conn_id)

    async def _finish_invitation(self, command: StoredCommand, whole: Whole, info: bytes) -> None:
        """Secure the peer's queue, make our own, and store the confirmation; the command ends with that."""
        conn_id, user_id = whole.conn_id, whole.record.user_id
        queue = whole.snd[0] if whole.snd else None
        if queue is None or not _may_go_on(whole):
            raise prohibited("the connection cannot join again")
        await self._maker.secure(queue)
        if not whole.rcv:
            await self._maker.make(
                conn_id,
                user_id,
                QueueMode.MESSAGING,
                avoiding=[queue.server],
                client_version=queue.client_version,
            )
        with self._ground.transaction() as tx:
            whole = connections.load_whole(tx, conn_id)
            reply = QueueInfo(queue.client_version, whole.rcv[0].address)
            enqueue_confirmation(tx, whole.record, whole.snd[0], AgentConnInfoReply((reply,), info))
            handshakes.forget_short_link(tx, queue.server, queue.snd_id)
            commands.delete(tx, command)
            fast = queue.mode is QueueMode.MESSAGING
            tx.emit(Joined(tx.handle(conn_id), fast and whole.record.agent_version >= SECURED_AGENT_VERSION))

    async def _join_contact(
        self, command: StoredCommand, whole: Whole, link: ContactLink, join: JoinCommand
    ) -> None:
        """Our own invitation, sent to the address; its owner joins us."""
        agreed = negotiate(self._ground.config.versions, link)
        conn_id, entropy = whole.conn_id, self._ground.config.entropy
        pq = join.pq and agreed.pq_usable
        if whole.type is ConnType.NEW:
            async with self._ground.kem_source(pq) as kem:
                params = ratchets.find_params(self._ground.store.reading, conn_id) or proposed_params(
                    self._ground.config.versions.e2e.high, pq=pq, entropy=entropy, kem=kem
                )
                with self._ground.transaction() as tx:
                    connections.set_pq_support(tx, conn_id, pq)
                    ratchets.set_params(tx, conn_id, params)
            await self._maker.make(conn_id, whole.record.user_id, QueueMode.MESSAGING)
            whole = connections.load_whole(self._ground.store.reading, conn_id)
        if whole.type is not ConnType.RCV:
            raise prohibited("the connection cannot join again")
        if conn_id not in self._taken:
            await self._request(whole, agreed, link, join.info)
            self._taken.add(conn_id)
        self._requested(command)

    async def _request(self, whole: Whole, agreed: Agreed, link: ContactLink, own_info: bytes) -> None:
        """Send it. An address that is full has room when its owner has read what others asked."""
        conn_id, versions = whole.conn_id, self._ground.config.versions
        stored = ratchets.find_params(self._ground.store.reading, conn_id)
        assert stored is not None
        invitation = invitation_link(versions, whole.rcv[0].address, stored, with_kem=True)
        info = link.queues[0].at(agreed.client)
        request = Invitation(agreed.agent, invitation, own_info)
        body = seal_invitation(info, request, self._ground.config.entropy)
        call = Call(SEND(True, body), info.address.sender_id)
        try:
            await self._sender.send_to_queue(whole.record.user_id, info.address.server, call, entity=conn_id)
        except AgentError as error:
            if refused_with(error, Code.QUOTA):
                error.kind = Kind.TEMPORARY
            raise

    def _is_answered(self, whole: Whole) -> bool:
        """Whether the owner of an address joined us: our request had come when its sending seemed to fail."""
        params = ratchets.find_params(self._ground.store.reading, whole.conn_id)
        return bool(whole.rcv) and (whole.type is ConnType.DUPLEX or params is None)

    def _requested(self, command: StoredCommand) -> None:
        with self._ground.transaction() as tx:
            commands.delete(tx, command)
            tx.emit(Joined(tx.handle(command.conn_id), False))
        self._taken.discard(command.conn_id)
