"""Who signs what: the queue's key, and for a service its session key too."""

from __future__ import annotations

from blindpost.client.errors import NoRouterKeyError
from blindpost.crypto import authorizers
from blindpost.crypto.authorizers import authenticator, authorize, with_fingerprint
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.handshake import ServiceSession
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Writer
from blindpost.wire.transmission import Layout, authorized_bytes, transmission_of


class Authorizer:
    """Authorizes commands for one session of a router, whose key and session id enter into it."""

    def __init__(self, layout: Layout, router_key: PublicKey | None, secrets_max: int) -> None:
        self._layout = layout
        self._router_key = router_key
        self._secrets: dict[bytes, BoxKey] = {}
        self._secrets_max = secrets_max

    def plain(self, corr_id: bytes, signed: Writer, key: PrivateKey | None) -> Writer:
        """The whole transmission, authorized by `key` if there is one."""
        if key is None:
            return transmission_of(self._layout, signed)
        authorized = authorized_bytes(self._layout, signed)
        return transmission_of(self._layout, signed, self._authorization(key, authorized, corr_id))

    def dual(self, corr_id: bytes, signed: Writer, key: PrivateKey, service: ServiceSession) -> Writer:
        """With two signatures: the queue's key vouches for the service, the service for the command."""
        assert service.private is not None, "a client has the session key of its service"
        authorized = authorized_bytes(self._layout, signed)
        vouched = with_fingerprint(service.fingerprint, authorized)
        by_queue = self._authorization(key, vouched, corr_id)
        return transmission_of(self._layout, signed, by_queue, service.private.sign(authorized))

    def _authorization(self, key: PrivateKey, authorized: bytes, corr_id: bytes) -> bytes:
        if key.algorithm is Algorithm.X25519 and self._router_key is not None:
            return authenticator(self._secret(key, self._router_key), corr_id, authorized)
        try:
            return authorize(key, authorized, corr_id, self._router_key)
        except authorizers.NoRouterKeyError as error:
            raise NoRouterKeyError from error

    def _secret(self, key: PrivateKey, router_key: PublicKey) -> BoxKey:
        """An agreement costs more than all the rest, so the secrets used last are kept."""
        name = key.public.raw
        secret = self._secrets.pop(name, None)
        if secret is None:
            secret = BoxKey.agreed(key, router_key)
            if len(self._secrets) >= self._secrets_max:
                del self._secrets[next(iter(self._secrets))]
        self._secrets[name] = secret
        return secret
