"""The thread that makes commits durable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from blindpost.agent.store import syncing
from blindpost.agent.store.syncing import SyncThread

LONG_S = 30.0


@pytest.fixture
def thread() -> Iterator[SyncThread]:
    thread = SyncThread()
    yield thread
    thread.shutdown()


async def done(thread: SyncThread, work: object) -> object:
    return await asyncio.get_running_loop().run_in_executor(thread, work)  # type: ignore[arg-type]


async def test_results_and_failures_come_back_in_order(thread: SyncThread) -> None:
    where: list[int] = []

    def work(number: int) -> int:
        where.append(threading.get_ident())
        if number == 1:
            raise OSError("the disk is gone")
        return number

    jobs = [asyncio.get_running_loop().run_in_executor(thread, work, number) for number in range(3)]
    first, second, third = await asyncio.gather(*jobs, return_exceptions=True)
    assert (first, third) == (0, 2)
    assert isinstance(second, OSError)
    assert len(set(where)) == 1
    assert threading.get_ident() not in where


async def test_a_job_is_taken_before_the_loop_goes_on(
    thread: SyncThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often; a thread that does not get its turn holds the loop up for a moment only."""
    let = threading.Event()
    first = asyncio.get_running_loop().run_in_executor(thread, let.wait, LONG_S)
    second = asyncio.get_running_loop().run_in_executor(thread, int)
    assert not thread._jobs.empty()
    let.set()
    assert (await first, await second) == (True, 0)
    monkeypatch.setattr(syncing, "BEGUN_S", LONG_S)
    for _ in range(100):
        job = asyncio.get_running_loop().run_in_executor(thread, int)
        assert thread._jobs.empty()
        await job


async def test_a_thread_that_cannot_be_started_is_tried_again(
    thread: SyncThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start"):
                await done(thread, int)
    assert await done(thread, int) == 0


async def test_nobody_has_to_wait_for_the_answer(thread: SyncThread) -> None:
    job = asyncio.get_running_loop().run_in_executor(thread, int)
    job.cancel()
    assert await done(thread, int) == 0


def test_the_end_of_the_thread_comes_after_all_that_it_was_given() -> None:
    thread, let = SyncThread(), threading.Event()
    seen: list[int] = []

    def work(number: int) -> None:
        let.wait(LONG_S)
        seen.append(number)

    async def main() -> None:
        for number in range(3):
            asyncio.get_running_loop().run_in_executor(thread, work, number)
        asyncio.get_running_loop().call_soon(let.set)

    asyncio.run(main())
    running = thread._thread
    assert running is not None
    thread.shutdown()
    assert seen == [0, 1, 2], "its loop was closed meanwhile"
    thread.shutdown()
    assert not running.is_alive()
