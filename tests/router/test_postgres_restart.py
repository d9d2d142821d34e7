"""A database that is restarted under load: what was answered OK is there, what was answered STORE is not."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from blindpost.client.calls import Call, Failure, Push
from blindpost.client.errors import RefusedError
from blindpost.client.smp import SmpClient
from blindpost.wire.smp.commands import ACK, GET, QUE, SEND, Command
from blindpost.wire.smp.errors import STORE
from blindpost.wire.smp.messages import Message
from blindpost.wire.smp.responses import MSG, OK, Response
from blindpost.wire.smp.values import SubMode
from tests.support.router.ledgers import Ledger
from tests.support.router.routers import Queue, RunningRouter, new_queue, running_router
from tests.support.store.postgres import PostgresServer, postgres_server
from tests.support.store.wires import wired

RESTARTS = int(os.environ.get("BLINDPOST_RESTARTS", "6"))
PAIRS = 3
WAITING_MAX = 40


class Answers:
    """Counts the commands answered OK and wakes whoever waits for more."""

    def __init__(self) -> None:
        self.accepted = 0
        self._changed = asyncio.Condition()

    async def count(self, results: list[Response | Failure]) -> None:
        self.accepted += sum(not is_store_error(result) for result in results)
        async with self._changed:
            self._changed.notify_all()

    async def more(self, count: int = 1) -> None:
        target = self.accepted + count
        async with self._changed:
            await self._changed.wait_for(lambda: self.accepted >= target)


def is_store_error(result: Response | Failure) -> bool:
    return isinstance(result, RefusedError) and isinstance(result.error, STORE)


class Pair:
    """A recipient and a sender of one queue. Their connections stay open all the time."""

    def __init__(
        self, recipient: SmpClient, sender: SmpClient, queue: Queue, answers: Answers, seed: int
    ) -> None:
        self.recipient, self.sender, self.queue, self.answers = recipient, sender, queue, answers
        self.ledger = Ledger()
        self.waiting = 0
        """Messages that were accepted and whose ACK was not."""
        self.stopping = False
        self._random = random.Random(seed)
        self._bodies: Iterator[int] = itertools.count()

    async def send(self) -> None:
        """SEND in batches; a refused message is never sent again, so it must never be received."""
        while not self.stopping:
            bodies = [
                b"%d " % next(self._bodies) + bytes(self._random.choice((0, 15_000)))
                for _ in range(self._random.randrange(1, 5))
            ]
            messages = [self.ledger.asked(body) for body in bodies]
            calls: list[Call[Command]] = [
                Call(SEND(False, body), self.queue.sender_id, self.queue.sender_key) for body in bodies
            ]
            results = await self.sender.send_many(calls)
            for message, result in zip(messages, results, strict=True):
                assert result == OK() or is_store_error(result), f"SEND was answered {result}"
                self.ledger.answered(message, accepted=result == OK())
                self.waiting += result == OK()
            await self.answers.count(results)
            while self.waiting > WAITING_MAX:
                await self.answers.more()

    async def receive(self) -> None:
        """Every message is acknowledged until its ACK is answered OK or with the next message."""
        while True:
            event = await self.recipient.next_event()
            assert isinstance(event, Push)
            response: Response | Failure = event.response
            while isinstance(response, MSG):
                message = self.queue.opened(response)
                assert isinstance(message, Message)
                self.ledger.delivered(bytes(message.body), response.msg_id)
                self.ledger.acknowledging()
                response = await self._acknowledged(response.msg_id)

    async def _acknowledged(self, msg_id: bytes) -> Response | Failure:
        while True:
            ack: list[Call[Command]] = [Call(ACK(msg_id), self.queue.recipient_id, self.queue.key)]
            results = await self.recipient.send_many(ack)
            if not is_store_error(results[0]):
                self.ledger.acknowledged()
                self.waiting -= 1
            await self.answers.count(results)
            if not is_store_error(results[0]):
                assert isinstance(results[0], OK | MSG), f"ACK was answered {results[0]}"
                return results[0]
            await asyncio.sleep(0.01)


async def new_pair(running: RunningRouter, answers: Answers, seed: int) -> Pair:
    recipient, sender = await running.connect(), await running.connect()
    return Pair(recipient, sender, await new_queue(recipient, secured=True), answers, seed)


async def restart(server: PostgresServer, asker: SmpClient, queue: Queue, how: signal.Signals) -> None:
    """Stop the database and start it again; meanwhile whoever asks is refused, and nobody waits."""
    await asyncio.to_thread(server.stop, how)
    for _ in range(10):
        (result,) = await asker.send_many([Call(QUE(), queue.recipient_id, queue.key)])
        assert is_store_error(result), f"QUE was answered {result} without a database"
    server.spawn()
    await asyncio.to_thread(server.wait_ready)


@pytest.mark.timeout(120 + 20 * RESTARTS)
async def test_restarts_of_the_database_under_load_lose_and_repeat_nothing(tmp_path: Path) -> None:
    seeded = random.Random(1)
    with postgres_server() as server:
        dsn = server.new_database()
        async with running_router(tmp_path, dsn=dsn) as running:
            answers = Answers()
            pairs = [await new_pair(running, answers, seeded.randrange(1 << 30)) for _ in range(PAIRS)]
            asker = await running.connect()
            asked = await new_queue(asker)
            async with asyncio.TaskGroup() as tasks:
                receiving = [tasks.create_task(pair.receive()) for pair in pairs]
                sending = [tasks.create_task(pair.send()) for pair in pairs]
                for how in itertools.islice(itertools.cycle((signal.SIGQUIT, signal.SIGINT)), RESTARTS):
                    await answers.more(seeded.randrange(20, 200))
                    await restart(server, asker, asked, how)
                await answers.more(50)
                for pair in pairs:
                    pair.stopping = True
                await asyncio.gather(*sending)
                while any(pair.waiting for pair in pairs):
                    await answers.more()
                for task in receiving:
                    task.cancel()
            for pair in pairs:
                pair.ledger.empty()
                await pair.recipient.close()
                await pair.sender.close()
            await asker.close()
            assert running.router.store.counts()["messages"] == 0


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_message_in_doubt_is_answered_by_its_real_outcome(
    tmp_path: Path, database: str, arrives: bool
) -> None:
    async with wired(database) as (wire, dsn), running_router(tmp_path, dsn=dsn) as running:
        client = await running.connect()
        queue = await new_queue(client, sub_mode=SubMode.ONLY_CREATE)

        async def send(body: bytes) -> Response | Failure:
            (result,) = await client.send_many([Call(SEND(False, body), queue.sender_id)])
            return result

        assert await send(b"before") == OK()
        wire.cut(b"in doubt", after=arrives)
        result = await send(b"in doubt")
        assert result == OK() if arrives else is_store_error(result)
        while (result := await send(b"after")) != OK():
            assert is_store_error(result)
        expected = [b"before", b"in doubt", b"after"] if arrives else [b"before", b"after"]
        bodies = []
        response = await client.send(GET(), queue.recipient_id, queue.key)
        while isinstance(response, MSG):
            message = queue.opened(response)
            assert isinstance(message, Message)
            bodies.append(bytes(message.body))
            await client.send(ACK(response.msg_id), queue.recipient_id, queue.key)
            response = await client.send(GET(), queue.recipient_id, queue.key)
        assert bodies == expected
        assert running.router.store.counts()["messages"] == 0
        await client.close()
