"""Whatever is sent: a protocol error and an unchanged store, never a crash."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from dataclasses import replace

import pytest

from blindpost.ntf import tokens
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import Token
from blindpost.ntf.ports import NmsgReceived
from blindpost.ntf.subscriber.options import EVENTS
from blindpost.ntf.turn import Turn
from blindpost.transport.errors import TransportError
from blindpost.wire.ntf.blocks import pack_transmissions
from blindpost.wire.ntf.commands import PING, SCHK, SDEL, SNEW, TCHK, TCRN, TDEL, TNEW, TRPL, TVFY, Command
from blindpost.wire.ntf.responses import ERR, PONG, Response
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.errors import CMD, Code
from tests.support.ntf.lines import NtfLine, open_ntf_line
from tests.support.ntf.routers import SMP, Device, RunningNtf, active_device, device_token, some_queue
from tests.support.ntf.stores import RawStore
from tests.support.transport.broken import send_with_corrupt_record

AT_ONCE = 50


async def test_message_routers_that_talk_without_end_do_not_hold_up_clients(ntf: RunningNtf) -> None:
    line = await open_ntf_line(ntf)
    routers = [replace(SMP, port=str(number)) for number in range(1, 101)]
    told = [
        asyncio.create_task(
            ntf.router.submit([NmsgReceived(each, os.urandom(24), bytes(24), bytes(144))] * EVENTS)
        )
        for each in routers
    ]
    await asyncio.sleep(0)
    assert await line.ask(PING()) == PONG()
    assert not all(each.done() for each in told), "some of them still wait"
    await asyncio.gather(*told)


async def all_refused(line: NtfLine, payloads: list[bytes]) -> None:
    """Each block is answered with errors and the connection stays up."""
    for start in range(0, len(payloads), AT_ONCE):
        chosen = payloads[start : start + AT_ONCE]
        for payload in chosen:
            line.stream.send(payload)
        for _ in chosen:
            response = (await line.hear()).response
            assert isinstance(response, ERR)
            assert response.error in (Code.AUTH, Code.BLOCK) or isinstance(response.error, CMD)
    assert await line.ask(PING()) == PONG()


def block_of(transmission: Writer) -> bytes:
    content = transmission.done()
    return b"\x01" + len(content).to_bytes(2, "big") + content


def signed_commands(line: NtfLine, device: Device, subscription_id: bytes) -> list[bytes]:
    """A block with each command, as its owner would send it."""
    queue = some_queue(9)
    said: list[tuple[Command, bytes]] = [
        (TNEW(device_token("ef"), device.key.public, device.dh_key.public), b""),
        (TVFY(bytes(32)), device.token_id),
        (TCHK(), device.token_id),
        (TRPL(device_token("ef")), device.token_id),
        (TDEL(), device.token_id),
        (TCRN(20), device.token_id),
        (SNEW(device.token_id, SMP, queue.notifier_id, queue.key.encoded), b""),
        (SCHK(), subscription_id),
        (SDEL(), subscription_id),
    ]
    return [block_of(line.spoken(command, entity_id, device.key)) for command, entity_id in said]


async def test_truncated_and_changed_commands_do_nothing(
    ntf: RunningNtf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    device = await active_device(ntf)
    subscription_id = await device.subscribe(some_queue())
    await ntf.settled()
    raw = RawStore(ntf.router.store)
    before, pushed = await raw.fetch("SELECT * FROM tokens"), len(ntf.apple.pushed)
    line, chance = await open_ntf_line(ntf), random.Random(512)
    for block in signed_commands(line, device, subscription_id):
        truncated = [block[:size] for size in range(len(block))]
        changed = []
        for place in range(len(block)):
            other = bytearray(block)
            other[place] ^= 1 << chance.randrange(8)
            changed.append(bytes(other))
        await all_refused(line, truncated + changed)
    await ntf.settled()
    assert await raw.fetch("SELECT * FROM tokens") == before
    assert len(ntf.apple.pushed) == pushed
    assert ntf.router.plan.meters[Meter.INTERNAL_ERRORS] == 0
    assert caplog.records == []
    assert await device.sub_status(subscription_id) == b"NEW"


async def test_noise_is_answered_with_errors(ntf: RunningNtf, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    line, chance = await open_ntf_line(ntf), random.Random(8)
    await all_refused(line, [chance.randbytes(chance.randrange(1, 511)) for _ in range(500)])
    assert ntf.router.plan.meters[Meter.INTERNAL_ERRORS] == 0
    assert caplog.records == []


async def test_a_signature_is_good_for_its_own_session_only(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    here, there = await open_ntf_line(ntf), await open_ntf_line(ntf)
    replayed = block_of(here.spoken(TDEL(), device.token_id, device.key))
    await all_refused(there, [replayed])
    assert await device.status() == "ACTIVE"


async def test_a_corrupt_record_behind_a_block_ends_that_connection_alone(ntf: RunningNtf) -> None:
    bystander, line = await open_ntf_line(ntf), await open_ntf_line(ntf)
    (payload,) = pack_transmissions([line.spoken(PING())], line.version).payloads
    send_with_corrupt_record(line.stream.session, payload)
    with pytest.raises(TransportError):
        await line.stream.read_block()
    assert await bystander.ask(PING()) == PONG()
    assert await (await open_ntf_line(ntf)).ask(PING()) == PONG()


async def test_a_bug_in_one_command_is_answered_internal_and_rolls_back_only_that_command(
    ntf: RunningNtf, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = await active_device(ntf)
    line = await open_ntf_line(ntf)

    def fails(turn: Turn, token: Token, command: TCRN) -> Response:
        turn.view.put_token(replace(token, period_minutes=99))
        raise KeyError("a bug")

    monkeypatch.setattr(tokens, "set_period", fails)
    block: list[tuple[Command, bytes]] = [(TCHK(), b"1"), (TCRN(20), b"2"), (TCHK(), b"3")]
    line.send(*(line.spoken(one, device.token_id, device.key, name * 24) for one, name in block))
    heard = {reply.corr_id[:1]: reply.response for reply in await line.hear_many(3)}
    assert heard[b"2"] == ERR(Code.INTERNAL)
    assert heard[b"1"] == heard[b"3"] != ERR(Code.INTERNAL)
    assert ntf.router.plan.meters[Meter.INTERNAL_ERRORS] == 1
    monkeypatch.undo()
    assert await line.ask(TCHK(), device.token_id, device.key) == heard[b"1"]
