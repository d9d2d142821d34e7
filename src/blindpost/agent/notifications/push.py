"""All of an agent's push notifications in one place: what the application asks, and what other parts tell."""

from __future__ import annotations

from collections.abc import Sequence

from blindpost.agent.model import ConnId, RcvQueue
from blindpost.agent.notifications.errors import PushRefusedError
from blindpost.agent.notifications.model import NotifierKeys, PushMode, Token
from blindpost.agent.notifications.reading import News, Reading
from blindpost.agent.notifications.routers import NtfRouters
from blindpost.agent.notifications.supervisor import Supervisor
from blindpost.agent.notifications.tables import Wish
from blindpost.agent.notifications.tokens import Tokens
from blindpost.agent.notifications.workers import Workers
from blindpost.agent.store import connections, ntf_tokens
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.work.runtime import Runtime, Tx
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, Push, VerificationPush, decode_apns_body
from blindpost.wire.ntf.status import TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken


class PushNotifications:
    """Does nothing at all until a device token is registered."""

    def __init__(self, runtime: Runtime, servers: Sequence[Server]) -> None:
        self._rt = runtime
        self._routers = NtfRouters(runtime)
        self._workers = Workers(runtime, self._routers)
        self._supervisor = Supervisor(self._workers)
        self._tokens = Tokens(runtime, servers, self._routers, self._supervisor)
        self.reading = Reading(runtime)

    async def resume(self) -> None:
        """Go on with everything that is stored."""
        self._workers.resume()
        await self._tokens.resume()

    async def close(self) -> None:
        self._workers.close()
        await self._routers.close()

    # What the application asks

    @property
    def token(self) -> Token | None:
        return self._tokens.find()

    async def register(self, device: str, mode: PushMode) -> TokenStatus:
        self._rt.awake()
        return await self._tokens.register(DeviceToken.from_text(device), mode)

    async def verify(self, payload: bytes | Push, device: str | None) -> TokenStatus:
        self._rt.awake()
        push = _opened(payload)
        if not isinstance(push, VerificationPush):
            raise PushRefusedError("it does not bring a code")
        return await self._tokens.verify(push, None if device is None else DeviceToken.from_text(device))

    async def check(self, device: str | None) -> TokenStatus:
        self._rt.awake()
        return await self._tokens.check(None if device is None else DeviceToken.from_text(device))

    async def delete(self) -> None:
        self._rt.awake()
        await self._tokens.delete()

    async def received(self, payload: bytes | Push) -> list[News]:
        self._rt.awake()
        match _opened(payload):
            case VerificationPush() as push:
                await self._tokens.verify(push, None)
                return []
            case MessagePush() as push:
                return self.reading.news(push)
            case CheckPush():
                return self.reading.everywhere()

    async def set_enabled(self, conn_id: ConnId, enabled: bool) -> None:
        """Switch the notifications of one connection on or off."""
        self._rt.awake()
        async with self._rt.locked(conn_id):
            with self._rt.transaction() as tx:
                connections.load(tx, conn_id)
                rows.set_enabled(tx, conn_id, enabled)
                if enabled:
                    self._supervisor.queue_changed(tx, conn_id)
                else:
                    self._supervisor.wish(tx, [conn_id], Wish.DELETE_AT_SMP)

    # What other parts tell

    def notifier_keys(self, conn_id: ConnId) -> NotifierKeys | None:
        """What NEW of a connection's next queue is to offer, where connections notify."""
        if not self._supervisor.is_notifying(self._rt.store.reading, conn_id):
            return None
        return NotifierKeys.generate(self._rt.config.entropy)

    def queue_changed(self, tx: Tx, conn_id: ConnId) -> None:
        """A connection has its first receive queue, or another primary one."""
        self._supervisor.queue_changed(tx, conn_id, is_new=True)

    def message_came(self, tx: Tx, queue: RcvQueue, seconds: int) -> None:
        """So that an older push about the same queue is no news."""
        if ntf_tokens.find(tx) is not None:
            rows.came(tx, queue, seconds)

    def acknowledged(self, queue: RcvQueue, broker_id: bytes) -> None:
        self.reading.acknowledged(queue, broker_id)


def _opened(payload: bytes | Push) -> Push:
    if not isinstance(payload, bytes):
        return payload
    try:
        return decode_apns_body(payload)
    except WireError as error:
        raise PushRefusedError("it is not a push of a notification router") from error
