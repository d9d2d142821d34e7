"""Where to send: queue addresses in their binary forms, for one version or a range, and as text.

How much an address says about the queue's mode depends on the version it is written for; an older reader
would not expect more. So reading may give the mode None, unknown, where the writer had one.
"""

from __future__ import annotations

from dataclasses import replace

from blindpost.wire.addresses import (
    Host,
    RouterAddress,
    Scheme,
    Server,
    hosts_from_text,
    hosts_text,
    read_legacy_server,
    read_server,
    scan_address,
    scan_base64,
    write_legacy_server,
    write_server,
)
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import Algorithm, PublicKey, read_x25519, write_key
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.text import b64, escaped, read_query, unb64
from blindpost.wire.value import Buffer, Value
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range

CLIENT_VERSIONS = VersionRange(1, 4)
"""The SMP client versions that this implementation speaks."""

HOSTS_CLIENT_VERSION = 2
"""From here on an address names several hosts."""

SENDER_KEY_CLIENT_VERSION = 3
"""From here on a sender may secure a messaging queue, and addresses tell whether it may."""

SHORT_LINKS_CLIENT_VERSION = 4
"""From here on addresses name the mode itself."""

_ONION_HOSTS = {
    "smp4.simplex.im": "o5vmywmrnaxalvz6wi3zicyftgio6psuvyniis6gco6bp6ekl4cqj4id.onion",
    "smp5.simplex.im": "jjbyvoemxysm7qxap7m5d5m35jzv5qq6gnlv7s4rsn7tdwwmuqciwpid.onion",
    "smp6.simplex.im": "bylepyau3ty4czmn77q4fglvperknl4bi2eb2fdy2bh4jxtf32kf73yd.onion",
    "smp8.simplex.im": "beccx4yfxxbvyhqypaavemqurytl6hozr47wfc7uuecacjqdvwpw2xid.onion",
    "smp9.simplex.im": "jssqzccmrcws6bhmn77vgmhfjmhwlyr3u7puw4erkyoosywgl67slqqd.onion",
    "smp10.simplex.im": "rb2pbttocvnbrngnwziclp2f4ckjq65kebafws6g4hy22cdaiv5dwjqd.onion",
}
"""Second hosts of public routers, which addresses of version 1 could not name."""


_MODE_BYTES = {
    0x4D: QueueMode.MESSAGING,
    0x54: QueueMode.MESSAGING,
    0x43: QueueMode.CONTACT,
    0x46: QueueMode.CONTACT,
}
_MODE_LETTERS = {"m": QueueMode.MESSAGING, "c": QueueMode.CONTACT}


@dataclass(frozen=True, slots=True, repr=False)
class SenderAddress(Value):
    """A queue as its sender names it when it is known already."""

    server: Server
    sender_id: bytes


@dataclass(frozen=True, slots=True, repr=False)
class QueueAddress(Value):
    """All that a new sender needs; `dh_key` is the recipient's X25519 key for the queue."""

    server: Server
    sender_id: bytes
    dh_key: PublicKey
    mode: QueueMode | None = None

    @property
    def sender(self) -> SenderAddress:
        return SenderAddress(self.server, self.sender_id)


def same_queue(one: SenderAddress | QueueAddress, other: SenderAddress | QueueAddress) -> bool:
    """Whether both lead to the same queue: fingerprints, keys and modes do not matter."""
    return one.sender_id == other.sender_id and one.server.same_address(other.server)


@dataclass(frozen=True, slots=True, repr=False)
class QueueInfo(Value):
    """An address for one agreed client version."""

    version: int
    address: QueueAddress


@dataclass(frozen=True, slots=True, repr=False)
class QueueUri(Value):
    """An address offered for a range of client versions."""

    versions: VersionRange
    address: QueueAddress

    def at(self, version: int) -> QueueInfo:
        """The address at the agreed version."""
        return QueueInfo(version, self.address)

    @property
    def text(self) -> str:
        address = self.address
        named = address.server.hosts
        if self.versions.low < HOSTS_CLIENT_VERSION:
            named = named[:1]
        later = address.server.hosts[len(named) :]
        if not address.sender_id:
            raise WireError("a queue address with a sender id expected")
        router = RouterAddress(Scheme.SMP, replace(address.server, hosts=named))
        written = f"{router.text}/{b64(address.sender_id)}"
        written += f"#/?v={self.versions.text}&dh={escaped(b64(address.dh_key.spki))}"
        if address.mode is not None:
            written += f"&q={'m' if address.mode is QueueMode.MESSAGING else 'c'}"
        if address.mode is QueueMode.MESSAGING and self.versions.low < SHORT_LINKS_CLIENT_VERSION:
            written += "&k=s"
        return f"{written}&srv={escaped(hosts_text(later))}" if later else written

    @classmethod
    def from_text(cls, text: str) -> QueueUri:
        router, end = scan_address(text, 0)
        if router.scheme is not Scheme.SMP or router.password is not None:
            raise WireError("a queue address of an SMP router, without password, expected")
        if not text.startswith("/", end):
            raise WireError("/ expected before a sender id")
        sender_id, end = scan_base64(text, end + 1)
        end = _past(text, end, "/")
        if not text.startswith("#", end):
            raise WireError("# expected after a sender id")
        versions, later, dh_key, mode = _read_fragment(text[end + 1 :])
        server = replace(router.server, hosts=router.server.hosts + later)
        if versions.high < HOSTS_CLIENT_VERSION:
            server = with_onion_host(server)
        return cls(versions, QueueAddress(server, sender_id, dh_key, mode))


def _past(text: str, start: int, optional: str) -> int:
    return start + len(optional) if text.startswith(optional, start) else start


def _read_fragment(text: str) -> tuple[VersionRange, tuple[Host, ...], PublicKey, QueueMode | None]:
    """What follows `#`: a key alone (version 1), or a query with the key before or inside it."""
    leading, mark, query_text = text.partition("?")
    if not mark:
        return VersionRange(1, 1), (), _x25519(leading), None
    leading = leading.removesuffix("/")
    query = read_query(query_text)
    if "v" not in query or not (leading or "dh" in query):
        raise WireError("a queue address with its versions and key expected")
    versions = VersionRange.from_text(query["v"])
    dh_key = _x25519(leading or query["dh"])
    mode = _MODE_LETTERS.get(query.get("q", ""))
    if mode is None and query.get("k") == "s":
        mode = QueueMode.MESSAGING
    return versions, hosts_from_text(query.get("srv", "")), dh_key, mode


def _x25519(text: str) -> PublicKey:
    key = PublicKey.from_spki(unb64(text))
    if key.algorithm is not Algorithm.X25519:
        raise WireError("an X25519 key expected")
    return key


def with_onion_host(server: Server) -> Server:
    """The server with its second host, if peers know one: they may name a queue either way."""
    onion = _ONION_HOSTS.get(server.hosts[0].text) if len(server.hosts) == 1 else None
    return server if onion is None else replace(server, hosts=(*server.hosts, Host(onion)))


def read_sender_address(reader: Reader) -> SenderAddress:
    return SenderAddress(read_server(reader), reader.short())


def write_sender_address(writer: Writer, address: SenderAddress) -> None:
    write_server(writer, address.server)
    writer.short(address.sender_id)


def read_queue_info(reader: Reader) -> QueueInfo:
    """The next byte is read as the mode if it can be one: what follows must not look like a mode."""
    version = reader.u16()
    if version < HOSTS_CLIENT_VERSION:
        server = with_onion_host(read_legacy_server(reader))
    else:
        server = read_server(reader)
    return QueueInfo(version, _read_address(reader, server))


def write_queue_info(writer: Writer, info: QueueInfo) -> None:
    writer.u16(info.version)
    if info.version < HOSTS_CLIENT_VERSION:
        write_legacy_server(writer, info.address.server)
    else:
        write_server(writer, info.address.server)
    _write_id_and_key(writer, info.address)
    writer.raw(_info_mode(info))


def swallows(info: QueueInfo, following: Buffer) -> bool:
    """Whether a reader of `info` would read the first byte of `following` as its mode."""
    return bool(following) and not _info_mode(info) and following[0] in _MODE_BYTES


def _info_mode(info: QueueInfo) -> bytes:
    if info.version >= SHORT_LINKS_CLIENT_VERSION:
        return _named(info.address.mode)
    if info.version == SENDER_KEY_CLIENT_VERSION and info.address.mode is QueueMode.MESSAGING:
        return b"T"
    return b""


def read_queue_uri(reader: Reader) -> QueueUri:
    """The next byte is read as the mode if it can be one, as in `read_queue_info`."""
    versions = read_version_range(reader)
    return QueueUri(versions, _read_address(reader, read_server(reader)))


def write_queue_uri(writer: Writer, uri: QueueUri) -> None:
    """The mode is written for the oldest reader of the range."""
    write_version_range(writer, uri.versions)
    write_server(writer, uri.address.server)
    _write_id_and_key(writer, uri.address)
    messaging = uri.address.mode is QueueMode.MESSAGING
    low, high = uri.versions.low, uri.versions.high
    if low >= SHORT_LINKS_CLIENT_VERSION:
        writer.raw(_named(uri.address.mode))
    elif low >= SENDER_KEY_CLIENT_VERSION or (high >= SENDER_KEY_CLIENT_VERSION and messaging):
        writer.flag(messaging)


def _read_address(reader: Reader, server: Server) -> QueueAddress:
    sender_id = reader.short()
    dh_key = read_x25519(reader)
    following = reader.peek()
    mode = None if following is None else _MODE_BYTES.get(following)
    if mode is not None:
        reader.u8()
    return QueueAddress(server, sender_id, dh_key, mode)


def _write_id_and_key(writer: Writer, address: QueueAddress) -> None:
    writer.short(address.sender_id)
    write_key(writer, address.dh_key)


def _named(mode: QueueMode | None) -> bytes:
    return b"" if mode is None else mode.value
