"""What the agent keeps about a connection: its kinds, states and frozen records, in the protocol's words."""

from __future__ import annotations

from enum import Enum

from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey
from blindpost.wire.queue_addresses import QueueAddress, SenderAddress
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.value import Value

ConnId = str
"""Base64 of 12 random bytes. Local: peers never see it."""

UserId = int


class ConnMode(Enum):
    """Whether a connection is made for one peer, or is an address for anybody."""

    INVITATION = "INV"
    CONTACT = "CON"


class ConnType(Enum):
    """What a connection can do, which follows from its mode and the queues it has."""

    NEW = "new"
    RCV = "rcv"
    SND = "snd"
    DUPLEX = "duplex"
    CONTACT = "contact"


CONN_TYPES: dict[tuple[ConnMode, bool, bool], ConnType | None] = {
    (ConnMode.INVITATION, False, False): ConnType.NEW,
    (ConnMode.INVITATION, True, False): ConnType.RCV,
    (ConnMode.INVITATION, False, True): ConnType.SND,
    (ConnMode.INVITATION, True, True): ConnType.DUPLEX,
    (ConnMode.CONTACT, False, False): ConnType.NEW,
    (ConnMode.CONTACT, True, False): ConnType.CONTACT,
    (ConnMode.CONTACT, False, True): None,
    (ConnMode.CONTACT, True, True): None,
}
"""By mode, whether there are receive queues, and whether there are send queues; None is no connection."""

CONN_CHANGES: frozenset[tuple[ConnType, ConnType]] = frozenset(
    {
        (ConnType.NEW, ConnType.RCV),
        (ConnType.NEW, ConnType.SND),
        (ConnType.NEW, ConnType.CONTACT),
        (ConnType.RCV, ConnType.CONTACT),
        (ConnType.RCV, ConnType.DUPLEX),
        (ConnType.SND, ConnType.DUPLEX),
    }
)
"""Every permitted change of a connection's type; keeping the type is no change."""


class QueueStatus(Enum):
    """A queue's progress. Receive and send queues go through these in different orders."""

    NEW = "new"
    CONFIRMED = "confirmed"
    SECURED = "secured"
    ACTIVE = "active"
    DISABLED = "disabled"


class RcvSwitch(Enum):
    """Rotation at the recipient, stored on the old receive queue."""

    SWITCH_STARTED = "switch_started"
    SENDING_QADD = "sending_qadd"
    SENDING_QUSE = "sending_quse"
    RECEIVED_MESSAGE = "received_message"


class SndSwitch(Enum):
    """Rotation at the sender, stored on the old send queue."""

    SENDING_QKEY = "sending_qkey"
    SENDING_QTEST = "sending_qtest"


class SyncState(Enum):
    """How far the two ratchets agree."""

    OK = "ok"
    ALLOWED = "allowed"
    REQUIRED = "required"
    STARTED = "started"
    AGREED = "agreed"

    @property
    def send_prohibited(self) -> bool:
        """Whether nothing may be sent under the present ratchet."""
        return self in (SyncState.REQUIRED, SyncState.STARTED, SyncState.AGREED)


class MessageKind(Enum):
    """What a stored message is, by its code in the table of messages."""

    CONN_INFO = "C"
    CONN_INFO_REPLY = "D"
    RATCHET_INFO = "S"
    HELLO = "H"
    A_MSG = "M"
    A_RCVD = "V"
    A_QCONT = "QC"
    QADD = "QA"
    QKEY = "QK"
    QUSE = "QU"
    QTEST = "QT"
    EREADY = "E"

    @property
    def notifies(self) -> bool:
        """The notification flag of SEND; for A_MSG the application chooses."""
        return self in _NOTIFYING


_NOTIFYING = frozenset(
    {
        MessageKind.CONN_INFO,
        MessageKind.CONN_INFO_REPLY,
        MessageKind.RATCHET_INFO,
        MessageKind.HELLO,
        MessageKind.EREADY,
    }
)


@dataclass(frozen=True, slots=True, repr=False)
class ConnRecord(Value):
    """A row of `connections`.

    The counters: `last_internal_id` numbers all messages of the connection for the application,
    `last_snd_id` those that were sent, `last_rcv_id` those that were received, and `last_external_id` is the
    peer's own number of the last one received. The hashes are those of the last agent message each way.
    """

    conn_id: ConnId
    user_id: UserId
    mode: ConnMode
    agent_version: int
    pq_support: bool
    sync_state: SyncState
    last_internal_id: int
    last_rcv_id: int
    last_snd_id: int
    last_external_id: int
    last_rcv_hash: bytes
    last_snd_hash: bytes
    enable_ntfs: bool
    auto_allow: bool
    own_info: bytes
    deleted: bool

    @property
    def next_snd(self) -> tuple[int, int]:
        """The numbers of the next message to be sent: the application's and the peer's."""
        return self.last_internal_id + 1, self.last_snd_id + 1

    @property
    def next_rcv(self) -> tuple[int, int]:
        """The numbers of the next message that comes: of all, and of those that came."""
        return self.last_internal_id + 1, self.last_rcv_id + 1


@dataclass(frozen=True, slots=True, repr=False)
class QueueLink(Value):
    """The short link of a receive queue: what is needed to change its user data."""

    link_id: bytes
    link_key: bytes
    root_key: PrivateKey
    fixed_data: bytes
    """The sealed fixed data, sent unchanged with every change."""


@dataclass(frozen=True, slots=True, repr=False)
class RcvQueue(Value):
    """A queue that we receive from; `number` counts the queues of a connection."""

    conn_id: ConnId
    user_id: UserId
    number: int
    server: Server
    rcv_id: bytes
    snd_id: bytes
    mode: QueueMode | None
    key: PrivateKey
    dh_secret: bytes
    e2e_key: PrivateKey
    e2e_secret: bytes | None
    client_version: int
    status: QueueStatus
    primary: bool = True
    replaces: int | None = None
    switch: RcvSwitch | None = None
    switch_at: int | None = None
    """When the present switch status was reached, in Unix seconds."""
    link: QueueLink | None = None
    service_associated: bool = False
    delete_errors: int = 0
    deleted: bool = False

    @property
    def sender_address(self) -> SenderAddress:
        return SenderAddress(self.server, self.snd_id)

    @property
    def address(self) -> QueueAddress:
        """All that a sender needs."""
        return QueueAddress(self.server, self.snd_id, self.e2e_key.public, self.mode)


@dataclass(frozen=True, slots=True, repr=False)
class SndQueue(Value):
    """A queue that we send to; `e2e_public` is our half of its secret, which confirmations carry."""

    conn_id: ConnId
    user_id: UserId
    number: int
    server: Server
    snd_id: bytes
    mode: QueueMode | None
    key: PrivateKey
    e2e_public: PublicKey
    e2e_secret: bytes
    client_version: int
    status: QueueStatus
    primary: bool = True
    replaces: int | None = None
    switch: SndSwitch | None = None
    switch_at: int | None = None

    @property
    def sender_address(self) -> SenderAddress:
        return SenderAddress(self.server, self.snd_id)

    @property
    def usable(self) -> bool:
        """Whether messages go to it although it is not the first of its connection."""
        return self.status in (QueueStatus.SECURED, QueueStatus.ACTIVE)


@dataclass(frozen=True, slots=True, repr=False)
class Whole(Value):
    """A connection with all of its queues: the primary first, then those that replace nothing."""

    record: ConnRecord
    rcv: tuple[RcvQueue, ...]
    snd: tuple[SndQueue, ...]

    @property
    def conn_id(self) -> ConnId:
        return self.record.conn_id

    @property
    def type(self) -> ConnType | None:
        return CONN_TYPES[self.record.mode, bool(self.rcv), bool(self.snd)]
