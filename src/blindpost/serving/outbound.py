"""`[outbound]` of a server that connects to hosts that strangers name."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from blindpost.serving.sections import NetworkText
from blindpost.serving.settings import Section

LOOPBACK = ["127.0.0.0/8", "::1/128"]

OUTBOUND_TEMPLATE = """\
[outbound]
# {whose} may name any host. Only addresses of the public internet are connected to, and those of the
# networks that are named here, such as "10.0.0.0/8".
allow = {allow}
# A SOCKS5 proxy such as Tor, "127.0.0.1:9050", for "onion" hosts or "always". It looks names up itself:
# it must refuse private addresses, as Tor does.
socks = ""
socks_mode = "onion"
# Which hosts of an address are tried first, "public" or "onion", and whether the others are not tried at all.
host_mode = "public"
required_host_mode = false

"""


def _proxy(text: str) -> str:
    host, _, port = text.rpartition(":")
    digits = port.isascii() and port.isdecimal() and len(port) <= 5
    if text and not (host and digits and 0 < int(port) <= 65_535):
        raise ValueError("host:port expected, such as 127.0.0.1:9050")
    return text


class OutboundSection(Section):
    """`[outbound]`: where connections to hosts named by others may lead, and how."""

    allow: list[NetworkText] = Field(default_factory=list)
    """Networks besides the public internet."""
    socks: Annotated[str, AfterValidator(_proxy)] = ""
    """A SOCKS5 proxy such as Tor, as host:port."""
    socks_mode: Literal["onion", "always"] = "onion"
    """Which hosts are reached through it."""
    host_mode: Literal["public", "onion"] = "public"
    """Which hosts of an address are tried first."""
    required_host_mode: bool = False
    """Whether the others are not tried at all."""

    @model_validator(mode="after")
    def _reachable(self) -> OutboundSection:
        if not self.socks and self.host_mode == "onion" and self.required_host_mode:
            raise ValueError("a proxy expected in socks, since only onion hosts are to be reached")
        return self


def allowed_for(hosts: Sequence[str]) -> list[str]:
    """What a new server allows: this machine, if its own address is on it."""
    return LOOPBACK if any(map(_is_loopback, hosts)) else []


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
