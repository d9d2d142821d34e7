"""OK means that the disk has it, verified from outside by the router's system calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blindpost.wire.smp.commands import ACK, DEL, KEY, SUB
from blindpost.wire.smp.responses import MSG, OK, SOK
from blindpost.wire.smp.values import SubMode
from tests.support.router.routers import a_message, new_queue, pushed
from tests.support.router.traces import Trace, read_trace, synced_descriptors, tracer
from tests.support.serving.processes import router_in_process

MESSAGES = 10
ALONE = 2 + MESSAGES + MESSAGES + 1
"""Commands below that change something and are sent one by one, each after the answer to the one before."""


async def traced(folder: Path, *edits: tuple[str, str]) -> Trace:
    """What a router does for a queue's whole life, and for many senders at once."""
    file = folder / "trace"
    async with router_in_process(folder / "router", *edits, wrapper=tracer(file)) as router:
        await router.start()
        synced, pid = synced_descriptors(router), router.pid
        async with await router.connect() as client:
            queue = await new_queue(client, sub_mode=SubMode.ONLY_CREATE)
            assert await client.send(KEY(queue.sender_key.public), queue.recipient_id, queue.key) == OK()
            for _ in range(MESSAGES):
                assert await client.send(a_message(bytes(9000)), queue.sender_id, queue.sender_key) == OK()
            assert await client.send(SUB(), queue.recipient_id, queue.key) == SOK(None)
            message = (await pushed(client)).response
            while isinstance(message, MSG):
                message = await client.send(ACK(message.msg_id), queue.recipient_id, queue.key)
            assert await client.send(DEL(), queue.recipient_id, queue.key) == OK()
        clients = [await router.connect() for _ in range(4)]
        queues = [await new_queue(client, secured=True) for client in clients]
        sends = [
            client.send(a_message(bytes(12_000)), queue.sender_id, queue.sender_key)
            for client, queue in zip(clients, queues, strict=True)
            for _ in range(MESSAGES)
        ]
        assert await asyncio.gather(*sends) == [OK()] * len(sends)
        await router.end()
        for client in clients:
            await client.wait_closed()
    return read_trace(file, pid, synced)


@pytest.mark.one_process
async def test_nothing_is_answered_before_the_disk_has_it(tmp_path: Path) -> None:
    """Pages are written and synced, then the new root through a syncing descriptor, then the answer."""
    trace = await traced(tmp_path)
    assert trace.early == []
    assert trace.answers > ALONE
    assert trace.syncs >= ALONE
    assert trace.commits >= ALONE
    assert trace.commits == trace.syncs


@pytest.mark.one_process
async def test_durability_os_leaves_syncing_to_the_system(tmp_path: Path) -> None:
    trace = await traced(tmp_path, ('durability = "full"', 'durability = "os"'))
    assert (trace.syncs, trace.commits) == (0, 0)
    assert len(trace.early) >= ALONE


def test_a_trace_that_answers_too_early_is_noticed(tmp_path: Path) -> None:
    lines = [
        "7 pwrite64(8</r/store/data.mdb>, ...) = 4096",
        "7 fdatasync(8</r/store/data.mdb> <unfinished ...>",
        "9 sendto(12<TCP:[127.0.0.1:1->127.0.0.1:2]>, ...) = 16406",
        "7 <... fdatasync resumed>)          = 0",
        "7 pwrite64(9</r/store/data.mdb>, ...) = 120",
        "7 sendto(12<TCP:[127.0.0.1:1->127.0.0.1:2]>, ...) = 16406",
        "7 sendto(12<TCP:[127.0.0.1:1->127.0.0.1:2]>, ...) = 24",
    ]
    file = tmp_path / "trace"
    file.write_text("\n".join(lines))
    assert read_trace(file, 7, {9}) == Trace(syncs=1, commits=1, answers=1)
    for early in (4, 5):
        file.write_text("\n".join([lines[0], lines[early], *lines[1:]]))
        assert len(read_trace(file, 7, {9}).early) == 1
    file.write_text("\n".join(line.replace("= 0", "= -1 EIO") for line in lines))
    assert len(read_trace(file, 7, {9}).early) == 2


def test_a_missing_tracer_skips_loudly_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BLINDPOST_REQUIRE_STRACE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="NOT RUN"):
        tracer(tmp_path / "trace")
    monkeypatch.setenv("BLINDPOST_REQUIRE_STRACE", "1")
    with pytest.raises(pytest.fail.Exception, match="NOT RUN"):
        tracer(tmp_path / "trace")
