"""Contacts and groups in the records of the agent's store."""

from __future__ import annotations

from collections.abc import Iterator

from blindpost.agent import Records, Transaction
from blindpost.chat.model import (
    Contact,
    Conversation,
    Group,
    GroupState,
    contact_bytes,
    contact_from,
    group_bytes,
    group_from,
)

CONTACTS = "chat.contacts"
GROUPS = "chat.groups"
MEMBERS = "chat.members"
"""Connections with members of groups: by connection, which group."""
NOTICES = "chat.notices"
"""What the agent reported and the program has not taken yet."""
ACCEPTED = "chat.accepted"
"""Who was accepted, by the time of that."""
LEFT = "chat.left"
"""Connections that are to be deleted, with contacts and members who are gone."""
OURSELVES = "chat.self"


def find_contact(records: Records, contact_id: str) -> Contact | None:
    data = records.get(CONTACTS, contact_id)
    return None if data is None else contact_from(contact_id, data)


def save_contact(tx: Transaction, contact: Contact) -> None:
    tx.put(CONTACTS, contact.id, contact_bytes(contact))


def note_accepted(tx: Transaction, contact: Contact, now: float) -> None:
    tx.put(ACCEPTED, f"{int(now):012d} {contact.id}", b"")


def contacts(records: Records, after: str = "") -> Iterator[Contact]:
    return (contact_from(key, data) for key, data in records.scan(CONTACTS, after=after))


def find_group(records: Records, group_id: str) -> Group | None:
    data = records.get(GROUPS, group_id)
    return None if data is None else group_from(group_id, data)


def save_group(tx: Transaction, group: Group) -> None:
    """Store a group. Connections with members who are gone, or all when it is over, are to be deleted."""
    before = find_group(tx, group.id)
    had = set() if before is None else _connections(before)
    has = _connections(group)
    over = group.state is GroupState.ENDED
    tx.put(GROUPS, group.id, group_bytes(group))
    for conn_id in has - had:
        tx.put(MEMBERS, conn_id, group.id.encode())
    for conn_id in had | has if over else had - has:
        tx.put(LEFT, conn_id, b"")


def _connections(group: Group) -> set[str]:
    return {member.conn_id for member in group.members if member.conn_id is not None}


def groups(records: Records) -> Iterator[Group]:
    return (group_from(key, data) for key, data in records.scan(GROUPS))


def group_of(records: Records, conn_id: str) -> Group | None:
    """The group that a connection with a member belongs to."""
    found = records.get(MEMBERS, conn_id)
    return None if found is None else find_group(records, found.decode())


def conversation(records: Records, conn_id: str) -> Conversation | None:
    """The contact or group that a connection belongs to."""
    return find_contact(records, conn_id) or group_of(records, conn_id)
