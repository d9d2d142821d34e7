"""Who may do what: the queue that an id names, the keys that may authorize a command, and the check itself.

A refusal costs one verification of the offered kind, whether the queue is unknown, the key is another
or the signature is wrong, so that timing does not reveal which. On a queue with several owners it
costs the same for any number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from blindpost.crypto.authorizers import (
    AuthenticatorCheck,
    Check,
    SignatureCheck,
    check_of,
    kind_of,
    with_fingerprint,
)
from blindpost.router.changes import Wanted
from blindpost.router.model import OWNERS_MAX, Party, QueueRecord
from blindpost.router.queues import is_contact, may_secure
from blindpost.router.state import RouterClient
from blindpost.router.view import View
from blindpost.wire.keys import PublicKey
from blindpost.wire.smp.commands import LKEY, NEW, SKEY, Command
from blindpost.wire.smp.transmissions import Request


class Naming(NamedTuple):
    """How a party's id leads to a queue."""

    want: Callable[[Wanted, bytes], None]
    """Ask the store for the queue."""
    recipient_id: Callable[[View, bytes], bytes | None]
    """The recipient id of the queue, if the party is known by this id."""
    find: Callable[[View, bytes], QueueRecord | None]
    """The queue, as it is now."""


def _by_recipient(view: View, entity_id: bytes) -> QueueRecord | None:
    return view.records.get(entity_id)


def _by_sender(view: View, entity_id: bytes) -> QueueRecord | None:
    recipient_id = view.senders.get(entity_id)
    return None if recipient_id is None else view.records.get(recipient_id)


def _by_notifier(view: View, entity_id: bytes) -> QueueRecord | None:
    recipient_id = view.notifiers.get(entity_id)
    return None if recipient_id is None else view.records.get(recipient_id)


def _by_link(view: View, entity_id: bytes) -> QueueRecord | None:
    recipient_id = view.links.get(entity_id)
    return None if recipient_id is None else view.records.get(recipient_id)


NAMING: dict[Party | None, Naming] = {
    Party.RECIPIENT: Naming(
        lambda wanted, entity_id: wanted.recipients.add(entity_id),
        lambda view, entity_id: entity_id,
        _by_recipient,
    ),
    Party.SENDER: Naming(
        lambda wanted, entity_id: wanted.senders.add(entity_id),
        lambda view, entity_id: view.senders.get(entity_id),
        _by_sender,
    ),
    Party.NOTIFIER: Naming(
        lambda wanted, entity_id: wanted.notifiers.add(entity_id),
        lambda view, entity_id: view.notifiers.get(entity_id),
        _by_notifier,
    ),
    Party.LINK: Naming(
        lambda wanted, entity_id: wanted.links.add(entity_id),
        lambda view, entity_id: view.links.get(entity_id),
        _by_link,
    ),
    None: Naming(
        lambda wanted, entity_id: None,
        lambda view, entity_id: None,
        lambda view, entity_id: None,
    ),
}

Keys = tuple[PublicKey, ...] | None
"""Any of these keys may authorize; None: no authorization is needed, and none may be given."""

NOBODY: Keys = ()
ANYBODY: Keys = None


def recipient_keys(client: RouterClient, command: Command, record: QueueRecord | None) -> Keys:
    """The owners of the queue."""
    return NOBODY if record is None else record.recipient_keys


def sender_key(client: RouterClient, command: Command, record: QueueRecord | None) -> Keys:
    """The sender of the queue; anybody while it is not secured."""
    if record is None:
        return NOBODY
    return ANYBODY if record.sender_key is None else (record.sender_key,)


def notifier_key(client: RouterClient, command: Command, record: QueueRecord | None) -> Keys:
    """The queue's notifier."""
    return NOBODY if record is None or record.notifier is None else (record.notifier.key,)


def securing_key(client: RouterClient, command: SKEY | LKEY, record: QueueRecord | None) -> Keys:
    """The key that the command itself brings, if it may become or is the sender's."""
    return (command.key,) if record is not None and may_secure(record, command.key) else NOBODY


def anybody_with_link(client: RouterClient, command: Command, record: QueueRecord | None) -> Keys:
    """Anybody who knows the link of a contact queue."""
    return ANYBODY if record is not None and is_contact(record) else NOBODY


def new_key(client: RouterClient, command: NEW, record: QueueRecord | None) -> Keys:
    """The owner that the queue will have."""
    return (command.auth_key,)


def service_key(client: RouterClient, command: Command, record: QueueRecord | None) -> Keys:
    """The service whose connection this is."""
    return NOBODY if client.service is None else (client.service.key,)


def checks_of(client: RouterClient, request: Request, keys: Keys, service_signed: bool) -> list[Check]:
    """What to verify; at least one check whenever an authorization was offered."""
    offered = request.authorization
    if not offered:
        return []
    authorized = request.authorized(client.layout)
    if service_signed and client.service is not None:
        authorized = with_fingerprint(client.service.fingerprint, authorized)
    corr_id, secrets = request.corr_id, client.secrets
    if keys is not None and len(keys) > 1:
        return _of_several(client, request, keys, authorized)
    checks = []
    for key in keys or (None,):
        checks.append(check_of(key, offered, authorized, corr_id, secrets))
    return checks


def _of_several(
    client: RouterClient, request: Request, keys: tuple[PublicKey, ...], authorized: bytes
) -> list[Check]:
    """The keys of the offered kind, and dummies up to as many as a queue may have."""
    offered = request.authorization
    tried: list[PublicKey | None] = [key for key in keys if key.algorithm is kind_of(offered)]
    tried += [None] * (OWNERS_MAX - len(tried))
    return [check_of(key, offered, authorized, request.corr_id, client.secrets) for key in tried]


def judged(client: RouterClient, keys: Keys, checks: Sequence[Check], results: Iterator[bool]) -> bool:
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


def service_checks(client: RouterClient, request: Request, service_signed: bool) -> list[Check]:
    """The check of the second signature, where one belongs."""
    service, signature = client.service, request.service_signature
    if service is None or signature is None or not service_signed:
        return []
    return [SignatureCheck(service.key, signature, request.authorized(client.layout))]
