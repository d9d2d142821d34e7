"""Programs that put payloads into each other's queues and take them by lease; and what they were promised."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from blindpost.ds.client import ConnectionLostError, DsClient, DsError, RefusedError, _Wire
from blindpost.wire.capnp.node import Auth, Delivery
from simulation.delivery import NAME, PORT, key_of, token_of
from simulation.model import ViolationError, told
from simulation.party import Party, Surroundings

WAIT_S, LEASE_S, PATIENCE_S = 100.0, 60.0, 150.0
"""How long a caller lets the service wait, keeps what it leased, and waits for any answer."""
HANDLING_S = 0.3
"""How long a caller has what it leased before it acknowledges."""
AT_ONCE = (0, 1, 2)
"""How many payloads it takes at once; none: all that are there."""
AGAIN_S = 3.0
LARGE = 1_100_000
"""Above what the service handles inside its turns."""


@dataclass
class Box:
    """What one caller put into the queue of another, by number."""

    said: int = 0
    stored: set[int] = field(default_factory=set)
    """Those whose enqueue was answered: they must be given."""
    refused: set[int] = field(default_factory=set)
    came: list[int] = field(default_factory=list)
    """Those that were given, once each, in order."""
    ids: dict[int, bytes] = field(default_factory=dict)
    acknowledging: set[int] = field(default_factory=set)
    """Those whose acknowledgement was asked for: whoever dies then does not know whether it happened."""
    acknowledged: set[int] = field(default_factory=set)
    """Those whose acknowledgement was answered."""

    def given(self, number: int, delivery_id: bytes) -> None:
        """A payload was handed to its recipient."""
        if not 1 <= number <= self.said:
            raise ViolationError(f"payload {number} was given, which nobody put")
        if number in self.refused:
            raise ViolationError(f"payload {number} was given although it was refused")
        if number in self.acknowledged:
            raise ViolationError(f"payload {number} was given again after its acknowledgement was answered")
        if self.ids.setdefault(number, delivery_id) != delivery_id:
            raise ViolationError(f"payload {number} has another id than before")
        if number not in self.came:
            # One whose enqueue was not answered may have been on its way for long.
            if number in self.stored and any(number < other for other in self.stored.intersection(self.came)):
                raise ViolationError(f"payload {number} was given after a later one")
            self.came.append(number)

    @property
    def missing(self) -> set[int]:
        return self.stored - set(self.came)

    @property
    def open(self) -> set[int]:
        return set(self.came) - self.acknowledging


def untaken(boxes: dict[tuple[str, str], Box]) -> str | None:
    """What must still be given or acknowledged."""
    for (sender, recipient), box in boxes.items():
        if box.missing:
            return f"payloads are missing: {told(f'{sender}>{recipient} {each}' for each in box.missing)}"
        if box.open:
            return f"not acknowledged: {told(f'{sender}>{recipient} {each}' for each in box.open)}"
    return None


class CallerParty(Party):
    """One caller: it remembers nothing over its death."""

    kind = "caller"

    def __init__(self, run: Surroundings, name: str, boxes: dict[tuple[str, str], Box]) -> None:
        super().__init__(run, name)
        self._is_ready = False
        self.late_s = HANDLING_S
        """How long it takes to acknowledge."""
        self._boxes = boxes
        self._putting: asyncio.Lock
        self._over: asyncio.Event

    # Life

    @property
    def ready(self) -> bool:
        return self._is_ready

    async def live(self) -> None:
        self._putting, self._over = asyncio.Lock(), asyncio.Event()
        taking = asyncio.create_task(self._take())
        self._is_ready = True
        ended = asyncio.create_task(self._over.wait())
        await asyncio.wait([taking, ended], return_when=asyncio.FIRST_COMPLETED)
        self._is_ready = False
        if not taking.done():
            taking.cancel()
            await asyncio.wait([taking])
        else:
            taking.result()

    async def end(self) -> None:
        self._over.set()

    def files_closed(self) -> None:
        self._is_ready = False

    def mended(self) -> None:
        self.late_s = HANDLING_S

    def unsettled(self) -> str | None:
        return "it is putting" if self._putting.locked() else None

    async def _dial(self) -> _Wire:
        try:
            return await self.run.network.connect(_Wire, NAME, PORT)
        except OSError as error:
            raise ConnectionLostError(f"cannot connect: {error}") from error

    async def _client(self) -> DsClient:
        client = DsClient(self._dial, Auth(1, token_of(self.name)))
        async with asyncio.timeout(PATIENCE_S):
            await client.reconnect()
        return client

    # Putting

    async def put(self, recipient: str, count: int, large: bool) -> None:
        box = self._boxes.setdefault((self.name, recipient), Box())
        async with self._putting:
            client: DsClient | None = None
            try:
                for _ in range(count):
                    box.said += 1
                    number = box.said
                    payload = f"{self.name}>{recipient} {number} ".encode()
                    client = client or await self._client()
                    async with asyncio.timeout(PATIENCE_S):
                        await client.enqueue(key_of(recipient), payload.ljust(LARGE if large else 0, b"."))
                    box.stored.add(number)
            except RefusedError as error:
                self.run.note(f"{self.name} may not put {number}: {error}")
                box.refused.add(number)
            except (DsError, TimeoutError) as error:
                self.run.note(f"{self.name} does not know of {number}: {error!r}")
            finally:
                _drop(client)

    # Taking

    async def _take(self) -> None:
        """Lease, acknowledge, and begin again over a new connection where the old one is gone."""
        unconfirmed: dict[bytes, tuple[Box, int]] = {}
        chance = self.chance()
        while True:
            client: DsClient | None = None
            try:
                client = await self._client()
                if unconfirmed:
                    await self._acknowledge(client, unconfirmed)
                while True:
                    async with asyncio.timeout(PATIENCE_S):
                        given = await client.lease(
                            key_of(self.name),
                            timeout_s=WAIT_S,
                            lease_s=LEASE_S,
                            max_payloads=chance.choice(AT_ONCE),
                        )
                    unconfirmed.update((delivery.id, self._given(delivery)) for delivery in given)
                    if given:
                        await asyncio.sleep(self.late_s)
                        await self._acknowledge(client, unconfirmed)
            except (DsError, TimeoutError) as error:
                self.run.note(f"{self.name} begins to take anew: {error!r}")
            except ViolationError as violation:
                self.run.violated(str(violation))
                return
            finally:
                _drop(client)
            await asyncio.sleep(AGAIN_S)

    def _given(self, delivery: Delivery) -> tuple[Box, int]:
        way, number, _ = delivery.payload.decode().split(" ", 2)
        sender, _, recipient = way.partition(">")
        self.run.note(f"{self.name} is given {way} {number}")
        if recipient != self.name:
            raise ViolationError(f"{self.name} was given a payload for {recipient}")
        box = self._boxes.setdefault((sender, recipient), Box())
        box.given(int(number), delivery.id)
        return box, int(number)

    async def _acknowledge(self, client: DsClient, given: dict[bytes, tuple[Box, int]]) -> None:
        for box, number in given.values():
            box.acknowledging.add(number)
        async with asyncio.timeout(PATIENCE_S):
            await client.ack(key_of(self.name), tuple(given))
        for box, number in given.values():
            box.acknowledged.add(number)
        given.clear()


def _drop(client: DsClient | None) -> None:
    if client is not None and client._wire is not None:
        client._wire.close()
