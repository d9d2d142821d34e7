"""A failing connection ends alone, a bad row affects only its queue, a heavy block keeps nobody waiting."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from blindpost.crypto.authorizers import ED448_WORK, Check
from blindpost.crypto.verifying import OneByOne
from blindpost.router.model import OWNERS_MAX
from blindpost.router.work import TURN_WORK
from blindpost.transport.errors import TransportError
from blindpost.wire.batch import pack
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import LGET, LSET, PING, QUE, RKEY, SUB
from blindpost.wire.smp.errors import PROHIBITED, Code
from blindpost.wire.smp.responses import ERR, INFO, LNK, OK, PONG, PRES
from blindpost.wire.smp.values import LinkData, QueueMode
from tests.support.router.forwarding import ProxyLine
from tests.support.router.lines import Said, create, open_line
from tests.support.router.routers import new_key, running_router
from tests.support.transport.broken import send_with_corrupt_record

SUBS = 80
"""About as many as fit into a block with signatures of Ed448 and the keys of all owners."""


async def test_a_corrupt_record_behind_a_block_ends_that_connection_alone(tmp_path: Path) -> None:
    async with running_router(tmp_path) as running:
        bystander, line = await open_line(running), await open_line(running)
        (payload,) = pack([line.written(Said(PING()))], 1 << 14).payloads
        send_with_corrupt_record(line.stream.session, payload)
        with pytest.raises(TransportError):
            await line.stream.read_block()
        assert await bystander.ask(PING()) == PONG()
        assert await (await open_line(running)).ask(PING()) == PONG()


@pytest.mark.parametrize("size", [16_000, 16_180])
async def test_link_data_too_large_for_an_answer_is_refused(tmp_path: Path, size: int) -> None:
    """An answer through a proxy has less room than a block; the queue itself is unaffected."""
    async with running_router(tmp_path) as running:
        line = await open_line(running)
        queue = await create(line, mode=QueueMode.CONTACT)
        link_id = os.urandom(24)
        assert await queue.ask(line, LSET(link_id, LinkData(b"f", bytes(size - 1)))) == OK()
        for _ in range(2):  # also when the row was stored by an earlier life
            proxy = await ProxyLine.open(running)
            sender = proxy.sender()
            reply = await proxy.forward(sender, sender.transmission(LGET(), link_id))
            assert isinstance(reply, PRES)
            told = sender.opened(reply.enc_response).response
            assert isinstance(told, LNK) if size < 16_100 else told == ERR(Code.LARGE_MSG)
        assert isinstance(await queue.ask(line, QUE()), INFO)
        direct = await (await open_line(running)).ask(LGET(), link_id)
        assert isinstance(direct, LNK)


async def test_an_answer_larger_than_a_block_fails_that_command_only(tmp_path: Path) -> None:
    """An answer repeats the ids of its command: long ids leave it less room."""
    async with running_router(tmp_path) as running:
        line = await open_line(running)
        queue = await create(line, mode=QueueMode.CONTACT)
        link_id = os.urandom(24)
        data = LinkData(b"f", bytes(16_130))
        assert await queue.ask(line, LSET(link_id, data)) == OK()
        long_id = os.urandom(255)
        said = [Said(PING()), Said(LGET(), link_id, corr_id=long_id), Said(PING())]
        assert await line.ask_many(said) == [PONG(), ERR(Code.LARGE_MSG), PONG()]


class Counted(OneByOne):
    """Counts how many verifications each call asks for."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def verify_many(self, checks: Sequence[Check]) -> list[bool]:
        self.calls.append(len(checks))
        return super().verify_many(checks)


@pytest.mark.parametrize("again", [False, True], ids=["owners before", "owners in the same block"])
async def test_a_block_of_heavy_commands_does_not_keep_others_waiting(tmp_path: Path, again: bool) -> None:
    """Many owners, slowest kind of signature on every command: verification spreads over several turns."""
    verifier = Counted()
    async with running_router(tmp_path, verifier=verifier) as running:
        heavy, bystander = await open_line(running), await open_line(running)
        queue = await create(heavy, mode=QueueMode.CONTACT)
        owners = tuple(new_key(Algorithm.ED448).public for _ in range(OWNERS_MAX))
        assert await queue.ask(heavy, RKEY(tuple(new_key().public for _ in range(OWNERS_MAX + 1)))) == ERR(
            PROHIBITED
        )
        said = [queue.said(RKEY(owners))]
        if not again:
            assert await heavy.ask_many(said) == [OK()]
            said = []
        stranger = new_key(Algorithm.ED448)
        said += [Said(SUB(), queue.recipient_id, stranger) for _ in range(SUBS)]
        refused = asyncio.ensure_future(heavy.ask_many(said))
        verifier.calls.clear()
        await asyncio.sleep(0)
        answered = 0
        while not refused.done():
            assert await bystander.ask(PING()) == PONG()
            answered += 1
        assert set((await refused)[-SUBS:]) == {ERR(Code.AUTH)}
        assert answered >= 3, "the block was spread over turns, and others were served between them"
        assert max(verifier.calls) <= TURN_WORK // ED448_WORK + OWNERS_MAX
        assert running.router.engine.meters.turns_cut > 8
