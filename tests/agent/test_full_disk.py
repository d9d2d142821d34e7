"""A store that takes nothing for a moment delays an agent's work, and ends none of it."""

from __future__ import annotations

import asyncio

import pytest

from blindpost.agent import Received, StoreFailedError
from blindpost.store.sqlite import SqliteStore
from blindpost.testing import Peer, World, virtual


class Disk:
    """Refuses so many of the next commits of one agent."""

    def __init__(self, peer: Peer) -> None:
        self.full_for = 0
        self.refused = 0
        self._file: SqliteStore = peer.agent._ground.store._file
        self._commit = self._file.commit
        self._file.commit = self.commit  # type: ignore[method-assign]

    def commit(self) -> None:
        if self.full_for:
            self.full_for -= 1
            self.refused += 1
            self._file.rollback()
            raise StoreFailedError("the disk is full")
        self._commit()


@pytest.mark.parametrize("commits", [1, 2, 3, 5])
@virtual
async def test_a_message_is_delivered_although_its_retries_could_not_be_stored(
    world: World, commits: int
) -> None:
    alice, bob = await world.pair()
    disk = Disk(alice)
    async with world.router.down():
        await alice.conn.send(b"late")
        await asyncio.sleep(1)
        disk.full_for = commits
        await asyncio.sleep(300)
        assert disk.refused == commits
    received = await bob.expect(Received)
    assert received.msg.body == b"late"


@virtual
async def test_periodic_work_goes_on(world: World) -> None:
    """The first cleanup meets a full disk; the next one must happen."""
    alice, _ = await world.pair()
    disk = Disk(alice)
    disk.full_for = 1
    await asyncio.sleep(60)
    assert disk.refused == 1
    disk.full_for = 1
    await asyncio.sleep(400)
    assert disk.refused == 2


@virtual
async def test_what_a_program_asks_for_while_the_disk_is_full_did_not_happen(world: World) -> None:
    alice, bob = await world.pair()
    disk = Disk(alice)
    disk.full_for = 1
    with pytest.raises(StoreFailedError, match="the disk is full"):
        await alice.conn.send(b"one")
    assert not alice.agent.is_broken
    await alice.conn.send(b"two")
    assert (await bob.expect(Received)).msg.body == b"two"
