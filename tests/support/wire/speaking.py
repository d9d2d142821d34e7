"""Commands as a test wants them said on one connection: right, or wrong in the way that the test is about."""

from __future__ import annotations

import os

from blindpost.crypto.authorizers import authorize, with_fingerprint
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.handshake import ServiceSession
from blindpost.wire.keys import PublicKey
from blindpost.wire.primitives import Writer
from blindpost.wire.transmission import Layout, authorized_bytes, start_signed, transmission_of
from blindpost.wire.transmissions import Written


class Speaker:
    """Writes transmissions of either protocol, at the version and for the session of one connection."""

    def __init__(self, version: int, layout: Layout, router_key: PublicKey | None) -> None:
        self.version = version
        self.layout = layout
        self.router_key = router_key

    def spoken(
        self,
        command: Written | bytes,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        corr_id: bytes | None = None,
        *,
        authorization: bytes | None = None,
        service_signature: bytes | None = None,
    ) -> Writer:
        """One transmission, authorized by `key` or with an authorization as it is given."""
        corr_id = os.urandom(24) if corr_id is None else corr_id
        signed = self.signed(command, entity_id, corr_id)
        if authorization is not None:
            return transmission_of(self.layout, signed, authorization, service_signature)
        return self.authorized_by(key, signed, corr_id, service_signature)

    def signed(self, command: Written | bytes, entity_id: bytes, corr_id: bytes) -> Writer:
        """Ids and command; a command may be any bytes."""
        signed = start_signed(corr_id, entity_id)
        if isinstance(command, bytes):
            signed.raw(command)
        else:
            command.write(signed, self.version)
        return signed

    def authorized_by(
        self, key: PrivateKey | None, signed: Writer, corr_id: bytes, service_signature: bytes | None = None
    ) -> Writer:
        """The whole transmission, authorized by `key` if there is one."""
        authorization = b""
        if key is not None:
            authorized = authorized_bytes(self.layout, signed)
            authorization = authorize(key, authorized, corr_id, self.router_key)
        return transmission_of(self.layout, signed, authorization, service_signature)

    def vouched(self, key: PrivateKey, signed: Writer, corr_id: bytes, service: ServiceSession) -> Writer:
        """The whole transmission of a service: the queue's key vouches for it, its session key signs."""
        assert service.private is not None
        authorized = authorized_bytes(self.layout, signed)
        by_queue = authorize(key, with_fingerprint(service.fingerprint, authorized), corr_id, self.router_key)
        return transmission_of(self.layout, signed, by_queue, service.private.sign(authorized))
