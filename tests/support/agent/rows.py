"""A connection in a store without a network: decisions of an agent on its rows, and what they hand out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from blindpost.agent.config import AgentConfig
from blindpost.agent.connection import Calls, Connection
from blindpost.agent.events import Event
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import ConnMode, QueueStatus, RcvQueue, SndQueue, SndSwitch, Whole
from blindpost.agent.store import connections, queues, ratchets
from blindpost.agent.store.database import AgentStore
from blindpost.agent.work.transactions import Tx, Work
from blindpost.crypto.kem import KemLibrary
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Host, Server
from blindpost.wire.agent.messages import AMsg
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.values import QueueMode
from tests.support.agent.parties import joined
from tests.support.agent.ratchets import seeded

CONN, NOW = "conn", 1_000_000
ROUTER = Server((Host("router.example"),), "5223", b"r" * 32)
CONFIG = AgentConfig(now=lambda: NOW, entropy=seeded("rows"))
FIRST = b"first queue".ljust(24)
PEER_KEY = PrivateKey.generate(Algorithm.X25519, seeded("peer"))

Row = tuple[bytes, QueueStatus, bool, int | None, SndSwitch | None, int | None]


def a_key(name: str, algorithm: Algorithm = Algorithm.ED25519) -> PrivateKey:
    return PrivateKey.generate(algorithm, seeded(name))


def snd_queue(number: int = 1, queue_id: bytes = FIRST, **fields: object) -> SndQueue:
    e2e = a_key("e2e", Algorithm.X25519)
    given: dict[str, object] = {"mode": QueueMode.MESSAGING, "status": QueueStatus.ACTIVE, **fields}
    make = cast(Callable[..., SndQueue], SndQueue)
    return make(
        conn_id=CONN,
        user_id=1,
        number=number,
        server=ROUTER,
        snd_id=queue_id,
        key=a_key("own"),
        e2e_public=e2e.public,
        e2e_secret=e2e.agree(PEER_KEY.public),
        client_version=4,
        **given,
    )


def rcv_queue(status: QueueStatus = QueueStatus.ACTIVE) -> RcvQueue:
    return RcvQueue(
        conn_id=CONN,
        user_id=1,
        number=1,
        server=ROUTER,
        rcv_id=b"recipient".ljust(24),
        snd_id=b"peer sends".ljust(24),
        mode=QueueMode.MESSAGING,
        key=a_key("recipient"),
        dh_secret=bytes(32),
        e2e_key=a_key("rcv", Algorithm.X25519),
        e2e_secret=bytes(32),
        client_version=4,
        status=status,
    )


class Rows:
    """One connection, with one send queue."""

    def __init__(self, store: AgentStore, first: SndQueue | None = None) -> None:
        self._store = store
        self._work = Work()
        self.events: list[Event] = []
        self.woken: list[int] = []
        self.hurried: list[int] = []
        self._work.events.listen(lambda told: self.events.append(told[0]))
        self._work.deliveries.listen(lambda waiting: self.woken.append(waiting[0][1]))
        self._work.hurry.listen(lambda key: self.hurried.append(key[1]))
        self.now = NOW
        with self.step() as tx:
            connections.insert(tx, CONN, 1, ConnMode.INVITATION, agent_version=7, pq_support=False)
            ratchets.set_ratchet(tx, CONN, joined()[0].ratchet)
            queues.insert_snd(tx, first or snd_queue())

    @contextmanager
    def step(self) -> Iterator[Tx]:
        """A transaction; what it hands out is noted when it is committed."""
        handle = Connection(cast(Calls, None), CONN)
        with self._store.part() as group:
            tx = Tx(self._store.reading, group, CONFIG, (), self._work, lambda _: handle, KemLibrary())
            tx.now = self.now
            yield tx
        group.follow(tx.release)
        self._store.commit()

    @property
    def whole(self) -> Whole:
        return connections.load_whole(self._store.reading, CONN)

    def queue(self, number: int = 1) -> SndQueue:
        (found,) = (queue for queue in self.whole.snd if queue.number == number)
        return found

    @property
    def rows(self) -> dict[int, Row]:
        """Id, state, whether it is the primary one, what it replaces, and how far that is, since when."""
        return {
            one.number: (one.snd_id, one.status, one.primary, one.replaces, one.switch, one.switch_at)
            for one in self.whole.snd
        }

    @property
    def deliveries(self) -> list[tuple[int, int, str, int]]:
        """What waits or is kept: queue, message, its kind, and whether it is kept."""
        query = (
            "SELECT d.snd_queue_id, d.internal_id, m.msg_type, d.failed FROM snd_message_deliveries d"
            " JOIN messages m ON m.conn_id = d.conn_id AND m.internal_id = d.internal_id"
            " ORDER BY d.internal_id, d.snd_queue_id"
        )
        return list(self._store.reading.sql.execute(query))

    @property
    def messages(self) -> list[tuple[int, str]]:
        """All that is remembered."""
        query = "SELECT internal_id, msg_type FROM messages ORDER BY internal_id"
        return list(self._store.reading.sql.execute(query))

    def delivery_id(self, internal_id: int, number: int = 1) -> int:
        query = (
            "SELECT snd_message_delivery_id FROM snd_message_deliveries"
            " WHERE internal_id = ? AND snd_queue_id = ?"
        )
        (found,) = self._store.reading.sql.execute(query, (internal_id, number)).fetchone()
        return int(found)

    def send(self) -> int:
        with self.step() as tx:
            return enqueue(tx, self.whole, AMsg(b"body")).internal_id

    def forget_signals(self) -> None:
        self.events.clear()
        self.woken.clear()
        self.hurried.clear()
