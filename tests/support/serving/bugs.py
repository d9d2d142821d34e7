"""A bug in one decision of a real server, and blocks with a command that meets it between two that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blindpost.ds import client as ds
from blindpost.ds.plan import INTERNAL
from blindpost.transport.plans import ntf_client_plan, smp_client_plan
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import TCHK, TNEW
from blindpost.wire.ntf.responses import ERR as NTF_ERR
from blindpost.wire.ntf.responses import IDTKN, TKN
from blindpost.wire.smp.commands import ACK, GET, SEND
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ERR, OK
from blindpost.wire.text import unb64
from tests.support.ntf.lines import NtfLine
from tests.support.ntf.routers import device_token
from tests.support.router.lines import Line, Said, create
from tests.support.router.routers import new_key
from tests.support.serving.commands import Started
from tests.support.serving.kinds import DS, KEY, NTF, ROUTER
from tests.support.transport.streams import connect

BODIES = (b"good before", b"bad", b"good after")
DEVICES = ("aa", "bb", "cc")
PLANT = """
import os
if os.environ.get("BLINDPOST_BUG"):
    from blindpost.{room} import {module}
    right = {module}.{name}
    def wrong(*arguments):
        answer = right(*arguments)
        if {bad}:
            raise ValueError({secret!r})
        return answer
    {module}.{name} = wrong
"""

Stored = Callable[[], Awaitable[bool]]
"""Whether the two good commands, and nothing else, are what a server has kept."""


@dataclass(frozen=True)
class Bug:
    """Which decision has a bug, when it strikes, and the block that meets it."""

    room: str
    module: str
    name: str
    bad: str
    block: Callable[[Started, dict[str, Any]], Awaitable[tuple[list[bool], Stored]]]
    """Whether each command of the block was done, not answered as a bug is; and what is kept then."""

    def plant(self, folder: Path, secret: str) -> dict[str, str]:
        """The environment of a server with the bug: the decision does its work, and fails after it."""
        planted = PLANT.format(
            room=self.room, module=self.module, name=self.name, bad=self.bad, secret=secret
        )
        (folder / "sitecustomize.py").write_text(planted)
        return {"PYTHONPATH": str(folder), "BLINDPOST_BUG": "1"}


async def _router_block(started: Started, made: dict[str, Any]) -> tuple[list[bool], Stored]:
    async def opened() -> Line:
        plan = smp_client_plan(unb64(str(started.status["fingerprint"])))
        return Line(await connect(plan, "127.0.0.1", int(started.status["ports"][0])))

    line = await opened()
    queue = await create(line)
    answers = await line.ask_many([Said(SEND(False, body), queue.sender_id) for body in BODIES])
    assert set(answers) <= {OK(), ERR(Code.INTERNAL)}

    async def stored() -> bool:
        again = await opened()
        found: list[bytes] = []
        while True:
            answer = await queue.ask(again, GET())
            if answer == OK():
                return found == [BODIES[0], BODIES[2]]
            found.append(queue.body(answer))
            assert await queue.ask(again, ACK(queue.last_id)) == OK()

    return [answer == OK() for answer in answers], stored


async def _ntf_block(started: Started, made: dict[str, Any]) -> tuple[list[bool], Stored]:
    async def opened() -> NtfLine:
        plan = ntf_client_plan(unb64(str(made["fingerprint"])))
        return NtfLine(await connect(plan, "127.0.0.1", int(started.status["ports"][0])))

    line, keys = await opened(), [new_key() for _ in DEVICES]
    names = [name.encode() * 12 for name in DEVICES]
    line.send(
        *(
            line.spoken(
                TNEW(device_token(device), key.public, new_key(Algorithm.X25519).public), b"", key, name
            )
            for device, key, name in zip(DEVICES, keys, names, strict=True)
        )
    )
    heard = {said.corr_id: said.response for said in await line.hear_many(len(DEVICES))}
    answers = [heard[name] for name in names]
    assert all(isinstance(answer, IDTKN) or answer == NTF_ERR(Code.INTERNAL) for answer in answers)

    async def stored() -> bool:
        again = await opened()
        known = [
            isinstance(await again.ask(TCHK(), answer.token_id, key), TKN)
            for answer, key in zip(answers, keys, strict=True)
            if isinstance(answer, IDTKN)
        ]
        return known == [True, True] and (await started.ask("status"))["tokens"] == 2

    return [isinstance(answer, IDTKN) for answer in answers], stored


async def _ds_block(started: Started, made: dict[str, Any]) -> tuple[list[bool], Stored]:
    async def opened() -> ds.DsClient:
        fingerprint = bytes.fromhex(str(made["fingerprint"]))
        return await ds.DsClient.connect(
            "127.0.0.1", int(started.status["ports"]["tls"]), fingerprint=fingerprint
        )

    async with await opened() as client:
        answers = await asyncio.gather(
            *(client.enqueue(KEY, body) for body in BODIES), return_exceptions=True
        )
    for answer in answers:
        assert answer is None or (isinstance(answer, ds.RefusedError) and str(answer) == INTERNAL.reason)

    async def stored() -> bool:
        async with await opened() as client:
            return await client.fetch(KEY) == (BODIES[0], BODIES[2])

    return [answer is None for answer in answers], stored


BUGS = {
    ROUTER: Bug("router", "queues", "send", f"bytes(arguments[3].body) == {BODIES[1]!r}", _router_block),
    NTF: Bug("ntf", "tokens", "register", f"b{DEVICES[1]!r} in arguments[2].token.token", _ntf_block),
    DS: Bug("ds", "queues", "enqueue", f"bytes(arguments[3].payload) == {BODIES[1]!r}", _ds_block),
}
