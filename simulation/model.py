"""What the network promises its users, in plain terms: judged only by what programs were told."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
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
    """Those that came, once each, in order; what a restored agent forgot may come late if it says so."""
    acknowledging: set[int] = field(default_factory=set)
    """Those that the program began to acknowledge: if it died then, they may come again or not."""
    acknowledged: set[int] = field(default_factory=set)
    """Those whose acknowledgement was answered."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """How often each verdict on the chain was told."""
    repeated: int = 0
    """Those up to this number may come again, but not as if they were new: their sender was restored, and
    does not know what became of them."""
    torn: bool = False
    """Whether something that programs do not see may be missing, since one of the two was restored."""

    @property
    def missing(self) -> set[int]:
        return self.taken - self.failed - self.excused - set(self.came)

    @property
    def open(self) -> set[int]:
        """Those that came and that the program has not come to acknowledge."""
        return set(self.came) - self.acknowledging


@dataclass(frozen=True, slots=True)
class Memory:
    """What a program knew when its agent was backed up."""

    received: Mapping[tuple[str, str], Channel]
    said: Mapping[tuple[str, str], int]


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
        if number <= channel.repeated and number in channel.came and outcome != "MsgOk":
            return channel, number
        if number in channel.acknowledged:
            raise ViolationError(f"{body!r} came again after its acknowledgement was answered")
        if number not in channel.came:
            told_so = channel.torn and outcome != "MsgOk"
            if channel.came and number < channel.came[-1] and not told_so:
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
        return self.torn or channel.torn or any(failed < number for failed in channel.failed)

    def tear(self) -> None:
        """A router lost what it kept: what is under way may be lost."""
        for channel in self.channels.values():
            channel.excused |= channel.missing
        self.torn = True

    def kept(self, name: str) -> Memory:
        """What the program of an agent knows now."""
        channels = self.channels.items()
        return Memory(
            {way: copy.deepcopy(channel) for way, channel in channels if way[1] == name},
            {way: channel.said for way, channel in channels if way[0] == name},
        )

    def restored(self, name: str, peers: Iterable[str], memory: Memory) -> None:
        """An agent goes back to what it knew then, and its program with it: it was not given what came since,
        and what it sent since may be lost. It must say so, also to a program that has said nothing yet."""
        for peer in peers:
            self.channel(name, peer)
            self.channel(peer, name)
        for way, channel in self.channels.items():
            if name in way:
                channel.excused |= channel.missing
                channel.torn = True
            if way[1] == name:
                before = copy.deepcopy(memory.received.get(way, Channel()))  # it may be restored once more
                channel.excused |= set(channel.came) - set(before.came)
                channel.came, channel.acknowledged = before.came, before.acknowledged
                channel.acknowledging = before.acknowledging
            if way[0] == name:
                channel.repeated = max(channel.repeated, memory.said.get(way, 0))

    def in_step(self, name: str, peer: str) -> None:
        """The ratchets of a restored agent and this peer agree again: what was said before may be lost."""
        for way in ((name, peer), (peer, name)):
            channel = self.channel(*way)
            channel.excused |= set(range(1, channel.said + 1)) - set(channel.came)

    def mended(self, name: str, peer: str) -> None:
        """Messages have passed since: what comes from now on must follow them."""
        for way in ((name, peer), (peer, name)):
            self.channel(*way).torn = False

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
