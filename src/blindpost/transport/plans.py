"""Plans for the four kinds of sessions: SMP and NTF, router and client."""

from __future__ import annotations

import time

from blindpost.crypto.credentials import Credentials
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.transport.certificates import Now, client_chain_check, router_chain_check
from blindpost.transport.ntf_handshake import NtfClient, NtfRouter
from blindpost.transport.plan import SessionLimits, SessionPlan
from blindpost.transport.smp_handshake import SmpClient, SmpRouter
from blindpost.transport.tls import client_context, router_context
from blindpost.wire.batch import NTF_BLOCK_SIZE, SMP_BLOCK_SIZE
from blindpost.wire.ntf.versions import ALPN as NTF_ALPN
from blindpost.wire.ntf.versions import NTF_VERSIONS
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.versions import SMP_VERSIONS
from blindpost.wire.versions import VersionRange

SMP_ALPN = b"smp/1"
WEB_ALPNS = (b"h2", b"http/1.1")
"""Protocol names that clients use on port 443; behind any of them they speak our protocols."""

INTERACTIVE = SessionLimits(connect_timeout_s=15.0, tls_timeout_s=15.0, handshake_timeout_s=15.0)
BACKGROUND = SessionLimits(connect_timeout_s=45.0, tls_timeout_s=45.0, handshake_timeout_s=45.0)
"""Limits of clients: while a person waits, and when nobody does."""


def smp_router_plan(
    credentials: Credentials,
    *,
    versions: VersionRange = SMP_VERSIONS,
    limits: SessionLimits | None = None,
    now: Now = time.time,
    entropy: Entropy = system_entropy,
) -> SessionPlan:
    router = SmpRouter(credentials, entropy, versions)
    key = credentials.key.for_certificates()
    return SessionPlan(
        context=router_context(credentials.chain, key, (SMP_ALPN, *WEB_ALPNS)),
        check=client_chain_check(now),
        handshake=router.handshake,
        block_size=SMP_BLOCK_SIZE,
        server=True,
        limits=limits or SessionLimits(),
    )


def smp_client_plan(
    key_hash: bytes,
    *,
    versions: VersionRange = SMP_VERSIONS,
    alpn: bytes | None = SMP_ALPN,
    proxy: bool = False,
    service: tuple[ServiceRole, Credentials] | None = None,
    offer_key: bool = True,
    limits: SessionLimits = BACKGROUND,
    now: Now = time.time,
    entropy: Entropy = system_entropy,
) -> SessionPlan:
    """How to connect to the router whose identity has the fingerprint `key_hash`."""
    client = SmpClient(key_hash, entropy, versions, proxy, service, offer_key)
    if service is None:
        context = client_context(alpn)
    else:
        context = client_context(alpn, service[1].chain, service[1].key.for_certificates())
    return SessionPlan(
        context=context,
        check=router_chain_check(key_hash, now),
        handshake=client.handshake,
        block_size=SMP_BLOCK_SIZE,
        server=False,
        limits=limits,
    )


def ntf_router_plan(
    credentials: Credentials,
    *,
    versions: VersionRange = NTF_VERSIONS,
    limits: SessionLimits | None = None,
    now: Now = time.time,
    entropy: Entropy = system_entropy,
) -> SessionPlan:
    router = NtfRouter(credentials, entropy, versions)
    key = credentials.key.for_certificates()
    return SessionPlan(
        context=router_context(credentials.chain, key, (NTF_ALPN, *WEB_ALPNS)),
        check=client_chain_check(now),
        handshake=router.handshake,
        block_size=NTF_BLOCK_SIZE,
        server=True,
        limits=limits or SessionLimits(),
    )


def ntf_client_plan(
    key_hash: bytes,
    *,
    versions: VersionRange = NTF_VERSIONS,
    alpn: bytes | None = NTF_ALPN,
    limits: SessionLimits = BACKGROUND,
    now: Now = time.time,
) -> SessionPlan:
    client = NtfClient(key_hash, versions)
    return SessionPlan(
        context=client_context(alpn),
        check=router_chain_check(key_hash, now),
        handshake=client.handshake,
        block_size=NTF_BLOCK_SIZE,
        server=False,
        limits=limits,
    )
