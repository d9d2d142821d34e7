"""Who may do what: which token a command belongs to, and the check of its authorization.

A refusal costs one verification of the offered kind, whether the token or subscription is unknown, somebody
else's, or the signature is wrong, so that timing does not reveal which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blindpost.crypto.authorizers import AuthenticatorCheck, Check, Verifier, check_of
from blindpost.ntf.model import Token
from blindpost.ntf.state import Client
from blindpost.ntf.view import View, Wanted
from blindpost.wire.keys import PublicKey
from blindpost.wire.ntf.commands import PING, SCHK, SDEL, SNEW, TNEW, Command
from blindpost.wire.ntf.transmissions import Request

SUBSCRIPTION_COMMANDS: frozenset[type[Command]] = frozenset({SNEW, SCHK, SDEL})


@dataclass(slots=True, eq=False)
class Asked:
    """A request on its way through a turn, with the verdict once it is verified."""

    client: Client
    request: Request
    is_signed: bool = False
    """By the key of the object it names; PING needs none."""


def want(wanted: Wanted, request: Request) -> None:
    """Add what must be loaded before this request can be verified."""
    match request.command:
        case PING():
            pass
        case TNEW(device, verify_key):
            wanted.registrations.add((device, verify_key))
        case SNEW() as command:
            wanted.tokens.add(command.token_id)
            wanted.queues.add((command.server, command.notifier_id))
            wanted.routers.add(command.server)
        case SCHK() | SDEL():
            wanted.subscriptions.add(request.entity_id)
        case _:
            wanted.tokens.add(request.entity_id)


def token_of(view: View, request: Request) -> Token | None:
    """The token that a request is about, as it is now; TNEW and PING have none."""
    command = request.command
    if isinstance(command, SNEW):
        return view.tokens.get(command.token_id)
    if isinstance(command, SCHK | SDEL):
        subscription = view.subscriptions.get(request.entity_id)
        return None if subscription is None else view.tokens.get(subscription.token_id)
    return view.tokens.get(request.entity_id)


def _key_of(view: View, request: Request) -> PublicKey | None:
    if isinstance(request.command, TNEW):
        return request.command.verify_key
    token = token_of(view, request)
    return None if token is None else token.verify_key


def verify(view: View, verifier: Verifier, requests: Sequence[Asked]) -> None:
    """Verify many requests at once: whether each is signed by the right key.

    A token keeps its key as long as it lives, so that nothing in the batch can change a verdict.
    """
    pending: list[tuple[Asked, Check]] = []
    for asked in requests:
        client, request = asked.client, asked.request
        if isinstance(request.command, PING):
            asked.is_signed = True
            continue
        signed = request.authorized(client.layout)
        key = _key_of(view, request)
        check = check_of(key, request.authorization, signed, request.corr_id, client.secrets)
        pending.append((asked, check))
    results = verifier.verify_many([check for _, check in pending])
    for (asked, check), valid in zip(pending, results, strict=True):
        asked.is_signed = valid
        if valid and isinstance(check, AuthenticatorCheck):
            asked.client.secrets.keep(check)


def is_allowed(view: View, request: Request) -> bool:
    """Whether the subject of the request exists, and in a state that allows it."""
    command = request.command
    if isinstance(command, TNEW | PING):
        return True
    token = token_of(view, request)
    if token is None:
        return False
    if type(command) not in SUBSCRIPTION_COMMANDS:
        return True
    if isinstance(command, SNEW):
        existing = view.of_queue(command.server, command.notifier_id)
        if existing is not None and existing.token_id != token.token_id:
            return False
        if not token.was_verified:
            # A device that nobody ever had could make us connect to any host.
            return False
    return token.status.subscription_commands_allowed
