"""Generated values of the notification protocol, one strategy for each type."""

from __future__ import annotations

from hypothesis import strategies as st

from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import AUTH_ALGORITHMS, Algorithm, PublicKey
from blindpost.wire.ntf.commands import PING, SCHK, SDEL, SNEW, TCHK, TCRN, TDEL, TNEW, TRPL, TVFY, Command
from blindpost.wire.ntf.handshake import ClientHello, ServerHello
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, Push, PushItem, VerificationPush
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN, OK, PONG, SUB, TKN, Response
from blindpost.wire.ntf.status import InvalidReason, SubState, SubStatus, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import NULL_TOKEN, DeviceToken, PushProvider
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.signed_key import SignedKey
from blindpost.wire.smp.errors import CMD, STORE, Code, CommandError, SMPError
from blindpost.wire.versions import VersionRange

VERSIONS = (1, 2, 3)
AUTHS = sorted(AUTH_ALGORITHMS, key=lambda algorithm: algorithm.label)

versions = st.sampled_from(VERSIONS)
short_bytes = st.binary(max_size=255)
ids = st.one_of(st.binary(min_size=24, max_size=24), short_bytes)
short_ids = st.binary(min_size=1, max_size=24)
entity_ids = st.binary(min_size=1, max_size=255)
nonces = st.binary(min_size=24, max_size=24)
authorizations = st.sampled_from((64, 80, 114)).flatmap(lambda size: st.binary(min_size=size, max_size=size))


@st.composite
def public_keys(draw: st.DrawFn, *algorithms: Algorithm) -> PublicKey:
    algorithm = draw(st.sampled_from(algorithms))
    return PublicKey(algorithm, draw(st.binary(min_size=algorithm.raw_size, max_size=algorithm.raw_size)))


@st.composite
def private_keys(draw: st.DrawFn, *algorithms: Algorithm) -> EncodedPrivateKey:
    algorithm = draw(st.sampled_from(algorithms))
    raw = draw(st.binary(min_size=algorithm.raw_size, max_size=algorithm.raw_size))
    return EncodedPrivateKey(algorithm, raw)


auth_keys = public_keys(*AUTHS)
dh_keys = public_keys(Algorithm.X25519)
APPLE = [provider for provider in PushProvider if provider is not PushProvider.WEB_PUSH]
device_tokens = st.builds(DeviceToken, st.sampled_from(APPLE), short_bytes)
hex_tokens = st.builds(
    DeviceToken, st.sampled_from(APPLE), st.binary(max_size=64).map(lambda raw: raw.hex().encode())
)
text_tokens = st.one_of(hex_tokens, st.just(DeviceToken(PushProvider.APNS_NULL, NULL_TOKEN)))

_labels = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)
hosts = st.one_of(
    _labels.map(lambda label: Host(f"{label}x.example")),
    st.text("abcdefghijklmnop234567", min_size=1, max_size=56).map(lambda name: Host(f"{name}.onion")),
    st.ip_addresses(v=4).map(lambda address: Host(str(address))),
    st.ip_addresses(v=6).map(lambda address: Host(f"[{address}]")),
)
servers = st.builds(
    Server,
    st.lists(hosts, min_size=1, max_size=4).map(tuple),
    st.one_of(st.just(""), st.integers(0, 65535).map(str)),
    st.binary(min_size=32, max_size=32),
)

commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(TNEW, device_tokens, auth_keys, dh_keys),
    st.builds(TVFY, short_bytes),
    st.just(TCHK()),
    st.builds(TRPL, device_tokens),
    st.just(TDEL()),
    st.builds(TCRN, st.integers(0, 65535)),
    st.builds(SNEW, ids, servers, ids, private_keys(*AUTHS)),
    st.just(SCHK()),
    st.just(SDEL()),
    st.just(PING()),
)

token_statuses = st.one_of(
    st.sampled_from(TokenState).map(TokenStatus),
    st.sampled_from(InvalidReason).map(lambda reason: TokenStatus(TokenState.INVALID, reason)),
)
sub_statuses = st.one_of(
    st.sampled_from([state for state in SubState if state is not SubState.ERR]).map(SubStatus),
    st.binary(max_size=250).map(SubStatus.failed),
)
errors: st.SearchStrategy[SMPError] = st.one_of(
    st.sampled_from(Code), st.sampled_from(CommandError).map(CMD), st.text(max_size=100).map(STORE)
)
responses: st.SearchStrategy[Response] = st.one_of(
    st.builds(IDTKN, ids, dh_keys),
    st.builds(IDSUB, ids),
    st.just(OK()),
    st.builds(ERR, errors),
    st.builds(TKN, token_statuses),
    st.builds(SUB, sub_statuses),
    st.just(PONG()),
)

signed_keys = st.one_of(
    st.builds(SignedKey, dh_keys, st.just(Algorithm.ED25519), st.binary(min_size=64, max_size=64)),
    st.builds(SignedKey, dh_keys, st.just(Algorithm.ED448), st.binary(min_size=114, max_size=114)),
)


@st.composite
def server_hellos(draw: st.DrawFn) -> ServerHello:
    low, high = sorted((draw(st.integers(0, 65535)), draw(st.integers(0, 65535))))
    signed_key = draw(signed_keys) if high >= 2 else None
    return ServerHello(VersionRange(low, high), draw(short_bytes), signed_key)


client_hellos = st.builds(ClientHello, st.integers(0, 65535), short_bytes)

push_items = st.builds(
    PushItem,
    servers,
    st.binary(min_size=1, max_size=24),
    st.integers(-(2**63), 2**63 - 1),
    nonces,
    st.binary(min_size=1, max_size=144),
)
pushes: st.SearchStrategy[Push] = st.one_of(
    st.builds(VerificationPush, nonces, st.binary(min_size=1, max_size=200)),
    st.builds(MessagePush, nonces, st.binary(min_size=1, max_size=200)),
    st.just(CheckPush()),
)
