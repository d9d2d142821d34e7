"""Sending through a proxy: the relay does not learn who sends, nor the proxy what and to which queue."""

from __future__ import annotations

from blindpost.client.authorizing import Authorizer
from blindpost.client.connection import CORR_ID_SIZE
from blindpost.client.dialects import check_available, check_credentials
from blindpost.client.errors import (
    EncodingError,
    GarbledResponseError,
    NotAvailableError,
    ProxyFailedError,
    RefusedError,
    TooLargeError,
    UnexpectedResponseError,
)
from blindpost.client.smp import SmpClient
from blindpost.crypto.boxes import BoxKey, reversed_nonce
from blindpost.crypto.chains import leaf_key, validate_router_chain
from blindpost.crypto.credentials import verify_session_key
from blindpost.crypto.keys import PrivateKey
from blindpost.transport.certificates import Now
from blindpost.transport.errors import HandshakeIdentityError, HandshakeVersionError
from blindpost.wire.addresses import Server
from blindpost.wire.batch import batch_of_one, unpack
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.signed_key import CertKey
from blindpost.wire.smp.commands import PFWD, PRXY, Command
from blindpost.wire.smp.credentials import RULES, credentials_error
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ERR, PKEY, PRES, Response
from blindpost.wire.smp.transmissions import Received, parse_response
from blindpost.wire.smp.versions import FORWARDED_PADDED_SIZE, SMP_VERSIONS, forwarded_layout
from blindpost.wire.transmissions import signed_request


class Relay:
    """A session of a proxy with a relay, good for many commands while both connections last.

    `RefusedError` is what the relay itself answered, as if it had been asked directly; `ProxyFailedError` is
    what the proxy says, about itself or about its trouble with the relay.
    """

    def __init__(self, proxy: SmpClient, session_id: bytes, version: int, key: PublicKey) -> None:
        self._proxy = proxy
        self._session_id = session_id
        self._key = key
        self._layout = forwarded_layout(version, session_id)
        self._authorizer = Authorizer(self._layout, key, proxy.options.bounds.secrets)
        self.version = version

    @classmethod
    async def open(cls, proxy: SmpClient, relay: Server, password: bytes | None = None) -> Relay:
        """Ask `proxy` for a session with `relay`; the password is that of the proxy."""
        options = proxy.options
        try:
            response = await proxy.send(PRXY(relay, password), timeout_s=options.timing.proxy_session_s)
        except RefusedError as refused:
            raise ProxyFailedError(refused.error) from refused
        if not isinstance(response, PKEY):
            raise UnexpectedResponseError(response)
        versions = options.versions or SMP_VERSIONS
        version = versions.agreed(response.versions)
        if version is None:
            raise HandshakeVersionError(
                f"the relay offers versions {response.versions.text}, we know {versions.text}"
            )
        key = _proven_key(response.cert_key, relay.key_hash, options.now)
        return cls(proxy, response.session_id, version, key)

    async def send(self, command: Command, entity_id: bytes = b"", key: PrivateKey | None = None) -> Response:
        """The relay's response; SEND, SKEY, LKEY, LGET and RSLV can be sent like this."""
        entropy = self._proxy.options.entropy
        nonce = entropy(CORR_ID_SIZE)
        command_key = PrivateKey.generate(Algorithm.X25519, entropy)
        secret = BoxKey.agreed(command_key, self._key)
        batch = batch_of_one(self._transmission(command, entity_id, key, nonce))
        try:
            sealed = secret.seal_parts(nonce, batch.parts, batch.size, FORWARDED_PADDED_SIZE)
        except WireError as error:
            raise TooLargeError from error
        forwarded = PFWD(self.version, command_key.public, sealed)
        timeout_s = self._proxy.options.timing.forwarded_s
        try:
            response = await self._proxy.send(forwarded, self._session_id, corr_id=nonce, timeout_s=timeout_s)
        except RefusedError as refused:
            raise ProxyFailedError(refused.error) from refused
        if not isinstance(response, PRES):
            raise UnexpectedResponseError(response)
        return self._opened(response, secret, nonce, entity_id)

    def _transmission(
        self, command: Command, entity_id: bytes, key: PrivateKey | None, nonce: bytes
    ) -> Writer:
        if not RULES[type(command)].forwarded:
            raise NotAvailableError(f"{command.TAG.decode('ascii')} cannot be sent through a proxy")
        check_available(command, self.version)
        check_credentials(credentials_error(command, key is not None, entity_id != b""))
        try:
            signed = signed_request(nonce, entity_id, command, self.version)
        except WireError as error:
            raise EncodingError(f"the command cannot be written: {error}") from error
        return self._authorizer.plain(nonce, signed, key)

    def _opened(self, response: PRES, secret: BoxKey, nonce: bytes, entity_id: bytes) -> Response:
        try:
            content = secret.open_padded(reversed_nonce(nonce), response.enc_response)
        except WireError as error:
            raise GarbledResponseError(Code.CRYPTO) from error
        try:
            (transmission,) = unpack(Reader(content))
        except (WireError, ValueError) as error:
            raise GarbledResponseError(Code.BLOCK) from error
        inner = parse_response(transmission, self._layout, self.version)
        if not isinstance(inner, Received):
            raise GarbledResponseError(inner.error)
        if isinstance(inner.response, ERR):
            raise RefusedError(inner.response.error)
        if inner.corr_id != nonce or inner.entity_id != entity_id:
            raise UnexpectedResponseError(inner.response)
        return inner.response


def _proven_key(proof: CertKey, key_hash: bytes, now: Now) -> PublicKey:
    """The relay's session key, if the relay with this identity signed it: a proxy cannot put in its own."""
    signed = proof.signed_key
    try:
        validate_router_chain(proof.chain, key_hash, int(now()))
        leaf = leaf_key(proof.chain)
    except WireError as error:
        raise HandshakeIdentityError(f"the proxy presents another relay: {error}") from error
    if signed.key.algorithm is not Algorithm.X25519 or not verify_session_key(leaf, signed):
        raise HandshakeIdentityError("the proxy presents a key that the relay did not sign")
    return signed.key
