"""NEW, KEY, links, OFF, DEL and QUE on rows in memory: what is answered, written, counted and pushed."""

from __future__ import annotations

from typing import Any

import pytest

from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.secret import Secret
from blindpost.router.changes import DeleteLink, DeleteQueue, PutLink, PutQueue
from blindpost.router.config import RouterRules
from blindpost.router.meters import Meter
from blindpost.router.model import OWNERS_MAX, Domain, Ends, Notifier, QueueRecord, Status
from blindpost.router.queues import FULL
from blindpost.router.state import GET_IDLE, PUSH_IDLE, Delivered, RouterClient, Sub, SubKind
from blindpost.router.weights import LINK_BYTES, QUEUE_BYTES
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.smp.commands import (
    DEL,
    KEY,
    LDEL,
    LGET,
    LKEY,
    LSET,
    NEW,
    OFF,
    QUE,
    RKEY,
    SEND,
    SKEY,
    Command,
)
from blindpost.wire.smp.errors import BLOCKED, PROHIBITED, BlockingReason, Code
from blindpost.wire.smp.queue_info import MessageInfo, MessageType, QueueInfo, SubInfo, SubThread
from blindpost.wire.smp.responses import DELD, ERR, IDS, INFO, LNK, OK
from blindpost.wire.smp.values import LinkData, NewLink, NtfCreds, QueueMode, QueueRequest, SubMode
from tests.support.router.in_memory import KNOWN, NOW, OWNER_KEY, SERVICE_ID, TODAY, Desk, a_message, asked
from tests.support.router.routers import new_key

Q, S, CORR, LINK = b"q", b"qs", b"corr", b"l" * 24
AUTH, BLOCKED_BY_OPERATOR = ERR(Code.AUTH), BLOCKED(BlockingReason.SPAM)
SENDER, DH, NTF_DH = new_key(), new_key(Algorithm.X25519), new_key(Algorithm.X25519)
CREDS = NtfCreds(SENDER.public, NTF_DH.public)
DATA, MORE, FOREIGN = LinkData(b"fixed", b"user"), LinkData(b"fixed", b"more"), LinkData(b"other", b"user")
MESSAGING, CONTACT = QueueMode.MESSAGING, QueueMode.CONTACT
NOTIFIER = Notifier(b"n", SENDER.public, Secret(bytes(32)), None)
MODES = [MESSAGING, CONTACT, None]


def a_new(
    request: QueueRequest | None = None,
    *,
    subscribe: bool = True,
    password: bytes | None = None,
    creds: NtfCreds | None = None,
    key: PublicKey = OWNER_KEY.public,
) -> NEW:
    mode = SubMode.SUBSCRIBE if subscribe else SubMode.ONLY_CREATE
    return NEW(key, DH.public, password, mode, request, creds)


def with_link(mode: QueueMode, link_id: bytes = LINK) -> QueueRequest:
    return QueueRequest(mode, NewLink(sender_id_of(CORR), DATA, link_id if mode is CONTACT else None))


def said(desk: Desk, client: RouterClient, command: Command, entity_id: bytes = b"", **by: Any) -> Any:
    """The answer to one command, by the owner unless it is said by whom."""
    key = by.pop("key", OWNER_KEY)
    by_service = client.service is not None
    (answer,) = desk.say(client, asked(command, entity_id, key, CORR, by_service=by_service))
    return answer


def stays(desk: Desk, counted: dict[Meter, int] | None = None) -> None:
    """The last turn changed nothing, and told nobody but the one who asked."""
    assert (desk.turn.view.changes, len(desk.turn.outbox), desk.counted) == ([], 1, counted or {})


REQUESTS = [
    None,
    QueueRequest(MESSAGING),
    QueueRequest(CONTACT),
    with_link(MESSAGING),
    with_link(CONTACT),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=["old", "messaging", "contact", "link", "own link"])
@pytest.mark.parametrize("subscribe", [True, False])
@pytest.mark.parametrize("creds", [None, CREDS], ids=["silent", "notified"])
def test_new_creates_the_queue_that_was_asked_for(
    request_: QueueRequest | None, subscribe: bool, creds: NtfCreds | None
) -> None:
    desk = Desk()
    client = desk.client(None)
    ids = said(desk, client, a_new(request_, subscribe=subscribe, creds=creds))
    assert isinstance(ids, IDS)
    record = desk.turn.view.records.get(ids.recipient_id)
    assert record is not None
    link = None if request_ is None else request_.link
    assert record.recipient_id == ids.recipient_id != ids.sender_id == record.sender_id
    assert len(ids.recipient_id) == len(ids.sender_id) == 24
    assert (ids.sender_id == sender_id_of(CORR)) is (link is not None)
    assert record.secret.raw == DH.agree(ids.dh_key), "both can agree on the secret"
    assert record.recipient_keys == (OWNER_KEY.public,)
    assert (record.recipient_dh_key, record.router_dh_key) == (DH.public.raw, ids.dh_key.raw)
    assert record.mode is ids.mode is (None if request_ is None else request_.mode)
    assert (record.updated_day, record.status, record.sender_key) == (TODAY, Status.ACTIVE, None)
    assert ids.service_id is record.service_id is None
    written = {type(change) for change in desk.turn.view.changes}
    if link is None:
        assert ids.link_id is record.link_id is None
        assert written == {PutQueue}
    else:
        assert ids.link_id is not None
        assert record.link_id == ids.link_id
        assert len(ids.link_id) == 24
        assert (ids.link_id == LINK) is (link.link_id is not None)
        assert written == {PutQueue, PutLink}
        assert desk.turn.view.link_data.get(ids.link_id) == DATA
        assert desk.turn.view.links.get(ids.link_id) == ids.recipient_id
    if creds is None:
        assert (ids.ntf_creds, record.notifier) == (None, None)
    else:
        assert ids.ntf_creds is not None
        assert record.notifier is not None
        assert record.notifier.notifier_id == ids.ntf_creds.notifier_id
        assert record.notifier.secret.raw == NTF_DH.agree(ids.ntf_creds.dh_key)
        assert record.notifier.key == SENDER.public
    assert client.subs.get(ids.recipient_id) == (PUSH_IDLE if subscribe else None)
    assert (desk.state.queues.holder(ids.recipient_id) is client) is subscribe
    noted = {} if creds is None else {Meter.NTF_NEW_CREATED: 1}
    assert desk.counted == {Meter.QUEUES_CREATED: 1, **noted}
    assert len(desk.turn.outbox) == 1


def test_a_service_creates_queues_of_its_own_only() -> None:
    desk = Desk(KNOWN)
    client = desk.client()
    assert said(desk, client, a_new(subscribe=False)) == ERR(PROHIBITED)
    stays(desk)
    ids = said(desk, client, a_new())
    assert ids.service_id == SERVICE_ID
    record = desk.turn.view.records.get(ids.recipient_id)
    assert record is not None
    assert record.service_id == SERVICE_ID
    assert desk.known[SERVICE_ID].queues.count == KNOWN.queues.count + 1
    assert desk.state.services(Domain.MESSAGES).holder(SERVICE_ID) is client


@pytest.mark.parametrize(
    ("rules", "password", "is_made"),
    [
        (RouterRules(), None, True),
        (RouterRules(), b"any", True),
        (RouterRules(password=b"pass"), b"pass", True),
        (RouterRules(password=b"pass"), b"other", False),
        (RouterRules(password=b"pass"), None, False),
        (RouterRules(new_queues=False), None, False),
        (RouterRules(new_queues=False, password=b"pass"), b"pass", False),
    ],
    ids=["open", "needless", "right", "wrong", "none", "closed", "closed, right"],
)
def test_who_may_create_queues_is_the_operators_choice(
    rules: RouterRules, password: bytes | None, is_made: bool
) -> None:
    desk = Desk(rules=rules)
    answer = said(desk, desk.client(None), a_new(password=password))
    assert isinstance(answer, IDS) is is_made
    if not is_made:
        assert answer == AUTH
        stays(desk)


def test_a_sender_id_that_is_not_derived_or_a_link_in_use_is_refused() -> None:
    desk = Desk()
    client = desk.client(None)
    link = NewLink(sender_id_of(b"other"), DATA)
    assert said(desk, client, a_new(QueueRequest(MESSAGING, link))) == ERR(PROHIBITED)
    stays(desk)
    desk.queue(Q, 0, None, link_id=LINK)
    assert said(desk, client, a_new(with_link(CONTACT))) == AUTH
    stays(desk)
    assert isinstance(said(desk, client, a_new(with_link(CONTACT, b"k" * 24))), IDS)


@pytest.mark.parametrize(
    ("request_", "size"),
    [(None, QUEUE_BYTES), (with_link(CONTACT), QUEUE_BYTES + LINK_BYTES)],
    ids=["bare", "link"],
)
def test_a_queue_needs_room_for_itself_and_its_link(request_: QueueRequest | None, size: int) -> None:
    desk = Desk(room=1 << 30)
    client = desk.client(None)
    for room, is_made in ((size - 1, False), (size, True)):
        desk.stored.look(desk.stored.limit - room)
        answer = said(desk, client, a_new(request_))
        assert isinstance(answer, IDS) is is_made
        assert desk.stored.limit - desk.stored.total == (0 if is_made else room)
        assert desk.stored.largest() == ([size] if is_made else [])
    assert said(desk, client, a_new(QueueRequest(MESSAGING))) == FULL
    stays(desk)


def repeatable(desk: Desk, messages: int = 1, **fields: Any) -> QueueRecord:
    """A queue that was made by a NEW whose answer may be lost."""
    made = {"sender_id": sender_id_of(CORR), "recipient_dh_key": DH.public.raw, **fields}
    router_key = new_key(Algorithm.X25519).public.raw
    return desk.queue(Q, messages, None, mode=MESSAGING, router_dh_key=router_key, link_id=LINK, **made)


@pytest.mark.parametrize("messages", [0, 1])
@pytest.mark.parametrize("subscribe", [True, False])
@pytest.mark.parametrize("held", [None, PUSH_IDLE, GET_IDLE], ids=["new", "subscribed", "reads"])
def test_a_repeated_new_gets_the_same_answer_and_then_its_message(
    messages: int, subscribe: bool, held: Sub | None
) -> None:
    desk = Desk()
    record, client = repeatable(desk, messages), desk.client(None)
    if held is not None:
        client.subs.fill(Q, held)
    ids = said(desk, client, a_new(with_link(MESSAGING), subscribe=subscribe))
    assert (ids.recipient_id, ids.sender_id, ids.mode, ids.link_id) == (Q, record.sender_id, MESSAGING, LINK)
    assert (ids.dh_key.raw, ids.ntf_creds, ids.service_id) == (record.router_dh_key, None, None)
    is_subscribed = subscribe and held is not GET_IDLE
    is_pushed = is_subscribed and messages
    assert desk.events(client) == ([(Q, a_message(Q))] if is_pushed else [])
    assert [one.corr_id for one in desk.turn.outbox] == [CORR, b""][: 2 if is_pushed else 1]
    in_flight = Sub(SubKind.PUSH, Delivered(a_message(Q).msg_id, 0, NOW, False, True))
    assert client.subs.get(Q) == (in_flight if is_pushed else PUSH_IDLE if is_subscribed else held)
    assert (desk.state.queues.holder(Q) is client) is is_subscribed
    assert (desk.turn.view.changes, desk.counted) == ([], {}), "nothing is created"


def test_a_repeated_new_is_for_the_same_keys_on_a_queue_that_can_be_used() -> None:
    desk = Desk()
    client, again = desk.client(None), a_new(with_link(MESSAGING))
    for fields in ({"recipient_keys": (SENDER.public,)}, {"recipient_dh_key": NTF_DH.public.raw}):
        repeatable(desk, **fields)
        assert said(desk, client, again) == AUTH
        stays(desk)
    repeatable(desk, status=BLOCKED_BY_OPERATOR)
    assert said(desk, client, again) == ERR(BLOCKED_BY_OPERATOR)
    stays(desk)
    repeatable(desk)
    desk.damaged.add(Q)
    assert said(desk, client, again) == AUTH
    stays(desk)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("secured", [None, SENDER.public, OWNER_KEY.public], ids=["open", "same", "other"])
@pytest.mark.parametrize("command", [KEY, SKEY, LKEY])
def test_the_first_sender_key_is_permanent(
    mode: QueueMode | None, secured: PublicKey | None, command: type[KEY | SKEY | LKEY]
) -> None:
    desk = Desk()
    client, made = desk.client(None), desk.queue(Q, 0, None, mode=mode, sender_key=secured, link_id=LINK)
    desk.links[LINK] = DATA
    named, key = {KEY: (Q, OWNER_KEY), SKEY: (S, SENDER), LKEY: (LINK, SENDER)}[command]
    answer = said(desk, client, command(SENDER.public), named, key=key)
    may = mode is MESSAGING or command is KEY
    if not may or secured == OWNER_KEY.public:
        assert answer == AUTH
        stays(desk)
        return
    assert answer == (LNK(S, DATA) if command is LKEY else OK())
    changed = [] if secured else [PutQueue(made._replace(sender_key=SENDER.public), made)]
    assert desk.turn.view.changes == changed
    assert desk.counted == {Meter.QUEUES_SECURED: 1}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, OWNERS_MAX, OWNERS_MAX + 1])
def test_only_contact_queues_have_several_owners(mode: QueueMode | None, count: int) -> None:
    desk = Desk()
    client, made = desk.client(None), desk.queue(Q, 0, None, mode=mode)
    keys = (SENDER.public,) * count
    answer = said(desk, client, RKEY(keys), Q)
    if mode is CONTACT and count <= OWNERS_MAX:
        assert answer == OK()
        assert desk.turn.view.changes == [PutQueue(made._replace(recipient_keys=keys), made)]
        assert desk.turn.view.records.get(Q) == made._replace(recipient_keys=keys)
    else:
        assert answer == (AUTH if mode is not CONTACT else ERR(PROHIBITED))
        stays(desk)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", [None, SENDER.public], ids=["open", "secured"])
def test_lset_gives_a_queue_its_link(mode: QueueMode | None, key: PublicKey | None) -> None:
    desk = Desk()
    client, made = desk.client(None), desk.queue(Q, 0, None, mode=mode, sender_key=key)
    answer = said(desk, client, LSET(LINK, DATA), Q)
    if mode is not CONTACT and key is not None:
        assert answer == AUTH
        stays(desk)
        return
    assert answer == OK()
    linked = made._replace(link_id=LINK)
    assert desk.turn.view.changes == [PutQueue(linked, made), PutLink(LINK, Q, DATA)]
    desk.queue(b"other", 0, None, link_id=LINK)
    assert said(desk, client, LSET(LINK, DATA), Q) == AUTH, "it belongs to another queue"
    stays(desk)


def test_a_link_needs_room() -> None:
    desk = Desk()
    client, _ = desk.client(None), desk.queue(Q, 0, None, mode=CONTACT)
    for room, answer in ((LINK_BYTES - 1, FULL), (LINK_BYTES, OK())):
        desk.stored.look(desk.stored.limit - room)
        assert said(desk, client, LSET(LINK, DATA), Q) == answer
    assert (desk.stored.limit - desk.stored.total, desk.stored.largest()) == (0, [LINK_BYTES])
    desk.queue(Q, 0, None, mode=CONTACT, link_id=LINK)
    assert said(desk, client, LSET(LINK, DATA), Q) == OK(), "what it has takes no more room"


def test_only_the_users_part_of_a_link_changes() -> None:
    desk = Desk()
    client, _ = desk.client(None), desk.queue(Q, 0, None, mode=CONTACT, link_id=LINK)
    for stored in (DATA, None):
        desk.links = {} if stored is None else {LINK: stored}
        assert said(desk, client, LSET(LINK, MORE), Q) == OK()
        assert desk.turn.view.changes == [PutLink(LINK, Q, MORE)]
        assert said(desk, client, LSET(b"k" * 24, MORE), Q) == AUTH
        stays(desk)
    desk.links = {LINK: DATA}
    for data in (FOREIGN, LinkData(b"", b"")):
        assert said(desk, client, LSET(LINK, data), Q) == AUTH
        stays(desk)


def test_ldel_removes_the_link_once() -> None:
    desk = Desk()
    client, made = desk.client(None), desk.queue(Q, 0, None, link_id=LINK)
    assert said(desk, client, LDEL(), Q) == OK()
    unlinked = made._replace(link_id=None)
    assert desk.turn.view.changes == [DeleteLink(LINK), PutQueue(unlinked, made)]
    desk.queue(Q, 0, None)
    assert said(desk, client, LDEL(), Q) == OK()
    stays(desk)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", [None, SENDER.public], ids=["open", "secured"])
def test_anybody_reads_the_link_of_a_contact_queue(mode: QueueMode | None, key: PublicKey | None) -> None:
    """Queues older than modes count while they are not secured."""
    desk = Desk()
    client, _ = desk.client(None), desk.queue(Q, 0, None, mode=mode, sender_key=key, link_id=LINK)
    desk.links[LINK] = DATA
    may = mode is CONTACT or (mode is None and key is None)
    assert said(desk, client, LGET(), LINK, key=None) == (LNK(S, DATA) if may else AUTH)
    stays(desk)
    desk.links.clear()
    assert said(desk, client, LGET(), LINK, key=None) == AUTH


def test_off_refuses_messages_and_is_final() -> None:
    desk = Desk()
    client, made = desk.client(None), desk.queue(Q, 0, None)
    assert said(desk, client, OFF(), Q) == OK()
    assert desk.turn.view.changes == [PutQueue(made._replace(status=Status.OFF), made)]
    desk.queue(Q, 0, None, status=Status.OFF)
    assert said(desk, client, OFF(), Q) == OK()
    stays(desk)
    assert said(desk, client, SEND(True, b"body"), S, key=None) == AUTH
    stays(desk, {Meter.SENT_AUTH: 1})


@pytest.mark.parametrize("messages", [0, 1, 3])
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("key", [None, SENDER.public], ids=["open", "secured"])
@pytest.mark.parametrize("notifier", [None, NOTIFIER], ids=["silent", "notified"])
def test_del_takes_everything_with_it(
    messages: int, is_closed: bool, key: PublicKey | None, notifier: Notifier | None
) -> None:
    desk = Desk()
    client, holder, notified = (desk.client(None) for _ in range(3))
    made = desk.queue(Q, messages, None, sender_key=key, notifier=notifier)
    markers = int(is_closed and messages > 0)
    if markers:
        desk.closed.add(Q)
    desk.state.queues.take_over(Q, holder)
    desk.state.notifiers.take_over(b"n", notified)
    desk.undo.forget()
    holder.subs.fill(Q, PUSH_IDLE)
    notified.notifier_ids.fill(b"n", True)
    assert said(desk, client, DEL(), Q) == OK()
    assert desk.turn.view.changes == [DeleteQueue(made, Ends(0, messages, not markers))]
    assert desk.turn.view.records.get(Q) is None
    assert desk.events(holder) == [(Q, DELD())]
    assert desk.events(notified) == ([(b"n", DELD())] if notifier else [])
    assert (len(holder.subs), len(notified.notifier_ids)) == (0, 0 if notifier else 1)
    gone = {Meter.MESSAGES_DELETED: messages - markers, Meter.MARKERS_GONE: markers}
    kind = Meter.QUEUES_DELETED_NEW if key is None else Meter.QUEUES_DELETED_SECURED
    ended = {Meter.SUB_ENDS: 2 if notifier else 1}
    counted = {Meter.QUEUES_DELETED: 1, kind: 1, **ended, **gone}
    assert desk.counted == {meter: by for meter, by in counted.items() if by}


@pytest.mark.parametrize(
    ("held", "waits", "shown"),
    [
        (None, False, None),
        (PUSH_IDLE, False, SubInfo(SubThread.NO_SUB, None)),
        (PUSH_IDLE, True, SubInfo(SubThread.PENDING, None)),
        (GET_IDLE, False, SubInfo(SubThread.PROHIBITED, None)),
        (
            Sub(SubKind.PUSH, Delivered(b"id", 0, NOW, False, True)),
            False,
            SubInfo(SubThread.NO_SUB, b"id"),
        ),
    ],
    ids=["nobody", "idle", "waits", "reads", "in flight"],
)
def test_que_shows_a_queue_and_the_askers_part_in_it(
    held: Sub | None, waits: bool, shown: SubInfo | None
) -> None:
    desk = Desk()
    client = desk.client(None)
    if held is not None:
        client.subs.fill(Q, held)
    if waits:
        client.waiting.fill(Q, True)
    desk.queue(Q, 0, None)
    assert said(desk, client, QUE(), Q) == INFO(QueueInfo(False, False, shown, 0, None))
    desk.queue(Q, 2, None, sender_key=SENDER.public)
    head, time = a_message(Q), (NOW - 9) * 1_000_000_000
    message = MessageInfo(head.msg_id, time, MessageType.MESSAGE)
    assert said(desk, client, QUE(), Q) == INFO(QueueInfo(True, False, shown, 2, message))
    desk.queue(Q, 1, None, notifier=NOTIFIER)
    desk.closed.add(Q)
    marker = MessageInfo(head.msg_id, time, MessageType.QUOTA)
    assert said(desk, client, QUE(), Q) == INFO(QueueInfo(False, True, shown, 1, marker))
    stays(desk)
