"""A request on its way through a turn: with its row, and with the verdict once it is verified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from blindpost.crypto.authorizers import Check, Verifier
from blindpost.engine.undo import Undo
from blindpost.router.attested import is_settled
from blindpost.router.authority import NOBODY, Keys, checks_of, judged, service_checks
from blindpost.router.changes import Needed, Wanted
from blindpost.router.commands import ROWS, Row
from blindpost.router.forwarding import Forwarded, open_forwarded
from blindpost.router.model import QueueRecord
from blindpost.router.state import RouterClient
from blindpost.router.view import View
from blindpost.wire.smp.transmissions import Request
from blindpost.wire.transmissions import Refused


class Asked:
    """A request, on whose behalf it is made, and whether what was loaded authorizes it."""

    __slots__ = (
        "authorized",
        "client",
        "inner",
        "key",
        "keys",
        "opened",
        "record",
        "request",
        "row",
        "vouched",
    )

    def __init__(self, client: RouterClient, request: Request, row: Row[Any], key: bytes = b"") -> None:
        self.client = client
        self.request = request
        self.row = row
        self.key = key
        """The raw key that a front verified it with, if it did."""
        self.authorized = False
        self.record: QueueRecord | None = None
        """The queue it names, as it was when it was verified."""
        self.keys: Keys = NOBODY
        """The keys that might authorize it at that time."""
        self.vouched = False
        """Whether the service signature is present exactly where required, and valid."""
        self.opened: Forwarded | Refused | None = None
        """What was found in a command that carries another."""
        self.inner: Asked | None = None
        """The command that it carries."""


def ask(
    client: RouterClient,
    items: Iterable[Request | Refused],
    undo: Undo,
    wanted: Wanted,
    verifiable: list[Asked],
    keys: Sequence[bytes] = (),
) -> list[Asked | Refused]:
    """The requests of a block, each with its row, and what they want of the store.

    What a proxy forwards is opened. `verifiable` gets those that `verify` must see. `keys` are those that a
    front verified the items with.
    """
    asked: list[Asked | Refused] = []
    for item, key in zip(items, keys or repeat(b"")):  # noqa: B905 - without keys there is no end to them
        if isinstance(item, Refused):
            asked.append(item)
            continue
        row = ROWS[type(item.command)]
        one = Asked(client, item, row, key)
        asked.append(one)
        if row.carries and row.allows(client):
            opened = one.opened = open_forwarded(client, item, undo)
            if isinstance(opened, Forwarded) and isinstance(opened.inner, Request):
                item = opened.inner
                row = ROWS[type(item.command)]
                inner = one.inner = Asked(opened.sender, item, row)
                one = inner
        if row.keys is not None:
            verifiable.append(one)
            row.naming.want(wanted, item.entity_id)
            if row.besides is not None:
                row.besides(wanted, item.command)
    return asked


def verify(view: View, verifier: Verifier, asked: Iterable[Asked]) -> list[Asked]:
    """Verify many requests at once, against what was loaded. Told are those that no front had verified."""
    pending: list[tuple[Asked, list[Check], list[Check]]] = []
    checks: list[Check] = []
    for one in asked:
        client, request, row = one.client, one.request, one.row
        record = one.record = row.naming.find(view, request.entity_id)
        assert row.keys is not None, "a command that nobody authorizes"
        keys = one.keys = row.keys(client, request.command, record)
        if one.key and is_settled(client, request, keys, one.key):
            one.authorized, one.vouched = True, request.service_signature is None
            continue
        service_signed = row.rule.service_signed
        own = checks_of(client, request, keys, service_signed)
        checks += own
        by_service: list[Check] = []
        if client.service is not None:
            by_service = service_checks(client, request, service_signed)
            checks += by_service
        pending.append((one, own, by_service))
    results = iter(verifier.verify_many(checks))
    for one, own, by_service in pending:
        one.authorized = judged(one.client, one.keys, own, results)
        if one.client.service is not None and one.row.rule.service_signed:
            one.vouched = bool(by_service) and next(results)
        else:
            one.vouched = one.request.service_signature is None
    return [one for one, _, _ in pending]


def still_authorized(record: QueueRecord | None, verifier: Verifier, asked: Asked) -> bool:
    """The verdict, or a new one if an earlier command of the batch changed the keys it was based on.

    `record` is the queue that the request names, as it is now.
    """
    if record is asked.record:
        return asked.authorized
    client, request, row = asked.client, asked.request, asked.row
    assert row.keys is not None, "a command that nobody authorizes"
    keys = row.keys(client, request.command, record)
    if keys == asked.keys:
        return asked.authorized
    checks = checks_of(client, request, keys, row.rule.service_signed)
    return judged(client, keys, checks, iter(verifier.verify_many(checks)))


def need_all(needed: Needed, view: View, asked: Iterable[Asked]) -> None:
    """What authorized requests may reach, and those that an earlier command of the batch may authorize."""
    rekeyed, refused = set(), []
    for one in asked:
        row, record = one.row, one.record
        if record is None:
            if row.repeats is None:
                continue
            record = row.repeats(view, one.request.command)
            if record is None:
                continue
        if not one.authorized:
            refused.append((one, record))
            continue
        _need(needed, one, record)
        if row.rekeys:
            rekeyed.add(record.recipient_id)
    for one, record in refused:
        if record.recipient_id in rekeyed:
            _need(needed, one, record)


def _need(needed: Needed, asked: Asked, record: QueueRecord) -> None:
    """What an authorized command may reach of its queue."""
    row, recipient_id = asked.row, record.recipient_id
    if row.heads:
        needed.head(recipient_id, row.heads)
        if row.removes is not None:
            held = asked.client.subs.get(recipient_id)
            msg_id = row.removes(asked.request.command)
            if held is not None and held.delivered is not None and held.delivered.msg_id == msg_id:
                needed.acknowledged[recipient_id] = held.delivered.number
    elif row.ends:
        needed.ends.add(recipient_id)
        if row.expires and needed.expire_before:
            needed.expire.add(recipient_id)
    elif row.link_data and record.link_id is not None:
        needed.link_data.add(record.link_id)
    if row.notifications and record.notifier is not None:
        needed.notifications.add(record.notifier.notifier_id)
