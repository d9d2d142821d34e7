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

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from blindpost.agent.application import Records, Transaction
from blindpost.agent.config import AgentConfig
from blindpost.agent.connection import Connection, CreatedLink, News
from blindpost.agent.core import Core
from blindpost.agent.errors import AgentError, CriticalError, InactiveError
from blindpost.agent.events import Event, Suspended
from blindpost.agent.handshake.joining import JoinCommand, register_join
from blindpost.agent.links.creating import LinkWishes
from blindpost.agent.links.values import LinkContent, PreparedLink, parse_link, prepare_link
from blindpost.agent.model import ConnId, ConnMode
from blindpost.agent.notifications.model import PushMode, Token
from blindpost.agent.store import connections
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.subscriptions import servers_with_service as service_places
from blindpost.agent.subscriptions.by_hand import subscribe
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.key_pairs import KemKeyPool
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.errors import WireError
from blindpost.wire.links.full import ContactLink, InvitationLink
from blindpost.wire.ntf.pushes import Push
from blindpost.wire.ntf.status import TokenStatus

log = logging.getLogger(__name__)

DEFAULT_USER = 1

T = TypeVar("T")

STORE_PAUSE_S = 5.0
"""How long a full disk is left alone before it is tried again."""


def _addresses(texts: Iterable[str]) -> tuple[RouterAddress, ...]:
    """Router addresses; an invalid one is reported here, not when it is used."""
    if isinstance(texts, str):
        raise TypeError('routers are a list of addresses, such as ["smp://..."], not one text')
    found = tuple(RouterAddress.from_text(text) for text in texts)
    for address in found:
        if len(address.server.key_hash) != sha256().digest_size:
            raise WireError("the fingerprint in a router's address has 32 bytes in base64: copy all of it")
    return found


async def _take_back(ground: Ground, making: asyncio.Task[CreatedLink], conn_id: ConnId) -> None:
    """Delete what is being made; if this does not finish, the next start of the agent does it."""
    try:
        await asyncio.wait([making])
    finally:
        making.cancel()
        await asyncio.wait([making])
    if not making.cancelled() and (error := making.exception()) is not None:
        log.warning("a link that nobody waited for was not made: %s", error)
    with ground.transaction() as tx:
        tx.delete_connection(conn_id)


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
        self._opened: Core | None = None
        self._was_open = False
        self._closed = asyncio.Event()
        self._closed.set()

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
        addresses, notifying = _addresses(servers), _addresses(ntf_servers)
        # A program may go to another folder while the agent is open, as those do that run in the background.
        return cls(Path(path).absolute(), addresses, passphrase, config or AgentConfig(), notifying)

    async def __aenter__(self) -> Self:
        config = self._config
        store = AgentStore.open(
            self._path, self._passphrase, durability=config.durability, entropy=config.entropy
        )
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(store.close)
            pool = await undo.enter_async_context(KemKeyPool(config.key_pairs, config.pair_maker))
            core = Core(store, config, self._servers, self._ntf_servers, pool)
            undo.pop_all()
        self._opened, self._was_open, self._closed = core, True, asyncio.Event()
        core.ground.home = asyncio.get_running_loop()
        core.ground.spawn(core.start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(finished=kind is None)

    async def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until routers have taken all messages and acknowledgements; False if they have not in time, or
        if that cannot be stored."""
        core = self._core
        core.commands.resume()  # what the agent found when it was opened a moment ago
        core.delivery.resume()
        try:
            async with asyncio.timeout(timeout_s):
                while tasks := {*core.delivery.tasks.values(), *core.commands.tasks.values()}:
                    await asyncio.wait(tasks)
                    await core.ground.store.durable()
        except (TimeoutError, StoreFailedError):
            return False
        return True

    async def close(self, *, drain_s: float = 0.0) -> None:
        """Close; with `drain_s` only when routers have taken all messages, or after so many seconds.
        Unfinished work is stored, and continues when the agent is opened again: its file is free when this
        returns, also for a second caller."""
        if drain_s and self._opened is not None:
            await self.flush(drain_s)
        await self._close(finished=True)

    async def _close(self, *, finished: bool) -> None:
        """`finished`: the program is done with the last event it took, so that event is not repeated."""
        if self._opened is not None and not self._opened.ground.is_homeless:
            self._opened.ground.at_home()
        core, self._opened = self._opened, None
        if core is None:
            await self._closed.wait()
            return
        try:
            await core.close(finished=finished)
        finally:
            self._closed.set()

    @property
    def _core(self) -> Core:
        if self._opened is None:
            raise InactiveError("the agent is closed")
        self._opened.ground.at_home()
        return self._opened

    @property
    def _ground(self) -> Ground:
        return self._core.ground

    # Events

    async def events(self) -> AsyncIterator[Event]:
        """Events, until the agent is closed."""
        stream = self._ground.stream
        while (event := await stream.take()) is not None:
            yield event

    async def next_event(self) -> Event | None:
        """The next event; None when the agent is closed."""
        if self._opened is None and self._was_open:
            return None
        return await self._ground.stream.take()

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
        """A link for one peer. A peer that joins is let in, unless `auto_allow` is off: then answer
        `ConfirmationReceived`. With `user_data`, even empty, there is a short link."""
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
        self._ground.awake()
        core, ground = self._core, self._ground
        conn_id = ground.new_id()
        wishes, mode, pq = LinkWishes(user_data), ConnMode.INVITATION, self._config.pq
        ground.stream.hold(conn_id)
        try:
            await core.links.register(
                conn_id, DEFAULT_USER, mode, wishes, info=info, auto_allow=auto_allow, pq=pq, later=True
            )
        except BaseException:
            ground.stream.forget(conn_id)
            raise
        ground.stream.give(conn_id)
        return ground.handle(conn_id)

    async def _create(
        self, mode: ConnMode, wishes: LinkWishes, info: bytes, auto_allow: bool, pq: bool | None
    ) -> CreatedLink:
        self._ground.awake()
        core, ground = self._core, self._ground
        conn_id = ground.new_id()
        ground.stream.hold(conn_id)
        try:
            await core.links.register(
                conn_id,
                DEFAULT_USER,
                mode,
                wishes,
                info=info,
                auto_allow=auto_allow,
                pq=self._config.pq if pq is None else pq,
            )
            created = await self._made(core, conn_id, wishes)
        except BaseException:
            ground.stream.forget(conn_id)
            raise
        ground.stream.give(conn_id)
        return created

    async def _made(self, core: Core, conn_id: ConnId, wishes: LinkWishes) -> CreatedLink:
        """The link of a registered connection. Making it is completed even if the caller is gone: only
        then is it known what to take back."""
        ground = core.ground
        making = asyncio.get_running_loop().create_task(core.links.create(conn_id, wishes))
        try:
            created = await asyncio.shield(making)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and not making.done():
                ground.spawn(_take_back(ground, making, conn_id))
            else:
                with ground.transaction() as tx:
                    tx.delete_connection(conn_id)
            raise
        with ground.transaction() as tx:
            connections.claim(tx, conn_id)
        return created

    def prepare_address(
        self,
        *,
        root_key: PrivateKey | None = None,
        entity_id: bytes | None = None,
        client_data: str | None = None,
    ) -> PreparedLink:
        """The link of an address that will be made later: no network, nothing stored. It can be saved."""
        core, config = self._core, self._config
        return prepare_link(
            core.maker.choose_server(),
            config.versions,
            config.entropy,
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
        """Make the address of a prepared link. If that fails, it can be retried with the same link."""
        self._ground.awake()
        core, ground = self._core, self._ground
        conn_id = ground.new_id()
        ground.stream.hold(conn_id)
        try:
            created = await core.links.create_prepared(
                conn_id,
                DEFAULT_USER,
                prepared,
                user_data,
                auto_allow=auto_accept,
                info=info,
                pq=self._config.pq if pq is None else pq,
            )
        except BaseException:
            ground.stream.forget(conn_id)
            raise
        ground.stream.give(conn_id)
        return created

    async def read_link(self, link: str) -> LinkContent:
        """The content of a link; a short one is read from its router."""
        found = parse_link(link, self._servers)
        if isinstance(found, InvitationLink | ContactLink):
            return LinkContent(found, b"")
        return await self._core.reader.read(DEFAULT_USER, found)

    async def join(self, link: str, info: bytes = b"", *, pq: bool | None = None) -> Connection:
        """Connect by a link of any kind. Returns at once; `Joined` and `Connected` follow, or `Failed`."""
        self._ground.awake()
        ground = self._ground
        conn_id = ground.new_id()
        command = JoinCommand(str(link).strip(), info, self._config.pq if pq is None else pq)
        ground.stream.hold(conn_id)
        try:
            with ground.transaction() as tx:
                register_join(tx, conn_id, DEFAULT_USER, command)
        except BaseException:
            ground.stream.forget(conn_id)
            raise
        ground.stream.give(conn_id)
        return ground.handle(conn_id)

    # Connections

    def connections(self) -> list[Connection]:
        """All stored connections."""
        ground = self._ground
        return [ground.handle(conn_id) for conn_id in connections.conn_ids(ground.store.reading)]

    def connection(self, conn_id: ConnId) -> Connection:
        """The connection with this id; an error if there is none."""
        ground = self._ground
        connections.load(ground.store.reading, conn_id)
        return ground.handle(conn_id)

    # Transactions of the program

    async def transact(self, work: Callable[[Transaction], T], *conns: Connection) -> T:
        """Messages to these connections, acknowledgements of theirs, and records of the program: all that
        `work` does is durable when this returns, and nothing of it happens if it raises. `work` is a plain
        function, so that nothing can run in between."""
        ground = self._ground
        ground.awake()
        ids = sorted({conn.id for conn in conns})
        made: list[ConnId] = []

        def begin(conn_id: ConnId) -> None:
            ground.stream.hold(conn_id)
            made.append(conn_id)

        async with contextlib.AsyncExitStack() as locks:
            for conn_id in ids:
                await locks.enter_async_context(ground.locked(conn_id))
            try:
                with ground.joined() as tx, Transaction(tx, frozenset(ids), DEFAULT_USER, begin) as program:
                    done = work(program)
                    if asyncio.iscoroutine(done):
                        done.close()
                        raise TypeError("`transact` runs a plain function, and this one is async")
            except BaseException:
                for conn_id in made:
                    ground.stream.forget(conn_id)
                raise
        try:
            await tx.durable()
        finally:
            for conn_id in made:
                ground.stream.give(conn_id)
        return done

    @property
    def records(self) -> Records:
        """The records that the program keeps in the agent's store, for reading; `transact` changes them."""
        return Records(self._ground.store.reading)

    # Routers

    async def subscribe(
        self, conns: Iterable[Connection]
    ) -> AsyncIterator[tuple[Connection, AgentError | None]]:
        """Subscribe these connections, as opening the agent does for all, and report the result of each.
        Those that receive nothing are reported first, without waiting for any router."""
        core, store = self._core, self._ground.store
        core.commands.resume()
        core.delivery.resume()
        async for conn_id, error in subscribe(store, core.subscriptions, [conn.id for conn in conns]):
            yield core.ground.handle(conn_id), error

    def set_online(self, online: bool) -> None:
        """Say whether there is a network: while offline nothing is tried; going online retries at once."""
        self._core.subscriptions.set_online(online)

    def renew_service(self) -> None:
        """Take new credentials as a service at every router. The old ones serve until all queues have moved;
        this happens automatically before credentials expire."""
        subscriptions = self._core.subscriptions
        for user_id, server in service_places(self._ground.store.reading):
            subscriptions.renew(user_id, server)

    # Push notifications

    @property
    def push_token(self) -> Token | None:
        """The device token in use, and its state."""
        return self._core.push.token

    async def register_push(self, device_token: str, mode: PushMode = PushMode.INSTANT) -> TokenStatus:
        """Name the device token, such as "apns_prod 0a1b...": at every start, and whenever it changes. The
        router then pushes a code, which `verify_push` returns; after that, pushes announce messages."""
        return await self._core.push.register(device_token, mode)

    async def verify_push(self, payload: bytes | Push, device_token: str | None = None) -> TokenStatus:
        """Return the code that a push brings."""
        return await self._core.push.verify(payload, device_token)

    async def check_push(self, device_token: str | None = None) -> TokenStatus:
        """Ask the router for the token's status."""
        return await self._core.push.check(device_token)

    async def delete_push(self) -> None:
        """Stop push notifications."""
        await self._core.push.delete()

    async def push_received(self, payload: bytes | Push) -> list[News]:
        """Any push: the connections that it gives reason to look into; `fetch` of each reads a message. One
        with a code is answered. `PushRefusedError` for all that is not from our router or not about us."""
        return await self._core.push.received(payload)

    async def push_settled(self) -> None:
        """Wait until the notification router is told of all connections: the program may sleep now, and a
        push wakes it. First the token must be verified."""
        await self._core.push.settled()

    # The store and its rest

    @property
    def is_broken(self) -> bool:
        """Whether the disk lost something: the store takes nothing more until the next start."""
        return self._ground.store.is_broken

    async def lasting(self, work: Callable[[], Awaitable[T]]) -> T:
        """For what nobody else would take up: while the disk is full the work begins again and again.

        `CriticalError` if the store takes nothing more until the next start."""
        while True:
            try:
                return await work()
            except StoreFailedError as error:
                if self.is_broken:
                    raise CriticalError(str(error)) from error
                log.error("the store takes nothing, trying again: %s", error)
            await asyncio.sleep(STORE_PAUSE_S)

    def backup(self, target: str | Path) -> None:
        """A consistent copy of the store in a new file; open it with the same passphrase."""
        self._ground.store.backup(Path(target))

    async def suspend(self, max_delay_s: float = 30.0) -> bool:
        """Finish what is under way and start nothing more; whether all of it ended in time, and `resume` was
        not called meanwhile."""
        core, ground = self._core, self._ground
        core.sessions.pause_receiving("suspended")
        done = await ground.operations.suspend(max_delay_s)
        with contextlib.suppress(StoreFailedError):  # what was not noted is done again
            await ground.store.durable()
        if ground.operations.suspended:
            ground.stream.put(Suspended())
        return done

    def resume(self) -> None:
        """Continue after `suspend`."""
        core, ground = self._core, self._ground
        ground.operations.resume()
        core.sessions.resume_receiving("suspended")
