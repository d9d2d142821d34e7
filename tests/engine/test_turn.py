"""What a turn collects, counts and observes is undone when it is rolled back."""

from __future__ import annotations

from enum import Enum

from blindpost.engine.histogram import Histogram
from blindpost.engine.meters import Meters
from blindpost.engine.turn import Turn
from blindpost.engine.undo import Undo


class Meter(Enum):
    SENT = "sent"
    LOST = "lost"


def test_a_turn_is_rolled_back_completely_or_to_a_mark() -> None:
    undo, meters, seconds = Undo(), Meters(Meter), Histogram((1.0,))
    turn, outbox = Turn(undo, meters), list[str]()
    turn.append(outbox, "a")
    turn.count(Meter.SENT)
    mark = undo.mark()
    turn.append(outbox, "b")
    turn.count(Meter.SENT, 2)
    turn.count(Meter.LOST)
    turn.observe(seconds, 0.5)
    undo.rollback(mark)
    assert (outbox, meters.values(), seconds.count) == (["a"], {"sent": 1, "lost": 0}, 0)
    undo.rollback()
    assert (outbox, meters[Meter.SENT]) == ([], 0)
