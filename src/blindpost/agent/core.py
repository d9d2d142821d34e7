"""An open agent: all parts, made in one place, each given the parts it uses."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from blindpost.agent.calls import ConnectionCalls
from blindpost.agent.cleanup import keep_clean
from blindpost.agent.config import AgentConfig
from blindpost.agent.connection import Connection
from blindpost.agent.errors import AgentError, network_error
from blindpost.agent.handshake import allowing, joining
from blindpost.agent.links import creating
from blindpost.agent.links.reading import LinkReader
from blindpost.agent.messages import acking
from blindpost.agent.messages.delivery import DeliveryWorkers
from blindpost.agent.messages.flows import Flow, Flows
from blindpost.agent.messages.receiving import Reception
from blindpost.agent.messages.retelling import Retelling
from blindpost.agent.model import ConnId
from blindpost.agent.notifications.push import PushNotifications
from blindpost.agent.notifications.reading import Reading
from blindpost.agent.queues.deletion import Deletion
from blindpost.agent.queues.making import QueueMaker
from blindpost.agent.rotation.commands import RotationCommands
from blindpost.agent.rotation.draining import Draining
from blindpost.agent.rotation.rotation import Rotation
from blindpost.agent.routers.proxying import QueueSender
from blindpost.agent.routers.sessions import Session
from blindpost.agent.store import connections
from blindpost.agent.store.database import AgentStore
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.subscriptions.reports import EventReports
from blindpost.agent.sync.synchronisation import Synchronisation
from blindpost.agent.work.commands import JOIN, CommandWorkers
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.key_pairs import KemKeyPool
from blindpost.agent.work.retries import RECONNECT, Retry
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.smp.responses import MSG


class Core:
    """Made when an agent is opened, discarded when it is closed.

    Two parts are needed by what is made before them, and reached through methods here: handles, which events
    carry, and reception, which sessions bring messages to.
    """

    def __init__(
        self,
        store: AgentStore,
        config: AgentConfig,
        servers: tuple[RouterAddress, ...],
        ntf_servers: tuple[RouterAddress, ...],
        pool: KemKeyPool,
    ) -> None:
        self.ground = ground = Ground(store, config, servers, pool, self._handle)
        self.subscriptions = subscriptions = Subscriptions(
            store,
            self._receive,
            EventReports(ground),
            config.sessions,
            config.subscriptions,
            has_service=lambda _: config.service,
            chance=config.chance,
        )
        self.sessions = sessions = subscriptions.sessions
        sender = QueueSender(
            sessions, lambda _: ground.servers, config.proxy, raised=network_error, chance=config.chance
        )
        self.maker = maker = QueueMaker(ground, subscriptions, sender)
        self.reader = reader = LinkReader(ground, sender)
        self.links = links = creating.Links(ground, sessions, maker)
        draining = Draining(ground, sessions)
        flow = Flow()
        self.reception = Reception(ground, draining, flow)
        reading = Reading(ground, subscriptions)
        self.push = PushNotifications(ground, sessions, reading, [address.server for address in ntf_servers])
        flows = Flows(ground, sessions, reading, flow)
        acks = acking.Acks(ground, sessions, reading, flow.answered)
        self.rotation = Rotation(ground)
        self.sync = Synchronisation(ground)
        self.deletion = Deletion(ground, subscriptions)
        join = joining.Joining(ground, sender, maker, reader)
        allow = allowing.Allowing(ground, sessions, maker)
        self.delivery = DeliveryWorkers(ground, sender)
        self.commands = CommandWorkers(
            ground,
            {
                creating.NEW_TAG: links.run_new,
                JOIN: join.run_join,
                allowing.ALLOW_SECURE: allow.run_allow_secure,
                allowing.DUPLEX_SECURE: allow.run_duplex_secure,
                acking.ACK_TAG: acks.run_ack,
                **RotationCommands(ground, subscriptions, maker, draining).handlers,
            },
            end_themselves=frozenset({acking.ACK_TAG}),
        )
        self._calls = ConnectionCalls(
            ground,
            subscriptions=subscriptions,
            links=links,
            rotation=self.rotation,
            sync=self.sync,
            deletion=self.deletion,
            push=self.push,
            reading=reading,
            flows=flows,
        )
        ground.stream.pressure.listen(self._pressed)
        self.reception.receive_again()
        ground.tell_again()
        self._retelling = Retelling(ground, sessions)
        self._unclaimed = connections.unclaimed(store.reading)
        if store.is_copy:
            ground.keep(partial(self.sync.finish_as_copy, self.sync.begin_as_copy()))

    def _handle(self, conn_id: ConnId) -> Connection:
        return Connection(self._calls, conn_id)

    async def _receive(self, session: Session, rcv_id: bytes, msg: MSG) -> None:
        await self.reception.received(session, rcv_id, msg)

    def _pressed(self, full: bool) -> None:
        """Take nothing from routers while too many events wait for the application."""
        if full:
            self.sessions.pause_receiving("full")
        else:
            self.sessions.resume_receiving("full")

    async def start(self) -> None:
        """Continue all stored work."""
        ground = self.ground
        for conn_id in self._unclaimed:
            ground.keep(partial(self._take_back, conn_id))
        ground.keep(self._retelling.run)
        self.commands.resume()
        self.delivery.resume()
        ground.keep(self.rotation.keep_going)
        ground.keep(self.sync.keep_going)
        ground.keep(self.deletion.resume)
        ground.keep(partial(keep_clean, ground, self.deletion))
        ground.keep(self.push.resume)
        if ground.config.subscribe:
            await ground.lasting(self.subscriptions.subscribe_all)

    async def _take_back(self, conn_id: ConnId) -> None:
        """Delete a connection that the program was never given; a router that is away is asked again."""
        retry = Retry.first(RECONNECT)
        while True:
            try:
                await self.links.find_again(conn_id)
            except AgentError:
                await asyncio.sleep(retry.delay_s)
                retry = retry.next()
            else:
                with self.ground.transaction() as tx:
                    tx.delete_connection(conn_id)
                return

    async def close(self, *, finished: bool) -> None:
        """End all parts. Even if one of them raises, the others end and the store is released."""
        ground = self.ground
        if finished:
            ground.stream.settle()
        async with contextlib.AsyncExitStack() as ending:
            ending.push_async_callback(ground.stop)  # what follows from the last commit
            ending.callback(ground.stream.close)
            ending.callback(ground.store.close)
            ending.push_async_callback(ground.pool.close)
            ending.push_async_callback(ground.stop)
            ending.push_async_callback(self.subscriptions.close)
            ending.push_async_callback(self.push.close)
            ending.push_async_callback(ground.stop)
