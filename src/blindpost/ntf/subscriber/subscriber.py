"""All message routers: a link for each that has something to subscribe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random, SystemRandom

from blindpost.ntf.ports import Desk, Notifier
from blindpost.ntf.subscriber.link import Link
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.reporting import insist
from blindpost.wire.addresses import Server

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkState:
    """How a message router is subscribed now."""

    server: Server
    is_connected: bool
    active: int
    """Queues subscribed one by one."""
    members: int
    """Queues subscribed through our service."""
    waiting: int


class SmpSubscriber:
    """The `ports.Subscriber`: `run` it, and report what is new."""

    def __init__(self, desk: Desk, options: SubscriberOptions, chance: Random | None = None) -> None:
        self._desk = desk
        self._options = options
        self._chance = SystemRandom() if chance is None else chance
        self._links: dict[Server, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = asyncio.Semaphore(options.connecting)

    @property
    def states(self) -> list[LinkState]:
        return [_state(link) for link in self._links.values()]

    async def run(self) -> None:
        """Subscribe what is stored, and keep it subscribed until cancelled."""
        try:
            for router in await insist(self._desk.routers, self._options.store, self._chance):
                self._link(router.server)
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def subscribe(self, server: Server, notifiers: Sequence[Notifier]) -> None:
        self._link(server).fresh.add(notifiers)

    def has(self, server: Server) -> bool:
        return server in self._links

    def forget(self, server: Server, notifier_ids: Sequence[bytes]) -> None:
        link = self._links.get(server)
        if link is not None:
            link.forget(notifier_ids)

    def _link(self, server: Server) -> Link:
        link = self._links.get(server)
        if link is None:
            link = Link(server, self._desk, self._options, self._chance, self._connecting)
            self._links[server] = link
            task = asyncio.create_task(self._keep(link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return link

    async def _keep(self, link: Link) -> None:
        """Run a link until it has nothing left to do; a fault of ours in one holds up no other."""
        failures = 0
        while True:
            try:
                await link.run()
            except Exception:
                log.exception("a link to a message router failed")
                failures += 1
                await asyncio.sleep(self._options.reconnect.pause_s(failures, self._chance))
            else:
                if not link.fresh:
                    del self._links[link.server]
                    return


def _state(link: Link) -> LinkState:
    session = link.session
    if session is None:
        return LinkState(link.server, False, 0, 0, len(link.fresh))
    waiting = len(link.fresh) + session.waiting
    return LinkState(link.server, True, len(session.active), session.members.count, waiting)
