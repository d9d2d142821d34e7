"""An agent with a device token and connections, without a network: routers answer as a test tells them to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha256
from typing import Any

from blindpost.agent import AgentError, AgentFailed, Event, Failed, PushMode
from blindpost.agent.errors import BrokerError
from blindpost.agent.notifications.errors import NtfError
from blindpost.agent.notifications.model import ACTIVE, CHECK, REGISTERED, NtfSubscription, Step, Token
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.store import ntf_tokens
from blindpost.agent.store.database import AgentStore
from blindpost.client.errors import RefusedError, ResponseTimeoutError
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.smp.errors import Code, SMPError
from tests.support.agent.desk import Desk
from tests.support.agent.rows import CONFIG, CONN, NOW, a_key

NTF = Server((Host("ntf.example"),), "443", b"n" * 32)
ONE, OTHER = (DeviceToken(PushProvider.APNS_TEST, name * 32) for name in (b"1", b"2"))
ROUTER_KEY = a_key("notification router", Algorithm.X25519)
OWN = a_key("token dh", Algorithm.X25519)
SECRET = OWN.agree(ROUTER_KEY.public)
CODE, TOKEN_ID = b"code".ljust(32), b"token id"


def digest(code: bytes) -> bytes:
    return sha256(code).digest()


def away() -> AgentError:
    """What is told of a notification router that does not answer."""
    return BrokerError(NTF, ResponseTimeoutError())


def refusal(code: SMPError = Code.AUTH) -> NtfError:
    return NtfError(NTF, RefusedError(code))


class PushDesk(Desk):
    """Its time moves with the running loop."""

    def __init__(self, store: AgentStore) -> None:
        super().__init__(store)
        self.ground.config = replace(CONFIG, now=_now)
        self.told: list[Event] = []
        self.ground.stream.put = lambda event, row=None: self.told.append(event)  # type: ignore[method-assign]
        self.worked: list[str] = []
        self.ground.work.notifications.listen(lambda row: self.worked.append(row.conn_id))

    @property
    def token(self) -> Token | None:
        return ntf_tokens.find(self.store.reading)

    def find(self, conn_id: str = CONN) -> NtfSubscription | None:
        """What is stored about the notifications of a connection."""
        return rows.find(self.store.reading, conn_id)

    def row(self, conn_id: str = CONN) -> NtfSubscription:
        found = self.find(conn_id)
        assert found is not None
        return found

    def has(self, **fields: Any) -> Token:
        """A token that is registered, unless this says something else."""
        key, mode = a_key("token"), PushMode.INSTANT
        usual = Token(ONE, NTF, key, OWN, mode, TOKEN_ID, SECRET, REGISTERED, action=None)
        token = replace(usual, **fields)
        with self.change() as tx:
            ntf_tokens.put(tx, token)
        return token

    def is_used(self, **fields: Any) -> Token:
        """A token that is active, whose code was returned and whose connection has a subscription."""
        token = self.has(
            **{"status": ACTIVE, "action": CHECK, "returned": digest(CODE), "period": 20, **fields}
        )
        with self.change() as tx:
            sub = NtfSubscription(CONN, self.queue.server, b"notifier", NTF, b"sub", "ACTIVE", Step.CHECK)
            rows.put(tx, sub, NOW, by_supervisor=False)
        return token

    def failures(self) -> list[str]:
        """Of the agent itself."""
        return [str(event.error) for event in self.told if isinstance(event, AgentFailed)]

    def failed(self) -> list[tuple[str, str]]:
        """Connections whose notifications failed for good, and why."""
        return [(event.conn.id, str(event.error)) for event in self.events if isinstance(event, Failed)]


def _now() -> float:
    try:
        return NOW + asyncio.get_running_loop().time()
    except RuntimeError:  # nothing runs yet
        return NOW
