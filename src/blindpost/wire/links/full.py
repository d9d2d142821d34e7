"""Full connection links: an invitation for one peer, or a contact address for many.

The text form is what people exchange; the binary form is a part of short-link data.
"""

from __future__ import annotations

import re
from dataclasses import replace

from blindpost.wire.e2e import E2EParamsUri, read_e2e_uri, write_e2e_uri
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import LIST_MAX, Reader, Writer
from blindpost.wire.queue_addresses import (
    QueueUri,
    read_queue_uri,
    write_queue_uri,
)
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.text import escaped, read_query
from blindpost.wire.value import Value
from blindpost.wire.versions import VersionRange, read_version_range, write_version_range

AGENT_VERSIONS = VersionRange(2, 7)
"""The agent versions that this implementation speaks."""

SIMPLEX_SCHEME = "simplex:"
"""The scheme for storing and forwarding links, whatever site they were read from."""

_FULL_LINK = re.compile(
    r"(?:simplex:|https://[^:#,;/ ]+(?::[0-9]+)?)/(?P<kind>invitation|contact)/?#/\?(?P<query>.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True, repr=False)
class InvitationLink(Value):
    """For one peer: a queue and the creator's keys of the key agreement."""

    agent_versions: VersionRange
    queues: tuple[QueueUri, ...]
    e2e: E2EParamsUri
    client_data: str | None = None

    @property
    def text(self) -> str:
        return self.written()

    def written(self, scheme: str = SIMPLEX_SCHEME) -> str:
        """The text under `scheme`, which may also be a site such as `https://simplex.chat`."""
        start = _written_start(scheme, "invitation", self.agent_versions, self.queues)
        return f"{start}&e2e={escaped(self.e2e.text)}{_written_client_data(self.client_data)}"


@dataclass(frozen=True, slots=True, repr=False)
class ContactLink(Value):
    """For anybody: a queue that accepts requests to connect."""

    agent_versions: VersionRange
    queues: tuple[QueueUri, ...]
    client_data: str | None = None

    @property
    def text(self) -> str:
        return self.written()

    def written(self, scheme: str = SIMPLEX_SCHEME) -> str:
        """The text under `scheme`, which may also be a site such as `https://simplex.chat`."""
        start = _written_start(scheme, "contact", self.agent_versions, self.queues)
        return f"{start}{_written_client_data(self.client_data)}"


FullLink = InvitationLink | ContactLink


def _written_start(scheme: str, kind: str, versions: VersionRange, queues: tuple[QueueUri, ...]) -> str:
    if not queues:
        raise WireError("a link with at least one queue expected")
    listed = escaped(";".join(queue.text for queue in queues))
    return f"{scheme}/{kind}#/?v={versions.text}&smp={listed}"


def _written_client_data(client_data: str | None) -> str:
    return "" if client_data is None else f"&data={escaped(client_data)}"


def is_full_link(text: str) -> bool:
    """Whether `text` has the outer form of a full link, so that it cannot be a short one."""
    return _FULL_LINK.fullmatch(text) is not None


def full_link_from_text(text: str) -> FullLink:
    """Read a full link. Old contact links are raised to the oldest agent version that is still spoken."""
    found = _FULL_LINK.fullmatch(text)
    if found is None:
        raise WireError("a full link expected: simplex:/invitation#/?... or simplex:/contact#/?...")
    query = read_query(found["query"])
    if "v" not in query or "smp" not in query:
        raise WireError("a full link with versions and queues expected")
    versions = VersionRange.from_text(query["v"])
    listed = query["smp"].split(";")
    if len(listed) > LIST_MAX:
        raise WireError(f"a full link with at most {LIST_MAX} queues expected")
    queues = tuple(QueueUri.from_text(queue) for queue in listed)
    client_data = _utf8(query.get("data"))
    if found["kind"] == "invitation":
        if "e2e" not in query:
            raise WireError("an invitation with parameters of the key agreement expected")
        return InvitationLink(versions, queues, E2EParamsUri.from_text(query["e2e"]), client_data)
    low = max(AGENT_VERSIONS.low, versions.low)
    return ContactLink(VersionRange(low, max(low, versions.high)), queues, client_data)


def _utf8(text: str | None) -> str | None:
    """Refuse the lone surrogates that stand for bytes that are not UTF-8."""
    if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
        raise WireError("client data in UTF-8 expected")
    return text


def read_full_link(reader: Reader) -> FullLink:
    tag = reader.u8()
    if tag not in (0x49, 0x43):
        raise WireError("an invitation (I) or contact (C) link expected")
    versions = read_version_range(reader)
    queues = tuple(map(_contact_by_default, reader.list1(read_queue_uri)))
    client_data = reader.opt(_read_client_data)
    if tag == 0x49:
        return InvitationLink(versions, queues, read_e2e_uri(reader), client_data)
    return ContactLink(versions, queues, client_data)


def write_full_link(writer: Writer, link: FullLink) -> None:
    invitation = isinstance(link, InvitationLink)
    writer.raw(b"I" if invitation else b"C")
    write_version_range(writer, link.agent_versions)
    writer.list1(link.queues, write_queue_uri).opt(link.client_data, _write_client_data)
    if isinstance(link, InvitationLink):
        write_e2e_uri(writer, link.e2e)


def _contact_by_default(queue: QueueUri) -> QueueUri:
    """A contact queue of the default range is written without its mode, and nothing else is in this form."""
    if queue.address.mode is not None:
        return queue
    return replace(queue, address=replace(queue.address, mode=QueueMode.CONTACT))


def _read_client_data(reader: Reader) -> str:
    try:
        return str(reader.large(), "utf-8")
    except UnicodeDecodeError as error:
        raise WireError("client data in UTF-8 expected") from error


def _write_client_data(writer: Writer, client_data: str) -> None:
    try:
        writer.large(client_data.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise WireError("client data that UTF-8 can carry expected") from error
