"""Devices with queues at several message routers, messages to them, and what push services accepted of it."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from blindpost.client.smp import SmpClient
from blindpost.wire.ntf.commands import TVFY
from blindpost.wire.ntf.pushes import MessagePush, Push
from blindpost.wire.ntf.responses import OK
from blindpost.wire.ntf.tokens import DeviceToken
from tests.support.ntf.notified import SmpQueue, notified_queues
from tests.support.ntf.process import StartedNtf
from tests.support.ntf.routers import Device
from tests.support.serving.processes import RouterInProcess, until

CHUNK = 100
"""Queues that are made at once: more would have to be answered within the time of one."""


class Kept(NamedTuple):
    """A notification as the store has it."""

    subscription_id: bytes
    number: int
    nonce: bytes
    is_waiting: bool


def kept_notifications(ntf: StartedNtf) -> list[Kept]:
    """The newest of each queue, while the notification router does not run."""
    with closing(sqlite3.connect(ntf.folder / "ntf.db")) as store:
        rows = store.execute("SELECT subscription_id, number, nonce, waiting FROM notifications")
        return [Kept(*row) for row in rows]


class Accepting(Protocol):
    """A push service in a process of its own."""

    def device(self, number: int) -> DeviceToken: ...

    def new(self) -> list[tuple[bytes, Push]]: ...


class Load:
    """Messages to many queues at routers that come and go, and what push services accepted of them."""

    def __init__(
        self, ntf: StartedNtf, services: Sequence[Accepting], chance: random.Random, beyond: int
    ) -> None:
        self.ntf = ntf
        self.services = services
        self.chance = chance
        self.devices: dict[bytes, Device] = {}
        self.queues: list[SmpQueue] = []
        self.sent = 0
        self.pushes = 0
        self.twice = 0
        """Pushes of nothing but what the ledger had as accepted before."""
        self._done: set[bytes] = set()
        self._pushed: set[tuple[bytes, bytes]] = set()
        self._beyond = beyond
        """How many messages are sent while a process is killed and started again."""
        self._goal = 0
        self._changed = asyncio.Event()
        self._stopped = False

    async def set_up(self, routers: list[RouterInProcess], devices: int) -> None:
        """A device for each number, active, with an active queue at each message router.

        The push services take turns."""
        for number in range(devices):
            name = self.services[number % len(self.services)].device(number)
            device = Device(await self.ntf.connect(), name)
            await device.register()
            self.devices[name.token] = device
        unverified = dict(self.devices)
        while unverified:
            for token, push in self._new():
                device = self.devices[token]
                assert await device.ask(TVFY(device.code(push))) == OK()
                unverified.pop(token, None)
            await asyncio.sleep(0.02)
        subscribed: list[tuple[Device, bytes]] = []
        for router in routers:
            client = await router.connect()
            queues = [
                queue
                for start in range(0, devices, CHUNK)
                for queue in await notified_queues(client, router.server, min(CHUNK, devices - start))
            ]
            for device, queue in zip(self.devices.values(), queues, strict=True):
                subscribed.append((device, await device.subscribe(queue)))
            self.queues += queues
            await client.close()

        for device, subscription_id in subscribed:

            async def is_active(device: Device = device, subscription_id: bytes = subscription_id) -> bool:
                return await device.sub_status(subscription_id) == b"ACTIVE"

            await until(is_active)

    async def send(self, router: RouterInProcess) -> None:
        """Keep sending to the queues of one message router, whenever it is up."""
        queues = self.queues_of(router)
        client: SmpClient | None = None
        while not self._stopped:
            if self.sent >= self._goal + self._beyond:
                await self._change()
                continue
            try:
                client = client or await router.connect()
                await self.chance.choice(queues).send(client)
                self.sent += 1
                self._changed.set()
            except Exception:  # the router was killed under us, in one of many ways
                client = None
                await asyncio.sleep(0.05)
        if client is not None:
            await client.close()

    async def send_to_all(self, router: RouterInProcess) -> None:
        """One message to each queue of a message router."""
        client = await router.connect()
        for queue in self.queues_of(router):
            await queue.send(client)
            self.sent += 1
        await client.close()

    def queues_of(self, router: RouterInProcess) -> list[SmpQueue]:
        return [queue for queue in self.queues if queue.server == router.server]

    def stop(self) -> None:
        self._stopped = True
        self._changed.set()

    async def until_sent(self, more: int) -> None:
        """Let so many be sent, and some more while whatever comes next is done."""
        self._goal = self.sent + more
        self._changed.set()
        while self.sent < self._goal:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def pushed(self) -> set[tuple[bytes, bytes]]:
        """Every notification that was in an accepted push, by queue and nonce."""
        for token, push in self._new():
            if isinstance(push, MessagePush):
                self.pushes += 1
                items = self.devices[token].items(push)
                self.twice += {item.nonce for item in items} <= self._done
                self._pushed.update((item.notifier_id, item.nonce) for item in items)
        return self._pushed

    def accepted(self, kept: Sequence[Kept]) -> None:
        """What the ledger says is accepted, while the notification router does not run: from now on a push
        must bring something else too."""
        self.pushed()
        self._done |= {each.nonce for each in kept if not each.is_waiting}

    def _new(self) -> list[tuple[bytes, Push]]:
        return [found for service in self.services for found in service.new()]
