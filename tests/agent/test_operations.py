"""Suspension: kinds of work end in order, late work is left behind, and everything resumes afterwards."""

from __future__ import annotations

import asyncio

import pytest

from blindpost.agent.work.suspension import Operation, Operations
from blindpost.testing.clock import run_virtual


async def work(operations: Operations, log: list[str], name: str, *kinds: Operation, seconds: float) -> None:
    """Enter the first kind, and from inside it, after a while, the others."""
    async with operations.under_way(kinds[0]):
        log.append(f"{name} starts")
        await asyncio.sleep(seconds)
        for kind in kinds[1:]:
            async with operations.under_way(kind):
                log.append(f"{name} needs {kind.value}")
        log.append(f"{name} ends")


def test_kinds_end_in_order_and_work_under_way_is_finished() -> None:
    async def main() -> None:
        operations, log = Operations(), list[str]()
        receiving = work(operations, log, "one", Operation.RECEIVING, Operation.SENDING, seconds=3)
        delivery = work(operations, log, "two", Operation.DELIVERY, Operation.DATABASE, seconds=5)
        running = [asyncio.create_task(receiving), asyncio.create_task(delivery)]
        await asyncio.sleep(1)
        suspending = asyncio.create_task(operations.suspend(60))
        await asyncio.sleep(1)
        assert not operations.is_open(Operation.RECEIVING)
        assert operations.is_open(Operation.DELIVERY), "receiving has not ended"
        late = work(operations, log, "late", Operation.RECEIVING, seconds=1)
        running.append(asyncio.create_task(late))
        assert await suspending
        assert operations.suspended
        assert asyncio.get_running_loop().time() == 5
        assert log == [
            "one starts",
            "two starts",
            "one needs sending",
            "one ends",
            "two needs database",
            "two ends",
        ]
        operations.resume()
        await asyncio.gather(*running)
        assert log[6:] == ["late starts", "late ends"]
        assert not operations.suspended

    run_virtual(main())


def test_work_that_does_not_end_in_time_is_left_behind() -> None:
    async def main() -> None:
        operations, log = Operations(), list[str]()
        stuck = work(operations, log, "stuck", Operation.DELIVERY, Operation.SENDING, seconds=100)
        running = asyncio.create_task(stuck)
        await asyncio.sleep(1)
        assert not await operations.suspend(10)
        assert asyncio.get_running_loop().time() == 11
        assert not any(operations.is_open(kind) for kind in Operation)
        await asyncio.sleep(200)
        assert log == ["stuck starts"], "what it needs is closed"
        operations.resume()
        await running
        assert log == ["stuck starts", "stuck needs sending", "stuck ends"]

    run_virtual(main())


def test_all_work_of_a_kind_is_waited_for() -> None:
    async def main() -> None:
        operations, log = Operations(), list[str]()
        works = [work(operations, log, f"of {s} s", Operation.DELIVERY, seconds=s) for s in (1, 3, 2)]
        running = [asyncio.create_task(each) for each in works]
        await asyncio.sleep(0.5)
        assert await operations.suspend(10)
        assert asyncio.get_running_loop().time() == 3
        await asyncio.gather(*running)

    run_virtual(main())


def test_failed_work_does_not_block_suspension() -> None:
    async def main() -> None:
        operations = Operations()
        with pytest.raises(ValueError, match="broken"):
            async with operations.under_way(Operation.SENDING):
                raise ValueError("broken")
        assert await operations.suspend(0.5)
        assert asyncio.get_running_loop().time() == 0

    run_virtual(main())


@pytest.mark.parametrize("kind", Operation)
def test_what_is_resumed_while_it_is_suspended_goes_on(kind: Operation) -> None:
    """At once, and for good: neither the end of what was under way nor that of the time closes anything."""

    async def main() -> None:
        operations, log = Operations(), list[str]()
        running = asyncio.create_task(work(operations, log, "slow", kind, seconds=5))
        await asyncio.sleep(1)
        suspending = asyncio.create_task(operations.suspend(10))
        await asyncio.sleep(1)
        assert not operations.is_open(kind)
        operations.resume()
        assert not await suspending
        assert asyncio.get_running_loop().time() == 2
        assert all(operations.is_open(each) for each in Operation)
        await running
        await asyncio.sleep(60)
        assert all(operations.is_open(each) for each in Operation)
        assert await operations.suspend(10), "it can be suspended as before"
        operations.resume()

    run_virtual(main())


@pytest.mark.parametrize("kind", Operation)
def test_what_is_resumed_in_the_moment_in_which_work_ends_goes_on(kind: Operation) -> None:
    async def main() -> None:
        operations = Operations()
        async with operations.under_way(kind):
            suspending = asyncio.create_task(operations.suspend(10))
            await asyncio.sleep(1)
        operations.resume()
        assert not await suspending
        assert all(operations.is_open(each) for each in Operation)

    run_virtual(main())


def test_what_was_asked_before_a_resumption_does_not_happen_after_it() -> None:
    async def main() -> None:
        operations, log = Operations(), list[str]()
        running = asyncio.create_task(work(operations, log, "slow", Operation.SENDING, seconds=5))
        await asyncio.sleep(1)
        twice = [asyncio.create_task(operations.suspend(10)) for _ in range(2)]
        await asyncio.sleep(1)
        operations.resume()
        assert await asyncio.gather(*twice) == [False, False]
        assert not operations.suspended
        assert asyncio.get_running_loop().time() == 2
        await running

    run_virtual(main())


def test_a_resumption_takes_effect_once() -> None:
    """What is asked after it is done."""

    async def main() -> None:
        operations = Operations()
        operations.resume()
        assert await operations.suspend(10)
        operations.resume()
        operations.resume()
        assert await operations.suspend(10)
        assert operations.suspended

    run_virtual(main())


def test_what_was_held_back_does_not_start_between_two_suspensions() -> None:
    """It was told that it may, and before it could it was closed again."""

    async def main() -> None:
        operations, log = Operations(), list[str]()
        assert await operations.suspend(10)
        running = asyncio.create_task(work(operations, log, "held", Operation.DELIVERY, seconds=0))
        await asyncio.sleep(1)
        operations.resume()
        assert await operations.suspend(10)
        await asyncio.sleep(1)
        assert log == []
        operations.resume()
        await running
        assert log == ["held starts", "held ends"]

    run_virtual(main())
