"""A bot as a program: its link in the terminal, signals, and its own thread for non-async programs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from blindpost.agent import AgentError
from blindpost.chat import Contact, Conversation
from blindpost.store.sqlite import UNUSABLE

if TYPE_CHECKING:
    from blindpost.bot.bot import Bot

T = TypeVar("T")

ENDING_S = 10.0
"""How long whoever asks too late waits for the bot's end."""


def run(bot: Bot) -> None:
    """Run until Ctrl-C or SIGTERM. SIGHUP lets running handlers end, then restarts with the new code."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        anew = asyncio.run(_until_told(bot))
    except UNUSABLE as error:
        sys.exit(f"{bot.store}: {error}.")
    except AgentError as error:
        sys.exit(f"{bot.name} cannot go on: {error}. {error.remedy}")
    if anew:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *_program()])  # noqa: S606  # this same program


def _program() -> list[str]:
    """How this program was started."""
    return sys.orig_argv[1:]


async def _until_told(bot: Bot) -> bool:
    """Whether to restart."""
    ended, anew = asyncio.Event(), False

    def reload() -> None:
        nonlocal anew
        anew = True
        ended.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, reload)
    async with bot.open() as link:
        show(bot.name, link)
        await _until(ended, bot)
    return anew


async def _until(ended: asyncio.Event, bot: Bot) -> None:
    """Wait for the end; raises if the bot cannot go on before."""
    assert bot.broken is not None
    waiting = asyncio.create_task(ended.wait())
    waits: list[asyncio.Future[Any]] = [waiting, bot.broken]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if bot.broken.done():
        bot.broken.result()


def show(name: str, link: str) -> None:
    """The link, and in a terminal a QR code of it."""
    print(f"{name} is at\n{link}", flush=True)
    if sys.stdout.isatty():
        import segno

        segno.make(link).terminal(compact=True)


class InThread:
    """A bot in its own thread, for programs that are not async: `with InThread(bot) as running: ...`.

    If the bot cannot go on, whatever is asked of it raises the reason, and so does the end of the block.
    """

    def __init__(self, bot: Bot) -> None:
        self._bot = bot
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._asked: dict[concurrent.futures.Future[Any], Coroutine[Any, Any, Any]] = {}
        """What is under way; nothing is added once the bot has ended."""
        self._has_ended = False
        self._thread = threading.Thread(target=self._main, name="bot", daemon=True)

    @property
    def link(self) -> str:
        if self._thread.ident is None:
            raise self._not_running()
        return self._ready.result()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._end is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended by itself
                self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        failure = self._failure
        if failure is None or failure is error:
            return
        if error is None:
            raise failure
        error.add_note(f"The bot had ended before: {failure}")

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._failure = error
            if not self._ready.done():
                self._ready.set_exception(error)
        with self._lock:
            self._has_ended = True
            asked, self._asked = self._asked, {}
        for future, work in asked.items():
            # The loop ended before it came to this.
            if not future.done():
                work.close()
                future.set_exception(self._not_running())

    async def _run(self) -> None:
        async with self._bot.open() as link:
            self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
            self._ready.set_result(link)
            await _until(self._end, self._bot)

    def _not_running(self) -> BaseException:
        return self._failure or RuntimeError(
            "the bot is not running: ask it inside of `with InThread(bot) as running:`"
        )

    def _result(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "the bot cannot wait for itself: an async handler awaits `bot.tell(...)` instead"
            )
        future = self._begun(work)
        if future is not None:
            try:
                return future.result()
            except concurrent.futures.CancelledError:
                pass
            finally:
                self._asked.pop(future, None)
        work.close()
        if self._thread.ident is not None:
            self._thread.join(ENDING_S)  # then the reason is known
        raise self._not_running()

    def _begun(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T] | None:
        """None if the bot does not run, or ends just now."""
        with self._lock, contextlib.suppress(RuntimeError):
            if self._loop is not None and not self._has_ended:
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
                self._asked[future] = work
                return future
        return None

    def tell(self, to: Conversation | str, text: str, *, key: str | None = None) -> None:
        """As `Bot.tell`; when it returns the message is stored."""
        self._result(self._bot.tell(to, text, key=key))

    def contacts(self) -> list[Contact]:
        async def listed() -> list[Contact]:
            return list(self._bot.contacts())

        return self._result(listed())

    def broadcast(self, text: str, *, key: str, audience: str | None = None) -> int:
        """As `Bot.broadcast`, waiting for its end; how many it went to."""

        async def whole() -> int:
            progress = await self._bot.broadcast(text, key=key, audience=audience)
            await progress.finished()
            return progress.sent

        return self._result(whole())
