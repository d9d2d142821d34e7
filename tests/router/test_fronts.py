"""Connections in front processes: the same router, whatever becomes of a front."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import random
import re
import signal
import socket
import sys
import weakref
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blindpost.client.errors import RefusedError
from blindpost.client.smp import SmpClient
from blindpost.crypto.authorizers import ED448_WORK, Check
from blindpost.crypto.verifying import OneByOne
from blindpost.engine.undo import Undo
from blindpost.router.asking import Asked, ask
from blindpost.router.changes import Wanted
from blindpost.router.events import Commands
from blindpost.router.fronts import channel, fleet, frames, front
from blindpost.router.fronts.far import FarSession
from blindpost.router.fronts.front import WORK_MAX, Carried, FrontProcess
from blindpost.router.fronts.fronted import Fronted, FrontedServer
from blindpost.router.fronts.line import DESCRIPTORS_MAX, FOR_THE_ENGINE, Line, SocketLine
from blindpost.router.state import RouterClient
from blindpost.router.work import TURN_WORK, Work, cut
from blindpost.serving import logs, memory
from blindpost.serving.failures import OperatorError
from blindpost.serving.logs import log
from blindpost.serving.prometheus import Text
from blindpost.transport.errors import ConnectionCutError, TransportError
from blindpost.transport.handshake import Agreement
from blindpost.transport.keeper import Keeper
from blindpost.transport.plan import SessionLimits
from blindpost.transport.plans import smp_router_plan
from blindpost.wire.batch import SMP_BATCH_LIMIT, pack
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, DEL, PING, RKEY, SEND, SUB
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import MSG, OK, PONG, SOK
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.transmission import ED448_SIGNATURE_SIZE, transmission_of
from blindpost.wire.transmissions import signed_request
from blindpost.wire.value import Buffer
from tests.support.router.ledgers import Fact
from tests.support.router.left_out import LEFT_OUT, PLAIN
from tests.support.router.load import UNLIMITED, Pair, Tally
from tests.support.router.replay import Replay
from tests.support.router.routers import (
    FRONTS,
    RunningRouter,
    new_credentials,
    new_key,
    new_queue,
    pushed,
    running_router,
)
from tests.support.router.services import new_service, open_service, service_queues
from tests.support.serving.commands import ENVIRONMENT, StartedRouter, edit, init, set_fronts, started
from tests.support.serving.processes import RouterInProcess, router_in_process, until
from tests.support.serving.waiting import until as until_heard

ROUNDS = int(os.environ.get("BLINDPOST_FRONT_ROUNDS", "1"))
SEED = int(os.environ.get("BLINDPOST_SEED", "1"))
PAIRS = 3
QUEUES = 60


def fronts_of(running: RunningRouter) -> fleet.Fronts:
    assert isinstance(running.router, Fronted)
    return running.router.fronts


async def test_every_recording_is_answered_alike_through_two_fronts(tmp_path: Path) -> None:
    async with running_router(tmp_path, fronts=2) as running:
        for name in PLAIN:
            replay = Replay.of(name, running)
            try:
                await replay.run(LEFT_OUT.get(name, {}))
            finally:
                await replay.close()


async def killed(router: RouterInProcess, seeded: random.Random, tally: Tally, *, engine: bool) -> None:
    """Kill the engine, or one front and after more answers the other, while clients are at work."""
    await tally.reached.wait()
    await asyncio.sleep(seeded.random() * 0.005)
    if engine:
        assert await router.end() == -signal.SIGKILL
        return
    first, second = (await router.ask("status"))["fronts"]["pids"]
    os.kill(first, signal.SIGKILL)
    await asyncio.sleep(seeded.random() * 0.1)
    os.kill(second, signal.SIGKILL)


@pytest.mark.timeout(120 + 20 * ROUNDS)
async def test_nothing_is_lost_or_doubled_when_fronts_and_engine_are_killed(tmp_path: Path) -> None:
    """Each round kills both fronts and then the engine: three kills."""
    seeded = random.Random(SEED)
    async with router_in_process(tmp_path / "router", *UNLIMITED) as router:
        set_fronts(router.folder, 2)
        tally = Tally()
        pairs = [Pair(router, tally, seeded.randrange(1 << 30)) for _ in range(PAIRS)]
        for _ in range(ROUNDS):
            await router.start()
            for engine in (False, True):
                tally.aim(seeded.randrange(1, 400))
                async with asyncio.TaskGroup() as tasks:
                    for pair in pairs:
                        tasks.create_task(pair.live())
                    await killed(router, seeded, tally, engine=engine)
                if not engine:
                    await until(lambda: two_fronts(router))
        await router.start()
        for pair in pairs:
            await pair.check()
        left = [kept.known.recipient_id for pair in pairs for kept in pair.queues if kept.deleted is Fact.NO]
        await router.as_few_descriptors_as_at_start()
        assert await router.end(signal.SIGTERM) == 0
        dump = router.dump()
        assert sorted(dump["queues"]) == sorted(left)
        assert len(dump["messages"]) == 0
        assert b"unexpected" not in router.log


async def two_fronts(router: RouterInProcess) -> bool:
    return len((await router.ask("status"))["fronts"]["pids"]) == 2


class Counting(OneByOne):
    """Counts what the engine itself verifies."""

    checks = 0

    def verify_many(self, checks: Sequence[Check]) -> list[bool]:
        self.checks += len(checks)
        return super().verify_many(checks)


async def refused(client: SmpClient, command: SUB | DEL, entity_id: bytes, key: object) -> None:
    with pytest.raises(RefusedError) as error:
        await client.send(command, entity_id, key)  # type: ignore[arg-type]
    assert error.value.error is Code.AUTH


async def test_a_front_verifies_what_it_knows_and_is_believed_for_the_current_key_only(
    tmp_path: Path,
) -> None:
    counting = Counting()
    async with running_router(tmp_path, fronts=1, verifier=counting) as running:
        client = await running.connect()
        queue = await new_queue(client, mode=QueueMode.CONTACT)
        assert isinstance(await client.send(SUB(), queue.recipient_id, queue.key), SOK)
        before = counting.checks
        for _ in range(5):
            assert isinstance(await client.send(SUB(), queue.recipient_id, queue.key), SOK)
        assert counting.checks == before, "the engine verified what the front had verified"
        await refused(client, SUB(), queue.recipient_id, new_key())
        assert counting.checks == before + 1, "a refusal is the engine's own"
        renewed = new_key()
        assert await client.send(RKEY((renewed.public,)), queue.recipient_id, queue.key) == OK()
        await refused(client, SUB(), queue.recipient_id, queue.key)
        before = counting.checks
        for _ in range(3):
            assert isinstance(await client.send(SUB(), queue.recipient_id, renewed), SOK)
        assert counting.checks == before + 1, "the new key is learnt from the first use"
        assert await client.send(DEL(), queue.recipient_id, renewed) == OK()
        await refused(client, SUB(), queue.recipient_id, renewed)
        await client.close()


async def test_a_front_is_not_told_the_keys_of_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It verifies none of their commands: the keys of their many queues would displace those of others."""
    learnt: list[bytes] = []
    monkeypatch.setattr(FarSession, "learn", lambda session, entity_id, key: learnt.append(entity_id))
    async with running_router(tmp_path, fronts=1) as running:
        service, plain = await open_service(running, new_service()), await running.connect()
        (of_service,) = await service_queues(service, 1)
        await service.subs()
        assert isinstance(await of_service.ask(service, SUB()), SOK)
        queue = await new_queue(plain)
        assert isinstance(await plain.send(SUB(), queue.recipient_id, queue.key), SOK)
        assert learnt == [queue.recipient_id]
        await plain.close()


async def test_a_front_leaves_to_the_engine_what_would_keep_its_other_connections_waiting() -> None:
    """Many connections send blocks full of the slowest kind of signature in one turn of the loop."""
    own, other = socket.socketpair()
    engine = channel.Channel(SocketLine(own), lambda kind, number, view: heard.append(kind), lambda: None)
    process, counting, heard = FrontProcess(SocketLine(other)), Counting(), list[int]()
    process._verifier = counting
    plan = smp_router_plan(new_credentials())
    sessions = [Carried(plan, process, Keeper(1.0), number, b"") for number in range(40)]
    count = 90
    blocks = []
    for session in sessions:
        session.agreement = Agreement(20, b"session", new_key(Algorithm.X25519), None)
        process.established(session)
        said = [signed_request(os.urandom(24), os.urandom(24), SUB(), 20) for _ in range(count)]
        wrong = [transmission_of(session.layout, one, bytes(ED448_SIGNATURE_SIZE)) for one in said]
        (payload,) = pack(wrong, SMP_BATCH_LIMIT).payloads
        blocks.append(b"".join(payload.parts))
    for turn in (1, 2):
        for session, block in zip(sessions, blocks, strict=True):
            process.block_received(session, block)
        assert counting.checks == turn * -(-WORK_MAX // ED448_WORK)
        await asyncio.sleep(0)
    await until_heard(lambda: heard.count(frames.BLOCK) == 2 * len(sessions))
    engine.close()
    await process.over


def test_what_is_put_off_of_a_block_keeps_the_keys_of_its_own_commands() -> None:
    client: Any = object()
    requests = [
        Request(b"c%03d" % number, b"e%03d" % number, DEL(), bytes(ED448_SIGNATURE_SIZE), None, b"")
        for number in range(TURN_WORK // ED448_WORK + 10)
    ]
    keys = [request.entity_id for request in requests]
    block = Commands(client, requests, keys)
    block.asked = asked = ask(client, requests, Undo(), Wanted(), [], keys)
    parts = cut([block], Work(lambda _: None, [one for one in asked if isinstance(one, Asked)]))
    ((_, later),) = parts.later
    assert parts.now == [block]
    assert isinstance(later, Commands)
    for part in (block, later):
        assert part.items
        assert list(part.keys) == [item.entity_id for item in part.items]
    again = ask(client, later.items, Undo(), Wanted(), [], later.keys)
    assert all(isinstance(one, Asked) and one.key == one.request.entity_id for one in again)


async def stand_still(pid: int) -> None:
    """Stop a process; it may take a step more before it does."""
    os.kill(pid, signal.SIGSTOP)
    await until_heard(lambda: state_of(pid) == "T")


def state_of(pid: int) -> str:
    """The letter of the system, or nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_stopped_front_is_replaced_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    async with running_router(tmp_path, fronts=2) as running:
        fronts, open_before = fronts_of(running), descriptors()
        clients = [await running.connect(), await running.connect()]
        queue = await new_queue(clients[0])
        stopped = next(front for front in fronts.fronts if front.sessions)
        await stand_still(stopped.pid)
        (other,) = [front for front in fronts.fronts if front is not stopped]
        served = [client for client in clients if client in await answered(clients)]
        assert len(served) == len(other.sessions) == 1
        for _ in range(fleet.MISSED_MAX):
            await fronts.look()
            other.missed = 0
        assert stopped in fronts.fronts
        await fronts.look()
        assert stopped not in fronts.fronts
        with pytest.raises(TransportError):
            await next(client for client in clients if client not in served).send(PING())
        assert isinstance(await served[0].send(PING()), PONG)
        again = await running.connect()
        assert isinstance(await again.send(SUB(), queue.recipient_id, queue.key), SOK)
        assert await again.send(SEND(False, b"here"), queue.sender_id) == OK()
        message = (await pushed(again)).response
        assert isinstance(message, MSG)
        assert await again.send(ACK(message.msg_id), queue.recipient_id, queue.key) == OK()
        for client in (again, *served):
            await client.close()
        await until(lambda: as_before(fronts, 2, open_before))
        assert fronts.restarted == 1


async def test_a_front_that_stands_still_keeps_no_stop_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections cannot be closed: a stop, and with it an upgrade, waited for them as long as it may."""
    monkeypatch.setattr(fleet, "LOOK_S", 0.0)
    async with running_router(tmp_path, fronts=1) as running:
        fronts = fronts_of(running)
        assert isinstance(running.router, Fronted)
        server = FrontedServer(smp_router_plan(new_credentials()), running.router)
        port = await server.listen("127.0.0.1", 0)
        client = await SmpClient.connect(replace(running.server, port=str(port)))
        (front,) = fronts.fronts
        await stand_still(front.pid)
        fronts.stop()
        async with asyncio.timeout(10):
            await server.wait_empty(60)
        assert not fronts.fronts
        await client.close()


ENGINE = """
import asyncio
from blindpost.router.fronts import channel, fleet, frames

async def main():
    line, process = fleet.start_process()
    heard = asyncio.Event()
    channel.Channel(line, lambda *_: heard.set(), heard.set).tell(frames.PING, 0)
    await heard.wait()
    print(process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_front_that_stands_still_ends_with_its_engine_too() -> None:
    """It does not notice that the engine was killed: its clients would wait for it, and nobody watches it."""
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ENGINE, stdout=asyncio.subprocess.PIPE
    )
    assert engine.stdout is not None
    pid = int(await engine.stdout.readline())
    await stand_still(pid)
    engine.kill()
    await engine.wait()
    await until_heard(lambda: state_of(pid) in ("", "Z"))


async def test_memory_of_a_few_connections_that_ended_in_a_front_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counts as the router's: short of memory for good, it closed connections of others."""

    class FailedError(Exception):
        """An error that refers to itself, as a failed handshake does."""

    def left_behind() -> weakref.ref[FailedError]:
        error = FailedError()
        error.args = (error,)
        return weakref.ref(error)

    monkeypatch.setattr(front, "LOOK_S", 0.0)
    monkeypatch.setattr(memory, "QUIET_S", 0.0)
    async with running_front(monkeypatch) as process:
        found = left_behind()
        session = Carried(smp_router_plan(new_credentials()), process, Keeper(1.0), 1, b"")
        process.closed(session, ConnectionCutError())
        await until_heard(lambda: found() is None)


async def test_a_front_tells_how_often_what_it_logged_once_came_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    repeated = logs.Repeated(lambda: 0.0)
    monkeypatch.setattr(logs, "_repeated", repeated)
    again = log.makeRecord(log.name, logging.ERROR, __file__, 1, "a session failed", (), None)
    assert [repeated.filter(again) for _ in range(3)] == [True, False, False]
    monkeypatch.setattr(logs, "COUNTED_S", 0.0)
    async with running_front(monkeypatch):
        await until_heard(
            lambda: "this came 2 times more in the last minute: a session failed" in caplog.text
        )


@contextlib.asynccontextmanager
async def running_front(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FrontProcess]:
    """What is run in the process of a front, in this one."""
    own, other = socket.socketpair()
    made: asyncio.Future[FrontProcess] = asyncio.get_running_loop().create_future()

    def make(line: Line) -> FrontProcess:
        made.set_result(FrontProcess(line))
        return made.result()

    monkeypatch.setattr(front, "FrontProcess", make)
    running = asyncio.create_task(front.run(other))
    yield await made
    own.close()
    await running


def has_come(fronts: fleet.Fronts, count: int) -> bool:
    """Whether so many connections are in a front or wait for one."""
    return sum(len(front.sessions) for front in fronts.fronts) + len(fronts.waiting) == count


async def test_all_who_come_while_a_front_takes_nothing_get_to_it_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many: only some of them fit into one call, and what the system holds for a front is bounded."""
    monkeypatch.setattr(channel, "HIGH", 16 << 10)
    async with running_router(tmp_path, fronts=1) as running, contextlib.AsyncExitStack() as stack:
        fronts = fronts_of(running)
        (front,) = fronts.fronts
        await stand_still(front.pid)
        came = itertools.count(1)
        while len(fronts.waiting) <= 2 * DESCRIPTORS_MAX:
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            await until_heard(partial(has_come, fronts, next(came)))
        os.kill(front.pid, signal.SIGCONT)
        await until_heard(lambda: not fronts.waiting)
        assert len(front.sessions) == next(came) - 1
        client = await running.connect()
        assert isinstance(await client.send(PING()), PONG)
        await client.close()
    assert fronts.restarted == 0


async def test_who_comes_while_a_front_stands_still_is_given_to_another(tmp_path: Path) -> None:
    """It may have the fewest connections, and whoever was given to it waited until it was killed."""
    async with running_router(tmp_path, fronts=2) as running, contextlib.AsyncExitStack() as stack:
        fronts = fronts_of(running)
        await until_heard(lambda: all(front.is_up for front in fronts.fronts))
        stopped, other = fronts.fronts
        await stand_still(stopped.pid)
        stack.callback(os.kill, stopped.pid, signal.SIGCONT)
        for _ in range(2):
            await fronts.look()
            await until_heard(lambda: not other.missed)
        for number in range(1, 4):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            await until_heard(partial(has_come, fronts, number))
        assert len(other.sessions) == 3
        os.kill(stopped.pid, signal.SIGCONT)
        await until_heard(lambda: not stopped.missed)
        client = await running.connect()
        assert len(stopped.sessions) == 1
        await client.close()


@contextlib.asynccontextmanager
async def stopped_front(
    tmp_path: Path, limits: SessionLimits | None = None
) -> AsyncIterator[tuple[RouterClient, fleet.Front]]:
    """A connection for which sixty messages came while its front stood still; they are heard afterwards."""
    async with running_router(tmp_path, fronts=2, limits=limits) as running:
        recipient, sender = await running.connect(), await running.connect()
        queues = [await new_queue(recipient) for _ in range(QUEUES)]
        (client,) = (one.client for one in running.router.connections.values() if len(one.client.subs))
        stopped = next(front for front in fronts_of(running).fronts if _has(running, front, client.client_id))
        await stand_still(stopped.pid)
        for queue in queues:
            assert await sender.send(SEND(False, bytes(15_000)), queue.sender_id) == OK()
        assert client.congested
        yield client, stopped
        os.kill(stopped.pid, signal.SIGCONT)
        heard = [await pushed(recipient) for _ in queues]
        assert sorted(one.entity_id for one in heard) == sorted(queue.recipient_id for queue in queues)
        await until_heard(lambda: not client.congested)
        assert isinstance(await recipient.send(PING()), PONG)
        assert not recipient.events_waiting
        for one in (recipient, sender):
            await one.close()


async def test_answers_for_a_front_that_stands_still_wait_and_come_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is pushed to its connections is held back as for a peer that does not read; others go on."""
    monkeypatch.setattr(channel, "HIGH", 64 << 10)
    monkeypatch.setattr(channel, "LOW", 16 << 10)
    async with stopped_front(tmp_path) as (client, front):
        assert 0 < len(client.waiting) < QUEUES
        assert front.channel.backlog < 10 * channel.HIGH


async def test_who_is_at_a_front_with_one_for_whom_much_waits_is_not_held_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is shared by address. If the one with much is cut, nothing of it waits any longer."""
    monkeypatch.setattr(channel, "HIGH", 64 << 10)
    monkeypatch.setattr(channel, "LOW", 16 << 10)
    async with running_router(tmp_path, fronts=2) as running, contextlib.AsyncExitStack() as stack:
        with monkeypatch.context() as patched:
            loop = asyncio.get_running_loop()
            elsewhere = partial(loop.create_connection, local_addr=("127.0.0.2", 0))
            patched.setattr(loop, "create_connection", elsewhere)
            greedy = await running.connect()
        sender, modest = await running.connect(), await running.connect()
        queues = [await new_queue(greedy) for _ in range(QUEUES)]
        small = await new_queue(modest)
        first, _, third = running.router.connections.values()
        (stopped,) = [
            front for front in fronts_of(running).fronts if _has(running, front, first.client.client_id)
        ]
        assert third.session in stopped.sessions.values()
        await stand_still(stopped.pid)
        stack.callback(os.kill, stopped.pid, signal.SIGCONT)
        for queue in queues:
            assert await sender.send(SEND(False, bytes(15_000)), queue.sender_id) == OK()
        assert await sender.send(SEND(False, b"little"), small.sender_id) == OK()
        assert first.client.congested
        assert not third.client.congested
        assert not third.held
        assert stopped.channel.backlog > channel.HIGH
        first.cut()
        await until_heard(lambda: stopped.channel.backlog < 2 * channel.LOW)
        os.kill(stopped.pid, signal.SIGCONT)
        assert (await pushed(modest)).entity_id == small.recipient_id
        await greedy.wait_closed()
        for one in (modest, sender):
            await one.close()


async def test_a_front_that_is_behind_is_not_given_more_than_a_connection_may_have_waiting(
    tmp_path: Path,
) -> None:
    """Otherwise it would find the outbox of a peer that reads too full, and cut it."""
    limits = SessionLimits(outbox_high=64 << 10, outbox_low=16 << 10, outbox_max=512 << 10)
    async with stopped_front(tmp_path, limits) as (client, _):
        assert len(client.waiting) > QUEUES // 2


async def test_whoever_waits_for_a_channel_goes_on_however_soon_it_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "HIGH", 16 << 10)
    monkeypatch.setattr(channel, "LOW", 4 << 10)
    one, other = socket.socketpair()
    heard, relieved = 0, asyncio.Event()

    def hear(_kind: int, _number: int, view: memoryview) -> None:
        nonlocal heard
        heard += len(view)

    near, far = (channel.Channel(SocketLine(end), hear, lambda: None) for end in (one, other))
    near.on_relief = relieved.set
    near.tell(frames.SAY, 1, bytes(17 << 10))
    assert near.lags, "although the system takes all of it at once"
    await relieved.wait()
    assert not near.lags
    await until_heard(lambda: heard == 17 << 10)
    for end in (near, far):
        end.close()


class Crowded(SocketLine):
    """Of a system in which too many descriptors are under way."""

    refused = 0

    def send(self, pieces: list[Buffer], descriptors: Sequence[int]) -> int:
        if self.refused < 2:
            self.refused += 1
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        return super().send(pieces, descriptors)


async def test_a_front_to_which_too_many_connections_are_under_way_gets_them_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was taken for gone, and killed with all its connections."""
    monkeypatch.setattr(channel, "CROWDED_S", 0.0)
    one, other = socket.socketpair()
    heard, lost = list[int](), list[str]()
    line = Crowded(one)
    near = channel.Channel(line, lambda kind, number, view: None, partial(lost.append, "engine"))
    far = channel.Channel(
        SocketLine(other), lambda kind, number, view: heard.append(number), partial(lost.append, "front")
    )
    near.put(frames.ACCEPT, 7, [b""], 0, descriptor=os.open(os.devnull, os.O_RDONLY))
    near.tell(frames.PING, 8)
    await until_heard(lambda: heard == [7, 8] or bool(lost))
    assert not lost
    assert line.refused == 2
    assert len(far.descriptors) == 1
    line.refused = 0
    near.tell(frames.PING, 9)
    near.flush()
    near.close()
    await until_heard(lambda: lost == ["front"])


def _has(running: RunningRouter, front: fleet.Front, number: int) -> bool:
    return running.router.connections[number].session in front.sessions.values()


async def test_a_front_killed_in_the_middle_of_anything_leaves_nothing(tmp_path: Path) -> None:
    """Of a connection that said nothing, one that began to greet, one inside a block, and one at rest."""
    async with running_router(tmp_path, fronts=1) as running:
        open_before, limits = descriptors(), running.router.limits
        at_rest, inside = await running.connect(), await running.connect()
        silent, greeting = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(2)]
        greeting[1].write(bytes.fromhex("16030100c8010000c40303"))
        session = inside._session
        session._transport.write(b"\x17\x03\x03\x40\x11" + bytes(1000))
        (front,) = fronts_of(running).fronts
        await until(lambda: greeted(running, 2))
        os.kill(front.pid, signal.SIGKILL)
        for reader, writer in (silent, greeting):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        for one in (at_rest, inside):
            await one.wait_closed()
        again = await running.connect()
        assert isinstance(await again.send(PING()), PONG)
        await until_heard(lambda: (len(running.router.connections), limits.handshakes) == (1, 0))
        await again.close()
        await until(lambda: as_before(fronts_of(running), 1, open_before))


async def greeted(running: RunningRouter, count: int) -> bool:
    """Whether so many connections are established and as many are on their way."""
    return len(running.router.connections) == running.router.limits.handshakes == count


async def as_before(fronts: fleet.Fronts, count: int, open_before: int) -> bool:
    """Whether there are as many fronts again, and no more descriptors than before."""
    return len(fronts.fronts) == count and descriptors() <= open_before


async def answered(clients: Sequence[SmpClient]) -> list[SmpClient]:
    """Those who hear of the router first."""
    asking = {asyncio.create_task(client.send(PING())): client for client in clients}
    done, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return [asking[task] for task in done]


async def test_fronts_are_as_many_as_the_machine_has_a_use_for_and_log_as_their_engine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "router"
    init(folder)
    edit(folder, f"fronts = {FRONTS}", 'fronts = "auto"')
    monkeypatch.setitem(ENVIRONMENT, "PYTHON_CPU_COUNT", "3")
    async with started(folder) as router:
        fronts = router.status["fronts"]
        assert (fronts["setting"], len(fronts["pids"])) == ("auto", 2)
        assert b"a front has the settings" not in router.log
        edit(folder, 'level = "info"', 'level = "debug"')
        router.child.send(signal.SIGHUP)
        await router.told(b"a front has the settings", 2)
        edit(folder, 'level = "debug"', 'level = "info"')
        assert (await router.ask("reload"))["taken"] == ["log.level"]
        os.kill(fronts["pids"][0], signal.SIGKILL)
        await until(lambda: replaced(router))
        client = await router.connect()
        assert isinstance(await client.send(PING()), PONG)
        await client.close()
        assert await router.end() == 0
    assert router.log.count(b"a front has the settings") == 2, (
        "one that is started later logs like the others"
    )


async def test_processor_time_of_fronts_is_counted_and_that_of_ended_ones_is_kept(tmp_path: Path) -> None:
    async with running_router(tmp_path, fronts=1) as running:
        fronts = fronts_of(running)
        before = counted(fronts, "cpu_seconds_total")
        client = await running.connect()
        used = counted(fronts, "cpu_seconds_total")
        assert used > before
        fronts.fronts[0].kill()
        assert counted(fronts, "cpu_seconds_total") >= used

        async def waited_for() -> bool:
            await fronts.look()
            assert counted(fronts, "cpu_seconds_total") >= used
            return not fronts._ended

        await until(waited_for)
        await client.wait_closed()


def counted(fronts: fleet.Fronts, what: str) -> float:
    text = Text()
    fronts.measure(text)
    (line,) = re.findall(rf"^blindpost_router_fronts_{what} (.*)$", text.done(), re.MULTILINE)
    return float(line)


STILLBORN = """
import os, sys
if "blindpost.router.fronts.front" in sys.orig_argv and os.path.exists({flag!r}):
    os._exit(1)
"""
"""Run by every Python that is started: fronts end at once while there is a certain file."""


async def test_a_router_none_of_whose_fronts_comes_up_again_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, flag = tmp_path / "router", tmp_path / "flag"
    init(folder)
    set_fronts(folder, 1)
    (tmp_path / "sitecustomize.py").write_text(STILLBORN.format(flag=str(flag)))
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", path)
    async with started(folder) as router:
        flag.touch()
        os.kill(router.status["fronts"]["pids"][0], signal.SIGKILL)
        await until(lambda: is_ready(router, False))
        told = (await router.ask("status"))["health"]
        assert told == "no front runs, and connections wait for one: the log says why"
        waiting = asyncio.create_task(router.connect())
        flag.unlink()
        client = await waiting
        assert isinstance(await client.send(PING()), PONG)
        await client.close()
        await until(lambda: is_ready(router, True))
        assert await router.end() == 0


async def is_ready(router: StartedRouter, ready: bool) -> bool:
    return bool((await router.ask("status"))["ready"]) is ready


async def test_a_router_that_may_not_start_processes_says_so(tmp_path: Path) -> None:
    def start() -> Any:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async with running_router(tmp_path, fronts=1) as running:
        fronts = fronts_of(running)
        fronts.start_front = start
        with pytest.raises(OperatorError, match=r"a front process cannot be started: .*TasksMax"):
            fronts.start()


async def test_a_front_of_a_program_that_was_installed_meanwhile_does_not_serve_an_older_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It says why; the log tells how it ended."""
    async with running_router(tmp_path, fronts=2) as running:
        fronts = fronts_of(running)
        await until_heard(lambda: all(front.is_up for front in fronts.fronts))
        monkeypatch.setattr(frames, "VERSION", frames.VERSION + 1)
        monkeypatch.setattr(fleet, "PAUSE_S", 0.0)
        lost, kept = fronts.fronts
        lost.kill()
        await until_heard(lambda: fronts.restarted > 1)
        client = await running.connect()
        assert list(kept.sessions)
        assert isinstance(await client.send(PING()), PONG)
        await client.close()
        told: list[str] = []
        monkeypatch.setattr(log, "error", lambda text, *values: told.append(text % values))

        async def is_told() -> bool:
            await fronts.look()
            return any("ended with code 1" in line for line in told)

        await until(is_told)
        assert f"front {lost.pid} was ended by signal 9" in told
    assert (
        "a newer program is installed than the router that runs: `blindpost router upgrade`"
        in capfd.readouterr().err
    )


async def replaced(router: StartedRouter) -> bool:
    fronts = (await router.ask("status"))["fronts"]
    return fronts["restarted"] == 1 and len(fronts["pids"]) == 2


async def test_what_a_supervisor_sends_to_all_processes_does_not_end_a_front_that_starts(
    tmp_path: Path,
) -> None:
    async with running_router(tmp_path, fronts=1) as running:
        fronts = fronts_of(running)
        (front,) = fronts.fronts
        for number in FOR_THE_ENGINE:
            os.kill(front.pid, number)
        client = await running.connect()
        for number in FOR_THE_ENGINE:
            os.kill(front.pid, number)
        assert isinstance(await client.send(PING()), PONG)
        await client.close()
        assert fronts.fronts == [front]


async def test_a_front_that_starts_slowly_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To kill it would be to begin again, and it would be as slow."""
    monkeypatch.setattr(fleet, "COMMAND", (sys.executable, "-c", "import signal; signal.pause()"))
    async with running_router(tmp_path, fronts=1) as running:
        fronts = fronts_of(running)
        (front,) = fronts.fronts
        for _ in range(fleet.STARTING_MAX):
            await fronts.look()
        assert fronts.fronts == [front]
        await fronts.look()
        assert front not in fronts.fronts


@pytest.mark.parametrize("program", ["pass", "import signal; signal.pause()"], ids=["ends", "stuck"])
async def test_a_front_that_does_not_come_up_is_given_no_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """It has the fewest connections, and would be given all that come, while the other serves."""
    async with running_router(tmp_path, fronts=2) as running:
        fronts = fronts_of(running)
        await until_heard(lambda: all(front.is_up for front in fronts.fronts))
        monkeypatch.setattr(fleet, "COMMAND", (sys.executable, "-c", program))
        monkeypatch.setattr(fleet, "PAUSE_S", 0.0)
        monkeypatch.setattr(fleet, "COMING_S", 0.0 if "pause" in program else fleet.COMING_S)
        lost, kept = fronts.fronts
        lost.kill()
        await until_heard(lambda: fronts.restarted > 2 or "pause" in program)
        clients = [await running.connect() for _ in range(5)]
        assert len(kept.sessions) == len(clients)
        for client in clients:
            await client.close()


GARBAGE = {
    "a length that is none": b"\xff" * 64,
    "an unknown kind": (3).to_bytes(4, "little") + b"\xee" + (1).to_bytes(8, "little") + b"abc",
    "half an agreement": (3).to_bytes(4, "little") + bytes([34]) + (1).to_bytes(8, "little") + b"abc",
    "keys that end early": (2).to_bytes(4, "little") + bytes([32]) + (1).to_bytes(8, "little") + b"\x09\xff",
    "nothing but an end": b"",
}
LIAR = """
import os, socket, sys, time
channel = socket.socket(fileno=int(sys.argv[1]))
data, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 16)
while not descriptors:
    data, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 16)
channel.sendall(bytes.fromhex(os.environ["GARBAGE"]))
"""


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_what_a_front_says_cannot_harm_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, garbage: bytes
) -> None:
    monkeypatch.setenv("GARBAGE", garbage.hex())
    honest = fleet.COMMAND
    monkeypatch.setattr(fleet, "COMMAND", (sys.executable, "-c", LIAR))
    monkeypatch.setattr(fleet, "PAUSE_S", 0.0)
    async with running_router(tmp_path, fronts=1) as running:
        monkeypatch.setattr(fleet, "COMMAND", honest)
        fronts = fronts_of(running)
        open_before = descriptors()
        with pytest.raises(TransportError):
            await running.connect()
        client = await running.connect()
        assert isinstance(await client.send(PING()), PONG)
        assert fronts.restarted == 1
        await client.close()
        await until(lambda: as_before(fronts, 1, open_before))
