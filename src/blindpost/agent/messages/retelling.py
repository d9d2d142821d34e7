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
from blindpost.agent.routers.sessions import Sessions
from blindpost.agent.store import messages
from blindpost.agent.work.ground import Ground
from blindpost.engine.loop import StoreFailedError

log = logging.getLogger(__name__)

_PAUSED = "shown again"


class Retelling:
    """All of it, each connection's in its order, as fast as the program takes events. What routers bring is
    newer, and waits until then."""

    def __init__(self, ground: Ground, sessions: Sessions) -> None:
        self._ground = ground
        self._sessions = sessions
        self._left = deque(messages.unacknowledged(ground.store.reading) if ground.store.was_cut else ())
        """What is in the store at the start: what comes later is shown when it comes."""
        sessions.pause_receiving(_PAUSED)

    async def run(self) -> None:
        stream = self._ground.stream
        while self._left:
            await stream.has_room()
            try:
                self._tell(*self._left[0])
            except StoreFailedError:
                raise
            except Exception:
                log.exception("a stored message cannot be read")
            self._left.popleft()  # not where the disk could not be read: then it is begun with again
            await asyncio.sleep(0)
        self._sessions.resume_receiving(_PAUSED)

    def _tell(self, conn_id: ConnId, internal_id: int) -> None:
        db = self._ground.store.reading
        stored = messages.find_rcv(db, conn_id, internal_id)
        if stored is not None and not stored.user_ack:  # else it was acknowledged since
            self._ground.stream.put_again(shown_again(db, self._ground.handle(conn_id), stored))
