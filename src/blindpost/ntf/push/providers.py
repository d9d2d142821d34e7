"""Which provider serves which device tokens."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from blindpost.ntf.ports import Provider
from blindpost.ntf.push.apns import DEVELOPMENT_HOST, PORT, PRODUCTION_HOST, TOPIC, Apns, Endpoint
from blindpost.ntf.push.null import NullProvider
from blindpost.ntf.push.provider_tokens import ProviderTokens
from blindpost.wire.ntf.tokens import PushProvider as Kind

APPLE_HOSTS = {Kind.APNS_DEV: DEVELOPMENT_HOST, Kind.APNS_PROD: PRODUCTION_HOST}


def apple_endpoints(tls: ssl.SSLContext, topic: str = TOPIC) -> dict[Kind, Endpoint]:
    """Apple's two environments."""
    return {kind: Endpoint(host, PORT, tls, topic) for kind, host in APPLE_HOSTS.items()}


def providers_at(endpoints: Mapping[Kind, Endpoint], tokens: ProviderTokens) -> dict[Kind, Provider]:
    """Providers at these endpoints, and the null provider. Nothing is connected yet."""
    found: dict[Kind, Provider] = {Kind.APNS_NULL: NullProvider()}
    for kind, endpoint in endpoints.items():
        found[kind] = Apns(endpoint, tokens)
    return found
