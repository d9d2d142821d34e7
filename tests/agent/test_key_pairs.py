"""KEM key pairs made ahead: the pool of each agent, and the one process that makes them for all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from blindpost.agent.work import key_pairs
from blindpost.agent.work.key_pairs import PAIR_SIZE, VAIN_MAX, WORKER, KemKeyPool, KemWorker
from blindpost.crypto.kem import KemKeyPair, decapsulate, encapsulate
from blindpost.wire.e2e import KEM_PUBLIC_KEY_SIZE
from tests.support.wire.vectors import vectors

PAIRS = [
    KemKeyPair(bytes.fromhex(entry["pk"]), bytes.fromhex(entry["sk"]))
    for entry in vectors("sntrup761.json")
    if "encapsulations" in entry
]


def check_agreement(pair: KemKeyPair) -> None:
    made = encapsulate(pair.public_key)
    assert decapsulate(pair, made.ciphertext) == made.secret


def children(parent: int | None = None) -> set[int]:
    """Live processes that we, or another parent, started, zombies included."""
    found = set()
    parent = os.getpid() if parent is None else parent
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(after_name[1]) == parent:
            found.add(int(status.parent.name))
    return found


async def test_pool_makes_distinct_pairs_in_one_process_that_ends_with_it() -> None:
    before = children()
    async with KemKeyPool(size=2) as pool:
        pairs = [await pool.take() for _ in range(5)]
        (worker,) = children() - before
        assert worker != os.getpid()
    assert children() == before
    assert len({pair.public_key for pair in pairs}) == 5
    check_agreement(pairs[-1])


class Counted:
    """Hands out recorded pairs and counts them."""

    def __init__(self) -> None:
        self.made: list[KemKeyPair] = []
        self.closed = False

    async def make(self) -> KemKeyPair:
        self.made.append(PAIRS[len(self.made) % len(PAIRS)])
        return self.made[-1]

    async def close(self) -> None:
        self.closed = True


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_pool_is_bounded_and_refills() -> None:
    maker = Counted()
    async with KemKeyPool(size=2, maker=maker) as pool:
        await turns()
        assert len(maker.made) == 3, "two ready and one in hand"
        assert await pool.take() == maker.made[0]
        await turns()
        assert len(maker.made) == 4
        assert await pool.take() == maker.made[1]
    assert maker.closed


async def test_pool_survives_the_death_of_its_worker() -> None:
    before = children()
    async with KemKeyPool(size=1) as pool:
        await pool.take()
        for _ in range(VAIN_MAX + 1):
            (worker,) = children() - before
            os.kill(worker, signal.SIGKILL)
            pairs = [await pool.take() for _ in range(4)]
            assert len({pair.public_key for pair in pairs}) == 4
            assert worker not in children()
    assert children() == before


async def test_a_process_that_stands_still_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    before, maker = children(), KemWorker()
    first = await maker.make()
    (worker,) = children() - before
    os.kill(worker, signal.SIGSTOP)
    monkeypatch.setattr(key_pairs, "PATIENCE_S", 0.01)
    check_agreement(second := await maker.make())
    assert children() == before
    monkeypatch.undo()
    assert len({pair.public_key for pair in (first, second, await maker.make())}) == 3
    assert children() != before
    await maker.close()
    assert children() == before


async def test_pool_without_a_worker_makes_pairs_itself() -> None:
    async with KemKeyPool(size=1, maker=KemWorker(executable="/nonexistent/python")) as pool:
        check_agreement(await pool.take())


@pytest.mark.parametrize("name", [None, "", "frozen", "archive"])
async def test_where_no_file_can_be_run_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """A program packed with Python into one file would start itself, and again from there; in an archive
    there is no file; and Python may be inside of something else."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("it was started")

    if name == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif name == "archive":
        monkeypatch.setattr(key_pairs, "WORKER", Path("archive.zip/kem_worker.py"))
    else:
        monkeypatch.setattr(sys, "executable", name)
    monkeypatch.setattr(subprocess, "Popen", started)
    async with KemKeyPool(size=1) as pool:
        check_agreement(await pool.take())


async def test_a_process_that_ends_at_once_is_not_started_for_each_pair(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    starts, python = tmp_path / "starts", tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho >> {starts}\n")
    python.chmod(0o700)
    async with KemKeyPool(size=1, maker=KemWorker(str(python))) as pool:
        for _ in range(VAIN_MAX + 2):
            check_agreement(await pool.take())
    assert len(starts.read_text()) == VAIN_MAX
    assert "KEM key pairs are made in this process" in caplog.text


async def test_pool_ends_at_once_while_pairs_are_wanted() -> None:
    before = children()
    pool = KemKeyPool(size=1)
    async with pool:
        waiting = [asyncio.create_task(pool.take()) for _ in range(50)]
        await waiting[0]
    assert children() == before
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[-1], RuntimeError)
    with pytest.raises(RuntimeError):
        await pool.take()


async def test_failure_of_the_maker_reaches_the_taker() -> None:
    class Broken(Counted):
        async def make(self) -> KemKeyPair:
            raise MemoryError

    async with KemKeyPool(maker=Broken()) as pool:
        with pytest.raises(RuntimeError) as raised:
            await pool.take()
    assert isinstance(raised.value.__cause__, MemoryError)


async def test_cancelled_taker_leaves_the_pool_usable() -> None:
    maker = Counted()
    async with KemKeyPool(size=1, maker=maker) as pool:
        taker = asyncio.create_task(pool.take())
        await asyncio.sleep(0)
        taker.cancel()
        await asyncio.wait([taker])
        assert taker.cancelled()
        assert await pool.take() in maker.made


async def test_source_holds_one_pair_and_takes_it_back_if_unused() -> None:
    maker = Counted()
    async with KemKeyPool(size=1, maker=maker) as pool:
        for _ in range(10):
            async with pool.source():
                await turns()
        assert len(maker.made) == 3, "sources that are not used cost nothing"
        async with pool.source() as source:
            pair = source.key_pair()
            assert pair == maker.made[0]
            made = source.encapsulate(pair.public_key)
            assert decapsulate(pair, made.ciphertext) == made.secret
            assert source.key_pair() not in maker.made, "a second one is made on the spot"
        assert await pool.take() == maker.made[1], "a used pair is gone"


def test_worker_answers_each_byte_with_a_pair_and_ends_with_its_input() -> None:
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=b"..",
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert len(done.stdout) == 2 * PAIR_SIZE
    first, second = done.stdout[:PAIR_SIZE], done.stdout[PAIR_SIZE:]
    assert first != second
    check_agreement(KemKeyPair(first[:KEM_PUBLIC_KEY_SIZE], first[KEM_PUBLIC_KEY_SIZE:]))


def test_worker_ends_silently_when_nobody_reads_its_answer() -> None:
    read_end, write_end = os.pipe()
    worker = subprocess.Popen(
        [sys.executable, str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=write_end,
        stderr=subprocess.PIPE,
    )
    os.close(read_end)
    os.close(write_end)
    _, said = worker.communicate(b".", timeout=60)
    assert (worker.returncode, said) == (0, b"")


POOL_THAT_NEVER_ENDS = """
import asyncio
from blindpost.agent.work.key_pairs import KemKeyPool

async def main():
    async with KemKeyPool() as pool:
        await pool.take()
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_worker_does_not_outlive_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", POOL_THAT_NEVER_ENDS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (worker,) = children(parent.pid)
        end = os.pidfd_open(worker)
        try:
            parent.kill()
            parent.wait()
            ended, _, _ = select.select([end], [], [], 60)
            assert ended
        finally:
            os.close(end)


async def test_twenty_pools_share_one_process_that_ends_with_the_last() -> None:
    before = children()
    async with contextlib.AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(KemKeyPool(size=1)) for _ in range(20)]
        pairs = [await pool.take() for pool in pools]
        (worker,) = children() - before
        for pool in pools[1:]:
            await pool.close()
        assert children() - before == {worker}, "one of them still needs it"
        await pools[0].take()
    assert children() == before
    assert len({pair.public_key for pair in pairs}) == 20


async def test_event_loops_in_two_threads_share_the_process() -> None:
    before = children()
    found: set[int] = set()

    async def use() -> None:
        async with KemKeyPool(size=1) as pool:
            await pool.take()
            found.update(children() - before)

    async with KemKeyPool(size=1) as pool:
        await pool.take()
        thread = threading.Thread(target=lambda: asyncio.run(use()))
        thread.start()
        await asyncio.to_thread(thread.join)
        await pool.take()
        assert children() - before == found
        assert len(found) == 1
    assert children() == before


TAKES_ONE = """
import asyncio, os, sys
from blindpost.agent.work.key_pairs import KemWorker

async def main():
    worker = KemWorker()
    await worker.make()
    await worker.close()

sys.path[:0] = sys.argv[1:]
asyncio.run(main())
print("made")
"""


@pytest.mark.parametrize("trusted", [False, True], ids=["safe path", "folder on the program's path"])
@pytest.mark.parametrize("module", ["contextlib", "signal", "hashlib"])
def test_worker_imports_no_module_from_the_working_directory(
    tmp_path: Path, module: str, trusted: bool
) -> None:
    told = tmp_path / "imported"
    (tmp_path / f"{module}.py").write_text(f"open({str(told)!r}, 'w').close()\n")
    folders = [str(tmp_path)] if trusted else []
    done = subprocess.run(
        [sys.executable, "-P", "-c", TAKES_ONE, *folders],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"made\n", done.stderr
    assert not told.exists(), "the worker imported it"
