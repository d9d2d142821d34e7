"""A phone that sleeps is woken by a letter: through the notification router and a server like Apple's."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blindpost.demo.figures import Row, Say
from blindpost.demo.people import Person, introduce, person
from blindpost.demo.stage import Served
from blindpost.testing import ApnsServer
from blindpost.wire.ntf.pushes import MessagePush, VerificationPush

LETTER = "come home, the kettle is on"


@dataclass(frozen=True, slots=True)
class Bell:
    """The notification router, and where it is reached."""

    server: Served
    address: str


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


async def play(
    alice: Person, folder: Path, router: str, bell: Bell, apple: ApnsServer, say: Say
) -> list[Row]:
    """Alice writes to somebody whose phone sleeps."""
    device = os.urandom(32).hex()
    store = folder / "phone.db"

    def phone(*, awake: bool) -> contextlib.AbstractAsyncContextManager[Person]:
        return person("Carol", store, [router], ntf_servers=[bell.address], subscribe=awake)

    async with phone(awake=True) as carol:
        await introduce(carol, alice)
        await carol.agent.register_push(f"apns_test {device}")
        await carol.agent.verify_push(await _pushed(apple, device, VerificationPush))
        await bell.server.until("queues_subscribed", 1)
        say("Carol's phone has proved to the notification router that it is the phone it says; now it sleeps")
    started = time.monotonic()
    await alice.write(LETTER)
    payload = await _pushed(apple, device, MessagePush)
    taken_ms = 1000 * (time.monotonic() - started)
    say(f"a letter for it became a push after {taken_ms:.0f} ms; Apple saw an encrypted name, no more")
    blind = LETTER.encode() not in payload
    async with phone(awake=False) as carol:
        (news,) = await carol.agent.push_received(payload)
        await news.fetch()
        await carol.until(lambda one: bool(one.read))
        say("the push woke the phone, which fetched the one letter and went back to sleep")
    good = blind and carol.read == [LETTER] and carol.broken == 0
    return [Row("push through HTTP/2 wakes a phone", f"{taken_ms:.0f} ms, nothing in clear", good)]


async def _pushed(apple: ApnsServer, device: str, kind: type[VerificationPush | MessagePush]) -> bytes:
    """The first push of this kind to the device, as it came."""

    def found() -> list[bytes]:
        return [sent.body for sent in apple.sent_to(device) if isinstance(sent.push, kind)]

    await apple.until(lambda: bool(found()))
    return found()[0]
