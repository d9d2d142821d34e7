"""Devices of a notification router that was started."""

from __future__ import annotations

from blindpost.testing.apns import ApnsServer
from blindpost.wire.ntf.commands import TVFY
from blindpost.wire.ntf.responses import OK
from blindpost.wire.ntf.tokens import PushProvider
from tests.support.ntf.process import StartedNtf
from tests.support.ntf.routers import Device, device_token


async def verified(ntf: StartedNtf, apple: ApnsServer, number: int) -> Device:
    """A device of the test provider that has shown its code."""
    device = Device(await ntf.connect(), device_token(f"{number:08x}", PushProvider.APNS_TEST))
    await device.register()
    name = device.name.token.decode()
    await apple.until(lambda: bool(apple.sent_to(name)))
    assert await device.ask(TVFY(device.code(apple.sent_to(name)[-1].push))) == OK()
    return device
