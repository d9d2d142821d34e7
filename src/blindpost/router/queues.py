"""NEW, KEY, SKEY, RKEY, links, OFF, DEL, QUE and SEND: decisions about queues themselves."""

from __future__ import annotations

import hmac

from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.router.delivery import append, count_deleted, message_arrived, push_head
from blindpost.router.expiry import expire_head
from blindpost.router.meters import Meter
from blindpost.router.model import ID_SIZE, OWNERS_MAX, Notifier, QueueRecord, Status, StoredMessage
from blindpost.router.notifications import notifier_gone, notify
from blindpost.router.state import RouterClient, SubKind
from blindpost.router.subscriptions import queue_gone, subscribe
from blindpost.router.turn import Turn
from blindpost.router.weights import LINK, LINK_BYTES, MESSAGE_BYTES, QUEUE, QUEUE_BYTES
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.smp.commands import LSET, NEW, SEND
from blindpost.wire.smp.errors import BLOCKED, PROHIBITED, STORE, Code
from blindpost.wire.smp.queue_info import (
    NANOSECONDS,
    MessageInfo,
    MessageType,
    QueueInfo,
    SubInfo,
    SubThread,
)
from blindpost.wire.smp.responses import ERR, IDS, INFO, LNK, OK, Response
from blindpost.wire.smp.values import NtfCreds, QueueMode, ServerNtfCreds, SubMode
from blindpost.wire.smp.versions import body_size_max

AUTH = ERR(Code.AUTH)
FULL = ERR(STORE("the router is full, try again later"))
RANDOM_ID_SIZE = 16


def new(turn: Turn, client: RouterClient, corr_id: bytes, command: NEW) -> Response | None:
    """NEW: create a queue, with ids of the router's or, for short links, of the client's choice.

    None when it repeats an earlier one and is answered already.
    """
    if not turn.rules.new_queues or not password_fits(turn, command.basic_auth):
        return AUTH
    if client.service is not None and command.sub_mode is not SubMode.SUBSCRIBE:
        return ERR(PROHIBITED)
    request = command.request
    link = request.link if request is not None else None
    if link is not None:
        if link.sender_id != sender_id_of(corr_id):
            return ERR(PROHIBITED)
        recipient_id = turn.view.senders.get(link.sender_id)
        if recipient_id is not None:
            record = turn.view.records.get(recipient_id)
            return AUTH if record is None else _repeated(turn, client, corr_id, command, record)
        if link.link_id is not None and link.link_id in turn.view.links:
            return AUTH
    if not turn.stored.allows(client.account, QUEUE_BYTES + (0 if link is None else LINK_BYTES)):
        return FULL
    record = _created(turn, command)
    turn.view.put_queue(record)
    turn.stored.add(client.account, (record.recipient_id, QUEUE), QUEUE_BYTES)
    if link is not None and record.link_id is not None:
        turn.view.put_link(record.link_id, record.recipient_id, link.data)
        turn.stored.add(client.account, (record.link_id, LINK), LINK_BYTES)
    if command.sub_mode is SubMode.SUBSCRIBE:
        record = subscribe(turn, client, record)
    turn.count(Meter.QUEUES_CREATED)
    if record.notifier is not None:
        turn.count(Meter.NTF_NEW_CREATED)
    return _ids(record)


def password_fits(turn: Turn, offered: bytes | None) -> bool:
    """Whether the operator's password for NEW and PRXY is not needed or was given."""
    password = turn.rules.password
    return password is None or hmac.compare_digest(password, offered or b"")


def _created(turn: Turn, command: NEW) -> QueueRecord:
    request = command.request
    link = request.link if request is not None else None
    dh_key = PrivateKey.generate(Algorithm.X25519, turn.entropy)
    link_id = None
    if link is not None:
        link_id = link.link_id if link.link_id is not None else turn.entropy(ID_SIZE)
    creds = command.ntf_creds
    return QueueRecord(
        recipient_id=turn.entropy(ID_SIZE),
        sender_id=turn.entropy(ID_SIZE) if link is None else link.sender_id,
        recipient_keys=(command.auth_key,),
        recipient_dh_key=command.dh_key.raw,
        secret=Secret(dh_key.agree(command.dh_key)),
        router_dh_key=dh_key.public.raw,
        mode=None if request is None else request.mode,
        link_id=link_id,
        notifier=None if creds is None else new_notifier(turn, creds),
        updated_day=turn.today,
    )


def new_notifier(turn: Turn, creds: NtfCreds) -> Notifier:
    """Fresh credentials: a new id and a new secret each time."""
    dh_key = PrivateKey.generate(Algorithm.X25519, turn.entropy)
    secret = Secret(dh_key.agree(creds.dh_key))
    return Notifier(turn.entropy(ID_SIZE), creds.notifier_key, secret, dh_key.public)


def _repeated(
    turn: Turn, client: RouterClient, corr_id: bytes, command: NEW, record: QueueRecord
) -> Response | None:
    """The same NEW again, because its answer was lost: the same queue, to the same keys only.

    What was sent to the queue meanwhile follows, as it would after SUB. If the first answer is no longer
    known here, it is not repeated.
    """
    keys = (command.auth_key,), command.dh_key.raw
    if (record.recipient_keys, record.recipient_dh_key) != keys:
        return AUTH
    if isinstance(record.status, BLOCKED):
        return ERR(record.status)
    held = client.subs.get(record.recipient_id)
    reads = held is not None and held.kind is SubKind.GET
    subscribes = command.sub_mode is SubMode.SUBSCRIBE and not reads
    if subscribes:
        record = subscribe(turn, client, record)
    turn.answer(client, corr_id, b"", _ids(record))
    if subscribes:
        push_head(turn, client, record)
    return None


def _ids(record: QueueRecord) -> IDS:
    assert record.router_dh_key is not None, "an answer to NEW that is not known any more"
    return IDS(
        record.recipient_id,
        record.sender_id,
        PublicKey(Algorithm.X25519, record.router_dh_key),
        record.mode,
        record.link_id,
        record.service_id,
        None if record.notifier is None else notifier_creds(record.notifier),
    )


def notifier_creds(notifier: Notifier) -> ServerNtfCreds:
    """What the recipient learns about credentials created here."""
    assert notifier.router_dh_key is not None, "credentials that were made elsewhere"
    return ServerNtfCreds(notifier.notifier_id, notifier.router_dh_key)


def may_secure(record: QueueRecord, key: PublicKey) -> bool:
    """Whether a sender may secure the queue with this key: in messaging mode, first or again."""
    return record.mode is QueueMode.MESSAGING and record.sender_key in (None, key)


def secure(turn: Turn, record: QueueRecord, key: PublicKey) -> Response:
    """KEY and SKEY: the first sender key is permanent."""
    if record.sender_key is None:
        turn.view.put_queue(record._replace(sender_key=key))
    elif record.sender_key != key:
        return AUTH
    turn.count(Meter.QUEUES_SECURED)
    return OK()


def set_recipient_keys(turn: Turn, record: QueueRecord, keys: tuple[PublicKey, ...]) -> Response:
    """RKEY: contact queues may have several owners."""
    if record.mode is not QueueMode.CONTACT:
        return AUTH
    if len(keys) > OWNERS_MAX:
        return ERR(PROHIBITED)
    turn.view.put_queue(record._replace(recipient_keys=keys))
    return OK()


def set_link(turn: Turn, client: RouterClient, record: QueueRecord, command: LSET) -> Response:
    """LSET: new link data, or other user data for the same link."""
    if record.mode is not QueueMode.CONTACT and record.sender_key is not None:
        return AUTH
    if record.link_id is None:
        if command.link_id in turn.view.links:
            return AUTH
        if not turn.stored.allows(client.account, LINK_BYTES):
            return FULL
        turn.view.put_queue(record._replace(link_id=command.link_id))
        turn.stored.add(client.account, (command.link_id, LINK), LINK_BYTES)
    else:
        stored = turn.view.link_data.get(record.link_id)
        if record.link_id != command.link_id or (stored is not None and stored.fixed != command.data.fixed):
            return AUTH
    turn.view.put_link(command.link_id, record.recipient_id, command.data)
    return OK()


def delete_link(turn: Turn, record: QueueRecord) -> Response:
    """LDEL, also when there is no link."""
    if record.link_id is not None:
        turn.view.delete_link(record.link_id)
        turn.view.put_queue(record._replace(link_id=None))
    return OK()


def is_contact(record: QueueRecord) -> bool:
    """Whether anyone may read the link: queues older than modes count while they are not secured."""
    return record.mode is QueueMode.CONTACT or (record.mode is None and record.sender_key is None)


def link_answer(turn: Turn, record: QueueRecord) -> Response:
    """What LKEY and LGET return about a queue."""
    data = None if record.link_id is None else turn.view.link_data.get(record.link_id)
    return AUTH if data is None else LNK(record.sender_id, data)


def secure_by_link(turn: Turn, record: QueueRecord, key: PublicKey) -> Response:
    """LKEY: secure the queue and read its link data."""
    secured = secure(turn, record, key)
    return link_answer(turn, record) if isinstance(secured, OK) else secured


def switch_off(turn: Turn, record: QueueRecord) -> Response:
    """OFF: accept no more messages; there is no way back on the wire."""
    if record.status is not Status.OFF:
        turn.view.put_queue(record._replace(status=Status.OFF))
    return OK()


def delete(turn: Turn, client: RouterClient, record: QueueRecord) -> Response:
    """DEL: the queue with everything in it."""
    queue_gone(turn, client, record)
    if record.notifier is not None:
        notifier_gone(turn, client, record.notifier)
    count_deleted(turn, record.recipient_id)
    turn.view.delete_queue(record)
    turn.count(Meter.QUEUES_DELETED)
    turn.count(Meter.QUEUES_DELETED_NEW if record.sender_key is None else Meter.QUEUES_DELETED_SECURED)
    return OK()


def info(turn: Turn, client: RouterClient, record: QueueRecord) -> Response:
    """QUE: for troubleshooting."""
    recipient_id = record.recipient_id
    ends = turn.view.ends(recipient_id)
    sub = client.subs.get(recipient_id)
    shown = None
    if sub is not None:
        waiting = recipient_id in client.waiting
        idle = SubThread.PENDING if waiting else SubThread.NO_SUB
        thread = SubThread.PROHIBITED if sub.kind is SubKind.GET else idle
        shown = SubInfo(thread, None if sub.delivered is None else sub.delivered.msg_id)
    head = None
    if ends.size:
        message = turn.view.message(recipient_id, ends.head)
        kind = MessageType.QUOTA if message.is_marker else MessageType.MESSAGE
        head = MessageInfo(message.msg_id, message.seconds * NANOSECONDS, kind)
    return INFO(QueueInfo(record.sender_key is not None, record.notifier is not None, shown, ends.size, head))


def send(turn: Turn, client: RouterClient, record: QueueRecord, command: SEND) -> Response:
    """SEND: store the message, push it if the subscriber waits for one, notify if asked to."""
    record = touch(turn, record)
    if len(command.body) > body_size_max(client.version):
        turn.count(Meter.SENT_LARGE)
        return ERR(Code.LARGE_MSG)
    if isinstance(record.status, BLOCKED):
        turn.count(Meter.SENT_BLOCKED)
        return ERR(record.status)
    if record.status is Status.OFF:
        turn.count(Meter.SENT_AUTH)
        return AUTH
    if record.link_id is not None and record.mode is QueueMode.MESSAGING and record.sender_key is not None:
        delete_link(turn, record)
        record = record._replace(link_id=None)
    if turn.rules.expire_on_send and turn.rules.message_ttl_s is not None:
        expire_head(turn, record.recipient_id, turn.now - turn.rules.message_ttl_s)
    ends, stored = turn.view.ends(record.recipient_id), turn.stored
    if stored.is_near and not stored.allows(client.account, MESSAGE_BYTES):
        # Senders know this answer and try again later; they may not know another one.
        turn.count(Meter.SENT_QUOTA)
        return ERR(Code.QUOTA)
    # The number makes ids unique within the queue forever: an id is the nonce of its message.
    msg_id = turn.entropy(RANDOM_ID_SIZE) + ends.tail.to_bytes(ID_SIZE - RANDOM_ID_SIZE, "big")
    if not append(turn, record, StoredMessage(msg_id, turn.now, command.notify, command.body)):
        turn.count(Meter.SENT_QUOTA)
        return ERR(Code.QUOTA)
    stored.add(client.account, (record.recipient_id, ends.tail), MESSAGE_BYTES)
    turn.count(Meter.SENT)
    turn.used(record.recipient_id, command.notify)
    if not ends.size:
        message_arrived(turn, record)
    if command.notify:
        turn.count(Meter.SENT_NTF)
        if record.notifier is not None:
            notify(turn, record.notifier, msg_id, ends.tail)
    return OK()


def touch(turn: Turn, record: QueueRecord) -> QueueRecord:
    """Mark the queue as used today; at most one write a day."""
    if record.updated_day == turn.today:
        return record
    touched = record._replace(updated_day=turn.today)
    turn.view.put_queue(touched)
    return touched
