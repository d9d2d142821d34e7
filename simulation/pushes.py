"""A push service as a party, and the devices behind it: Apple's protocol over HTTP/2, on bare connections."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from typing import cast

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from blindpost.crypto.errors import CryptoError
from blindpost.crypto.pushes import open_message
from blindpost.ntf.push.apns import Apns, Endpoint
from blindpost.ntf.push.http2 import ConnectionFailedError, Http2Connection, Watch
from blindpost.ntf.push.provider_tokens import ProviderTokens, SigningKey
from blindpost.testing.apns import ACCEPTED, KEY_ID, TEAM_ID, Answer, ApnsServer, Delivered, Reaction
from blindpost.wire.ntf.pushes import MessagePush, PushItem
from simulation.party import Party, Surroundings

HOST, PORT = "apple", 443
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""What an endpoint must name; no connection of these runs uses it."""


class SteadyKey:
    """Signs the same with the same signature, so that a header is as long in every run of a seed."""

    def sign(self, content: bytes, algorithm: object) -> bytes:
        return KEY.sign(content, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))


KEY = ec.derive_private_key(1 << 200, ec.SECP256R1())
SIGNING = SigningKey(cast(ec.EllipticCurvePrivateKey, SteadyKey()), KEY_ID, TEAM_ID)


class SimulatedApns(Apns):
    """The provider of a notification router; only the way to its connection is another."""

    def __init__(self, party: Party) -> None:
        super().__init__(Endpoint(HOST, PORT, NO_TLS), ProviderTokens(SIGNING, party.now))
        self._network = party.run.network

    async def _connect(self) -> Http2Connection:
        endpoint = self._endpoint
        watch = Watch(endpoint.ping_s, endpoint.response_timeout_s)
        try:
            async with asyncio.timeout(endpoint.connect_timeout_s):
                self._connection = await self._network.connect(lambda: Http2Connection(watch), HOST, PORT)
        except (OSError, TimeoutError) as error:
            raise ConnectionFailedError(f"no connection: {type(error).__name__}") from error
        finally:
            self._connecting = None
        return self._connection


class Apple(ApnsServer):
    """The push service's own books: what it accepted outlives its processes."""

    def __init__(self, party: PushParty) -> None:
        super().__init__(now=party.now, key=KEY, new_id=lambda: f"{party.ids.getrandbits(128):032X}")
        self._party = party

    def keep(self, delivered: Delivered) -> None:
        super().keep(delivered)
        self._party.came(delivered)


class PushParty(Party):
    """A push service that accepts, refuses, falls silent, or breaks off after it has accepted."""

    kind = "push service"

    def __init__(self, run: Surroundings) -> None:
        super().__init__(run, HOST)
        self.ids = random.Random(f"{run.seed}/{HOST}")
        self.apple = Apple(self)
        self.secrets: dict[str, set[bytes]] = {}
        """By device token: what opens pushes to it. A real push service has none of them."""
        self.announced: set[bytes] = set()
        """Nonces of all notifications that were in an accepted push."""
        self.devices: dict[str, Callable[[bytes], None]] = {}
        self._mood: Reaction = ACCEPTED
        self.apple.decide = lambda device_token: self._mood

    def answer(self, reaction: Reaction) -> None:
        self._mood = reaction

    def came(self, delivered: Delivered) -> None:
        """A push came in whole; it is not answered yet."""
        self.counts[_named(delivered.reaction)] += 1
        if not delivered.accepted:
            return
        push = delivered.push
        if isinstance(push, MessagePush):
            secrets = self.secrets.get(delivered.device_token, set())
            found = [items for secret in secrets if (items := _opened(secret, push)) is not None]
            if secrets and not found:
                raise CryptoError("a push that no secret of its device opens")
            self.announced.update(item.nonce for items in found for item in items)
        device = self.devices.get(delivered.device_token)
        if device is not None:
            self.run.loop.outside.call_soon(device, delivered.body)

    async def live(self) -> None:
        self._over = asyncio.Event()
        await self.run.network.listen(self.apple.connection, HOST, PORT)
        await self._over.wait()

    async def end(self) -> None:
        self._over.set()

    def files_closed(self) -> None:
        pass

    def mended(self) -> None:
        self._mood, self.apple.late_s = ACCEPTED, 0.0


def _opened(secret: bytes, push: MessagePush) -> Sequence[PushItem] | None:
    """What is in a push; None if it is for another secret: a device may be registered anew."""
    try:
        return open_message(secret, push)
    except CryptoError:
        return None


def _named(reaction: Reaction) -> str:
    if isinstance(reaction, Answer):
        return f"push answered {reaction.status} {reaction.reason}".strip()
    return f"push met by: {reaction.value}"
