"""Rotations started, aborted and interrupted at random, while messages flow both ways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import CommandError, SndSwitch
from blindpost.agent.rotation.draining import PATIENCE_S
from blindpost.testing.clock import run_virtual
from tests.support.agent.friends import Friend, Friends, friends

SEEDS = int(os.environ.get("BLINDPOST_AGENT_SEEDS", "4"))
FIRST_SEED = int(os.environ.get("BLINDPOST_FIRST_SEED", "0"))
STEPS = 40


class Chance:
    """Acts at random, and knows what the result must be."""

    def __init__(self, pair: Friends, seed: int) -> None:
        self.pair = pair
        self.random = random.Random(seed)
        self.sent: dict[str, list[bytes]] = {"alice": [], "bob": []}
        self.was_away_long = False
        """Whether the new queue of a rotation may have given up the wait for its old one's last messages."""

    @property
    def people(self) -> tuple[Friend, Friend]:
        return self.pair.alice, self.pair.bob

    async def step(self) -> None:
        friend = self.random.choice(self.people)
        match self.random.choices(("send", "switch", "abort", "restart", "away", "wait"), (8, 3, 1, 2, 1, 3))[
            0
        ]:
            case "send":
                for _ in range(self.random.randint(1, 4)):
                    body = f"{len(self.sent[friend.path.stem])}".encode()
                    await friend.conn.send(body)
                    self.sent[friend.path.stem].append(body)
            case "switch":
                await self.try_to(friend.conn.switch())
            case "abort":
                await self.try_to(friend.conn.abort_switch())
            case "restart":
                await friend.restart()
            case "away":
                place = self.random.choice(self.pair.places)
                await place.stop()
                away_s = self.random.choice((0.1, 5, 100))
                self.was_away_long |= away_s > PATIENCE_S
                await self.pair.quiet(away_s)
                await place.start()
            case "wait":
                await self.pair.quiet(self.random.choice((0.01, 0.1, 1, 10)))

    async def try_to(self, attempt: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(CommandError):
            await attempt

    async def settled(self) -> None:
        """Everything started ends by itself; a last restart resends what was lost in a crash."""
        await self.pair.quiet(600)
        for friend in self.people:
            await friend.restart()
        await self.pair.quiet(600)
        for friend in self.people:
            assert [queue.switch for queue in friend.whole.rcv] == [None]
            left = [queue.switch for queue in friend.whole.snd]
            assert left in ([None], [SndSwitch.SENDING_QKEY, None]), f"not told of an abort: {left}"

    def judge(self) -> None:
        for friend, other in (self.people, self.people[::-1]):
            offered = list({message.id: message for message in friend.messages}.values())
            bodies = [message.body for message in offered]
            integrity = {type(message.integrity).__name__ for message in offered}
            assert sorted(bodies) == sorted(self.sent[other.path.stem]), "each once"
            if not self.was_away_long:
                assert bodies == self.sent[other.path.stem]
                assert integrity <= {"MsgOk"}
            assert integrity <= {"MsgOk", "MsgSkipped", "MsgBadId"}
            assert set(friend.errors) <= {"AGENT A_QUEUE"}, "QKEY for a rotation that was taken back"


def test_one_seed_gives_one_course_of_events(tmp_path: Path) -> None:
    async def course(folder: Path) -> list[object]:
        async with friends(folder, routers=3, seed="course") as pair:
            chance = Chance(pair, 7)
            for _ in range(15):
                await chance.step()
            await pair.quiet(600)
            said = [(asked.who, asked.word, asked.entity_id) for asked in pair.wire.log]
            told = [event.name for friend in chance.people for event in friend.events]
            return [*said, *told, asyncio.get_running_loop().time()]

    courses = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        courses.append(run_virtual(course(folder)))
    assert courses[0] == courses[1]


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_random_rotations_lose_no_messages(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        async with friends(tmp_path, routers=3, seed=seed) as pair:
            chance = Chance(pair, seed)
            for _ in range(STEPS):
                await chance.step()
            await chance.settled()
            await pair.talk("end")
            chance.sent["alice"].append(b"from alice end")
            chance.sent["bob"].append(b"from bob end")
            chance.judge()

    run_virtual(main())
