"""Workers that run stored commands: one for each connection and router, in order, each command once.

A command that fails for now is tried again; one that fails for good is reported and removed.
"""

from __future__ import annotations

import asyncio
import logging

from blindpost.agent.errors import AgentError, CriticalError, InternalError
from blindpost.agent.events import Failed
from blindpost.agent.model import ConnId
from blindpost.agent.store import commands, connections
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.work.retries import MESSAGE_FAST, Retry
from blindpost.agent.work.runtime import Runtime
from blindpost.agent.work.suspension import Operation
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError

log = logging.getLogger(__name__)

WorkerKey = tuple[ConnId, Server | None]


class CommandWorkers:
    """A worker lives as long as it has something to do."""

    def __init__(self, runtime: Runtime) -> None:
        self._rt = runtime
        self._workers: dict[WorkerKey, asyncio.Task[None]] = {}
        self._again: set[WorkerKey] = set()

    def wake(self, conn_id: ConnId, server: Server | None) -> None:
        key = (conn_id, server)
        if key in self._workers:
            self._again.add(key)
            return
        self._workers[key] = self._rt.spawn(self._work(key))

    def resume(self) -> None:
        """Go on with everything that is stored."""
        for conn_id, server in commands.waiting(self._rt.store.reading):
            self.wake(conn_id, server)

    async def _work(self, key: WorkerKey) -> None:
        try:
            while True:
                self._again.discard(key)
                command = self._next(*key)
                if command is None or not self._is_there(command):
                    if key in self._again:
                        continue
                    return
                await self._run(command)
        finally:
            del self._workers[key]
            self._again.discard(key)

    def _next(self, conn_id: ConnId, server: Server | None) -> StoredCommand | None:
        """The next command that can be read; those that cannot are put aside, and reported."""
        db = self._rt.store.reading
        while True:
            try:
                return commands.next_command(db, conn_id, server)
            except WireError as error:
                unreadable = commands.first_id(db, conn_id, server)
                assert unreadable is not None
                with self._rt.transaction() as tx:
                    commands.set_failed(tx, unreadable)
                    tx.failed(conn_id, InternalError(f"a stored command cannot be read: {error}"))

    async def _run(self, command: StoredCommand) -> None:
        """Try one command until it is done, or fails for good."""
        retry = Retry.first(MESSAGE_FAST)
        while True:
            try:
                async with self._rt.operations.under_way(Operation.SENDING), self._rt.locked(command.conn_id):
                    if not self._is_there(command):
                        return
                    await self._handle(command)
                    if self._is_first(command):
                        with self._rt.transaction() as tx:
                            commands.delete(tx, command.command_id)
                return
            except AgentError as error:
                if not error.retried:
                    self._fail(command, error)
                    return
            except StoreFailedError as error:
                self._rt.stream.put(Failed(self._rt.handle(command.conn_id), _critical(error)))
            except Exception as error:
                log.exception("a stored command failed")
                self._fail(command, InternalError(repr(error)))
                return
            await asyncio.sleep(retry.delay_s)
            retry = retry.next()

    async def _handle(self, command: StoredCommand) -> None:
        handler = self._rt.handlers.commands.get(command.tag)
        if handler is None:
            raise InternalError(f"nobody runs commands of type {command.tag}")
        await handler(command)

    def _is_there(self, command: StoredCommand) -> bool:
        """Whether the command is still to be run: its connection may be gone since it was loaded."""
        return connections.find(self._rt.store.reading, command.conn_id) is not None

    def _is_first(self, command: StoredCommand) -> bool:
        """Whether the command is still there: it may have ended itself, or gone to another worker."""
        first = commands.first_id(self._rt.store.reading, command.conn_id, command.server)
        return first == command.command_id

    def _fail(self, command: StoredCommand, error: AgentError) -> None:
        with self._rt.transaction() as tx:
            commands.delete(tx, command.command_id)
            tx.failed(command.conn_id, error)


def _critical(error: Exception) -> AgentError:
    return CriticalError(str(error), temporary=True)
