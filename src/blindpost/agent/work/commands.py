"""Workers that run stored commands: one for each connection and router, in order, each command once.

A command that fails for now is tried again; one that fails for good is reported and removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from blindpost.agent.errors import AgentError, CriticalError, InternalError, NetworkError
from blindpost.agent.events import Failed, JoinDelayed
from blindpost.agent.model import ConnId
from blindpost.agent.store import commands, connections
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.retries import MESSAGE_FAST, Retry, Told
from blindpost.agent.work.suspension import Operation
from blindpost.agent.work.transactions import CommandKey
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError

log = logging.getLogger(__name__)

JOIN = "JOIN"

CommandHandler = Callable[[StoredCommand], Awaitable[None]]
"""Runs one command under the lock of its connection. It raises an `AgentError`: a temporary one is tried
again, another one is reported and ends the command. It must be able to run again after a crash."""


class CommandWorkers:
    """A worker lives as long as it has something to do."""

    def __init__(
        self,
        ground: Ground,
        handlers: Mapping[str, CommandHandler],
        end_themselves: frozenset[str] = frozenset(),
    ) -> None:
        """`end_themselves`: commands whose handlers delete them, together with what they change."""
        self._end_themselves = end_themselves
        self._ground = ground
        self._handlers = handlers
        self.tasks: dict[CommandKey, asyncio.Task[None]] = {}
        self._again: set[CommandKey] = set()
        ground.work.commands.listen(self.wake)

    def wake(self, key: CommandKey) -> None:
        if key in self.tasks:
            self._again.add(key)
            return
        self.tasks[key] = self._ground.spawn(self._work(key))

    def resume(self) -> None:
        """Continue all stored work."""
        for key in commands.waiting(self._ground.store.reading):
            self.wake(key)

    async def _work(self, key: CommandKey) -> None:
        try:
            await self._ground.lasting(partial(self._run_all, key))
        finally:
            del self.tasks[key]
            self._again.discard(key)

    async def _run_all(self, key: CommandKey) -> None:
        retry = Retry.first(MESSAGE_FAST)
        while True:
            self._again.discard(key)
            command = self._next(*key)
            if command is not None and not await self._ground.store.is_durable():
                # The end of another one had no room on the disk: that one would be done again at once.
                await asyncio.sleep(retry.delay_s)
                retry = retry.next()
                continue
            if command is None or not self._is_there(command):
                if key in self._again:
                    continue
                return
            await self._run(command)
            if not command.others and key not in self._again:
                return

    def _next(self, conn_id: ConnId, server: Server | None) -> StoredCommand | None:
        """The next command that can be read; unreadable ones are set aside and reported."""
        db = self._ground.store.reading
        while True:
            try:
                return commands.next_command(db, conn_id, server)
            except WireError as error:
                unreadable = commands.first_id(db, conn_id, server)
                assert unreadable is not None
                with self._ground.transaction() as tx:
                    commands.set_failed(tx, unreadable)
                    tx.failed(conn_id, InternalError(f"a stored command cannot be read: {error}"))

    async def _run(self, command: StoredCommand) -> None:
        """Try one command until it is done, or fails for good."""
        retry, told, tried = Retry.first(MESSAGE_FAST), Told(), False
        while True:
            try:
                async with (
                    self._ground.operations.under_way(Operation.SENDING),
                    self._ground.locked(command.conn_id),
                ):
                    if not self._is_there(command) or (tried and not self._is_waiting(command)):
                        return
                    tried = True
                    await self._handle(command)
                    if command.tag not in self._end_themselves and self._is_waiting(command):
                        with self._ground.transaction() as tx:
                            commands.delete(tx, command)
                return
            except AgentError as error:
                if not error.retried or _is_hopeless(command, error):
                    self._fail(command, error)
                    return
                if told.is_news(error.word, self._ground.now()):
                    self._tell_delay(command, error)
            except StoreFailedError as error:
                if self._ground.store.is_broken:
                    raise
                self._ground.stream.put(Failed(self._ground.handle(command.conn_id), _critical(error)))
            except Exception as error:
                log.exception("a stored command failed")
                self._fail(command, InternalError(repr(error)))
                return
            await asyncio.sleep(retry.delay_s)
            retry = retry.next()

    async def _handle(self, command: StoredCommand) -> None:
        handler = self._handlers.get(command.tag)
        if handler is None:
            raise InternalError(f"nobody runs commands of type {command.tag}")
        await handler(command)

    def _is_there(self, command: StoredCommand) -> bool:
        """Whether the command is still to be run: its connection may be gone since it was loaded."""
        return connections.find(self._ground.store.reading, command.conn_id) is not None

    def _is_waiting(self, command: StoredCommand) -> bool:
        return commands.is_waiting(self._ground.store.reading, command)

    def _tell_delay(self, command: StoredCommand, error: AgentError) -> None:
        log.warning("%s of connection %s waits: %s", command.tag, command.conn_id, error)
        if command.tag == JOIN:
            self._ground.stream.put(JoinDelayed(self._ground.handle(command.conn_id), error))

    def _fail(self, command: StoredCommand, error: AgentError) -> None:
        """Report it. A connection whose join failed is no connection."""
        with self._ground.transaction() as tx:
            commands.delete(tx, command)
            tx.failed(command.conn_id, error)
            if command.tag == JOIN:
                tx.delete_connection(command.conn_id)


def _is_hopeless(command: StoredCommand, error: AgentError) -> bool:
    """Whether retrying is pointless: a link whose router has another identity leads nowhere, while everything
    else that is stored waits until the right router is back."""
    return command.tag == JOIN and isinstance(error, NetworkError) and error.is_impostor


def _critical(error: Exception) -> AgentError:
    return CriticalError(str(error), temporary=True)
