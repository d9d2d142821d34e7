"""All attacks by server, and the process that makes them: `python -m tests.support.attack.attacks`."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Awaitable, Callable

from tests.support.attack import attackers, records, relays, storing
from tests.support.attack.attackers import Aim

Attack = Callable[[Aim], Awaitable[None]]
BELOW: dict[str, Attack] = {
    "silent sockets": attackers.silent_sockets,
    "half handshakes": attackers.half_handshakes,
    "corrupt records": attackers.corrupt_records,
    "changed keys": records.changed_keys,
    "tiny records": records.tiny_records,
}
BLOCKS: dict[str, Attack] = {
    **BELOW,
    "noise in blocks": attackers.noise_in_blocks,
    "heavy commands": attackers.heavy_commands,
    "non-readers": attackers.non_readers,
}
ATTACKS: dict[str, dict[str, Attack]] = {
    "router": {
        **BLOCKS,
        "relays to nowhere": attackers.relays_to_nowhere,
        "talking relays": relays.talking_relays,
        "fresh services": storing.fresh_services,
        "filled store": storing.filled_router,
    },
    "ntf": {**BLOCKS, "many tokens": storing.many_tokens},
    "ds": {
        **BELOW,
        "unfinished messages": attackers.unfinished_messages,
        "QUIC handshakes": attackers.quic_handshakes,
        "filled store": storing.filled_delivery,
    },
}
STORING = frozenset({"fresh services", "filled store", "many tokens"})
"""What these leave stays for a while, within its bounds."""
TOGETHER, PASSING = "all together", "all that leave nothing"


def chosen(aim: Aim) -> list[Attack]:
    known = ATTACKS[aim.kind]
    if aim.attack in (TOGETHER, PASSING):
        left_out = STORING if aim.attack == PASSING else frozenset()
        return [attack for name, attack in known.items() if name not in left_out]
    return [known[aim.attack]]


async def attack(aim: Aim) -> None:
    await asyncio.gather(*(each(aim) for each in chosen(aim)))


if __name__ == "__main__":
    os.nice(10)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    asyncio.run(attack(Aim(**json.loads(sys.argv[1]))))
    os._exit(0)  # sockets that are still open are cut by the system
