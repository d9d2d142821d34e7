"""What an operator may ask a running router through the control socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blindpost.router.meters import Meter
from blindpost.router.operator import Action, OperatorCommand
from blindpost.router.running.metrics import look
from blindpost.router.running.reported import log_of, reported_id
from blindpost.serving.failures import OperatorError
from blindpost.serving.logs import log
from blindpost.wire.smp.errors import BLOCKED, BlockingReason, Notice
from blindpost.wire.text import b64

if TYPE_CHECKING:
    from blindpost.router.running.process import RouterService
    from blindpost.serving.control import Answer

Request = Mapping[str, Any]

_ERROR = "error: "
_DECISION_TIMEOUT_S = 30.0


NO_FRONTS: dict[str, Any] = {"pids": [], "connections": [], "restarted": 0}


class Operations:
    """The commands of the control socket."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    @property
    def commands(self) -> dict[str, Answer]:
        return {
            "stats": self.stats,
            "connections": self.connections,
            "queue": self.queue,
            "block": self.block,
            "unblock": self.unblock,
            "delete": self.delete,
        }

    async def status(self) -> dict[str, Any]:
        service = self._service
        gauges = await look(service.router, service.server)
        return {
            "fingerprint": b64(service.credentials.fingerprint),
            "durability": service.place.settings.store.durability,
            **service.connected(),
            "subscriptions": gauges.subscriptions,
            "queues": gauges.stored["queues"],
            "messages": gauges.stored["messages"],
            "inbox": gauges.inbox,
            "congested": gauges.congested,
            "fronts": {
                "setting": service.place.settings.router.fronts,
                **(NO_FRONTS if service.fronts is None else service.fronts.status()),
            },
        }

    async def stats(self, request: Request) -> dict[str, Any]:
        meters = self._service.router.plan.meters
        return {
            "since": self._service.counters.since,
            "counts": {meter.value: meters[meter] for meter in Meter},
            "active": self._service.activity.counts(int(time.time())),
            "stored": self._service.router.store.counts(),
        }

    async def connections(self, request: Request) -> dict[str, Any]:
        service = self._service
        gauges, guard = await look(service.router, service.server), service.router.guard
        return {
            **service.connected(),
            "by_version": {str(version): count for version, count in sorted(gauges.versions.items())},
            "subscribed": gauges.subscribed,
            "subscribed_to_notifications": gauges.notifier_subscribed,
            "congested": gauges.congested,
            "waiting_for_ack": gauges.in_flight_connections,
            "accepted": sum(count.accepted for count in guard.sockets.values()),
            "refused": guard.refused_total + guard.refused_address + guard.refused_handshakes,
            "new_refused": guard.new_refused,
            "in_debt": service.router.engine.in_debt,
            "stored_bytes": service.router.plan.stored.total,
            "stored_by_largest": service.router.plan.stored.largest(),
        }

    async def queue(self, request: Request) -> dict[str, Any]:
        return await self._operate(Action.STATUS, request)

    async def block(self, request: Request) -> dict[str, Any]:
        try:
            reason = BlockingReason(str(request.get("reason", "")).encode())
        except ValueError as error:
            raise OperatorError("a reason is needed to block a queue: spam or content.") from error
        notice = None
        if request.get("notice") or request.get("notice_ttl") is not None:
            ttl = request.get("notice_ttl")
            notice = Notice(None if ttl is None else int(ttl))
        return await self._operate(Action.BLOCK, request, BLOCKED(reason, notice))

    async def unblock(self, request: Request) -> dict[str, Any]:
        return await self._operate(Action.UNBLOCK, request)

    async def delete(self, request: Request) -> dict[str, Any]:
        return await self._operate(Action.DELETE, request)

    async def _operate(
        self, action: Action, request: Request, blocked: BLOCKED | None = None
    ) -> dict[str, Any]:
        service = self._service
        entity_id = reported_id(str(request.get("id", "")), service.credentials.fingerprint)
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def done(text: str) -> None:
            if not outcome.done():
                outcome.set_result(text)

        service.router.engine.put_own(OperatorCommand(action, entity_id, done, blocked))
        try:
            async with asyncio.timeout(_DECISION_TIMEOUT_S):
                text = await outcome
        except TimeoutError as error:
            raise OperatorError("the router did not decide in time; check the queue again.") from error
        if text.startswith(_ERROR):
            raise OperatorError(f"{text.removeprefix(_ERROR)}.")
        if action is not Action.STATUS:
            reason = "" if blocked is None else blocked.reason.value.decode()
            self._note(action, entity_id, reason, str(request.get("note") or ""))
        return {"outcome": text}

    def _note(self, action: Action, entity_id: bytes, reason: str, remark: str) -> None:
        """The action is done; if the log cannot be written, that is only reported."""
        try:
            log_of(self._service.place).note(action.value, entity_id, reason, remark)
        except OperatorError as error:
            log.error("what was done to a queue is not in the operator's log: %s", error)
