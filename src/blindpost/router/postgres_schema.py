"""The router's tables in PostgreSQL: migrations, the steps of a commit, the statements that read.

Every statement takes arrays of keys, so that a batch of any size is one statement. Texts are put together
from what a batch needs and from nothing that came from outside; each combination is planned once.
"""

from __future__ import annotations

import functools

from blindpost.store.postgres import Schema, Step

COUNTERS = (
    "queues",
    "notifiers",
    "links",
    "ends",
    "messages",
    "notifications",
    "services",
    "fingerprints",
    "members",
    "pending",
)

_FIRST = """
CREATE TABLE queues (
    recipient_id bytea PRIMARY KEY,
    sender_id bytea NOT NULL UNIQUE,
    notifier_id bytea UNIQUE,
    link_id bytea,
    service_id bytea,
    notifier_service_id bytea,
    record bytea NOT NULL
);
CREATE TABLE links (
    link_id bytea PRIMARY KEY,
    recipient_id bytea NOT NULL,
    record bytea NOT NULL
);
CREATE TABLE ends (
    recipient_id bytea PRIMARY KEY,
    head bigint NOT NULL,
    tail bigint NOT NULL,
    can_write boolean NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE messages (
    recipient_id bytea,
    number bigint,
    seconds bigint NOT NULL,
    msg_id bytea NOT NULL,
    notify boolean NOT NULL,
    body bytea,
    PRIMARY KEY (recipient_id, number)
);
CREATE TABLE notifications (
    notifier_id bytea,
    place smallint,
    record bytea NOT NULL,
    PRIMARY KEY (notifier_id, place)
);
CREATE TABLE services (
    service_id bytea PRIMARY KEY,
    record bytea NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE fingerprints (
    fingerprint bytea PRIMARY KEY,
    service_id bytea NOT NULL
);
CREATE TABLE members (
    domain bytea,
    service_id bytea,
    entity_id bytea,
    PRIMARY KEY (domain, service_id, entity_id)
);
CREATE TABLE pending (
    domain bytea,
    service_id bytea,
    entity_id bytea,
    PRIMARY KEY (domain, service_id, entity_id)
);
CREATE TABLE marks (
    name bytea PRIMARY KEY,
    value bytea NOT NULL
);
-- Encrypted bytes do not compress: do not try.
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE links ALTER COLUMN record SET STORAGE EXTERNAL;
ALTER TABLE state
""" + ",\n".join(f"    ADD COLUMN {counter} bigint NOT NULL DEFAULT 0" for counter in COUNTERS)

SCHEMA = Schema("blindpost_router", (_FIRST,), COUNTERS)


def _put(table: str, columns: dict[str, str], keys: int) -> Step:
    """Put rows with these columns (name: type), the key first; existing rows are replaced."""
    names = list(columns)
    arrays = ", ".join(f"{{{place}}}::{kind}[]" for place, kind in enumerate(columns.values()))
    replaced = ", ".join(f"{name} = excluded.{name}" for name in names[keys:])
    kept = (
        f"DO UPDATE SET {replaced} RETURNING xmax = 0 AS fresh"
        if replaced
        else "DO NOTHING RETURNING true AS fresh"
    )
    return Step(
        table if table in COUNTERS else None,
        f"INSERT INTO {table} ({', '.join(names)}) SELECT * FROM unnest({arrays}) "
        f"ON CONFLICT ({', '.join(names[:keys])}) {kept}",
    )


def _delete(table: str, keys: dict[str, str]) -> Step:
    arrays = ", ".join(f"{{{place}}}::{kind}[]" for place, kind in enumerate(keys.values()))
    names = ", ".join(keys)
    same = " AND ".join(f"kept.{name} = gone.{name}" for name in keys)
    return Step(
        table,
        f"DELETE FROM {table} kept USING unnest({arrays}) AS gone({names}) WHERE {same} "
        "RETURNING true AS fresh",
        is_delete=True,
    )


def _delete_all(table: str, owner: str, number: str, kind: str) -> Step:
    """All rows of these owners, except those that another step of the same commit puts."""
    return Step(
        table,
        f"DELETE FROM {table} kept WHERE {owner} = ANY({{0}}::bytea[]) AND NOT EXISTS ("
        f"SELECT FROM unnest({{1}}::bytea[], {{2}}::{kind}[]) AS put(owner, number) "
        f"WHERE put.owner = kept.{owner} AND put.number = kept.{number}) RETURNING true AS fresh",
        is_delete=True,
    )


PUT_QUEUES = _put(
    "queues",
    {
        "recipient_id": "bytea",
        "sender_id": "bytea",
        "notifier_id": "bytea",
        "link_id": "bytea",
        "service_id": "bytea",
        "notifier_service_id": "bytea",
        "record": "bytea",
    },
    1,
)
DELETE_QUEUES = _delete("queues", {"recipient_id": "bytea"})
PUT_LINKS = _put("links", {"link_id": "bytea", "recipient_id": "bytea", "record": "bytea"}, 1)
DELETE_LINKS = _delete("links", {"link_id": "bytea"})
PUT_ENDS = _put(
    "ends", {"recipient_id": "bytea", "head": "bigint", "tail": "bigint", "can_write": "boolean"}, 1
)
DELETE_ENDS = _delete("ends", {"recipient_id": "bytea"})
_MESSAGE_KEY = {"recipient_id": "bytea", "number": "bigint"}
PUT_MESSAGES = _put(
    "messages",
    {**_MESSAGE_KEY, "seconds": "bigint", "msg_id": "bytea", "notify": "boolean", "body": "bytea"},
    2,
)
DELETE_MESSAGES = _delete("messages", _MESSAGE_KEY)
EMPTY_QUEUES = _delete_all("messages", "recipient_id", "number", "bigint")
PUT_NOTIFICATIONS = _put("notifications", {"notifier_id": "bytea", "place": "smallint", "record": "bytea"}, 2)
EMPTY_NOTIFIERS = _delete_all("notifications", "notifier_id", "place", "smallint")
PUT_SERVICES = _put("services", {"service_id": "bytea", "record": "bytea"}, 1)
DELETE_SERVICES = _delete("services", {"service_id": "bytea"})
DELETE_FINGERPRINTS = _delete("fingerprints", {"fingerprint": "bytea"})
PUT_FINGERPRINTS = _put("fingerprints", {"fingerprint": "bytea", "service_id": "bytea"}, 1)
PUT_MARKS = _put("marks", {"name": "bytea", "value": "bytea"}, 1)
_MEMBER_KEY = {"domain": "bytea", "service_id": "bytea", "entity_id": "bytea"}
PUT_MEMBERS, DELETE_MEMBERS = _put("members", _MEMBER_KEY, 3), _delete("members", _MEMBER_KEY)
PUT_PENDING, DELETE_PENDING = _put("pending", _MEMBER_KEY, 3), _delete("pending", _MEMBER_KEY)

RECIPIENTS, SENDERS, NOTIFIERS, LINKS, SERVICES, FINGERPRINTS = range(6)
"""The kinds of ids that a batch names, and of rows of `load_statement`."""

_FOUND = {
    RECIPIENTS: "queues found ON found.recipient_id = wanted.id",
    SENDERS: "queues found ON found.sender_id = wanted.id",
    NOTIFIERS: "queues found ON found.notifier_id = wanted.id",
    LINKS: "links link ON link.link_id = wanted.id LEFT JOIN queues found USING (recipient_id)",
}
OF_QUEUES = frozenset(_FOUND)
"""Rows of these kinds hold a queue record."""
_SERVICE_IDS = {
    SERVICES: "SELECT unnest({}::bytea[])",
    FINGERPRINTS: "SELECT service_id FROM fingerprints WHERE fingerprint = ANY({}::bytea[])",
}


_NO_ENDS = "NULL::bigint AS head, NULL::bigint AS tail, NULL::boolean AS can_write"


@functools.cache
def load_statement(kinds: tuple[int, ...]) -> str:
    """Reads the queues that ids of these kinds name, their ends and their services; one array for each kind.

    Its rows: kind, id, the id it stands for, record, head, tail, can_write.
    """
    queues, services, parts = [], [], []
    for place, kind in enumerate(kinds, start=1):
        if kind in _FOUND:
            owner = "link.recipient_id" if kind == LINKS else "found.recipient_id"
            queues.append(
                f"SELECT {kind}::smallint AS kind, wanted.id, {owner} AS owner, found.record, "
                f"found.service_id, found.notifier_service_id, head, tail, can_write "
                f"FROM unnest(${place}::bytea[]) AS wanted(id) JOIN {_FOUND[kind]} "
                "LEFT JOIN ends ON ends.recipient_id = found.recipient_id"
            )
        else:
            services.append(_SERVICE_IDS[kind].format(f"${place}"))
        if kind == FINGERPRINTS:
            parts.append(
                f"SELECT {kind}::smallint AS kind, fingerprint AS id, service_id AS owner, "
                f"NULL::bytea AS record, {_NO_ENDS} "
                f"FROM fingerprints WHERE fingerprint = ANY(${place}::bytea[])"
            )
    head = ""
    if queues:
        head = f"WITH named AS MATERIALIZED ({' UNION ALL '.join(queues)}) "
        parts.append("SELECT kind, id, owner, record, head, tail, can_write FROM named")
        services += ["SELECT service_id FROM named", "SELECT notifier_service_id FROM named"]
    parts.append(
        f"SELECT {SERVICES}::smallint AS kind, service_id AS id, NULL::bytea AS owner, record, {_NO_ENDS} "
        f"FROM services WHERE service_id IN ({' UNION '.join(services)})"
    )
    return head + " UNION ALL ".join(parts)


ENDS, LINK_DATA, NOTIFICATIONS = range(3)
"""The kinds of rows of `needed_statement`."""

_NO_MESSAGE = "NULL::bigint AS seconds, NULL::bytea AS msg_id, NULL::boolean AS notify"
FIRST_TO_STAY = (
    "(SELECT min(stays.number) FROM messages stays WHERE stays.recipient_id = ends.recipient_id "
    "AND stays.number >= ends.head AND (stays.seconds >= {before}::bigint OR stays.body IS NULL))"
)


@functools.cache
def needed_statement(ends: bool, expiring: bool, links: bool, notifications: bool) -> str:
    """Reads ends with the requested messages from the head, link data and notifications.

    With `expiring` also the messages that came before a time, and the first that did not. Its rows: kind, id,
    head, tail, can_write, number, seconds, msg_id, notify, body.
    """
    parts, used = [], 0
    if ends:
        until = "ends.head + wanted.heads"
        if expiring:
            first = f"coalesce({FIRST_TO_STAY.format(before='$4')} + 1, ends.tail)"
            until = f"CASE WHEN wanted.expire THEN greatest({until}, {first}) ELSE {until} END"
        flags, names, used = (", $3::boolean[]", ", expire", 4) if expiring else ("", "", 2)
        parts.append(
            f"SELECT {ENDS}::smallint AS kind, wanted.id, head, tail, can_write, number, "
            f"seconds, msg_id, notify, body FROM unnest($1::bytea[], $2::bigint[]{flags}) "
            f"AS wanted(id, heads{names}) JOIN ends ON ends.recipient_id = wanted.id LEFT JOIN messages "
            "ON messages.recipient_id = wanted.id AND messages.number >= ends.head "
            f"AND messages.number < least(ends.tail, {until})"
        )
    if links:
        used += 1
        parts.append(
            f"SELECT {LINK_DATA}::smallint AS kind, link_id AS id, {_NO_ENDS}, NULL::bigint AS number, "
            f"{_NO_MESSAGE}, record AS body FROM links WHERE link_id = ANY(${used}::bytea[])"
        )
    if notifications:
        used += 1
        parts.append(
            f"SELECT {NOTIFICATIONS}::smallint AS kind, notifier_id AS id, {_NO_ENDS}, "
            f"place::bigint AS number, {_NO_MESSAGE}, record AS body "
            f"FROM notifications WHERE notifier_id = ANY(${used}::bytea[])"
        )
    return " UNION ALL ".join(parts)


WAITING = (
    "SELECT entity_id FROM pending WHERE domain = $1 AND service_id = $2 AND entity_id >= $3 "
    "ORDER BY entity_id LIMIT $4"
)
NOTIFIED = (
    "SELECT DISTINCT notifier_id FROM notifications WHERE notifier_id >= $1 ORDER BY notifier_id LIMIT $2"
)
EXPIRED = (
    f"SELECT recipient_id, coalesce({FIRST_TO_STAY.format(before='$1')}, tail) - head AS expired "
    "FROM (SELECT * FROM ends WHERE recipient_id >= $2 ORDER BY recipient_id LIMIT $3) AS ends "
    "ORDER BY recipient_id"
)
