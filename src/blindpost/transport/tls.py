"""TLS 1.3 as bytes in and bytes out, over OpenSSL's memory buffers.

Neither side trusts an authority: the client compares a fingerprint, the router accepts any client
certificate that validates with itself as its anchor. So OpenSSL's own verdict on a chain is set aside and
`check` decides: on the client inside the handshake, before anything of ours that names us has left; on
the router right after it. The calls of the hot path go to the C library directly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from cryptography import x509
from cryptography.hazmat.bindings.openssl.binding import Binding
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL

from blindpost.crypto.keys import CertificateKey
from blindpost.transport import errors
from blindpost.wire.value import Buffer

_lib, _ffi = Binding.lib, Binding.ffi

CIPHER_SUITE = b"TLS_CHACHA20_POLY1305_SHA256"
GROUPS = b"X25519:X448"
SIGNATURE_SCHEMES = b"ed448:ed25519"
RECORD_MAX = 16384
RECEIVE_MAX = 4 * (RECORD_MAX + 22)
"""How much is read from a socket at once: four full records."""

SILENT_MAX = 256
"""Messages of TLS itself that a peer may send after the handshake, in all: each change of keys costs us time.
OpenSSL would take any number of them in one call, and is told to come back after each."""

ChainCheck = Callable[[tuple[bytes, ...]], None]
"""Raises a `CertificateError` for a chain (DER, leaf first) that must not be accepted."""


class Scratch(threading.local):
    """Buffers that all connections of a thread share, since nothing stays in them between two calls."""

    def __init__(self) -> None:
        self.received = bytearray(RECEIVE_MAX)
        self.received_c = _ffi.from_buffer(self.received)
        self.plain = bytearray(RECORD_MAX)
        self.plain_c = _ffi.from_buffer(self.plain)
        self.plain_view = memoryview(self.plain)
        self.pointer = _ffi.new("char **")


scratch = Scratch()


def router_context(chain: Sequence[bytes], key: CertificateKey, alpn: Sequence[bytes]) -> SSL.Context:
    """What all connections of a router share. A client certificate is asked for and not required."""
    context = _context(SSL.TLS_SERVER_METHOD)
    _present(context, chain, key)
    context.set_verify(SSL.VERIFY_PEER, _accept_any)
    known = frozenset(alpn)

    def select(connection: SSL.Connection, offered: list[bytes]) -> bytes:
        for name in offered:
            if name in known:
                return name
        raise errors.AlpnError

    context.set_alpn_select_callback(select)
    return context


def client_context(
    alpn: bytes | None, chain: Sequence[bytes] = (), key: CertificateKey | None = None
) -> SSL.Context:
    """What all connections of a client with one identity share. It sends no server name."""
    context = _context(SSL.TLS_CLIENT_METHOD)
    if key is not None:
        _present(context, chain, key)
        context.set_info_callback(_note_request)
    if alpn is not None:
        context.set_alpn_protos([alpn])
    context.set_verify(SSL.VERIFY_PEER, _check_router)
    return context


def _context(method: int) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(CIPHER_SUITE)
    # Sessions are never resumed. What OpenSSL still sends after a handshake are tickets without content.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.set_mode(_lib.SSL_MODE_RELEASE_BUFFERS)
    handle = context._context
    _lib.SSL_CTX_clear_mode(handle, _lib.SSL_MODE_ENABLE_PARTIAL_WRITE)  # memory takes all at once
    if _lib.SSL_CTX_set1_curves_list(handle, GROUPS) != 1:
        raise errors.TlsError("OpenSSL does not offer X25519 and X448")
    if _lib.SSL_CTX_set1_sigalgs_list(handle, SIGNATURE_SCHEMES) != 1:
        raise errors.TlsError("OpenSSL does not offer Ed448 and Ed25519")
    return context


def _present(context: SSL.Context, chain: Sequence[bytes], key: CertificateKey) -> None:
    leaf, *issuers = (x509.load_der_x509_certificate(der) for der in chain)
    context.use_certificate(leaf)
    try:
        context.use_privatekey(key)
    except SSL.Error as error:
        raise errors.CertificateError("the private key does not belong to the leaf certificate") from error
    for issuer in issuers:
        context.add_extra_chain_cert(issuer)


def _accept_any(connection: SSL.Connection, certificate: object, error: int, depth: int, good: int) -> bool:
    return True


def _check_router(connection: SSL.Connection, certificate: object, error: int, depth: int, good: int) -> bool:
    """Whether the router has the expected identity. OpenSSL asks several times; the first answer stands."""
    tls: Tls = connection.get_app_data()
    return tls.accepts_peer(connection)


def _note_request(connection: SSL.Connection, where: int, result: int) -> None:
    """OpenSSL presents our certificate when asked to, and this callback is the only trace of that."""
    tls: Tls | None = connection.get_app_data()
    if tls is not None and b"certificate request" in connection.get_state_string():
        tls.certificate_sent = True


def _ders(certificates: Sequence[x509.Certificate] | None) -> tuple[bytes, ...]:
    return tuple(certificate.public_bytes(Encoding.DER) for certificate in certificates or ())


class Tls:
    """One end of one TLS connection."""

    __slots__ = (
        "_check",
        "_connection",
        "_from",
        "_into",
        "_server",
        "_silent",
        "_ssl",
        "_verdict",
        "alpn",
        "certificate_sent",
        "peer_chain",
    )

    def __init__(self, context: SSL.Context, check: ChainCheck, *, server: bool) -> None:
        connection = SSL.Connection(context, None)
        if server:
            connection.set_accept_state()
        else:
            connection.set_connect_state()
            connection.set_app_data(self)
        self._connection = connection
        self._ssl = connection._ssl
        _lib.SSL_clear_mode(self._ssl, _lib.SSL_MODE_AUTO_RETRY)
        self._into = connection._into_ssl
        self._from = connection._from_ssl
        self._server = server
        self._silent = 0
        self._check = check
        self._verdict: errors.TransportError | None = errors.ChainEmptyError()
        self.peer_chain: tuple[bytes, ...] = ()
        self.alpn: bytes | None = None
        self.certificate_sent = False

    def accepts_peer(self, connection: SSL.Connection) -> bool:
        """Check the router's chain, once, during the handshake."""
        if not self.peer_chain:
            self.peer_chain = _ders(connection.get_peer_cert_chain(as_cryptography=True))
            self._verdict = self._judge()
        return self._verdict is None

    def _judge(self) -> errors.TransportError | None:
        try:
            self._check(self.peer_chain)
        except errors.CertificateError as error:
            return error
        return None

    def handshake(self) -> bool:
        """Advance the handshake; whether it is complete. `outgoing` must be sent in any case."""
        connection = self._connection
        try:
            connection.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            if not self._server and self.peer_chain and self._verdict is not None:
                raise self._verdict from error
            raise named(error) from error
        if self._server:
            leaf = connection.get_peer_certificate(as_cryptography=True)
            if leaf is not None:
                others = connection.get_peer_cert_chain(as_cryptography=True)
                self.peer_chain = _ders([leaf, *(others or ())])
            self._verdict = self._judge()
        if self._verdict is not None:
            raise self._verdict
        self.alpn = connection.get_alpn_proto_negotiated() or None
        return True

    @property
    def session_id(self) -> bytes:
        """The client's Finished message, which both sides know and nobody else can choose."""
        connection = self._connection
        finished = connection.get_peer_finished() if self._server else connection.get_finished()
        if not finished:
            raise errors.TlsError("TLS gave no session identifier")
        return finished

    def received(self, count: int) -> None:
        """Take in the first `count` bytes of the thread's `scratch.received`."""
        if count and _lib.BIO_write(self._into, scratch.received_c, count) != count:
            raise errors.TlsError("no memory for received bytes")

    def read(self, size: int) -> int:
        """Decrypt up to `size` bytes into `scratch.plain`: how many, 0 when more must be received first."""
        ssl = self._ssl
        while True:
            _lib.ERR_clear_error()  # a stale error of another call would be mistaken for one of this call
            count: int = _lib.SSL_read(ssl, scratch.plain_c, size)
            if count > 0:
                return count
            if _lib.SSL_get_error(ssl, count) != _lib.SSL_ERROR_WANT_READ:
                break
            if _lib.BIO_get_mem_data(self._into, scratch.pointer) <= 0:
                return 0
            self._silent += 1
            if self._silent > SILENT_MAX:
                raise errors.TlsError("the peer changes its keys all the time")
        try:
            self._connection._raise_ssl_error(ssl, count)
        except SSL.WantReadError:
            return 0
        except SSL.ZeroReturnError as error:
            raise errors.PeerClosedError from error
        except SSL.Error as error:
            raise named(error) from error
        raise errors.TlsError

    @property
    def pending(self) -> bool:
        """Whether `read` has anything to do; an empty call costs more than this check."""
        waiting: int = _lib.BIO_get_mem_data(self._into, scratch.pointer) or _lib.SSL_pending(self._ssl)
        return waiting > 0

    def write(self, data: Buffer | bytearray) -> None:
        """Encrypt `data`; the result waits in `outgoing`."""
        count = len(data)
        source = data if type(data) is bytes else _ffi.from_buffer(data)
        if _lib.SSL_write(self._ssl, source, count) != count:
            raise errors.TlsError("TLS refused to encrypt")

    def outgoing(self) -> bytearray:
        """All bytes that must go to the peer now."""
        source = self._from
        count = _lib.BIO_get_mem_data(source, scratch.pointer)
        data = bytearray(count)
        if count:
            _lib.BIO_read(source, _ffi.from_buffer(data), count)
        return data

    def shutdown(self) -> None:
        """Add the close notification to what is outgoing."""
        if _lib.SSL_shutdown(self._ssl) < 0:
            _lib.ERR_clear_error()

    def forget(self) -> None:
        """The connection has ended: drop what refers back here."""
        self._connection.set_app_data(None)

    def release(self) -> bool:
        """Free the memory of an idle connection, whose buffers grew with the largest burst.

        Returns whether that was done: a buffer with waiting bytes is kept.
        """
        pointer = scratch.pointer
        if _lib.BIO_get_mem_data(self._into, pointer) or _lib.BIO_get_mem_data(self._from, pointer):
            return False
        connection = self._connection
        self._into = connection._into_ssl = _lib.BIO_new(_lib.BIO_s_mem())
        self._from = connection._from_ssl = _lib.BIO_new(_lib.BIO_s_mem())
        _lib.SSL_set_bio(self._ssl, self._into, self._from)
        return True


_REASONS: dict[str, type[errors.TlsError]] = {
    "http request": errors.PlainHttpError,
    "https proxy request": errors.PlainHttpError,
    "wrong version number": errors.NotTlsError,
    "data length too long": errors.NotTlsError,
    "packet length too long": errors.NotTlsError,
    "unexpected message": errors.NotTlsError,
    "unsupported protocol": errors.TlsVersionError,
    "no protocols available": errors.TlsVersionError,
    "no application protocol": errors.AlpnError,
    "no shared cipher": errors.TlsParametersError,
    "no suitable key share": errors.TlsParametersError,
    "no suitable signature algorithm": errors.TlsParametersError,
    "no shared signature algorithms": errors.TlsParametersError,
}

_ALERTS: dict[str, tuple[type[errors.TransportError], str]] = {
    "protocol version": (errors.TlsVersionError, "the peer refused TLS 1.3"),
    "no application protocol": (
        errors.AlpnError,
        "the peer knows none of the application protocols we offered",
    ),
    "handshake failure": (errors.TlsParametersError, "the peer found no TLS parameters in common"),
    "unknown ca": (errors.UnknownCaError, "the peer does not accept our certificate: unknown CA"),
    "certificate expired": (errors.CertificateExpiredError, "the peer says that our certificate has expired"),
    "certificate unknown": (errors.CertificateError, "the peer does not accept our certificate"),
    "bad certificate": (errors.CertificateError, "the peer does not accept our certificate"),
}


def named(error: SSL.Error) -> errors.TransportError:
    """The named error for what OpenSSL reports."""
    details = error.args[0] if error.args and isinstance(error.args[0], list) else []
    reasons = [str(detail[2]) for detail in details]
    for reason in reasons:
        _, is_alert, alert = reason.partition(" alert ")
        if is_alert:
            kind, message = _ALERTS.get(alert, (errors.TlsError, f"the peer ended TLS: {alert}"))
            return kind(message)
        if reason in _REASONS:
            return _REASONS[reason]()
    return errors.TlsError(f"TLS failed: {', '.join(reasons) or 'no reason given'}")
