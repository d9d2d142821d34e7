"""A bot that says back what it hears: `python examples/echo_bot.py bot.db smp://...`."""

import asyncio
import sys

from blindpost.agent import Agent, Connected, ContactRequested, Received


async def main(store: str, *servers: str) -> None:
    async with Agent.open(store, servers=servers) as bot:
        print(await bot.address(user_data=b"echo bot", auto_accept=True), flush=True)
        async for event in bot.events():
            match event:
                case ContactRequested(_, request):
                    print("asked by", request.info.decode(errors="replace"), flush=True)
                case Connected(conn):
                    await conn.send(b"Say something!")
                case Received(conn, msg):
                    await conn.send(msg.body)
                    await msg.ack()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
