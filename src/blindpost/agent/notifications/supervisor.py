"""What becomes of the notifications of connections, when something about them or about the token changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from blindpost.agent.model import ConnId
from blindpost.agent.notifications.model import NtfSubscription, Step
from blindpost.agent.notifications.tables import CHANGES, Change, Wish, row_state
from blindpost.agent.notifications.workers import Workers
from blindpost.agent.runtime import Tx
from blindpost.agent.store import connections, ntf_tokens
from blindpost.agent.store import ntf_subscriptions as rows


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

    def queue_changed(self, tx: Tx, conn_id: ConnId) -> None:
        """A connection has its first queue, or another primary one: it is to notify, if connections do."""
        token = ntf_tokens.find(tx)
        if token is not None and token.is_instant and connections.load(tx, conn_id).enable_ntfs:
            self._change(tx, conn_id, Wish.CREATE)

    def _change(self, tx: Tx, conn_id: ConnId, wish: Wish) -> None:
        row, queue = rows.find(tx, conn_id), rows.primary(tx, conn_id)
        if queue is None:
            rows.delete(tx, conn_id)
            return
        match CHANGES[wish, row_state(row, queue)]:
            case Change.INSERT | Change.RESET:
                token = ntf_tokens.find(tx)
                assert token is not None
                row = NtfSubscription(conn_id, queue.server, None, token.server, None, "NEW", Step.KEY)
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
