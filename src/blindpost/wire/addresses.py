"""Where a router is: hosts, the identity of a server, and the address text that people copy.

`Server` is what travels inside other values: hosts, port and the fingerprint of the router's certificate
authority. `RouterAddress` adds what only the text form has: the scheme and the password.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import field
from enum import Enum

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import LIST_MAX, Reader, Writer
from blindpost.wire.text import b64, unb64
from blindpost.wire.value import Value

PASSWORD_BYTES = frozenset({*range(0x21, 0x7F), *range(0xA1, 0x100)} - {*b"@:/", 0xAD})
"""What a password may consist of; an empty one may travel but has no text form."""

_IPV4 = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)")
_IPV6_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]{2,45})\]")
_IPV6_BARE = re.compile(r"[0-9A-Fa-f:]+")
_IPV6_TEXT_MAX = 45
_ONION = re.compile(r"[a-z0-9]+\.onion")
_DOMAIN = re.compile(r"[^:#,;/\[\]\x00-\x20\x7F-\U0010FFFF]+")
_BASE64 = re.compile(r"[A-Za-z0-9_-]+=*")
_INTERNATIONAL = "a host in ASCII expected: write an international name in its xn-- form"
_DIGITS = re.compile(r"[0-9]+")


class HostKind(Enum):
    IPV4 = "IPv4"
    IPV6 = "IPv6"
    ONION = "onion"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True, repr=False)
class Host:
    """One way to reach a router, in normal form: `Host("[2001:DB8::1]").text` is `2001:db8::1`."""

    text: str
    kind: HostKind = field(init=False, compare=False)

    def __post_init__(self) -> None:
        kind, normal, end = _scan_host(self.text, 0)
        if end != len(self.text):
            raise WireError("a host expected, with nothing after it")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "text", normal)

    def __repr__(self) -> str:
        return f"Host({self.kind.value}, {len(self.text)} characters)"


def _scan_host(text: str, start: int) -> tuple[HostKind, str, int]:
    """The host at `start` and where it ends.

    The kinds are tried in turn and the first that matches a prefix is final, so `1.2.3.4.5` is an
    IPv4 host with something wrong behind it, not a domain.
    """
    if (found := _IPV4.match(text, start)) is not None:
        octets = [octet.lstrip("0") or "0" for octet in found.groups()]
        if all(len(octet) <= 3 and int(octet) <= 255 for octet in octets):
            return HostKind.IPV4, ".".join(octets), found.end()
    if (found := _IPV6_BRACKETED.match(text, start)) is not None:
        if (normal := _ipv6(found[1])) is not None:
            return HostKind.IPV6, normal, found.end()
    elif (found := _IPV6_BARE.match(text, start)) is not None and (normal := _ipv6(found[0])) is not None:
        return HostKind.IPV6, normal, found.end()
    if (found := _ONION.match(text, start)) is not None:
        return HostKind.ONION, found[0], found.end()
    if (found := _DOMAIN.match(text, start)) is not None and not found[0].endswith(".onion"):
        return HostKind.DOMAIN, found[0], found.end()
    if not text[start : start + 1].isascii():
        raise WireError(_INTERNATIONAL)
    raise WireError("an IPv4, IPv6, onion or domain host expected")


def _ipv6(text: str) -> str | None:
    """The shortest hexadecimal form, which the bare rule reads back, also for mapped IPv4 addresses."""
    if len(text) > _IPV6_TEXT_MAX:
        return None
    try:
        number = int(ipaddress.IPv6Address(text))
    except ipaddress.AddressValueError:
        return None
    groups = [f"{number >> shift & 0xFFFF:x}" for shift in range(112, -1, -16)]
    zeros, first = _longest_zeros(groups)
    if zeros < 2:
        return ":".join(groups)
    return f"{':'.join(groups[:first])}::{':'.join(groups[first + zeros :])}"


def _longest_zeros(groups: list[str]) -> tuple[int, int]:
    """Length and start of the first longest run of zero groups."""
    longest, first, run = 0, 0, 0
    for index, group in enumerate(groups):
        run = run + 1 if group == "0" else 0
        if run > longest:
            longest, first = run, index - run + 1
    return longest, first


@dataclass(frozen=True, slots=True, repr=False)
class Server(Value):
    """A router's identity. The port is text and may be empty, as the key hash may in shortened links."""

    hosts: tuple[Host, ...]
    port: str
    key_hash: bytes

    def __post_init__(self) -> None:
        if not self.hosts:
            raise WireError("a server with at least one host expected")

    def same_address(self, other: Server) -> bool:
        """Whether both are reached in the same way; fingerprints are not compared."""
        return self.hosts == other.hosts and self.port == other.port


def read_server(reader: Reader) -> Server:
    return Server(reader.list1(read_host), reader.latin1(), reader.short())


def write_server(writer: Writer, server: Server) -> None:
    writer.list1(server.hosts, write_host).latin1(server.port).short(server.key_hash)


def read_legacy_server(reader: Reader) -> Server:
    """The form of client version 1: a single host without a count."""
    return Server((read_host(reader),), reader.latin1(), reader.short())


def write_legacy_server(writer: Writer, server: Server) -> None:
    """Only the first host is written."""
    write_host(writer, server.hosts[0])
    writer.latin1(server.port).short(server.key_hash)


def read_host(reader: Reader) -> Host:
    return Host(reader.latin1())


def write_host(writer: Writer, host: Host) -> None:
    writer.latin1(host.text)


def hosts_text(hosts: tuple[Host, ...]) -> str:
    return ",".join(host.text for host in hosts)


def hosts_from_text(text: str) -> tuple[Host, ...]:
    """A list of hosts that takes up all of `text` and may be empty."""
    if not text:
        return ()
    hosts, end = _scan_hosts(text, 0)
    if end != len(text):
        raise WireError("hosts with commas between them expected")
    return hosts


def _scan_hosts(text: str, start: int) -> tuple[tuple[Host, ...], int]:
    """The hosts at `start` and where they end: no more of them than the binary form can carry."""
    hosts: list[Host] = []
    while len(hosts) < LIST_MAX:
        _, normal, end = _scan_host(text, start)
        hosts.append(Host(normal))
        if not text.startswith(",", end):
            return tuple(hosts), end
        start = end + 1
    raise WireError(f"a list of at most {LIST_MAX} hosts expected")


class Scheme(Enum):
    """Which kind of router an address leads to."""

    SMP = "smp"
    NTF = "ntf"
    XFTP = "xftp"


@dataclass(frozen=True, slots=True, repr=False)
class RouterAddress(Value):
    """An address as an operator hands it out. The password permits creating queues or using the proxy."""

    scheme: Scheme
    server: Server
    password: bytes | None = None

    @property
    def text(self) -> str:
        """The address with brackets around an IPv6 host that a port follows."""
        return self.written()

    def written(self, *, bare_ipv6: bool = False) -> str:
        """The address text; `bare_ipv6` writes it as the reference does, without brackets even before a
        port, which then reads back as a part of the host."""
        secret = "" if self.password is None else f":{_password_text(self.password)}"
        hosts, port = self.server.hosts, self.server.port
        if not port:
            place = hosts_text(hosts)
        elif _DIGITS.fullmatch(port) is None:
            raise WireError("an address with a decimal port expected")
        elif hosts[-1].kind is HostKind.IPV6 and not bare_ipv6:
            place = ",".join((*(host.text for host in hosts[:-1]), f"[{hosts[-1].text}]:{port}"))
        else:
            place = f"{hosts_text(hosts)}:{port}"
        return f"{self.scheme.value}://{b64(_present(self.server.key_hash))}{secret}@{place}"

    @classmethod
    def from_text(cls, text: str) -> RouterAddress:
        address, end = scan_address(text, 0)
        if end != len(text):
            extra = "a router address expected, with nothing after it"
            raise WireError(extra if text[end].isascii() else _INTERNATIONAL)
        return address


def scan_address(text: str, start: int) -> tuple[RouterAddress, int]:
    """The address at `start` of a longer text, and where it ends."""
    name, separator, _ = text[start : start + 8].partition("://")
    scheme = next((known for known in Scheme if separator and known.value == name), None)
    if scheme is None:
        raise WireError("a router address with scheme smp, ntf or xftp expected")
    key_hash, end = scan_base64(text, start + len(name) + len(separator))
    password = None
    if text.startswith(":", end):
        stop = text.find("@", end)
        password = _password_from_text(text[end + 1 : max(stop, end + 1)])
        end = stop
    if not text.startswith("@", end):
        raise WireError("@ expected after the fingerprint of a router address")
    hosts, end = _scan_hosts(text, end + 1)
    port = ""
    if text.startswith(":", end) and (digits := _DIGITS.match(text, end + 1)) is not None:
        port, end = digits[0].lstrip("0") or "0", digits.end()
    return RouterAddress(scheme, Server(hosts, port, key_hash), password), end


def scan_base64(text: str, start: int) -> tuple[bytes, int]:
    """The base64url string at `start` of a longer text, and where it ends."""
    found = _BASE64.match(text, start)
    if found is None:
        raise WireError("base64url text expected")
    return unb64(found[0]), found.end()


def _present(key_hash: bytes) -> bytes:
    if not key_hash:
        raise WireError("a server with a fingerprint expected")
    return key_hash


def read_password(reader: Reader) -> bytes:
    """A password as commands carry it; here it may be empty."""
    return _valid_password(reader.short())


def write_password(writer: Writer, password: bytes) -> None:
    writer.short(_valid_password(password))


def _valid_password(password: bytes) -> bytes:
    if not PASSWORD_BYTES.issuperset(password):
        raise WireError("a password of printable characters without @ : / expected")
    return password


def _password_text(password: bytes) -> str:
    if not password:
        raise WireError("a password that is not empty expected")
    return _valid_password(password).decode("utf-8", "surrogateescape")


def _password_from_text(text: str) -> bytes:
    try:
        password = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise WireError("a password that UTF-8 can carry expected") from error
    if not password:
        raise WireError("a password that is not empty expected")
    return _valid_password(password)
