"""Broadcasts: sent in parts, each one transaction that also stores where the part ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial

from blindpost.agent import AgentError, Transaction
from blindpost.bot.metrics import Metrics
from blindpost.chat import Chats, Contact, ContactState, Draft, NotConnectedError
from blindpost.chat.codec.bodies import write_body
from blindpost.chat.codec.content import Content
from blindpost.chat.codec.events import Message, NewMessage
from blindpost.chat.codec.fields import Fields, json_bytes, json_value, written
from blindpost.chat.drafts import ID_SIZE
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass

log = logging.getLogger("blindpost.bot")

BROADCASTS = "bot.broadcasts"
PART = 100
"""Contacts in one transaction."""

Audience = Callable[[Contact], bool]


@dataclass(frozen=True, slots=True)
class Stored:
    """A broadcast as it is stored: up to which contact it went."""

    text: str
    audience: str | None = None
    after: str = ""
    sent: int = 0
    passed: int = 0
    total: int = 0
    done: bool = False


def _bytes(one: Stored) -> bytes:
    return json_bytes(
        written(
            text=one.text,
            audience=one.audience,
            after=one.after,
            sent=one.sent,
            passed=one.passed,
            total=one.total,
            done=one.done,
        )
    )


def _stored(data: bytes) -> Stored:
    fields = Fields(json_value(data))
    return Stored(
        fields.text("text"),
        fields.opt_text("audience"),
        fields.text("after"),
        fields.number("sent"),
        fields.number("passed"),
        fields.number("total"),
        fields.flag("done"),
    )


@dataclass(slots=True)
class Progress:
    """How far a broadcast is: sent to so many; skipped so many, who left or are not in its audience."""

    key: str
    sent: int = 0
    passed: int = 0
    total: int = 0
    done: bool = False
    failure: Exception | None = None
    """Why it stands still until the next start."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    async def changed(self) -> None:
        """Wait for further progress; raises why, if it stands still."""
        self._changed.clear()
        if not self.done and self.failure is None:
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure

    async def finished(self) -> None:
        while not self.done:
            await self.changed()


class Broadcasts:
    """All unfinished broadcasts; after a restart each continues where it stopped."""

    def __init__(
        self, chats: Chats, audiences: dict[str, Audience], metrics: Metrics, now: Callable[[], float]
    ) -> None:
        self._chats = chats
        self._audiences = audiences
        self._metrics = metrics
        self._progress: dict[str, Progress] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def resume(self) -> None:
        """Continue those that were unfinished."""
        for key, data in self._chats.agent.records.scan(BROADCASTS):
            try:
                stored = _stored(data)
            except WireError:
                log.error("the broadcast %s cannot be read, and stands still", key)
                continue
            if not stored.done:
                self._start(key, stored)

    async def begin(self, key: str, text: str, audience: str | None) -> Progress:
        self._wanted(audience)
        if not isinstance(key, str) or not key:
            raise TypeError("a broadcast needs a key, a text by which it is known after a restart")
        write_body(
            [Message(NewMessage(Content(text)), bytes(ID_SIZE))], pq=True
        )  # what does not fit is refused
        data = self._chats.agent.records.get(BROADCASTS, key)
        if data is None:
            stored = Stored(text, audience, total=self._chats.agent.records.count("chat.contacts"))
            await self._chats.agent.transact(lambda tx: tx.put(BROADCASTS, key, _bytes(stored)))
        else:
            stored = _stored(data)
        return self._start(key, stored)

    def _start(self, key: str, stored: Stored) -> Progress:
        known = self._progress.get(key)
        if known is not None:
            return known
        progress = Progress(key)
        _tell(progress, stored)
        self._progress[key] = progress
        if not stored.done:
            task = asyncio.create_task(self._run(key, stored, progress))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return progress

    def _wanted(self, audience: str | None) -> Audience | None:
        """Who gets it; None is everybody."""
        if audience is None:
            return None
        if audience not in self._audiences:
            raise LookupError(f"there is no audience {audience}: register one with bot.audience")
        return self._audiences[audience]

    async def _run(self, key: str, stored: Stored, progress: Progress) -> None:
        """Whoever waits for it learns that it stands still."""
        try:
            await self._go_on(key, stored, progress)
        except asyncio.CancelledError:
            progress.failure = RuntimeError("the bot was closed: the broadcast goes on after its next start")
            raise
        except Exception as error:
            log.exception("the broadcast %s stands still until the next start", key)
            progress.failure = error
        finally:
            progress._changed.set()

    async def _go_on(self, key: str, stored: Stored, progress: Progress) -> None:
        wanted = self._wanted(stored.audience)
        while not stored.done:
            part = list(itertools.islice(self._chats.contacts(after=stored.after), PART))
            stored = await self._chats.agent.lasting(partial(self._part, key, stored, part, wanted))
            _tell(progress, stored)
            await asyncio.sleep(0)

    async def _part(self, key: str, stored: Stored, part: list[Contact], wanted: Audience | None) -> Stored:
        """One part: what is sent and the place where the next one begins are one transaction."""
        if not part:
            return await self._saved(self._chats.draft(), key, replace(stored, done=True))
        draft = self._chats.draft()
        count = 0
        for contact in part:
            if contact.state is ContactState.CONNECTED and (wanted is None or wanted(contact)):
                with contextlib.suppress(NotConnectedError):  # the program deleted the connection itself
                    event = NewMessage(Content(stored.text))
                    draft.send(contact, event, passing=(NotConnectedError, AgentError))
                    count += 1
        sent, passed = stored.sent + count, stored.passed + len(part) - count
        saved = await self._saved(draft, key, replace(stored, after=part[-1].id, sent=sent, passed=passed))
        self._metrics.sent += count
        return saved

    async def _saved(self, draft: Draft, key: str, stored: Stored) -> Stored:
        def change(tx: Transaction) -> None:
            tx.put(BROADCASTS, key, _bytes(stored))

        draft.add(change)
        await self._chats.commit(draft)
        return stored

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _tell(progress: Progress, stored: Stored) -> None:
    progress.sent, progress.passed = stored.sent, stored.passed
    progress.total, progress.done = stored.total, stored.done
    progress._changed.set()
