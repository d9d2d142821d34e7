"""The order of messages across a rotation: the new queue's first message waits for the old queue's last.

A sender begins to use the new queue while messages that it sent before may still wait in the old one. They
would be lost with it, or come after those of the new one.
"""

from __future__ import annotations

import asyncio

from blindpost.agent.errors import AgentError
from blindpost.agent.model import QueueStatus, RcvQueue, RcvSwitch
from blindpost.agent.rotation import recipient
from blindpost.agent.routers.sessions import Sessions
from blindpost.agent.store import connections, queues
from blindpost.agent.store import rotation as rows
from blindpost.agent.work.ground import Ground
from blindpost.client.calls import Call
from blindpost.wire.smp.commands import QUE
from blindpost.wire.smp.responses import INFO

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 2.0
PATIENCE_S = 30.0
"""For so long an old queue may be silent, or its router away, before it is given up."""


class Draining:
    """Tracks how much is left in old queues."""

    def __init__(self, ground: Ground, sessions: Sessions) -> None:
        self._ground = ground
        self._sessions = sessions

    async def drained(self, new: RcvQueue) -> None:
        """Wait until nothing is left in the queue that `new` replaces."""
        loop = asyncio.get_running_loop()
        pause, before, changed_at = FIRST_PAUSE_S, -1, loop.time()
        while (old := self._still_used(new)) is not None:
            left = await self.waiting(old)
            if left == 0:
                return
            if left != before or rows.has_unacknowledged(self._ground.store.reading, old):
                before, changed_at = left, loop.time()
            elif loop.time() - changed_at >= PATIENCE_S:
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE_S)

    def _still_used(self, new: RcvQueue) -> RcvQueue | None:
        """The old queue, as long as no message of the new one has been taken."""
        db = self._ground.store.reading
        now = queues.find_rcv(db, new.server, new.rcv_id)
        if now is None or now.status is QueueStatus.ACTIVE or connections.find(db, new.conn_id) is None:
            return None
        old = recipient.replaced(connections.load_whole(db, new.conn_id), now)
        return old if old is not None and old.switch is RcvSwitch.SENDING_QUSE else None

    async def waiting(self, old: RcvQueue) -> int:
        """How many messages the router holds; -1 when it cannot be asked now."""
        try:
            call = Call(QUE(), old.rcv_id, old.key)
            answer = await self._sessions.send(old.user_id, old.server, call, entity=old.conn_id)
        except AgentError as error:
            return -1 if error.retried else 0
        return answer.info.size if isinstance(answer, INFO) else 0
