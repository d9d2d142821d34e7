"""Every decoder: any bytes are a value or the one named error."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from blindpost.chat.codec.bodies import read_body
from blindpost.journal.frames import MAGIC, SegmentError, read_segment
from blindpost.wire.addresses import RouterAddress, hosts_from_text, read_legacy_server, read_server
from blindpost.wire.agent.compressed import read_compressed
from blindpost.wire.agent.envelopes import (
    read_agent_envelope,
    read_client_envelope,
    read_client_message,
    read_public_header,
)
from blindpost.wire.agent.messages import read_agent_message
from blindpost.wire.capnp.framing import Framer
from blindpost.wire.capnp.node import NODE_SERVICE, read_request, read_result
from blindpost.wire.capnp.rpc import Call, Results, read_rpc, write_bootstrap, write_call, write_finish
from blindpost.wire.e2e import (
    E2EParamsUri,
    read_e2e_params,
    read_e2e_uri,
    read_encrypted_header,
    read_ratchet_header,
    read_ratchet_message,
)
from blindpost.wire.errors import WireError
from blindpost.wire.links.data import (
    read_fixed_link_data,
    read_owner_auth,
    read_signed,
    read_user_link_data,
)
from blindpost.wire.links.full import full_link_from_text, read_full_link
from blindpost.wire.links.short import read_short_link, short_link_from_text
from blindpost.wire.message_log import (
    decode_journal_message,
    decode_journal_state,
    decode_message_line,
    decode_notification_line,
)
from blindpost.wire.ntf import handshake as ntf_handshake
from blindpost.wire.ntf import transmissions as ntf
from blindpost.wire.ntf.pushes import decode_apns_body, decode_items
from blindpost.wire.ntf.tokens import DeviceToken, read_device_token
from blindpost.wire.ntf.versions import connection_layout as ntf_layout
from blindpost.wire.primitives import Reader, decode_whole
from blindpost.wire.private_keys import read_private_auth_key
from blindpost.wire.queue_addresses import QueueUri, read_queue_info, read_queue_uri, read_sender_address
from blindpost.wire.signed_key import read_cert_key, read_signed_key
from blindpost.wire.smp import handshake as smp_handshake
from blindpost.wire.smp import transmissions as smp
from blindpost.wire.smp.error_codec import read_error
from blindpost.wire.smp.errors import RefusedError
from blindpost.wire.smp.messages import (
    read_forwarded_response,
    read_forwarded_transmission,
    read_message,
    read_nmsg_meta,
)
from blindpost.wire.smp.names import domain_from_bytes, name_record_from_json
from blindpost.wire.smp.queue_info import queue_info_from_json
from blindpost.wire.smp.versions import connection_layout as smp_layout
from blindpost.wire.store_log import decode_store_line
from fuzz.target import One, Target
from tests.support.wire.vectors import VECTORS, vectors

CHATS = [f"chat/{name.name}" for name in sorted((VECTORS / "chat").glob("*.json"))]
Decode = Callable[[bytes], object]
SESSION = bytes(32)


def whole(read: Callable[[Reader], Any]) -> Decode:
    return lambda data: decode_whole(data, read)


def as_text(read: Callable[[str], Any]) -> Decode:
    return lambda data: read(data.decode("latin-1"))


def _smp(parse: Callable[..., object]) -> list[Decode]:
    return [
        lambda data, version=version: parse(Reader(data), smp_layout(version, SESSION), version)  # type: ignore[misc]  # bound now
        for version in (6, 7, 9, 12, 15, 16, 17, 19, 20)
    ]


def _ntf(parse: Callable[..., object]) -> list[Decode]:
    return [
        lambda data, version=version: parse(Reader(data), ntf_layout(version, SESSION), version)  # type: ignore[misc]  # bound now
        for version in (1, 2, 3)
    ]


def _forwarded(data: bytes) -> None:
    with contextlib.suppress(RefusedError):
        smp.parse_forwarded_request(Reader(data), 20, SESSION)


def _capnp(data: bytes) -> None:
    """As a delivery service and its client read a stream, in pieces."""
    frames = Framer(1 << 20)
    for start in range(0, len(data), 997):
        frames.feed(data[start : start + 997])
        for message, _ in frames.messages():
            read = read_rpc(message)
            if isinstance(read, Call):
                read_request(read.method, read.params)
            elif isinstance(read, Results):
                for method in range(8):
                    with contextlib.suppress(WireError):
                        read_result(method, read.content)


def _segment(data: bytes) -> None:
    """The bytes as they are, and as header and frames with the sums that belong to them."""
    with contextlib.suppress(SegmentError):
        read_segment(data)
    size = int.from_bytes(data[:2], "big")
    header = data[2 : 2 + size]
    content = MAGIC + struct.pack("<II", len(header), zlib.crc32(header)) + header + data[2 + size :]
    with contextlib.suppress(SegmentError):
        read_segment(content)


SMP: list[Decode] = [*_smp(smp.parse_requests), *_smp(smp.parse_responses), _forwarded]
SMP += [whole(read) for read in (read_error, read_message, read_nmsg_meta)]
SMP += [whole(read_forwarded_transmission), whole(read_forwarded_response)]
SMP += [queue_info_from_json, domain_from_bytes, name_record_from_json]
NTF: list[Decode] = [*_ntf(ntf.parse_requests), *_ntf(ntf.parse_responses), decode_items, decode_apns_body]
NTF += [whole(read_device_token), as_text(DeviceToken.from_text)]
HANDSHAKE = [
    whole(read)
    for read in (
        smp_handshake.read_server_hello,
        smp_handshake.read_client_hello,
        smp_handshake.read_service_response,
        ntf_handshake.read_server_hello,
        ntf_handshake.read_client_hello,
        read_signed_key,
        read_cert_key,
    )
]
AGENT = [
    whole(read)
    for read in (
        read_public_header,
        read_client_envelope,
        read_client_message,
        read_agent_envelope,
        read_agent_message,
        lambda reader: read_compressed(reader, 1 << 16),
        read_e2e_params,
        read_e2e_uri,
        lambda reader: read_ratchet_header(reader, 2),
        lambda reader: read_ratchet_header(reader, 3),
        read_encrypted_header,
        read_ratchet_message,
        read_private_auth_key,
    )
]
LINKS = [
    *(as_text(read) for read in (full_link_from_text, short_link_from_text, RouterAddress.from_text)),
    *(as_text(read) for read in (hosts_from_text, QueueUri.from_text, E2EParamsUri.from_text)),
    *(whole(read) for read in (read_full_link, read_short_link, read_server, read_legacy_server)),
    *(whole(read) for read in (read_queue_uri, read_queue_info, read_sender_address)),
    *(whole(read) for read in (read_fixed_link_data, read_user_link_data, read_owner_auth, read_signed)),
]
STORE_LOG: list[Decode] = [decode_store_line, decode_message_line, decode_notification_line]
STORE_LOG += [decode_journal_message, decode_journal_state]


def chosen(decoders: Sequence[Decode]) -> Callable[[], contextlib.AbstractContextManager[One]]:
    """The first byte chooses the decoder of the others."""

    def one(data: bytes) -> None:
        with contextlib.suppress(WireError):
            decoders[data[0] % len(decoders)](data[1:]) if data else None

    return lambda: contextlib.nullcontext(one)


def seeded(decoders: Sequence[Decode], samples: Sequence[bytes]) -> list[bytes]:
    """Each sample, for each decoder that takes it, and for the first if none does."""
    found = []
    for sample in samples:
        numbers = [number for number, decode in enumerate(decoders) if _taken(decode, sample)] or [0]
        found += [bytes([number]) + sample for number in numbers[:2]]
    return found


def wrapped(samples: Sequence[bytes], requests: int, responses: int) -> list[bytes]:
    """Samples of commands and responses as whole payloads, for the decoders with these numbers."""
    ids = b"\x18" + bytes(range(24))
    found = []
    for sample in samples:
        if sample[:1].isupper() and len(sample) < 2000:
            for entity in (ids, b"\0"):
                inner = b"\0" + ids + entity + sample
                payload = b"\1" + len(inner).to_bytes(2, "big") + inner
                found += [bytes([requests]) + payload, bytes([responses]) + payload]
    return found


def _taken(decode: Decode, sample: bytes) -> bool:
    try:
        decode(sample)
    except WireError:
        return False
    return True


def samples_of(*files: str) -> list[bytes]:
    """Whatever is bytes or text in the vectors, so far as it is short."""
    found: dict[bytes, None] = {}
    for file in files:
        for value in _strings(vectors(file)):
            if len(value) <= 4096:
                found[_bytes_of(value)] = None
    return list(found)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _bytes_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return text.encode()


def _decoders(
    name: str, decoders: Sequence[Decode], *files: str, whole_payloads: tuple[int, int] | None = None
) -> Target:
    def seeds() -> list[bytes]:
        samples = samples_of(*files)[:400]
        more = [] if whole_payloads is None else wrapped(samples, *whole_payloads)
        return seeded(decoders, samples) + more

    return Target(name, "a value or a WireError", chosen(decoders), seeds)


def _header_seed() -> bytes:
    header = json.dumps(
        {
            "router": "smp-1",
            "role": "smp",
            "boot": "00" * 16,
            "content": "records",
            "version": 1,
            "first": 0,
            "words": {},
        }
    ).encode()
    return len(header).to_bytes(2, "big") + header


def _calls() -> list[bytes]:
    """A bootstrap, a call of each method of a node without arguments, its end."""
    calls = [write_call(2, 1, NODE_SERVICE, method, lambda body, place: None) for method in range(6)]
    return [b"\0" + write_bootstrap(1), b"\0" + write_finish(2), *(b"\0" + call for call in calls)]


DECODERS = (
    _decoders(
        "smp", SMP, "smp_commands.json", "smp_responses.json", "transmissions.json", whole_payloads=(8, 17)
    ),
    _decoders("ntf", NTF, "ntf.json", whole_payloads=(2, 5)),
    _decoders("handshake", HANDSHAKE, "handshake.json", "ntf.json"),
    _decoders("agent", AGENT, "agent_messages.json"),
    _decoders("links", LINKS, "links.json"),
    _decoders("store-log", STORE_LOG, "store_log.json"),
    _decoders("chat", [read_body], *CHATS),
    Target("capnp", "a value or a WireError", chosen([_capnp]), _calls),
    Target(
        "journal",
        "a segment or a SegmentError",
        lambda: contextlib.nullcontext(_segment),
        lambda: [_header_seed()],
    ),
)
