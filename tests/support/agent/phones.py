"""A phone whose agent gets pushes, and everybody it needs: message routers, a notification router, Apple.

Everything is real and over TLS; Apple is the server of `blindpost.testing`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from blindpost.agent import (
    Agent,
    AgentError,
    AgentFailed,
    Connected,
    Connection,
    Event,
    Failed,
    News,
    PushMode,
    Received,
    Token,
)
from blindpost.agent.core import Core
from blindpost.agent.notifications.model import ACTIVE, NtfSubscription
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.client.calls import Call
from blindpost.client.connection import AnyClient
from blindpost.client.errors import ResponseTimeoutError
from blindpost.ntf.model import NtfRules
from blindpost.ntf.ports import Provider
from blindpost.ntf.push.provider_tokens import ProviderTokens
from blindpost.ntf.push.providers import providers_at
from blindpost.testing.apns import ApnsServer
from blindpost.wire.addresses import RouterAddress, Scheme, Server
from blindpost.wire.ntf.pushes import MessagePush, VerificationPush
from blindpost.wire.ntf.tokens import PushProvider
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.versions import VersionRange
from tests.support.agent.agents import Party, address_of, party, quick_config
from tests.support.ntf.notified import subscribing, until_all
from tests.support.ntf.routers import Clock, NotifiedQueue, RunningNtf, device_token, running_ntf
from tests.support.router.routers import RunningRouter, running_router
from tests.support.serving.waiting import until

E = TypeVar("E", bound=Event)

ONE, OTHER = device_token("ab").text, device_token("cd").text
START = 1_800_000_000
PATIENCE_S = 30


class Asked:
    """What agents say to all routers, in order; a command may be kept from its router, or its answer from
    the agent, for good."""

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.stuck = asyncio.Event()
        self.failing: dict[str, int] = {}
        """By word: so many of the next such commands are not answered in time."""
        self._held: str | None = None
        self._after = False

    def hold(self, tag: str, *, after: bool) -> None:
        """The next such command hangs, before the router has it or after the router has answered it."""
        self._held, self._after = tag, after
        self.stuck.clear()

    def of(self, *tags: str) -> list[str]:
        return [tag for tag in self.tags if tag in tags]

    @contextmanager
    def tapped(self) -> Iterator[None]:
        original = AnyClient.send_many

        async def send_many(client: AnyClient[Any, Any], calls: Iterable[Call[Any]]) -> Any:
            listed = list(calls)
            tags = [call.command.TAG.decode() for call in listed]
            self.tags += tags
            if any(self.failing.get(tag, 0) for tag in tags):
                for tag in tags:
                    self.failing[tag] = self.failing.get(tag, 0) - 1
                return [ResponseTimeoutError() for _ in listed]
            if self._held not in tags:
                return await original(client, listed)
            self._held = None
            if self._after:
                await original(client, listed)
            self.stuck.set()
            return await asyncio.get_running_loop().create_future()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AnyClient, "send_many", send_many)
            yield


class Phone:
    """An agent in its lives; it takes events as they come and acknowledges messages unless told otherwise."""

    def __init__(self, world: World, path: Path, passphrase: str | None) -> None:
        self._world = world
        self._path = path
        self._passphrase = passphrase
        self.acknowledges = True
        self.events: list[Event] = []
        self._agent: Agent | None = None
        self._taking: asyncio.Task[None] | None = None

    async def start(self, *, subscribe: bool = True) -> None:
        """Open the agent."""
        world = self._world
        self._agent = Agent.open(
            self._path,
            [address_of(router.server) for router in world.routers],
            config=quick_config(pq=False, subscribe=subscribe, now=world.clock),
            passphrase=self._passphrase,
            ntf_servers=[RouterAddress(Scheme.NTF, ntf.server).text for ntf in world.ntfs],
        )
        await self._agent.__aenter__()
        self._taking = asyncio.create_task(self._take())

    async def stop(self) -> None:
        """End at whatever point the agent is; what it did not store is lost."""
        agent, self._agent = self._agent, None
        if agent is not None:
            assert self._taking is not None
            self._taking.cancel()
            await asyncio.wait([self._taking])
            await agent.close()

    async def restart(self, *, subscribe: bool = True) -> None:
        await self.stop()
        await self.start(subscribe=subscribe)

    async def _take(self) -> None:
        async for event in self.agent.events():
            self.events.append(event)
            if self.acknowledges and isinstance(event, Received):
                await event.msg.ack()

    @property
    def agent(self) -> Agent:
        assert self._agent is not None
        return self._agent

    @property
    def rt(self) -> Core:
        return self.agent._core

    @property
    def token(self) -> Token:
        token = self.agent.push_token
        assert token is not None
        return token

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def bodies(self) -> list[bytes]:
        return [event.msg.body for event in self.of(Received)]

    @property
    def errors(self) -> list[AgentError]:
        return [event.error for event in self.events if isinstance(event, Failed | AgentFailed)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await until(condition)

    async def got(self, *bodies: bytes) -> None:
        await self.until(lambda: all(body in self.bodies for body in bodies))

    def row(self, conn: Connection) -> NtfSubscription | None:
        return rows.find(self.rt.ground.store.reading, conn.id)

    async def subscribed(self, *conns: Connection) -> None:
        """Until the notification router is told of these connections, and is told of their messages."""

        def told() -> bool:
            found = [self.row(conn) for conn in conns]
            return all(row is not None and row.status.startswith("CREATED") for row in found)

        await self.until(told)
        found = [row for conn in conns if (row := self.row(conn)) is not None]
        queues = [NotifiedQueue(row.notifier_id or b"", server=row.smp_server) for row in found]
        async with asyncio.timeout(PATIENCE_S):
            await until_all(self._world.of(found[0].ntf_server).router.store, queues, "ACTIVE")

    def snapshot(self) -> list[tuple[Any, ...]]:
        """All that is stored, to see that nothing changed."""
        sql = self.rt.ground.store.reading.sql
        tables = [name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [
            (table, *row)
            for table in sorted(tables)
            for row in sql.execute(f'SELECT * FROM "{table}"')  # noqa: S608  # names are the schema's own
        ]


@dataclass
class World:
    """All parties; `alice` writes to the phone."""

    folder: Path
    routers: list[RunningRouter]
    ntfs: list[RunningNtf]
    apple: ApnsServer
    alice: Party
    asked: Asked
    clock: Clock

    @property
    def ntf(self) -> RunningNtf:
        return self.ntfs[0]

    def of(self, server: Server) -> RunningNtf:
        return next(ntf for ntf in self.ntfs if ntf.server == server)

    def pushed(self, kind: type[VerificationPush | MessagePush], device: str = ONE) -> list[bytes]:
        """The bodies of such pushes to a device."""
        sent = self.apple.sent_to(device.partition(" ")[2])
        return [delivered.body for delivered in sent if isinstance(delivered.push, kind)]

    async def push(
        self, kind: type[VerificationPush | MessagePush], count: int = 1, device: str = ONE
    ) -> bytes:
        """The push of this number, as the phone gets it."""
        async with asyncio.timeout(PATIENCE_S):
            await self.apple.until(lambda: len(self.pushed(kind, device)) >= count)
        return self.pushed(kind, device)[count - 1]

    async def activate(self, phone: Phone, mode: PushMode = PushMode.INSTANT) -> None:
        """Register and return the code."""
        await phone.agent.register_push(ONE, mode)
        assert await phone.agent.push_received(await self.push(VerificationPush)) == []
        assert phone.token.status == ACTIVE

    async def friend(self, phone: Phone) -> tuple[Connection, Connection]:
        """Connect Alice with the phone: her connection and the phone's."""
        known = len(phone.of(Connected))
        conn = await self.alice.agent.join(str(await phone.agent.invite()))
        await self.alice.expect(Connected)
        await phone.until(lambda: len(phone.of(Connected)) > known)
        return conn, phone.of(Connected)[-1].conn

    async def send(self, conn: Connection, *bodies: bytes) -> None:
        for body in bodies:
            await conn.send(body)

    async def news(self, phone: Phone, count: int = 1, device: str = ONE) -> list[News]:
        return await phone.agent.push_received(await self.push(MessagePush, count, device))


@asynccontextmanager
async def phones(
    folder: Path,
    *,
    routers: int = 1,
    ntfs: int = 1,
    versions: VersionRange = SMP_VERSIONS,
    web: Provider | None = None,
    passphrase: str | None = None,
) -> AsyncIterator[tuple[World, Phone]]:
    """Everybody, and a phone that is on; with a passphrase its store is sealed, which takes a while."""
    asked, clock = Asked(), Clock(START)
    async with AsyncExitStack() as stack:
        apple = await stack.enter_async_context(ApnsServer())
        tokens = ProviderTokens(apple.signing, time.time)
        smp = [
            await stack.enter_async_context(running_router(_made(folder / f"smp{number}"), versions=versions))
            for number in range(routers)
        ]
        ntf = []
        for number in range(ntfs):
            place = _made(folder / f"ntf{number}")
            providers = providers_at({PushProvider.APNS_PROD: apple.endpoint}, tokens)
            if web is not None:
                providers[PushProvider.WEB_PUSH] = web
            running = running_ntf(place, NtfRules(web_push=web is not None), providers=providers)
            ntf.append(await stack.enter_async_context(running))
            await stack.enter_async_context(subscribing(ntf[-1]))
        alice = await stack.enter_async_context(
            party(folder / "alice.db", smp[0].server, config=quick_config(pq=False))
        )
        stack.enter_context(asked.tapped())
        world = World(folder, smp, ntf, apple, alice, asked, clock)
        phone = Phone(world, folder / "phone.db", passphrase)
        await phone.start()
        stack.push_async_callback(phone.stop)
        yield world, phone


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
