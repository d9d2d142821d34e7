"""The calls of `NodeService` and their results, as values. The layouts are those of `ds/node.capnp`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from blindpost.wire.capnp.building import StructBuilder
from blindpost.wire.capnp.structs import Struct
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

NODE_SERVICE = 0xA6F4183D72E95BC0


@dataclass(frozen=True, slots=True, repr=False)
class Auth(Value):
    version: int = 1
    access_token: bytes = b""
    device_id: bytes = b""


@dataclass(frozen=True, slots=True, repr=False)
class UploadKeyPackage(Value):
    identity_key: bytes
    package: bytes
    auth: Auth


@dataclass(frozen=True, slots=True, repr=False)
class FetchKeyPackage(Value):
    identity_key: bytes
    auth: Auth


@dataclass(frozen=True, slots=True, repr=False)
class Enqueue(Value):
    recipient_key: bytes
    payload: bytes
    channel_id: bytes
    version: int
    auth: Auth


@dataclass(frozen=True, slots=True, repr=False)
class Fetch(Value):
    recipient_key: bytes
    channel_id: bytes
    version: int
    auth: Auth


@dataclass(frozen=True, slots=True, repr=False)
class FetchWait(Value):
    recipient_key: bytes
    channel_id: bytes
    version: int
    timeout_ms: int
    auth: Auth


@dataclass(frozen=True, slots=True, repr=False)
class Lease(Value):
    recipient_key: bytes
    channel_id: bytes
    version: int
    timeout_ms: int
    lease_ms: int
    max_payloads: int
    auth: Auth


@dataclass(frozen=True, slots=True, repr=False)
class Ack(Value):
    recipient_key: bytes
    channel_id: bytes
    version: int
    ids: tuple[bytes, ...]
    auth: Auth


@dataclass(frozen=True, slots=True, repr=False)
class Delivery(Value):
    id: bytes
    payload: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Fingerprint(Value):
    fingerprint: bytes


@dataclass(frozen=True, slots=True, repr=False)
class KeyPackage(Value):
    package: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Done(Value):
    """The empty result of `enqueue` and `ack`."""


@dataclass(frozen=True, slots=True, repr=False)
class Payloads(Value):
    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Deliveries(Value):
    deliveries: tuple[Delivery, ...]


Request = UploadKeyPackage | FetchKeyPackage | Enqueue | Fetch | FetchWait | Lease | Ack
Result = Fingerprint | KeyPackage | Done | Payloads | Deliveries

METHODS: tuple[type[Request], ...] = (
    UploadKeyPackage,
    FetchKeyPackage,
    Enqueue,
    Fetch,
    FetchWait,
    Lease,
    Ack,
)
"""By ordinal."""

AUTH_BYTES_MAX = 4096
ACK_IDS_MAX = 4096
"""How many ids one `ack` may have; one more is read, so that it can be refused."""


def read_request(method: int, params: Struct) -> Request | None:
    """The call of this ordinal; None if there is no such method."""
    data, u16 = _data(params), params.u16(0)
    match method:
        case 0:
            return UploadKeyPackage(data(0), data(1), _auth(params, 2))
        case 1:
            return FetchKeyPackage(data(0), _auth(params, 1))
        case 2:
            return Enqueue(data(0), data(1), data(2), u16, _auth(params, 3))
        case 3:
            return Fetch(data(0), data(1), u16, _auth(params, 2))
        case 4:
            return FetchWait(data(0), data(1), u16, params.u64(1), _auth(params, 2))
        case 5:
            return Lease(data(0), data(1), u16, params.u64(1), params.u32(1), params.u32(4), _auth(params, 2))
        case 6:
            ids = tuple(map(bytes, itertools.islice(params.datas(2), ACK_IDS_MAX + 1)))
            return Ack(data(0), data(1), u16, ids, _auth(params, 3))
        case _:
            return None


def write_request(request: Request) -> Callable[[StructBuilder, int], None]:
    """Writes the parameters of a call behind a pointer."""

    def write(parent: StructBuilder, place: int) -> None:
        match request:
            case UploadKeyPackage(identity_key, package, auth):
                _write_auth(_datas(parent.struct(place, 0, 3), identity_key, package), 2, auth)
            case FetchKeyPackage(identity_key, auth):
                _write_auth(_datas(parent.struct(place, 0, 2), identity_key), 1, auth)
            case Enqueue(recipient_key, payload, channel_id, version, auth):
                params = _datas(parent.struct(place, 1, 4), recipient_key, payload, channel_id)
                params.u16(0, version)
                _write_auth(params, 3, auth)
            case Fetch(recipient_key, channel_id, version, auth):
                params = _datas(parent.struct(place, 1, 3), recipient_key, channel_id)
                params.u16(0, version)
                _write_auth(params, 2, auth)
            case FetchWait(recipient_key, channel_id, version, timeout_ms, auth):
                params = _datas(parent.struct(place, 2, 3), recipient_key, channel_id)
                params.u16(0, version)
                params.u64(1, timeout_ms)
                _write_auth(params, 2, auth)
            case Lease():
                params = _datas(parent.struct(place, 3, 3), request.recipient_key, request.channel_id)
                params.u16(0, request.version)
                params.u64(1, request.timeout_ms)
                params.u32(1, request.lease_ms)
                params.u32(4, request.max_payloads)
                _write_auth(params, 2, request.auth)
            case Ack(recipient_key, channel_id, version, ids, auth):
                params = _datas(parent.struct(place, 1, 4), recipient_key, channel_id)
                params.u16(0, version)
                params.datas(2, ids)
                _write_auth(params, 3, auth)

    return write


def read_result(method: int, content: Struct) -> Result:
    """What a call of this ordinal returned."""
    match method:
        case 0:
            return Fingerprint(bytes(content.data(0)))
        case 1:
            return KeyPackage(bytes(content.data(0)))
        case 3 | 4:
            return Payloads(tuple(map(bytes, content.datas(0))))
        case 5:
            return Deliveries(
                tuple(Delivery(bytes(one.data(0)), bytes(one.data(1))) for one in content.structs(0))
            )
        case _:
            return Done()


def write_result(result: Result) -> Callable[[StructBuilder, int], None]:
    """Writes the results of a call behind a pointer."""

    def write(parent: StructBuilder, place: int) -> None:
        match result:
            case Done():
                parent.struct(place, 0, 0)
            case Fingerprint(data) | KeyPackage(data):
                parent.struct(place, 0, 1).data(0, data)
            case Payloads(payloads):
                parent.struct(place, 0, 1).datas(0, payloads)
            case Deliveries(deliveries):
                structs = parent.struct(place, 0, 1).structs(0, len(deliveries), 0, 2)
                for one, written in zip(deliveries, structs, strict=True):
                    _datas(written, one.id, one.payload)

    return write


def _data(params: Struct) -> Callable[[int], bytes]:
    return lambda place: bytes(params.data(place))


def _auth(params: Struct, place: int) -> Auth:
    auth = params.struct(place)
    token, device_id = auth.data(0), auth.data(1)
    if len(token) + len(device_id) > AUTH_BYTES_MAX:
        raise WireError("an access token and device id above the limit")
    return Auth(auth.u16(0), bytes(token), bytes(device_id))


def _datas(params: StructBuilder, *contents: bytes) -> StructBuilder:
    for place, content in enumerate(contents):
        params.data(place, content)
    return params


def _write_auth(params: StructBuilder, place: int, auth: Auth) -> None:
    written = _datas(params.struct(place, 1, 2), auth.access_token, auth.device_id)
    written.u16(0, auth.version)
