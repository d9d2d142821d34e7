"""Waiting for rotations."""

from __future__ import annotations

from tests.support.agent.friends import Friend, Friends


async def at_rest(pair: Friends) -> None:
    """Wait until no rotation is under way."""
    for friend in (pair.alice, pair.bob):
        await one_queue_each(friend)


async def one_queue_each(friend: Friend) -> None:
    await friend.until(lambda: len(friend.whole.rcv) == len(friend.whole.snd) == 1)
