"""The RPC messages between two vats, as far as a service with one capability needs them.

One side offers its bootstrap capability, the other calls it. A call is answered by one Return; a Finish
says that the caller has taken the answer, or, before the Return, that it no longer wants one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from blindpost.wire.capnp.building import Builder, StructBuilder
from blindpost.wire.capnp.structs import Message, Struct
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.value import Value

BOOTSTRAP_CAPABILITY = 0
"""The export id of the only capability that a service offers."""


class Kind(IntEnum):
    """The members of the union `Message`."""

    UNIMPLEMENTED = 0
    ABORT = 1
    CALL = 2
    RETURN = 3
    FINISH = 4
    RESOLVE = 5
    RELEASE = 6
    BOOTSTRAP = 8
    DISEMBARGO = 13


class ExceptionType(IntEnum):
    """What a caller may do about an exception."""

    FAILED = 0
    OVERLOADED = 1
    DISCONNECTED = 2
    UNIMPLEMENTED = 3


@dataclass(frozen=True, slots=True, repr=False)
class Bootstrap(Value):
    question: int


@dataclass(frozen=True, slots=True, repr=False)
class Call(Value):
    """`promised` is the question whose answer is called, None if an exported capability is."""

    question: int
    promised: int | None
    capability: int
    interface: int
    method: int
    params: Struct


@dataclass(frozen=True, slots=True, repr=False)
class Finish(Value):
    question: int


@dataclass(frozen=True, slots=True, repr=False)
class Release(Value):
    capability: int


@dataclass(frozen=True, slots=True, repr=False)
class Results(Value):
    """A Return with results."""

    question: int
    content: Struct


@dataclass(frozen=True, slots=True, repr=False)
class Offered(Value):
    """A Return with a capability: the answer to a bootstrap."""

    question: int
    capability: int


@dataclass(frozen=True, slots=True, repr=False)
class Raised(Value):
    """A Return with an exception."""

    question: int
    reason: str
    type: ExceptionType


@dataclass(frozen=True, slots=True, repr=False)
class Canceled(Value):
    question: int


@dataclass(frozen=True, slots=True, repr=False)
class Abort(Value):
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Other(Value):
    """A message that a service with one capability does not need."""

    kind: int


RpcMessage = Bootstrap | Call | Finish | Release | Results | Offered | Raised | Canceled | Abort | Other


def read_rpc(message: Message) -> RpcMessage:
    root = message.root()
    kind, body = root.u16(0), root.struct(0)
    match kind:
        case Kind.BOOTSTRAP:
            return Bootstrap(body.u32(0))
        case Kind.CALL:
            return _read_call(body)
        case Kind.FINISH:
            return Finish(body.u32(0))
        case Kind.RELEASE:
            return Release(body.u32(0))
        case Kind.RETURN:
            return _read_return(body)
        case Kind.ABORT:
            return Abort(body.text(0))
        case _:
            return Other(kind)


def _read_call(body: Struct) -> Call:
    target = body.struct(0)
    promised = None
    if target.u16(2):
        answer = target.struct(0)
        promised = answer.u32(0)
        if next(answer.structs(0), None) is not None:
            raise WireError("a call to a capability inside an answer")
    if body.u16(3):
        raise WireError("results are sent to the caller only")
    params = body.struct(1).struct(0)
    return Call(body.u32(0), promised, target.u32(0), body.u64(1), body.u16(2), params)


def _read_return(body: Struct) -> Results | Offered | Raised | Canceled:
    question, kind = body.u32(0), body.u16(3)
    match kind:
        case 0:
            return _read_results(question, body.struct(0))
        case 1:
            exception = body.struct(0)
            number = exception.u16(2)
            type_ = ExceptionType(number if number < len(ExceptionType) else ExceptionType.FAILED)
            return Raised(question, exception.text(0), type_)
        case 2:
            return Canceled(question)
        case _:
            raise WireError("an answer of an unknown kind")


def _read_results(question: int, payload: Struct) -> Results | Offered:
    table = tuple(payload.structs(1))
    if not table:
        return Results(question, payload.struct(0))
    index = payload.capability(0)
    if index is None or index >= len(table) or table[index].u16(0) != 1:
        raise WireError("an answer without the capability it should have")
    return Offered(question, table[index].u32(1))


def write_bootstrap(question: int) -> bytes:
    builder, body = _message(Kind.BOOTSTRAP, 1, 1)
    body.u32(0, question)
    return builder.framed()


def write_call(
    question: int,
    target: int | None,
    interface: int,
    method: int,
    params: Callable[[StructBuilder, int], None],
    promised: int = 0,
) -> bytes:
    """A call to an exported capability, or, if `target` is None, to the answer of `promised`."""
    builder, body = _message(Kind.CALL, 3, 3)
    body.u32(0, question)
    body.u64(1, interface)
    body.u16(2, method)
    aim = body.struct(0, 1, 1)
    if target is None:
        aim.u16(2, 1)
        aim.struct(0, 1, 1).u32(0, promised)
    else:
        aim.u32(0, target)
    params(body.struct(1, 0, 2), 0)
    return builder.framed()


def write_finish(question: int) -> bytes:
    builder, body = _message(Kind.FINISH, 1, 0)
    body.u32(0, question)
    return builder.framed()


def write_results(question: int, content: Callable[[StructBuilder, int], None]) -> bytes:
    builder, body = _return(question, 0)
    content(body.struct(0, 0, 2), 0)
    return builder.framed()


def write_bootstrap_results(question: int) -> bytes:
    """The answer to a bootstrap: the one capability that a service has."""
    builder, body = _return(question, 0)
    payload = body.struct(0, 0, 2)
    payload.capability(0, 0)
    (descriptor,) = payload.structs(1, 1, 1, 1)
    descriptor.u16(0, 1)
    descriptor.u32(1, BOOTSTRAP_CAPABILITY)
    return builder.framed()


def write_exception(question: int, reason: str, type_: ExceptionType = ExceptionType.FAILED) -> bytes:
    builder, body = _return(question, 1)
    _write_exception(body.struct(0, 1, 2), reason, type_)
    return builder.framed()


def write_canceled(question: int) -> bytes:
    builder, _ = _return(question, 2)
    return builder.framed()


def write_abort(reason: str) -> bytes:
    builder, body = _message(Kind.ABORT, 1, 2)
    _write_exception(body, reason, ExceptionType.FAILED)
    return builder.framed()


def _message(kind: Kind, data: int, pointers: int) -> tuple[Builder, StructBuilder]:
    builder = Builder()
    root = builder.root(1, 1)
    root.u16(0, kind)
    return builder, root.struct(0, data, pointers)


def _return(question: int, kind: int) -> tuple[Builder, StructBuilder]:
    builder, body = _message(Kind.RETURN, 2, 1)
    body.u32(0, question)
    body.u16(3, kind)
    return builder, body


def _write_exception(body: StructBuilder, reason: str, type_: ExceptionType) -> None:
    body.u16(2, type_)
    body.text(0, reason)
