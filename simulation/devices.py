"""A device with an app: it names its token to its agent, hands pushes to it, and looks what they tell."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from blindpost.agent import AgentError, InactiveError
from blindpost.agent.notifications.model import Step
from blindpost.agent.store import ntf_subscriptions
from blindpost.engine.loop import StoreFailedError
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from simulation.pushes import PushParty

if TYPE_CHECKING:
    from simulation.agents import AgentParty

AGAIN_S = 60.0
"""How long the app waits before it names its token again."""
TOKEN_DIGITS = 64


class Device:
    """What is around one agent; it outlives the agent's processes."""

    def __init__(self, party: AgentParty, pushes: PushParty) -> None:
        self.party = party
        self.news: list[str] = []
        """Connections that pushes told of, the newest last."""
        self.number = 0
        self._pushes = pushes
        self._kept: bytes | None = None
        self._named = asyncio.Event()
        self._naming = False
        self._register()

    @property
    def token(self) -> DeviceToken:
        digits = f"{self.party.name.encode().hex()}{self.number:04x}"
        return DeviceToken(PushProvider.APNS_PROD, digits.rjust(TOKEN_DIGITS, "0").encode())

    def renew(self) -> None:
        """The system gives the app another token; the former is not valid any more."""
        self.number += 1
        self._register()
        self._named.set()

    def _register(self) -> None:
        pushes = self._pushes
        for known in [name for name, device in pushes.devices.items() if device == self.came]:
            del pushes.devices[known]
        pushes.devices[self.token.token.decode()] = self.came

    def came(self, body: bytes) -> None:
        """A push; one for an app that is not running is kept until it is, but only the newest."""
        party = self.party
        if party.ready:
            assert party.process is not None
            party.process.spawn(self._take(body))
        else:
            self._kept = body

    async def _take(self, body: bytes) -> None:
        try:
            news = await self.party.agent.push_received(body)
        except (AgentError, StoreFailedError) as error:
            self.party.run.note(f"{self.party.name} cannot use a push: {error}")
        else:
            self.news += [each.conn.id for each in news]

    async def run(self) -> None:
        """The app, for one life of its agent: name the token until it is active, and whenever it changed."""
        self._naming = False
        if self._kept is not None:
            kept, self._kept = self._kept, None
            self.came(kept)
        with contextlib.suppress(InactiveError):
            while True:
                self._named.clear()
                self._naming = True
                try:
                    await self.party.agent.register_push(self.token.text)
                except (AgentError, StoreFailedError) as error:
                    if isinstance(error, InactiveError):
                        raise
                    self.party.run.note(f"{self.party.name} cannot name its device: {error}")
                else:
                    self._naming = False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._named.wait(), AGAIN_S)
                if not self._naming and self._is_active():
                    await self._named.wait()

    def opened(self) -> None:
        """Somebody looks at the app: it names its token once more."""
        self._named.set()

    def _is_active(self) -> bool:
        token = self.party.agent.push_token
        return token is not None and token.is_active and token.device == self.token

    def unsettled(self) -> str | None:
        if self._naming or self._named.is_set() or not self._is_active():
            return "its device token is not active"
        rows = list(ntf_subscriptions.all_rows(self.party.agent._ground.store.reading))
        if any(row.step is not Step.CHECK for row in rows) or len(rows) < len(self.party.peers):
            return f"notifications: {[row.status for row in rows]}"
        return None
