"""Links as a report would hold them."""

from __future__ import annotations

from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.links.full import ContactLink
from blindpost.wire.queue_addresses import QueueAddress, QueueUri
from blindpost.wire.versions import VersionRange


def a_contact_link(fingerprint: bytes, sender_id: bytes) -> str:
    """A full link to this queue of this router."""
    server = Server((Host("smp.example.org"),), "5223", fingerprint)
    address = QueueAddress(server, sender_id, PublicKey(Algorithm.X25519, bytes(32)))
    return ContactLink(VersionRange(2, 7), (QueueUri(VersionRange(1, 4), address),)).text
