"""The errors of cryptography: what came from outside did not open, verify or validate."""

from blindpost.wire.errors import WireError


class CryptoError(WireError):
    """A box that does not open, a key that cannot be one, a certificate chain that is not valid."""
