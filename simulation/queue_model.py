"""What a router promises of one queue whose owner has several connections, judged by what they were told."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulation.model import ViolationError


@dataclass(eq=False)
class Line:
    """One connection of the owner, as far as the queue is concerned."""

    name: str
    holds: bool = False
    """Whether it has asked for the queue, and was not told that it lost it."""
    ended: bool = False
    contested: bool = False
    """Whether another one asked for the queue since, or at the same time."""
    in_flight: bool = False

    def acknowledges(self) -> None:
        self.in_flight = False


@dataclass
class QueueModel:
    """One queue, by the numbers of its messages."""

    said: int = 0
    taken: set[int] = field(default_factory=set)
    """Those that the router took: they must come."""
    refused: set[int] = field(default_factory=set)
    """Those it refused: they must not. What is in neither may come or not."""
    given: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    """Those whose acknowledgement was answered."""
    lines: list[Line] = field(default_factory=list)
    """All that asked for the queue."""
    asking: list[Line] = field(default_factory=list)
    """Those that were not answered: the router may hear them late."""

    def say(self) -> int:
        self.said += 1
        return self.said

    def subscribes(self, line: Line) -> None:
        """A new connection asks for the queue; whoever had it may lose it from now on."""
        for other in self.lines:
            other.contested = True
        line.holds, line.contested = True, bool(self.asking)
        self.lines.append(line)
        self.asking.append(line)

    def subscribed(self, line: Line) -> None:
        """It was answered."""
        self.asking.remove(line)

    def came(self, line: Line, number: int | None) -> None:
        """A message came; None is the marker of a full queue."""
        if line.ended:
            raise ViolationError(f"{line.name} was given {number} after it was told that it lost the queue")
        if line.in_flight:
            raise ViolationError(f"{line.name} was given {number} before it had acknowledged another")
        line.in_flight = True
        if number is None:
            return
        if not 1 <= number <= self.said or number in self.refused:
            raise ViolationError(f"{line.name} was given {number}, which is not in the queue")
        if number in self.acked:
            if line.contested:
                return  # it was under way to this one before another one asked for the queue
            raise ViolationError(f"{number} came again after its acknowledgement was answered")
        later = [other for other in self.acked & self.taken if other > number]
        if later and number in self.taken:
            raise ViolationError(f"{number} came after {max(later)}: out of order")
        self.given.add(number)

    def acknowledged(self, line: Line, number: int | None) -> None:
        """An acknowledgement was answered with OK."""
        if number is not None:
            if number in self.acked:
                raise ViolationError(f"{number} was acknowledged twice, the second time by {line.name}")
            self.acked.add(number)

    def ended(self, line: Line) -> None:
        """The connection was told that another one has the queue."""
        if not line.contested:
            raise ViolationError(f"{line.name} was told that it lost the queue, and nobody else asked for it")
        line.holds, line.ended = False, True

    def not_in_flight(self, line: Line, number: int | None) -> None:
        """The router says that the message is not in flight to this connection: another one has the queue."""
        if not line.contested:
            raise ViolationError(f"{line.name} has the queue and may not acknowledge {number}")

    def missing(self) -> set[int]:
        return self.taken - self.given
