"""Transactions for programs: messages, acknowledgements and records of their own, all of them or none.

A program that answers a message, remembers that it did and acknowledges the message in one transaction has
answered exactly once, whatever crashes and whenever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from blindpost.agent.connection import Connection, ContactRequest
from blindpost.agent.errors import ConnectionCode, ConnError, prohibited
from blindpost.agent.handshake import joining
from blindpost.agent.links import creating
from blindpost.agent.messages import acking
from blindpost.agent.messages.sending import enqueue
from blindpost.agent.model import ConnId, ConnMode
from blindpost.agent.store import connections, handshakes, messages, records
from blindpost.agent.store.database import Db
from blindpost.agent.work.transactions import Tx
from blindpost.wire.agent.messages import AMsg
from blindpost.wire.value import Buffer


class Records:
    """The program's own records, by space and key; keys are in order. Sealed like all content."""

    def __init__(self, db: Db) -> None:
        self._db = db

    def get(self, space: str, key: str) -> bytes | None:
        return records.find(self._db, space, key)

    def scan(self, space: str, *, after: str = "", until: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Keys and values of a space in order, after `after` and before `until`."""
        return records.scan(self._db, space, after, until)

    def count(self, space: str) -> int:
        return records.count(self._db, space)


class Transaction(Records):
    """One transaction of `Agent.transact`, until its function returns."""

    def __init__(
        self, tx: Tx, locked: frozenset[ConnId], user_id: int, begin: Callable[[ConnId], None]
    ) -> None:
        super().__init__(tx)
        self._open: Tx | None = tx
        self._locked = locked
        self._user_id = user_id
        self._begin = begin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open = None

    @property
    def _tx(self) -> Tx:
        if self._open is None:
            raise prohibited("the transaction has ended: call `transact` again")
        return self._open

    def put(self, space: str, key: str, value: bytes) -> None:
        records.put(self._tx, space, key, value)

    def delete(self, space: str, key: str) -> None:
        records.delete(self._tx, space, key)

    def send(self, conn: Connection, body: Buffer, *, notify: bool = True, pq: bool | None = None) -> int:
        """As `Connection.send`."""
        self._own(conn.id)
        whole = connections.load_whole(self._tx, conn.id)
        if not whole.snd:
            raise ConnError(ConnectionCode.SIMPLEX, "nobody has joined yet")
        return enqueue(self._tx, whole, AMsg(body), notify=notify, pq_wish=pq).internal_id

    def waiting(self, conn: Connection) -> int:
        """As `Connection.waiting`."""
        return messages.count_pending(self._tx, conn.id)

    def ack(self, conn: Connection, msg_id: int, receipt: bytes | None = None) -> None:
        """As `ReceivedMessage.ack`, but only once: a second time is an error, so that whatever belongs to the
        acknowledgement is not done twice."""
        self._own(conn.id)
        acking.acknowledge(self._tx, conn.id, msg_id, receipt, once=True)

    def accept(self, request: ContactRequest, info: bytes, *, pq: bool | None = None) -> Connection:
        """As `ContactRequest.accept`."""
        wanted = connections.load(self._tx, request.conn.id).pq_support if pq is None else pq
        return self._begun(joining.accept_request(self._tx, request.conn.id, request.id, info, wanted))

    def reject(self, request: ContactRequest) -> None:
        """As `ContactRequest.reject`."""
        handshakes.delete_invitation(self._tx, request.id)

    def join(
        self, link: str, info: bytes, *, reply: bytes | None = None, pq: bool | None = None
    ) -> Connection:
        """As `Agent.join`. The owner of an address gets `info` with the request, and `reply`, or `info`
        again, once it has accepted."""
        tx = self._tx
        conn_id, wanted = tx.new_id(), tx.config.pq if pq is None else pq
        command = joining.JoinCommand(link.strip(), info, wanted)
        joining.register_join(tx, conn_id, self._user_id, command, reply=reply)
        return self._begun(conn_id)

    def invite_later(self, info: bytes, *, pq: bool | None = None) -> Connection:
        """As `Agent.invite_later`, with a full link."""
        conn_id, wishes = self._tx.new_id(), creating.LinkWishes()
        wanted = self._tx.config.pq if pq is None else pq
        creating.insert_new(
            self._tx,
            conn_id,
            self._user_id,
            ConnMode.INVITATION,
            wishes,
            info=info,
            auto_allow=True,
            pq=wanted,
            later=True,
        )
        return self._begun(conn_id)

    def _begun(self, conn_id: ConnId) -> Connection:
        self._begin(conn_id)
        return self._tx.handle(conn_id)

    def _own(self, conn_id: ConnId) -> None:
        if conn_id not in self._locked:
            raise prohibited("name the connection when `transact` is called")
