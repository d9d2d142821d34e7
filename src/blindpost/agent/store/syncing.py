"""A thread that makes what was committed durable, one job after the other.

Messages of one connection wait for each of its answers. So a job is begun before the loop goes on, which
would keep the interpreter to itself for a while, and its answer comes to the loop directly: a pool of threads
takes twice as long to say the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from queue import SimpleQueue
from typing import Any

BEGUN_S = 0.0005
"""The loop waits no longer than this for a thread that does not get its turn."""


class SyncThread(Executor):
    """Begun with its first job."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._waits = threading.Lock()
        """Held while the thread has not begun what it was given last."""
        self._thread: threading.Thread | None = None

    def submit(  # type: ignore[override]  # a future of the loop, which takes it as it is
        self, work: Callable[..., object], /, *args: Any, **kwargs: Any
    ) -> asyncio.Future[object]:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="sync", daemon=True)
            thread.start()  # `RuntimeError` where the machine has no thread for us
            self._thread = thread
        done = asyncio.get_running_loop().create_future()
        self._waits.acquire(blocking=False)
        self._jobs.put(partial(_do, partial(work, *args, **kwargs), done))
        self._waits.acquire(timeout=BEGUN_S)
        return done

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._waits.locked():
                self._waits.release()
            job()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait until all that was submitted is done."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()


def _do(work: Callable[[], object], done: asyncio.Future[object]) -> None:
    try:
        tell: Callable[[], None] = partial(_end, done, work(), None)
    except Exception as error:
        tell = partial(_end, done, None, error)
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        done.get_loop().call_soon_threadsafe(tell)


def _end(done: asyncio.Future[object], result: object, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
