"""Why a connection could not be made or ended: one small family of named errors.

Every way in which a session can fail has a class here, and every session that closes names one of them.
`wire` is what the protocol calls it, where the protocol has a word for it.
"""

from __future__ import annotations

from typing import ClassVar

from blindpost.wire.smp.errors import TransportCode as Wire


class TransportError(Exception):
    """A connection failed or ended. The message says what happened; it never names a peer."""

    wire: ClassVar[Wire | None] = None
    default: ClassVar[str] = "the connection failed"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.default)

    def again(self) -> TransportError:
        """A copy of the error to raise again: one instance must not collect tracebacks."""
        return type(self)(str(self))


class ConnectError(TransportError):
    """No TCP connection was made."""

    default = "the host could not be reached"


class ForbiddenHostError(ConnectError):
    """No connection was tried: none of the host's addresses may be connected to from here."""

    default = "the host's address is not one that may be connected to"


class StageTimeoutError(TransportError):
    """A stage of the connection took longer than its limit."""

    default = "the peer did not answer in time"


class ConnectTimeoutError(StageTimeoutError):
    default = "no TCP connection within the time limit"


class TlsTimeoutError(StageTimeoutError):
    default = "the peer did not complete the TLS handshake in time"


class HandshakeTimeoutError(StageTimeoutError):
    default = "the peer did not complete the protocol handshake in time"


class ClosedError(TransportError):
    """The session has ended."""

    default = "the session is closed"


class ClosedHereError(ClosedError):
    default = "the session was closed on this side"


class PeerClosedError(ClosedError):
    default = "the peer closed the connection"


class ConnectionCutError(ClosedError):
    default = "the connection broke without a close notification"


class OutboxFullError(ClosedError):
    default = "the peer reads too slowly: its outbox is full"


class DivertedError(TransportError):
    """The connection was for another protocol, which now serves it."""

    default = "the connection was not for this protocol"


class RefusedError(ClosedError):
    default = "too many connections"


class TlsError(TransportError):
    """TLS itself failed."""

    default = "TLS failed"


class NotTlsError(TlsError):
    default = "the peer does not speak TLS"


class PlainHttpError(NotTlsError):
    default = "the peer sent plain HTTP to a TLS port"


class TlsVersionError(TlsError):
    default = "the peer does not offer TLS 1.3"


class TlsParametersError(TlsError):
    default = "no cipher suite, key exchange group or signature scheme in common"


class AlpnError(TlsError):
    default = "none of the offered application protocols (ALPN) is known here"


class CertificateError(TransportError):
    """A certificate chain was not accepted."""

    default = "the certificate chain is not valid"


class ChainEmptyError(CertificateError):
    default = "no certificate was presented"


class ChainTooShortError(CertificateError):
    default = "the certificate chain is too short: 2 to 4 certificates expected"


class ChainTooLongError(CertificateError):
    default = "the certificate chain is too long: at most 4 certificates expected"


class UnknownCaError(CertificateError):
    default = "unknown CA: the fingerprint of the router's identity differs from its address"


class CertificateExpiredError(CertificateError):
    default = "a certificate has expired or is not valid yet"


class ChainInvalidError(CertificateError):
    default = "the certificates of the chain do not certify each other"


class HandshakeError(TransportError):
    """The handshake in blocks failed."""


class HandshakeParseError(HandshakeError):
    wire = Wire.HANDSHAKE_PARSE
    default = "the handshake message could not be read"


class HandshakeIdentityError(HandshakeError):
    wire = Wire.HANDSHAKE_IDENTITY
    default = "the client expects a router of another identity"


class HandshakeBadAuthError(HandshakeError):
    wire = Wire.HANDSHAKE_BAD_AUTH
    default = "the certificate or the signed key in the handshake is not the one proven in TLS"


class HandshakeBadServiceError(HandshakeError):
    wire = Wire.HANDSHAKE_BAD_SERVICE
    default = "the router refused the service, most likely because it knows it in another role"


class HandshakeSessionError(HandshakeError):
    wire = Wire.SESSION
    default = "the router named another session: the connection may be intercepted"


class HandshakeVersionError(HandshakeError):
    wire = Wire.VERSION
    default = "no protocol version in common"


def refusal(wire: Wire) -> HandshakeError:
    """What the router's refusal of a service means here."""
    message = f"the router refused the service: {wire.value.decode()}"
    for kind in HandshakeError.__subclasses__():
        if kind.wire is wire:
            return kind(message)
    return HandshakeError(message)


class BlockError(TransportError):
    """One block could not be opened. The session continues."""

    wire = Wire.BLOCK
    default = "a block could not be decrypted or unpadded"


class LargeMessageError(TransportError):
    """The payload does not fit into a block; nothing was sent."""

    wire = Wire.LARGE_MSG
    default = "the payload does not fit into a block"
