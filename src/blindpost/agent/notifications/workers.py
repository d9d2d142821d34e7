"""The pipeline of subscriptions: workers for message routers (steps K, D) and notification routers (N, C).

A worker takes some rows, asks their router about all of them at once and stores what it answered. What fails
for now is repeated; what fails for good is reported, and the row stays as it is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from blindpost.agent.errors import AgentError, CriticalError, network_error
from blindpost.agent.events import AgentFailed
from blindpost.agent.notifications.errors import NtfError
from blindpost.agent.notifications.model import (
    SMP_STEPS,
    NotifierKeys,
    NtfSubscription,
    Step,
    Token,
)
from blindpost.agent.notifications.routers import NtfRouters
from blindpost.agent.notifications.tables import HEALTHY
from blindpost.agent.routers.sessions import SessionKey, Sessions, SmpCall
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.store import ntf_tokens
from blindpost.agent.store.ntf_subscriptions import PrimaryQueue
from blindpost.agent.store.queues import TakenError
from blindpost.agent.work.ground import Ground
from blindpost.agent.work.retries import RECONNECT, Retry
from blindpost.agent.work.suspension import Operation
from blindpost.agent.work.transactions import Tx
from blindpost.client.calls import Call, Failure
from blindpost.client.errors import ClientError, UnexpectedResponseError
from blindpost.engine.loop import StoreFailedError
from blindpost.transport.errors import TransportError
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.ntf.commands import SCHK, SNEW
from blindpost.wire.ntf.responses import IDSUB, SUB
from blindpost.wire.ntf.responses import Response as NtfResponse
from blindpost.wire.smp.commands import NDEL, NKEY
from blindpost.wire.smp.responses import NID, Response

BATCH = 150
"""How many rows are taken at once."""
FIRST_CHECK_S = 86_400
CHECK_EVERY_S = 3 * 86_400
LOOK_S = 1.0
"""How often to look whether a token without connections was verified."""


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """One worker: of a message router, or of a notification router."""

    smp: bool
    server: Server


class Workers:
    """A worker lives as long as its router has rows; it sleeps until the next one is due."""

    def __init__(
        self,
        ground: Ground,
        sessions: Sessions,
        routers: NtfRouters,
        look_again: Callable[[], Awaitable[None]],
    ) -> None:
        """`look_again` asks a router that refused something whether the token is active there."""
        self._look_again = look_again
        self._ground = ground
        self._sessions = sessions
        self._routers = routers
        self._woken: dict[WorkerKey, asyncio.Event] = {}
        self._round_over = asyncio.Event()
        """Set, and replaced, after each round of any worker."""
        self._closed = False
        ground.work.notifications.listen(self.wake)

    def close(self) -> None:
        """Start no more workers."""
        self._closed = True

    def resume(self) -> None:
        """Continue all stored work."""
        for row in rows.all_rows(self._ground.store.reading):
            self.wake(row)

    def wake(self, row: NtfSubscription) -> None:
        if row.step is None:
            return
        smp = row.step in SMP_STEPS
        key = WorkerKey(smp, row.smp_server if smp else row.ntf_server)
        if key in self._woken:
            self._woken[key].set()
        elif not self._closed:
            self._woken[key] = asyncio.Event()
            self._ground.spawn(self._work(key))

    async def settled(self) -> None:
        """Wait until the notification router is told of all connections that are to be notified about."""
        while not self._is_settled():
            await _wait(self._round_over, LOOK_S)  # the token may be verified where there is nothing to do

    def _is_settled(self) -> bool:
        """A row without a step failed for good: there is nothing to wait for."""
        db = self._ground.store.reading
        token = ntf_tokens.find(db)
        return (
            token is not None
            and token.is_active
            and all(row.step in (Step.CHECK, None) for row in rows.all_rows(db))
        )

    async def _work(self, key: WorkerKey) -> None:
        """One round after the other, until there is nothing to wait for."""
        woken, step = self._woken[key], self._smp_round if key.smp else self._ntf_round
        retry = Retry.first(RECONNECT)
        try:
            while True:
                woken.clear()
                try:
                    async with self._ground.operations.under_way(Operation.SENDING):
                        more = await step(key.server)
                    self._round_over.set()
                    self._round_over = asyncio.Event()
                    retry = Retry.first(RECONNECT)
                    if more:
                        continue
                    pause = self._pause(key)
                except (AgentError, StoreFailedError) as error:
                    if self._ground.store.is_broken:
                        return  # that was told, and nothing is taken until the next start
                    pause, retry = self._failed(error, retry), retry.next()
                if pause is None and not woken.is_set():
                    return
                await _wait(woken, pause)
        finally:
            del self._woken[key]

    def _failed(self, error: AgentError | StoreFailedError, retry: Retry) -> float:
        """How long to wait after a round that could not be finished."""
        if isinstance(error, StoreFailedError):
            self._ground.stream.put(AgentFailed(CriticalError(str(error), temporary=True)))
        return retry.jittered_s(self._ground.config.chance)

    def _pause(self, key: WorkerKey) -> float | None:
        """How long a worker has nothing to do; None: nothing more is scheduled."""
        if key.smp or self._token_at(key.server) is None:
            return None
        due = rows.next_due(self._ground.store.reading, key.server)
        return None if due is None else max(due - self._ground.now(), 0.0) + 1.0

    def _token(self) -> Token | None:
        """The token, if connections have subscriptions with it."""
        token = ntf_tokens.find(self._ground.store.reading)
        return token if token is not None and token.is_instant else None

    def _token_at(self, server: Server) -> Token | None:
        """The same, if this notification router has it."""
        token = self._token()
        return token if token is not None and token.server == server else None

    def _is_verified_as(self, token: Token) -> bool:
        """Whether it is still active, for the same device and by the same code."""
        now = self._token()
        return now is not None and (now.device, now.returned) == (token.device, token.returned)

    # Message routers

    async def _smp_round(self, server: Server) -> bool:
        """NKEY and NDEL for some rows; whether more may wait."""
        steps = SMP_STEPS if self._token() is not None else frozenset({Step.DELETE})
        asked: dict[SessionKey, list[_Asked]] = defaultdict(list)
        with self._ground.transaction() as tx:
            taken = rows.take_smp(tx, server, steps, BATCH)
            for row in taken:
                queue = rows.primary(tx, row.conn_id)
                if queue is None:
                    rows.delete(tx, row.conn_id)
                elif queue.server != server:
                    rows.put(tx, replace(row, smp_server=queue.server), tx.now, by_supervisor=False)
                    tx.wake_notifications(replace(row, smp_server=queue.server))
                else:
                    owner = queue.queue
                    key = self._sessions.key(owner.user_id, server, owner.conn_id)
                    asked[key].append(_Asked(tx, row, queue))
        failures = [await self._ask_smp(key, each) for key, each in asked.items()]
        _raise_first(failures)
        return len(taken) == BATCH

    async def _ask_smp(self, key: SessionKey, asked: Sequence[_Asked]) -> AgentError | None:
        """Ask about all of these, store the answers; the first failure that may pass."""
        server = key.server
        results: Sequence[Response | Failure]
        try:
            session = await self._sessions.session(key)
            results = await session.client.send_many([each.call for each in asked])
        except TransportError as failure:
            results = [failure] * len(asked)
        passing: AgentError | None = None
        with self._ground.transaction() as tx:
            for each, result in zip(asked, results, strict=True):
                if isinstance(result, ClientError | TransportError):
                    passing = self._refused(tx, each.row, network_error(server, result)) or passing
                else:
                    self._answered_smp(tx, each, result)
        return passing

    def _answered_smp(self, tx: Tx, asked: _Asked, result: Response) -> None:
        row = asked.row
        if row.step is Step.DELETE:
            rows.delete_finished(tx, row.conn_id)
        elif isinstance(result, NID):
            creds = asked.keys.agreed(result.creds)
            now = rows.primary(tx, row.conn_id)
            if now is None or now.queue.number != asked.queue.queue.number:
                return
            try:
                rows.set_creds(tx, now.queue, creds)
            except TakenError:
                self._unexpected(tx, row, result)
                return
            rows.finish(tx, row.with_keys(creds), tx.now)
            self._wake_stored(tx, row)
        else:
            self._unexpected(tx, row, result)

    def _unexpected(self, tx: Tx, row: NtfSubscription, result: Response) -> None:
        self._refused(tx, row, network_error(row.smp_server, UnexpectedResponseError(result)))

    # Notification routers

    async def _ntf_round(self, server: Server) -> bool:
        """SNEW and SCHK for the rows that are due; whether more may wait."""
        token = self._token_at(server)
        if token is None:
            return False
        asked: list[tuple[NtfSubscription, Call[SNEW | SCHK]]] = []
        with self._ground.transaction() as tx:
            taken = rows.take_ntf(tx, server, tx.now, BATCH)
            for row in taken:
                call = _ntf_call(tx, token, row)
                if call is None:
                    self._again(tx, row)
                else:
                    asked.append((row, call))
        if not asked:
            return bool(taken)
        results: Sequence[NtfResponse | AgentError]
        try:
            results = await self._routers.send_many(server, [call for _, call in asked])
        except AgentError as error:
            results = [error] * len(asked)
        if any(isinstance(result, NtfError) and result.is_auth for result in results):
            await self._look_again()
        passing: AgentError | None = None
        with self._ground.transaction() as tx:
            for (row, _), result in zip(asked, results, strict=True):
                passing = self._answered_ntf(tx, token, row, result) or passing
        _raise_first([passing])
        return len(taken) == BATCH

    def _answered_ntf(
        self, tx: Tx, token: Token, row: NtfSubscription, result: NtfResponse | AgentError
    ) -> AgentError | None:
        match result:
            case IDSUB(subscription_id) if row.step is Step.NEW:
                done = replace(row, subscription_id=subscription_id, status="CREATED NEW", step=Step.CHECK)
                rows.finish(tx, done, tx.now + FIRST_CHECK_S)
            case SUB(status) if row.step is Step.CHECK and HEALTHY[status.state]:
                text = f"CREATED {status.encoded.decode('latin-1')}"
                rows.finish(tx, replace(row, status=text), tx.now + CHECK_EVERY_S)
            case SUB() if row.step is Step.CHECK:
                self._again(tx, row)
            case NtfError() if result.is_auth and not self._is_verified_as(token):
                pass  # the token was replaced meanwhile; its rows are woken when it becomes active
            case NtfError() if row.step is Step.CHECK and result.is_auth:
                self._again(tx, row)
            case AgentError():
                return self._refused(tx, row, result)
            case _:
                return self._refused(tx, row, network_error(row.ntf_server, UnexpectedResponseError(result)))
        return None

    def _again(self, tx: Tx, row: NtfSubscription) -> None:
        """From the beginning: new keys, and a new subscription."""
        anew = replace(row, notifier_id=None, subscription_id=None, status="NEW", step=Step.KEY)
        rows.finish(tx, anew, tx.now)
        self._wake_stored(tx, row)

    # Both

    def _wake_stored(self, tx: Tx, row: NtfSubscription) -> None:
        stored = rows.find(tx, row.conn_id)
        if stored is not None:
            tx.wake_notifications(stored)

    def _refused(self, tx: Tx, row: NtfSubscription, error: AgentError) -> AgentError | None:
        """A temporary error is retried; any other is reported, and ends work on the row."""
        if error.retried:
            return error
        rows.fail(tx, row)
        tx.failed(row.conn_id, error)
        return None


class _Asked:
    """What a message router is asked about one row; NKEY has new keys each time."""

    def __init__(self, tx: Tx, row: NtfSubscription, queue: PrimaryQueue) -> None:
        self.row = row
        self.queue = queue
        self.keys = NotifierKeys.generate(tx.config.entropy)
        owner = queue.queue
        command: NKEY | NDEL = NKEY(self.keys.offered)
        if row.step is Step.DELETE:
            rows.set_creds(tx, owner, None)
            command = NDEL()
        self.call: SmpCall = Call(command, owner.rcv_id, owner.key)


def _ntf_call(tx: Tx, token: Token, row: NtfSubscription) -> Call[SNEW | SCHK] | None:
    """What to ask about a row; None if its queue is not what it was."""
    queue = rows.primary(tx, row.conn_id)
    if queue is None or queue.creds is None or queue.notifier_id != row.notifier_id:
        return None
    if row.step is Step.CHECK:
        return None if row.subscription_id is None else Call(SCHK(), row.subscription_id, token.key)
    assert token.token_id is not None
    command = SNEW(token.token_id, queue.server, queue.creds.notifier_id, queue.creds.key.encoded)
    return Call(command, b"", token.key)


def _raise_first(failures: Sequence[AgentError | None]) -> None:
    for failure in failures:
        if failure is not None:
            raise failure


async def _wait(woken: asyncio.Event, duration_s: float | None) -> None:
    try:
        async with asyncio.timeout(duration_s):
            await woken.wait()
    except TimeoutError:
        pass
