"""A plain client as a party: the owner of one queue, with two devices that take it from each other.

It speaks the routers' protocol without an agent, which would hide much of what a router does wrong.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from blindpost.client.calls import Call, Late, Push
from blindpost.client.errors import ClientError, RefusedError
from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.errors import TransportError
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import ACK, NEW, QUE, RKEY, SEND, SUB
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.messages import Message, read_message
from blindpost.wire.smp.responses import END, IDS, MSG
from blindpost.wire.smp.values import QueueMode, QueueRequest, SubMode
from simulation.model import ViolationError
from simulation.party import Party, Surroundings
from simulation.queue_model import Line, QueueModel

AGAIN_S = 7.0
"""When something is tried again."""
ACK_AFTER_S = (0.0, 0.0, 0.05, 2.0)


@dataclass
class Owned:
    """What the owner has of its queue; both devices have it, and it survives them."""

    rcv_id: bytes
    snd_id: bytes
    secret: bytes
    key: PrivateKey
    next_key: PrivateKey | None = None
    """The one that the router was asked to take instead, if it is not known whether it did."""

    @property
    def keys(self) -> list[PrivateKey]:
        return [self.key] if self.next_key is None else [self.key, self.next_key]

    def works(self, key: PrivateKey) -> None:
        """The router took a command with this key; the old one may yet be replaced."""
        if key is self.next_key:
            self.key, self.next_key = key, None

    def opened(self, msg: MSG) -> Message | None:
        message = read_message(Reader(BoxKey(self.secret).open_padded(nonce_of(msg.msg_id), msg.enc_body)))
        return message if isinstance(message, Message) else None


class OwnerParty(Party):
    """Two devices and one who writes to them, in one process."""

    kind = "owner"

    def __init__(self, run: Surroundings, name: str, home: RouterAddress) -> None:
        super().__init__(run, name)
        self.model = QueueModel()
        self.owned: Owned | None = None
        self.holder = 0
        """Which device is to have the queue."""
        self._home = home.server
        self._lines: list[tuple[SmpClient, Line] | None] = [None, None]
        self._turned = [asyncio.Event(), asyncio.Event()]
        self._making = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._closing = asyncio.Event()

    # Life

    def _options(self) -> SmpOptions:
        return SmpOptions(network=self.run.network, now=self.now, entropy=self._bytes)

    async def live(self) -> None:
        self._bytes, self._pauses = self.entropy(), self.chance()
        self._lines = [None, None]
        self._turned = [asyncio.Event(), asyncio.Event()]
        self._making, self._writing, self._closing = asyncio.Lock(), asyncio.Lock(), asyncio.Event()
        devices = [asyncio.create_task(self._device(number)) for number in (0, 1)]
        self._turned[self.holder].set()
        ended = asyncio.create_task(self._closing.wait())
        await asyncio.wait([*devices, ended], return_when=asyncio.FIRST_COMPLETED)
        for device in devices:
            if device.done():
                device.result()
            device.cancel()

    async def end(self) -> None:
        self._closing.set()

    def files_closed(self) -> None:
        self._lines = [None, None]

    def mended(self) -> None:
        """It has no store that could fail."""

    # One device

    async def _device(self, number: int) -> None:
        """Have the queue while it is this device's turn."""
        while True:
            await self._turned[number].wait()
            try:
                client = await SmpClient.connect(self._home, self._options())
            except TransportError:
                await asyncio.sleep(AGAIN_S)
                continue
            line = Line(f"device {number + 1}")
            try:
                await self._receive(number, client, line)
            except (ClientError, TransportError) as error:
                self.run.note(f"{self.name}: {line.name} lost its connection: {error}")
            except ViolationError as violation:
                self.run.violated(str(violation))
            finally:
                self._lines[number] = None
                await client.close()
            await asyncio.sleep(AGAIN_S)

    async def _receive(self, number: int, client: SmpClient, line: Line) -> None:
        """Subscribe and take what comes, until the connection ends or it is our turn again."""
        async with self._making:
            if self.owned is None:
                self.owned = await self._made(client)
        owned, turned = self.owned, self._turned[number]
        turned.clear()
        try:
            await self._subscribe(client, line)
            self._lines[number] = client, line
            while True:
                event, turn = asyncio.create_task(client.next_event()), asyncio.create_task(turned.wait())
                try:
                    await asyncio.wait([event, turn], return_when=asyncio.FIRST_COMPLETED)
                    if turn.done():
                        return
                finally:
                    turn.cancel()
                    event.cancel()
                match event.result():
                    case Push(owned.rcv_id, MSG() as msg):
                        await self._given(client, line, msg)
                    case Push(owned.rcv_id, END()):
                        self.run.note(f"{self.name}: {line.name} is told that it lost the queue")
                        self.model.ended(line)
                        if self.holder == number:
                            return  # the other one asked for it late: take it back
                    case Late():
                        pass
                    case other:
                        raise ViolationError(f"{line.name} was sent {other!r}")
        finally:
            if self.holder == number:
                turned.set()

    async def _made(self, client: SmpClient) -> Owned:
        """A queue that anybody may write to; one whose NEW was not answered is left behind."""
        key = PrivateKey.generate(Algorithm.ED25519, self._bytes)
        dh_key = PrivateKey.generate(Algorithm.X25519, self._bytes)
        ids = await client.send(
            NEW(
                key.public,
                dh_key.public,
                sub_mode=SubMode.ONLY_CREATE,
                request=QueueRequest(QueueMode.CONTACT),
            ),
            key=key,
        )
        assert isinstance(ids, IDS)
        return Owned(ids.recipient_id, ids.sender_id, dh_key.agree(ids.dh_key), key)

    async def _subscribe(self, client: SmpClient, line: Line) -> None:
        owned = self.owned
        assert owned is not None
        self.model.subscribes(line)
        keys = owned.keys
        for key in keys:
            try:
                await client.send(SUB(), owned.rcv_id, key)
            except RefusedError as refused:
                if refused.error is not Code.AUTH or (key is keys[-1] and owned.keys != keys):
                    raise
            else:
                owned.works(key)
                self.model.subscribed(line)
                return
        raise ViolationError(f"the router takes no key of {self.name} any more")

    async def _given(self, client: SmpClient, line: Line, msg: MSG | None) -> None:
        """Acknowledge what came, after a while; the answer may be the next message."""
        owned = self.owned
        assert owned is not None
        while msg is not None:
            message = owned.opened(msg)
            number = None if message is None else int(bytes(message.body))
            self.run.note(f"{self.name}: {line.name} is given {'a marker' if number is None else number}")
            self.model.came(line, number)
            await asyncio.sleep(self._pauses.choice(ACK_AFTER_S))
            line.acknowledges()
            msg = await self._acknowledged(client, line, ACK(msg.msg_id), number)

    async def _acknowledged(self, client: SmpClient, line: Line, ack: ACK, number: int | None) -> MSG | None:
        owned = self.owned
        assert owned is not None
        try:
            answer = await client.send(ack, owned.rcv_id, owned.key)
        except RefusedError as refused:
            if refused.error is Code.NO_MSG:
                self.model.not_in_flight(line, number)
                return None
            raise  # also AUTH, while the key is being replaced: the next SUB finds out which one counts
        self.model.acknowledged(line, number)
        return answer if isinstance(answer, MSG) else None

    # What is asked of it

    def take_over(self) -> None:
        """The other device takes the queue."""
        self._turned[self.holder].clear()
        self.holder = 1 - self.holder
        self._turned[self.holder].set()

    async def re_key(self) -> None:
        """Replace the key, and see which one counts from then on."""
        owned, open_line = self.owned, self._lines[self.holder]
        if owned is None or open_line is None or owned.next_key is not None:
            return
        client, old = open_line[0], owned.key
        new = owned.next_key = PrivateKey.generate(Algorithm.ED25519, self._bytes)
        done, by_old, by_new = await client.send_many(
            [
                Call(RKEY((new.public,)), owned.rcv_id, old),
                Call(QUE(), owned.rcv_id, old),
                Call(QUE(), owned.rcv_id, new),
            ]
        )
        if isinstance(done, RefusedError):
            owned.next_key = None
        elif not isinstance(done, ClientError | TransportError):
            owned.works(new)
            self.run.note(f"{self.name} has a new key")
            self._judge_keys(by_old, by_new)
            for line in filter(None, self._lines):
                (later,) = await line[0].send_many([Call(QUE(), owned.rcv_id, old)])
                self._judge_keys(later, None)

    def _judge_keys(self, by_old: object, by_new: object) -> None:
        """The command was taken: from then on the old key does not count, and the new one does."""
        if isinstance(by_old, TransportError) or isinstance(by_new, TransportError):
            return
        if not isinstance(by_old, ClientError):
            self.run.violated("a router took a command with a key that it had replaced")
        if isinstance(by_new, RefusedError) and by_new.error is Code.AUTH:
            self.run.violated("a router refused a command with the key that it had just taken")

    async def write(self, count: int) -> None:
        """Put messages into the queue, from a connection of their own."""
        owned = self.owned
        if owned is None:
            return
        async with self._writing:
            try:
                client = await SmpClient.connect(self._home, self._options())
            except TransportError:
                return
            try:
                for _ in range(count):
                    number = self.model.say()
                    try:
                        await client.send(SEND(False, str(number).encode()), owned.snd_id)
                    except RefusedError:
                        self.model.refused.add(number)
                    else:
                        self.model.taken.add(number)
            except (ClientError, TransportError) as error:
                self.run.note(f"{self.name} does not know whether {self.model.said} was taken: {error}")
            finally:
                await client.close()

    # What it looks like from outside

    def unsettled(self) -> str | None:
        if not self.alive:
            return "it is not alive"
        if missing := self.model.missing():
            return f"its devices were not given {sorted(missing)}"
        open_line = self._lines[self.holder]
        if self.owned is None or open_line is None or self._turned[self.holder].is_set():
            return f"device {self.holder + 1} does not have the queue"
        other = self._lines[1 - self.holder]
        if other is not None and other[1].holds:
            return f"{other[1].name} was not told that it lost the queue"
        return None

    def receives_from(self) -> list[tuple[str, bytes]]:
        return [] if self.owned is None else [(self._home.hosts[0].text, self.owned.rcv_id)]
