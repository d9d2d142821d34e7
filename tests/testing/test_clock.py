"""The virtual clock: long waits take no time and keep their order."""

from __future__ import annotations

import asyncio
import time

import pytest

from blindpost.testing.clock import NothingWillHappenError, run_virtual


def test_a_year_passes_at_once() -> None:
    async def main() -> float:
        await asyncio.sleep(31_536_000)
        return asyncio.get_running_loop().time()

    before = time.monotonic()
    assert run_virtual(main()) == pytest.approx(31_536_000)
    assert time.monotonic() - before < 60


def test_timers_run_in_their_order() -> None:
    async def main() -> list[tuple[float, str]]:
        seen: list[tuple[float, str]] = []
        loop = asyncio.get_running_loop()

        async def note(delay: float, name: str) -> None:
            await asyncio.sleep(delay)
            seen.append((loop.time(), name))

        await asyncio.gather(note(3, "c"), note(1, "a"), note(2, "b"))
        return seen

    assert run_virtual(main()) == [(1.0, "a"), (2.0, "b"), (3.0, "c")]


def test_time_stands_still_while_work_is_ready() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_timeouts_work() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(45):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 45.0


def test_waiting_for_nothing_is_reported() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingWillHappenError):
        run_virtual(main())


def test_work_for_threads_runs_in_place() -> None:
    async def main() -> str:
        def fail() -> None:
            raise ValueError("in place")

        with pytest.raises(ValueError, match="in place"):
            await asyncio.to_thread(fail)
        return await asyncio.get_running_loop().run_in_executor(None, "done".upper)

    assert run_virtual(main()) == "DONE"
