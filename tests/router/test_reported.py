"""What a report may name: links of every kind, or an id by itself."""

from __future__ import annotations

import pytest

from blindpost.crypto.link_data import contact_link_secrets
from blindpost.router.running.reported import reported_id
from blindpost.serving.failures import OperatorError
from blindpost.wire.addresses import Host, Server
from blindpost.wire.links.short import ContactType, LinkScheme, ShortContact, ShortInvitation
from blindpost.wire.text import b64
from tests.support.router.links import a_contact_link

OURS, THEIRS = bytes(32), bytes([1]) * 32
ID, KEY = bytes(range(24)), bytes(range(32))


def test_every_kind_of_link_leads_to_its_queue() -> None:
    server = Server((Host("smp.example.org"),), "", OURS)
    assert reported_id(f" {b64(ID)}\n", OURS) == ID
    assert reported_id(a_contact_link(OURS, ID), OURS) == ID
    for scheme in LinkScheme:
        assert reported_id(ShortInvitation(server, ID, KEY, scheme).text, OURS) == ID
        for kind in ContactType:
            assert (
                reported_id(ShortContact(kind, server, KEY, scheme).text, OURS)
                == contact_link_secrets(KEY)[0]
            )


@pytest.mark.parametrize(
    "text",
    [
        a_contact_link(THEIRS, ID),
        ShortInvitation(Server((Host("smp.example.org"),), "", THEIRS), ID, KEY).text,
    ],
)
def test_a_link_of_another_router_is_refused(text: str) -> None:
    with pytest.raises(OperatorError, match="leads to another router"):
        reported_id(text, OURS)


@pytest.mark.parametrize("text", ["", "!", "https://example.org/a#", "simplex:/contact#/?v=1", "a/b/c"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(OperatorError, match="a link, or a sender or link id"):
        reported_id(text, OURS)
