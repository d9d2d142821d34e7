"""Names that a router resolves: which domains may be asked for, and the record that comes back."""

from __future__ import annotations

import re

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.json_text import JsonObject, json_bytes
from blindpost.wire.value import Buffer, Value

DOMAIN_SIZE_MAX = 253

LABEL_SIZE_MAX = 63

_WORD = re.compile(rb"\S*")
_LABEL = re.compile(rb"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")


def domain_from_bytes(data: Buffer) -> str:
    """The domain that `data` begins with, in lower case; white space and all after it is ignored.

    At least two labels of ASCII letters, digits and single hyphens between them.
    """
    word = _WORD.match(data, 0, DOMAIN_SIZE_MAX + 1)
    domain = b"" if word is None else bytes(word[0])
    labels = domain.split(b".")
    if len(domain) > DOMAIN_SIZE_MAX or len(labels) < 2 or not all(map(_is_label, labels)):
        raise WireError("a domain name of at least two labels expected")
    return domain.decode("ascii").lower()


def _is_label(label: bytes) -> bool:
    return len(label) <= LABEL_SIZE_MAX and _LABEL.fullmatch(label) is not None


def domain_to_bytes(domain: str) -> bytes:
    data = domain.encode("ascii", "replace")
    if domain_from_bytes(data) != domain:
        raise WireError("a domain name in lower case and nothing else expected")
    return data


@dataclass(frozen=True, slots=True, repr=False)
class NameRecord(Value):
    """What a name stands for. Unset texts are empty, unset coin addresses are None."""

    name: str
    nickname: str = ""
    website: str = ""
    location: str = ""
    simplex_contact: tuple[str, ...] = ()
    simplex_channel: tuple[str, ...] = ()
    eth: str | None = None
    btc: str | None = None
    xmr: str | None = None
    dot: str | None = None
    owner: str = ""
    resolver: str = ""


def name_record_from_json(data: Buffer) -> NameRecord:
    record = JsonObject.from_bytes(data)
    return NameRecord(
        name=record.text("name"),
        nickname=record.text("nickname"),
        website=record.text("website"),
        location=record.text("location"),
        simplex_contact=record.texts("simplexContact"),
        simplex_channel=record.texts("simplexChannel"),
        eth=record.optional_text("eth"),
        btc=record.optional_text("btc"),
        xmr=record.optional_text("xmr"),
        dot=record.optional_text("dot"),
        owner=record.text("owner"),
        resolver=record.text("resolver"),
    )


def name_record_to_json(record: NameRecord) -> bytes:
    return json_bytes(
        {
            "name": record.name,
            "nickname": record.nickname,
            "website": record.website,
            "location": record.location,
            "simplexContact": record.simplex_contact,
            "simplexChannel": record.simplex_channel,
            "eth": record.eth,
            "btc": record.btc,
            "xmr": record.xmr,
            "dot": record.dot,
            "owner": record.owner,
            "resolver": record.resolver,
        }
    )
