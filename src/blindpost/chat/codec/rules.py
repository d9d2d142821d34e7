"""What the app does with each event beside reading it: receipts to the sender, pushes to the recipient."""

from __future__ import annotations

from blindpost.chat.codec.bodies import Item
from blindpost.chat.codec.events import AnyEvent, Message

RECEIPTED = frozenset({"x.msg.new", "x.grp.inv", "x.call.inv"})
"""The sender of these gets a receipt."""

NOTIFIED = frozenset(
    {"x.msg.new", "x.contact", "x.grp.inv", "x.grp.del", "x.grp.mem.intro", "x.grp.mem.fwd", "x.call.inv"}
    | {"x.file", "x.file.acpt", "x.file.acpt.inv"}
)
"""These wake a sleeping phone."""


def wants_receipt(items: tuple[Item, ...]) -> bool:
    """Whether a body gets a receipt: if anything in it does."""
    return any(isinstance(item, Message) and item.event.name in RECEIPTED for item in items)


def notifies(event: AnyEvent) -> bool:
    """Whether a message of ours asks for a push."""
    return event.name in NOTIFIED
