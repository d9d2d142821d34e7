"""PRXY and PFWD: the proxy's half of proxying. The relay's answers come later, out of order."""

from __future__ import annotations

from blindpost.router.meters import Meter
from blindpost.router.queues import password_fits
from blindpost.router.state import RouterClient
from blindpost.router.turn import Forward, OpenRelay, RelayEffect, Turn
from blindpost.wire.smp.commands import PFWD, PRXY
from blindpost.wire.smp.errors import PROTOCOL, PROXY, ProxyCode
from blindpost.wire.smp.responses import ERR, Response
from blindpost.wire.smp.transmissions import Request


def open_relay(turn: Turn, client: RouterClient, request: Request, command: PRXY) -> Response | None:
    """PRXY: open a session with a relay, for clients that know the operator's password."""
    if not turn.rules.proxy or not password_fits(turn, command.basic_auth):
        return ERR(PROXY(ProxyCode.BASIC_AUTH))
    turn.ask(OpenRelay(client, request.corr_id, command.relay))
    return None


def forward(turn: Turn, client: RouterClient, request: Request, command: PFWD) -> None:
    """PFWD: hand what is inside to the relay of the session."""
    turn.ask(Forward(client, request.corr_id, request.entity_id, command))


def relay_answered(turn: Turn, effect: RelayEffect, response: Response) -> None:
    """A relay was asked: count the outcome and answer the client."""
    if isinstance(effect, OpenRelay):
        turn.count(Meter.RELAYS)
        turn.count(Meter.RELAYS_FAILED if isinstance(response, ERR) else Meter.RELAYS_OPENED)
        turn.answer(effect.client, effect.corr_id, b"", response)
    else:
        turn.count(Meter.RELAYED)
        turn.count(Meter.RELAYED_ANSWERED if _is_answer(response) else Meter.RELAYED_FAILED)
        turn.answer(effect.client, effect.corr_id, effect.session_id, response)


def _is_answer(response: Response) -> bool:
    """Whether the relay itself answered, even with a protocol error."""
    if not isinstance(response, ERR):
        return True
    return isinstance(response.error, PROXY) and isinstance(response.error.error, PROTOCOL)
