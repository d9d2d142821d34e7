"""Queue rotation as two machines: of the recipient, who moves to a new queue, and of the sender, who follows.

The recipient's state belongs to its old receive queue, the sender's to its old send queue. A message that
comes a second time, because the other side was not sure that the first one arrived, is answered again or
ignored, and breaks nothing.
"""

from __future__ import annotations

from enum import Enum

from blindpost.agent.machines import Machine, Move, Refused, row
from blindpost.agent.model import RcvSwitch, SndSwitch


class RecipientEvent(Enum):
    """What can happen to a recipient that rotates."""

    ASKED = "the application asks to rotate"
    QUEUE_MADE = "the new queue exists"
    QKEY = "QKEY with keys for the new queue came"
    QKEY_AGAIN = "QKEY came for a queue that has its keys"
    SECURED = "the new queue took the sender's key"
    FIRST_MESSAGE = "the first message came through the new queue"
    OLD_DELETED = "the old queue is gone from its router"
    ABORTED = "the application takes the rotation back"
    RESUMED = "the agent starts, or the ratchets are in step again"


class RecipientEffect(Enum):
    """What a recipient does about it."""

    STORE_SWITCH = "store a command that makes the new queue"
    SEND_QADD = "send QADD to all send queues"
    AGREE_KEYS = "agree with the sender on the secret of the new queue"
    STORE_SECURE = "store a command that secures the new queue"
    SEND_QUSE = "send QUSE to all send queues"
    MAKE_PRIMARY = "make the new queue the primary one"
    STORE_DELETE_OLD = "store a command that deletes the old queue"
    REMOVE_OLD = "remove the old queue from the store"
    STORE_DELETE_NEW = "store commands that delete the new queues"
    TELL_STARTED = "tell the application: started"
    TELL_CONFIRMED = "tell the application: confirmed"
    TELL_SECURED = "tell the application: secured"
    TELL_COMPLETED = "tell the application: completed"


class SenderEvent(Enum):
    """What can happen to a sender whose recipient rotates."""

    QADD = "QADD with a new address came"
    QADD_AGAIN = "QADD came with the address it came with before"
    QKEY_DELIVERED = "the router has taken QKEY"
    QUSE = "QUSE came"
    QTEST_DELIVERED = "the router of the new queue has taken QTEST"


class SenderEffect(Enum):
    """What a sender does about it."""

    DROP_SUPERSEDED = "remove send queues of an earlier, unfinished rotation"
    MAKE_SEND_QUEUE = "store a send queue with new keys"
    SEND_QKEY = "send QKEY to all send queues"
    SECURE_QUEUE = "count the new queue as secured"
    SEND_QTEST = "send QTEST to the new queue only, unless one is on its way there"
    USE_QUEUE = "count the new queue as active and make it the primary one"
    DROP_OLD = "stop sending to the old queue and remove it"
    TELL_STARTED = "tell the application: started"
    TELL_CONFIRMED = "tell the application: confirmed"
    TELL_SECURED = "tell the application: secured"
    TELL_COMPLETED = "tell the application: completed"


_SWITCHING = Refused("a rotation is under way")
_ABORTED = Refused("the rotation was taken back")
_NOT_FOUND = Refused("QKEY: queue address not found in connection")
_TOO_LATE = Refused("the sender may have left the old queue already")
_NOT_SWITCHING = Refused("no rotation is under way")
_MADE = Refused("the new queue exists already")
_NOT_MADE = Refused("there is no new queue yet")
_EARLY = Refused("the sender was not told yet to use the new queue")
_OLD_IN_USE = Refused("the old queue is still in use")

_R, _RD = RecipientEvent, RecipientEffect

RECIPIENT: Machine[RcvSwitch | None, RecipientEvent, RecipientEffect] = Machine(
    name="rotation, recipient",
    about="The side that moves its receive queue. The state is stored with the old queue.",
    states=(None, *RcvSwitch),
    events=tuple(RecipientEvent),
    effects=tuple(RecipientEffect),
    cells={
        **row(
            None,
            {
                _R.ASKED: Move(RcvSwitch.SWITCH_STARTED, (_RD.STORE_SWITCH,)),
                _R.QUEUE_MADE: _ABORTED,
                _R.QKEY: _NOT_FOUND,
                _R.QKEY_AGAIN: Move(None),
                _R.SECURED: _ABORTED,
                _R.FIRST_MESSAGE: _NOT_SWITCHING,
                _R.OLD_DELETED: _NOT_SWITCHING,
                _R.ABORTED: _NOT_SWITCHING,
                _R.RESUMED: Move(None),
            },
        ),
        **row(
            RcvSwitch.SWITCH_STARTED,
            {
                _R.ASKED: _SWITCHING,
                _R.QUEUE_MADE: Move(RcvSwitch.SENDING_QADD, (_RD.SEND_QADD, _RD.TELL_STARTED)),
                _R.QKEY: _NOT_MADE,
                _R.QKEY_AGAIN: _NOT_MADE,
                _R.SECURED: _NOT_MADE,
                _R.FIRST_MESSAGE: _NOT_MADE,
                _R.OLD_DELETED: _OLD_IN_USE,
                _R.ABORTED: Move(None, (_RD.STORE_DELETE_NEW,)),
                _R.RESUMED: Move(RcvSwitch.SWITCH_STARTED),
            },
        ),
        **row(
            RcvSwitch.SENDING_QADD,
            {
                _R.ASKED: _SWITCHING,
                _R.QUEUE_MADE: _MADE,
                _R.QKEY: Move(RcvSwitch.SENDING_QADD, (_RD.AGREE_KEYS, _RD.STORE_SECURE, _RD.TELL_CONFIRMED)),
                _R.QKEY_AGAIN: Move(RcvSwitch.SENDING_QADD),
                _R.SECURED: Move(RcvSwitch.SENDING_QUSE, (_RD.SEND_QUSE, _RD.TELL_SECURED)),
                _R.FIRST_MESSAGE: _EARLY,
                _R.OLD_DELETED: _OLD_IN_USE,
                _R.ABORTED: Move(None, (_RD.STORE_DELETE_NEW,)),
                _R.RESUMED: Move(RcvSwitch.SENDING_QADD, (_RD.SEND_QADD,)),
            },
        ),
        **row(
            RcvSwitch.SENDING_QUSE,
            {
                _R.ASKED: _SWITCHING,
                _R.QUEUE_MADE: _MADE,
                _R.QKEY: _MADE,
                _R.QKEY_AGAIN: Move(RcvSwitch.SENDING_QUSE),
                _R.SECURED: Move(RcvSwitch.SENDING_QUSE),
                _R.FIRST_MESSAGE: Move(RcvSwitch.RECEIVED_MESSAGE, (_RD.MAKE_PRIMARY, _RD.STORE_DELETE_OLD)),
                _R.OLD_DELETED: _OLD_IN_USE,
                _R.ABORTED: _TOO_LATE,
                _R.RESUMED: Move(RcvSwitch.SENDING_QUSE, (_RD.SEND_QUSE,)),
            },
        ),
        **row(
            RcvSwitch.RECEIVED_MESSAGE,
            {
                _R.ASKED: _SWITCHING,
                _R.QUEUE_MADE: _MADE,
                _R.QKEY: _MADE,
                _R.QKEY_AGAIN: Move(RcvSwitch.RECEIVED_MESSAGE),
                _R.SECURED: Move(RcvSwitch.RECEIVED_MESSAGE),
                _R.FIRST_MESSAGE: Move(RcvSwitch.RECEIVED_MESSAGE),
                _R.OLD_DELETED: Move(None, (_RD.REMOVE_OLD, _RD.TELL_COMPLETED)),
                _R.ABORTED: _TOO_LATE,
                _R.RESUMED: Move(RcvSwitch.RECEIVED_MESSAGE),
            },
        ),
    },
)

_S, _SD = SenderEvent, SenderEffect
_FOLLOWS: Move[SndSwitch | None, SenderEffect] = Move(
    SndSwitch.SENDING_QKEY, (_SD.DROP_SUPERSEDED, _SD.MAKE_SEND_QUEUE, _SD.SEND_QKEY, _SD.TELL_STARTED)
)

SENDER: Machine[SndSwitch | None, SenderEvent, SenderEffect] = Machine(
    name="rotation, sender",
    about="The side that follows to the new queue. The state is stored with the old send queue.",
    states=(None, *SndSwitch),
    events=tuple(SenderEvent),
    effects=tuple(SenderEffect),
    cells={
        **row(
            None,
            {
                _S.QADD: _FOLLOWS,
                _S.QADD_AGAIN: Refused("QADD: queue address is already used in connection"),
                _S.QKEY_DELIVERED: Move(None),
                _S.QUSE: Move(None, (_SD.SEND_QTEST,)),
                _S.QTEST_DELIVERED: Move(None),
            },
        ),
        **row(
            SndSwitch.SENDING_QKEY,
            {
                _S.QADD: _FOLLOWS,
                _S.QADD_AGAIN: Move(SndSwitch.SENDING_QKEY, (_SD.SEND_QKEY,)),
                _S.QKEY_DELIVERED: Move(SndSwitch.SENDING_QKEY, (_SD.TELL_CONFIRMED,)),
                _S.QUSE: Move(SndSwitch.SENDING_QTEST, (_SD.SECURE_QUEUE, _SD.SEND_QTEST, _SD.TELL_SECURED)),
                _S.QTEST_DELIVERED: Refused("QTEST was not sent"),
            },
        ),
        **row(
            SndSwitch.SENDING_QTEST,
            {
                _S.QADD: _FOLLOWS,
                _S.QADD_AGAIN: Move(SndSwitch.SENDING_QTEST),
                _S.QKEY_DELIVERED: Move(SndSwitch.SENDING_QTEST),
                _S.QUSE: Move(SndSwitch.SENDING_QTEST, (_SD.SEND_QTEST,)),
                _S.QTEST_DELIVERED: Move(None, (_SD.USE_QUEUE, _SD.DROP_OLD, _SD.TELL_COMPLETED)),
            },
        ),
    },
)
