"""Who we are as a service: one certificate for each user and router, and what a handshake says about it.

An identity is made when it is first needed and kept. After each connection the router's id of it is
compared with the one that is stored: there are four cases, and only two of them change anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from enum import Enum

from cryptography import x509

from blindpost.agent.routers.sessions import Session
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.database import AgentStore
from blindpost.agent.subscriptions.table import ServiceSub, mismatch
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import Entropy
from blindpost.crypto.ids_hash import QueueSet
from blindpost.wire.addresses import Server

log = logging.getLogger(__name__)

RENEWED_BEFORE = timedelta(days=90)
"""So long before it expires a certificate is replaced."""


class Reconciled(Enum):
    """What a connection told about our identity."""

    SAME = "same"
    CHANGED = "changed"
    """The router knows us under another id, so none of its queues is associated with us any more."""
    GONE = "gone"
    """The router does not take services any more."""
    STALE = "stale"
    """Our identity changed while we were connecting: this connection is that of a former one."""
    NONE = "none"


class Services:
    """The identities of all users, in the store."""

    def __init__(
        self,
        store: AgentStore,
        has_service: Callable[[int], bool],
        now: Callable[[], float],
        entropy: Entropy,
    ) -> None:
        self._store = store
        self.has_service = has_service
        """Whether a user is a service."""
        self._now = now
        self._entropy = entropy

    def credentials(self, user_id: int, server: Server) -> Credentials | None:
        """What to present to this router: made on first use, renewed when it is about to expire."""
        if not self.has_service(user_id):
            return None
        row = rows.service(self._store.reading, user_id, server)
        if row is not None and not self._expires(row.credentials):
            return row.credentials
        return self.renew(user_id, server)

    def renew(self, user_id: int, server: Server) -> Credentials:
        """A new identity, with which no queue is associated yet."""
        credentials = make_service(int(self._now()), self._entropy)
        with self._store.transaction() as db:
            rows.clear_associations(db, user_id, server)
            rows.put_credentials(db, user_id, server, credentials)
        return credentials

    def renewal_due(self, user_id: int, server: Server) -> bool:
        row = rows.service(self._store.reading, user_id, server)
        return row is not None and self._expires(row.credentials)

    def _expires(self, credentials: Credentials) -> bool:
        certificate = x509.load_der_x509_certificate(credentials.chain[0])
        return certificate.not_valid_after_utc.timestamp() - self._now() < RENEWED_BEFORE.total_seconds()

    def reconcile(self, session: Session, offered: Credentials | None) -> Reconciled:
        """A connection is there: compare what we offered with what the router made of it."""
        user_id, server = session.key.user_id, session.key.server
        service = session.service
        if offered is None:
            if service is not None:
                log.error("a router assigned a service to a connection that offered none")
            return Reconciled.NONE
        row = rows.service(self._store.reading, user_id, server)
        if row is None or row.credentials != offered:
            return Reconciled.STALE
        if service is None:
            self.forget(user_id, server)
            return Reconciled.GONE
        if row.service_id == service.service_id:
            return Reconciled.SAME
        with self._store.transaction() as db:
            if row.service_id is not None:
                rows.clear_associations(db, user_id, server)
            rows.set_service_id(db, user_id, server, service.service_id)
        return Reconciled.SAME if row.service_id is None else Reconciled.CHANGED

    def expected(self, user_id: int, server: Server) -> ServiceSub | None:
        """What we have; the id is empty before the first handshake."""
        row = rows.service(self._store.reading, user_id, server)
        return None if row is None else ServiceSub(row.service_id or b"", row.queues)

    def agrees(self, user_id: int, server: Server, actual: ServiceSub) -> bool:
        """Whether the router has what we have, apart from queues that are being deleted."""
        expected = self.expected(user_id, server)
        if expected is None:
            return False
        if mismatch(expected, actual) is None:
            return True
        leaving = rows.queues_leaving(self._store.reading, user_id, server)
        return mismatch(ServiceSub(expected.service_id, expected.queues + leaving), actual) is None

    def receives(self, user_id: int, server: Server) -> bool:
        """Whether there is any queue of ours; a router where we only send has none."""
        return (user_id, server) in rows.servers_with_queues(self._store.reading)

    def is_settled(self, user_id: int, server: Server) -> bool:
        """Whether no queue is being made or deleted, so that a difference can have no such reason."""
        db = self._store.reading
        leaving = rows.queues_leaving(db, user_id, server)
        return leaving == QueueSet() and not rows.queues_coming(db, user_id, server)

    def dissociate_all(self, user_id: int, server: Server) -> None:
        """The router has none of our queues: they must be subscribed one by one."""
        with self._store.transaction() as db:
            rows.clear_associations(db, user_id, server)

    def forget(self, user_id: int, server: Server) -> None:
        """No identity here any more; the next connection makes a new one."""
        with self._store.transaction() as db:
            rows.delete_service(db, user_id, server)

    def forget_unwanted(self) -> None:
        """Users who are no services any more have no identities, and no queues of one."""
        for user_id, server in rows.servers_with_service(self._store.reading):
            if not self.has_service(user_id):
                self.forget(user_id, server)

    def audit(self, user_id: int, server: Server) -> bool:
        """Recount the queues of the service; whether what was stored is right."""
        with self._store.transaction() as db:
            return rows.audit(db, user_id, server)
