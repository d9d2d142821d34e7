"""Who has a port of this machine, as the system tells it."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from blindpost.serving.sections import EVERYWHERE
from blindpost.transport.listening import is_meant, overlap

_TABLES = {
    socket.SOCK_STREAM: (("tcp", "tcp6"), "0A"),
    socket.SOCK_DGRAM: (("udp", "udp6"), ""),
}
"""The system's tables, and the state in which a row is in the way of somebody who wants its port."""


def clash(one: str, other: str) -> bool:
    """Whether no two servers can have the same port at these addresses."""
    return EVERYWHERE in (one, other) or overlap(one, other)


def held_elsewhere(held: Iterable[tuple[str, int]], address: str, number: int) -> str | None:
    """At which address a supervisor holds this port, if that keeps a server from listening at its own."""
    host = None if address == EVERYWHERE else address
    there = [at for at, port in held if port == number and clash(at, address)]
    return None if any(is_meant(at, host) for at in there) else next(iter(there), None)


def sockets_of(pid: int) -> frozenset[str] | None:
    """All sockets of a process, as the system names them; None for one that we may not look into."""
    folder, found = f"/proc/{pid}/fd", set()
    try:
        for name in os.listdir(folder):
            try:
                kind, _, number = os.readlink(f"{folder}/{name}").partition(":")
            except FileNotFoundError:
                continue  # closed meanwhile
            if kind == "socket":
                found.add(number.strip("[]"))
    except OSError:
        return None
    return frozenset(found)


def sockets_at(address: str, number: int, kind: socket.SocketKind) -> set[str]:
    """The sockets that have this port at this address, or at one that overlaps it."""
    tables, state = _TABLES[kind]
    return {
        name
        for table in tables
        for at, port, found, name in _rows(Path("/proc/self/net", table))
        if port == number and state in (found, "") and clash(address, at)
    }


def _rows(table: Path) -> Iterator[tuple[str, int, str, str]]:
    """Address, port, state and name of each socket; a machine without IPv6 has no table for it."""
    for line in table.read_text().splitlines()[1:] if table.exists() else ():
        fields = line.split()
        at, _, port = fields[1].partition(":")
        yield _address(at), int(port, 16), fields[3], fields[9]


def _address(text: str) -> str:
    """An address as the system writes it: words of this machine's own order."""
    words = (int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))
    return str(ipaddress.ip_address(b"".join(words)))
