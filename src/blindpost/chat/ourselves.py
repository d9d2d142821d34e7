"""Who we are to everybody else: the agent, our profile, and the pending requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from blindpost.agent import Agent, ContactRequest
from blindpost.chat.codec.bodies import write_info
from blindpost.chat.codec.events import Info, Message
from blindpost.chat.codec.fields import json_bytes
from blindpost.chat.codec.profiles import Profile, write_profile
from blindpost.chat.events import Asked
from blindpost.wire.errors import WireError

DESCRIPTION_MAX = 160
"""The app takes no longer short description from us; a stranger may send one all the same."""


class Ourselves:
    """What a draft needs at commit."""

    def __init__(self, agent: Agent, profile: Profile, now: Callable[[], float]) -> None:
        self.agent = agent
        self.now = now
        self.requests: dict[str, ContactRequest] = {}
        self.set_profile(profile)

    def set_profile(self, profile: Profile) -> None:
        if profile.description is not None and len(profile.description) > DESCRIPTION_MAX:
            raise WireError(f"a short description of at most {DESCRIPTION_MAX} characters expected")
        self.info = write_info(Message(Info(profile)), pq=True)
        """What goes along with handshakes."""
        self.profile = profile
        self.mark = hashlib.sha256(json_bytes(write_profile(profile))).hexdigest()[:12]
        """Identifies our profile: contacts who have another one get the new one."""

    def request(self, asked: Asked) -> ContactRequest | None:
        """The agent's request, if it is still pending."""
        if asked.request_id not in self.requests:
            waiting = self.agent.connection(asked.address_id).requests()
            self.requests |= {request.id: request for request in waiting}
        return self.requests.pop(asked.request_id, None)
