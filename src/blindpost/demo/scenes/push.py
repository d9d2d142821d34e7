"""A device that sleeps is told of a message: through the notification router and a server like Apple's."""

from __future__ import annotations

import os
import time

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blindpost.client.ntf import NtfClient
from blindpost.client.smp import SmpClient
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.pushes import open_message, open_meta, open_verification
from blindpost.demo.figures import Row, Say
from blindpost.demo.stage import Router, Served
from blindpost.testing.apns import ApnsServer
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import SNEW, TNEW, TVFY
from blindpost.wire.ntf.pushes import MessagePush, VerificationPush
from blindpost.wire.ntf.responses import IDSUB, IDTKN
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.smp.commands import NEW, SEND
from blindpost.wire.smp.responses import IDS
from blindpost.wire.smp.values import NtfCreds, QueueMode, QueueRequest, SubMode


def at_apple(ntf: Served, apple: ApnsServer) -> None:
    """Have the notification router push to `apple`."""
    key = apple.signing.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name, content in (("apple.p8", key), ("apple.pem", apple.certificate)):
        (ntf.folder / name).write_bytes(content)
    ntf.edit(
        listen__address='"127.0.0.1"',
        apns__key_file='"apple.p8"',
        apns__key_id=f'"{apple.signing.key_id}"',
        apns__test_host='"localhost"',
        apns__test_port=str(apple.port),
        apns__test_ca_file='"apple.pem"',
    )


class Phone:
    """A device: its keys, what its router calls it, and one queue that may wake it."""

    def __init__(self, client: NtfClient) -> None:
        self.client = client
        self.token = DeviceToken(PushProvider.APNS_TEST, os.urandom(32).hex().encode())
        self.key, self.dh_key = _key(Algorithm.ED25519), _key(Algorithm.X25519)
        self.token_id, self.secret = b"", b""

    @property
    def name(self) -> str:
        return self.token.token.decode()

    async def register(self, apple: ApnsServer) -> None:
        """The code that proves that the device is ours comes as a push."""
        made = await self.client.send(TNEW(self.token, self.key.public, self.dh_key.public), key=self.key)
        assert isinstance(made, IDTKN)
        self.token_id, self.secret = made.token_id, self.dh_key.agree(made.dh_key)
        await apple.until(lambda: bool(apple.sent_to(self.name)))
        push = apple.sent_to(self.name)[-1].push
        assert isinstance(push, VerificationPush)
        await self.client.send(TVFY(open_verification(self.secret, push)), self.token_id, self.key)


async def play(router: Router, address: str, apple: ApnsServer, say: Say) -> list[Row]:
    server = RouterAddress.from_text(router.address).server
    async with (
        await SmpClient.connect(server) as client,
        await NtfClient.connect(RouterAddress.from_text(address).server) as devices,
    ):
        phone = Phone(devices)
        await phone.register(apple)
        say("a phone has proved to the notification router that it is the phone it says")
        key, dh_key, notifier_key = _key(Algorithm.ED25519), _key(Algorithm.X25519), _key(Algorithm.ED25519)
        creds = NtfCreds(notifier_key.public, dh_key.public)
        request = QueueRequest(QueueMode.MESSAGING)
        ids = await client.send(
            NEW(key.public, dh_key.public, None, SubMode.ONLY_CREATE, request, creds), key=key
        )
        assert isinstance(ids, IDS)
        assert ids.ntf_creds is not None
        subscribed = await devices.send(
            SNEW(phone.token_id, server, ids.ntf_creds.notifier_id, notifier_key.encoded), key=phone.key
        )
        assert isinstance(subscribed, IDSUB)
        started = time.monotonic()
        await client.send(SEND(True, b"the body stays at the router"), ids.sender_id)
        await apple.until(lambda: len(apple.sent_to(phone.name)) > 1)
        taken = time.monotonic() - started
        pushed = apple.sent_to(phone.name)[-1]
        assert isinstance(pushed.push, MessagePush)
        (item,) = open_message(phone.secret, pushed.push)
        meta = open_meta(dh_key.agree(ids.ntf_creds.dh_key), item)
        good = item.notifier_id == ids.ntf_creds.notifier_id and meta is not None
        blind = b"the body" not in pushed.body and ids.recipient_id not in pushed.body
    say(f"a message woke it after {1000 * taken:.0f} ms; Apple saw an encrypted name of a queue, no more")
    return [
        Row("push through HTTP/2 to the phone", f"{1000 * taken:.0f} ms, nothing in clear", good and blind)
    ]


def _key(algorithm: Algorithm) -> PrivateKey:
    return PrivateKey.generate(algorithm, system_entropy)
