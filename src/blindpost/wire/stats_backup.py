"""The files in which the reference routers keep their counters while they are down.

Lines `name=value` and sections `name:` in the order of the fields below; a name is the field's name in camel
case unless the field says otherwise. Lines that came with later versions, the fields with defaults, may be
missing; in a section nothing may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from blindpost.wire.errors import WireError
from blindpost.wire.scanner import Scanner, from_utf8
from blindpost.wire.value import Buffer, Value

T = TypeVar("T")

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,12})?Z", re.ASCII)


@dataclass(frozen=True, slots=True, repr=False)
class PeriodHashes(Value):
    """Hashes of the ids that were active today, this week and this month."""

    day_hashes: frozenset[int] = frozenset()
    week_hashes: frozenset[int] = frozenset()
    month_hashes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, repr=False)
class ProxyCounts(Value):
    """What became of sessions with other routers, or of commands forwarded to them."""

    requests: int = 0
    successes: int = 0
    errors_connect: int = 0
    errors_compat: int = 0
    errors_other: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ServiceCounts(Value):
    """Associations of queues with services, and subscriptions of services."""

    assoc_new: int = 0
    assoc_duplicate: int = 0
    assoc_updated: int = field(default=0, metadata={"name": "assocUpdatedt"})
    assoc_removed: int = 0
    sub_count: int = 0
    sub_duplicate: int = 0
    sub_queues: int = 0
    sub_end: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class NameCounts(Value):
    """Resolved names."""

    reqs: int = 0
    succ: int = 0
    not_found: int = 0
    resolver_errs: int = 0
    disabled: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class HostCounts(Value):
    """One counter for each of the operator's own message routers."""

    by_host: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RouterStats(Value):
    """All counters of a message router since `from_time`, an ISO 8601 time in UTC."""

    from_time: str
    q_created: int
    q_secured: int
    q_deleted_all: int
    q_deleted_new: int
    q_deleted_secured: int
    q_deleted_all_b: int = 0
    q_blocked: int = 0
    q_count: int = 0
    q_sub: int = 0
    q_sub_all_b: int = 0
    q_sub_auth: int = 0
    q_sub_duplicate: int = 0
    q_sub_prohibited: int = 0
    q_sub_end: int = 0
    q_sub_end_b: int = 0
    ntf_created: int = 0
    ntf_new_created: int = 0
    ntf_deleted: int = 0
    ntf_deleted_b: int = 0
    ntf_sub: int = 0
    ntf_sub_b: int = 0
    ntf_sub_auth: int = 0
    ntf_sub_duplicate: int = 0
    msg_sent: int
    msg_sent_auth: int = 0
    msg_sent_quota: int = 0
    msg_sent_large: int = 0
    msg_sent_block: int = 0
    msg_recv: int
    msg_recv_get: int = 0
    msg_get: int = 0
    msg_get_no_msg: int = 0
    msg_get_auth: int = 0
    msg_get_duplicate: int = 0
    msg_get_prohibited: int = 0
    msg_expired: int = 0
    msg_sent_ntf: int = 0
    msg_recv_ntf: int = 0
    msg_ntfs: int = 0
    msg_ntfs_b: int = 0
    msg_ntf_no_sub: int = 0
    msg_ntf_lost: int = 0
    msg_ntf_expired: int = 0
    active_queues: PeriodHashes
    active_queues_ntf: PeriodHashes = PeriodHashes()
    p_relays: ProxyCounts = ProxyCounts()
    p_relays_own: ProxyCounts = ProxyCounts()
    p_msg_fwds: ProxyCounts = ProxyCounts()
    p_msg_fwds_own: ProxyCounts = ProxyCounts()
    p_msg_fwds_recv: int = 0
    rcv_services: ServiceCounts = ServiceCounts()
    ntf_services: ServiceCounts = ServiceCounts()
    rslv_stats: NameCounts = NameCounts()

    def __post_init__(self) -> None:
        _check_time(self.from_time)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class NotifierStats(Value):
    """All counters of a notification router since `from_time`, an ISO 8601 time in UTC."""

    from_time: str
    tkn_created: int
    tkn_verified: int
    tkn_deleted: int
    tkn_replaced: int = 0
    sub_created: int
    sub_deleted: int
    ntf_received: int
    ntf_received_auth: int = 0
    ntf_delivered: int
    ntf_failed: int = 0
    ntf_received_own: HostCounts = HostCounts()
    ntf_received_auth_own: HostCounts = HostCounts()
    ntf_delivered_own: HostCounts = HostCounts()
    ntf_failed_own: HostCounts = HostCounts()
    ntf_cron_delivered: int = 0
    ntf_cron_failed: int = 0
    ntf_vrf_queued: int = 0
    ntf_vrf_delivered: int = 0
    ntf_vrf_failed: int = 0
    ntf_vrf_invalid_tkn: int = 0
    active_tokens: PeriodHashes
    active_subs: PeriodHashes

    def __post_init__(self) -> None:
        _check_time(self.from_time)


def decode_router_stats(data: Buffer) -> RouterStats:
    return _decode(data, RouterStats)


def encode_router_stats(stats: RouterStats) -> bytes:
    return _encode(stats)


def decode_notifier_stats(data: Buffer) -> NotifierStats:
    return _decode(data, NotifierStats)


def encode_notifier_stats(stats: NotifierStats) -> bytes:
    return _encode(stats)


_SECTIONS = (PeriodHashes, ProxyCounts, ServiceCounts, NameCounts)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line or section of a file, and the field it fills."""

    attribute: str
    name: str
    kind: Any
    required: bool


def _entries(cls: Any) -> tuple[_Entry, ...]:
    """The lines of a file or a section, in order."""
    kinds = get_type_hints(cls)
    all_required = cls in _SECTIONS
    return tuple(
        _Entry(
            item.name,
            item.metadata.get("name", _camel_case(item.name)),
            kinds[item.name],
            all_required or item.default is MISSING,
        )
        for item in fields(cls)
    )


def _camel_case(attribute: str) -> str:
    first, *others = attribute.split("_")
    return first + "".join(word.capitalize() for word in others)


def _encode(stats: Value) -> bytes:
    return "".join(f"{line}\n" for line in _lines(stats)).encode("utf-8")


def _lines(value: Value) -> Iterator[str]:
    for entry in _ENTRIES[type(value)]:
        content = getattr(value, entry.attribute)
        if entry.kind in _SECTIONS:
            yield f"{entry.name}:"
            yield from _lines(content)
        else:
            yield f"{entry.name}={_shown(content)}"


def _shown(content: str | int | frozenset[int] | HostCounts) -> str:
    if isinstance(content, frozenset):
        return ",".join(map(str, sorted(content)))
    if isinstance(content, HostCounts):
        if any(set(" ,\n") & set(host) for host, _ in content.by_host):
            raise WireError("host names without spaces and commas expected")
        return ",".join(f"{host} {count}" for host, count in content.by_host)
    return str(content)


def _decode(data: Buffer, cls: type[T]) -> T:
    text = from_utf8(data)
    lines = text.removesuffix("\n").split("\n")
    lines.reverse()
    stats = _read(lines, cls)
    if lines:
        raise WireError(f"{len(lines)} lines left over")
    return stats


def _read(backwards: list[str], cls: type[T]) -> T:
    """Take the lines of `cls` from the end of `backwards`."""
    found: dict[str, Any] = {}
    for entry in _ENTRIES[cls]:
        line = backwards[-1] if backwards else ""
        if entry.kind in _SECTIONS:
            if line == f"{entry.name}:":
                backwards.pop()
                found[entry.attribute] = _read(backwards, entry.kind)
                continue
        elif line.startswith(f"{entry.name}="):
            found[entry.attribute] = _PARSERS[entry.kind](backwards.pop()[len(entry.name) + 1 :])
            continue
        if entry.required:
            raise WireError(f"{entry.name} expected")
    return cls(**found)


def _integer(text: str) -> int:
    scanner = Scanner(text)
    number = scanner.integer()
    scanner.end()
    return number


def _integers(text: str) -> frozenset[int]:
    return frozenset(map(_integer, text.split(","))) if text else frozenset()


def _host_counts(text: str) -> HostCounts:
    return HostCounts(tuple(map(_host_count, text.split(","))) if text else ())


def _host_count(text: str) -> tuple[str, int]:
    scanner = Scanner(text)
    host = scanner.until(" ")
    scanner.expect(" ")
    count = scanner.natural()
    scanner.end()
    return host, count


def _check_time(time: str) -> None:
    if _TIME.fullmatch(time) is None:
        raise WireError("a time in UTC as ISO 8601 writes it expected")


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: _integer,
    frozenset[int]: _integers,
    HostCounts: _host_counts,
}

_ENTRIES: dict[type, tuple[_Entry, ...]] = {
    cls: _entries(cls) for cls in (RouterStats, NotifierStats, *_SECTIONS)
}
