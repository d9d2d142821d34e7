"""What the program was shown, and had not acknowledged for good when it was killed, is shown again.

Its router may not have it any more (`flows`). One that has it brings it a second time, which the stream of
events then drops. Where the agent was closed, routers have all that is not acknowledged, and bring it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from blindpost.agent.messages.content import shown_again
from blindpost.agent.model import ConnId
from blindpost.agent.store import messages
from blindpost.agent.work.ground import Ground
from blindpost.wire.errors import WireError

log = logging.getLogger(__name__)


class Retelling:
    """All of it, each connection's in its order, as fast as the program takes events."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._left = deque(messages.unacknowledged(ground.store.reading) if ground.store.was_cut else ())
        """What is in the store at the start: what comes later is shown when it comes."""

    async def run(self) -> None:
        stream = self._ground.stream
        while self._left:
            await stream.has_room()
            try:
                self._tell(*self._left[0])
            except (WireError, ValueError):
                log.exception("a stored message cannot be read")
            self._left.popleft()  # not where the disk could not be read: then it is begun with again
            await asyncio.sleep(0)

    def _tell(self, conn_id: ConnId, internal_id: int, attempts: int) -> None:
        db = self._ground.store.reading
        stored = messages.find_rcv(db, conn_id, internal_id)
        if stored is None or stored.user_ack or stored.attempts != attempts:
            return  # it was acknowledged since, or its router has brought it
        self._ground.stream.put_again(shown_again(db, self._ground.handle(conn_id), stored))
