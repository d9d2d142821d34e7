"""What each version of the notification protocol brought, and how its transmissions and blocks look."""

from __future__ import annotations

from blindpost.wire.transmission import Layout
from blindpost.wire.versions import VersionRange

MIN_VERSION = 1
AUTH_BATCH_VERSION = 2
"""The session key in the hello, authenticators, batches, the session id implied."""
INVALID_REASON_VERSION = 3
"""TKN tells why a token is invalid."""
MAX_VERSION = INVALID_REASON_VERSION

NTF_VERSIONS = VersionRange(MIN_VERSION, MAX_VERSION)
LEGACY_VERSIONS = VersionRange(MIN_VERSION, MIN_VERSION)
"""What a router offers when TLS negotiated no protocol name."""

ALPN = b"ntf/1"


def offered_versions(own: VersionRange, alpn: bytes | None) -> VersionRange:
    """What a router's hello offers: without a negotiated protocol name only the first version."""
    return own if alpn is not None else LEGACY_VERSIONS


def connection_layout(version: int, session_id: bytes) -> Layout:
    """The transmissions of a connection at the agreed version; services do not exist here."""
    return Layout(session_id, session_sent=version < AUTH_BATCH_VERSION, service_field=False)
