"""The relay's half of proxying: open an RFWD, decide what is inside, seal the answer.

Two boxes: the outer one between proxy and relay, the inner one between sender and relay. The proxy does
not see the command, the relay does not see the sender.
"""

from __future__ import annotations

from dataclasses import dataclass

from blindpost.crypto.boxes import BoxKey, nonce_of, reversed_nonce
from blindpost.crypto.errors import CryptoError
from blindpost.engine.undo import Undo
from blindpost.router.state import RouterClient
from blindpost.wire.batch import PADDING_SIZE, batch_of_one
from blindpost.wire.errors import WireError
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.smp.commands import RFWD
from blindpost.wire.smp.errors import (
    BROKER,
    PROXY,
    SYNTAX,
    TRANSPORT,
    Code,
    RefusedError,
    TransportCode,
)
from blindpost.wire.smp.messages import (
    ForwardedResponse,
    read_forwarded_transmission,
    write_forwarded_response,
)
from blindpost.wire.smp.responses import ERR, RRES, Response
from blindpost.wire.smp.transmissions import Request, parse_forwarded_request
from blindpost.wire.smp.versions import FORWARDED_PADDED_SIZE, forwarded_layout
from blindpost.wire.transmissions import Refused, response_transmission
from blindpost.wire.value import Value

NO_SESSION_KEY = PROXY(BROKER(TRANSPORT(TransportCode.NO_AUTH)))


@dataclass(frozen=True, slots=True, repr=False)
class Forwarded(Value):
    """A forwarded command, opened: the command, on whose behalf it is decided, and how to answer."""

    corr_id: bytes
    """Of the RFWD."""
    forwarded_corr_id: bytes
    inner: Request | Refused
    sender: RouterClient
    """The unknown sender, as a separate connection of the forwarded version, without a service."""
    proxy_box: BoxKey
    sender_box: BoxKey

    def sealed(self, response: Response) -> RRES:
        """The answer, first for the sender, then for the proxy; the nonces are the requests', reversed."""
        batch = self._batch(response)
        if batch.size > FORWARDED_PADDED_SIZE - PADDING_SIZE:
            batch = self._batch(ERR(Code.LARGE_MSG))
        sender_nonce = reversed_nonce(nonce_of(self.forwarded_corr_id))
        for_sender = self.sender_box.seal_parts(sender_nonce, batch.parts, batch.size, FORWARDED_PADDED_SIZE)
        content = encode(ForwardedResponse(self.forwarded_corr_id, for_sender), write_forwarded_response)
        return RRES(self.proxy_box.seal(reversed_nonce(nonce_of(self.corr_id)), content))

    def _batch(self, response: Response) -> Writer:
        sender, inner = self.sender, self.inner
        return batch_of_one(
            response_transmission(sender.layout, sender.version, inner.corr_id, inner.entity_id, response)
        )


def open_forwarded(client: RouterClient, request: Request, undo: Undo) -> Forwarded | Refused:
    """Open an RFWD of a proxy; a `Refused` is for the proxy itself."""
    command = request.command
    assert isinstance(command, RFWD)
    try:
        return _opened(client, request.corr_id, command, undo)
    except RefusedError as refused:
        return Refused(request.corr_id, b"", refused.error)


def _opened(client: RouterClient, corr_id: bytes, command: RFWD, undo: Undo) -> Forwarded:
    keys = client.session_keys
    if keys is None:
        raise RefusedError(NO_SESSION_KEY)
    try:
        outer = keys.box.open(nonce_of(corr_id), command.enc_forward)
    except CryptoError as error:
        raise RefusedError(Code.CRYPTO) from error
    try:
        forwarded = decode_whole(outer, read_forwarded_transmission)
    except WireError as error:
        raise RefusedError(SYNTAX) from error
    sender_box = BoxKey.agreed(keys.own, forwarded.command_key)
    try:
        inner = sender_box.open_padded(nonce_of(forwarded.corr_id), forwarded.enc_transmission)
    except WireError as error:
        raise RefusedError(Code.CRYPTO) from error
    session_id = client.layout.session_id
    found = parse_forwarded_request(Reader(inner), forwarded.version, session_id)
    layout = forwarded_layout(forwarded.version, session_id)
    sender = RouterClient(client.client_id, forwarded.version, layout, client.secrets, undo)
    sender.account = client.account
    return Forwarded(corr_id, forwarded.corr_id, found, sender, keys.box, sender_box)


@dataclass(frozen=True, slots=True, repr=False)
class ForwardedAnswer(Value):
    """An answer to be sealed for the sender behind the proxy."""

    forwarded: Forwarded
    response: Response

    def sealed(self) -> RRES:
        return self.forwarded.sealed(self.response)
