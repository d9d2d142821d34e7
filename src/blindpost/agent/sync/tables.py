"""Ratchet synchronisation as a machine: what a failure to decrypt means for it, what it forbids to send.

Where both sides start at once and one of them again, keys come that are not an answer to ours. They are
answered too, since the peer may wait for that. If both sides did so they would never end: after some answers
in a short time, a side with unanswered keys treats the peer's as the answer to them. Then both have the last
keys of both.

A peer that has agreed on keys and hears nothing sends its own again and says so. Who offered the others takes
them, even if it knew them. Other copies of known keys mean nothing: what no router answers is sent twice.
"""

from __future__ import annotations

from enum import Enum

from blindpost.agent.machines import Machine, Move, Refused, row
from blindpost.agent.model import SyncState
from blindpost.crypto.ratchet import RatchetErrorKind


class SyncEvent(Enum):
    """What can happen to the ratchet of a connection."""

    ASKED = "the application asks to synchronise"
    FORCED = "the application insists on it"
    UNANSWERED = "nothing came of our ratchet keys in time"
    KEY = "new ratchet keys came from the peer"
    KEY_ONCE_MORE = "new ratchet keys came, and keys were agreed often enough in a short time"
    KEY_REPEATED = "processed ratchet keys came again, agreed by the peer with those that we offer"
    KEY_AGAIN = "processed ratchet keys came again"
    KEY_REFLECTED = "our own ratchet keys came back"
    READ = "a message was decrypted"
    MISSED = "a message was not decrypted; the next one may be"
    BROKEN = "a message was not decrypted, and no later one can be"


class SyncEffect(Enum):
    """What is done about it."""

    MAKE_KEYS = "make ratchet keys for the peer's version"
    OFFER_KEYS = "make ratchet keys, keep them, and send them to the peer"
    SEND_KEYS = "send our ratchet keys to the peer"
    TAKE_KEPT_KEYS = "take the ratchet keys that were kept"
    REPEAT_KEYS = "send the same ratchet keys to the peer again"
    REPEAT_READY = "as the sender of the new ratchet, send EREADY again"
    AGREE = "replace the ratchet, keep our keys; as its sender, send EREADY"
    TELL = "tell the application the new state"


_E, _D = SyncEvent, SyncEffect
_NOT_NEEDED = Refused("the ratchets are in step")
_UNDER_WAY = Refused("a synchronisation is under way")
_REFLECTED = Refused("the peer's ratchet keys are our own")

_STARTED: Move[SyncState, SyncEffect] = Move(SyncState.STARTED, (_D.OFFER_KEYS,))
_REPEATED: Move[SyncState, SyncEffect] = Move(SyncState.STARTED, (_D.TAKE_KEPT_KEYS, _D.REPEAT_KEYS))
_ANSWERED: Move[SyncState, SyncEffect] = Move(
    SyncState.AGREED, (_D.MAKE_KEYS, _D.SEND_KEYS, _D.AGREE, _D.TELL)
)
_TAKEN: Move[SyncState, SyncEffect] = Move(SyncState.AGREED, (_D.TAKE_KEPT_KEYS, _D.AGREE, _D.TELL))
_MISSED: Move[SyncState, SyncEffect] = Move(SyncState.ALLOWED, (_D.TELL,))
_BROKEN: Move[SyncState, SyncEffect] = Move(SyncState.REQUIRED, (_D.TELL,))
_IN_STEP: Move[SyncState, SyncEffect] = Move(SyncState.OK, (_D.TELL,))

SYNC: Machine[SyncState, SyncEvent, SyncEffect] = Machine(
    name="ratchet synchronisation",
    about="How two ratchets that no longer fit are replaced. The state is stored with the connection.",
    states=tuple(SyncState),
    events=tuple(SyncEvent),
    effects=tuple(SyncEffect),
    cells={
        **row(
            SyncState.OK,
            {
                _E.ASKED: _NOT_NEEDED,
                _E.FORCED: _STARTED,
                _E.UNANSWERED: Move(SyncState.OK),
                _E.KEY: _ANSWERED,
                _E.KEY_ONCE_MORE: _ANSWERED,
                _E.KEY_REPEATED: Move(SyncState.OK),
                _E.KEY_AGAIN: Move(SyncState.OK),
                _E.KEY_REFLECTED: _REFLECTED,
                _E.READ: Move(SyncState.OK),
                _E.MISSED: _MISSED,
                _E.BROKEN: _BROKEN,
            },
        ),
        **row(
            SyncState.ALLOWED,
            {
                _E.ASKED: _STARTED,
                _E.FORCED: _STARTED,
                _E.UNANSWERED: Move(SyncState.ALLOWED),
                _E.KEY: _ANSWERED,
                _E.KEY_ONCE_MORE: _ANSWERED,
                _E.KEY_REPEATED: Move(SyncState.ALLOWED),
                _E.KEY_AGAIN: Move(SyncState.ALLOWED),
                _E.KEY_REFLECTED: _REFLECTED,
                _E.READ: _IN_STEP,
                _E.MISSED: _MISSED,
                _E.BROKEN: _BROKEN,
            },
        ),
        **row(
            SyncState.REQUIRED,
            {
                _E.ASKED: _STARTED,
                _E.FORCED: _STARTED,
                _E.UNANSWERED: Move(SyncState.REQUIRED),
                _E.KEY: _ANSWERED,
                _E.KEY_ONCE_MORE: _ANSWERED,
                _E.KEY_REPEATED: Move(SyncState.REQUIRED),
                _E.KEY_AGAIN: Move(SyncState.REQUIRED),
                _E.KEY_REFLECTED: _REFLECTED,
                _E.READ: _IN_STEP,
                _E.MISSED: _MISSED,
                _E.BROKEN: _BROKEN,
            },
        ),
        **row(
            SyncState.STARTED,
            {
                _E.ASKED: _UNDER_WAY,
                _E.FORCED: _STARTED,
                _E.UNANSWERED: _REPEATED,
                _E.KEY: _TAKEN,
                _E.KEY_ONCE_MORE: _TAKEN,
                _E.KEY_REPEATED: _TAKEN,
                _E.KEY_AGAIN: Move(SyncState.STARTED),
                _E.KEY_REFLECTED: _REFLECTED,
                _E.READ: Move(SyncState.STARTED),
                _E.MISSED: Move(SyncState.STARTED),
                _E.BROKEN: Move(SyncState.STARTED),
            },
        ),
        **row(
            SyncState.AGREED,
            {
                _E.ASKED: _UNDER_WAY,
                _E.FORCED: _STARTED,
                _E.UNANSWERED: Move(SyncState.AGREED, (_D.TAKE_KEPT_KEYS, _D.REPEAT_KEYS, _D.REPEAT_READY)),
                _E.KEY: _ANSWERED,
                _E.KEY_ONCE_MORE: _TAKEN,
                _E.KEY_REPEATED: Move(SyncState.AGREED),
                _E.KEY_AGAIN: Move(SyncState.AGREED),
                _E.KEY_REFLECTED: _REFLECTED,
                _E.READ: _IN_STEP,
                _E.MISSED: Move(SyncState.AGREED),
                _E.BROKEN: Move(SyncState.AGREED),
            },
        ),
    },
)

FAILURES: dict[RatchetErrorKind, SyncEvent | None] = {
    RatchetErrorKind.AES: SyncEvent.MISSED,
    RatchetErrorKind.EARLIER: SyncEvent.MISSED,
    RatchetErrorKind.HEADER: SyncEvent.BROKEN,
    RatchetErrorKind.SKIPPED: SyncEvent.BROKEN,
    RatchetErrorKind.DUPLICATE: None,
    RatchetErrorKind.MALFORMED: None,
    RatchetErrorKind.PADDING: None,
    RatchetErrorKind.KEM_STATE: None,
}
"""What a message that was not decrypted means for the ratchets; some failures say nothing about them."""


class Sending(Enum):
    """What an agent may want to send or start."""

    MESSAGE = "A_MSG"
    RECEIPT = "A_RCVD"
    HELLO = "HELLO"
    CONTINUE = "A_QCONT"
    QADD = "QADD"
    QKEY = "QKEY"
    QUSE = "QUSE"
    QTEST = "QTEST"
    ABORT = "taking a rotation back"
    EREADY = "EREADY"
    RATCHET_KEY = "ratchet keys"


_UNDER_THE_RATCHET = frozenset(Sending) - {Sending.EREADY, Sending.RATCHET_KEY}

PROHIBITED: dict[SyncState, frozenset[Sending]] = {
    state: _UNDER_THE_RATCHET if state.send_prohibited else frozenset() for state in SyncState
}
"""What may not be sent while the ratchets are out of step: all that the peer could not read."""
