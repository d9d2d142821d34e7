"""What all commands have in common, on rows in memory: who may say what, and what is loaded to answer."""

from __future__ import annotations

import pytest

from blindpost.crypto.boxes import nonce_of
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.router.commands import batch_meter
from blindpost.router.forwarding import ForwardedAnswer
from blindpost.router.meters import Meter
from blindpost.router.model import Notifier
from blindpost.router.state import RouterClient, SessionKeys
from blindpost.router.view import DAMAGED
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Writer, encode
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    LGET,
    NDEL,
    NSUB,
    NSUBS,
    OFF,
    PING,
    QUE,
    RFWD,
    RKEY,
    RSLV,
    SEND,
    SKEY,
    SUB,
    SUBS,
    UNKNOWN_COUNT,
    Command,
)
from blindpost.wire.smp.errors import (
    BLOCKED,
    NAME,
    PROHIBITED,
    STORE,
    SYNTAX,
    BlockingReason,
    Code,
    NameCode,
)
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.messages import ForwardedTransmission, write_forwarded_transmission
from blindpost.wire.smp.responses import ERR, OK, PONG, SOK, SOKS, Response
from blindpost.wire.smp.values import NO_IDS_HASH, QueueMode
from blindpost.wire.transmissions import Refused
from tests.support.router.forwarding import Sender
from tests.support.router.in_memory import (
    KNOWN,
    LAYOUT,
    OWNER_KEY,
    SERVICE_ID,
    SERVICE_KEY,
    SESSION_KEY,
    Desk,
    asked,
)
from tests.support.router.routers import new_key

Q, S, N, LINK = b"q", b"qs", b"n", b"l" * 24
AUTH, SPAM = ERR(Code.AUTH), BLOCKED(BlockingReason.SPAM)
SENDER, NOTIFIER_KEY = new_key(), new_key()
NOTIFIER = Notifier(N, NOTIFIER_KEY.public, Secret(bytes(32)), None)
BY_ITS_PARTY: list[tuple[Command, bytes, PrivateKey | None, Meter | None]] = [
    (SUB(), Q, OWNER_KEY, Meter.SUB_AUTH),
    (GET(), Q, OWNER_KEY, Meter.GET_AUTH),
    (SEND(False, b""), S, SENDER, Meter.SENT_AUTH),
    (NSUB(), N, NOTIFIER_KEY, Meter.NTF_SUB_AUTH),
    (QUE(), Q, OWNER_KEY, None),
    (SKEY(SENDER.public), S, SENDER, None),
]
BY_PARTY = pytest.mark.parametrize(
    ("command", "named", "key", "meter"), BY_ITS_PARTY, ids=["SUB", "GET", "SEND", "NSUB", "QUE", "SKEY"]
)


def a_desk(**fields: object) -> tuple[Desk, RouterClient]:
    """A router with one queue that all parties use, and a connection."""
    desk = Desk(KNOWN)
    queue = {"mode": QueueMode.MESSAGING, "sender_key": SENDER.public, "notifier": NOTIFIER, **fields}
    desk.queue(Q, 0, None, link_id=LINK, **queue)
    return desk, desk.client(None)


def is_untouched(desk: Desk, counted: dict[Meter, int] | None = None) -> bool:
    return (desk.turn.view.changes, len(desk.turn.outbox), desk.counted) == ([], 1, counted or {})


def test_what_cannot_be_read_is_answered_under_its_own_ids() -> None:
    desk, client = a_desk()
    assert desk.say(client, Refused(b"1", Q, SYNTAX), asked(PING())) == [ERR(SYNTAX), PONG()]
    assert [(one.corr_id, one.entity_id) for one in desk.turn.outbox] == [(b"1", Q), (b"corr", b"")]


@BY_PARTY
def test_a_command_needs_its_queue_and_its_key(
    command: Command, named: bytes, key: PrivateKey | None, meter: Meter | None
) -> None:
    desk, client = a_desk()
    counted = {} if meter is None else {meter: 1}
    for entity_id, offered in ((named, new_key()), (b"unknown", key), (named, None)):
        assert desk.say(client, asked(command, entity_id, offered)) == [AUTH]
        assert is_untouched(desk, counted)
        assert [(one.corr_id, one.entity_id) for one in desk.turn.outbox] == [(b"corr", entity_id)]
    (answer,) = desk.say(client, asked(command, named, key))
    assert not isinstance(answer, ERR)
    assert meter not in desk.counted
    assert desk.turn.outbox[0].entity_id == named


@BY_PARTY
def test_a_damaged_queue_does_not_look_deleted(
    command: Command, named: bytes, key: PrivateKey | None, meter: Meter | None
) -> None:
    desk, client = a_desk()
    desk.damaged.add(Q)
    for offered in (key, new_key()):
        assert desk.say(client, asked(command, named, offered)) == [ERR(STORE(DAMAGED))]
        assert is_untouched(desk)


def test_a_blocked_queue_answers_so_except_where_it_must_be_left() -> None:
    desk, client = a_desk(status=SPAM)
    refused: list[Command] = [SUB(), GET(), KEY(SENDER.public), NDEL(), QUE(), ACK(b"")]
    for command in refused:
        assert desk.say(client, asked(command, Q, OWNER_KEY)) == [ERR(SPAM)]
        assert is_untouched(desk)
        assert desk.say(client, asked(command, Q, SENDER)) == [AUTH], "not told to strangers"
    assert desk.say(client, asked(NSUB(), N, NOTIFIER_KEY)) == [SOK(None)]
    for command in (OFF(), DEL()):
        assert desk.say(client, asked(command, Q, OWNER_KEY)) == [OK()]
        assert desk.turn.view.changes


def test_a_key_counts_from_the_next_command_of_its_block_on() -> None:
    desk, client = a_desk(mode=QueueMode.CONTACT, sender_key=None)
    renewed = new_key()
    block = (
        asked(SUB(), Q, renewed),
        asked(RKEY((renewed.public,)), Q, OWNER_KEY),
        asked(QUE(), Q, OWNER_KEY),
        asked(SUB(), Q, renewed),
    )
    assert desk.say(client, *block) == [AUTH, OK(), AUTH, SOK(None)]
    block = (
        asked(SEND(False, b"before"), S),
        asked(KEY(SENDER.public), Q, OWNER_KEY),
        asked(SEND(False, b"late"), S),
        asked(SEND(False, b"signed"), S, SENDER),
    )
    assert desk.say(client, *block) == [OK(), OK(), AUTH, OK()]
    view = desk.turn.view
    assert [view.message(Q, number).body for number in range(view.ends(Q).tail)] == [b"before", b"signed"]
    deleted = asked(DEL(), Q, OWNER_KEY), asked(SEND(False, b"late"), S), asked(DEL(), Q, OWNER_KEY)
    assert desk.say(client, *deleted) == [OK(), AUTH, AUTH]


ROLES: list[tuple[Command, bytes, PrivateKey | None, set[ServiceRole]]] = [
    (SUB(), Q, OWNER_KEY, {ServiceRole.MESSAGING}),
    (QUE(), Q, OWNER_KEY, {ServiceRole.MESSAGING}),
    (NSUB(), N, NOTIFIER_KEY, {ServiceRole.NOTIFIER}),
    (SUBS(UNKNOWN_COUNT, NO_IDS_HASH), SERVICE_ID, SERVICE_KEY, {ServiceRole.MESSAGING}),
    (NSUBS(UNKNOWN_COUNT, NO_IDS_HASH), SERVICE_ID, SERVICE_KEY, {ServiceRole.NOTIFIER}),
    (PING(), b"", None, set(ServiceRole)),
    (RSLV("name"), b"", None, {ServiceRole.MESSAGING}),
]


@pytest.mark.parametrize(
    ("command", "named", "key", "roles"), ROLES, ids=["SUB", "QUE", "NSUB", "SUBS", "NSUBS", "PING", "RSLV"]
)
@pytest.mark.parametrize("role", ServiceRole)
def test_a_service_says_what_its_role_is_for(
    command: Command, named: bytes, key: PrivateKey | None, roles: set[ServiceRole], role: ServiceRole
) -> None:
    desk, _ = a_desk()
    client = desk.client(role=role)
    (answer,) = desk.say(client, asked(command, named, key, by_service=True))
    if role in roles:
        assert isinstance(answer, (SOK, SOKS, PONG)) or answer == _own_answer(command, answer)
    else:
        assert answer == ERR(PROHIBITED)
        assert is_untouched(desk)


def _own_answer(command: Command, answer: Response) -> Response:
    """What a role that may say this is answered: nobody resolves names; QUE shows the queue."""
    if isinstance(command, RSLV):
        return ERR(NAME(NameCode.NO_RESOLVER))
    assert isinstance(command, QUE)
    assert not isinstance(answer, ERR)
    return answer


def test_a_service_vouches_exactly_where_it_must() -> None:
    desk, plain = a_desk()
    client = desk.client()
    assert desk.say(client, asked(SUB(), Q, OWNER_KEY, by_service=True)) == [SOK(SERVICE_ID)]
    vouched = asked(SUB(), Q, OWNER_KEY, by_service=True)
    for asking, said in (
        (client, asked(SUB(), Q, OWNER_KEY)),
        (client, vouched._replace(service_signature=bytes(64))),
        (plain, vouched),
        (client, asked(QUE(), Q, OWNER_KEY)._replace(service_signature=bytes(64))),
    ):
        assert desk.say(asking, said) == [ERR(Code.SERVICE)]
        assert is_untouched(desk)
    subs = asked(SUBS(UNKNOWN_COUNT, NO_IDS_HASH), SERVICE_ID, OWNER_KEY, by_service=True)
    assert desk.say(client, subs) == [ERR(Code.SERVICE)], "signed by another key"


PROXY_KEY = new_key(Algorithm.X25519)


def forwarded(desk: Desk, client: RouterClient, *transmissions: Writer, sender: Sender) -> object:
    """The answer inside that is for the sender, or what the relay answers to the proxy itself, in a list."""
    sealed = sender.sealed(*transmissions)
    content = ForwardedTransmission(sender.corr_id, sender.version, sender.command_key.public, sealed)
    assert client.session_keys is not None
    box, corr_id = client.session_keys.box, b"c" * 24
    rfwd = RFWD(box.seal(nonce_of(corr_id), encode(content, write_forwarded_transmission)))
    (answer,) = desk.say(client, asked(rfwd, corr_id=corr_id))
    (outgoing,) = desk.turn.outbox
    assert (outgoing.corr_id, outgoing.entity_id) == (corr_id, b"")
    return answer.response if isinstance(answer, ForwardedAnswer) else [answer]


def test_a_proxy_gets_an_answer_that_only_its_sender_can_read() -> None:
    desk, _ = a_desk(sender_key=None)
    client = desk.client(None, proxy=SessionKeys(SESSION_KEY, PROXY_KEY.public))

    def a_sender() -> Sender:
        return Sender(LAYOUT.session_id, SESSION_KEY.public)

    sender = a_sender()
    assert forwarded(desk, client, sender.transmission(SEND(False, b"body"), S), sender=sender) == OK()
    assert desk.turn.view.message(Q, 0).body == b"body"
    assert desk.counted == {Meter.FORWARDED: 1, Meter.SENT: 1}
    sender = a_sender()
    assert forwarded(desk, client, sender.transmission(SUB(), Q, OWNER_KEY), sender=sender) == ERR(PROHIBITED)
    assert is_untouched(desk, {Meter.FORWARDED: 1})
    sender = a_sender()
    assert forwarded(desk, client, sender.transmission(LGET(), LINK), sender=sender) == AUTH
    assert is_untouched(desk, {Meter.FORWARDED: 1})
    sender = a_sender()
    two = [sender.transmission(SEND(False, b"body"), S)] * 2
    assert forwarded(desk, client, *two, sender=sender) == [ERR(Code.BLOCK)]
    assert is_untouched(desk)


def test_only_proxies_forward() -> None:
    desk, client = a_desk()
    for asking, error in ((client, None), (desk.client(), PROHIBITED)):
        (answer,) = desk.say(asking, asked(RFWD(b"sealed")))
        assert isinstance(answer, ERR)
        assert error is None or answer == ERR(error)
        assert is_untouched(desk)


REFUSED = Refused(b"1" * 24, b"", Code.AUTH)


@pytest.mark.parametrize(
    ("items", "meter"),
    [
        ([SUB(), SUB()], Meter.SUB_BATCHES),
        ([DEL(), SUB(), DEL()], Meter.QUEUES_DELETED_BATCHES),
        ([NDEL(), NDEL()], Meter.NTF_DELETED_BATCHES),
        ([NSUB(), NSUB()], Meter.NTF_SUB_BATCHES),
        ([SUB()], None),
        ([SUB(), NSUB()], None),
        ([NSUB(), SUB()], None),
        ([ACK(b""), SUB()], None),
        ([SUB(), PING()], None),
        ([SEND(False, b""), SEND(False, b"")], None),
        ([], None),
    ],
)
def test_blocks_are_counted_as_the_reference_counts_them(items: list[Command], meter: Meter | None) -> None:
    """Two or more commands of one party, counted under the first; unparseable ones do not count."""
    requests = [asked(command) for command in items]
    assert batch_meter(requests) is meter
    assert batch_meter([REFUSED, *requests, REFUSED]) is meter
