"""A notification end to end: a sender, a real message router, the notification router, Apple, a device.

Everything is real and over TLS; Apple is the server of `blindpost.testing`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from blindpost.client.calls import Call
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.pushes import NotifiedQueue as Known
from blindpost.crypto.pushes import announced, open_meta
from blindpost.engine.undo import Undo
from blindpost.ntf.model import NtfRules
from blindpost.ntf.ports import Provider
from blindpost.ntf.push.provider_tokens import ProviderTokens
from blindpost.ntf.push.providers import providers_at
from blindpost.ntf.view import View, Wanted
from blindpost.router.config import QUOTA_DEFAULT
from blindpost.testing.apns import TOO_MANY_REQUESTS, UNAVAILABLE, Answer, ApnsServer, Delivered
from blindpost.transport.session import Session
from blindpost.wire.batch import unpack
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.commands import TVFY
from blindpost.wire.ntf.pushes import MessagePush, PushItem, VerificationPush
from blindpost.wire.ntf.responses import OK
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import ACK, DEL, GET, NDEL, SEND, Command
from blindpost.wire.smp.messages import Message, read_message
from blindpost.wire.smp.responses import MSG
from blindpost.wire.text import b64
from tests.support.ntf.notified import SmpQueue, Watch, notified_queues, stock, subscribing, until_all
from tests.support.ntf.routers import Device, RunningNtf, device_token, running_ntf
from tests.support.router.routers import RunningRouter, new_credentials, running_router
from tests.support.serving.waiting import until

MARKER = b"MARKER-OF-A-BODY"
QUICK_RULES = NtfRules(retry_first_s=0.02, retry_max_s=0.1)


@dataclass
class World:
    """All parties."""

    ntf: RunningNtf
    smp: RunningRouter
    apple: ApnsServer
    sender: SmpClient

    async def device(self, name: DeviceToken | None = None) -> Device:
        """A device that registered and returned the code."""
        device = Device(await self.ntf.connect(), name or device_token("ab"))
        await device.register()
        await self.apple.until(lambda: bool(self.codes(device)))
        assert await device.ask(TVFY(device.code(self.codes(device)[-1].push))) == OK()
        return device

    def to(self, device: Device) -> list[Delivered]:
        return self.apple.sent_to(device.name.token.decode())

    def codes(self, device: Device) -> list[Delivered]:
        return [each for each in self.to(device) if isinstance(each.push, VerificationPush)]

    def messages(self, device: Device) -> list[Delivered]:
        return [each for each in self.to(device) if isinstance(each.push, MessagePush)]

    async def message(self, device: Device, count: int = 1) -> tuple[PushItem, ...]:
        """What the push of this number tells the device."""
        await self.apple.until(lambda: len(self.messages(device)) >= count)
        return device.items(self.messages(device)[count - 1].push)

    async def attempts(self, count: int) -> None:
        """Wait until Apple was asked this many more times."""
        asked = len(self.apple.received)
        await self.apple.until(lambda: len(self.apple.received) >= asked + count)

    async def queues(self, count: int = 1) -> list[SmpQueue]:
        return await notified_queues(self.sender, self.smp.server, count)

    async def subscribed(self, device: Device, *queues: SmpQueue) -> list[bytes]:
        """Subscription ids, once all of them are active."""
        ids = [await device.subscribe(queue) for queue in queues]
        await until_all(self.ntf.router.store, queues, "ACTIVE")
        return ids


@asynccontextmanager
async def world(folder: Path, rules: NtfRules | None = None) -> AsyncIterator[World]:
    credentials = new_credentials()
    async with (
        running_router(folder / "smp") as smp,
        ApnsServer() as apple,
        running_ntf(folder, rules, credentials=credentials, providers=at_apple(apple)) as ntf,
        subscribing(ntf),
        await smp.connect() as sender,
    ):
        yield World(ntf, smp, apple, sender)


def at_apple(apple: ApnsServer) -> dict[PushProvider, Provider]:
    tokens = ProviderTokens(apple.signing, time.time)
    return providers_at({PushProvider.APNS_PROD: apple.endpoint}, tokens)


async def fetched(client: SmpClient, queue: SmpQueue) -> MSG:
    """GET by the recipient."""
    found = await client.send(GET(), queue.recipient_id, queue.recipient_key)
    assert isinstance(found, MSG)
    return found


@pytest.mark.both_stores
@pytest.mark.claim("NTF-30")
async def test_a_subscribed_queue_wakes_its_device(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        watch = Watch(here.smp)
        device = await here.device()
        (queue,) = await here.queues()
        await here.subscribed(device, queue)
        assert watch.subscribed == [queue.notifier_id]
        before = int(here.ntf.clock())
        await queue.send(here.sender, MARKER)
        (item,) = await here.message(device)
        assert (item.server, item.notifier_id) == (queue.server, queue.notifier_id)
        assert item.seconds >= before
        meta = open_meta(queue.secret, item)
        msg = await fetched(here.sender, queue)
        assert meta.msg_id == msg.msg_id
        await queue.send(here.sender, MARKER)
        (again,) = await here.message(device, 2)
        assert open_meta(queue.secret, again).msg_id != meta.msg_id


@pytest.mark.both_stores
@pytest.mark.claim("NTF-44", "NTF-45")
async def test_no_body_travels_and_unflagged_messages_notify_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []
    received = SmpClient.block_received

    def listen(client: SmpClient, session: Session, payload: bytes) -> None:
        if client.service is not None:
            heard.append(bytes(payload))
        received(client, session, payload)

    monkeypatch.setattr(SmpClient, "block_received", listen)
    async with world(tmp_path) as here:
        device = await here.device()
        silent, loud = await here.queues(2)
        await here.subscribed(device, silent, loud)
        count = len(heard)
        for number in range(5):
            await silent.send(here.sender, MARKER * 8 + b"%d" % number, notify=False)
        await loud.send(here.sender, MARKER * 8)
        (item,) = await here.message(device)
        assert item.notifier_id == loud.notifier_id
        assert sum(b"NMSG" in block for block in heard[count:]) == 1
        for seen in (*heard, *(each.body for each in here.apple.received)):
            for hidden in (MARKER, MARKER.hex().encode(), b64(MARKER)[:20].encode()):
                assert hidden not in seen
        tokens_secret = (await stored_secret(here, device))[0]
        for key in (tokens_secret, loud.key.raw, silent.secret):
            with pytest.raises(WireError):
                open_meta(key, item)
        assert open_meta(loud.secret, item).msg_id == (await fetched(here.sender, loud)).msg_id
        assert len(here.messages(device)) == 1


async def stored_secret(here: World, device: Device) -> list[bytes]:
    """Everything the notification router stores of the token that could be a key."""
    view = View(Undo(), 0)
    await here.ntf.router.store.load(Wanted(tokens={device.token_id}), view)
    token = view.tokens.get(device.token_id)
    assert token is not None
    return [token.secret.raw, token.dh_key.raw]


@pytest.mark.both_stores
@pytest.mark.claim("NTF-41", "NTF-42")
async def test_message_routers_learn_nothing_about_devices(tmp_path: Path) -> None:
    """One session for all users; nothing in it names a token, and the order is random."""
    async with world(tmp_path) as here:
        watch = Watch(here.smp)
        devices = [await here.device(device_token(text)) for text in ("ab", "cd")]
        queues = await here.queues(40)
        ids: dict[bytes, bytes] = {}
        for number, queue in enumerate(queues):
            ids[queue.notifier_id] = (await here.subscribed(devices[number // 20], queue))[0]
        await queues[0].send(here.sender)
        await here.message(devices[0])
        service_sessions = {session for session in watch.sessions if session.agreed.service is not None}
        assert len(service_sessions) == 1
        hidden = [value for device in devices for value in (device.token_id, device.name.token)]
        hidden += [bytes.fromhex(device.name.token.decode()) for device in devices]
        hidden += [*ids.values(), *(device.key.public.raw for device in devices)]
        assert len(watch.subscribed) == 40
        for payload in watch.payloads:
            assert not [value for value in hidden if value in payload]
    async with running_router(tmp_path / "smp2") as smp, await smp.connect() as client:
        mixed = await notified_queues(client, smp.server, 40)
        watch = Watch(smp)
        async with running_ntf(tmp_path) as ntf:
            await stock(ntf.router.store, mixed[:20])
            await stock(ntf.router.store, mixed[20:])
            order = await ntf.router.store.page(smp.server, b"", 100, with_associated=True)
            assert [notifier.subscription_id for notifier in order] == sorted(
                notifier.subscription_id for notifier in order
            )
            async with subscribing(ntf):
                await until_all(ntf.router.store, mixed, "ACTIVE")
        assert watch.subscribed == [notifier.notifier_id for notifier in order]
        assert len(watch.sessions) == 1
        first = {queue.notifier_id for queue in mixed[:20]}
        changes = sum(
            (one in first) is not (other in first) for one, other in itertools.pairwise(watch.subscribed)
        )
        assert changes > 5


@pytest.mark.both_stores
@pytest.mark.claim("NTF-43")
async def test_the_ids_of_queues_stay_between_their_users_and_the_message_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bytes] = []
    async with world(tmp_path) as here:
        inner = here.ntf.router.block_received

        def listen(session: Session, payload: bytes) -> None:
            said.append(bytes(payload))
            inner(session, payload)

        monkeypatch.setattr(here.ntf.router, "block_received", listen)
        device = await here.device()
        queues = await here.queues(5)
        await here.subscribed(device, *queues)
        await queues[0].send(here.sender)
        await here.message(device)
        stored = files_of(tmp_path)
        for queue in queues:
            ids = {queue.notifier_id, queue.recipient_id, queue.sender_id}
            assert len(ids) == 3
            assert any(queue.notifier_id in payload for payload in said)
            for hidden in (queue.recipient_id, queue.sender_id):
                assert not [payload for payload in said if hidden in payload]
                assert hidden not in stored
                assert all(hidden[:length] not in queue.notifier_id for length in (4, 8))


def files_of(folder: Path) -> bytes:
    """All bytes of an embedded store."""
    return b"".join(file.read_bytes() for file in folder.glob("ntf.db*"))


@pytest.mark.both_stores
@pytest.mark.claim("NTF-49")
async def test_apple_sees_ciphertext_of_one_size_with_nothing_in_common(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        device = await here.device()
        queues = await here.queues(6)
        await here.subscribed(device, *queues)
        for number in range(4):
            await queues[0].send(here.sender)
            await here.message(device, number + 1)
        for number, queue in enumerate(queues[1:], 5):
            await queue.send(here.sender)
            items = await here.message(device, number)
        assert len(items) == 6
        bodies = [each.body for each in here.messages(device)]
        assert len({len(body) for body in bodies}) == 1
        clear = [b"smp://", b"127.0.0.1", str(here.smp.port).encode()]
        for queue in queues:
            clear += [queue.notifier_id, b64(queue.notifier_id).encode(), b64(queue.server.key_hash).encode()]
        data = [json.loads(body)["notificationData"] for body in bodies]
        for body, inside in zip(bodies, data, strict=True):
            assert not [value for value in clear if value in body]
            assert inside.keys() == {"nonce", "message"}
        assert len({inside["nonce"] for inside in data}) == len(bodies)
        windows: set[str] = set()
        for inside in data:
            text: str = inside["message"]
            own = {text[place : place + 12] for place in range(len(text) - 11)}
            assert not own & windows
            windows |= own


@pytest.mark.both_stores
@pytest.mark.claim("NTF-52")
async def test_messages_outlive_pushes_that_nobody_gets(tmp_path: Path) -> None:
    """Whatever happens to pushes, the messages stay in their queues."""
    async with world(tmp_path) as here:
        device = await here.device()
        queues = await here.queues(2)
        await here.subscribed(device, *queues)
        lost = [Answer(400, "BadTopic"), Answer(), Answer(410, "Unregistered")]
        here.apple.decide = lambda token: lost[len(here.apple.received) % 3]
        for number in range(3):
            for queue in queues:
                await queue.send(here.sender, b"%d" % number)
        await until(lambda: len(here.apple.received) > 1)
        async with await here.smp.connect() as reader:
            for queue in queues:
                bodies = []
                for _ in range(3):
                    msg = await fetched(reader, queue)
                    bodies.append(opened(queue, msg))
                    await reader.send(ACK(msg.msg_id), queue.recipient_id, queue.recipient_key)
                assert bodies == [b"0", b"1", b"2"]


def opened(queue: SmpQueue, msg: MSG) -> bytes:
    """The body of a message, decrypted with the key of the queue's messages and notifications."""
    content = BoxKey(queue.message_secret).open_padded(nonce_of(msg.msg_id), msg.enc_body)
    message = read_message(Reader(content))
    assert isinstance(message, Message)
    return bytes(message.body)


@pytest.mark.both_stores
@pytest.mark.claim("NTF-39")
async def test_after_a_restart_everything_continues_without_the_devices(tmp_path: Path) -> None:
    credentials = new_credentials()
    async with (
        running_router(tmp_path / "smp") as smp,
        ApnsServer() as apple,
        await smp.connect() as sender,
    ):
        async with running_ntf(tmp_path, credentials=credentials, providers=at_apple(apple)) as ntf:
            here = World(ntf, smp, apple, sender)
            async with subscribing(ntf):
                device = await here.device()
                queues = await here.queues(3)
                ids = await here.subscribed(device, *queues)
            port = int(ntf.server.port)
            await device.client.close()
        await queues[2].send(sender)
        async with (
            running_ntf(tmp_path, credentials=credentials, providers=at_apple(apple), port=port) as ntf,
            subscribing(ntf),
        ):
            here = World(ntf, smp, apple, sender)
            (waited,) = await here.message(device)
            assert waited.notifier_id == queues[2].notifier_id
            await queues[0].send(sender)
            items = await here.message(device, 2)
            assert items[-1].notifier_id == queues[0].notifier_id
            device.client = await ntf.connect()
            assert await device.status() == "ACTIVE"
            assert [await device.sub_status(subscription_id) for subscription_id in ids] == [b"ACTIVE"] * 3
            await device.client.close()


@pytest.mark.both_stores
@pytest.mark.claim("NTF-19")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(400, "BadDeviceToken"), "BAD"),
        (Answer(400, "DeviceTokenNotForTopic"), "TOPIC"),
        (Answer(410, "ExpiredToken"), "EXPIRED"),
        (Answer(410, "Unregistered"), "UNREGISTERED"),
    ],
    ids=lambda value: str(getattr(value, "reason", value)),
)
async def test_a_device_rejected_by_apple_is_not_pushed_to_again(
    tmp_path: Path, answer: Answer, reason: str
) -> None:
    async with world(tmp_path) as here:
        bad, good = [await here.device(device_token(text)) for text in ("ab", "cd")]
        at_bad, at_good = await here.queues(2)
        await here.subscribed(bad, at_bad)
        await here.subscribed(good, at_good)
        here.apple.decide = lambda token: answer if token == bad.name.token.decode() else Answer()
        asked = len(here.apple.received)
        await at_bad.send(here.sender)
        await here.apple.until(lambda: len(here.apple.received) == asked + 1)
        await here.ntf.settled()
        assert await bad.status() == f"INVALID,{reason}"
        await at_bad.send(here.sender)
        await at_good.send(here.sender)
        await here.message(good)
        await here.ntf.settled()
        assert [each.device_token for each in here.apple.received[asked:]] == [
            bad.name.token.decode(),
            good.name.token.decode(),
        ]
        assert await good.status() == "ACTIVE"


@pytest.mark.both_stores
@pytest.mark.claim("NTF-59")
async def test_outages_and_throttling_delay_and_never_invalidate(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK_RULES) as here:
        device = await here.device()
        queues = await here.queues(3)
        await here.subscribed(device, *queues)
        for outage in (UNAVAILABLE, TOO_MANY_REQUESTS, Answer(500, "InternalServerError")):
            done = len(here.messages(device))
            here.apple.decide = lambda token, outage=outage: outage  # type: ignore[misc]
            await queues[0].send(here.sender)
            await here.attempts(4)
            assert await device.status() == "ACTIVE"
            assert len(here.messages(device)) == done
            here.apple.decide = lambda token: Answer()
            await here.message(device, done + 1)
        await here.apple.stop()
        for queue in queues:
            await queue.send(here.sender)
        done = len(here.messages(device))
        await until(lambda: here.ntf.ledger()["waiting"] == 3)
        assert await device.status() == "ACTIVE"
        await here.apple.start()
        items = await here.message(device, done + 1)
        assert {item.notifier_id for item in items} == {queue.notifier_id for queue in queues}
        await here.ntf.settled()
        assert here.ntf.ledger()["waiting"] == 0


async def test_a_device_looks_where_a_push_tells_it_to(tmp_path: Path) -> None:
    """The push names queues; the device reads their content itself."""
    async with world(tmp_path) as here:
        device = await here.device()
        queues = await here.queues(3)
        await here.subscribed(device, *queues)
        for queue in queues:
            await queue.send(here.sender)
        await until(lambda: len(device_items(here, device)) == 3)
        known = {queue.notifier_id: queue for queue in queues}

        def find(item: PushItem) -> Known[SmpQueue] | None:
            queue = known.get(item.notifier_id)
            return None if queue is None else Known(queue, queue.secret, None)

        found = announced(device_items(here, device), find)
        assert {each.queue.notifier_id for each in found} == known.keys()
        for each in found:
            assert each.meta is not None
            assert each.meta.msg_id == (await fetched(here.sender, each.queue)).msg_id


def device_items(here: World, device: Device) -> tuple[PushItem, ...]:
    """Of the newest push."""
    delivered = here.messages(device)
    return device.items(delivered[-1].push) if delivered else ()


@pytest.mark.both_stores
@pytest.mark.claim("NTF-48")
async def test_senders_cannot_tell_whether_a_queue_notifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer, up to the full queue and the deleted one: the same bytes, in the same blocks."""
    blocks: list[bytes] = []
    received = SmpClient.block_received

    def listen(client: SmpClient, session: Session, payload: bytes) -> None:
        if client.service is None:
            blocks.append(bytes(payload))
        received(client, session, payload)

    async with world(tmp_path) as here:
        device = await here.device()
        notifying, subscribed, silent = await here.queues(3)
        await here.subscribed(device, subscribed)
        await here.sender.send(NDEL(), silent.recipient_id, silent.recipient_key)
        monkeypatch.setattr(SmpClient, "block_received", listen)

        async def answers(command: Command) -> list[bytes]:
            """What the sender of each queue receives when all are asked at once."""
            blocks.clear()
            calls = [
                Call(command, queue.sender_id, corr_id=bytes([number]) * 24)
                for number, queue in enumerate((notifying, subscribed, silent), 1)
            ]
            await here.sender.send_many(calls)
            assert len(blocks) == 1, "the answers leave together"
            found = []
            for transmission in unpack(Reader(memoryview(blocks[0]))):
                text = bytes(transmission.rest())
                for number, queue in enumerate((notifying, subscribed, silent), 1):
                    text = text.replace(bytes([number]) * 24, b"C").replace(queue.sender_id, b"S")
                found.append(text)
            return found

        for number in range(QUOTA_DEFAULT + 2):
            each = await answers(SEND(number % 2 == 0, b"%d" % number))
            assert len(each) == 3
            assert len(set(each)) == 1, each
        assert b"QUOTA" in each[0]
        for queue in (notifying, subscribed, silent):
            await here.sender.send(DEL(), queue.recipient_id, queue.recipient_key)
        each = await answers(SEND(True, b"gone"))
        assert len(set(each)) == 1
        assert b"AUTH" in each[0]
        await here.message(device)
