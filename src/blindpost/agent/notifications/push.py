"""All of an agent's push notifications in one place: what the application asks, and what other parts tell."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from blindpost.agent.connection import News
from blindpost.agent.model import ConnId
from blindpost.agent.notifications import supervisor
from blindpost.agent.notifications.errors import PushRefusedError
from blindpost.agent.notifications.model import PushMode, Token
from blindpost.agent.notifications.reading import Reading
from blindpost.agent.notifications.routers import NtfRouters
from blindpost.agent.notifications.tables import Wish
from blindpost.agent.notifications.tokens import Tokens
from blindpost.agent.notifications.workers import Workers
from blindpost.agent.routers.sessions import Sessions
from blindpost.agent.store import connections
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.work.ground import Ground
from blindpost.wire.addresses import Server
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, Push, VerificationPush, decode_apns_body
from blindpost.wire.ntf.status import TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken
from blindpost.wire.ntf.webpush import decode_web_body


class PushNotifications:
    """Does nothing at all until a device token is registered."""

    def __init__(
        self, ground: Ground, sessions: Sessions, reading: Reading, servers: Sequence[Server]
    ) -> None:
        self._ground = ground
        self._reading = reading
        self._routers = NtfRouters(ground)
        self._tokens = Tokens(ground, servers, self._routers)
        self._workers = Workers(ground, sessions, self._routers, self._tokens.look_again)

    async def resume(self) -> None:
        """Continue all stored work."""
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
        self._ground.awake()
        return await self._tokens.register(DeviceToken.from_text(device), mode)

    async def verify(self, payload: bytes | Push, device: str | None) -> TokenStatus:
        self._ground.awake()
        push = _opened(payload)
        if not isinstance(push, VerificationPush):
            raise PushRefusedError("it does not bring a code")
        return await self._tokens.verify(push, None if device is None else DeviceToken.from_text(device))

    async def check(self, device: str | None) -> TokenStatus:
        self._ground.awake()
        return await self._tokens.check(None if device is None else DeviceToken.from_text(device))

    async def delete(self) -> None:
        self._ground.awake()
        await self._tokens.delete()

    async def received(self, payload: bytes | Push) -> list[News]:
        self._ground.awake()
        match _opened(payload):
            case VerificationPush() as push:
                await self._tokens.verify(push, None)
                return []
            case MessagePush() as push:
                return self._reading.news(push)
            case CheckPush():
                return self._reading.everywhere()

    async def settled(self) -> None:
        self._ground.awake()
        await self._workers.settled()

    async def set_enabled(self, conn_id: ConnId, enabled: bool) -> None:
        """Switch the notifications of one connection on or off."""
        self._ground.awake()
        async with self._ground.locked(conn_id):
            with self._ground.transaction() as tx:
                connections.load(tx, conn_id)
                rows.set_enabled(tx, conn_id, enabled)
                if enabled:
                    supervisor.queue_changed(tx, conn_id)
                else:
                    supervisor.wish_for(tx, [conn_id], Wish.DELETE_AT_SMP)


def _opened(payload: bytes | Push) -> Push:
    if not isinstance(payload, bytes):
        return payload
    try:
        with contextlib.suppress(WireError):
            return decode_apns_body(payload)
        return decode_web_body(payload)
    except WireError as error:
        raise PushRefusedError("it is not a push of a notification router") from error
