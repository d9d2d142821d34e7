"""What becomes of the notifications of connections, when something about them or about the token changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from blindpost.agent.model import ConnId, RcvQueue
from blindpost.agent.notifications.model import NotifierKeys, NtfSubscription, Step
from blindpost.agent.notifications.tables import CHANGES, Change, Wish, row_state
from blindpost.agent.store import connections, ntf_tokens
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.store.database import Db
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.entropy import Entropy


def wish_all(tx: Tx, wish: Wish) -> None:
    """For every connection, as its own setting allows."""
    if wish is Wish.CREATE:
        wish_for(tx, rows.enabled_conns(tx), wish)
    else:
        wish_for(tx, [row.conn_id for row in rows.all_rows(tx)], wish)


def wish_for(tx: Tx, conn_ids: Iterable[ConnId], wish: Wish) -> None:
    for conn_id in conn_ids:
        _change(tx, conn_id, wish)


def is_notifying(db: Db, conn_id: ConnId) -> bool:
    """Whether a queue of this connection is to notify."""
    token = ntf_tokens.find(db)
    return token is not None and token.is_instant and connections.load(db, conn_id).enable_ntfs


def queue_changed(tx: Tx, conn_id: ConnId, *, is_new: bool = False) -> None:
    """It is to notify, if connections do. The notifier of a new primary queue was never used before."""
    if is_notifying(tx, conn_id):
        _change(tx, conn_id, Wish.CREATE, is_new=is_new)


def _change(tx: Tx, conn_id: ConnId, wish: Wish, *, is_new: bool = False) -> None:
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
    tx.wake_notifications(row)


def notifier_keys(db: Db, conn_id: ConnId, entropy: Entropy) -> NotifierKeys | None:
    """What NEW of a connection's next queue is to offer, where connections notify."""
    return NotifierKeys.generate(entropy) if is_notifying(db, conn_id) else None


def message_came(tx: Tx, queue: RcvQueue, seconds: int) -> None:
    """Record this, so that an older push about the same queue is not news."""
    if ntf_tokens.find(tx) is not None:
        rows.came(tx, queue, seconds)
