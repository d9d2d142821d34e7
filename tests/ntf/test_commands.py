"""Commands as they arrive: batches, versions, what must be signed, what is refused and at what cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from blindpost.client.errors import TooLargeError
from blindpost.crypto.authorizers import Check, SignatureCheck
from blindpost.crypto.verifying import OneByOne
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import (
    PING,
    SCHK,
    SDEL,
    SNEW,
    TCHK,
    TCRN,
    TDEL,
    TNEW,
    TRPL,
    TVFY,
    Command,
)
from blindpost.wire.ntf.responses import ERR, IDTKN, OK, PONG, TKN
from blindpost.wire.smp.errors import CMD, SYNTAX, UNKNOWN_COMMAND, Code, CommandError
from tests.support.ntf.lines import NtfLine, open_ntf_line
from tests.support.ntf.routers import (
    SMP,
    Device,
    RunningNtf,
    active_device,
    device_token,
    running_ntf,
    some_queue,
)
from tests.support.router.routers import new_key

AUTH = ERR(Code.AUTH)
NO_AUTH, HAS_AUTH = (ERR(CMD(error)) for error in (CommandError.NO_AUTH, CommandError.HAS_AUTH))


@pytest.mark.both_stores
@pytest.mark.claim("NTF-06")
@pytest.mark.parametrize("version", [2, 3])
async def test_each_command_of_a_block_is_answered_separately(ntf: RunningNtf, version: int) -> None:
    device = await active_device(ntf)
    line = await open_ntf_line(ntf, version)
    corr_ids = [bytes((number,)) * 24 for number in range(4)]
    block = [
        line.spoken(TCRN(20), device.token_id, device.key, corr_ids[0]),
        line.spoken(b"TCHK!", device.token_id, device.key, corr_ids[1]),
        line.spoken(TCHK(), device.token_id, new_key(), corr_ids[2]),
        line.spoken(TCRN(0), device.token_id, device.key, corr_ids[3]),
    ]
    line.send(*block[:3])
    heard = {reply.corr_id: reply for reply in await line.hear_many(3)}
    assert heard[corr_ids[0]].response == OK()
    assert heard[corr_ids[1]].response == ERR(UNKNOWN_COMMAND)
    assert heard[corr_ids[2]].response == AUTH
    assert {reply.entity_id for reply in heard.values()} == {device.token_id}
    line.send(block[3])
    assert (await line.hear()).response == OK()


async def test_refused_commands_are_answered_before_executed_ones(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    line = await open_ntf_line(ntf)
    line.send(
        line.spoken(TCRN(20), device.token_id, device.key, b"1"),
        line.spoken(PING(), b"", None, b"2"),
        line.spoken(TCHK(), device.token_id, new_key(), b"3"),
        line.spoken(b"WHAT", b"", None, b"4"),
    )
    assert [reply.corr_id for reply in await line.hear_many(4)] == [b"3", b"4", b"1", b"2"]


async def test_a_token_that_is_deleted_in_a_block_is_gone_for_the_rest_of_it(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    line = await open_ntf_line(ntf)
    line.send(
        line.spoken(TDEL(), device.token_id, device.key),
        line.spoken(TCHK(), device.token_id, device.key),
    )
    assert [reply.response for reply in await line.hear_many(2)] == [OK(), AUTH]


async def test_version_1_has_one_command_to_a_block(ntf: RunningNtf) -> None:
    line = await open_ntf_line(ntf, alpn=None)
    assert line.version == 1
    device = Device(await ntf.connect())
    tnew = TNEW(device.name, device.key.public, device.dh_key.public)
    answer = await line.ask(tnew, b"", device.key)
    assert isinstance(answer, IDTKN)
    assert isinstance(await line.ask(TCHK(), answer.token_id, device.key), TKN)
    assert await line.ask(PING()) == PONG()


@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
async def test_every_kind_of_key_may_speak_for_a_token(ntf: RunningNtf, algorithm: Algorithm) -> None:
    device = await active_device(ntf)
    device = Device(device.client, device_token("cd"), new_key(algorithm))
    await device.register()
    assert await device.ask(TCRN(20)) == OK()
    assert await Device(device.client, key=new_key(algorithm), token_id=device.token_id).ask(TCHK()) == AUTH


def all_commands(device: Device, subscription_id: bytes) -> list[tuple[Command, bytes]]:
    """Every command but PING, with the id that it names."""
    queue = some_queue(77)
    token_id = device.token_id
    return [
        (TNEW(device_token("ef"), device.key.public, device.dh_key.public), b""),
        (TVFY(bytes(32)), token_id),
        (TCHK(), token_id),
        (TRPL(device_token("ef")), token_id),
        (TDEL(), token_id),
        (TCRN(20), token_id),
        (SNEW(token_id, SMP, queue.notifier_id, queue.key.encoded), b""),
        (SCHK(), subscription_id),
        (SDEL(), subscription_id),
    ]


@pytest.mark.both_stores
@pytest.mark.claim("NTF-36")
async def test_nothing_is_done_without_a_signature(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    subscription_id = await device.subscribe(some_queue())
    before, pushed = ntf.router.store.counts(), len(ntf.apple.pushed)
    line = await open_ntf_line(ntf)
    commands = all_commands(device, subscription_id)
    assert len(commands) == 9
    for command, entity_id in commands:
        assert await line.ask(command, entity_id) == NO_AUTH
    await ntf.settled()
    assert ntf.router.store.counts() == before
    assert len(ntf.apple.pushed) == pushed
    assert await device.status() == "ACTIVE"
    assert await device.sub_status(subscription_id) == b"NEW"


@pytest.mark.both_stores
@pytest.mark.claim("NTF-35")
async def test_ping_takes_neither_id_nor_signature(ntf: RunningNtf) -> None:
    line = await open_ntf_line(ntf)
    assert await line.ask(PING()) == PONG()
    assert await line.ask(PING(), b"", new_key()) == HAS_AUTH
    assert await line.ask(PING(), b"e" * 24) == HAS_AUTH
    assert await line.ask(PING()) == PONG()


@pytest.mark.both_stores
@pytest.mark.claim("NTF-38")
async def test_lengths_past_the_end_of_a_block_are_errors_only(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    line = await open_ntf_line(ntf)
    words = [
        b"TNEW TAP\xff" + b"a" * 20,
        b"TVFY \xff" + b"c" * 32,
        b"TVFY \x20" + b"c" * 31,
        b"TRPL AP\x41" + b"a" * 64,
        b"TCRN \x00",
        b"SNEW S\x18" + b"t" * 24 + b"\x05\x04host",
        b"SNEW S\x18" + b"t" * 24 + b"\x00",
        b"SNEW S\xff",
    ]
    for command in words:
        entity_id = b"" if command[1:4] == b"NEW" else device.token_id
        assert await line.ask(command, entity_id, device.key) == ERR(SYNTAX), command
    longest = b"TVFY \xff" + b"c" * 255
    assert await line.ask(longest, device.token_id, device.key) == AUTH
    for payload in (b"\x01\xff\xff", b"\x01\x00\x05\xff", b"\x02\x00\x01", b"\x00", b"\xff" * 510):
        line.stream.send(payload)
        heard = await line.hear()
        assert (heard.corr_id, heard.entity_id, heard.response) == (b"", b"", ERR(Code.BLOCK))
    assert await line.ask(PING()) == PONG()


class Counting(OneByOne):
    """A verifier that keeps what it was given."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def verify_many(self, checks: Sequence[Check]) -> list[bool]:
        self.checks += checks
        return super().verify_many(checks)

    def take(self) -> list[str]:
        """The kinds of the checks since the last call."""
        taken, self.checks = self.checks, []
        return [
            check.key.algorithm.label if isinstance(check, SignatureCheck) else "authenticator"
            for check in taken
        ]


@pytest.mark.both_stores
@pytest.mark.claim("NTF-51")
@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
async def test_nobody_learns_what_exists(tmp_path: Path, algorithm: Algorithm) -> None:
    """Unknown, foreign and badly signed: one answer, one verification of the offered kind each."""
    verifier = Counting()
    async with running_ntf(tmp_path, network=MemoryNetwork(), verifier=verifier) as ntf:
        owner = await active_device(ntf)
        subscription_id = await owner.subscribe(some_queue())
        line = await open_ntf_line(ntf)
        key = new_key(algorithm)
        commands: list[tuple[Command, bytes, bytes]] = [
            *((command, owner.token_id, os.urandom(24)) for command in (TCHK(), TVFY(bytes(32)), TDEL())),
            *((command, subscription_id, os.urandom(24)) for command in (SCHK(), SDEL())),
        ]
        expected = "authenticator" if algorithm is Algorithm.X25519 else algorithm.label
        for command, known, unknown in commands:
            for entity_id in (known, unknown):
                for kind in (key, new_key(algorithm)):
                    verifier.take()
                    assert await line.ask(command, entity_id, kind) == AUTH
                    assert verifier.take() == [expected]
        for token_id in (owner.token_id, os.urandom(24)):
            for queue in (some_queue(), some_queue(2)):
                snew = SNEW(token_id, SMP, queue.notifier_id, queue.key.encoded)
                verifier.take()
                assert await line.ask(snew, b"", key) == AUTH
                assert verifier.take() == [expected]
        assert await owner.sub_status(subscription_id) == b"NEW"


@pytest.mark.claim("NTF-51")
async def test_ids_share_no_prefix(ntf: RunningNtf) -> None:
    client = await ntf.connect()
    ids = []
    for number in range(20):
        device = await active_device(ntf, device_token(f"{number:02x}"), client)
        ids += [device.token_id, await device.subscribe(some_queue(number))]
    assert len({identifier[:4] for identifier in ids}) == len(ids)
    assert {len(identifier) for identifier in ids} == {24}


async def test_a_command_too_long_for_a_block_is_not_sent(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    hosts = tuple(Host(f"{'a' * 50}{number}.example.org") for number in range(10))
    snew = SNEW(device.token_id, Server(hosts, "5223", bytes(32)), b"n" * 24, new_key().encoded)
    with pytest.raises(TooLargeError):
        await device.client.send(snew, b"", device.key)
    assert await device.status() == "ACTIVE"


async def test_a_client_that_does_not_read_does_not_delay_others(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    deaf: NtfLine = await open_ntf_line(ntf)
    deaf.stream.session.pause_reading()
    for _ in range(2000):
        deaf.send(deaf.spoken(PING()))
    assert await device.status() == "ACTIVE"
    deaf.stream.session.resume_reading()
    assert [reply.response for reply in await deaf.hear_many(2000)] == [PONG()] * 2000
