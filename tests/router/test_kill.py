"""A router killed repeatedly under load loses nothing that it acknowledged."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.support.router.ledgers import Fact, Ledger
from tests.support.router.load import UNLIMITED, Pair, Tally
from tests.support.serving.processes import router_in_process

KILLS = int(os.environ.get("BLINDPOST_KILLS", "20"))
SEED = int(os.environ.get("BLINDPOST_SEED", "1"))
PAIRS = 3


@pytest.mark.timeout(60 + 10 * KILLS)
async def test_what_was_answered_survives_kill_9_under_load(tmp_path: Path) -> None:
    seeded = random.Random(SEED)
    async with router_in_process(tmp_path / "router", *UNLIMITED) as router:
        tally = Tally()
        pairs = [Pair(router, tally, seeded.randrange(1 << 30)) for _ in range(PAIRS)]
        for _ in range(KILLS):
            tally.aim(seeded.randrange(1, 400))
            await router.start()
            async with asyncio.TaskGroup() as tasks:
                for pair in pairs:
                    tasks.create_task(pair.live())
                await tally.reached.wait()
                await asyncio.sleep(seeded.random() * 0.005)
                assert await router.end() == -signal.SIGKILL
        await router.start()
        for pair in pairs:
            await pair.check()
        left = [kept.known.recipient_id for pair in pairs for kept in pair.queues if kept.deleted is Fact.NO]
        assert await router.end(signal.SIGTERM) == 0
        dump = router.dump()
        assert sorted(dump["queues"]) == sorted(left)
        assert sorted(dump["senders"].values()) == sorted(left)
        assert len(dump["messages"]) == 0
        unanswered = [
            message
            for pair in pairs
            for kept in pair.queues
            for message in kept.ledger.sent
            if not message.answered
        ]
        assert unanswered, "the kills came when nothing was under way"
        assert b"unexpected" not in router.log
        assert b"ERROR" not in router.log


def book(*bodies: bytes, stored: Fact = Fact.YES) -> Ledger:
    """A queue to which these messages were sent."""
    ledger = Ledger()
    for body in bodies:
        message = ledger.asked(body)
        if stored is not Fact.MAYBE:
            ledger.answered(message, accepted=stored is Fact.YES)
    return ledger


def test_the_books_allow_what_may_happen_to_unanswered_commands() -> None:
    ledger = book(b"one", b"two", stored=Fact.MAYBE)
    ledger.answered(ledger.asked(b"three"), accepted=True)
    ledger.delivered(b"two", b"2")
    ledger.acknowledging()
    ledger.reconnected()
    ledger.delivered(b"three", b"3")
    ledger.acknowledging()
    ledger.reconnected()
    ledger.empty()


@pytest.mark.parametrize(
    ("bodies", "stored"),
    [
        pytest.param([b"two"], Fact.YES, id="lost"),
        pytest.param([b"one", b"one"], Fact.YES, id="again after its ACK"),
        pytest.param([b"two", b"one"], Fact.MAYBE, id="out of order"),
        pytest.param([b"three"], Fact.YES, id="never sent"),
        pytest.param([b"one"], Fact.NO, id="refused"),
    ],
)
def test_the_books_notice_what_must_not_happen(bodies: list[bytes], stored: Fact) -> None:
    ledger = book(b"one", b"two", stored=stored)
    *before, last = bodies
    for body in before:
        ledger.delivered(body, b"id of " + body)
        ledger.acknowledging()
        ledger.acknowledged()
    with pytest.raises(AssertionError):
        ledger.delivered(last, b"id of " + last)


def test_the_books_notice_a_message_that_never_came() -> None:
    ledger = book(b"one", b"two")
    ledger.delivered(b"one", b"1")
    ledger.acknowledging()
    with pytest.raises(AssertionError, match="1 messages"):
        ledger.empty()


def test_the_books_notice_two_messages_in_flight_and_other_ids() -> None:
    ledger = book(b"one", b"two")
    ledger.delivered(b"one", b"1")
    with pytest.raises(AssertionError, match="second message"):
        ledger.delivered(b"one", b"1")
    ledger.reconnected()
    with pytest.raises(AssertionError, match="another id"):
        ledger.delivered(b"one", b"2")
