"""Who we are to everybody else: the agent, our profile, and the requests that wait for an answer."""

from __future__ import annotations

import hashlib

from blindpost.agent import Agent, ContactRequest
from blindpost.chat.codec.bodies import write_info
from blindpost.chat.codec.events import Info, Message
from blindpost.chat.codec.fields import json_bytes
from blindpost.chat.codec.profiles import Profile, write_profile
from blindpost.chat.events import Asked


class Ourselves:
    """What a draft needs to know when it is done."""

    def __init__(self, agent: Agent, profile: Profile) -> None:
        self.agent = agent
        self.requests: dict[str, ContactRequest] = {}
        self.set_profile(profile)

    def set_profile(self, profile: Profile) -> None:
        self.info = write_info(Message(Info(profile)), pq=True)
        """What goes along with handshakes."""
        self.profile = profile
        self.mark = hashlib.sha256(json_bytes(write_profile(profile))).hexdigest()[:12]
        """Contacts who were told something else are told anew."""

    def request(self, asked: Asked) -> ContactRequest | None:
        """The agent's request, if it still waits."""
        if asked.request_id not in self.requests:
            waiting = self.agent.connection(asked.address_id).requests()
            self.requests |= {request.id: request for request in waiting}
        return self.requests.pop(asked.request_id, None)
