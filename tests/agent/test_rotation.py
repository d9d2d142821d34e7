"""Queue rotation between two agents: who does what in which order, and what is stored meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import CommandCode, CommandError, QueueStatus, RcvSwitch, SndSwitch, SyncState
from blindpost.agent.store import connections
from blindpost.testing.clock import run_virtual
from blindpost.wire.agent.messages import AgentMessage, QKey
from blindpost.wire.queue_addresses import same_queue
from tests.support.agent.friends import Friend, Friends, friends

RECIPIENT = ["rcv started", "rcv confirmed", "rcv secured", "rcv completed"]
SENDER = ["snd started", "snd confirmed", "snd secured", "snd completed"]
ROTATION = ("QADD", "QKEY", "KEY", "QUSE", "QTEST", "DEL")


async def rotated(pair: Friends, times: int = 1) -> None:
    """Wait until Alice's queue has been rotated this many times."""
    await pair.alice.until(
        lambda: pair.alice.switches[-4:] == RECIPIENT and len(pair.alice.switches) >= 4 * times
    )
    await pair.bob.until(lambda: pair.bob.switches[-1:] == ["snd completed"])


async def said(pair: Friends, word: str, times: int = 1) -> None:
    await pair.alice.until(lambda: len(pair.wire.of(word)) >= times)


def clean(pair: Friends) -> None:
    """Nothing is left of a rotation, and nothing went wrong."""
    for friend in (pair.alice, pair.bob):
        (rcv,), (snd,) = friend.whole.rcv, friend.whole.snd
        assert rcv.primary
        assert snd.primary
        assert (rcv.switch, rcv.replaces, snd.switch, snd.replaces) == (None, None, None, None)
        assert not friend.errors
        assert set(friend.outcomes) == {"MsgOk"}
    assert same_queue(pair.alice.whole.rcv[0].sender_address, pair.bob.whole.snd[0].sender_address)
    assert same_queue(pair.bob.whole.rcv[0].sender_address, pair.alice.whole.snd[0].sender_address)


@pytest.mark.claim("CON-27")
@pytest.mark.parametrize("pq", [False, True], ids=["classic", "pq"])
def test_a_rotation(tmp_path: Path, pq: bool) -> None:
    async def main() -> None:
        async with friends(tmp_path, pq=pq) as pair:
            alice, bob = pair.alice, pair.bob
            await pair.talk("before")
            (old,) = alice.whole.rcv
            await alice.conn.switch()
            await rotated(pair)
            await pair.talk("after")
            said = [(asked.who, asked.word) for asked in pair.wire.log if asked.word in ROTATION]
            assert said == [
                ("alice", "QADD"),
                ("bob", "QKEY"),
                ("alice", "KEY"),
                ("alice", "QUSE"),
                ("bob", "QTEST"),
                ("alice", "DEL"),
            ]
            assert alice.switches == RECIPIENT
            assert bob.switches == SENDER
            assert alice.whole.rcv[0].server != old.server, "the other router is taken"
            assert pair.wire.of("DEL")[0].entity_id == old.rcv_id
            clean(pair)

    run_virtual(main())


def test_successive_rotations_on_both_sides_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path, routers=3) as pair:
            alice, bob = pair.alice, pair.bob
            places = [alice.whole.rcv[0].server]
            for turn in range(3):
                for friend in (alice, bob):
                    friend.events.clear()
                    await friend.conn.switch()
                await pair.talk(turn)
                for friend in (alice, bob):
                    await both_ways(friend)
                places.append(alice.whole.rcv[0].server)
                assert places[-1] != places[-2]
            await pair.quiet()
            await pair.talk("end")
            clean(pair)

    run_virtual(main())


async def both_ways(friend: Friend) -> None:
    await friend.until(lambda: {"rcv completed", "snd completed"} <= set(friend.switches))


def test_one_router_is_enough(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path, routers=1) as pair:
            old = pair.alice.whole.rcv[0]
            await pair.alice.conn.switch()
            await rotated(pair)
            assert pair.alice.whole.rcv[0].rcv_id != old.rcv_id
            await pair.talk("after")
            clean(pair)

    run_virtual(main())


@pytest.mark.claim("CON-26")
def test_when_a_rotation_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice = pair.alice
            waiting = await alice.agent.invite()
            with pytest.raises(CommandError, match="both ways"):
                await waiting.conn.switch()
            for state in SyncState:
                with alice.rt.ground.transaction() as tx:
                    connections.set_sync_state(tx, alice.conn.id, state)
                if state.send_prohibited:
                    with pytest.raises(CommandError) as refused:
                        await alice.conn.switch()
                    assert refused.value.code is CommandCode.PROHIBITED
            await pair.quiet()
            assert not pair.wire.words("QADD", "NEW")
            assert alice.whole.rcv[0].switch is None
            for sent, state in enumerate((SyncState.OK, SyncState.ALLOWED), 1):
                with alice.rt.ground.transaction() as tx:
                    connections.set_sync_state(tx, alice.conn.id, state)
                pair.wire.hold("QADD")
                await alice.conn.switch()
                await said(pair, "QADD", sent)
                with pytest.raises(CommandError, match="under way"):
                    await alice.conn.switch()
                await alice.conn.abort_switch()
                pair.wire.let("QADD")
                await pair.quiet()

    run_virtual(main())


@pytest.mark.claim("CON-28")
def test_what_the_sender_answers_to_qadd(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("QKEY")
            await alice.conn.switch()
            await bob.until(lambda: wire.words("QKEY"))
            (offered,) = (queue for queue in alice.whole.rcv if queue.replaces is not None)
            old, new = bob.whole.snd
            assert old.switch is SndSwitch.SENDING_QKEY
            assert new.replaces == old.number
            assert new.status is QueueStatus.NEW
            assert same_queue(new.sender_address, offered.sender_address)
            (sent,) = wire.of("QKEY")
            assert sent.entity_id == old.snd_id, "through the old queue only"
            assert isinstance(sent.content, AgentMessage)
            assert isinstance(sent.content.message, QKey)
            (keyed,) = sent.content.message.queues
            assert keyed.sender_key == new.key.public
            assert keyed.queue.address.dh_key == new.e2e_public
            assert same_queue(keyed.queue.address, offered.sender_address)
            assert new.e2e_secret == offered.e2e_key.agree(keyed.queue.address.dh_key)
            wire.let("QKEY")
            await rotated(pair)

    run_virtual(main())


@pytest.mark.claim("CON-29")
def test_quse_waits_until_the_new_queue_is_secured(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.failing += ["KEY"] * 3
            await alice.conn.switch()
            await alice.until(lambda: len(wire.of("KEY")) == 3)
            assert not wire.words("QUSE")
            assert alice.whole.rcv[0].switch is RcvSwitch.SENDING_QADD
            await rotated(pair)
            words = wire.words("KEY", "QUSE")
            assert words == ["KEY"] * 4 + ["QUSE"]
            assert len({asked.key for asked in wire.of("KEY")}) == 1
            assert wire.of("KEY")[0].key == bob.whole.snd[0].key.public
            clean_of_errors(alice, bob)

    run_virtual(main())


def clean_of_errors(*people: Friend) -> None:
    assert not [error for friend in people for error in friend.errors]


@pytest.mark.claim("CON-30", "CON-34")
def test_the_sender_tests_the_new_queue_and_stays_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            (before,) = bob.whole.snd
            wire.hold("QTEST")
            await alice.conn.switch()
            await bob.until(lambda: wire.words("QTEST"))
            old, new = bob.whole.snd
            assert old.snd_id == before.snd_id
            assert old.switch is SndSwitch.SENDING_QTEST
            assert new.status is QueueStatus.SECURED
            await bob.conn.send(b"meanwhile")
            await pair.quiet()
            assert not alice.bodies, "nothing overtakes QTEST"
            assert {asked.entity_id for asked in wire.of("QTEST")} == {new.snd_id}
            seen = len(wire.log)
            wire.let("QTEST")
            await rotated(pair)
            await pair.talk("after")
            assert not bob.rt.delivery.is_working(bob.conn.id, old.number)
            assert [queue.snd_id for queue in bob.whole.snd] == [new.snd_id]
            sends = [asked for asked in wire.log[seen:] if asked.who == "bob" and asked.word == "A_MSG"]
            assert {asked.entity_id for asked in sends} == {new.snd_id}
            clean(pair)
            assert alice.bodies[0] == b"meanwhile"

    run_virtual(main())


@pytest.mark.claim("CON-35")
def test_the_first_message_in_the_new_queue_deletes_the_old_one(tmp_path: Path) -> None:
    """Here it is an application message, since the old router was unreachable when it was sent."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            (old,) = alice.whole.rcv
            wire.hold("QUSE")
            await alice.conn.switch()
            await alice.until(lambda: wire.words("QUSE"))
            wire.hold("A_MSG")
            await bob.conn.send(b"waits for the old queue")
            await bob.until(lambda: wire.words("A_MSG"))
            wire.let("QUSE")
            await bob.until(lambda: "snd secured" in bob.switches)
            await pair.quiet()
            assert not wire.words("DEL")
            assert alice.whole.rcv[0].switch is RcvSwitch.SENDING_QUSE
            wire.let("A_MSG")
            await rotated(pair)
            (deleted,) = wire.of("DEL")
            assert (deleted.server, deleted.entity_id) == (old.server, old.rcv_id)
            assert alice.bodies == [b"waits for the old queue"]
            await pair.talk("after")
            clean(pair)

    run_virtual(main())
