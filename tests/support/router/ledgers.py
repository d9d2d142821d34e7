"""What a client may still believe about a queue after its router was killed, and what it must see then.

Every command is entered before it is sent and closed when it is answered. What was never answered may have
happened or not; the first thing seen of it decides, and it cannot change its mind afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Fact(Enum):
    """Whether something happened."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


@dataclass
class Sent:
    """One message, and whether the router has it or had it."""

    body: bytes
    stored: Fact = Fact.MAYBE
    msg_id: bytes | None = None
    """Known since it was delivered."""
    answered: bool = False


@dataclass
class Ledger:
    """The messages of one queue, in the order in which they were sent."""

    sent: list[Sent] = field(default_factory=list)
    first: int = 0
    """Everything before this is gone for good: acknowledged, or seen to have been skipped."""
    ack_asked: bool = False
    """The ACK of the message at `first` was sent and not answered."""
    in_flight: bool = False
    """A message was delivered in this life of the connection and its ACK was not answered."""

    @property
    def waiting(self) -> int:
        """How many messages may be in the queue at most."""
        return len(self.sent) - self.first

    def asked(self, body: bytes) -> Sent:
        """A SEND goes out."""
        self.sent.append(Sent(body))
        return self.sent[-1]

    def answered(self, message: Sent, *, accepted: bool) -> None:
        """The SEND was answered: a message that was accepted is delivered some time, a refused one never."""
        assert accepted or message.msg_id is None, "a message was delivered and then refused"
        if accepted and message.msg_id is None:
            assert message in self.sent[self.first :], "a later message was delivered before this one"
        message.stored = Fact.YES if accepted else Fact.NO
        message.answered = True

    def reconnected(self) -> None:
        """The connection is another one: what it had not acknowledged comes again."""
        self.in_flight = False

    def delivered(self, body: bytes, msg_id: bytes) -> None:
        """A MSG came: it must be the first that is still there."""
        assert not self.in_flight, "a second message before the ACK of the first"
        found = [number for number, message in enumerate(self.sent) if message.body == body]
        assert len(found) == 1, "a message that nobody sent"
        number = found[0]
        assert number >= self.first, "a message again, after its ACK was answered or a later one came"
        message = self.sent[number]
        assert message.stored is not Fact.NO, "a message whose SEND was refused"
        assert message.msg_id in (None, msg_id), "a message again under another id"
        for skipped in range(self.first, number):
            acknowledged = self.ack_asked and skipped == self.first
            lost = self.sent[skipped].stored is Fact.YES and not acknowledged
            assert not lost, "a message that was answered OK is lost"
        message.stored, message.msg_id = Fact.YES, msg_id
        self.first, self.ack_asked, self.in_flight = number, False, True

    def acknowledging(self) -> None:
        """The ACK of the message in flight goes out."""
        assert self.in_flight
        self.ack_asked = True

    def acknowledged(self) -> None:
        """The ACK was answered."""
        self.first += 1
        self.ack_asked = self.in_flight = False

    def empty(self) -> None:
        """The router says that nothing is left: nothing that it accepted may be missing."""
        if self.ack_asked:
            self.acknowledged()
        missing = [message for message in self.sent[self.first :] if message.stored is Fact.YES]
        assert not missing, f"{len(missing)} messages that were answered OK are lost"
        self.first = len(self.sent)
