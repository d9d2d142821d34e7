"""From a block to verdicts: what is loaded, what is verified and how often, and what may be reached."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blindpost.crypto.authorizers import Check, authorize
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.crypto.verifying import OneByOne
from blindpost.router.asking import Asked, ask, need_all, still_authorized, verify
from blindpost.router.changes import HEADS_OF_ACK, Needed, Wanted
from blindpost.router.commands import ROWS
from blindpost.router.model import OWNERS_MAX, Notifier
from blindpost.router.state import Delivered, RouterClient, Sub, SubKind
from blindpost.router.view import View
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    KEY,
    LGET,
    LSET,
    QUE,
    RKEY,
    SEND,
    SUB,
    Command,
)
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import LinkData, QueueMode
from tests.support.router.in_memory import KNOWN, LAYOUT, NOW, OWNER_KEY, SESSION_KEY, Desk, asked
from tests.support.router.routers import new_key

Q, X, S, N, LINK = b"q", b"x", b"qs", b"n", b"l" * 24
OTHER, SENDER, AGREEING = new_key(), new_key(), new_key(Algorithm.X25519)
NOTIFIER = Notifier(N, new_key().public, Secret(bytes(32)), None)
DATA = LinkData(b"fixed", b"user")


class Counting(OneByOne):
    """Verifies, and counts."""

    def __init__(self) -> None:
        self.checks = 0

    def verify_many(self, checks: Sequence[Check]) -> list[bool]:
        self.checks += len(checks)
        return super().verify_many(checks)


def a_desk(**fields: object) -> Desk:
    desk = Desk(KNOWN)
    desk.queue(Q, 3, None, **fields)
    desk.queue(X, 3, None)
    return desk


class Prepared:
    """A block that was asked for, loaded and verified."""

    def __init__(
        self,
        desk: Desk,
        *items: Request,
        client: RouterClient | None = None,
        keys: Sequence[bytes] = (),
        expire_before: int = 0,
    ) -> None:
        self.view, self.verifier, self.all = View(desk.undo), Counting(), list[Asked]()
        wanted, self.needed = Wanted(), Needed(expire_before=expire_before)
        self.client = client or desk.client(None)
        ask(self.client, items, desk.undo, wanted, self.all, keys)
        desk._load(wanted, self.view)
        self.verified = verify(self.view, self.verifier, self.all)
        need_all(self.needed, self.view, self.all)

    @property
    def verdicts(self) -> list[bool]:
        return [one.authorized for one in self.all]


def test_nothing_is_authorized_before_it_is_verified() -> None:
    desk = a_desk()
    fresh = Asked(desk.client(None), asked(SUB(), Q, OWNER_KEY), ROWS[SUB])
    assert (fresh.authorized, fresh.vouched, fresh.record, fresh.keys) == (False, False, None, ())


# What a front verified


def test_a_front_is_believed_about_the_one_key() -> None:
    wrong = asked(SUB(), Q, OTHER)
    believed = Prepared(a_desk(), wrong, keys=[OWNER_KEY.public.raw])
    assert (believed.verdicts, believed.verified, believed.verifier.checks) == ([True], [], 0)
    assert [one.vouched for one in believed.all] == [True]


def test_a_second_signature_on_a_connection_without_a_service_is_not_vouched_for() -> None:
    signed = asked(SUB(), Q, OWNER_KEY)._replace(service_signature=bytes(64))
    for keys in ([OWNER_KEY.public.raw], []):
        (one,) = Prepared(a_desk(), signed, keys=keys).all
        assert (one.authorized, one.vouched) == (True, False)


@pytest.mark.parametrize("key", [OTHER.public.raw, b""], ids=["another key", "no key"])
def test_a_front_is_not_believed_about_anything_else(key: bytes) -> None:
    right, wrong = asked(SUB(), Q, OWNER_KEY), asked(SUB(), Q, OTHER)
    found = Prepared(a_desk(), right, wrong, keys=[key, key])
    assert found.verdicts == [True, False]
    assert found.verified == found.all
    assert found.verifier.checks == 2


# How much is verified


@pytest.mark.parametrize(
    ("owners", "checks"), [([OWNER_KEY], 1), ([OTHER, OWNER_KEY], OWNERS_MAX)], ids=["one", "several"]
)
def test_so_much_is_verified_for_so_many_owners(owners: list[PrivateKey], checks: int) -> None:
    desk = a_desk(recipient_keys=tuple(key.public for key in owners))
    for key, verdict in ((OWNER_KEY, True), (SENDER, False)):
        found = Prepared(desk, asked(SUB(), Q, key))
        assert (found.verdicts, found.verifier.checks) == ([verdict], checks)


def test_an_unknown_queue_costs_one_check() -> None:
    found = Prepared(a_desk(), asked(SUB(), b"unknown", OWNER_KEY))
    assert (found.verdicts, found.verifier.checks) == ([False], 1)


def test_the_secret_of_an_authenticator_is_kept_once_it_has_verified_something() -> None:
    desk = a_desk(recipient_keys=(AGREEING.public,))
    client, corr_id = desk.client(None), b"c" * 24

    def secrets(key: PrivateKey) -> tuple[bool, bool]:
        """Whether the key authorizes, and whether the secret is there without a new agreement."""
        said = asked(SUB(), Q, None, corr_id)
        signed = authorize(key, said.authorized(LAYOUT), corr_id, SESSION_KEY.public)
        said = said._replace(authorization=signed)
        (verdict,) = Prepared(desk, said, client=client).verdicts
        first, second = (client.secrets.secret_with(AGREEING.public) for _ in range(2))
        return verdict, first is second

    assert secrets(new_key(Algorithm.X25519)) == (False, False), "an attempt leaves nothing"
    assert secrets(AGREEING) == (True, True)


def test_a_verdict_stands_while_the_queue_and_its_keys_do() -> None:
    desk = a_desk()
    (one,) = Prepared(desk, asked(SUB(), Q, OWNER_KEY)).all
    record, verifier = one.record, Counting()
    assert record is not None
    assert still_authorized(record, verifier, one)
    assert still_authorized(record._replace(updated_day=0), verifier, one)
    one.authorized = False
    assert not still_authorized(record, verifier, one)
    assert not still_authorized(record._replace(updated_day=0), verifier, one)
    assert verifier.checks == 0
    rekeyed = record._replace(recipient_keys=(OTHER.public, OWNER_KEY.public))
    assert still_authorized(rekeyed, verifier, one)
    assert not still_authorized(None, verifier, one)
    assert verifier.checks == OWNERS_MAX + 1


# What may be reached


def reached(
    desk: Desk, *items: Request, expire_before: int = 0, client: RouterClient | None = None
) -> Needed:
    needed = Prepared(desk, *items, expire_before=expire_before, client=client).needed
    assert needed.expire_before == expire_before
    needed.expire_before = 0
    return needed


def test_only_what_is_authorized_reaches_messages() -> None:
    desk = a_desk()
    assert reached(desk, asked(SUB(), Q, OWNER_KEY)) == Needed(ends={Q}, messages={Q: 1})
    assert reached(desk, asked(SUB(), Q, OTHER)) == Needed()
    assert reached(desk, asked(SUB(), b"unknown", OWNER_KEY)) == Needed()
    both = asked(QUE(), Q, OWNER_KEY), asked(SUB(), Q, OTHER)
    assert reached(desk, *both) == Needed(ends={Q}, messages={Q: 1})


def test_what_an_earlier_command_may_authorize_is_loaded_too() -> None:
    desk = a_desk()
    rekey = asked(RKEY((OTHER.public,)), Q, OWNER_KEY)
    later, elsewhere = asked(SUB(), Q, OTHER), asked(SUB(), X, OTHER)
    assert reached(desk, rekey, later, elsewhere) == Needed(ends={Q}, messages={Q: 1})
    stranger = asked(RKEY((OTHER.public,)), Q, OTHER)
    assert reached(desk, stranger, later) == Needed()
    secured = asked(KEY(SENDER.public), Q, OWNER_KEY)
    assert reached(desk, secured, asked(SEND(False, b""), S, SENDER)) == Needed(ends={Q})


@pytest.mark.parametrize(
    ("sub", "acknowledged"),
    [
        (None, {}),
        (Sub(SubKind.PUSH), {}),
        (Sub(SubKind.PUSH, Delivered(b"other", 1, NOW, False, False)), {}),
        (Sub(SubKind.PUSH, Delivered(b"id", 1, NOW, False, False)), {Q: 1}),
    ],
    ids=["not subscribed", "nothing in flight", "another message", "this one"],
)
def test_an_acknowledged_message_is_named_by_its_number(
    sub: Sub | None, acknowledged: dict[bytes, int]
) -> None:
    desk = a_desk()
    client = desk.client(None)
    if sub is not None:
        client.subs.put(Q, sub)
    found = reached(desk, asked(ACK(b"id"), Q, OWNER_KEY), client=client)
    assert found == Needed(ends={Q}, messages={Q: HEADS_OF_ACK}, acknowledged=acknowledged)


def test_sending_may_expire_what_is_old() -> None:
    desk = a_desk(sender_key=SENDER.public)
    send = asked(SEND(False, b""), S, SENDER)
    assert reached(desk, send) == Needed(ends={Q})
    assert reached(desk, send, expire_before=NOW) == Needed(ends={Q}, expire={Q})
    assert reached(desk, asked(DEL(), Q, OWNER_KEY), expire_before=NOW) == Needed(ends={Q})


@pytest.mark.parametrize("notifier", [None, NOTIFIER], ids=["no notifier", "notifier"])
def test_deleting_a_queue_reaches_its_notifications(notifier: Notifier | None) -> None:
    found = reached(a_desk(notifier=notifier), asked(DEL(), Q, OWNER_KEY))
    assert found == Needed(ends={Q}, notifications={N} if notifier else set())


@pytest.mark.parametrize(
    ("command", "entity_id", "key", "link_data"),
    [
        (LGET(), LINK, None, {LINK}),
        (LSET(LINK, DATA), Q, OWNER_KEY, {LINK}),
        (KEY(SENDER.public), Q, OWNER_KEY, set()),
    ],
    ids=["LGET", "LSET", "KEY"],
)
def test_who_reaches_the_data_of_a_link(
    command: Command, entity_id: bytes, key: PrivateKey | None, link_data: set[bytes]
) -> None:
    desk = a_desk(link_id=LINK, mode=QueueMode.CONTACT)
    assert reached(desk, asked(command, entity_id, key)) == Needed(link_data=link_data)


def test_a_queue_without_a_link_has_no_data() -> None:
    assert reached(a_desk(), asked(LSET(LINK, DATA), Q, OWNER_KEY)) == Needed()
