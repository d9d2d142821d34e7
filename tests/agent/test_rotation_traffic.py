"""Rotations while messages flow, also with a peer that deletes its old queue unread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blindpost.agent import Failed
from blindpost.agent.model import RcvQueue
from blindpost.agent.rotation.draining import Draining
from blindpost.router.config import RouterRules
from blindpost.testing.clock import run_virtual
from tests.support.agent.friends import Friend, friends
from tests.support.agent.rotations import at_rest

COUNT = 60


def deletes_early(patch: pytest.MonkeyPatch, who: Friend) -> None:
    """Like the reference: the first message through the new queue deletes the old one and all it holds."""
    real_drained, real_waiting = Draining.drained, Draining.waiting

    async def drained(self: Draining, new: RcvQueue) -> None:
        if self._ground is not who.rt.ground:
            await real_drained(self, new)

    async def waiting(self: Draining, old: RcvQueue) -> int:
        return 0 if self._ground is who.rt.ground else await real_waiting(self, old)

    patch.setattr(Draining, "drained", drained)
    patch.setattr(Draining, "waiting", waiting)


async def send_all(friend: Friend, sent: list[bytes], pause_s: float) -> None:
    for body in sent:
        await friend.conn.send(body)
        await asyncio.sleep(pause_s)


def slow_reader(friend: Friend, pause_s: float) -> asyncio.Task[None]:
    """Acknowledges received messages one by one, each after a pause."""
    friend.acknowledges = False

    async def read() -> None:
        done = 0
        while True:
            await asyncio.sleep(pause_s)
            if done < len(friend.messages):
                await friend.messages[done].ack()
                done += 1

    return asyncio.create_task(read())


@pytest.mark.parametrize("quota", [128, 8])
def test_a_peer_deletes_its_old_queue_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: int
) -> None:
    """What its old queue accepted since the rotation began is sent again: nothing is lost or duplicated."""

    async def main() -> None:
        async with friends(tmp_path, rules=RouterRules(quota=quota)) as pair:
            alice, bob = pair.alice, pair.bob
            deletes_early(monkeypatch, bob)
            reading = slow_reader(bob, 0.2)
            sent = [b"%d" % number for number in range(COUNT)]
            sending = asyncio.create_task(send_all(alice, sent, 0.01))
            await bob.conn.switch()
            await sending
            await bob.got(*sent)
            await at_rest(pair)
            assert bob.bodies == sent
            assert set(bob.outcomes) == {"MsgOk"}
            assert not bob.of(Failed)
            assert not alice.of(Failed)
            reading.cancel()
            sql = alice.rt.ground.store.reading.sql
            assert sql.execute("SELECT count(*) FROM snd_message_deliveries").fetchone() == (0,)
            kept = "SELECT count(*) FROM messages WHERE length(msg_body) > 0 AND internal_snd_id IS NOT NULL"
            assert sql.execute(kept).fetchone() == (0,), "bodies are not kept any longer"

    run_virtual(main())


def test_our_own_rotation_reports_no_gap(tmp_path: Path) -> None:
    """QTEST comes through the new queue, its successors also through the old one, which is read first."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob = pair.alice, pair.bob
            reading = slow_reader(alice, 0.02)
            sent = [b"%d" % number for number in range(COUNT * 2)]
            sending = asyncio.create_task(send_all(bob, sent, 0.02))
            for _ in range(2):
                await asyncio.sleep(0.3)
                await alice.conn.switch()
                await alice.until(lambda: len(alice.whole.rcv) == 1)
            await sending
            await alice.got(*sent)
            assert alice.bodies == sent
            assert set(alice.outcomes) == {"MsgOk"}
            reading.cancel()

    run_virtual(main())


@pytest.mark.parametrize("early", [False, True])
def test_both_sides_rotate_while_messages_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    async def main() -> None:
        async with friends(tmp_path, routers=3) as pair:
            alice, bob = pair.alice, pair.bob
            if early:
                deletes_early(monkeypatch, bob)
            people = (alice, bob)
            sent = [b"%d" % number for number in range(COUNT)]
            sending = [asyncio.create_task(send_all(friend, sent, 0.02)) for friend in people]
            await asyncio.sleep(0.1)
            await asyncio.gather(*(friend.conn.switch() for friend in people))
            await asyncio.gather(*sending)
            for friend in people:
                await friend.got(*sent)
            await at_rest(pair)
            for friend in people:
                assert friend.bodies == sent
                assert set(friend.outcomes) == {"MsgOk"}
                await friend.conn.switch()
            await at_rest(pair)
            await pair.talk("after")

    run_virtual(main())
