"""What can be known about a server before it starts: checked one by one, changing nothing.

An error means that it would not start, or not keep what it accepts; a warning means that it would start but
something needs attention.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import ipaddress
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from cryptography import x509

from blindpost.serving import descriptors
from blindpost.serving.control import NotRunningError, ask, short_path
from blindpost.serving.failures import OperatorError, quoted
from blindpost.serving.files import readable_by_others
from blindpost.serving.health import CLOCK_MIN, ROOM_MIN
from blindpost.serving.journal import keeping_of
from blindpost.serving.listening import held_by_systemd, refused
from blindpost.serving.place import Place
from blindpost.serving.ports import clash, held_elsewhere, sockets_at, sockets_of
from blindpost.serving.sections import EVERYWHERE
from blindpost.store.contract import Seen, of_another
from blindpost.store.file_locks import is_held

LOOKUP_S_MAX = 5.0
ROOM_LOW = 1 << 30
"""Below this there is room to start, but not for long."""
EXPIRES_DAYS = 30
AHEAD_S_MAX = 120
"""A file from further in the future than this says that the clock went back."""
_TIME_ERROR = 5
_TIMEX_BYTES = 256


class Grade(Enum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str
    grade: Grade
    found: str
    remedy: str = ""


class DoubtError(Exception):
    """It would start, but this needs attention."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.found = found
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Port:
    """A port that the server opens."""

    address: str
    number: int
    kind: socket.SocketKind = socket.SOCK_STREAM


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks specific to one kind of server."""

    connections: int
    connections_setting: str
    ports: Sequence[Port] = ()
    hosts: Sequence[str] = ()
    """Names that others, or the server itself, look up."""
    secrets: Sequence[Path] = ()
    socks: str = ""
    tries: Mapping[str, Callable[[], Awaitable[str]]] = field(default_factory=dict)
    """Further checks: each returns what it found, or raises `OperatorError` or `DoubtError`."""


ChecksOf = Callable[[Any, bool], Checks]
"""The checks of a place, given whether its server runs."""


async def examine(place: Place[Any], checks_of: ChecksOf) -> list[Finding]:
    """Check everything about one server, in the order of a start."""
    running = _running(place)
    runs = running is not None
    checks = checks_of(place, runs)
    found = [
        Finding("settings", Grade.OK, str(place.file)),
        Finding("process", Grade.OK, "runs already" if runs else "does not run"),
        *_files(place, checks.secrets),
        *_disks(place.written_folders),
        _clock(place.folder),
        _descriptors(checks),
    ]
    for subject, work in checks.tries.items():
        found.append(await _tried(subject, work))
    found += _control_and_journal(place)
    metrics = place.settings.metrics
    ports = [*checks.ports, *([Port(metrics.address, metrics.port)] if metrics.enabled else [])]
    found += [_port(port, ports[:number], running) for number, port in enumerate(ports)]
    if metrics.enabled and not _is_loopback(metrics.address):
        told = f"anybody who reaches {metrics.address} can read them: sums, without a password"
        found.append(Finding("metrics", Grade.WARNING, told, "let a firewall choose who reads them"))
    found += [host async for host in _hosts(checks.hosts)]
    if checks.socks:
        found.append(await _tried(f"proxy {checks.socks}", lambda: _reach(checks.socks)))
    return found


@dataclass(frozen=True, slots=True)
class _Running:
    """A server that runs in the place already."""

    sockets: frozenset[str] | None
    """All that it has open; None if that cannot be seen."""
    passed: Sequence[tuple[str, int]] = ()
    """What a supervisor holds for it."""


def _running(place: Place[Any]) -> _Running | None:
    try:
        status = ask(place.control, "status")
        return _Running(sockets_of(int(status["pid"])), status.get("passed", ()))
    except NotRunningError:
        return _Running(None) if is_held(place.lock) else None
    except OperatorError:
        return _Running(None) if place.control.exists() else None


async def _tried(subject: str, work: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(subject, Grade.OK, await work())
    except DoubtError as doubt:
        return Finding(subject, Grade.WARNING, doubt.found, doubt.remedy)
    except OperatorError as error:
        return Finding(subject, Grade.ERROR, str(error))


def _files(place: Place[Any], secrets: Sequence[Path]) -> Iterator[Finding]:
    """Who owns the folder, what is in it, and who can read the keys."""
    owner = place.folder.stat().st_uid
    strange = [file for file in _walk(place.folder) if file.lstat().st_uid != owner]
    if strange:
        others = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        yield Finding(
            "owner",
            Grade.ERROR,
            f"{strange[0]}{others}: not of the user who owns {place.folder}",
            f"`chown -R --reference={quoted(place.folder)} {quoted(place.folder)}`",
        )
    elif os.getuid() not in (0, owner):
        yield Finding(
            "owner",
            Grade.ERROR,
            f"{place.folder} belongs to another user than you",
            "run this and the server as the user who owns the folder",
        )
    else:
        yield Finding("owner", Grade.OK, f"user {owner} owns all of {place.folder}")
    for file in filter(readable_by_others, secrets):
        found = f"{file} can be read by other users"
        yield Finding("keys", Grade.WARNING, found, f"`chmod 600 {quoted(file)}`")
    if not any(map(readable_by_others, secrets)):
        yield Finding("keys", Grade.OK, "only their owner can read them")


def _walk(folder: Path) -> Iterator[Path]:
    """Our own files; databases and other mounts below are skipped."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            yield entry
            if entry.is_dir() and not entry.is_symlink() and not entry.is_mount():
                yield from _walk(entry)


def _disks(folders: Sequence[Path]) -> Iterator[Finding]:
    for folder in folders:
        try:
            disk = os.statvfs(folder)
        except OSError as error:
            yield Finding("disk", Grade.ERROR, f"{folder}: {error.strerror}", "mount it, or correct the path")
            continue
        room, files = disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 1
        told = f"{room / 1e9:.1f} GB left for {folder}"
        if disk.f_flag & os.ST_RDONLY:
            yield Finding("disk", Grade.ERROR, f"{folder} is mounted read-only", "mount it for writing")
        elif room < ROOM_MIN or not files:
            yield Finding("disk", Grade.ERROR, told, f"make room: {ROOM_MIN >> 20} MiB are needed to serve")
        elif room < ROOM_LOW:
            yield Finding("disk", Grade.WARNING, told, "make room, or put the store on a larger disk")
        else:
            yield Finding("disk", Grade.OK, told)


def _clock(folder: Path) -> Finding:
    now = time.time()
    remedy = "set the clock, and let chrony or systemd-timesyncd keep it"
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if now < CLOCK_MIN:
        return Finding("clock", Grade.ERROR, f"{shown} is before this program was made", remedy)
    newest = max((file.lstat().st_mtime for file in _walk(folder)), default=0.0)
    if newest > now + AHEAD_S_MAX:
        return Finding(
            "clock", Grade.WARNING, f"{shown}, and files of the server are newer than that", remedy
        )
    if _is_unsynchronised():
        return Finding("clock", Grade.WARNING, f"{shown}, and nothing keeps it right", remedy)
    return Finding("clock", Grade.OK, shown)


def _is_unsynchronised() -> bool:
    """What the kernel reports; False if it cannot be asked."""
    try:
        return bool(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _TIME_ERROR)
    except (OSError, AttributeError):
        return False


def _descriptors(checks: Checks) -> Finding:
    wanted = checks.connections + descriptors.SPARE
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return Finding("open files", Grade.OK, f"{wanted} are needed at most, and allowed")
    return Finding(
        "open files",
        Grade.WARNING,
        f"{checks.connections_setting} = {checks.connections} needs {wanted}, {hard} are allowed here",
        "raise LimitNOFILE in the unit, or `ulimit -n`; or lower the setting",
    )


def _control_and_journal(place: Place[Any]) -> Iterator[Finding]:
    try:
        with short_path(place.control):
            pass
        if not os.access(place.control.parent, os.W_OK):
            raise OperatorError(f"{place.control.parent} cannot be written to.")
        yield Finding("control socket", Grade.OK, str(place.control))
    except (OperatorError, OSError) as error:
        yield Finding("control socket", Grade.ERROR, str(error))
    try:
        if keeping_of(place.settings.journal, place.folder, "server") is not None:
            yield Finding("journal", Grade.OK, str(place.folder / place.settings.journal.folder))
    except OperatorError as error:
        yield Finding("journal", Grade.ERROR, str(error))


def _port(port: Port, before: Sequence[Port], running: _Running | None) -> Finding:
    udp = port.kind is socket.SOCK_DGRAM
    subject = f"port {port.number}{'/udp' if udp else ''}"
    where = "all addresses" if port.address == EVERYWHERE else port.address
    if not port.number:
        return Finding(subject, Grade.OK, f"the system chooses one, at {where}")
    if any(port.kind is other.kind and _clash(port, other) for other in before):
        return Finding(
            subject, Grade.ERROR, "the settings name it twice: choose another port for one of them."
        )
    try:
        for address in ("0.0.0.0", "::") if port.address == EVERYWHERE else (port.address,):  # noqa: S104
            _bind(address, port)
    except OSError as error:
        passed = () if running is None or udp else running.passed
        if held_elsewhere(passed, port.address, port.number) is not None:
            return Finding(subject, Grade.ERROR, refused(error, port.address, port.number, passed))
        if running is not None and error.errno == errno.EADDRINUSE:
            is_its_own = _is_of(running, port)
            if is_its_own is None:
                found = "in use, and whether the running server has it cannot be seen"
                return Finding(subject, Grade.WARNING, found, "run this as root")
            if is_its_own:
                return Finding(subject, Grade.OK, f"the running server has it, at {where}")
        held = held_by_systemd(port.number) if error.errno == errno.EADDRINUSE and not udp else None
        if held is not None and "blindpost" in held[1]:
            return Finding(subject, Grade.OK, f"systemd ({held[0]}) holds it for {held[1]}")
        return Finding(subject, Grade.ERROR, refused(error, port.address, port.number))
    return Finding(subject, Grade.OK, f"free, at {where}")


def _clash(one: Port, other: Port) -> bool:
    return one.number == other.number and clash(one.address, other.address)


def _is_of(running: _Running, port: Port) -> bool | None:
    """Whether it is the running server, and nobody else, that has a port; None if that cannot be seen."""
    if running.sockets is None:
        return None
    there = sockets_at(port.address, port.number, port.kind)
    return bool(there) and there <= running.sockets


def _bind(address: str, port: Port) -> None:
    """As a listener does; a machine without IPv6 lacks only that."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listening = socket.socket(family, port.kind)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT and port.address == EVERYWHERE:
            return
        raise
    with listening:
        if family is socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if port.kind is socket.SOCK_STREAM:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, port.number))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or port.address != EVERYWHERE:
                raise


async def _hosts(hosts: Sequence[str]) -> AsyncIterator[Finding]:
    loop = asyncio.get_running_loop()
    for host in dict.fromkeys(hosts):
        if host.endswith(".onion") or _is_address(host):
            continue
        try:
            async with asyncio.timeout(LOOKUP_S_MAX):
                rows = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            yield Finding(f"host {host}", Grade.OK, ", ".join(dict.fromkeys(str(row[4][0]) for row in rows)))
        except (OSError, TimeoutError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "no answer"
            remedy = "add its A and AAAA records, or correct the name"
            yield Finding(f"host {host}", Grade.WARNING, f"cannot be looked up: {why}", remedy)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return address != EVERYWHERE and ipaddress.ip_address(address).is_loopback


async def _reach(proxy: str) -> str:
    host, _, port = proxy.rpartition(":")
    try:
        async with asyncio.timeout(LOOKUP_S_MAX):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError) as error:
        raise DoubtError(
            "nothing answers there", "start it (such as tor), or correct outbound.socks"
        ) from error
    writer.close()
    return "takes connections"


# --- what rooms have in common


def told_certificates(certificates: Sequence[x509.Certificate], remedy: str) -> str:
    """How old they are and how long they are valid."""
    now = datetime.now(UTC)
    for certificate in certificates:
        if now < certificate.not_valid_before_utc:
            raise OperatorError("the certificate is not valid yet, or the clock of this machine is wrong.")
        if now > certificate.not_valid_after_utc:
            raise OperatorError(f"the certificate has expired: {remedy}.")
    leaf = certificates[0]
    age, left = now - leaf.not_valid_before_utc, leaf.not_valid_after_utc - now
    told = f"made {age.days} days ago, valid until {leaf.not_valid_after_utc:%Y-%m-%d}"
    if left.days < EXPIRES_DAYS:
        raise DoubtError(f"valid for {left.days} more days", remedy)
    return told


def told_store(
    seen: Seen, known: int, name: str, *, runs: bool, shared: bool = False, known_as: str = ""
) -> str:
    """What a store is; an older schema is migrated at start, irreversibly."""
    if shared and known_as and seen.identity not in ("", known_as):
        raise OperatorError(f"{name} belongs to {of_another(seen.identity, known_as)}.")
    if seen.in_use and not runs and not shared:
        raise OperatorError(f"{name}: another process uses this store. Stop it, or name another store.")
    if seen.version < known:
        raise DoubtError(
            f"{name}: schema {seen.version}, which the start brings to {known} for good",
            "make a backup first: an older program cannot read the new schema",
        )
    waits = "; another server owns it, and this one would wait" if seen.in_use and not runs else ""
    return f"{name}: schema {seen.version}{waits}"


def told_ca_key(ca_key: Path, word: str) -> str:
    """Whether the identity's key, needed only by an offline command, is kept here."""
    if ca_key.exists():
        raise DoubtError(f"{ca_key} lies beside the server", f"see `blindpost {word} move-ca-key --help`")
    return "kept elsewhere"
