"""What the network promises its users, in plain terms: judged only by what programs were told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass
class Channel:
    """What one program said to another, by number."""

    said: int = 0
    """How many messages were given to the agent, whether it took them or not."""
    taken: set[int] = field(default_factory=set)
    """Those it took: they must arrive."""
    refused: set[int] = field(default_factory=set)
    """Those it refused: they must not."""
    failed: set[int] = field(default_factory=set)
    """Those it took and then reported as undeliverable."""
    excused: set[int] = field(default_factory=set)
    """Those that were under way when a router lost what it kept: they may come or not."""
    came: list[int] = field(default_factory=list)
    """Those that came, once each, in order."""
    acknowledging: set[int] = field(default_factory=set)
    """Those that the program began to acknowledge: if it died then, they may come again or not."""
    acknowledged: set[int] = field(default_factory=set)
    """Those whose acknowledgement was answered."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """How often each verdict on the chain was told."""

    @property
    def missing(self) -> set[int]:
        return self.taken - self.failed - self.excused - set(self.came)

    @property
    def open(self) -> set[int]:
        """Those that came and that the program has not come to acknowledge."""
        return set(self.came) - self.acknowledging


class Model:
    """All channels."""

    def __init__(self) -> None:
        self.channels: dict[tuple[str, str], Channel] = {}
        self.torn = False

    def channel(self, sender: str, receiver: str) -> Channel:
        return self.channels.setdefault((sender, receiver), Channel())

    def say(self, sender: str, receiver: str) -> bytes:
        """The next message; it tells where it belongs."""
        channel = self.channel(sender, receiver)
        channel.said += 1
        return f"{sender}>{receiver} {channel.said}".encode()

    def came(self, receiver: str, body: bytes, outcome: str) -> tuple[Channel, int]:
        """A program was given a message."""
        way, _, digits = body.decode().partition(" ")
        sender, _, addressee = way.partition(">")
        channel, number = self.channel(sender, receiver), int(digits)
        if addressee != receiver or not 1 <= number <= channel.said:
            raise ViolationError(f"{receiver} was given {body!r}, which nobody said to it")
        if number in channel.refused:
            raise ViolationError(f"{body!r} came although the agent had refused it")
        if number in channel.acknowledged:
            raise ViolationError(f"{body!r} came again after its acknowledgement was answered")
        if number not in channel.came:
            if channel.came and number < channel.came[-1]:
                raise ViolationError(f"{body!r} came after {channel.came[-1]}: out of order")
            channel.came.append(number)
            channel.outcomes[outcome] = channel.outcomes.get(outcome, 0) + 1
            skipped = self._skipped(channel, number)
            if outcome != "MsgOk" and not skipped:
                raise ViolationError(f"{body!r} came with the verdict {outcome} and nothing is missing")
        return channel, number

    def _skipped(self, channel: Channel, number: int) -> bool:
        """Whether something before this message is missing for a reason that was told.

        Where a router lost what it kept that may be a message that programs do not see."""
        return self.torn or any(failed < number for failed in channel.failed)

    def tear(self) -> None:
        """A router lost what it kept: what is under way may be lost."""
        for channel in self.channels.values():
            channel.excused |= channel.missing
        self.torn = True

    def missing(self) -> list[str]:
        return [
            f"{sender}>{receiver} {number}"
            for (sender, receiver), channel in self.channels.items()
            for number in sorted(channel.missing)
        ]

    def open(self) -> list[str]:
        return [
            f"{sender}>{receiver} {number}"
            for (sender, receiver), channel in self.channels.items()
            for number in sorted(channel.open)
        ]

    def delivered(self) -> int:
        return sum(len(channel.came) for channel in self.channels.values())


def told(items: Iterable[str], most: int = 5) -> str:
    """A list that stays readable."""
    shown = list(items)
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
