"""Deleting connections: queues at routers that answer, that are away, that stay away; messages that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import ConnectionCode, ConnectionsDeleted, ConnError, QueuesDeleted, SendFailed, Sent
from blindpost.agent.config import DAY_S
from blindpost.agent.queues import deletion
from blindpost.agent.store import deletion as rows
from blindpost.testing.clock import run_virtual
from tests.support.agent.friends import Friend, Friends, Place, friends


def place_of(pair: Friends, friend: Friend) -> Place:
    """The router that this friend receives from."""
    (place,) = (place for place in pair.places if place.server == friend.whole.rcv[0].server)
    return place


def rows_left(friend: Friend) -> int:
    """What the store still has of connections."""
    counted = (
        "SELECT (SELECT count(*) FROM connections) + (SELECT count(*) FROM rcv_queues)"
        " + (SELECT count(*) FROM snd_queues) + (SELECT count(*) FROM ratchets)"
        " + (SELECT count(*) FROM messages) + (SELECT count(*) FROM snd_message_deliveries)"
    )
    (left,) = friend.rt.ground.store.reading.sql.execute(counted).fetchone()
    return int(left)


def is_known(friend: Friend, conn_id: str) -> bool:
    try:
        friend.agent.connection(conn_id)
    except ConnError as error:
        return error.code is not ConnectionCode.NOT_FOUND
    return True


async def deleted(friend: Friend) -> None:
    await friend.until(lambda: friend.of(ConnectionsDeleted))


def test_deleting_a_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await pair.talk("before")
            conn_id, (queue,) = alice.conn.id, alice.whole.rcv
            await alice.conn.delete()
            assert not is_known(alice, conn_id), "at once"
            await deleted(alice)
            (told,) = alice.of(QueuesDeleted)
            assert told.queues == ((conn_id, queue.server, queue.rcv_id, None),)
            assert [event.conn_ids for event in alice.of(ConnectionsDeleted)] == [(conn_id,)]
            assert [asked.entity_id for asked in wire.of("DEL")] == [queue.rcv_id]
            assert rows_left(alice) == 0
            assert not alice.agent.connections()
            await bob.conn.send(b"into the void")
            await bob.until(lambda: bob.of(SendFailed))
            assert bob.of(SendFailed)[0].error.word == "SMP AUTH"

    run_virtual(main())


def test_deleting_a_connection_without_a_peer(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice = pair.alice
            for link in (await alice.agent.invite(), await alice.agent.address(user_data=b"")):
                await link.conn.delete()
            await alice.until(lambda: len(alice.of(ConnectionsDeleted)) == 2)
            assert all(told.queues[0][3] is None for told in alice.of(QueuesDeleted))
            assert [conn.id for conn in alice.agent.connections()] == [alice.conn.id]
            await pair.talk("undisturbed")

    run_virtual(main())


def test_deletion_waits_for_an_unreachable_router(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, conn_id, place = pair.alice, pair.alice.conn.id, place_of(pair, pair.alice)
            await place.stop()
            await alice.conn.delete()
            await pair.quiet(900)
            assert not is_known(alice, conn_id)
            assert not alice.of(ConnectionsDeleted)
            await alice.restart()
            assert not is_known(alice, conn_id)
            await place.start()
            await deleted(alice)
            assert alice.of(QueuesDeleted)[0].queues[0][3] is None
            assert rows_left(alice) == 0

    run_virtual(main())


def test_deletion_gives_up_on_a_router_that_stays_unreachable(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, wire, place = pair.alice, pair.wire, place_of(pair, pair.alice)
            await place.stop()
            await alice.conn.delete()
            await pair.quiet(DAY_S)
            assert len(wire.of("DEL")) > deletion.ATTEMPTS_MAX, "those soon after the call do not count"
            assert len(wire.of("DEL")) < 5 * deletion.ATTEMPTS_MAX
            ((_, _, _, error),) = alice.of(QueuesDeleted)[0].queues
            assert error is not None
            assert error.retried
            assert alice.of(ConnectionsDeleted)
            assert rows_left(alice) == 0

    run_virtual(main())


def test_deletion_drops_commands_waiting_for_the_router(tmp_path: Path) -> None:
    """An acknowledgement that cannot be sent is deleted with the connection."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, place = pair.alice, pair.bob, place_of(pair, pair.alice)
            alice.acknowledges = False
            await bob.conn.send(b"one")
            await alice.got(b"one")
            await place.stop()
            await alice.messages[0].ack()
            await alice.conn.delete()
            await pair.quiet(900)
            await alice.restart()
            await place.start()
            await deleted(alice)
            assert rows_left(alice) == 0
            assert alice.rt.ground.store.reading.sql.execute("SELECT count(*) FROM commands").fetchone() == (
                0,
            )

    run_virtual(main())


def test_deleting_while_a_queue_rotates(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, wire = pair.alice, pair.wire
            wire.refusing.add("QUSE")
            await alice.conn.switch()
            await alice.until(lambda: wire.words("QUSE"))
            both = {queue.rcv_id for queue in alice.whole.rcv}
            assert len(both) == 2
            await alice.conn.delete()
            await deleted(alice)
            assert {asked.entity_id for asked in wire.of("DEL")} == both
            assert rows_left(alice) == 0

    run_virtual(main())


@pytest.mark.parametrize("restarted", [False, True])
def test_waiting_for_delivery(tmp_path: Path, restarted: bool) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, place = pair.alice, pair.bob, place_of(pair, pair.bob)
            await place.stop()
            for number in range(3):
                await alice.conn.send(b"last words %d" % number)
            await alice.conn.delete(wait_delivery=True)
            await pair.quiet(600)
            assert alice.of(QueuesDeleted), "nothing more is received"
            assert not alice.agent.connections()
            assert not alice.of(ConnectionsDeleted)
            if restarted:
                await alice.restart()
            await place.start()
            await bob.got(b"last words 0", b"last words 1", b"last words 2")
            await deleted(alice)
            assert len(alice.of(Sent)) == 3
            assert rows_left(alice) == 0

    run_virtual(main())


def test_waiting_with_nothing_to_wait_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            await pair.alice.conn.delete(wait_delivery=True)
            await deleted(pair.alice)
            assert rows_left(pair.alice) == 0

    run_virtual(main())


def test_waiting_for_a_peer_that_is_gone(tmp_path: Path) -> None:
    """The peer's queue does not exist any more: there is nothing to wait for."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, place = pair.alice, pair.bob, place_of(pair, pair.bob)
            await bob.conn.delete()
            await deleted(bob)
            await place.stop()
            await alice.conn.send(b"last words")
            await alice.conn.delete(wait_delivery=True)
            await pair.quiet(600)
            assert not alice.of(ConnectionsDeleted)
            await place.start()
            await deleted(alice)
            assert alice.of(SendFailed)[0].error.word == "SMP AUTH"
            assert rows_left(alice) == 0

    run_virtual(main())


def test_waiting_ends_after_two_days(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, place = pair.alice, place_of(pair, pair.bob)
            await place.stop()
            await pair.bob.stop()
            await alice.conn.send(b"last words")
            conn_id = alice.conn.id
            await alice.conn.delete(wait_delivery=True)
            for days in (1.9, 0.2):
                assert rows.waiting_since(alice.rt.ground.store.reading, conn_id) is not None
                await alice.stop()
                await pair.quiet(days * DAY_S)
                await alice.start()
                await pair.quiet(60)
            assert alice.of(ConnectionsDeleted)
            assert rows_left(alice) == 0

    run_virtual(main())
