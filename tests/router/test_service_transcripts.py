"""Every recorded conversation of a service, replayed to our router: it answers alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.wire.smp.responses import MSG
from tests.support.router.lines import create
from tests.support.router.replay import Replay, Step
from tests.support.router.routers import running_router
from tests.support.router.service_replay import ServiceReplay
from tests.support.router.services import ServiceLine, add_notifier
from tests.support.wire.smp_transcripts import FILES

SERVICES = [name for name in FILES if "20" <= name[:2] <= "26"]


def own(replay: Replay) -> ServiceReplay:
    assert isinstance(replay, ServiceReplay)
    return replay


async def _served(replay: ServiceReplay, connection: str) -> ServiceLine:
    """The service as it was before the recording begins: it has q1 and q2."""
    line = await replay.connected(connection)
    assert isinstance(line, ServiceLine)
    for name in ("q1", "q2"):
        await replay.make(line, name)
    return line


async def leave_two_queues(replay: Replay) -> None:
    await (await _served(own(replay), "A")).stream.close()


async def leave_two_queues_and_a_message(replay: Replay) -> None:
    line = await _served(own(replay), "A")
    await line.stream.close()
    sender = replay.lines["sender"] = await own(replay).plain_line()
    await own(replay).say(sender, "q1", own(replay).body(6))


async def serve_two_queues_with_messages(replay: Replay) -> None:
    """B serves both queues and has a message of each, which it does not acknowledge."""
    mine = own(replay)
    line = mine.lines["B"] = await _served(mine, "B")
    sender = mine.lines["sender"] = await mine.plain_line()
    for name, place in (("q1", 5), ("q2", 12)):
        await mine.say(sender, name, mine.body(place))
        recipient_id = mine.names.ours(mine.transcript.id(f"{name}.rcv_id"))
        assert isinstance((await line.event(recipient_id)).response, MSG)


async def leave(replay: Replay) -> None:
    await replay.lines.pop("B").stream.close()


async def leave_two_queues_and_a_notifier(replay: Replay) -> None:
    mine = own(replay)
    await leave_two_queues(mine)
    maker = mine.lines["maker"] = await mine.plain_line()
    queue = await create(maker)
    recorded = mine.recorded(16)[0].entity_id
    mine.names.same(recorded, await add_notifier(maker, queue))


async def make_notifiers(replay: Replay) -> None:
    mine = own(replay)
    maker = mine.lines["maker"] = await mine.plain_line()
    for name in ("q0", "q1#2", "q2#2"):
        await mine.make(maker, name, notifier=True)


def notify(name: str) -> Step:
    async def step(replay: Replay) -> None:
        await own(replay).say(replay.lines["maker"], name, b"ping", notify=True)

    return step


LEFT_OUT: dict[str, dict[int, Step]] = {
    "20": {},
    "21": {0: leave_two_queues},
    "22": {0: leave_two_queues_and_a_message},
    "23": {0: leave_two_queues},
    "24": {0: serve_two_queues_with_messages, 8: leave},
    "25": {0: leave_two_queues_and_a_notifier},
    "26": {0: make_notifiers, 11: notify("q0"), 18: notify("q1#2")},
}
"""What earlier recordings left behind and what a recording leaves out, by the event before which it was."""


@pytest.mark.parametrize("name", SERVICES)
async def test_our_router_answers_services_as_recorded(name: str, tmp_path: Path) -> None:
    async with running_router(tmp_path) as running:
        replay = ServiceReplay.of(name, running)
        try:
            await replay.run(LEFT_OUT[name[:2]])
        finally:
            await replay.close()
