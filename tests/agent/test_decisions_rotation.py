"""The sender's side of a rotation, step by step on the rows of a store: all that each step may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from blindpost.agent.errors import AgentError
from blindpost.agent.events import Direction, Switched, SwitchPhase
from blindpost.agent.model import MessageKind, QueueStatus, SndSwitch
from blindpost.agent.rotation import sender
from blindpost.agent.store import queues
from blindpost.agent.store import rotation as rows
from blindpost.agent.store.database import AgentStore
from blindpost.wire.agent.messages import AddedQueue, UsedQueue
from blindpost.wire.keys import Algorithm
from blindpost.wire.queue_addresses import QueueAddress, QueueUri, SenderAddress
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.versions import VersionRange
from tests.support.agent.rows import CONN, FIRST, NOW, ROUTER, Rows, a_key

KEYS = {name: a_key(name, Algorithm.X25519) for name in "bc"}


def offered(name: str) -> QueueUri:
    """A queue of the peer."""
    queue_id = f"queue {name}".encode().ljust(24)
    address = QueueAddress(ROUTER, queue_id, KEYS[name].public, QueueMode.MESSAGING)
    return QueueUri(VersionRange(1, 4), address)


def address(queue_id: bytes) -> SenderAddress:
    return SenderAddress(ROUTER, queue_id)


class Following(Rows):
    """What happens to the sender in a rotation of its peer."""

    @property
    def told(self) -> list[SwitchPhase]:
        phases = []
        for event in self.events:
            assert isinstance(event, Switched)
            assert (event.conn.id, event.direction) == (CONN, Direction.SND)
            phases.append(event.phase)
        return phases

    def is_left(self, queue_id: bytes) -> bool:
        return rows.is_left(self._store.reading, CONN, queue_id)

    # What happens to it

    def taken(self, internal_id: int, kind: MessageKind = MessageKind.A_MSG, number: int = 1) -> bool:
        """Its router took a message; whether that is kept."""
        delivery_id = self.delivery_id(internal_id, number)
        with self.step() as tx:
            return sender.kept_for_rotation(tx, self.queue(number), delivery_id, kind)

    def added(self, name: str, replaced: bytes | None = FIRST) -> None:
        given = AddedQueue(offered(name), None if replaced is None else address(replaced))
        with self.step() as tx:
            sender.added(tx, self.whole, given)

    def used(self, queue_id: bytes) -> None:
        with self.step() as tx:
            sender.used(tx, self.whole, UsedQueue(address(queue_id), True))

    def qkey_delivered(self) -> None:
        with self.step() as tx:
            sender.qkey_delivered(tx, self.whole)

    def qtest_delivered(self, queue_id: bytes) -> None:
        with self.step() as tx:
            sender.qtest_delivered(tx, self.whole, address(queue_id))


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Following]:
    with closing(AgentStore.open(tmp_path / "a.db")) as store:
        yield Following(store)


QUEUE_B, QUEUE_C = (offered(name).address.sender_id for name in "bc")
ACTIVE, NEW, SECURED = QueueStatus.ACTIVE, QueueStatus.NEW, QueueStatus.SECURED
SENDING_QKEY, SENDING_QTEST = SndSwitch.SENDING_QKEY, SndSwitch.SENDING_QTEST


def test_qadd_makes_a_queue_and_answers_through_the_old_one(following: Following) -> None:
    following.added("b")
    assert following.rows == {
        1: (FIRST, ACTIVE, True, None, SENDING_QKEY, NOW),
        2: (QUEUE_B, NEW, True, 1, None, None),
    }
    new = following.queue(2)
    assert new.e2e_secret == KEYS["b"].agree(new.e2e_public)
    assert (new.client_version, new.mode, new.server) == (4, QueueMode.MESSAGING, ROUTER)
    assert following.deliveries == [(1, 1, "QK", 0)]
    assert (following.told, following.woken, following.hurried) == ([SwitchPhase.STARTED], [1], [])


def test_a_whole_rotation(following: Following) -> None:
    """QKEY is taken, the peer secured its queue, QTEST is taken: the old queue is left."""
    following.added("b")
    assert following.taken(1, MessageKind.QKEY)
    following.qkey_delivered()
    assert following.told == [SwitchPhase.STARTED, SwitchPhase.CONFIRMED]
    before = following.send()
    assert following.taken(before), "the peer may delete its queue before it reads this"
    waits = following.send()
    following.forget_signals()

    following.used(QUEUE_B)
    assert following.rows == {
        1: (FIRST, ACTIVE, True, None, SENDING_QTEST, NOW),
        2: (QUEUE_B, SECURED, True, 1, None, None),
    }
    assert following.deliveries == [
        (1, 1, "QK", rows.KEPT),
        (1, before, "M", rows.KEPT),
        (2, before, "M", 0),
        (1, waits, "M", 0),
        (2, waits, "M", 0),
        (2, waits + 1, "QT", 0),
    ]
    assert (following.told, following.woken, following.hurried) == ([SwitchPhase.SECURED], [2, 2], [])
    following.forget_signals()

    following.qtest_delivered(QUEUE_B)
    assert following.rows == {2: (QUEUE_B, ACTIVE, True, None, None, None)}
    assert following.is_left(FIRST)
    assert following.deliveries == [(2, before, "M", 0), (2, waits, "M", 0), (2, waits + 1, "QT", 0)]
    assert following.messages == [(before, "M"), (waits, "M"), (waits + 1, "QT")], "QKEY is done with"
    assert (following.told, following.woken, following.hurried) == ([SwitchPhase.COMPLETED], [], [1])


def test_copies_wait_for_the_new_queue_even_if_qtest_does_already(following: Following) -> None:
    """A restored store may have QTEST of an earlier attempt; its queue must be told of the copies."""
    following.added("b")
    following.used(QUEUE_B)
    with following.step() as tx:
        queues.set_switch(tx, following.queue(1), SENDING_QKEY, NOW)
        queues.set_status(tx, following.queue(2), NEW)
    waits = following.send()
    following.forget_signals()
    following.used(QUEUE_B)
    assert [one for one in following.deliveries if one[0] == 2] == [
        (2, 1, "QK", 0),
        (2, 2, "QT", 0),
        (2, waits, "M", 0),
    ]
    assert following.woken == [2]


def test_each_step_comes_twice(following: Following) -> None:
    """A second QADD is answered again until QUSE came; QUSE makes one QTEST, however often it comes."""
    following.added("b")
    following.added("b")
    assert following.deliveries == [(1, 1, "QK", 0), (1, 2, "QK", 0)]
    assert len(following.rows) == 2
    following.qkey_delivered()
    following.qkey_delivered()
    following.used(QUEUE_B)
    made = following.deliveries
    following.forget_signals()
    following.used(QUEUE_B)
    following.qkey_delivered()
    following.added("b")
    assert following.deliveries == made
    assert following.rows[1][4] is SENDING_QTEST
    assert not following.told
    with following.step() as tx:
        tx.sql.execute("DELETE FROM snd_message_deliveries WHERE snd_queue_id = 2")
    following.used(QUEUE_B)
    assert [one[2] for one in following.deliveries if one[0] == 2] == ["QT"], "it was taken, and lost there"
    following.qtest_delivered(QUEUE_B)
    following.forget_signals()
    following.qtest_delivered(QUEUE_B)
    following.qkey_delivered()
    following.qtest_delivered(FIRST)
    assert (following.told, following.hurried) == ([], [])
    assert following.rows == {2: (QUEUE_B, ACTIVE, True, None, None, None)}
    following.used(QUEUE_B)
    assert following.deliveries[-1][::2] == (2, "QT"), "its recipient did not see the first"


def test_a_step_is_as_old_as_its_first_time(following: Following) -> None:
    following.added("b")
    with following.step() as tx:
        queues.set_switch(tx, following.queue(1), SENDING_QKEY, 5)
    following.added("b")
    following.qkey_delivered()
    assert following.rows[1][4:] == (SENDING_QKEY, 5)


def test_another_queue_is_offered_before_the_first_is_used(following: Following) -> None:
    """The peer took its rotation back and begins again: the first queue goes, with what waits for it."""
    following.added("b")
    following.taken(1, MessageKind.QKEY)
    kept = following.send()
    following.taken(kept)
    following.forget_signals()
    following.added("c")
    assert following.rows == {
        1: (FIRST, ACTIVE, True, None, SENDING_QKEY, NOW),
        3: (QUEUE_C, NEW, True, 1, None, None),
    }
    assert following.deliveries == [(1, kept + 1, "QK", 0)], "what the old queue took belongs to it again"
    assert following.messages == [(kept, "M"), (kept + 1, "QK")]
    assert (following.told, following.woken, following.hurried) == ([SwitchPhase.STARTED], [1], [2])


def test_another_queue_is_offered_after_the_first_was_secured(following: Following) -> None:
    """The first could take messages already; nothing is put there any more."""
    following.added("b")
    following.used(QUEUE_B)
    waits = following.send()
    following.forget_signals()
    following.added("c")
    assert following.rows == {
        1: (FIRST, ACTIVE, True, None, SENDING_QKEY, NOW),
        3: (QUEUE_C, NEW, True, 1, None, None),
    }
    assert following.deliveries == [(1, 1, "QK", 0), (1, waits, "M", 0), (1, waits + 1, "QK", 0)]
    assert (following.told, following.woken, following.hurried) == ([SwitchPhase.STARTED], [1], [2])


def test_only_queues_that_replace_the_same_one_are_superseded(following: Following) -> None:
    following.added("b")
    following.added("c", QUEUE_B)
    assert {number: row[0] for number, row in following.rows.items()} == {1: FIRST, 2: QUEUE_B, 3: QUEUE_C}
    assert not following.hurried


def nothing(_: Following) -> None:
    pass


def offered_one(following: Following) -> None:
    following.added("c")


def offered_two(following: Following) -> None:
    following.added("c")
    following.added("b", QUEUE_C)


def unsecured(following: Following) -> None:
    with following.step() as tx:
        queues.set_status(tx, following.queue(1), QueueStatus.CONFIRMED)


UNKNOWN = b"unknown".ljust(24)
Act = Callable[[Following], None]
REFUSED: dict[str, tuple[Act, Act, str]] = {
    "adds without replacing": (
        nothing,
        lambda one: one.added("b", None),
        "AGENT A_QUEUE: adding queue without switching is not supported",
    ),
    "replaces an unknown queue": (
        nothing,
        lambda one: one.added("b", UNKNOWN),
        "AGENT A_QUEUE: QADD: replaced queue address is not found in connection",
    ),
    "offers what replaces another": (
        offered_two,
        lambda one: one.added("c", QUEUE_B),
        "AGENT A_QUEUE: QADD: queue address is already used in connection",
    ),
    "offers one in use for an unknown one": (
        offered_one,
        lambda one: one.added("c", UNKNOWN),
        "AGENT A_QUEUE: QADD: queue address is already used in connection",
    ),
    "offers one in use for one that it never left": (
        lambda one: followed(one, "b"),
        lambda one: one.added("b", UNKNOWN),
        "AGENT A_QUEUE: QADD: queue address is already used in connection",
    ),
    "offers a new one for one that was left": (
        lambda one: followed(one, "b"),
        lambda one: one.added("c"),
        "AGENT A_QUEUE: QADD: replaced queue address is not found in connection",
    ),
    "uses an unknown queue": (
        nothing,
        lambda one: one.used(QUEUE_B),
        "AGENT A_QUEUE: QUSE: switched queue address not found in connection",
    ),
    "uses a queue that was not offered": (
        unsecured,
        lambda one: one.used(FIRST),
        "AGENT A_QUEUE: QUSE: switching queue not found in connection",
    ),
    "QTEST before QUSE": (
        offered_one,
        lambda one: one.qtest_delivered(QUEUE_C),
        "INTERNAL: QTEST was not sent",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(following: Following, case: str) -> None:
    first, act, why = REFUSED[case]
    first(following)
    following.forget_signals()
    before = following.rows, following.deliveries, following.messages
    with pytest.raises(AgentError) as refused:
        act(following)
    assert str(refused.value).startswith(why)
    assert (following.rows, following.deliveries, following.messages) == before
    assert (following.told, following.woken, following.hurried) == ([], [], [])


def followed(following: Following, name: str, replaced: bytes = FIRST) -> None:
    """A rotation to this queue, from its beginning to its end."""
    following.added(name, replaced)
    following.qkey_delivered()
    following.used(offered(name).address.sender_id)
    following.qtest_delivered(offered(name).address.sender_id)


def followed_twice(following: Following) -> None:
    followed(following, "b")
    followed(following, "c", QUEUE_B)


LATE: dict[str, tuple[Act, Act]] = {
    "QADD of the rotation that ended last": (lambda one: followed(one, "b"), lambda one: one.added("b")),
    "QADD of the one before": (followed_twice, lambda one: one.added("b")),
    "QUSE of the one before": (followed_twice, lambda one: one.used(QUEUE_B)),
}


@pytest.mark.parametrize("case", LATE)
def test_what_was_sent_again_may_come_when_its_rotation_has_ended(following: Following, case: str) -> None:
    """A connection has two queues while it moves, and what is sent again may take the slower one."""
    first, act = LATE[case]
    first(following)
    following.forget_signals()
    before = following.rows, following.deliveries, following.messages
    act(following)
    assert (following.rows, following.deliveries, following.messages) == before
    assert (following.told, following.woken, following.hurried) == ([], [], [])


def test_a_queue_of_another_version_is_refused(following: Following) -> None:
    newer = QueueUri(VersionRange(90, 99), offered("b").address)
    with pytest.raises(AgentError, match="A_VERSION"), following.step() as tx:
        sender.added(tx, following.whole, AddedQueue(newer, address(FIRST)))
    assert len(following.rows) == 1


def test_what_is_kept(following: Following) -> None:
    """From QKEY on, until QUSE; before that nothing can be lost with the old queue."""
    early, also_early = following.send(), following.send()
    assert not following.taken(early), "nothing is under way"
    following.added("b")
    qkey = also_early + 1
    assert not following.taken(also_early), "it is before QKEY"
    assert following.taken(qkey, MessageKind.QKEY)
    later = following.send()
    assert following.taken(later)
    assert following.deliveries[2:] == [(1, qkey, "QK", rows.KEPT), (1, later, "M", rows.KEPT)]
    assert {one[3] for one in following.deliveries[:2]} == {0}
    following.used(QUEUE_B)
    last = following.send()
    assert not following.taken(last), "the new queue has it too"


def test_so_much_is_kept_and_no_more(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "KEPT_MAX", 3)
    following.added("b")
    following.taken(1, MessageKind.QKEY)
    first, second, third = (following.send() for _ in range(3))
    assert following.taken(first)
    assert following.taken(second)
    assert [one[1] for one in following.deliveries if one[3]] == [1, first, second]
    assert following.taken(third)
    assert [one[1] for one in following.deliveries if one[3]] == [1, second, third], "QKEY stays"
    assert (first, "M") in following.messages, "a receipt may still come"
