"""Queues at real message routers that notify, the subscriber that serves them, and what it says there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from blindpost.client.calls import Call
from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.secret import Secret
from blindpost.engine.undo import Undo
from blindpost.ntf.model import SmpRouter, Subscription, Token
from blindpost.ntf.subscriber.backoff import Backoff
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.ntf.tables import NtfStore
from blindpost.ntf.view import View, Wanted
from blindpost.transport.network import TCP, Network
from blindpost.transport.session import Session
from blindpost.wire.addresses import Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.status import TokenState, TokenStatus
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import NEW, NSUB, NSUBS, SEND
from blindpost.wire.smp.responses import IDS
from blindpost.wire.smp.transmissions import Request, parse_requests
from blindpost.wire.smp.values import NtfCreds, QueueMode, QueueRequest, SubMode
from blindpost.wire.smp.versions import connection_layout
from tests.support.ntf.routers import NotifiedQueue, RunningNtf, device_token
from tests.support.router.routers import RunningRouter, new_key
from tests.support.serving.waiting import a_moment, until

QUICK = Backoff(first_s=0.02, max_s=0.1)


@dataclass
class SmpQueue(NotifiedQueue):
    """A queue at a message router that tells whoever subscribes to its notifications."""

    recipient_id: bytes = b""
    recipient_key: PrivateKey = field(default_factory=new_key)
    sender_id: bytes = b""
    secret: bytes = b""
    """Between the recipient and the message router, for metadata."""
    message_secret: bytes = b""
    """The same for messages."""

    async def send(self, client: SmpClient, body: bytes = b"hello", *, notify: bool = True) -> None:
        await client.send(SEND(notify, body), self.sender_id)


async def notified_queues(client: SmpClient, server: Server, count: int) -> list[SmpQueue]:
    """New queues, with credentials for notifications from birth."""
    keys = [(new_key(), new_key(), new_key(Algorithm.X25519)) for _ in range(count)]
    news = [
        Call(
            NEW(
                key.public,
                dh_key.public,
                None,
                SubMode.ONLY_CREATE,
                QueueRequest(QueueMode.MESSAGING),
                NtfCreds(notifier_key.public, dh_key.public),
            ),
            b"",
            key,
        )
        for key, notifier_key, dh_key in keys
    ]
    queues = []
    for ids, (key, notifier_key, dh_key) in zip(await client.send_many(news), keys, strict=True):
        assert isinstance(ids, IDS), ids
        assert ids.ntf_creds is not None
        queues.append(
            SmpQueue(
                ids.ntf_creds.notifier_id,
                notifier_key,
                server,
                recipient_id=ids.recipient_id,
                recipient_key=key,
                sender_id=ids.sender_id,
                secret=dh_key.agree(ids.ntf_creds.dh_key),
                message_secret=dh_key.agree(ids.dh_key),
            )
        )
    return queues


async def stock(store: NtfStore, queues: Sequence[SmpQueue], tokens: int = 1) -> list[Token]:
    """Active tokens that own these queues in turn, and their subscriptions, without a word to anybody."""
    view = View(Undo(), store.received)
    owners = [_token(number) for number in range(tokens)]
    for owner in owners:
        view.put_token(owner)
    for server in {queue.server for queue in queues}:
        if await store.router(server) is None:
            view.put_router(SmpRouter(server))
    for number, queue in enumerate(queues):
        owner = owners[number % tokens]
        view.add_subscription(
            Subscription(
                system_entropy(24), owner.token_id, queue.server, queue.notifier_id, queue.key.encoded
            )
        )
    await store.commit(view)
    return owners


def _token(number: int) -> Token:
    name = device_token(f"{number:08x}")
    return Token(
        system_entropy(24),
        name,
        TokenStatus(TokenState.ACTIVE),
        new_key().public,
        new_key(Algorithm.X25519),
        Secret(system_entropy(32)),
        Secret(system_entropy(32)),
        None,
    )


async def statuses(store: NtfStore, queues: Sequence[NotifiedQueue]) -> list[tuple[str, bool]]:
    """Status and association of each queue's subscription, as stored."""
    view = View(Undo(), 0)
    await store.load(Wanted(queues={(queue.server, queue.notifier_id) for queue in queues}), view)
    found = [view.of_queue(queue.server, queue.notifier_id) for queue in queues]
    return [("", False) if row is None else (row.status.encoded.decode(), row.is_associated) for row in found]


async def until_all(
    store: NtfStore, queues: Sequence[NotifiedQueue], status: str, associated: bool | None = None
) -> None:
    """Wait until all of these have this status."""
    while True:
        found = await statuses(store, queues)
        if all(state == status and associated in (None, assoc) for state, assoc in found):
            return
        await a_moment()


def subscriber_options(network: Network = TCP, **options: Any) -> SubscriberOptions:
    """With pauses that a test can bear."""
    smp = options.pop("smp", SmpOptions(network=network))
    return SubscriberOptions(
        smp=smp, **{"reconnect": QUICK, "store": QUICK, "repair_pause_s": 0.001, **options}
    )


@asynccontextmanager
async def subscribing(running: RunningNtf, **options: Any) -> AsyncIterator[SmpSubscriber]:
    """The subscriber of a notification router, from its start to its end."""
    chosen = subscriber_options(running.network, **options)
    subscriber = SmpSubscriber(running.router, chosen, Random(7))
    running.router.subscriber = subscriber
    task = asyncio.create_task(subscriber.run())
    try:
        yield subscriber
    finally:
        running.router.subscriber = None
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


class Watch:
    """What a message router is told from now on, in its order and as bytes."""

    def __init__(self, running: RunningRouter) -> None:
        self.requests: list[Request] = []
        self.payloads: list[bytes] = []
        self.batches: list[int] = []
        self.sessions: list[Session] = []
        self._received = running.router.block_received
        running.router.block_received = self._note  # type: ignore[method-assign]  # a tap on a real router

    def _note(self, session: Session, payload: bytes, keys: Sequence[bytes] = ()) -> None:
        agreed = session.agreed
        layout = connection_layout(agreed.version, agreed.session_id)
        parsed = parse_requests(Reader(payload), layout, agreed.version)
        found = [request for request in parsed if isinstance(request, Request)]
        self.requests += found
        self.batches.append(len(found))
        self.payloads.append(bytes(payload))
        if session not in self.sessions:
            self.sessions.append(session)
        self._received(session, payload, keys)

    @property
    def tags(self) -> list[str]:
        return [request.command.TAG.decode() for request in self.requests]

    @property
    def nsubs(self) -> int:
        """How many NSUBS came."""
        return sum(isinstance(request.command, NSUBS) for request in self.requests)

    @property
    def subscribed(self) -> list[bytes]:
        """For which notifiers NSUB came, in order."""
        return [request.entity_id for request in self.requests if isinstance(request.command, NSUB)]

    async def until_blocks(self, count: int) -> None:
        await until(lambda: len(self.payloads) >= count)

    def clear(self) -> None:
        self.requests.clear()
        self.payloads.clear()
        self.batches.clear()
        self.sessions.clear()
