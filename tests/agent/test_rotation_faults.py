"""Interrupted rotations: restarts in every state, lost messages, unreachable routers, aborts."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import CommandError, RcvSwitch, SendDelayed, Sent, SyncState
from blindpost.agent.model import RcvQueue
from blindpost.agent.rotation.recipient import DELETE_OLD, SECURE, SWITCH
from blindpost.agent.rotation.rotation import REPEAT_CHECK_S, REPEAT_FIRST_S, in_step
from blindpost.agent.store import commands, connections, queues
from blindpost.agent.store.commands import StoredCommand
from blindpost.agent.work.commands import CommandWorkers
from blindpost.client.calls import Call
from blindpost.client.errors import RefusedError
from blindpost.router.config import RouterRules
from blindpost.testing.clock import run_virtual
from blindpost.wire.agent.messages import AgentMessage, AQCont
from blindpost.wire.smp.commands import QUE
from blindpost.wire.smp.values import QueueMode
from tests.support.agent.friends import Friends, friends
from tests.support.agent.rotations import at_rest

HELD = {
    RcvSwitch.SWITCH_STARTED: "NEW",
    RcvSwitch.SENDING_QADD: "QADD",
    RcvSwitch.SENDING_QUSE: "QUSE",
    RcvSwitch.RECEIVED_MESSAGE: "DEL",
}
"""What must fail for a rotation to stay in each state."""


async def in_state(pair: Friends, state: RcvSwitch) -> RcvQueue:
    """Bring Alice's rotation into this state and keep it there; returns her old queue."""
    pair.wire.refusing.add(HELD[state])
    await pair.alice.conn.switch()
    await pair.alice.until(lambda: any(queue.switch is state for queue in pair.alice.whole.rcv))
    await pair.quiet()
    (old,) = (queue for queue in pair.alice.whole.rcv if queue.switch is not None)
    assert old.switch is state
    return old


def nothing_wrong(pair: Friends) -> None:
    for friend in (pair.alice, pair.bob):
        assert not friend.errors
        assert set(friend.outcomes) <= {"MsgOk"}
        assert len(set(friend.bodies)) == len({message.id for message in friend.messages})


@pytest.mark.claim("CON-31")
@pytest.mark.parametrize("state", RcvSwitch)
def test_a_restart_in_every_state(tmp_path: Path, state: RcvSwitch) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            await in_state(pair, state)
            await pair.alice.stop()
            pair.wire.refusing.clear()
            await pair.alice.start()
            await at_rest(pair)
            await pair.talk("after")
            nothing_wrong(pair)
            for word in ("QADD", "QUSE"):
                assert len({asked.number for asked in pair.wire.of(word)}) == 1, (
                    "what waits is not sent again"
                )
            told = [switch for switch in pair.alice.switches if switch.startswith("rcv")]
            assert told == ["rcv started", "rcv confirmed", "rcv secured", "rcv completed"]

    run_virtual(main())


@pytest.mark.claim("CON-31")
def test_a_rotation_without_a_queue_and_without_a_command_for_one(tmp_path: Path) -> None:
    """The command was refused for good, or is lost: the next start makes another."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            await in_state(pair, RcvSwitch.SWITCH_STARTED)
            pending = "SELECT count(*) FROM commands"
            assert pair.alice.rt.ground.store.reading.sql.execute(pending).fetchone() == (1,)
            with pair.alice.rt.ground.transaction() as tx:
                tx.sql.execute("DELETE FROM commands")
            await tx.durable()
            await pair.alice.stop()
            pair.wire.refusing.clear()
            await pair.alice.start()
            await pair.alice.until(lambda: "rcv completed" in pair.alice.switches)
            await pair.talk("after")
            nothing_wrong(pair)

    run_virtual(main())


@pytest.mark.claim("CON-31")
def test_a_queue_that_waits_for_the_ratchets_is_made_once(tmp_path: Path) -> None:
    """It was stored, and the agent ended before its command was: the command runs again."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice = pair.alice
            await in_state(pair, RcvSwitch.SWITCH_STARTED)
            with alice.rt.ground.transaction() as tx:
                connections.set_sync_state(tx, alice.conn.id, SyncState.REQUIRED)
            pair.wire.refusing.clear()
            await alice.until(lambda: len(alice.whole.rcv) == 2)
            await pair.quiet()
            old, new = alice.whole.rcv
            assert old.switch is RcvSwitch.SWITCH_STARTED
            with alice.rt.ground.transaction() as tx:
                commands.insert(tx, old.conn_id, None, SWITCH, b"", tx.now)
            await alice.stop()
            await alice.start()
            await pair.quiet()
            assert [queue.rcv_id for queue in alice.whole.rcv] == [old.rcv_id, new.rcv_id]
            with alice.rt.ground.transaction() as tx:
                connections.set_sync_state(tx, alice.conn.id, SyncState.OK)
                in_step(tx, alice.conn.id)
            await at_rest(pair)
            await pair.talk("after")
            nothing_wrong(pair)

    run_virtual(main())


@pytest.mark.claim("CON-31")
@pytest.mark.parametrize("out_of_step", [False, True], ids=["in step", "out of step"])
@pytest.mark.parametrize("tag", [SWITCH, SECURE, DELETE_OLD])
def test_each_command_may_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, out_of_step: bool
) -> None:
    """What it did was stored, and that it was done was not; meanwhile the ratchets may be out of step."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, ran = pair.alice, list[list[bytes]]()

            def set_state(state: SyncState) -> None:
                with alice.rt.ground.transaction() as tx:
                    connections.set_sync_state(tx, alice.conn.id, state)
                    in_step(tx, alice.conn.id)

            async def twice(workers: CommandWorkers, command: StoredCommand) -> None:
                if command.tag != tag:
                    await handle(workers, command)
                    return
                if out_of_step:
                    set_state(SyncState.REQUIRED)
                for _ in range(2):
                    await handle(workers, command)
                    ran.append([queue.rcv_id for queue in alice.whole.rcv])
                set_state(SyncState.OK)

            handle = CommandWorkers._handle
            monkeypatch.setattr(CommandWorkers, "_handle", twice)
            await alice.conn.switch()
            await alice.until(lambda: "rcv completed" in alice.switches)
            first, second = ran
            assert first == second
            await at_rest(pair)
            await pair.talk("after")
            nothing_wrong(pair)
            assert alice.switches == ["rcv started", "rcv confirmed", "rcv secured", "rcv completed"]
            for word in ("QADD", "QUSE", "QTEST"):
                assert len({asked.number for asked in pair.wire.of(word)}) == 1

    run_virtual(main())


def test_room_in_a_queue_that_was_left_meanwhile(tmp_path: Path) -> None:
    """The old queue is emptied while its sender leaves it; the sender hears of it later, and says nothing."""

    async def main() -> None:
        async with friends(tmp_path, rules=RouterRules(quota=3)) as pair:
            alice, bob = pair.alice, pair.bob
            old = await in_state(pair, RcvSwitch.SENDING_QUSE)
            alice.acknowledges = False
            sent = [b"%d" % number for number in range(5)]
            for body in sent:
                await bob.conn.send(body)
            await bob.until(lambda: bob.of(SendDelayed))
            pair.wire.hold("A_QCONT")
            alice.acknowledges = True
            await alice.messages[0].ack()
            await alice.got(*sent[:3])
            pair.wire.refusing.clear()
            await bob.until(lambda: "snd secured" in bob.switches)
            await pair.quiet(5)
            await bob.restart()
            await bob.until(lambda: "snd completed" in bob.switches)
            (waiting,) = pair.wire.of("A_QCONT")
            assert isinstance(waiting.content, AgentMessage)
            assert waiting.content.message == AQCont(old.sender_address)
            pair.wire.let("A_QCONT")
            await alice.until(lambda: "rcv completed" in alice.switches)
            await alice.got(*sent)
            await pair.talk("after")
            nothing_wrong(pair)

    run_virtual(main())


@pytest.mark.claim("CON-64")
def test_nothing_is_asked_again_while_it_is_our_turn(tmp_path: Path) -> None:
    """The peer has answered, and the router does not take its key yet."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, wire = pair.alice, pair.wire
            wire.refusing.add("KEY")
            await alice.conn.switch()
            await pair.quiet(4 * REPEAT_FIRST_S)
            await alice.restart()
            await pair.quiet()
            assert wire.words("QADD", "QKEY") == ["QADD", "QKEY"]
            wire.refusing.clear()
            await at_rest(pair)
            await pair.talk("after")
            nothing_wrong(pair)

    run_virtual(main())


@pytest.mark.claim("CON-64")
def test_what_is_not_answered_is_asked_less_and_less_often(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, wire = pair.alice, pair.wire
            wire.lost.extend(["QKEY"] * 1000)
            await alice.conn.switch()
            await pair.quiet(15 * REPEAT_FIRST_S + 4 * REPEAT_CHECK_S)
            assert len(wire.of("QADD")) == 1 + 4, "after 1, 3, 7 and 15 times the first pause"
            wire.lost.clear()
            await pair.quiet(16 * REPEAT_FIRST_S)
            await at_rest(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-32")
def test_a_queue_of_a_rotation_that_was_taken_back_is_not_asked_for_again(tmp_path: Path) -> None:
    """Its router made it and the answer was lost: the next rotation asks for a queue of its own."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, wire = pair.alice, pair.wire
            old = await in_state(pair, RcvSwitch.SWITCH_STARTED)
            reading, conn_id = alice.rt.ground.store.reading, alice.conn.id
            request = alice.rt.maker.new_request(
                conn_id, old.user_id, old.server, QueueMode.MESSAGING, old.number
            )
            with alice.rt.ground.transaction() as tx:
                queues.insert_request(tx, request)
            await alice.conn.abort_switch()
            assert queues.find_request(reading, conn_id, old.number) is None
            wire.refusing.clear()
            await alice.conn.switch()
            await at_rest(pair)
            await pair.talk("after")
            nothing_wrong(pair)

    run_virtual(main())


@pytest.mark.parametrize("word", ["QADD", "QKEY", "QUSE", "QTEST"])
def test_the_peer_restarts_at_every_message(tmp_path: Path, word: str) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            pair.wire.hold(word)
            await pair.alice.conn.switch()
            await pair.alice.until(lambda: pair.wire.words(word))
            await pair.bob.stop()
            pair.wire.let(word)
            await pair.bob.start()
            await at_rest(pair)
            await pair.talk("after")
            nothing_wrong(pair)

    run_virtual(main())


@pytest.mark.claim("CON-32")
@pytest.mark.parametrize("state", RcvSwitch)
def test_aborting_a_rotation(tmp_path: Path, state: RcvSwitch) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob = pair.alice, pair.bob
            old = await in_state(pair, state)
            news = [queue for queue in alice.whole.rcv if queue.replaces == old.number]
            allowed = state in (RcvSwitch.SWITCH_STARTED, RcvSwitch.SENDING_QADD)
            (switching,) = (queue.switch for queue in alice.conn.stats.rcv if queue.switch is not None)
            assert (switching.status, switching.can_abort) == (state, allowed)
            if not allowed:
                with pytest.raises(CommandError, match="left the old queue"):
                    await alice.conn.abort_switch()
                pair.wire.refusing.clear()
                await at_rest(pair)
            else:
                await alice.conn.abort_switch()
                pair.wire.refusing.clear()
                await pair.quiet()
                for new in news:
                    assert await is_gone(pair, new)
            assert [queue.rcv_id == old.rcv_id for queue in alice.whole.rcv] == [allowed]
            assert alice.whole.rcv[0].switch is None
            await pair.talk("after")
            assert set(alice.outcomes + bob.outcomes) == {"MsgOk"}
            with pytest.raises(CommandError, match="no rotation is under way"):
                await alice.conn.abort_switch()

    run_virtual(main())


@pytest.mark.claim("CON-32")
def test_aborting_a_rotation_after_the_sender_sent_its_key(tmp_path: Path) -> None:
    """The new queue was about to be secured; now it is only deleted."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.refusing |= {"KEY", "DEL"}
            await alice.conn.switch()
            await alice.until(lambda: wire.words("KEY"))
            (new,) = (queue for queue in alice.whole.rcv if queue.replaces is not None)
            await alice.conn.abort_switch()
            await pair.quiet()
            wire.refusing.clear()
            await pair.quiet(60)
            assert await is_gone(pair, new)
            assert not wire.words("QUSE")
            assert not alice.errors + bob.errors
            await pair.talk("after")
            await alice.conn.switch()
            await at_rest(pair)
            await pair.talk("later")
            nothing_wrong(pair)

    run_virtual(main())


async def is_gone(pair: Friends, queue: RcvQueue) -> bool:
    """Whether the router does not know the queue."""
    client = await pair.alice.rt.sessions.session(pair.alice.rt.sessions.key(1, queue.server))
    (result,) = await client.client.send_many([Call(QUE(), queue.rcv_id, queue.key)])
    return isinstance(result, RefusedError)


@pytest.mark.claim("CON-33")
def test_a_rotation_after_an_aborted_one(tmp_path: Path) -> None:
    """The sender still has a queue of the first rotation when the second starts, and drops it."""

    async def main() -> None:
        async with friends(tmp_path, routers=3) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("QKEY")
            await alice.conn.switch()
            await bob.until(lambda: wire.words("QKEY"))
            (old, stale) = bob.whole.snd
            assert stale.replaces == old.number
            await alice.conn.abort_switch()
            await alice.conn.switch()
            await bob.until(lambda: len(wire.of("QADD")) == 2)
            await pair.quiet()
            (kept, newest) = bob.whole.snd
            assert kept.snd_id == old.snd_id
            assert newest.replaces == old.number
            assert newest.snd_id != stale.snd_id
            wire.let("QKEY")
            await at_rest(pair)
            await pair.talk("after")
            assert bob.whole.snd[0].snd_id == newest.snd_id
            assert not alice.errors, "the first QKEY is for a queue that was taken back"
            assert not bob.errors
            assert set(alice.outcomes + bob.outcomes) == {"MsgOk"}

    run_virtual(main())


@pytest.mark.claim("CON-64")
@pytest.mark.parametrize("word", ["QADD", "QKEY", "QUSE", "QTEST"])
def test_a_rotation_message_that_is_lost(tmp_path: Path, word: str) -> None:
    """The router accepted and lost it: the rotation shows how long it has stalled, and resumes by itself."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.lost.append(word)
            await alice.conn.switch()
            await pair.quiet(40)
            assert not wire.lost
            stalled = [queue.switch for queue in alice.conn.stats.rcv if queue.switch is not None]
            expected = RcvSwitch.SENDING_QADD if word in ("QADD", "QKEY") else RcvSwitch.SENDING_QUSE
            assert [switch.status for switch in stalled] == [expected]
            assert 30 <= stalled[0].age_s <= 40
            await at_rest(pair)
            await pair.talk("after")
            assert not alice.errors + bob.errors
            assert alice.whole.rcv[0].status.value == "active"

    run_virtual(main())


@pytest.mark.claim("CON-64")
def test_a_second_qkey_or_quse_is_harmless(tmp_path: Path) -> None:
    """Alice is not sure that her message arrived and resends it: it takes effect only once."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            for word, answer in (("QKEY", "QADD"), ("QTEST", "QUSE")):
                alice.events.clear()
                bob.events.clear()
                wire.log.clear()
                wire.hold(word)
                await alice.conn.switch()
                await bob.until(lambda word=word: wire.words(word))  # type: ignore[misc]
                await alice.restart()
                await pair.quiet()
                assert wire.words(answer) == [answer, answer]
                wire.let(word)
                await at_rest(pair)
                await pair.talk(word)
                nothing_wrong(pair)

    run_virtual(main())


@pytest.mark.claim("CON-36")
@pytest.mark.parametrize("seed", range(2))
def test_messages_during_rotations_with_restarts(tmp_path: Path, seed: int) -> None:
    """Messages both ways all the time: each arrives once, in order, and the chain is intact."""

    async def main() -> None:
        async with friends(tmp_path, pq=seed == 0, routers=3) as pair:
            alice, bob = pair.alice, pair.bob
            expected: dict[str, list[bytes]] = {"alice": [], "bob": []}
            for turn in range(20):
                for friend, other in ((alice, "bob"), (bob, "alice")):
                    for number in range(3):
                        body = f"{turn}.{number}".encode()
                        await friend.conn.send(body)
                        expected[other].append(body)
                if turn % 6 == seed:
                    rotating = (alice, bob)[turn // 6 % 2]
                    if all(queue.switch is None for queue in rotating.whole.rcv):
                        await rotating.conn.switch()
                if turn % 5 == seed:
                    await (alice, bob)[turn // 5 % 2].restart()
                await pair.quiet(0.05 * (turn % 4))
            await alice.got(expected["alice"][-1])
            await bob.got(expected["bob"][-1])
            await at_rest(pair)
            for friend, name in ((alice, "alice"), (bob, "bob")):
                offered = list({message.id: message for message in friend.messages}.values())
                assert [message.body for message in offered] == expected[name]
                assert {type(message.integrity).__name__ for message in offered} == {"MsgOk"}
                assert not friend.errors
            assert sum(switch == "rcv completed" for switch in alice.switches + bob.switches) >= 3

    run_virtual(main())


def test_what_is_left_in_the_old_queue_comes_first(tmp_path: Path) -> None:
    """The application is slow: messages still wait in the old queue when the new one is in use."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("QUSE")
            await alice.conn.switch()
            await alice.until(lambda: wire.words("QUSE"))
            alice.acknowledges = False
            sent = [b"%d" % number for number in range(4)]
            for body in sent[:3]:
                await bob.conn.send(body)
            await alice.got(sent[0])
            wire.let("QUSE")
            await bob.until(lambda: bob.switches[-1:] == ["snd completed"])
            await bob.conn.send(sent[3])
            await pair.quiet(600)
            assert alice.bodies == sent[:1]
            assert not wire.words("DEL")
            for number, body in enumerate(sent):
                await alice.got(body)
                await alice.messages[number].ack()
            await at_rest(pair)
            assert alice.bodies == sent
            nothing_wrong(pair)

    run_virtual(main())


def test_the_old_router_is_gone_for_good(tmp_path: Path) -> None:
    """Why people rotate: nothing sent before is lost, only the old queue is left undeleted."""

    async def main() -> None:
        async with friends(tmp_path, routers=3) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("QUSE")
            await alice.conn.switch()
            await alice.until(lambda: wire.words("QUSE"))
            (old,) = (queue for queue in alice.whole.rcv if queue.switch is not None)
            (place,) = (place for place in pair.places if place.server == old.server)
            (new,) = (queue for queue in alice.whole.rcv if queue.replaces is not None)
            assert old.server not in (new.server, bob.whole.rcv[0].server)
            await place.stop()
            await bob.conn.send(b"sent while the old router is away")
            wire.let("QUSE")
            await alice.got(b"sent while the old router is away")
            await bob.until(lambda: bob.switches[-1:] == ["snd completed"])
            assert alice.outcomes == ["MsgOk"]
            await pair.talk("after")
            await place.start()
            await at_rest(pair)

    run_virtual(main())


def test_an_old_queue_is_not_deleted_with_messages_in_it(tmp_path: Path) -> None:
    """Its router is unreachable for longer than the new queue waits, then answers before the subscription."""

    async def main() -> None:
        async with friends(tmp_path, routers=3, seed=1) as pair:
            alice, bob = pair.alice, pair.bob
            places = {place.server: place for place in pair.places}
            old = alice.whole.rcv[0]
            assert old.server != alice.whole.snd[0].server, "Bob can be told"
            pair.wire.hold("QUSE")
            await alice.conn.switch()
            await alice.until(lambda: pair.wire.of("QUSE"))
            await alice.stop()
            pair.wire.let("QUSE")
            await bob.conn.send(b"late")
            await bob.until(lambda: bob.of(Sent))
            away = places[old.server]
            await away.stop()
            await alice.start()
            alice.agent.set_online(False)
            await bob.until(lambda: "snd completed" in bob.switches)
            await pair.quiet(300)
            pair.wire.log.clear()
            await away.start()
            await pair.quiet(300)
            assert set(pair.wire.words("QUE", "DEL")) == {"QUE"}, "it was looked at, and left alone"
            alice.agent.set_online(True)
            await alice.got(b"late")
            await alice.until(lambda: "rcv completed" in alice.switches)
            await pair.talk("after it")
            assert [queue.rcv_id for queue in alice.whole.rcv] != [old.rcv_id]
            assert not alice.errors + bob.errors

    run_virtual(main())
