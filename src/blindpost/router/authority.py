"""Who may do what: which queue a command names, which keys may authorize it, and the check itself.

A refusal costs one verification of the offered kind, whether the queue is unknown, the key is another
or the signature is wrong, so that nobody learns from time which it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from blindpost.crypto.authorizers import (
    AuthenticatorCheck,
    Check,
    SignatureCheck,
    Verifier,
    check_of,
    kind_of,
    with_fingerprint,
)
from blindpost.router.changes import Wanted
from blindpost.router.model import Party, QueueRecord
from blindpost.router.queues import is_contact, may_secure
from blindpost.router.state import Client
from blindpost.router.view import View
from blindpost.wire.keys import PublicKey
from blindpost.wire.smp.commands import (
    LGET,
    LKEY,
    LSET,
    NEW,
    NSUB,
    NSUBS,
    PFWD,
    PING,
    PRXY,
    RFWD,
    RSLV,
    SEND,
    SKEY,
    SUBS,
    Command,
)
from blindpost.wire.smp.credentials import SERVICE_SIGNED_COMMANDS
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.transmissions import Request

NO_QUEUE: frozenset[type[Command]] = frozenset({NEW, PING, PRXY, PFWD, RFWD, RSLV, SUBS, NSUBS})
"""Commands that name no queue."""

UNVERIFIED: frozenset[type[Command]] = frozenset({PING, PRXY, PFWD, RFWD, RSLV})
"""Commands that nobody authorizes."""

SERVICE_SUBSCRIPTIONS: frozenset[type[Command]] = frozenset({SUBS, NSUBS})

RECIPIENT, SENDER, NOTIFIER, LINK = Party
PARTIES: dict[type[Command], Party | None] = {
    **dict.fromkeys(get_args(Command), RECIPIENT),
    **dict.fromkeys((SEND, SKEY), SENDER),
    NSUB: NOTIFIER,
    **dict.fromkeys((LKEY, LGET), LINK),
    **dict.fromkeys(NO_QUEUE),
}
"""By whose id each command names its queue."""


def want(wanted: Wanted, request: Request) -> None:
    """Add what must be loaded before this request can be verified and decided."""
    command = request.command
    party = PARTIES[type(command)]
    if party is RECIPIENT:
        wanted.recipients.add(request.entity_id)
        if type(command) is LSET:
            wanted.links.add(command.link_id)
    elif party is SENDER:
        wanted.senders.add(request.entity_id)
    elif party is NOTIFIER:
        wanted.notifiers.add(request.entity_id)
    elif party is LINK:
        wanted.links.add(request.entity_id)
    elif type(command) in SERVICE_SUBSCRIPTIONS:
        wanted.services.add(request.entity_id)
    elif isinstance(command, NEW) and command.request is not None and command.request.link is not None:
        wanted.senders.add(command.request.link.sender_id)
        if command.request.link.link_id is not None:
            wanted.links.add(command.request.link.link_id)


def _named_id(view: View, request: Request) -> bytes | None:
    """The recipient id of the queue that a request names, if any party is known by this id."""
    party = PARTIES[type(request.command)]
    if party is RECIPIENT:
        return request.entity_id
    if party is SENDER:
        return view.senders.get(request.entity_id)
    if party is NOTIFIER:
        return view.notifiers.get(request.entity_id)
    return view.links.get(request.entity_id) if party is LINK else None


def named_queue(view: View, request: Request) -> QueueRecord | None:
    """The queue that a request names, as it is now."""
    if PARTIES[type(request.command)] is RECIPIENT:
        return view.records.get(request.entity_id)
    recipient_id = _named_id(view, request)
    return None if recipient_id is None else view.records.get(recipient_id)


def is_damaged(view: View, request: Request) -> bool:
    """Whether the queue that a request names is there and cannot be read: it must not look deleted."""
    return _named_id(view, request) in view.damaged


ROLE_COMMANDS: dict[ServiceRole, frozenset[type[Command]]] = {
    ServiceRole.MESSAGING: frozenset(get_args(Command)) - {NSUB, NSUBS, RFWD},
    ServiceRole.NOTIFIER: frozenset({NSUB, NSUBS, PING}),
    ServiceRole.PROXY: frozenset({RFWD, PING}),
}
"""What a service may send, by its role. Other connections may send everything."""


def role_allows(client: Client, command: Command) -> bool:
    return client.service is None or type(command) in ROLE_COMMANDS[client.service.role]


def repeated_queue(view: View, request: Request) -> QueueRecord | None:
    """The queue that a NEW may create again."""
    command = request.command
    if not isinstance(command, NEW) or command.request is None or command.request.link is None:
        return None
    recipient_id = view.senders.get(command.request.link.sender_id)
    return None if recipient_id is None else view.records.get(recipient_id)


Keys = tuple[PublicKey, ...] | None
"""The keys of which any one may authorize; None: no authorization is needed and none may be given."""

NOBODY: Keys = ()
ANYBODY: Keys = None


def keys_for(client: Client, command: Command, record: QueueRecord | None) -> Keys:
    """Which keys may authorize a command on this queue, as it is now."""
    if record is None:
        if isinstance(command, NEW):
            return (command.auth_key,)
        if type(command) in SERVICE_SUBSCRIPTIONS and client.service is not None:
            return (client.service.key,)
        return NOBODY
    party = PARTIES[type(command)]
    if party is RECIPIENT:
        return record.recipient_keys
    if party is NOTIFIER:
        return NOBODY if record.notifier is None else (record.notifier.key,)
    if isinstance(command, SEND):
        return ANYBODY if record.sender_key is None else (record.sender_key,)
    if isinstance(command, LGET):
        return ANYBODY if is_contact(record) else NOBODY
    assert isinstance(command, SKEY | LKEY), "a command whose keys nobody named"
    return (command.key,) if may_secure(record, command.key) else NOBODY


def checks_of(client: Client, request: Request, keys: Keys) -> list[Check]:
    """What to verify; at least one check whenever an authorization was offered."""
    offered = request.authorization
    if not offered:
        return []
    authorized = request.authorized(client.layout)
    if client.service is not None and type(request.command) in SERVICE_SIGNED_COMMANDS:
        authorized = with_fingerprint(client.service.fingerprint, authorized)
    corr_id, secrets = request.corr_id, client.secrets
    if keys is not None and len(keys) > 1:
        keys = tuple(key for key in keys if key.algorithm is kind_of(offered))
    checks = []
    for key in keys or (None,):
        checks.append(check_of(key, offered, authorized, corr_id, secrets))
    return checks


def judged(client: Client, keys: Keys, checks: Sequence[Check], results: Iterator[bool]) -> bool:
    """Whether the checks authorize the request, by the next results, one for each."""
    if not checks:
        return keys is ANYBODY
    authorized = False
    for check in checks:
        if next(results) and not authorized:
            authorized = True
            if type(check) is AuthenticatorCheck:
                client.secrets.keep(check)
    return authorized


def service_checks(client: Client, request: Request) -> list[Check]:
    """The check of the second signature, where one belongs: a service vouches for NEW, SUB and NSUB."""
    service, signature = client.service, request.service_signature
    if service is None or signature is None or type(request.command) not in SERVICE_SIGNED_COMMANDS:
        return []
    return [SignatureCheck(service.key, signature, request.authorized(client.layout))]


class Verdict(NamedTuple):
    """Whether a request was authorized, and on which queue and by which keys as they were then."""

    authorized: bool
    record: QueueRecord | None
    keys: Keys
    service: bool
    """Whether the service signature is there exactly where it belongs, and valid."""


def verdicts(
    view: View, verifier: Verifier, requests: Sequence[tuple[Client, Request]]
) -> dict[int, Verdict]:
    """Verify many requests at once; verdicts by the identity of the request."""
    pending: list[tuple[Client, Request, QueueRecord | None, Keys, list[Check], list[Check]]] = []
    checks: list[Check] = []
    for client, request in requests:
        command = request.command
        if type(command) in UNVERIFIED:
            continue
        record = named_queue(view, request)
        keys = keys_for(client, command, record)
        own = checks_of(client, request, keys)
        by_service = [] if client.service is None else service_checks(client, request)
        checks += own
        checks += by_service
        pending.append((client, request, record, keys, own, by_service))
    results = iter(verifier.verify_many(checks))
    found = {}
    for client, request, record, keys, own, by_service in pending:
        authorized = judged(client, keys, own, results)
        if client.service is None:
            vouched = request.service_signature is None
        else:
            vouched = _service_rule(request, bool(by_service) and next(results))
        found[id(request)] = Verdict(authorized, record, keys, vouched)
    return found


def _service_rule(request: Request, valid: bool) -> bool:
    """A service signs NEW, SUB and NSUB a second time; nobody signs anything else twice."""
    if type(request.command) in SERVICE_SIGNED_COMMANDS:
        return valid
    return request.service_signature is None


def still_authorized(
    record: QueueRecord | None, verifier: Verifier, client: Client, request: Request, verdict: Verdict
) -> bool:
    """The verdict, or a new one if an earlier command of the batch changed the keys it was based on.

    `record` is the queue that the request names, as it is now.
    """
    if record is verdict.record:
        return verdict.authorized
    keys = keys_for(client, request.command, record)
    if keys == verdict.keys:
        return verdict.authorized
    checks = checks_of(client, request, keys)
    return judged(client, keys, checks, iter(verifier.verify_many(checks)))
