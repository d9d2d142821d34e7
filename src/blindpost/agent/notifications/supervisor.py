"""What becomes of the notifications of connections, when something about them or about the token changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from blindpost.agent.model import ConnId
from blindpost.agent.notifications.model import NtfSubscription, Step
from blindpost.agent.notifications.tables import CHANGES, Change, Wish, row_state
from blindpost.agent.notifications.workers import Workers
from blindpost.agent.store import connections, ntf_tokens
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.store.database import Db
from blindpost.agent.work.runtime import Tx


class Supervisor:
    """Decides by the table, changes rows, and wakes the workers of their steps."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def wish_all(self, tx: Tx, wish: Wish) -> None:
        """For every connection, as its own setting allows."""
        if wish is Wish.CREATE:
            self.wish(tx, rows.enabled_conns(tx), wish)
        else:
            self.wish(tx, [row.conn_id for row in rows.all_rows(tx)], wish)

    def wish(self, tx: Tx, conn_ids: Iterable[ConnId], wish: Wish) -> None:
        for conn_id in conn_ids:
            self._change(tx, conn_id, wish)

    def is_notifying(self, db: Db, conn_id: ConnId) -> bool:
        """Whether a queue of this connection is to notify."""
        token = ntf_tokens.find(db)
        return token is not None and token.is_instant and connections.load(db, conn_id).enable_ntfs

    def queue_changed(self, tx: Tx, conn_id: ConnId, *, is_new: bool = False) -> None:
        """It is to notify, if connections do. The notifier of a new primary queue was never used before."""
        if self.is_notifying(tx, conn_id):
            self._change(tx, conn_id, Wish.CREATE, is_new=is_new)

    def _change(self, tx: Tx, conn_id: ConnId, wish: Wish, *, is_new: bool = False) -> None:
        row, queue = rows.find(tx, conn_id), rows.primary(tx, conn_id)
        if queue is None:
            rows.delete(tx, conn_id)
            return
        match CHANGES[wish, row_state(row, queue)]:
            case Change.INSERT | Change.RESET:
                token = ntf_tokens.find(tx)
                assert token is not None
                row = NtfSubscription(conn_id, queue.server, None, token.server, None, "NEW", Step.KEY)
                if is_new and queue.creds is not None:
                    row = row.with_keys(queue.creds)
                rows.put(tx, row, tx.now, by_supervisor=True)
            case Change.DELETE:
                assert row is not None
                row = replace(row, smp_server=queue.server, subscription_id=None, status="OFF")
                row = replace(row, step=Step.DELETE)
                rows.put(tx, row, tx.now, by_supervisor=True)
            case Change.NOTHING:
                return
            case Change.WAKE:
                pass
        assert row is not None
        self._workers.wake_later(row)
