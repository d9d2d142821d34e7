"""What each SMP version brought, and the sizes that depend on it.

Decoders and encoders compare with these numbers and never refuse a version: a router executes forwarded
commands of any version, known or not.
"""

from __future__ import annotations

from blindpost.wire.transmission import Layout
from blindpost.wire.versions import VersionRange

MIN_VERSION = 6
AUTH_KEYS_VERSION = 7
"""Session keys in the handshake, authenticators, the session id implied."""
PROXY_VERSION = 8
SENDER_SECURE_VERSION = 9
"""SKEY; NEW and IDS say whether the sender may secure the queue."""
DELETED_EVENT_VERSION = 10
BLOCK_ENCRYPTION_VERSION = 11
BLOCKED_VERSION = 12
PROXY_FLAG_VERSION = 14
SHORT_LINKS_VERSION = 15
SERVICE_CERTS_VERSION = 16
NEW_NTF_CREDS_VERSION = 17
CLIENT_NOTICES_VERSION = 18
SERVICE_HASH_VERSION = 19
"""Count and hash in SUBS, NSUBS, SOKS and ENDS; the messaging role of services."""
NAMES_VERSION = 20
MAX_VERSION = NAMES_VERSION

SMP_VERSIONS = VersionRange(MIN_VERSION, MAX_VERSION)
PROXIED_VERSIONS = VersionRange(PROXY_VERSION, MAX_VERSION)
"""The versions a proxy reports in PKEY."""
LEGACY_VERSIONS = VersionRange(MIN_VERSION, MIN_VERSION)
"""What a router offers when TLS negotiated no protocol name."""
OLD_RELAY_MAX_VERSION = DELETED_EVENT_VERSION
"""What a proxy lowers its maximum to before a relay that does not know the proxy flag."""

MSG_PADDED_SIZE = 16106
"""The plaintext of a MSG body."""
NMSG_PADDED_SIZE = 128
FORWARDED_PADDED_SIZE = 16226
"""The batch of one inside PFWD and PRES."""

_BODY_SIZE_MAX = 16048
_BODY_SIZE_MAX_BEFORE_ENCRYPTION = 16064
_BODY_SIZE_MAX_BEFORE_PROXY = 16088


def body_size_max(version: int) -> int:
    """The largest body of a SEND at the agreed or forwarded version."""
    if version >= BLOCK_ENCRYPTION_VERSION:
        return _BODY_SIZE_MAX
    return _BODY_SIZE_MAX_BEFORE_ENCRYPTION if version >= PROXY_VERSION else _BODY_SIZE_MAX_BEFORE_PROXY


def connection_layout(version: int, session_id: bytes) -> Layout:
    """The transmissions of a connection at the agreed version."""
    return Layout(session_id, version < AUTH_KEYS_VERSION, version >= SERVICE_CERTS_VERSION)


def forwarded_layout(version: int, session_id: bytes) -> Layout:
    """The transmission inside a PFWD: the relay session is implied at every version."""
    return Layout(session_id, session_sent=False, service_field=version >= SERVICE_CERTS_VERSION)


def proxy_versions(own: VersionRange, offered: VersionRange) -> VersionRange:
    """What a proxy may agree to with a relay that offers `offered`, so that blocks stay unencrypted."""
    if offered.high >= PROXY_FLAG_VERSION:
        return own
    return VersionRange(own.low, max(own.low, min(own.high, OLD_RELAY_MAX_VERSION)))
