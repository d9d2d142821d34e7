"""A service and its router through hard times, drawn from a seed: real agent, real router, no real time.

Messages are sent all the while. At the end the world is mended, and then nothing that a sender was told OK
about may be missing, and both sides must count the same queues.

Only a router whose store is wiped, or replaced by an older copy, may lose something, and the model knows
what: the queues that the new store does not have, and the messages that had not arrived, all of which the
old store must have had, as far as the new one has not. The application hears of each such queue, and then
the agent asks for it no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

from blindpost.agent import SubscriptionOptions
from blindpost.agent.store import subscriptions as rows
from blindpost.client.calls import Call
from blindpost.client.smp import SmpClient
from blindpost.crypto.credentials import issue_router, make_authority
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.model import Domain
from blindpost.testing.network import Link, MemoryNetwork
from blindpost.wire.smp.commands import DEL, SEND, SUB, SUBS
from blindpost.wire.smp.responses import OK
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.versions import VersionRange
from tests.support.agent.network import (
    USER,
    AgentNetwork,
    MadeQueue,
    commands_sent,
    conn_of,
    cut,
    make_queues,
)
from tests.support.agent.router_damage import dissociate, is_service_known, rename_service
from tests.support.agent.router_files import StoreFiles
from tests.support.router.routers import RunningRouter, running_router
from tests.support.router.services import service_record

Action = Callable[[], Coroutine[None, None, None]]

PORT = 5223
WITHOUT_SERVICES = VersionRange(6, 15)
PATIENCE_S = 3600.0
QUIET_S = 7200.0


class ServiceSimulation:
    """One run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(f"service {seed}")
        self._network = MemoryNetwork(seed)
        self._authority = make_authority(int(time.time()) - 1000, system_entropy)
        self._versions = SMP_VERSIONS
        self._life = contextlib.AsyncExitStack()
        self._agents = 0
        self.running: RunningRouter
        self.agent: AgentNetwork
        self.sender: SmpClient
        self.queues: list[MadeQueue] = []
        self.promised: set[tuple[bytes, bytes]] = set()
        self.received: set[tuple[bytes, bytes]] = set()
        self.lost: set[tuple[bytes, bytes]] = set()
        """Messages that went with the store they were in."""
        self.gone: dict[bytes, MadeQueue] = {}
        """Queues that went with the store they were in."""
        self._made: dict[bytes, MadeQueue] = {}
        self._files = StoreFiles(folder / "router")
        self._told_gone: set[str] = set()
        self.trace: list[str] = []
        self._bodies = 0

    async def run(self, steps: int, queues: int, resets: int = 0) -> None:
        """So many steps at random, of which at least so many copy the store, wipe it or put it back."""
        planned = self._chance.choices(self._actions, k=steps)
        for place in self._chance.sample(range(steps), resets):
            planned[place] = self._chance.choice(self._resets)
        await self._start_router()
        self._open_agent()
        await self._new_queues(queues)
        await self.agent.subs.subscribe_all()
        try:
            for action in planned:
                await self._step(action)
            await self._mend()
        finally:
            await self._close_agent()
            await self.sender.close()
            await self._life.aclose()

    async def _step(self, action: Action) -> None:
        """Messages, one thing that happens, and some time for it to work or not."""
        await self._send()
        self.trace.append(f"{asyncio.get_running_loop().time():.2f} {action.__name__}")
        await action()
        await self._send()
        await asyncio.sleep(self._chance.choice([0.0, 0.05, 0.4, 3.0, 40.0]))

    @property
    def _resets(self) -> list[Action]:
        return [self._wipe_store, self._copy_store, self._put_store_back]

    @property
    def _actions(self) -> list[Action]:
        return [
            self._send,
            self._cut,
            self._bad_links,
            self._restart_router,
            self._restart_agent,
            self._change_versions,
            self._rotate_router_certificate,
            self._renew_service,
            self._reset_services,
            self._lose_some,
            self._lose_all,
            self._lose_here,
            self._lose_identity,
            self._new_one,
            self._delete_one,
            *self._resets,
        ]

    # What happens

    async def _send(self) -> None:
        chosen = self._chance.sample(self.queues, min(len(self.queues), 8))
        calls, wanted = [], []
        for queue in chosen:
            self._bodies += 1
            body = b"message %d" % self._bodies
            calls.append(Call(SEND(False, body), queue.snd_id))
            wanted.append((queue.rcv_id, body))
        for result, message in zip(await self.sender.send_many(calls), wanted, strict=True):
            if result == OK():
                self.promised.add(message)

    async def _cut(self) -> None:
        session = self.agent.sessions.current(self.agent.key(self.running.server))
        if session is not None:
            cut(session)

    async def _bad_links(self) -> None:
        """The next connections are slow, or break after some bytes."""
        for _ in range(self._chance.randint(1, 3)):
            slow = Link(delay_s=(0.0, self._chance.choice([0.05, 1.0])))
            broken = Link(cut_after=self._chance.randint(1, 200_000))
            self._network.plan(slow, self._chance.choice([slow, broken]))
        await self._cut()

    async def _restart_router(self) -> None:
        await self._stop_router()
        await asyncio.sleep(self._chance.choice([0.0, 5.0, 100.0]))
        await self._start_router()

    async def _change_versions(self) -> None:
        self._versions = self._chance.choice([SMP_VERSIONS, WITHOUT_SERVICES])
        await self._restart_router()

    async def _rotate_router_certificate(self) -> None:
        """Each start has a new leaf of the same authority."""
        await self._restart_router()

    async def _restart_agent(self) -> None:
        await self._close_agent()
        await asyncio.sleep(self._chance.choice([0.0, 10.0]))
        self._open_agent()
        if self._chance.random() < 0.5:
            subscribing = asyncio.create_task(self.agent.subs.subscribe_all())
            await asyncio.sleep(self._chance.choice([0.0, 0.3]))
            if not subscribing.done():
                subscribing.cancel()
                await asyncio.wait([subscribing])
                await self._close_agent()
                self._open_agent()
        await self.agent.subs.subscribe_all()

    async def _renew_service(self) -> None:
        if rows.service(self.agent.store.reading, USER, self.running.server) is not None:
            self.agent.subs.renew(USER, self.running.server)

    async def _reset_services(self) -> None:
        service_id = self._service_id()
        if service_id is not None:
            await self._behind_its_back(lambda: self._forget_service(service_id))

    async def _forget_service(self, service_id: bytes) -> None:
        if await is_service_known(self.running, service_id):
            await dissociate(self.running, (queue.rcv_id for queue in self.queues))
            await rename_service(self.running, service_id)

    async def _wipe_store(self) -> None:
        await self._stop_router()
        await self._replace_store(self._files.wipe)

    async def _copy_store(self) -> None:
        await self._stop_router()
        self._files.copy()
        await self._start_router()

    async def _put_store_back(self) -> None:
        if not self._files.has_copy:
            await self._copy_store()
            return
        await self._stop_router()
        await self._replace_store(self._files.put_back)

    async def _replace_store(self, replaced: Callable[[], None]) -> None:
        """Another store instead of the one there was, and some new queues in it."""
        missing = self._missing()
        assert missing <= self._files.messages(), self._report("lost before the store was")
        replaced()
        kept, held = self._files.queues(), self._files.messages()
        self.promised |= self.lost & held
        self.lost = (self.lost | missing) - held
        self.promised -= self.lost
        was_alive = {queue.rcv_id for queue in self.queues}
        self.queues = [queue for rcv_id, queue in self._made.items() if rcv_id in kept]
        for rcv_id in was_alive - kept:
            self.gone[rcv_id] = self._made[rcv_id]
            self._hear_refusals()
            self._told_gone.discard(conn_of(self._made[rcv_id]))
        for rcv_id in kept:
            self.gone.pop(rcv_id, None)
        await self._start_router()
        await self._new_queues(self._chance.randint(6, 12))
        subscribing = asyncio.create_task(self.agent.subs.subscribe(self._refs))
        await self._send()
        await subscribing

    async def _lose_some(self) -> None:
        chosen = self._chance.sample(self.queues, len(self.queues) // 3)
        await self._behind_its_back(lambda: dissociate(self.running, (queue.rcv_id for queue in chosen)))

    async def _lose_all(self) -> None:
        lost = [queue.rcv_id for queue in self.queues]
        await self._behind_its_back(lambda: dissociate(self.running, lost))

    async def _lose_here(self) -> None:
        chosen = self._chance.sample(self.queues, self._chance.choice([1, len(self.queues) // 2]))
        with self.agent.store.transaction() as db:
            rows.set_associated(db, self.running.server, [queue.rcv_id for queue in chosen], False)
        await self._cut()

    async def _lose_identity(self) -> None:
        self.agent.subs.services.forget(USER, self.running.server)
        await self._cut()

    async def _new_one(self) -> None:
        before = len(self.queues)
        await self._new_queues(1)
        if len(self.queues) > before:
            await self.agent.subs.subscribe(self._refs[-1:])

    async def _delete_one(self) -> None:
        if len(self.queues) > 5:
            queue = self.queues.pop(self._chance.randrange(len(self.queues)))
            await self.sender.send(DEL(), queue.rcv_id, queue.key)
            self.promised = {message for message in self.promised if message[0] != queue.rcv_id}

    async def _behind_its_back(self, damage: Callable[[], Awaitable[None]]) -> None:
        """Damage the router's data while nobody is connected."""
        await self._stop_router()
        await self._start_router(damage)

    # Lives

    async def _start_router(self, damage: Callable[[], Awaitable[None]] | None = None) -> None:
        credentials = issue_router(self._authority, "localhost", int(time.time()) - 10, system_entropy)
        router = running_router(
            self._folder / "router",
            network=self._network,
            credentials=credentials,
            port=PORT,
            versions=self._versions,
        )
        self.running = await self._life.enter_async_context(router)
        listener = self._network._listeners.pop(("127.0.0.1", PORT))
        if damage is not None:
            await damage()
        self._network._listeners["127.0.0.1", PORT] = listener
        planned, self._network._planned = self._network._planned, type(self._network._planned)()
        self.sender = await self.running.connect(self._versions.high, network=self._network)
        self._network._planned = planned

    async def _stop_router(self) -> None:
        await self.sender.close()
        await self._life.aclose()

    def _open_agent(self) -> None:
        self._agents += 1
        self.agent = AgentNetwork(
            self._folder / "agent.db",
            network=self._network,
            services=True,
            options=SubscriptionOptions(page=7),
            seed=f"{self._agents}",
        )

    async def _close_agent(self) -> None:
        await self.agent.close()
        self.received.update(self.agent.messages)
        self._hear_refusals()

    def _hear_refusals(self) -> None:
        """For which connections the application was told that they cannot be subscribed."""
        told = self.agent.told
        self._told_gone.update(conn_id for errors in told.of("ERRS") for conn_id, _ in errors)
        told.log.clear()

    async def _new_queues(self, count: int) -> None:
        made = await make_queues(self.sender, self.running.server, count)
        self.queues += made
        self._made.update((queue.rcv_id, queue) for queue in made)
        self._refs = self.agent.insert(made)

    def _service_id(self) -> bytes | None:
        row = rows.service(self.agent.store.reading, USER, self.running.server)
        return None if row is None else row.service_id

    # The end

    async def _mend(self) -> None:
        """A good router, good links, and time; then all must be well."""
        self._network._planned.clear()
        self._versions = SMP_VERSIONS
        await self._restart_router()
        await self.agent.subs.subscribe_all()
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        work = self.agent.work(self.running.server)
        while work.has_work or work.is_working or self._missing():
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(self._report("it never comes to rest", work))
            await asyncio.sleep(1)
        await self._check()

    def _missing(self) -> set[tuple[bytes, bytes]]:
        return self.promised - self.received - set(self.agent.messages)

    async def _check(self) -> None:
        await self._check_resets()
        session = self.agent.session(self.running.server)
        assert session.service is not None
        record = await service_record(self.running, session.service.service_id)
        alive = QueueSet.of(queue.rcv_id for queue in self.queues)
        stored = self.agent.stored_set(self.running.server)
        assert record.members(Domain.MESSAGES) == stored == alive, self._report("the sides differ")
        held = self.agent.work(self.running.server).table.active_service
        assert held is not None
        assert held.queues == alive, self._report("the agent believes something else")

    async def _check_resets(self) -> None:
        """What went with its store did go, the application knows of it, and nobody asks for it again."""
        assert not self.lost & (self.received | set(self.agent.messages)), self._report("lost and came")
        self._hear_refusals()
        untold = {conn_of(queue) for queue in self.gone.values()} - self._told_gone
        assert not untold, self._report(f"nobody was told of {untold}")
        with commands_sent() as commands:
            await asyncio.sleep(QUIET_S)
        asked = [call for call in commands if isinstance(call.command, SUB | SUBS)]
        assert not asked, self._report(f"{len(asked)} times asked for nothing")

    def _report(self, what: str, work: object = None) -> str:
        missing = self._missing()
        state = "" if work is None else str(vars(work))
        return "\n".join([what, f"{len(missing)} messages are missing", *self.trace, state])
