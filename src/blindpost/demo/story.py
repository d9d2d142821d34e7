"""The demonstration: an encrypted exchange through a router that is killed in the middle of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from blindpost.client.errors import ClientError
from blindpost.demo.person import Person, introduce
from blindpost.demo.router import DemoRouter
from blindpost.transport.errors import TransportError

LETTERS = 30
"""How many letters one side writes in a round."""

ROUNDS = 6
"""Of letters in both directions; the router is killed in the middle of them."""


@dataclass
class Figures:
    """What the demonstration showed."""

    written: int = 0
    read: int = 0
    in_order: bool = True
    answered_before_kill: int = 0
    unanswered: int = 0
    lost: int = 0
    repeated: int = 0
    chains: int = 0
    post_quantum: bool = False
    restart_s: float = 0.0
    exchange_s: float = 0.0
    stored_bytes: int = 0
    latencies_s: list[float] = field(default_factory=list)

    def latency_ms(self, share: float) -> float:
        """This quantile of the time from SEND to its durable OK."""
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def good(self) -> bool:
        return self.lost == 0 and self.read == self.written and self.post_quantum


Say = Callable[[str], None]


async def tell(folder: Path, say: Say) -> Figures:
    """Run all of it with everything in `folder`; nothing runs afterwards."""
    router = DemoRouter(folder / "router")
    try:
        await router.init()
        await router.start()
        say("a durable router runs in a process of its own, on loopback, over TLS 1.3")
        return await _Story(router, say).run()
    finally:
        await router.stop()


class _Story:
    def __init__(self, router: DemoRouter, say: Say) -> None:
        self._router = router
        self._say = say
        self._figures = Figures()
        self._sent: dict[str, list[str]] = {}

    async def run(self) -> Figures:
        figures = self._figures
        alice = await Person.arrive("Alice", await self._router.connect())
        bob = await Person.arrive("Bob", await self._router.connect())
        await alice.knows(bob)
        await bob.knows(alice)
        introduce(bob, alice)
        self._say("Alice and Bob agreed on keys: X3DH over X448 and sntrup761, then a double ratchet")
        started = time.monotonic()
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                await self._killed(alice, bob)
            else:
                await self._round(alice, bob)
            await self._round(bob, alice)
        figures.exchange_s = time.monotonic() - started
        self._say(f"{ROUNDS} rounds of letters in both directions are over")
        for reader, writer in ((alice, bob), (bob, alice)):
            sent = self._sent[writer.name]
            figures.written += len(sent)
            figures.read += len(reader.read)
            figures.lost += len(set(sent) - set(reader.read))
            figures.in_order = figures.in_order and reader.read == sent
            figures.repeated += reader.repeated
            figures.chains += reader.chains
        assert alice.ratchet is not None
        assert bob.ratchet is not None
        figures.post_quantum = alice.ratchet.snd_kem and bob.ratchet.snd_kem and bob.ratchet.rcv_kem
        figures.stored_bytes = self._router.stored_bytes()
        await alice.client.close()
        await bob.client.close()
        return figures

    def _written(self, writer: Person) -> list[bytes]:
        """The next letters, sealed."""
        sent = self._sent.setdefault(writer.name, [])
        texts = [f"letter {len(sent) + number} of {writer.name}" for number in range(LETTERS)]
        sent += texts
        return [writer.sealed(text) for text in texts]

    async def _post(self, writer: Person, body: bytes) -> None:
        started = time.monotonic()
        await writer.send(body)
        self._figures.latencies_s.append(time.monotonic() - started)

    async def _round(self, writer: Person, reader: Person) -> None:
        for body in self._written(writer):
            await self._post(writer, body)
        await reader.receive(LETTERS)

    async def _killed(self, writer: Person, reader: Person) -> None:
        """The same with all letters sent at once, and the router killed when half of them are answered."""
        figures = self._figures
        letters = self._written(writer)
        half = asyncio.Event()
        answered: set[bytes] = set()

        async def post(body: bytes) -> None:
            try:
                await writer.send(body)
            except (TransportError, ClientError):
                return
            answered.add(body)
            if len(answered) >= LETTERS // 2:
                half.set()

        posting = [asyncio.create_task(post(body)) for body in letters]
        await half.wait()
        await self._router.kill()
        await asyncio.gather(*posting)
        figures.answered_before_kill, figures.unanswered = len(answered), LETTERS - len(answered)
        self._say(f"kill -9 with letters in flight: {len(answered)} answered OK, {figures.unanswered} not")
        for person in (writer, reader):
            await person.client.wait_closed()
        figures.restart_s = await self._router.start()
        self._say(f"the router is back after {figures.restart_s:.1f} s; what was not answered is sent again")
        writer.client, reader.client = await self._router.connect(), await self._router.connect()
        for body in letters:
            if body not in answered:
                await self._post(writer, body)
        await reader.receive(LETTERS)
