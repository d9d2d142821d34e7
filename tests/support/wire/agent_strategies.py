"""Generated values of addresses, links, envelopes and agent messages, for round trips."""

from __future__ import annotations

import ipaddress
from typing import TypeVar

from hypothesis import strategies as st

from blindpost.wire.addresses import PASSWORD_BYTES, Host, RouterAddress, Scheme, Server
from blindpost.wire.agent.envelopes import (
    AgentEnvelope,
    ClientEnvelope,
    ClientMessage,
    Confirmation,
    Invitation,
    MessageEnvelope,
    PublicHeader,
    RatchetKey,
)
from blindpost.wire.agent.messages import (
    AddedQueue,
    AgentConnInfo,
    AgentConnInfoReply,
    AgentMessage,
    AgentRatchetInfo,
    AMessage,
    AMsg,
    AnyAgentMessage,
    AQCont,
    ARcvd,
    EReady,
    Hello,
    KeyedQueue,
    QAdd,
    QKey,
    QTest,
    QUse,
    Receipt,
    UsedQueue,
)
from blindpost.wire.e2e import E2EParams, E2EParamsUri, KemAccepted, KemParams, KemProposed
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.links.data import (
    ContactLinkData,
    FixedLinkData,
    InvitationLinkData,
    OwnerAuth,
    Signed,
    UserLinkData,
)
from blindpost.wire.links.full import ContactLink, FullLink, InvitationLink
from blindpost.wire.links.short import ContactType, LinkScheme, ShortContact, ShortInvitation, ShortLink
from blindpost.wire.queue_addresses import QueueAddress, QueueInfo, QueueUri, SenderAddress
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.versions import VersionRange
from tests.support.wire.long_values import ramp

T = TypeVar("T")

DOMAIN_CHARACTERS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in ":#,;/[]")


def keys(*algorithms: Algorithm) -> st.SearchStrategy[PublicKey]:
    return st.sampled_from(algorithms).flatmap(
        lambda algorithm: st.builds(
            PublicKey,
            st.just(algorithm),
            st.binary(min_size=algorithm.raw_size, max_size=algorithm.raw_size),
        )
    )


auth_keys = keys(Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519)
small = st.binary(max_size=40)
short = st.one_of(small, st.binary(max_size=255))
ids = st.binary(min_size=1, max_size=255)
u16 = st.integers(0, 0xFFFF)
i64 = st.integers(-(2**63), 2**63 - 1)


def pairs(of: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    """One or two items: enough to see where an item ends."""
    return st.lists(of, min_size=1, max_size=2).map(tuple)


def ranges(low: int, high: int) -> st.SearchStrategy[VersionRange]:
    """Ranges around what is spoken, and any others."""
    near = st.tuples(st.integers(low, high), st.integers(low, high))
    return st.one_of(near, st.tuples(u16, u16)).map(lambda pair: VersionRange(min(pair), max(pair)))


def _is_domain(text: str) -> bool:
    """Not what an earlier rule would take, whole or as a prefix."""
    try:
        return Host(text).text == text
    except ValueError:
        return False


hosts = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda number: str(ipaddress.IPv4Address(number))),
    st.integers(0, 2**128 - 1).map(lambda number: ipaddress.IPv6Address(number).exploded),
    st.lists(st.sampled_from([0, 0, 1, 0xDB8]), min_size=8, max_size=8).map(
        lambda groups: ":".join(f"{group:x}" for group in groups)
    ),
    st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=1, max_size=56).map(lambda name: f"{name}.onion"),
    st.text(DOMAIN_CHARACTERS, min_size=1, max_size=30).filter(_is_domain),
    st.just("smp.example.com"),
).map(Host)
ports = st.one_of(st.just(""), st.integers(0, 0xFFFF).map(str))
servers = st.builds(Server, pairs(hosts), ports, ids)
single_host_servers = st.builds(Server, hosts.map(lambda host: (host,)), ports, ids)
passwords = st.lists(st.sampled_from(sorted(PASSWORD_BYTES)), min_size=1, max_size=20).map(bytes)
router_addresses = st.builds(RouterAddress, st.sampled_from(Scheme), servers, st.one_of(st.none(), passwords))

sender_addresses = st.builds(SenderAddress, servers, short)
modes = st.sampled_from([None, QueueMode.MESSAGING, QueueMode.CONTACT])
x25519_keys = keys(Algorithm.X25519)


def addresses_of(
    where: st.SearchStrategy[Server], mode: st.SearchStrategy[QueueMode | None]
) -> st.SearchStrategy[QueueAddress]:
    return st.builds(QueueAddress, where, ids, x25519_keys, mode)


def _infos(version: int) -> st.SearchStrategy[QueueInfo]:
    """Addresses of one version with the modes that this version can tell."""
    telling = {3: st.sampled_from([None, QueueMode.MESSAGING])}.get(
        version, modes if version > 3 else st.none()
    )
    where = single_host_servers if version < 2 else servers
    return st.builds(QueueInfo, st.just(version), addresses_of(where, telling))


queue_infos = st.integers(0, 6).flatmap(_infos)


def _uris(versions: VersionRange) -> st.SearchStrategy[QueueUri]:
    """Binary addresses of a range with the modes that it can tell."""
    if versions.low >= 4:
        telling = modes
    elif versions.low == 3:
        telling = st.sampled_from([QueueMode.MESSAGING, QueueMode.CONTACT])
    elif versions.high >= 3:
        telling = st.sampled_from([None, QueueMode.MESSAGING])
    else:
        telling = st.none()
    return st.builds(QueueUri, st.just(versions), addresses_of(servers, telling))


client_ranges = ranges(0, 5)
queue_uris = client_ranges.flatmap(_uris)
text_queue_uris = st.builds(QueueUri, client_ranges, addresses_of(servers, modes))
"""In text any range tells any mode."""

x448_keys = keys(Algorithm.X448)
kem_keys = st.integers(0, 255).map(lambda first: ramp(first, 1158))
kem_ciphertexts = st.integers(0, 255).map(lambda first: ramp(first, 1039))
proposed_kems = st.builds(KemProposed, kem_keys)
kems: st.SearchStrategy[KemParams] = st.one_of(
    proposed_kems, st.builds(KemAccepted, kem_ciphertexts, kem_keys)
)
e2e_uris = st.builds(E2EParamsUri, ranges(1, 4), x448_keys, x448_keys, st.one_of(st.none(), proposed_kems))
text_e2e_uris = e2e_uris.filter(lambda params: params.kem is None or params.versions.high >= 3)


def e2e_params(kem: st.SearchStrategy[KemParams]) -> st.SearchStrategy[E2EParams]:
    return st.one_of(
        st.builds(E2EParams, st.integers(0, 2), x448_keys, x448_keys, st.none()),
        st.builds(E2EParams, st.integers(3, 5), x448_keys, x448_keys, st.one_of(st.none(), kem)),
    )


client_data = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
agent_ranges = ranges(1, 8)
text_links: st.SearchStrategy[FullLink] = st.one_of(
    st.builds(InvitationLink, agent_ranges, pairs(text_queue_uris), text_e2e_uris, client_data),
    st.builds(
        ContactLink, agent_ranges.filter(lambda range_: range_.low >= 2), pairs(text_queue_uris), client_data
    ),
)
_moded_uris = st.one_of(
    st.builds(
        QueueUri,
        ranges(3, 5).filter(lambda versions: versions.low >= 3),
        addresses_of(servers, st.sampled_from(QueueMode)),
    ),
    st.builds(
        QueueUri,
        st.builds(VersionRange, st.integers(0, 2), st.integers(3, 0xFFFF)),
        addresses_of(servers, st.just(QueueMode.MESSAGING)),
    ),
)
"""Addresses whose mode the binary form tells."""
binary_links: st.SearchStrategy[FullLink] = st.one_of(
    st.builds(InvitationLink, agent_ranges, pairs(_moded_uris), e2e_uris, client_data),
    st.builds(ContactLink, agent_ranges, pairs(_moded_uris), client_data),
)

link_servers = st.builds(Server, pairs(hosts), ports, short)
schemes = st.sampled_from(LinkScheme)


def short_contacts(scheme: st.SearchStrategy[LinkScheme]) -> st.SearchStrategy[ShortContact]:
    return st.builds(ShortContact, st.sampled_from(ContactType), link_servers, ids, scheme)


def short_links(scheme: st.SearchStrategy[LinkScheme]) -> st.SearchStrategy[ShortLink]:
    return st.one_of(short_contacts(scheme), st.builds(ShortInvitation, link_servers, ids, ids, scheme))


ed25519_keys = keys(Algorithm.ED25519)
signatures = st.binary(min_size=64, max_size=64)
fixed_link_data = st.builds(
    FixedLinkData, agent_ranges, ed25519_keys, binary_links, st.one_of(st.none(), short)
)
owners = st.builds(OwnerAuth, st.binary(max_size=100), ed25519_keys, signatures)
user_data = st.one_of(short, st.integers(250, 600).map(bytes))
binary_scheme = st.just(LinkScheme.HTTPS)
user_link_data: st.SearchStrategy[UserLinkData] = st.one_of(
    st.builds(InvitationLinkData, agent_ranges, user_data),
    st.builds(
        ContactLinkData,
        agent_ranges,
        st.booleans(),
        st.lists(owners, max_size=2).map(tuple),
        st.lists(short_contacts(binary_scheme), max_size=2).map(tuple),
        user_data,
    ),
)
signed = st.builds(Signed, signatures, small)

public_headers = st.builds(PublicHeader, u16, st.one_of(st.none(), x25519_keys))
client_envelopes = st.builds(ClientEnvelope, public_headers, st.binary(min_size=24, max_size=24), small)
client_messages = st.builds(ClientMessage, st.one_of(st.none(), auth_keys), small)
invitation_links = st.builds(InvitationLink, agent_ranges, pairs(text_queue_uris), text_e2e_uris, client_data)
agent_envelopes: st.SearchStrategy[AgentEnvelope] = st.one_of(
    st.builds(Confirmation, u16, st.one_of(st.none(), e2e_params(kems)), small),
    st.builds(MessageEnvelope, u16, small),
    st.builds(Invitation, u16, invitation_links, small),
    st.builds(RatchetKey, u16, e2e_params(proposed_kems), small),
)

a_messages: st.SearchStrategy[AMessage] = st.one_of(
    st.just(Hello()),
    st.builds(AMsg, small),
    st.builds(ARcvd, pairs(st.builds(Receipt, i64, short, st.one_of(small, st.just(bytes(300)))))),
    st.builds(AQCont, sender_addresses),
    st.builds(QAdd, pairs(st.builds(AddedQueue, queue_uris, st.one_of(st.none(), sender_addresses)))),
    st.builds(QKey, pairs(st.builds(KeyedQueue, queue_infos, auth_keys))),
    st.builds(QUse, pairs(st.builds(UsedQueue, sender_addresses, st.booleans()))),
    st.builds(QTest, pairs(sender_addresses)),
    st.builds(EReady, i64),
)
plain_info = small.filter(lambda info: info[:1] not in (b"M", b"C", b"T", b"F"))
"""Information that is safe behind any queue address."""

agent_messages: st.SearchStrategy[AnyAgentMessage] = st.one_of(
    st.builds(AgentConnInfo, small),
    st.builds(AgentConnInfoReply, pairs(queue_infos), plain_info),
    st.builds(AgentRatchetInfo, small),
    st.builds(AgentMessage, i64, short, a_messages),
)
