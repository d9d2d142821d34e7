"""Short links: where link data is kept, and the key that decrypts and authenticates it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from blindpost.wire.addresses import (
    Host,
    Server,
    hosts_from_text,
    hosts_text,
    read_server,
    scan_base64,
    write_server,
)
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.text import escaped, read_query, ub64, unb64
from blindpost.wire.value import Value

IMPLIED_PORTS = frozenset({"443", "5223"})
"""Ports that a link to a known router need not name when the router is known without a port."""

_START = re.compile(r"(?:simplex:|https://(?P<host>[^/]+))/(?P<type>[a-zA-Z])/?#")
_PORT = re.compile(r"[0-9]{1,20}")
_PORT_MAX = 0xFFFF


class LinkScheme(Enum):
    """`HTTPS` links name their router as a web site, which can explain the link to a browser."""

    SIMPLEX = "simplex:"
    HTTPS = "https://"


class ContactType(Enum):
    """What a contact link leads to; the letter is small in text."""

    CONTACT = "A"
    CHANNEL = "C"
    GROUP = "G"
    RELAY = "R"


@dataclass(frozen=True, slots=True, repr=False)
class ShortInvitation(Value):
    """A short link for one peer: the router chose the id."""

    server: Server
    link_id: bytes
    link_key: bytes
    scheme: LinkScheme = LinkScheme.HTTPS

    @property
    def text(self) -> str:
        return _written(self.scheme, self.server, "i", f"{_part(self.link_id)}/{_part(self.link_key)}")


@dataclass(frozen=True, slots=True, repr=False)
class ShortContact(Value):
    """A short link for anybody: the id follows from the key."""

    type: ContactType
    server: Server
    link_key: bytes
    scheme: LinkScheme = LinkScheme.HTTPS

    @property
    def text(self) -> str:
        return _written(self.scheme, self.server, self.type.value.lower(), _part(self.link_key))


ShortLink = ShortInvitation | ShortContact
AnyShort = TypeVar("AnyShort", bound=ShortInvitation | ShortContact)


def _part(data: bytes) -> str:
    if not data:
        raise WireError("a short link with its key, and an invitation's id, expected")
    return ub64(data)


def _written(scheme: LinkScheme, server: Server, letter: str, content: str) -> str:
    hosts = server.hosts
    authority = scheme.value
    if scheme is LinkScheme.HTTPS:
        authority, hosts = authority + hosts[0].text, hosts[1:]
    parameters = []
    if hosts:
        parameters.append(f"h={escaped(hosts_text(hosts))}")
    if server.port:
        parameters.append(f"p={_fitting_port(server.port)}")
    if server.key_hash:
        parameters.append(f"c={ub64(server.key_hash)}")
    query = f"?{'&'.join(parameters)}" if parameters else ""
    return f"{authority}/{letter}#{content}{query}"


def _decimal(port: str) -> int:
    if _PORT.fullmatch(port) is None:
        raise WireError("a decimal port expected")
    return int(port)


def _fitting_port(port: str) -> int:
    number = _decimal(port)
    if number > _PORT_MAX:
        raise WireError(
            f"a port of at most {_PORT_MAX} expected: readers would take a larger one for another"
        )
    return number


def short_link_from_text(text: str) -> ShortLink:
    """Read a short link. Lengths of the id, the key and the fingerprint are not checked here."""
    found = _START.match(text)
    if found is None:
        raise WireError("a short link expected: https://host/type#key or simplex:/type#key")
    scheme = LinkScheme.SIMPLEX if found["host"] is None else LinkScheme.HTTPS
    first = () if found["host"] is None else (Host(found["host"]),)
    end, link_id = found.end(), b""
    if found["type"] == "i":
        link_id, end = scan_base64(text, end)
        if not text.startswith("/", end):
            raise WireError("/ expected between the id and the key of a short invitation")
        end += 1
    link_key, end = scan_base64(text, end)
    server = _server_from_query(text[end:], first)
    if found["type"] == "i":
        return ShortInvitation(server, link_id, link_key, scheme)
    return ShortContact(_contact_type(found["type"].upper()), server, link_key, scheme)


def _server_from_query(text: str, first: tuple[Host, ...]) -> Server:
    if text and not text.startswith("?"):
        raise WireError("a query or nothing expected after the key of a short link")
    query = read_query(text[1:])
    hosts = first + hosts_from_text(query.get("h", ""))
    if not hosts:
        raise WireError("a short link with a router expected")
    key_hash = unb64(query["c"]) if "c" in query else b""
    return Server(hosts, _wrapped_port(query["p"]) if "p" in query else "", key_hash)


def _wrapped_port(text: str) -> str:
    """The port modulo 65536, which is how the reference reads it."""
    return str(_decimal(text) % (_PORT_MAX + 1))


def _contact_type(letter: str) -> ContactType:
    try:
        return ContactType(letter)
    except ValueError as error:
        raise WireError("a contact link of type A, C, G or R expected") from error


def shortened(link: AnyShort, presets: Iterable[Server]) -> AnyShort:
    """The link with its host alone, when that is enough to find the rest of its router among `presets`."""
    server = link.server
    preset = _preset_of(server, presets)
    if preset is None or not _covered(server, preset):
        return link
    return replace(link, server=Server(server.hosts[:1], "", b""))


def restored(link: AnyShort, presets: Iterable[Server]) -> AnyShort:
    """The link with the whole identity of its router, when it names a host alone that `presets` know."""
    server = link.server
    if len(server.hosts) > 1 or server.port or server.key_hash:
        return link
    preset = _preset_of(server, presets)
    return link if preset is None else replace(link, server=preset)


def _preset_of(server: Server, presets: Iterable[Server]) -> Server | None:
    return next((preset for preset in presets if preset.hosts[0] == server.hosts[0]), None)


def _covered(server: Server, preset: Server) -> bool:
    """Whether `server` can later be read as `preset` without losing anything."""
    port_fits = server.port == preset.port or (not preset.port and server.port in IMPLIED_PORTS)
    return port_fits and server.key_hash == preset.key_hash and set(server.hosts) <= set(preset.hosts)


def read_short_link(reader: Reader) -> ShortLink:
    """The binary form has no scheme; it reads as `https://`, the form that links are made in."""
    if reader.peek() == 0x49:
        reader.u8()
        return ShortInvitation(read_server(reader), reader.short(), reader.short())
    return read_short_contact(reader)


def read_short_contact(reader: Reader) -> ShortContact:
    reader.expect(b"C")
    contact_type = _contact_type(chr(reader.u8()))
    return ShortContact(contact_type, read_server(reader), reader.short())


def write_short_link(writer: Writer, link: ShortLink) -> None:
    if isinstance(link, ShortInvitation):
        writer.raw(b"I")
        write_server(writer, link.server)
        writer.short(link.link_id).short(link.link_key)
    else:
        writer.raw(b"C").raw(link.type.value.encode("ascii"))
        write_server(writer, link.server)
        writer.short(link.link_key)
