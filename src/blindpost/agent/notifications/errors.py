"""What goes wrong with notifications: a router refuses, or a push is refused."""

from __future__ import annotations

from blindpost.agent.errors import AgentError, NetworkError
from blindpost.client.errors import RefusedError, error_text
from blindpost.wire.addresses import Server
from blindpost.wire.smp.errors import Code, SMPError


class NtfError(NetworkError):
    """A notification router refused."""

    family = "NTF"

    def __init__(self, server: Server, failure: RefusedError) -> None:
        super().__init__(server, failure)
        self.error: SMPError = failure.error

    @property
    def word(self) -> str:
        return f"NTF {error_text(self.error)}"

    @property
    def is_auth(self) -> bool:
        """Whether the router does not know the token or subscription, or not with this key."""
        return self.error is Code.AUTH


class PushRefusedError(AgentError):
    """A push that is forged, changed, not for this device, or old. Nothing has changed because of it."""

    family = "NTF"
