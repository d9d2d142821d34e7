"""The agent: duplex, end-to-end encrypted connections for a program.

async with Agent.open("alice.db", servers=["smp://..."]) as alice:
    link = await alice.invite()
    async for event in alice.events():
        match event:
            case Connected(conn):
                await conn.send(b"hello")
            case Received(conn, msg):
                print(msg.body, msg.integrity)
                await msg.ack()
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from blindpost.agent.application import Records, Transaction
from blindpost.agent.config import AgentConfig
from blindpost.agent.connection import Connection
from blindpost.agent.errors import AgentError, InactiveError, network_error
from blindpost.agent.events import Event, Suspended
from blindpost.agent.handlers import CommandHandler, Handlers
from blindpost.agent.handshake import allowing, joining
from blindpost.agent.links import creating
from blindpost.agent.links.creating import LinkWishes
from blindpost.agent.links.reading import read_short_link
from blindpost.agent.links.values import (
    CreatedLink,
    LinkContent,
    PreparedLink,
    parse_link,
    prepare_link,
)
from blindpost.agent.messages import acking
from blindpost.agent.messages.delivery import DeliveryWorkers
from blindpost.agent.messages.receiving import Reception
from blindpost.agent.model import ConnId, ConnMode
from blindpost.agent.notifications.model import PushMode, Token
from blindpost.agent.notifications.push import PushNotifications
from blindpost.agent.notifications.reading import News
from blindpost.agent.queues.deletion import Deletion
from blindpost.agent.queues.making import choose_server
from blindpost.agent.rotation.commands import RotationCommands
from blindpost.agent.rotation.rotation import Rotation
from blindpost.agent.routers.proxying import QueueSender
from blindpost.agent.store import connections
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.subscriptions import servers_with_service as service_places
from blindpost.agent.subscriptions import by_hand as subscribing
from blindpost.agent.subscriptions.engine import Subscriptions
from blindpost.agent.subscriptions.reports import EventReports
from blindpost.agent.sync.synchronisation import Synchronisation
from blindpost.agent.work.cleanup import keep_clean
from blindpost.agent.work.commands import CommandWorkers
from blindpost.agent.work.key_pairs import KemKeyPool
from blindpost.agent.work.runtime import Runtime
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.links.full import ContactLink, InvitationLink
from blindpost.wire.ntf.pushes import Push
from blindpost.wire.ntf.status import TokenStatus

DEFAULT_USER = 1

T = TypeVar("T")


class Agent:
    """One store, its connections, and the sessions with their routers. Use as `async with`."""

    def __init__(
        self,
        path: Path,
        servers: tuple[RouterAddress, ...],
        passphrase: str | None,
        config: AgentConfig,
        ntf_servers: tuple[RouterAddress, ...] = (),
    ) -> None:
        self._path = path
        self._servers = servers
        self._ntf_servers = ntf_servers
        self._passphrase = passphrase
        self._config = config
        self._runtime: Runtime | None = None

    @classmethod
    def open(
        cls,
        path: str | Path,
        servers: Iterable[str] = (),
        *,
        passphrase: str | None = None,
        config: AgentConfig | None = None,
        ntf_servers: Iterable[str] = (),
    ) -> Agent:
        """The agent whose store is at `path`; new queues are made on `servers`, and pushes come through one
        of `ntf_servers`, once `register_push` was called.

        With a passphrase a new store is sealed: keys and messages are in it only encrypted.
        """
        addresses = tuple(RouterAddress.from_text(server) for server in servers)
        notifying = tuple(RouterAddress.from_text(server) for server in ntf_servers)
        return cls(Path(path), addresses, passphrase, config or AgentConfig(), notifying)

    async def __aenter__(self) -> Self:
        config = self._config
        store = AgentStore.open(
            self._path, self._passphrase, durability=config.durability, entropy=config.entropy
        )
        pool = KemKeyPool(config.key_pairs, config.pair_maker)
        await pool.__aenter__()
        rt = self._runtime = Runtime(store, config, self._servers, pool, Connection)
        rt.subscriptions = Subscriptions(
            store,
            Reception(rt),
            EventReports(rt),
            config.sessions,
            config.subscriptions,
            has_service=lambda _: config.service,
            chance=config.chance,
        )
        rt.sender = QueueSender(
            rt.sessions, lambda _: self._servers, config.proxy, raised=network_error, chance=config.chance
        )
        rt.delivery, rt.commands = DeliveryWorkers(rt), CommandWorkers(rt)
        rt.rotation, rt.deletion = Rotation(rt), Deletion(rt)
        rt.sync = Synchronisation(rt, rt.rotation.in_step)
        rt.push = PushNotifications(rt, [address.server for address in self._ntf_servers])
        rt.handlers = Handlers(rt.rotation, rt.sync, _handlers(rt))
        rt.stream.full = functools.partial(rt.sessions.pause_receiving, "full")
        rt.stream.drained = functools.partial(rt.sessions.resume_receiving, "full")
        rt.spawn(self._start(rt))
        return self

    async def _start(self, rt: Runtime) -> None:
        """Go on with everything that is stored."""
        rt.commands.resume()
        rt.delivery.resume()
        rt.spawn(rt.rotation.resume())
        rt.spawn(rt.deletion.resume())
        rt.spawn(keep_clean(rt))
        rt.spawn(rt.push.resume())
        if self._config.subscribe:
            await rt.subscriptions.subscribe_all()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End. Whatever was not done is stored, and goes on when the agent is opened again."""
        rt, self._runtime = self._runtime, None
        if rt is None:
            return
        await rt.stop()
        await rt.push.close()
        await rt.subscriptions.close()
        await rt.stop()
        await rt.pool.close()
        rt.store.close()
        rt.stream.close()

    @property
    def _rt(self) -> Runtime:
        if self._runtime is None:
            raise InactiveError("the agent is closed")
        return self._runtime

    # Events

    async def events(self) -> AsyncIterator[Event]:
        """What happens, until the agent is closed."""
        stream = self._rt.stream
        while (event := await stream.take()) is not None:
            yield event

    async def next_event(self) -> Event | None:
        """The next event; None when the agent is closed."""
        return await self._rt.stream.take()

    # Links

    async def invite(
        self,
        info: bytes = b"",
        *,
        auto_allow: bool = True,
        pq: bool | None = None,
        user_data: bytes | None = None,
        kem_in_link: bool = False,
        client_data: str | None = None,
    ) -> CreatedLink:
        """A link for one peer. Whoever joins with it is let in, unless `auto_allow` is off: then
        `ConfirmationReceived` is to be answered. With `user_data`, even empty, there is a short link."""
        wishes = LinkWishes(user_data, kem_in_link, client_data)
        return await self._create(ConnMode.INVITATION, wishes, info, auto_allow, pq)

    async def address(
        self,
        info: bytes = b"",
        *,
        auto_accept: bool = False,
        pq: bool | None = None,
        user_data: bytes | None = None,
        client_data: str | None = None,
    ) -> CreatedLink:
        """A link for anybody. Each request is a `ContactRequested` to accept or reject, unless
        `auto_accept` is on."""
        wishes = LinkWishes(user_data, False, client_data)
        return await self._create(ConnMode.CONTACT, wishes, info, auto_accept, pq)

    async def invite_later(
        self, info: bytes = b"", *, auto_allow: bool = True, user_data: bytes | None = None
    ) -> Connection:
        """As `invite`, without waiting for a router: the link comes with `LinkCreated`."""
        rt, conn_id = self._rt, self._rt.new_id()
        wishes, mode = LinkWishes(user_data), ConnMode.INVITATION
        rt.stream.hold(conn_id)
        pq = self._config.pq
        await creating.register(
            rt, conn_id, DEFAULT_USER, mode, wishes, info=info, auto_allow=auto_allow, pq=pq, later=True
        )
        rt.stream.give(conn_id)
        return rt.handle(conn_id)

    async def _create(
        self, mode: ConnMode, wishes: LinkWishes, info: bytes, auto_allow: bool, pq: bool | None
    ) -> CreatedLink:
        self._rt.awake()
        rt, conn_id = self._rt, self._rt.new_id()
        rt.stream.hold(conn_id)
        try:
            await creating.register(
                rt,
                conn_id,
                DEFAULT_USER,
                mode,
                wishes,
                info=info,
                auto_allow=auto_allow,
                pq=self._config.pq if pq is None else pq,
            )
            try:
                created = await creating.create(rt, conn_id, wishes)
            except BaseException:
                with rt.transaction() as tx:
                    connections.delete(tx, conn_id)
                raise
        except BaseException:
            rt.stream.forget(conn_id)
            raise
        rt.stream.give(conn_id)
        return created

    def prepare_address(
        self,
        *,
        root_key: PrivateKey | None = None,
        entity_id: bytes | None = None,
        client_data: str | None = None,
    ) -> PreparedLink:
        """The link of an address that will be made later: no network, nothing stored. It can be saved."""
        rt = self._rt
        return prepare_link(
            choose_server(rt),
            rt.config.versions,
            rt.config.entropy,
            root_key=root_key,
            entity_id=entity_id,
            client_data=client_data,
        )

    async def create_address(
        self,
        prepared: PreparedLink,
        user_data: bytes = b"",
        *,
        info: bytes = b"",
        auto_accept: bool = False,
        pq: bool | None = None,
    ) -> CreatedLink:
        """Make the address of a prepared link. When that fails it can be tried again with the same link."""
        self._rt.awake()
        rt, conn_id = self._rt, self._rt.new_id()
        rt.stream.hold(conn_id)
        try:
            created = await creating.create_prepared(
                rt,
                conn_id,
                DEFAULT_USER,
                prepared,
                user_data,
                auto_allow=auto_accept,
                info=info,
                pq=self._config.pq if pq is None else pq,
            )
        except BaseException:
            rt.stream.forget(conn_id)
            raise
        rt.stream.give(conn_id)
        return created

    async def read_link(self, link: str) -> LinkContent:
        """What a link leads to; a short one is read from its router."""
        found = parse_link(link, self._servers)
        if isinstance(found, InvitationLink | ContactLink):
            return LinkContent(found, b"")
        return await read_short_link(self._rt, DEFAULT_USER, found)

    async def join(self, link: str, info: bytes = b"", *, pq: bool | None = None) -> Connection:
        """Connect by a link of any kind. Returns at once; `Joined` and `Connected` follow, or `Failed`."""
        self._rt.awake()
        rt, conn_id = self._rt, self._rt.new_id()
        command = joining.JoinCommand(str(link).strip(), info, self._config.pq if pq is None else pq)
        rt.stream.hold(conn_id)
        try:
            with rt.transaction() as tx:
                joining.register_join(rt, tx, conn_id, DEFAULT_USER, command)
        except BaseException:
            rt.stream.forget(conn_id)
            raise
        rt.stream.give(conn_id)
        return rt.handle(conn_id)

    # Connections

    def connections(self) -> list[Connection]:
        """All that are stored."""
        rt = self._rt
        return [rt.handle(conn_id) for conn_id in connections.conn_ids(rt.store.reading)]

    def connection(self, conn_id: ConnId) -> Connection:
        """The connection with this id; an error if there is none."""
        rt = self._rt
        connections.load(rt.store.reading, conn_id)
        return rt.handle(conn_id)

    # Transactions of the program

    async def transact(self, work: Callable[[Transaction], T], *conns: Connection) -> T:
        """Messages to these connections, acknowledgements of theirs, and records of the program: all that
        `work` does is durable when this returns, and nothing of it happens if it raises. `work` is a plain
        function, so that nothing can come between."""
        rt = self._rt
        rt.awake()
        ids = sorted({conn.id for conn in conns})
        made: list[ConnId] = []
        async with contextlib.AsyncExitStack() as locks:
            for conn_id in ids:
                await locks.enter_async_context(rt.locked(conn_id))
            try:
                with rt.transaction() as tx:
                    done = work(Transaction(tx, frozenset(ids), DEFAULT_USER, made))
            except BaseException:
                for conn_id in made:
                    rt.stream.forget(conn_id)
                raise
        for conn_id in made:
            rt.stream.give(conn_id)
        return done

    @property
    def records(self) -> Records:
        """The records that the program keeps in the agent's store, to read; `transact` changes them."""
        return Records(self._rt.store.reading)

    # Routers

    async def subscribe(
        self, conns: Iterable[Connection]
    ) -> AsyncIterator[tuple[Connection, AgentError | None]]:
        """Subscribe these connections, which is done for all when the agent is opened, and tell how each
        went. Those that receive nothing are told first, without waiting for any router."""
        rt = self._rt
        async for conn_id, error in subscribing.subscribe(rt, [conn.id for conn in conns]):
            yield rt.handle(conn_id), error

    def set_online(self, online: bool) -> None:
        """Tell whether there is a network: without one nothing is tried, with one it is tried at once."""
        self._rt.subscriptions.set_online(online)

    def renew_service(self) -> None:
        """Take new credentials as a service at every router. The old ones serve until all queues have moved;
        this is done without being asked before credentials expire."""
        subscriptions = self._rt.subscriptions
        for user_id, server in service_places(self._rt.store.reading):
            subscriptions.renew(user_id, server)

    # Push notifications

    @property
    def push_token(self) -> Token | None:
        """The device token in use, and how far it is."""
        return self._rt.push.token

    async def register_push(self, device_token: str, mode: PushMode = PushMode.INSTANT) -> TokenStatus:
        """Name the device token, such as "apns_prod 0a1b...": at every start, and whenever it changes. The
        router then pushes a code, which `verify_push` returns; after that pushes tell of messages."""
        return await self._rt.push.register(device_token, mode)

    async def verify_push(self, payload: bytes | Push, device_token: str | None = None) -> TokenStatus:
        """Return the code that a push brings."""
        return await self._rt.push.verify(payload, device_token)

    async def check_push(self, device_token: str | None = None) -> TokenStatus:
        """Ask the router how the token is."""
        return await self._rt.push.check(device_token)

    async def delete_push(self) -> None:
        """Be pushed to no more."""
        await self._rt.push.delete()

    async def push_received(self, payload: bytes | Push) -> list[News]:
        """Any push: the connections that it gives reason to look into; `fetch` of each reads a message. One
        with a code is answered. `PushRefusedError` for all that is not from our router or not about us."""
        return await self._rt.push.received(payload)

    # The store and its rest

    def backup(self, target: str | Path) -> None:
        """A consistent copy of the store in a new file; open it with the same passphrase."""
        self._rt.store.backup(Path(target))

    async def suspend(self, max_delay_s: float = 30.0) -> bool:
        """Finish what is under way and start nothing more; whether all of it ended in time."""
        rt = self._rt
        rt.sessions.pause_receiving("suspended")
        done = await rt.operations.suspend(max_delay_s)
        rt.stream.put(Suspended())
        return done

    def resume(self) -> None:
        """Go on after `suspend`."""
        rt = self._rt
        rt.operations.resume()
        rt.sessions.resume_receiving("suspended")


def _handlers(rt: Runtime) -> dict[str, CommandHandler]:
    own = {
        creating.NEW_TAG: creating.run_new,
        joining.JOIN: joining.run_join,
        allowing.ALLOW_SECURE: allowing.run_allow_secure,
        allowing.DUPLEX_SECURE: allowing.run_duplex_secure,
        acking.ACK_TAG: acking.run_ack,
    }
    bound = {tag: functools.partial(run, rt) for tag, run in own.items()}
    return {**bound, **RotationCommands(rt).handlers}
