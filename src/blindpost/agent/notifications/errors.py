"""Pushes that are refused."""

from __future__ import annotations

from blindpost.agent.errors import AgentError


class PushRefusedError(AgentError):
    """A push that is forged, changed, not for this device, or old. Nothing has changed because of it."""

    family = "NTF"
