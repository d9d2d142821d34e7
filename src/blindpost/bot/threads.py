"""Threads for handlers that block. Name lookups of the agent do not wait behind them, nor does the end of the
program: a handler that never ends would keep a pool's thread, and whoever waits for the pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads(Executor):
    """A new thread for each call; nobody waits for it when the program ends."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except StopIteration as error:
                future.set_exception(RuntimeError(f"a handler raised {error!r}"))  # no coroutine could
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="blindpost handler", daemon=True).start()
        return future


THREADS = Threads()
