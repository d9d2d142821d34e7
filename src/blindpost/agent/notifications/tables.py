"""The decisions about tokens and subscriptions, as tables: every pair is listed, and a test counts them."""

from __future__ import annotations

from enum import Enum

from blindpost.agent.notifications.model import ActionKind, NtfSubscription, PushMode, Step, Token
from blindpost.agent.store.ntf_subscriptions import PrimaryQueue
from blindpost.wire.ntf.status import SubState, TokenState

# The token, when the application names its device token


class Stored(Enum):
    """What is stored of a token: whether its router gave it an id, and its next action."""

    NOTHING = (None, None)
    UNKNOWN = (False, None)
    REGISTER = (False, ActionKind.REGISTER)
    UNKNOWN_VERIFY = (False, ActionKind.VERIFY)
    UNKNOWN_CHECK = (False, ActionKind.CHECK)
    UNKNOWN_DELETE = (False, ActionKind.DELETE)
    REGISTERED = (True, None)
    REGISTER_AGAIN = (True, ActionKind.REGISTER)
    VERIFY = (True, ActionKind.VERIFY)
    CHECK = (True, ActionKind.CHECK)
    DELETE = (True, ActionKind.DELETE)


class Given(Enum):
    """The device token that the application names, beside the stored one."""

    SAME = "same"
    DIFFERENT = "different"


class Deed(Enum):
    """What is done with the token."""

    CREATE = "new keys, then TNEW"
    TNEW = "TNEW with the stored keys"
    RENAME = "store the device token, then TNEW with the stored keys"
    TVFY = "TVFY with the stored code"
    TCHK = "TCHK"
    TRPL = "TRPL"
    DELETE = "delete the token"
    NOTHING = "nothing; the stored status"


DEEDS: dict[tuple[Stored, Given], Deed] = {
    (Stored.NOTHING, Given.SAME): Deed.CREATE,
    (Stored.NOTHING, Given.DIFFERENT): Deed.CREATE,
    (Stored.REGISTER, Given.SAME): Deed.TNEW,
    (Stored.REGISTER, Given.DIFFERENT): Deed.RENAME,
    (Stored.REGISTERED, Given.SAME): Deed.TNEW,
    (Stored.REGISTERED, Given.DIFFERENT): Deed.TRPL,
    (Stored.VERIFY, Given.SAME): Deed.TVFY,
    (Stored.VERIFY, Given.DIFFERENT): Deed.TRPL,
    (Stored.CHECK, Given.SAME): Deed.TCHK,
    (Stored.CHECK, Given.DIFFERENT): Deed.TRPL,
    (Stored.DELETE, Given.SAME): Deed.DELETE,
    (Stored.DELETE, Given.DIFFERENT): Deed.DELETE,
    (Stored.UNKNOWN, Given.SAME): Deed.NOTHING,
    (Stored.UNKNOWN, Given.DIFFERENT): Deed.NOTHING,
    (Stored.UNKNOWN_VERIFY, Given.SAME): Deed.NOTHING,
    (Stored.UNKNOWN_VERIFY, Given.DIFFERENT): Deed.NOTHING,
    (Stored.UNKNOWN_CHECK, Given.SAME): Deed.NOTHING,
    (Stored.UNKNOWN_CHECK, Given.DIFFERENT): Deed.NOTHING,
    (Stored.UNKNOWN_DELETE, Given.SAME): Deed.NOTHING,
    (Stored.UNKNOWN_DELETE, Given.DIFFERENT): Deed.NOTHING,
    (Stored.REGISTER_AGAIN, Given.SAME): Deed.NOTHING,
    (Stored.REGISTER_AGAIN, Given.DIFFERENT): Deed.NOTHING,
}


def stored(token: Token | None) -> Stored:
    if token is None:
        return Stored.NOTHING
    return Stored((token.token_id is not None, None if token.action is None else token.action.kind))


STILL_CHECKED: dict[TokenState, bool] = {
    TokenState.NEW: True,
    TokenState.REGISTERED: True,
    TokenState.CONFIRMED: True,
    TokenState.ACTIVE: True,
    TokenState.INVALID: False,
    TokenState.EXPIRED: False,
}
"""Whether a token that has this status at its router keeps its next action when the application only asks."""


# The subscriptions of connections


class Wish(Enum):
    """What is wanted for the notifications of a connection. The row of one that is deleted goes with it."""

    CREATE = "create"
    DELETE_AT_SMP = "delete at the router of the queue"


class Row(Enum):
    """What there is for a connection."""

    NONE = "no row"
    FITS = "under way for the present queue"
    OTHER = "for another notifier than the queue's"
    DELETING = "being deleted"
    CLEARED = "failed before"


class Change(Enum):
    """What becomes of the row."""

    INSERT = "a new row at step K"
    RESET = "back to step K"
    WAKE = "wake the worker of its step"
    DELETE = "to step D"
    NOTHING = "nothing"


CHANGES: dict[tuple[Wish, Row], Change] = {
    (Wish.CREATE, Row.NONE): Change.INSERT,
    (Wish.CREATE, Row.FITS): Change.WAKE,
    (Wish.CREATE, Row.OTHER): Change.RESET,
    (Wish.CREATE, Row.DELETING): Change.RESET,
    (Wish.CREATE, Row.CLEARED): Change.RESET,
    (Wish.DELETE_AT_SMP, Row.NONE): Change.NOTHING,
    (Wish.DELETE_AT_SMP, Row.FITS): Change.DELETE,
    (Wish.DELETE_AT_SMP, Row.OTHER): Change.DELETE,
    (Wish.DELETE_AT_SMP, Row.DELETING): Change.WAKE,
    (Wish.DELETE_AT_SMP, Row.CLEARED): Change.DELETE,
}

WHEN_ACTIVE: dict[PushMode, Wish] = {
    PushMode.INSTANT: Wish.CREATE,
    PushMode.PERIODIC: Wish.DELETE_AT_SMP,
}
"""What an active token wants for all connections."""


def row_state(row: NtfSubscription | None, queue: PrimaryQueue) -> Row:
    """Where a row stands beside the connection's primary queue."""
    if row is None:
        return Row.NONE
    if row.step is None:
        return Row.CLEARED
    if row.step is Step.DELETE:
        return Row.DELETING
    new_keys_come = row.step is Step.KEY and row.smp_server == queue.server
    same = row.smp_server == queue.server and row.notifier_id == queue.notifier_id
    return Row.FITS if new_keys_come or same else Row.OTHER


HEALTHY: dict[SubState, bool] = {
    SubState.NEW: True,
    SubState.PENDING: True,
    SubState.ACTIVE: True,
    SubState.INACTIVE: True,
    SubState.END: False,
    SubState.DELETED: False,
    SubState.AUTH: False,
    SubState.SERVICE: False,
    SubState.ERR: False,
}
"""Whether a subscription with this status at its router is only checked again; others are recreated."""
