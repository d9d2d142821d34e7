"""A program that sleeps, without a connection to anybody, until a push wakes it.

It stands for an application on a phone with a UnifiedPush distributor. The push service is a local one, made
for tests; docs/webpush.md says how a notification router is made to push to it.

python examples/woken_by_push.py phone smp://... ntf://... --key "$VAPID_PUBLIC_KEY" --port 8443
"""

import argparse
import asyncio
import contextlib
from pathlib import Path

from blindpost.agent import Agent, AgentConfig, Connected, MessageTaken, Received
from blindpost.testing import Browser, PushService
from blindpost.wire.ntf.tokens import DeviceToken


async def registered(phone: Agent, service: PushService, key: str) -> Browser:
    """Subscribe to pushes of the router with this key, and return the code that the first one brings."""
    browser = service.subscribe(key)
    await phone.register_push(DeviceToken.web(browser.subscription).text)
    await service.until(lambda: len(service.arrived) == 1)
    await phone.push_received(browser.opened(service.arrived[0].body))
    return browser


async def connected(phone: Agent) -> None:
    print("Invitation:", await phone.invite(), flush=True)
    async for event in phone.events():
        if isinstance(event, Connected):
            return


async def read(phone: Agent, browser: Browser, body: bytes) -> None:
    """What a push announces, and whatever else waits there."""
    for news in await phone.push_received(browser.opened(body)):
        while await news.fetch() is not None:
            async for event in phone.events():
                if isinstance(event, Received):
                    print("Received:", event.msg.body.decode("utf-8", "replace"), flush=True)
                    await event.msg.ack()
                elif isinstance(event, MessageTaken):
                    break


async def main(folder: Path, smp: str, ntf: str, key: str, port: int) -> None:
    store, servers, routers = folder / "phone.db", [smp], [ntf]
    async with PushService(port=port, certificate=folder / "push.pem") as service:
        async with Agent.open(store, servers, ntf_servers=routers) as phone:
            browser = await registered(phone, service, key)
            await connected(phone)
            await phone.push_settled()
        seen, awake_for_a_push = 1, AgentConfig(subscribe=False)
        while True:
            print("Asleep.", flush=True)
            await service.until(lambda: len(service.arrived) > seen)  # noqa: B023 (called before it changes)
            seen = len(service.arrived)
            print("Woken.", flush=True)
            async with Agent.open(store, servers, config=awake_for_a_push, ntf_servers=routers) as phone:
                await read(phone, browser, service.arrived[-1].body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sleep until a push comes, and print what it announces.")
    parser.add_argument("folder", type=Path, help="what the program keeps")
    parser.add_argument("smp", help="address of a message router")
    parser.add_argument("ntf", help="address of the notification router")
    parser.add_argument("--key", default="", help="the notification router's vapid_public_key")
    parser.add_argument("--port", type=int, default=8443, help="of the local push service")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(given.folder, given.smp, given.ntf, given.key, given.port))
