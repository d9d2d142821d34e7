"""Generated SMP values: every command, response and error, as far as a version can carry it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from blindpost.wire.addresses import PASSWORD_BYTES
from blindpost.wire.keys import Algorithm
from blindpost.wire.signed_key import CertKey, SignedKey
from blindpost.wire.smp import commands as c
from blindpost.wire.smp import errors as e
from blindpost.wire.smp import responses as r
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.error_codec import PROXY_DEPTH_MAX
from blindpost.wire.smp.errors import SMPError
from blindpost.wire.smp.handshake import (
    ClientHello,
    ClientService,
    ServerHello,
    ServiceAccepted,
    ServiceRefused,
    ServiceResponse,
    ServiceRole,
)
from blindpost.wire.smp.messages import (
    ForwardedResponse,
    ForwardedTransmission,
    Message,
    NMsgMeta,
    QuotaMarker,
    ReceivedMessage,
)
from blindpost.wire.smp.names import NameRecord
from blindpost.wire.smp.queue_info import MessageInfo, MessageType, QueueInfo, SubInfo, SubThread
from blindpost.wire.smp.responses import Response
from blindpost.wire.smp.values import (
    NO_IDS_HASH,
    LinkData,
    NewLink,
    NtfCreds,
    QueueMode,
    QueueRequest,
    ServerNtfCreds,
    SubMode,
)
from blindpost.wire.versions import VersionRange
from tests.support.wire.ntf_strategies import auth_keys, dh_keys, ids, nonces, public_keys, servers

T = TypeVar("T")

VERSIONS = range(6, 21)

versions = st.sampled_from(VERSIONS)
bodies = st.binary(max_size=300)
i64 = st.integers(-(2**63), 2**63 - 1)
u16 = st.integers(0, 0xFFFF)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
latin1_texts = st.text(st.characters(max_codepoint=255), max_size=255)
passwords = st.lists(st.sampled_from(sorted(PASSWORD_BYTES)), max_size=20).map(bytes)
ids_hashes = st.binary(min_size=16, max_size=16)
labels = st.from_regex(r"[a-z0-9]{1,9}(-[a-z0-9]{1,9}){0,3}", fullmatch=True)
domains = st.lists(labels, min_size=2, max_size=5).map(".".join)
link_data = st.builds(LinkData, bodies, bodies)
ntf_creds = st.builds(NtfCreds, auth_keys, dh_keys)
server_ntf_creds = st.builds(ServerNtfCreds, ids, dh_keys)
version_ranges = st.tuples(u16, u16).map(lambda pair: VersionRange(min(pair), max(pair)))


def optional(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.one_of(st.none(), strategy)


def since(version: int, first: int, strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    """An optional field that versions before `first` do not carry."""
    return optional(strategy) if version >= first else st.none()


def signatures(algorithm: Algorithm) -> st.SearchStrategy[bytes]:
    size = 64 if algorithm is Algorithm.ED25519 else 114
    return st.binary(min_size=size, max_size=size)


signed_keys = st.sampled_from((Algorithm.ED25519, Algorithm.ED448)).flatmap(
    lambda signer: st.builds(
        SignedKey, public_keys(Algorithm.X25519, Algorithm.ED25519), st.just(signer), signatures(signer)
    )
)
cert_keys = st.builds(CertKey, st.lists(bodies, min_size=1, max_size=4).map(tuple), signed_keys)

requests = st.one_of(
    st.builds(QueueRequest, st.sampled_from(QueueMode)),
    st.builds(QueueRequest, st.just(QueueMode.MESSAGING), st.builds(NewLink, ids, link_data, st.none())),
    st.builds(QueueRequest, st.just(QueueMode.CONTACT), st.builds(NewLink, ids, link_data, ids)),
)


def queue_requests(version: int) -> st.SearchStrategy[QueueRequest | None]:
    """Before version 9 nothing, up to 14 only the mode, which is then always there."""
    if version >= 15:
        return optional(requests)
    return st.builds(QueueRequest, st.sampled_from(QueueMode)) if version >= 9 else st.none()


def _new(version: int) -> st.SearchStrategy[Command]:
    return st.builds(
        c.NEW,
        auth_keys,
        dh_keys,
        optional(passwords),
        st.sampled_from(SubMode),
        queue_requests(version),
        since(version, 17, ntf_creds),
    )


def _service(command: type[c.SUBS | c.NSUBS]) -> Callable[[int], st.SearchStrategy[Command]]:
    return lambda version: st.builds(command, i64, ids_hashes) if version >= 19 else st.just(command())


def _same(strategy: st.SearchStrategy[T]) -> Callable[[int], st.SearchStrategy[T]]:
    return lambda version: strategy


COMMANDS: dict[type[Command], Callable[[int], st.SearchStrategy[Command]]] = {
    c.SUB: _same(st.just(c.SUB())),
    c.LDEL: _same(st.just(c.LDEL())),
    c.LGET: _same(st.just(c.LGET())),
    c.NDEL: _same(st.just(c.NDEL())),
    c.NSUB: _same(st.just(c.NSUB())),
    c.GET: _same(st.just(c.GET())),
    c.OFF: _same(st.just(c.OFF())),
    c.DEL: _same(st.just(c.DEL())),
    c.QUE: _same(st.just(c.QUE())),
    c.PING: _same(st.just(c.PING())),
    c.NEW: _new,
    c.SUBS: _service(c.SUBS),
    c.NSUBS: _service(c.NSUBS),
    c.KEY: _same(st.builds(c.KEY, auth_keys)),
    c.SKEY: _same(st.builds(c.SKEY, auth_keys)),
    c.LKEY: _same(st.builds(c.LKEY, auth_keys)),
    c.RKEY: _same(st.builds(c.RKEY, st.lists(auth_keys, min_size=1, max_size=4).map(tuple))),
    c.LSET: _same(st.builds(c.LSET, ids, link_data)),
    c.NKEY: _same(st.builds(c.NKEY, ntf_creds)),
    c.ACK: _same(st.builds(c.ACK, ids)),
    c.SEND: _same(st.builds(c.SEND, st.booleans(), bodies)),
    c.PRXY: _same(st.builds(c.PRXY, servers, optional(passwords))),
    c.PFWD: _same(st.builds(c.PFWD, u16, dh_keys, bodies)),
    c.RFWD: _same(st.builds(c.RFWD, bodies)),
    c.RSLV: _same(st.builds(c.RSLV, domains)),
}

notices = st.builds(e.Notice, optional(i64))
blocked = st.builds(e.BLOCKED, st.sampled_from(e.BlockingReason), optional(notices))
broker_errors: st.SearchStrategy[e.BrokerError] = st.one_of(
    st.sampled_from(e.BrokerCode),
    st.builds(e.RESPONSE, latin1_texts),
    st.builds(e.UNEXPECTED, latin1_texts),
    st.builds(e.TRANSPORT, st.sampled_from(e.TransportCode)),
    st.just(e.NETWORK()),
)
plain_errors: st.SearchStrategy[SMPError] = st.one_of(
    st.sampled_from(e.Code),
    st.builds(e.CMD, st.sampled_from(e.CommandError)),
    st.builds(e.STORE, texts),
    st.builds(e.NAME, st.one_of(st.sampled_from(e.NameCode), st.builds(e.RESOLVER, texts))),
    st.builds(e.PROXY, st.one_of(st.sampled_from(e.ProxyCode), st.builds(e.BROKER, broker_errors))),
)


@st.composite
def proxied_errors(draw: st.DrawFn) -> SMPError:
    """An error wrapped as often as readers allow; a blocked queue inside is not rewritten by version."""
    error: SMPError = draw(st.one_of(plain_errors, blocked))
    for _ in range(draw(st.integers(1, PROXY_DEPTH_MAX))):
        error = e.PROXY(e.PROTOCOL(error))
    return error


def errors(version: int) -> st.SearchStrategy[SMPError]:
    """Errors that a peer of this version is told as they are."""
    if version < 12:
        return st.one_of(plain_errors, proxied_errors())
    told = blocked if version >= 18 else st.builds(e.BLOCKED, st.sampled_from(e.BlockingReason))
    return st.one_of(plain_errors, proxied_errors(), told)


sub_infos = st.builds(SubInfo, st.sampled_from(SubThread), optional(ids))
message_infos = st.builds(MessageInfo, ids, st.integers(-(10**18), 10**19), st.sampled_from(MessageType))
queue_infos = st.builds(
    QueueInfo, st.booleans(), st.booleans(), optional(sub_infos), i64, optional(message_infos)
)
name_records = st.builds(
    NameRecord,
    texts,
    texts,
    texts,
    texts,
    st.lists(texts, max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
    optional(texts),
    optional(texts),
    optional(texts),
    optional(texts),
    texts,
    texts,
)


def _ids(version: int) -> st.SearchStrategy[Response]:
    if version >= 15:
        mode: st.SearchStrategy[QueueMode | None] = optional(st.sampled_from(QueueMode))
    else:
        mode = st.sampled_from(QueueMode) if version >= 9 else st.none()
    link_id, service_id = since(version, 15, ids), since(version, 16, ids)
    return st.builds(
        r.IDS, ids, ids, dh_keys, mode, link_id, service_id, since(version, 17, server_ntf_creds)
    )


def _counts(response: type[r.SOKS | r.ENDS]) -> Callable[[int], st.SearchStrategy[Response]]:
    return lambda version: st.builds(response, i64, ids_hashes if version >= 19 else st.just(NO_IDS_HASH))


def _sok(version: int) -> st.SearchStrategy[Response]:
    return st.builds(r.SOK, optional(ids)) if version >= 16 else st.just(r.OK())


def _deld(version: int) -> st.SearchStrategy[Response]:
    return st.just(r.DELD() if version >= 10 else r.END())


RESPONSES: dict[type[Response], Callable[[int], st.SearchStrategy[Response]]] = {
    r.OK: _same(st.just(r.OK())),
    r.PONG: _same(st.just(r.PONG())),
    r.END: _same(st.just(r.END())),
    r.ALLS: _same(st.just(r.ALLS())),
    r.DELD: _deld,
    r.IDS: _ids,
    r.SOK: _sok,
    r.SOKS: _counts(r.SOKS),
    r.ENDS: _counts(r.ENDS),
    r.MSG: _same(st.builds(r.MSG, ids, bodies)),
    r.LNK: _same(st.builds(r.LNK, ids, link_data)),
    r.NID: _same(st.builds(r.NID, server_ntf_creds)),
    r.NMSG: _same(st.builds(r.NMSG, nonces, st.binary(max_size=255))),
    r.PKEY: _same(st.builds(r.PKEY, ids, version_ranges, cert_keys)),
    r.PRES: _same(st.builds(r.PRES, bodies)),
    r.RRES: _same(st.builds(r.RRES, bodies)),
    r.INFO: _same(st.builds(r.INFO, queue_infos)),
    r.RNAME: _same(st.builds(r.RNAME, name_records)),
    r.ERR: lambda version: st.builds(r.ERR, errors(version)),
}


def commands(version: int) -> st.SearchStrategy[Command]:
    """Any command that this version carries without loss."""
    return st.one_of([of(version) for of in COMMANDS.values()])


def responses(version: int) -> st.SearchStrategy[Response]:
    """Any response that this version carries without loss."""
    return st.one_of([of(version) for of in RESPONSES.values()])


def server_hellos(version: int) -> st.SearchStrategy[ServerHello]:
    offered = st.integers(0, version).map(lambda low: VersionRange(low, version))
    return st.builds(ServerHello, offered, ids, cert_keys if version >= 7 else st.none())


def client_hellos(version: int) -> st.SearchStrategy[ClientHello]:
    services = st.builds(ClientService, st.sampled_from(ServiceRole), cert_keys)
    return st.builds(
        ClientHello,
        st.just(version),
        ids,
        since(version, 7, dh_keys),
        st.booleans() if version >= 14 else st.just(False),
        since(version, 16, services),
    )


service_responses: st.SearchStrategy[ServiceResponse] = st.one_of(
    st.builds(ServiceAccepted, ids), st.builds(ServiceRefused, st.sampled_from(e.TransportCode))
)
messages: st.SearchStrategy[ReceivedMessage] = st.one_of(
    st.builds(QuotaMarker, i64), st.builds(Message, st.integers(0, 2**40), st.booleans(), bodies)
)
nmsg_metas = st.builds(NMsgMeta, ids, i64)
forwarded_transmissions = st.builds(ForwardedTransmission, ids, u16, dh_keys, bodies)
forwarded_responses = st.builds(ForwardedResponse, ids, bodies)
authorizations = st.sampled_from((64, 80, 114)).flatmap(lambda size: st.binary(min_size=size, max_size=size))
service_signatures = st.binary(min_size=64, max_size=64)
