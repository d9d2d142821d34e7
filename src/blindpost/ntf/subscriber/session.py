"""One session with a message router, from its first command to its last event.

It begins with NSUBS, which subscribes what is associated with our service, and NSUB for the rest, page by
page: the next page is read when the answers to the last one are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random

from blindpost.client.calls import Call, Event, Failure, Late, Push
from blindpost.client.errors import RefusedError
from blindpost.client.smp import SmpClient
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import PrivateKey
from blindpost.ntf.machines import SubEvent
from blindpost.ntf.model import NO_QUEUES, SmpRouter
from blindpost.ntf.ports import (
    AssociatedChanged,
    NmsgReceived,
    Notifier,
    ServiceKnown,
    ServiceUnavailable,
    SubscriberEvent,
    SubscriptionsChanged,
)
from blindpost.ntf.subscriber.decisions import (
    ASSOCIATED,
    CONFIRMED,
    TRIED,
    Opening,
    QueueAnswer,
    ServiceAnswer,
    drifted,
    opening_of,
    queue_answer,
    service_answer,
    surplus_of,
)
from blindpost.ntf.subscriber.fresh import Fresh
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.reporting import Reporter
from blindpost.transport.errors import TransportError
from blindpost.wire.smp.commands import NSUB, NSUBS, Command
from blindpost.wire.smp.responses import DELD, END, ENDS, ERR, NMSG, SOKS, Response

log = logging.getLogger(__name__)


class RouterSession:
    """What a session is subscribed to, and how it gets there."""

    def __init__(
        self, client: SmpClient, reporter: Reporter, fresh: Fresh, options: SubscriberOptions, chance: Random
    ) -> None:
        self._client = client
        self._reporter = reporter
        self._fresh = fresh
        self._options = options
        self._chance = chance
        service = client.service
        self._service_id = None if service is None else service.service_id
        self._in_flight: set[bytes] = set()
        self._again: dict[bytes, Notifier] = {}
        self._failures = 0
        self._retry_at = 0.0
        self._surplus = NO_QUEUES
        self.active: set[bytes] = set()
        """Queues subscribed one by one."""
        self.members = NO_QUEUES
        """Queues subscribed by NSUBS, or by NSUB as those of our service."""
        self.is_taken_over = False
        """Somebody else has our certificate and subscribed after us."""

    @property
    def waiting(self) -> int:
        """Queues being asked for, or to be asked for again."""
        return len(self._in_flight) + len(self._again)

    def forget(self, notifier_id: bytes) -> None:
        self.active.discard(notifier_id)
        self._in_flight.discard(notifier_id)
        self._again.pop(notifier_id, None)

    async def run(self, surplus: QueueSet) -> QueueSet:
        """Run until the session ends. `surplus` is lasting drift from earlier ones; returns it updated."""
        self._surplus = surplus
        subscribing = asyncio.create_task(self._subscribe_all())
        try:
            await self._take_events()
        except asyncio.CancelledError:
            await self._hear_rest()
            raise
        finally:
            subscribing.cancel()
            await asyncio.wait([subscribing])
        if not subscribing.cancelled() and (failure := subscribing.exception()) is not None:
            raise failure
        return self._surplus

    # Subscribing

    async def _subscribe_all(self) -> None:
        """Subscribe everything stored, then what is added; closes the session when there is nothing left."""
        try:
            if await self._open(await self._reporter.stored()):
                await self._follow()
        finally:
            await self._client.close()

    async def _open(self, router: SmpRouter) -> bool:
        """Subscribe what is stored; False if the session is useless."""
        server = self._reporter.server
        match opening_of(router, self._service_id):
            case Opening.SERVICE_FIRST:
                return await self._subscribe_service(router.members)
            case Opening.SERVICE_LOST:
                log.warning("a message router no longer offers our service")
                await self._reporter.submit(ServiceUnavailable(server))
            case Opening.SERVICE_NAMED:
                assert self._service_id is not None
                await self._reporter.submit(ServiceKnown(server, self._service_id))
            case Opening.QUEUES:
                pass
        await self._subscribe_stored(with_associated=False, is_repair=router.members.count > 0)
        return True

    async def _subscribe_service(self, own: QueueSet) -> bool:
        """NSUBS for what is associated, NSUB for the rest; NSUB for everything if the two sides disagree."""
        result = await self._ask_service(own)
        match service_answer(result):
            case ServiceAnswer.UNAVAILABLE:
                log.warning("a message router no longer knows our service")
                await self._reporter.submit(ServiceUnavailable(self._reporter.server))
                return False
            case ServiceAnswer.AGAIN:
                return False
            case ServiceAnswer.SUBSCRIBED:
                assert isinstance(result, SOKS)
        if drifted(own, result, self._surplus, self._client.version):
            log.warning(
                "a message router counts %d queues of our service, we count %d", result.count, own.count
            )
            await self._repair()
        else:
            self.members = QueueSet(result.count, result.ids_hash)
            await self._reporter.submit(AssociatedChanged(self._reporter.server, SubEvent.ASSOCIATED))
            await self._subscribe_stored(with_associated=False)
        return True

    async def _repair(self) -> None:
        """Subscribe first what is not associated here, which may explain the difference; then everything.

        What the message router counts beyond ours in the end can only be what was deleted here.
        """
        for with_associated in (False, True):
            await self._subscribe_stored(with_associated=with_associated, is_repair=True)
            own = (await self._reporter.stored()).members
            result = await self._ask_service(own)
            if not isinstance(result, SOKS):
                return
            self.members = QueueSet(result.count, result.ids_hash)
            if with_associated:
                self._surplus = surplus_of(own, result)
            elif not drifted(own, result, self._surplus, self._client.version):
                await self._reporter.submit(AssociatedChanged(self._reporter.server, SubEvent.ASSOCIATED))
                return

    async def _ask_service(self, own: QueueSet) -> Response | Failure:
        (result,) = await self._client.send_many([Call(NSUBS(own.count, own.ids_hash))])
        return result

    async def _subscribe_stored(self, *, with_associated: bool, is_repair: bool = False) -> None:
        self._fresh.clear()
        batch = self._options.batch
        async for page in self._reporter.pages(batch, with_associated=with_associated):
            await self._subscribe([each for each in page if each.notifier_id not in self.active])
            if is_repair:
                await asyncio.sleep(self._chance.uniform(0, 2 * self._options.repair_pause_s))

    async def _follow(self) -> None:
        """Subscribe what is added, retrying what had no answer, until nothing is subscribed at all."""
        loop = asyncio.get_running_loop()
        while True:
            if self._fresh.is_overflowed:
                await self._subscribe_stored(with_associated=False)
            while batch := self._fresh.take(self._options.batch):
                await self._subscribe(batch)
            if self._again and loop.time() >= self._retry_at:
                again, self._again = tuple(self._again.values()), {}
                for start in range(0, len(again), self._options.batch):
                    await self._subscribe(again[start : start + self._options.batch])
            if self._again:
                await self._fresh.wait(max(0.0, self._retry_at - loop.time()))
            elif (
                not await self._fresh.wait(self._options.unused_s)
                and not await self._reporter.is_anything_stored()
            ):
                return

    async def _subscribe(self, notifiers: Sequence[Notifier]) -> None:
        """NSUB for these, and their answers stored."""
        self._in_flight.update(notifier.notifier_id for notifier in notifiers)
        results = await self._client.send_many(
            Call(NSUB(), notifier.notifier_id, PrivateKey.decoded(notifier.key)) for notifier in notifiers
        )
        answers: defaultdict[QueueAnswer, list[bytes]] = defaultdict(list)
        for notifier, result in zip(notifiers, results, strict=True):
            notifier_id = notifier.notifier_id
            is_known = notifier_id in self._in_flight
            answer = queue_answer(result, self._service_id) or TRIED
            answers[answer].append(notifier_id)
            if answer is TRIED and is_known:
                self._again[notifier_id] = notifier
            elif answer is CONFIRMED and is_known:
                self.active.add(notifier_id)
        self._in_flight.clear()
        self.members += QueueSet.of(answers.get(ASSOCIATED, ()))
        self._plan_retry()
        await self._reporter.answered(answers)

    def _plan_retry(self) -> None:
        if not self._again:
            self._failures = 0
            return
        self._failures += 1
        pause_s = self._options.reconnect.pause_s(self._failures, self._chance)
        self._retry_at = asyncio.get_running_loop().time() + pause_s

    # Events

    async def _take_events(self) -> None:
        """Store what the message router sends, in batches, until it ends."""
        while True:
            try:
                taken = [await self._client.next_event()]
                while self._client.events_waiting and len(taken) < self._options.events:
                    taken.append(await self._client.next_event())
            except TransportError as error:
                log.info("a session with a message router is over: %s", error)
                return
            await self._reporter.submit(*self._reported(taken))
            if self.is_taken_over:
                await self._client.close()

    async def _hear_rest(self) -> None:
        """Store what the message router says until it knows that we leave: it says it to nobody else."""
        self._client.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.leaving_s):
                await self._take_events()
        self._client.cut()

    def _reported(self, events: Iterable[Event[Response, Command]]) -> list[SubscriberEvent]:
        reports: list[SubscriberEvent] = []
        for event in events:
            match event:
                case Push(entity_id, response):
                    report = self._pushed(entity_id, response)
                case Late(NSUB(), entity_id, response):
                    report = self._late(entity_id, response)
                case _:
                    report = None
            if report is None:
                log.warning("a message router sent an unexpected %s", type(event).__name__)
            else:
                reports.append(report)
        return reports

    def _pushed(self, entity_id: bytes, response: Response) -> SubscriberEvent | None:
        server = self._reporter.server
        match response:
            case NMSG(nonce, enc_meta):
                return NmsgReceived(server, entity_id, nonce, bytes(enc_meta))
            case END():
                return self._left(entity_id, SubEvent.ENDED)
            case DELD():
                return self._left(entity_id, SubEvent.QUEUE_DELETED)
            case ENDS():
                log.error("another notification router uses our certificate at a message router")
                self.members, self.is_taken_over = NO_QUEUES, True
                return AssociatedChanged(server, SubEvent.DISCONNECTED)
        return None

    def _left(self, notifier_id: bytes, event: SubEvent) -> SubscriberEvent:
        if notifier_id in self.active:
            self.active.discard(notifier_id)
        else:
            self.members -= QueueSet.of((notifier_id,))
        return SubscriptionsChanged(self._reporter.server, (notifier_id,), event)

    def _late(self, notifier_id: bytes, response: Response) -> SubscriberEvent | None:
        """An answer that nobody waits for any more."""
        result = RefusedError(response.error) if isinstance(response, ERR) else response
        answer = queue_answer(result, self._service_id)
        if answer is None:
            return None
        self._again.pop(notifier_id, None)
        if answer is CONFIRMED:
            self.active.add(notifier_id)
        return SubscriptionsChanged(self._reporter.server, (notifier_id,), answer.event, answer.error)
