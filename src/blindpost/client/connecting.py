"""Trying the hosts of a router, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from blindpost.client.connection import AnyClient
from blindpost.client.hosts import HostPlace
from blindpost.client.options import Options
from blindpost.transport.ends import open_session
from blindpost.transport.errors import TransportError
from blindpost.transport.plan import SessionLimits, SessionPlan

ClientT = TypeVar("ClientT", bound=AnyClient[Any, Any])


def client_limits(limits: SessionLimits) -> SessionLimits:
    """Such that a session is congested from a block's sending until the network has taken all of it."""
    return replace(limits, outbox_high=1, outbox_low=0)


async def connect_any(
    places: list[HostPlace],
    identity: bytes,
    options: Options,
    plan: Callable[[bytes], SessionPlan],
    client: Callable[[], ClientT],
) -> ClientT:
    """A connection to the first place that accepts one, or the last place's error; the others in notes."""
    gate = options.gate
    failures: list[TransportError] = []
    for place in places:
        made = client()
        try:
            if gate is not None and options.is_known:
                gate.know(place.host, place.port, identity)
            with nullcontext() if gate is None else gate.attempt(place.host, place.port, identity):
                await open_session(plan(place.alpn), made, place.host, place.port, place.network)
        except TransportError as error:
            failures.append(error)
        else:
            return made
    last = failures.pop()
    for number, earlier in enumerate(failures, 1):
        last.add_note(f"host {number} of {len(places)}: {earlier}")
    raise last
