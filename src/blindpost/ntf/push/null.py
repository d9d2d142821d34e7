"""The provider for devices that test a router: every push succeeds and goes nowhere."""

from __future__ import annotations

from blindpost.ntf.ports import Accepted, PushOutcome
from blindpost.wire.ntf.pushes import Push
from blindpost.wire.ntf.tokens import DeviceToken


class NullProvider:
    async def push(self, token: DeviceToken, push: Push) -> PushOutcome:
        return Accepted()

    async def close(self) -> None:
        pass
