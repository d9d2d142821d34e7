"""One message router: a session with it for as long as there is anything to subscribe there.

What is subscribed lives in the store. A session that is lost takes its subscriptions with it, and the next
one begins as the first one did.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from random import Random

from blindpost.client.errors import NoHostError
from blindpost.client.smp import SmpClient
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.ntf.machines import SubEvent
from blindpost.ntf.model import NO_QUEUES, SmpRouter
from blindpost.ntf.ports import AssociatedChanged, Desk, ServiceMade, ServiceUnavailable
from blindpost.ntf.subscriber.decisions import DISCONNECTED, INCOMPATIBLE_HOST, TRIED
from blindpost.ntf.subscriber.fresh import Fresh
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.reporting import Reporter
from blindpost.ntf.subscriber.session import RouterSession
from blindpost.transport.errors import HandshakeBadServiceError, TransportError
from blindpost.wire.addresses import Server
from blindpost.wire.smp.handshake import ServiceRole

log = logging.getLogger(__name__)

_DOUBLINGS = 6
_LONGEST_PAUSE = 64
"""The pause is that after this many failed attempts."""


class Link:
    """The session with one message router, and the next one when it is lost."""

    def __init__(
        self,
        server: Server,
        desk: Desk,
        options: SubscriberOptions,
        chance: Random,
        connecting: asyncio.Semaphore,
    ) -> None:
        self.server = server
        self.fresh = Fresh(options.fresh)
        self.session: RouterSession | None = None
        self._reporter = Reporter(server, desk, options.store, chance)
        self._options = options
        self._chance = chance
        self._connecting = connecting
        self._is_stranger = True
        self._failures = 0
        self._is_marked = False
        """Whether the store knows that this message router cannot be reached."""
        self._is_service_refused = False
        self._was_connected = False
        self._surplus = NO_QUEUES

    def forget(self, notifier_ids: Iterable[bytes]) -> None:
        for notifier_id in notifier_ids:
            self.fresh.forget(notifier_id)
            if self.session is not None:
                self.session.forget(notifier_id)

    async def run(self) -> None:
        """Run until there is nothing to subscribe at this message router."""
        loop = asyncio.get_running_loop()
        while self.fresh or await self._reporter.is_anything_stored():
            try:
                client = await self._connect()
            except NoHostError:
                await self._refuse_all()
                continue
            except TransportError as error:
                log.info("a message router cannot be reached: %s", error)
                await self._mark_tried()
            else:
                started = loop.time()
                async with client:
                    await self._serve(client)
                if loop.time() - started >= self._options.settled_s:
                    self._failures = 0
            self._failures += 1
            await self._pause(self._pause_s())

    def _pause_s(self) -> float:
        length = self._options.reconnect.pause_s(self._failures, self._chance)
        beyond = self._failures - self._options.patience if self._is_stranger else 0
        return length * (1 << max(0, min(beyond, _DOUBLINGS)))

    async def _connect(self) -> SmpClient:
        router = await self._reporter.stored()
        credentials = await self._credentials(router)
        service = None if credentials is None else (ServiceRole.NOTIFIER, credentials)
        is_known = self._is_known(router)
        self._is_stranger = not is_known
        options = replace(self._options.smp, service=service, is_known=is_known)
        try:
            async with nullcontext() if is_known else self._connecting:
                client = await SmpClient.connect(self.server, options)
        except HandshakeBadServiceError:
            # Replace a certificate that was accepted before; if a new one is refused, another will not help.
            known = router.service is not None and router.service.service_id is not None
            self._is_service_refused = not known
            await self._reporter.submit(ServiceUnavailable(self.server))
            raise
        self._was_connected = True
        self._is_stranger = False
        return client

    def _is_known(self, router: SmpRouter) -> bool:
        """Whether it was ever reached: hosts that devices made up must not hold up the others."""
        return self._was_connected or (router.service is not None and router.service.service_id is not None)

    async def _credentials(self, router: SmpRouter) -> Credentials | None:
        """Our credentials at this message router, made and stored when first needed."""
        if not self._options.use_services or self._is_service_refused:
            return None
        if router.service is not None:
            return router.service.credentials
        smp = self._options.smp
        made = make_service(int(smp.now()), smp.entropy)
        await self._reporter.submit(ServiceMade(self.server, made))
        return made

    async def _serve(self, client: SmpClient) -> None:
        """Run a session until it ends; then its subscriptions are gone."""
        self._is_marked = False
        session = self.session = RouterSession(
            client, self._reporter, self.fresh, self._options, self._chance
        )
        try:
            self._surplus = await session.run(self._surplus)
        finally:
            self.session = None
        if session.is_taken_over:
            self._failures = _LONGEST_PAUSE
        await self._reporter.submit(AssociatedChanged(self.server, SubEvent.DISCONNECTED))
        await self._reporter.changed(session.active, DISCONNECTED)

    async def _mark_tried(self) -> None:
        """The message router cannot be reached: record that, once for all queues and then for new ones."""
        if self._is_marked:
            await self._reporter.changed(self.fresh.notifier_ids, TRIED)
            return
        self._is_marked = True
        await self._reporter.submit(AssociatedChanged(self.server, SubEvent.TRIED))
        async for page in self._reporter.pages(self._options.batch, with_associated=False):
            await self._reporter.changed((notifier.notifier_id for notifier in page), TRIED)

    async def _refuse_all(self) -> None:
        """None of its hosts can ever be reached from here."""
        self.fresh.clear()
        async for page in self._reporter.pages(self._options.batch, with_associated=True):
            await self._reporter.changed((notifier.notifier_id for notifier in page), INCOMPATIBLE_HOST)

    async def _pause(self, seconds: float) -> None:
        """Wait; subscriptions added meanwhile wait too, and the store records them as tried."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            if await self.fresh.wait(left) and self._is_marked:
                await self._mark_tried()
