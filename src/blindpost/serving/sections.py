"""What the configuration files of all servers have in common: kinds of values, and whole tables."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from blindpost.serving.settings import Section
from blindpost.wire.addresses import Host
from blindpost.wire.errors import WireError
from blindpost.wire.text import unb64

EVERYWHERE = "*"
FINGERPRINT_SIZE = 32


HOST_MAX = 253
"""How long a name may be that can be looked up."""
_AMBIGUOUS = frozenset("\u00df\u03c2\u200c\u200d")
"""Letters that the two standards for international names write in different ways."""


def host_text(text: str) -> str:
    """A host in normal form, an international name in the form that travels: `xn--...`."""
    if len(text) > HOST_MAX:
        raise ValueError(f"a host of at most {HOST_MAX} characters expected")
    if not text.isascii():
        text = _international(text)
    try:
        return Host(text).text
    except WireError as error:
        raise ValueError(f"{error}, such as smp.example.org") from error


def _international(text: str) -> str:
    try:
        if not _AMBIGUOUS.intersection(text):
            return text.encode("idna").decode()
    except UnicodeError:
        pass
    raise ValueError("a host in ASCII expected: write this name in its xn-- form")


def _fingerprint(text: str) -> str:
    try:
        if len(unb64(text)) == FINGERPRINT_SIZE:
            return text
    except WireError:
        pass
    raise ValueError(
        f"the base64url text of {FINGERPRINT_SIZE} bytes expected, as in the address, before the @"
    )


def _database(text: str) -> str:
    if text and not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("postgresql://user@host/database expected")
    return text


def _listening(text: str) -> str:
    if text == EVERYWHERE:
        return text
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise ValueError('an IP address of this machine expected, or "*" for all of them') from error


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError("an IP address or network expected, such as 127.0.0.1 or 10.0.0.0/8") from error


MOST = 10**12
"""Whoever wants no limit writes a large number. Larger ones than this do not fit where they are used: MiB as
bytes, in a column, in a wait."""
LONGEST_S = 10**10
"""More than three hundred years."""
NetworkText = Annotated[str, AfterValidator(_network)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Seconds = Annotated[int, Field(ge=1, le=LONGEST_S)]
Positive = Annotated[float, Field(gt=0, le=LONGEST_S)]
HostText = Annotated[str, AfterValidator(host_text)]
Listening = Annotated[str, AfterValidator(_listening)]
Database = Annotated[str, AfterValidator(_database), Field(repr=False)]
"""The address of a PostgreSQL database, or nothing; it may hold a password, so it is never printed."""

Durability = Literal["full", "os"]


def demand_database(kind: str, dsn: str) -> None:
    """A store in a database needs to know which."""
    if kind == "postgres" and not dsn:
        raise ValueError("the address of the database expected in dsn, since kind is postgres")


class SharedSection(Section):
    """What `[store]` says of a database that two servers own in turn."""

    standby: bool = False
    takeover_s: Annotated[float, Field(ge=3, le=3600)] = 10.0

    def demand_shareable(self, *, in_database: bool) -> None:
        """What is in a folder cannot be taken over by another machine."""
        if self.standby and not in_database:
            raise ValueError("standby needs a store in a PostgreSQL database")


class IdentitySection(Section):
    """`[identity]` of a router that is known by the fingerprint in its address."""

    fingerprint: Annotated[str, AfterValidator(_fingerprint)] | None = None
    keys: str = "keys"

    @property
    def key_hash(self) -> bytes | None:
        """The fingerprint's bytes, if the file names one."""
        return None if self.fingerprint is None else unb64(self.fingerprint)


class LogSection(Section):
    """`[log]`."""

    format: Literal["plain", "json"] = "plain"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ControlSection(Section):
    """`[control]`: where operators' commands reach the server."""

    socket: str = "control.sock"


CONTROL_TEMPLATE = """\
[control]
# The socket by which `status` and an operator's other commands reach the running server.
socket = "control.sock"

"""


METRICS_TEMPLATE = """\
[metrics]
# Prometheus metrics at http://address:port/metrics, without a password: with another address ("*": all of
# them) let a firewall choose who reads them. By default that is this machine only.
enabled = false
address = "127.0.0.1"
port = {port}

"""


class MetricsSection(Section):
    """`[metrics]`: sums, read without a password. Each kind of server has its port."""

    enabled: bool = False
    address: Listening = "127.0.0.1"
    port: Port


class Taking(Section):
    """How many connections a server takes, in total and of one address, and in how much memory."""

    connections: Count = 50_000
    connections_per_address: Count = 1_000
    handshakes: Count = 2_000
    memory_mib: Annotated[int, Field(ge=128, le=MOST)] = 2_048
    exempt: list[NetworkText] = Field(default_factory=list)
    """Addresses that stand for many users: not counted per address."""
