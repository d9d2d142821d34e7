"""A Web Push to an agent from end to end: a message, both routers, and a push service."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from blindpost.client.outbound import Outbound
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.webpush import decrypt, new_private_key
from blindpost.ntf.push.vapid import VapidKey, VapidTokens
from blindpost.ntf.push.webpush import Way, WebPush, web_tls
from blindpost.serving.children import free_port
from blindpost.testing.webpush import PushService
from blindpost.wire.addresses import RouterAddress, Scheme
from blindpost.wire.ntf.tokens import DeviceToken
from tests.support.agent.agents import address_of
from tests.support.agent.phones import PATIENCE_S, phones
from tests.support.serving.programs import line_with, program


async def test_a_phone_without_apple_is_woken_and_reads_its_message(tmp_path: Path) -> None:
    outbound = Outbound(["127.0.0.0/8", "::1/128"])
    tokens = VapidTokens([VapidKey(new_private_key(system_entropy))], "mailto:a@example.org", time.time)
    async with PushService() as service:
        web = WebPush(Way(outbound.network, outbound.gate, service.tls(web_tls())), tokens)
        async with phones(tmp_path, web=web) as (world, phone), asyncio.timeout(2 * PATIENCE_S):
            alice, conn = await world.friend(phone)
            browser = service.subscribe()
            settled = asyncio.create_task(phone.agent.push_settled())
            status = await phone.agent.register_push(DeviceToken.web(browser.subscription).text)
            assert status.text == "REGISTERED"
            await service.until(lambda: len(service.arrived) == 1)
            key, auth = browser.key, browser.subscription.auth
            assert await phone.agent.push_received(decrypt(service.arrived[0].body, key, auth)) == []
            await settled
            await phone.subscribed(conn)
            await phone.restart(subscribe=False)
            assert phone.token.device.subscription == browser.subscription
            await world.send(alice, b"hello")
            await service.until(lambda: len(service.arrived) == 2)
            (news,) = await phone.agent.push_received(browser.opened(service.arrived[1].body))
            assert news.conn.id == conn.id
            assert await news.fetch() is not None
            await phone.got(b"hello")
            assert not phone.errors


async def test_the_example_sleeps_wakes_and_prints_the_message(tmp_path: Path) -> None:
    folder, port = tmp_path / "phone", free_port()
    folder.mkdir()
    tls = PushService(certificate=folder / "push.pem").tls(web_tls())
    outbound = Outbound(["127.0.0.0/8", "::1/128"])
    tokens = VapidTokens([VapidKey(new_private_key(system_entropy))], "mailto:a@example.org", time.time)
    web = WebPush(Way(outbound.network, outbound.gate, tls), tokens)
    async with phones(tmp_path, web=web) as (world, _):
        smp, ntf = address_of(world.routers[0].server), RouterAddress(Scheme.NTF, world.ntf.server).text
        words = (str(folder), smp, ntf, "--key", tokens.current.public, "--port", str(port))
        async with program("examples/woken_by_push.py", *words) as example:
            link = (await line_with(example, "Invitation: ")).removeprefix("Invitation: ")
            conn = await world.alice.agent.join(link)
            for text in ("hello", "still there?"):
                await line_with(example, "Asleep.")
                await conn.send(text.encode())
                await line_with(example, "Woken.")
                assert await line_with(example, "Received: ") == f"Received: {text}"
            await line_with(example, "Asleep.")
            example.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENCE_S):
                assert await example.wait() == 0
