"""A proxy and the relay behind it, in one: real cryptography on both legs, answers that the test dictates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from blindpost.crypto.boxes import BoxKey, nonce_of, reversed_nonce
from blindpost.crypto.credentials import Credentials, sign_session_key
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.batch import batch_of_one
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Reader
from blindpost.wire.smp.commands import PFWD, PRXY
from blindpost.wire.smp.responses import PKEY, PRES, Response
from blindpost.wire.smp.transmissions import Request, parse_forwarded_request
from blindpost.wire.smp.versions import FORWARDED_PADDED_SIZE, PROXIED_VERSIONS, forwarded_layout
from blindpost.wire.transmissions import response_transmission
from blindpost.wire.versions import VersionRange
from tests.support.transport.sessions import seeded

RELAY_SESSION = bytes(range(32))


class ScriptedRelay:
    """What a proxy with this relay answers to PRXY and PFWD; `answer` is the relay's word on each command."""

    def __init__(
        self,
        credentials: Credentials,
        answer: Callable[[Request], Response],
        versions: VersionRange = PROXIED_VERSIONS,
    ) -> None:
        self.key = PrivateKey.generate(Algorithm.X25519, seeded("relay session"))
        self.pkey = PKEY(RELAY_SESSION, versions, sign_session_key(credentials, self.key.public))
        self.answer = answer
        self.prxys: list[PRXY] = []
        self.pfwds: list[tuple[Request, PFWD]] = []
        self.requests: list[Request] = []
        self.copies = 1
        """How many transmissions the relay puts into its answer: a good one puts one."""
        self.refused: Response | None = None
        """What the proxy says instead of asking the relay."""
        self.corr_id: bytes | None = None
        self.entity_id: bytes | None = None
        """Ids with which the relay answers, if not with those of the command."""

    def proxy(self, request: Request) -> Response | None:
        match request.command:
            case _ if self.refused is not None:
                return self.refused
            case PRXY() as prxy:
                self.prxys.append(prxy)
                return self.pkey
            case PFWD() as pfwd:
                self.pfwds.append((request, pfwd))
                return PRES(self._forwarded(request.corr_id, pfwd))
        return None

    def _forwarded(self, corr_id: bytes, pfwd: PFWD) -> memoryview:
        secret = BoxKey.agreed(self.key, pfwd.command_key)
        nonce = nonce_of(corr_id)
        content = secret.open_padded(nonce, pfwd.enc_transmission)
        request = parse_forwarded_request(Reader(content), pfwd.version, RELAY_SESSION)
        assert isinstance(request, Request)
        self.requests.append(request)
        layout = forwarded_layout(pfwd.version, RELAY_SESSION)
        transmission = response_transmission(
            layout,
            pfwd.version,
            request.corr_id if self.corr_id is None else self.corr_id,
            request.entity_id if self.entity_id is None else self.entity_id,
            self.answer(request),
        )
        batch = batch_of_one(transmission)
        parts = [*batch.parts, *batch.parts[1:] * (self.copies - 1)]
        parts[0] = bytes((self.copies,))
        count = sum(map(len, parts))
        return secret.seal_parts(reversed_nonce(nonce), parts, count, FORWARDED_PADDED_SIZE)

    def present(self, **changes: Any) -> None:
        """Change what the proxy tells about the relay."""
        self.pkey = replace(self.pkey, **changes)
