"""A notification router and a delivery service in processes of their own, with journals, and their traffic.

Half of it belongs to the operator's own devices and recipients, whose events are recorded; half does not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from blindpost.client.smp import SmpClient
from blindpost.journal.seal import seal_folder
from blindpost.serving.control import ask
from blindpost.testing.apns import ACCEPTED, UNAVAILABLE, ApnsServer
from blindpost.wire.addresses import Host, Server
from blindpost.wire.ntf.commands import TVFY
from blindpost.wire.ntf.responses import OK
from blindpost.wire.ntf.tokens import PushProvider
from blindpost.wire.text import unb64
from tests.support.ds import process as ds_process
from tests.support.ds.lab_deliveries import deliveries
from tests.support.ntf import process as ntf_process
from tests.support.ntf.notified import SmpQueue, notified_queues
from tests.support.ntf.routers import Device, device_token
from tests.support.serving.processes import until

NTF, DS = "ntf-1", "ds-1"
OWN_MESSAGES, OTHER_MESSAGES = 4, 3
"""To two queues each, none of which may hold more than two."""
_ON = ("'blindpost[pipeline]').\nenabled = false", "'blindpost[pipeline]').\nenabled = true")
_QUICK = (("retry_first_s = 2.0", "retry_first_s = 0.05"), ("period_step_s = 30.0", "period_step_s = 0.2"))


@dataclass
class Told:
    """What a server said about itself, every id that took part, and where its journal is."""

    journal: Path
    secrets: list[bytes] = field(default_factory=list)
    own: dict[str, Any] = field(default_factory=dict)
    """The status after the operator's own traffic."""
    all: dict[str, Any] = field(default_factory=dict)
    """The status at the end."""
    log: bytes = b""


class Router(Protocol):
    """A running message router."""

    @property
    def status(self) -> dict[str, Any]: ...

    async def connect(self) -> SmpClient: ...


def _now() -> float:
    """What the clock says now, also if a test has set it."""
    return time.time()


def nothing() -> None:
    """Happens where a test wants nothing to happen."""


async def notified(folder: Path, router: Router, between: Callable[[], None] = nothing) -> Told:
    """Messages to queues at this router become pushes: to a device of the operator's, and to another.

    `between` happens while the first messages wait to be pushed again.
    """
    told = Told(folder / "journal")
    port, fingerprint = str(router.status["ports"][0]), unb64(str(router.status["fingerprint"]))
    server = Server((Host("127.0.0.1"),), port, fingerprint)
    names = [os.urandom(8).hex() for _ in range(2)]
    devices = [device_token(name, PushProvider.APNS_TEST) for name in names]
    async with ApnsServer(now=_now) as apple, ntf_process.ntf_in_process(folder) as ntf:
        lab = ("lab = []", f'lab = ["{devices[0].token.decode()}"]')
        named = ('name = ""', f'name = "{NTF}"')
        ntf_process.configure(folder, *ntf_process.at(folder, apple), *_QUICK, _ON, named, lab)
        await ntf.start()
        async with await router.connect() as client:
            told.secrets.append(client.agreement.session_id)
            for place, (name, count) in enumerate(zip(devices, (OWN_MESSAGES, OTHER_MESSAGES), strict=True)):
                device = Device(await ntf.connect(), name)
                queues = await notified_queues(client, server, 2)
                told.secrets += await _pushed_to(device, apple, queues)
                apple.decide = lambda _device: UNAVAILABLE
                for number in range(count):
                    await queues[number % 2].send(client)
                await _until_ledger(ntf, place * OWN_MESSAGES + count, retried=True)
                if not place:
                    between()
                apple.decide = lambda _device: ACCEPTED
                await _until_ledger(ntf, place * OWN_MESSAGES + count)
                told.secrets.append(device.client.agreement.session_id)
                await device.client.close()
                told.all = await ntf.ask("status")
                told.own = told.own or told.all
        assert await ntf.end(signal.SIGTERM) == 0
    assert seal_folder(told.journal) is not None
    return told


async def _pushed_to(device: Device, apple: ApnsServer, queues: list[SmpQueue]) -> list[bytes]:
    """Verify a device and subscribe these queues; every id of it."""
    await device.register()
    token = device.name.token
    await apple.until(lambda: bool(apple.sent_to(token.decode())))
    assert await device.ask(TVFY(device.code(apple.sent_to(token.decode())[-1].push))) == OK()
    ids = [await device.subscribe(queue) for queue in queues]

    async def active() -> bool:
        return {await device.sub_status(subscription_id) for subscription_id in ids} == {b"ACTIVE"}

    await until(active)
    of_queues = [one for queue in queues for one in (queue.notifier_id, queue.recipient_id, queue.sender_id)]
    return [token, bytes.fromhex(token.decode()), device.token_id, *ids, *of_queues]


async def _until_ledger(ntf: ntf_process.StartedNtf, received: int, *, retried: bool = False) -> None:
    """Until so many have come, and have ended or are to be pushed again."""

    async def reached() -> bool:
        status = await ntf.ask("status")
        counters, waiting = status["counters"], status["ledger"]["waiting"]
        if counters["notifications_received"] != received:
            return False
        return bool(counters["push_retries"]) if retried else waiting == 0

    await until(reached)


async def delivered(
    folder: Path,
    at_start: Callable[[], None] = nothing,
    between: Callable[[], None] = nothing,
    journal: Path | None = None,
) -> Told:
    """Payloads for a recipient of the operator's, and for another; `between` happens between them."""
    told = Told(folder / "journal" if journal is None else journal)
    own, other, channel = os.urandom(32), os.urandom(32), os.urandom(20)
    told.secrets = [own, other, channel]
    async with ds_process.ds_in_process(folder) as ds:
        ds_process.configure(folder, *_ON)
        ds_process.configure(folder, 'name = ""', f'name = "{DS}"')
        ds_process.configure(folder, "lab = []", f'lab = ["{own.hex()}"]')
        ds_process.configure(folder, '\nfolder = "journal"', f'\nfolder = "{told.journal}"')
        at_start()
        await ds.start()

        async def status() -> dict[str, Any]:
            return await asyncio.to_thread(ask, folder / "control.sock", "status")

        async def is_waiting() -> bool:
            return bool((await status())["waiting"])

        await deliveries(ds.client, own, channel, is_waiting)
        told.own = await status()
        between()
        await deliveries(ds.client, other, channel, is_waiting)
        told.all = await status()
        assert await ds.end(signal.SIGTERM) == 0
        told.log = ds.log
    assert seal_folder(told.journal) is not None
    return told
