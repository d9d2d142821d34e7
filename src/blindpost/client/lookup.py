"""Name lookup, isolated: a slow name server delays only the callers that asked for its names.

The system's resolver blocks and cannot be stopped, so each question has a thread. Names that were never
reached share few of them, and those below one domain fewer still; names that are known have their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import AsyncIterator, Callable

from blindpost.wire.frozen import dataclass

Resolve = Callable[[str], list[str]]
"""The addresses of a name, or `OSError`; it may block."""

_LABEL_MAX = 63
_NAME_MAX = 253


@dataclass(frozen=True, slots=True)
class LookupSizes:
    """How many questions are asked at once."""

    strangers: int = 32
    """About names that were never reached."""
    domain: int = 4
    """About such names below one domain."""
    known: int = 16
    """About names that were reached before."""
    timeout_s: float = 10.0


def is_name(host: str) -> bool:
    """Whether a host can have this name at all; resolvers do not even look for others."""
    labels = host.removesuffix(".").split(".")
    return (
        host.isascii()
        and len(host) <= _NAME_MAX
        and all(0 < len(label) <= _LABEL_MAX for label in labels)
        and all(character.isalnum() or character in "-_" for label in labels for character in label)
    )


def literal(host: str) -> str | None:
    """The address that a host is written as, if it is no name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def system_resolve(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(slots=True)
class _Places:
    free: asyncio.Semaphore
    wanted: int = 0


class Lookups:
    """All questions of one process."""

    def __init__(self, resolve: Resolve = system_resolve, sizes: LookupSizes | None = None) -> None:
        self._resolve = resolve
        self._sizes = sizes or LookupSizes()
        self._asked: dict[str, asyncio.Task[list[str]]] = {}
        self._strangers = asyncio.Semaphore(self._sizes.strangers)
        self._known = asyncio.Semaphore(self._sizes.known)
        self._domains: dict[str, _Places] = {}

    async def find(self, host: str, *, is_known: bool) -> list[str]:
        """The addresses of a host, or `OSError`; concurrent callers for one name share the answer."""
        written = literal(host)
        if written is not None:
            return [written]
        if not is_name(host):
            raise OSError("no host can have this name")
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = asyncio.create_task(self._ask(host, is_known))
            asked.add_done_callback(lambda done: self._done(host, done))
        try:
            async with asyncio.timeout(self._sizes.timeout_s):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise OSError("the name could not be looked up in time") from None

    def _done(self, host: str, done: asyncio.Task[list[str]]) -> None:
        del self._asked[host]
        if not done.cancelled():
            done.exception()  # retrieved: the caller may have given up

    async def _ask(self, host: str, is_known: bool) -> list[str]:
        async with contextlib.AsyncExitStack() as held:
            # Only waiting has a limit here: a question that was asked keeps its place until it is answered.
            async with asyncio.timeout(self._sizes.timeout_s):
                if is_known:
                    await held.enter_async_context(self._known)
                else:
                    await held.enter_async_context(self._place(host))
                    await held.enter_async_context(self._strangers)
            return await self._answer(host)

    @contextlib.asynccontextmanager
    async def _place(self, host: str) -> AsyncIterator[None]:
        """One of the few places for names below the domain of this one."""
        domain = ".".join(host.lower().removesuffix(".").split(".")[-2:])
        places = self._domains.setdefault(domain, _Places(asyncio.Semaphore(self._sizes.domain)))
        places.wanted += 1
        try:
            async with places.free:
                yield
        finally:
            places.wanted -= 1
            if not places.wanted:
                del self._domains[domain]

    async def _answer(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def answered(found: list[str] | OSError) -> None:
            if answer.done():
                return
            if isinstance(found, OSError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def ask() -> None:
            found: list[str] | OSError
            try:
                found = self._resolve(host)
            except OSError as error:
                found = error
            except Exception as error:
                found = OSError(f"the name could not be looked up: {type(error).__name__}")
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(answered, found)

        # Not from a pool: exiting the program would wait for it.
        threading.Thread(target=ask, name="lookup", daemon=True).start()
        return await answer
