"""Two friends who write more than their queues hold, and read late."""

from __future__ import annotations

from pathlib import Path

from blindpost.agent import SendDelayed
from blindpost.router.config import RouterRules
from blindpost.testing.clock import run_virtual
from tests.support.agent.friends import friends


def test_both_queues_are_full(tmp_path: Path) -> None:
    """What tells the peer that there is room waits behind messages itself: yet nobody waits for long."""

    async def main() -> None:
        async with friends(tmp_path, rules=RouterRules(quota=3)) as pair:
            people = (pair.alice, pair.bob)
            sent = [b"%d" % number for number in range(8)]
            for friend in people:
                friend.acknowledges = False
                for body in sent:
                    await friend.conn.send(body)
            await pair.quiet(1)
            for friend in people:
                assert friend.of(SendDelayed)
            for friend in people:
                friend.acknowledges = True
                await friend.messages[0].ack()
            for friend in people:
                await friend.got(*sent)
                assert friend.bodies == sent
                assert set(friend.outcomes) == {"MsgOk"}

    run_virtual(main())
