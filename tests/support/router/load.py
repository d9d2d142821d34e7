"""Clients that keep a router busy with queues of their own, and believe only what they were answered."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from blindpost.client.calls import Call, Failure, Push
from blindpost.client.errors import RefusedError
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.ids_hash import sender_id_of
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.errors import TransportError
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import ACK, DEL, KEY, NEW, PING, SEND, SUB, Command
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.messages import Message, read_message
from blindpost.wire.smp.responses import IDS, MSG, OK, SOK, Response
from blindpost.wire.smp.values import LinkData, NewLink, QueueMode, QueueRequest, SubMode
from tests.support.router.ledgers import Fact, Ledger, Sent
from tests.support.router.routers import new_key

UNLIMITED = (
    ("new_per_address_per_second = 10.0", "new_per_address_per_second = 1e6"),
    ("new_per_address_burst = 500", "new_per_address_burst = 1000000"),
)
"""Changes of a configuration for routers in which clients may create as many queues as they like."""
QUEUES_MAX = 8
"""Of one pair of connections, those that were deleted not counted."""
WAITING_MAX = 40
"""Messages of one queue, so that it never is full."""


class Reachable(Protocol):
    """A router, wherever it is now."""

    async def connect(self) -> SmpClient: ...


@dataclass
class Kept:
    """A queue and all that is known about it."""

    key: PrivateKey = field(default_factory=new_key)
    dh_key: PrivateKey = field(default_factory=lambda: new_key(Algorithm.X25519))
    sender_key: PrivateKey = field(default_factory=new_key)
    corr_id: bytes = field(default_factory=lambda: os.urandom(24))
    ids: IDS | None = None
    secured: Fact = Fact.NO
    deleted: Fact = Fact.NO
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def known(self) -> IDS:
        assert self.ids is not None
        return self.ids

    @property
    def usable(self) -> bool:
        """Whether messages can be sent to it, as far as anybody knows."""
        return self.ids is not None and self.deleted is Fact.NO and self.secured is not Fact.MAYBE

    def creation(self) -> Call[Command]:
        """NEW with link data: its repetition names the same queue."""
        link = NewLink(sender_id_of(self.corr_id), LinkData(b"fixed", b"user"), None)
        request = QueueRequest(QueueMode.MESSAGING, link)
        new = NEW(self.key.public, self.dh_key.public, None, SubMode.SUBSCRIBE, request)
        return Call(new, b"", self.key, self.corr_id)

    def call(self, command: Command) -> Call[Command]:
        """A command of the recipient."""
        return Call(command, self.known.recipient_id, self.key)

    def sending(self, body: bytes) -> Call[Command]:
        key = self.sender_key if self.secured is Fact.YES else None
        return Call(SEND(False, body), self.known.sender_id, key)

    def delivered(self, response: MSG) -> None:
        box = BoxKey.agreed(self.dh_key, self.known.dh_key)
        message = read_message(Reader(box.open_padded(nonce_of(response.msg_id), response.enc_body)))
        assert isinstance(message, Message), "a queue that is not full has no marker"
        self.ledger.delivered(bytes(message.body), response.msg_id)


class Tally:
    """How many commands were answered and how many were not, and when it is time for the next kill."""

    def __init__(self) -> None:
        self.answered = 0
        self.unanswered = 0
        self.reached = asyncio.Event()
        self._target = 0

    def aim(self, answers: int) -> None:
        """Let `reached` be set after so many more answers."""
        self._target = self.answered + answers
        self.reached.clear()

    def count(self, results: Iterable[Response | Failure]) -> None:
        for result in results:
            if isinstance(result, TransportError):
                self.unanswered += 1
            else:
                self.answered += 1
        if self.answered >= self._target:
            self.reached.set()


class Pair:
    """A recipient and a sender, each on a connection of its own, and their queues."""

    def __init__(self, router: Reachable, tally: Tally, seed: int) -> None:
        self.queues: list[Kept] = []
        self._router = router
        self._tally = tally
        self._random = random.Random(seed)
        self._numbers = iter(range(1 << 60))
        self._by_id: dict[bytes, Kept] = {}

    async def live(self) -> None:
        """Use the router until it is gone."""
        with contextlib.suppress(TransportError):
            recipient, sender = await self._router.connect(), await self._router.connect()
            await self._catch_up(recipient)
            async with asyncio.TaskGroup() as tasks:
                for work in (self._receive(recipient), self._own(recipient), self._send(sender)):
                    tasks.create_task(self._until_cut(work))
            await recipient.wait_closed()
            await sender.wait_closed()

    async def check(self) -> None:
        """With a router that stays: every queue is as it must be, and every message comes."""
        recipient, sender = await self._router.connect(), await self._router.connect()
        await self._catch_up(recipient)
        for kept in self.queues:
            if kept.deleted is Fact.YES:
                await self._refused(recipient, kept.call(SUB()), sender, kept.sending(b"too late"))
            elif kept.secured is Fact.YES:
                unsigned = Call(SEND(False, b"unsigned"), kept.known.sender_id)
                await self._refused(recipient, kept.call(KEY(new_key().public)), sender, unsigned)
                assert await self._ask(sender, [kept.sending(b"last")]) == [OK()]
                kept.ledger.answered(kept.ledger.asked(b"last"), accepted=True)
        while any(kept.ledger.in_flight for kept in self.queues) or recipient.events_waiting:
            await self._take(recipient)
        for kept in self.queues:
            if kept.deleted is Fact.NO:
                kept.ledger.empty()
        await recipient.close()
        await sender.close()

    async def _refused(
        self, recipient: SmpClient, command: Call[Command], sender: SmpClient, send: Call[Command]
    ) -> None:
        for client, call in ((recipient, command), (sender, send)):
            (result,) = await self._ask(client, [call])
            assert isinstance(result, RefusedError)
            assert result.error is Code.AUTH

    async def _until_cut(self, work: Coroutine[None, None, None]) -> None:
        with contextlib.suppress(TransportError):
            await work

    async def _ask(self, client: SmpClient, calls: list[Call[Command]]) -> list[Response | Failure]:
        results = await client.send_many(calls)
        self._tally.count(results)
        return results

    async def _pause(self, client: SmpClient) -> None:
        """Let the router do something else."""
        (result,) = await self._ask(client, [Call(PING())])
        if isinstance(result, TransportError):
            raise result

    async def _catch_up(self, recipient: SmpClient) -> None:
        """Subscribe to everything again, and find out what became of what was not answered."""
        for kept in self.queues:
            kept.ledger.reconnected()
        for kept in [kept for kept in self.queues if kept.ids is None]:
            await self._create(recipient, kept)
        asked = [kept for kept in self.queues if kept.deleted is not Fact.YES]
        results = await self._ask(recipient, [kept.call(SUB()) for kept in asked])
        for kept, result in zip(asked, results, strict=True):
            if isinstance(result, TransportError):
                raise result
            if isinstance(result, RefusedError):
                assert result.error is Code.AUTH
                assert kept.deleted is Fact.MAYBE, "a queue that nobody deleted is gone"
                kept.deleted = Fact.YES
            else:
                assert result == SOK(None)
                kept.deleted = Fact.NO
        for kept in asked:
            if kept.secured is Fact.MAYBE and kept.deleted is Fact.NO:
                await self._secure(recipient, kept)

    async def _create(self, recipient: SmpClient, kept: Kept) -> None:
        """NEW, perhaps not for the first time: the answer is the same."""
        (result,) = await self._ask(recipient, [kept.creation()])
        if isinstance(result, TransportError):
            raise result
        assert isinstance(result, IDS), f"NEW was answered {result}"
        kept.ids = result
        self._by_id[result.recipient_id] = kept

    async def _secure(self, recipient: SmpClient, kept: Kept) -> None:
        kept.secured = Fact.MAYBE
        (result,) = await self._ask(recipient, [kept.call(KEY(kept.sender_key.public))])
        if isinstance(result, TransportError):
            raise result
        assert result == OK(), f"KEY was answered {result}"
        kept.secured = Fact.YES

    async def _delete(self, recipient: SmpClient, kept: Kept) -> None:
        kept.deleted = Fact.MAYBE
        (result,) = await self._ask(recipient, [kept.call(DEL())])
        if isinstance(result, TransportError):
            raise result
        assert result == OK(), f"DEL was answered {result}"
        kept.deleted = Fact.YES

    async def _own(self, recipient: SmpClient) -> None:
        """Create, secure and delete queues, one at a time."""
        while True:
            living = [kept for kept in self.queues if kept.usable]
            open_to_all = [kept for kept in living if kept.secured is Fact.NO]
            if len(living) < 2 or (len(living) < QUEUES_MAX and self._random.random() < 0.4):
                self.queues.append(Kept())
                await self._create(recipient, self.queues[-1])
            elif open_to_all and self._random.random() < 0.6:
                await self._secure(recipient, self._random.choice(open_to_all))
            elif self._random.random() < 0.3:
                await self._delete(recipient, self._random.choice(living))
            for _ in range(self._random.randrange(1, 4)):
                await self._pause(recipient)

    async def _send(self, sender: SmpClient) -> None:
        """SENDs in batches, to several queues at once."""
        while True:
            usable = [kept for kept in self.queues if kept.usable and kept.ledger.waiting < WAITING_MAX]
            if not usable:
                await self._pause(sender)
                continue
            cut: TransportError | None = None
            batch: list[tuple[Kept, Sent, Call[Command]]] = []
            for kept in self._random.choices(usable, k=self._random.randrange(1, 9)):
                body = b"%d " % next(self._numbers) + bytes(self._random.choice((0, 100, 15_000)))
                batch.append((kept, kept.ledger.asked(body), kept.sending(body)))
            results = await self._ask(sender, [call for _, _, call in batch])
            for (kept, message, call), result in zip(batch, results, strict=True):
                if result == OK():
                    kept.ledger.answered(message, accepted=True)
                elif isinstance(result, RefusedError):
                    overtaken = kept.deleted is not Fact.NO or (
                        call.key is None and kept.secured is not Fact.NO
                    )
                    assert result.error is Code.AUTH
                    assert overtaken, f"SEND was answered {result}"
                    kept.ledger.answered(message, accepted=False)
                else:
                    assert isinstance(result, TransportError), f"SEND was answered {result}"
                    cut = result
            if cut is not None:
                raise cut

    async def _receive(self, recipient: SmpClient) -> None:
        while True:
            await self._take(recipient)

    async def _take(self, recipient: SmpClient) -> None:
        """Take what was delivered and acknowledge it, until ACK brings no more."""
        taken: list[tuple[Kept, MSG]] = []
        event = await recipient.next_event()
        while True:
            assert isinstance(event, Push), f"something unexpected came: {event}"
            assert isinstance(event.response, MSG)
            kept = self._by_id[event.entity_id]
            kept.delivered(event.response)
            taken.append((kept, event.response))
            if not recipient.events_waiting:
                break
            event = await recipient.next_event()
        while taken:
            for kept, _ in taken:
                kept.ledger.acknowledging()
            results = await self._ask(recipient, [kept.call(ACK(message.msg_id)) for kept, message in taken])
            before, taken = taken, []
            for (kept, _), result in zip(before, results, strict=True):
                if isinstance(result, TransportError):
                    continue
                if isinstance(result, RefusedError):
                    assert kept.deleted is not Fact.NO, f"ACK was answered {result}"
                    continue
                kept.ledger.acknowledged()
                if isinstance(result, MSG):
                    kept.delivered(result)
                    taken.append((kept, result))
                else:
                    assert result == OK(), f"ACK was answered {result}"
