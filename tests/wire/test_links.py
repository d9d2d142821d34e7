"""Full and short links: every vector both ways, what the reference joined or refused, and hostile input."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.addresses import Host, RouterAddress, Server
from blindpost.wire.e2e import E2E_VERSIONS, E2EParamsUri
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.links.full import (
    AGENT_VERSIONS,
    ContactLink,
    FullLink,
    InvitationLink,
    full_link_from_text,
    is_full_link,
    read_full_link,
    write_full_link,
)
from blindpost.wire.links.short import (
    ContactType,
    LinkScheme,
    ShortContact,
    ShortInvitation,
    ShortLink,
    read_short_contact,
    read_short_link,
    restored,
    short_link_from_text,
    shortened,
    write_short_link,
)
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.queue_addresses import CLIENT_VERSIONS, QueueUri
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.versions import VersionRange
from tests.support.wire import agent_strategies as some
from tests.support.wire import agent_values as build
from tests.support.wire.hostile import calls_made, changed_everywhere, truncated_everywhere
from tests.support.wire.vectors import named, vector_file, vectors

FULL = vectors("links.json", "full_link")
SHORT = vectors("links.json", "short_link")
TEXTS = vectors("links.json", "link_parse")
SHORTEN = vectors("links.json", "shorten")
JOINED = vector_file("agent_transcripts/link_text_matrix.json")["cases"]
GOLDEN = {vector["name"]: vector for vector in vectors("doc_golden.json")}
VERSIONS = VersionRange(2, 7)
GOOD_INVITATION = FULL[0]["text"]
GOOD_SHORT = next(vector["text"] for vector in SHORT if "two hosts" in vector["name"])


def link_from_text(text: str) -> FullLink | ShortLink:
    return full_link_from_text(text) if is_full_link(text) else short_link_from_text(text)


def decoded(vector: dict[str, Any], form: str) -> dict[str, Any]:
    """What the reference reads back from its own encoding."""
    value: dict[str, Any] = vector["value"] if vector[form] == "same as value" else vector[form]
    return value


@pytest.mark.parametrize("vector", FULL, ids=named)
def test_full_links(vector: dict[str, Any]) -> None:
    link = build.full_link(vector["value"])
    assert link.written(vector["value"]["data"]["scheme"]) == vector["text"]
    assert encode(link, write_full_link).hex() == vector["binary"]
    text_value, binary_value = decoded(vector, "text_decoded"), decoded(vector, "binary_decoded")
    assert text_value["data"]["scheme"] == binary_value["data"]["scheme"] == "simplex:"
    read_text = link_from_text(vector["text"])
    assert read_text == build.full_link(text_value)
    assert link_from_text(read_text.text) == read_text
    read_binary = decode_whole(bytes.fromhex(vector["binary"]), read_full_link)
    assert read_binary == build.full_link(binary_value)
    assert encode(read_binary, write_full_link).hex() == vector["binary"]


@pytest.mark.parametrize("vector", SHORT, ids=named)
def test_short_links(vector: dict[str, Any]) -> None:
    link = build.short_link(vector["value"])
    assert link.text == vector["text"]
    assert encode(link, write_short_link).hex() == vector["binary"]
    assert link_from_text(vector["text"]) == build.short_link(decoded(vector, "text_decoded")) == link
    read_binary = decode_whole(bytes.fromhex(vector["binary"]), read_short_link)
    assert read_binary == build.short_link(decoded(vector, "binary_decoded"))


@pytest.mark.parametrize("vector", TEXTS, ids=named)
def test_texts_of_links(vector: dict[str, Any]) -> None:
    result = vector["result"]
    if "error" in result:
        with pytest.raises(WireError):
            link_from_text(vector["text"])
    elif "full" in result:
        assert link_from_text(vector["text"]) == build.full_link(result["full"])
    else:
        assert link_from_text(vector["text"]) == build.short_link(result["short"])


@pytest.mark.parametrize("vector", SHORTEN, ids=named)
def test_shortening_and_restoring(vector: dict[str, Any]) -> None:
    presets = [RouterAddress.from_text(text).server for text in vector["preset"]]
    link = short_link_from_text(vector["link"])
    assert isinstance(link, ShortContact)
    short = shortened(link, presets)
    assert short.text == vector["shortened"]
    assert restored(short, presets).text == vector["restored"]


def compatible(link: FullLink) -> bool:
    """The version negotiations that joining starts with."""
    agreed = [
        link.agent_versions.agreed(AGENT_VERSIONS),
        link.queues[0].versions.agreed(CLIENT_VERSIONS),
    ]
    if isinstance(link, InvitationLink):
        agreed.append(link.e2e.versions.agreed(E2E_VERSIONS))
    return None not in agreed


@pytest.mark.parametrize("case", JOINED, ids=lambda case: case["case"])
def test_links_that_the_reference_joined_or_refused(case: dict[str, Any]) -> None:
    if case["accepted"]:
        link = link_from_text(case["link"])
        assert isinstance(link, ShortInvitation | ShortContact) or compatible(link)
        assert link_from_text(link.text) == link
    elif "A_VERSION" in case["reference_result"]:
        assert not compatible(full_link_from_text(case["link"]))
    else:
        assert "bad link" in case["reference_result"]
        with pytest.raises(WireError):
            link_from_text(case["link"])


def golden_invitation() -> InvitationLink:
    """The invitation of the wire document's golden section, and its keys r1 and r2."""
    queue = QueueUri.from_text(GOLDEN["queue URI text"]["text"])
    r1 = PublicKey(Algorithm.X448, bytes.fromhex(GOLDEN["r1 public"]["bytes"]))
    written = full_link_from_text(GOLDEN["invitation text"]["text"])
    assert isinstance(written, InvitationLink)
    assert written.e2e.key1 == r1
    e2e = E2EParamsUri(VersionRange(2, 3), r1, written.e2e.key2)
    return InvitationLink(VersionRange(2, 7), (queue,), e2e)


def test_links_of_the_document() -> None:
    text = golden_invitation().text
    assert text == GOLDEN["invitation text"]["text"]
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN["invitation text"]["sha256"]
    short = GOLDEN["contact short link"]["text"]
    link = short_link_from_text(short)
    assert isinstance(link, ShortContact)
    assert link.text == short
    assert link.link_key.hex() == GOLDEN["link data linkKey"]["bytes"]
    queue = golden_invitation().queues[0]
    assert link.server == queue.address.server


def test_links_are_written_under_any_site_and_forwarded_under_none() -> None:
    link = golden_invitation()
    contact = ContactLink(link.agent_versions, link.queues)
    for full, kind in ((link, "invitation"), (contact, "contact")):
        site = full.written("https://chat.example:8443")
        assert site.startswith(f"https://chat.example:8443/{kind}#/?v=2-7&smp=")
        assert full_link_from_text(site) == full
        assert full_link_from_text(site).text.startswith(f"simplex:/{kind}#/?")


def test_contact_links_of_old_versions_stay_usable() -> None:
    queues = golden_invitation().queues
    for low, high, expected in (
        (1, 1, (2, 2)),
        (1, 2, (2, 2)),
        (1, 9, (2, 9)),
        (2, 2, (2, 2)),
        (8, 9, (8, 9)),
        (0, 0, (2, 2)),
    ):
        text = ContactLink(VersionRange(low, high), queues).text
        assert full_link_from_text(text).agent_versions == VersionRange(*expected)
    old = replace(golden_invitation(), agent_versions=VersionRange(1, 1))
    assert full_link_from_text(old.text) == old


def test_an_unknown_mode_in_binary_reads_as_contact() -> None:
    queue = golden_invitation().queues[0]
    unknown = replace(queue, address=replace(queue.address, mode=None))
    known = replace(queue, address=replace(queue.address, mode=QueueMode.CONTACT))
    link = ContactLink(VersionRange(2, 7), (unknown, queue))
    assert decode_whole(encode(link, write_full_link), read_full_link).queues == (known, queue)
    assert full_link_from_text(link.text).queues == (unknown, queue)


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("simplex:", "simplex"),
        ("simplex:", "http://a"),
        ("simplex:", "https://"),
        ("simplex:", "https://a:b"),
        ("simplex:", "https://a b"),
        ("/invitation#", "/invitation//#"),
        ("/invitation#", "invitation#"),
        ("#/?", "#?"),
        ("v=2-7", "v=7-2"),
        ("v=2-7", "w=2-7"),
        ("&smp=", "&smp=%3B"),
        ("&e2e=", "&e3e="),
        ("%2C", "%2C%2C"),
    ],
)
def test_texts_that_are_not_full_links(part: str, other: str) -> None:
    assert part in GOOD_INVITATION
    with pytest.raises(WireError):
        full_link_from_text(GOOD_INVITATION.replace(part, other, 1))


def test_client_data() -> None:
    link = replace(golden_invitation(), client_data='{"a b":"\xe9+&;%"}')
    assert "data=%7B%22a%20b%22%3A%22%C3%A9%2B%26%3B%25%22%7D" in link.text
    assert full_link_from_text(link.text) == link
    assert full_link_from_text(golden_invitation().text + "&data=a+b&data=c") == replace(
        link, client_data="a b"
    )
    assert full_link_from_text(golden_invitation().text + "&data=") == replace(link, client_data="")
    with pytest.raises(WireError):
        full_link_from_text(golden_invitation().text + "&data=%FF")
    for write in (lambda bad: bad.text, lambda bad: encode(bad, write_full_link)):
        with pytest.raises(WireError):
            write(replace(link, client_data="\ud800"))
    broken = encode(replace(link, client_data="abc"), write_full_link).replace(b"abc", b"a\xffc")
    with pytest.raises(WireError):
        decode_whole(broken, read_full_link)


def test_links_without_queues_cannot_be_written() -> None:
    empty = replace(golden_invitation(), queues=())
    with pytest.raises(WireError):
        _ = empty.text
    with pytest.raises(WireError):
        encode(empty, write_full_link)


def test_text_holds_no_more_queues_than_binary() -> None:
    queue = golden_invitation().queues[0]
    many = ContactLink(VERSIONS, (queue,) * 255)
    assert full_link_from_text(many.text) == many
    with pytest.raises(WireError):
        full_link_from_text(ContactLink(VERSIONS, (queue,) * 256).text)


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(b"IC")))
def test_unknown_kinds_of_links_in_binary(tag: int) -> None:
    good = encode(golden_invitation(), write_full_link)
    with pytest.raises(WireError):
        decode_whole(bytes([tag]) + good[1:], read_full_link)
    short = bytes.fromhex(SHORT[0]["binary"])
    with pytest.raises(WireError):
        decode_whole(bytes([tag]) + short[1:], read_short_link)


def test_kinds_of_contacts_in_binary() -> None:
    contact = next(bytes.fromhex(vector["binary"]) for vector in SHORT if vector["binary"][:2] == "43")
    for letter in range(256):
        data = contact[:1] + bytes([letter]) + contact[2:]
        if letter in b"ACGR":
            assert decode_whole(data, read_short_contact).type is ContactType(chr(letter))
            assert decode_whole(data, read_short_link) == decode_whole(data, read_short_contact)
        else:
            with pytest.raises(WireError):
                decode_whole(data, read_short_contact)
    invitation = bytes.fromhex(SHORT[0]["binary"])
    with pytest.raises(WireError):
        decode_whole(invitation, read_short_contact)


SERVER = Server((Host("a.b"), Host("c.onion")), "5223", b"hash")
CONTACT = ShortContact(ContactType.GROUP, SERVER, b"key")
INVITATION = ShortInvitation(SERVER, b"id", b"key")


def test_forms_of_short_links() -> None:
    simplex = LinkScheme.SIMPLEX
    assert CONTACT.text == "https://a.b/g#a2V5?h=c.onion&p=5223&c=aGFzaA"
    assert replace(CONTACT, scheme=simplex).text == "simplex:/g#a2V5?h=a.b%2Cc.onion&p=5223&c=aGFzaA"
    assert INVITATION.text == "https://a.b/i#aWQ/a2V5?h=c.onion&p=5223&c=aGFzaA"
    bare = replace(INVITATION, server=Server((Host("::1"),), "", b""))
    assert bare.text == "https://::1/i#aWQ/a2V5"
    assert short_link_from_text("https://[::1]/i#aWQ/a2V5") == bare
    assert short_link_from_text("simplex:/G/#a2V5?c=aGFzaA==;x=1&p=5223&h=a.b,c.onion") == replace(
        CONTACT, scheme=simplex
    )


def test_ports_of_short_links() -> None:
    assert short_link_from_text("https://a/a#AAAA?p=65535").server.port == "65535"
    assert short_link_from_text("https://a/a#AAAA?p=65536").server.port == "0"
    assert short_link_from_text("https://a/a#AAAA?p=070000").server.port == "4464"
    for port in ("65536", "x", "-1"):
        with pytest.raises(WireError):
            _ = replace(CONTACT, server=replace(SERVER, port=port)).text


@pytest.mark.parametrize(
    "text",
    [
        "https://a/a#AAAA?p=",
        "https://a/a#AAAA?p=1x",
        "https://a/a#AAAA?p=" + "1" * 21,
        "https://a/a#AAAA?c=",
        "https://a/a#AAAA?c=A",
        "https://a/a#AAAA?h=,",
        "https://a/a#AAAA?h=a:b",
        "https://a/a#AAAA&p=1",
        "https://a/a#AAAA?p=1 ",
        "https://a/a#AAAA\n",
        "https://a/a#A",
        "https://a/a#AA=",
        "https://a/aa#AAAA",
        "https://a/a//#AAAA",
        "https://a,b/a#AAAA",
        "https:///a#AAAA",
        "https://a/i#AAAA/",
        "https://a/i#/AAAA",
        "https://a/i#AAAA/AAAA/AAAA",
        "simplex://a#AAAA",
        "Simplex:/a#AAAA?h=a",
    ],
)
def test_texts_that_are_not_short_links(text: str) -> None:
    with pytest.raises(WireError):
        link_from_text(text)


def test_short_links_need_their_keys_in_text() -> None:
    for link in (
        replace(CONTACT, link_key=b""),
        replace(INVITATION, link_key=b""),
        replace(INVITATION, link_id=b""),
    ):
        with pytest.raises(WireError):
            _ = link.text


def test_shortening_drops_only_what_a_preset_restores() -> None:
    preset = Server((Host("a.b"), Host("c.onion")), "", b"hash")
    only = Server((Host("a.b"),), "", b"")
    for link in (CONTACT, INVITATION):
        assert shortened(link, [preset]).server == only
        assert restored(shortened(link, [preset]), [preset]).server == preset
        for server in (
            replace(SERVER, port="1234"),
            replace(SERVER, key_hash=b"x"),
            replace(SERVER, hosts=(Host("a.b"), Host("x.y"))),
            replace(SERVER, hosts=(Host("c.onion"), Host("a.b"))),
        ):
            kept = replace(link, server=server)
            assert shortened(kept, [preset]) == kept
        with_port = replace(preset, port="1234")
        assert shortened(link, [with_port]) == link
        assert shortened(link, []) == link
        two = replace(only, hosts=preset.hosts)
        for server in (replace(only, port="1"), replace(only, key_hash=b"x"), two, SERVER):
            kept = replace(link, server=server)
            assert restored(kept, [preset]) == kept
        unknown = replace(link, server=replace(only, hosts=(Host("x.y"),)))
        assert restored(unknown, [preset]) == unknown


@given(some.text_links)
def test_full_texts_round_trip(link: FullLink) -> None:
    assert link_from_text(link.text) == link


@given(some.binary_links)
def test_full_links_round_trip(link: FullLink) -> None:
    assert decode_whole(encode(link, write_full_link), read_full_link) == link


@given(some.short_links(some.schemes))
def test_short_texts_round_trip(link: ShortLink) -> None:
    assert link_from_text(link.text) == link


@given(some.short_links(some.binary_scheme))
def test_short_links_round_trip(link: ShortLink) -> None:
    assert decode_whole(encode(link, write_short_link), read_short_link) == link


@given(
    st.sampled_from([GOOD_INVITATION, GOOD_SHORT]), st.text(max_size=30), st.floats(0, 1), st.integers(0, 9)
)
def test_any_text_is_a_link_or_a_wire_error(good: str, text: str, share: float, dropped: int) -> None:
    place = int(share * len(good))
    for hostile in (text, good[:place] + text + good[place + dropped :]):
        with contextlib.suppress(WireError):
            link_from_text(hostile)


def read_text(data: bytes) -> object:
    return link_from_text(data.decode("latin-1"))


@pytest.mark.parametrize("vector", [*FULL, *SHORT, *TEXTS], ids=named)
def test_texts_cut_and_changed(vector: dict[str, Any]) -> None:
    text = vector["text"].encode()
    truncated_everywhere(read_text, text)
    changed_everywhere(read_text, text, vector["name"])


@pytest.mark.parametrize("vector", [*FULL, *SHORT], ids=named)
def test_bytes_cut_and_changed(vector: dict[str, Any]) -> None:
    read = read_full_link if vector["kind"] == "full_link" else read_short_link
    data = bytes.fromhex(vector["binary"])
    assert truncated_everywhere(lambda cut: decode_whole(cut, read), data) == 0
    changed_everywhere(lambda changed: decode_whole(changed, read), data, vector["name"])


@pytest.mark.parametrize("repeated", ["&v=1", ";", "&", "%2C", "%", "+", "=", "/", "?", "#", "a,", "a", ":1"])
@pytest.mark.parametrize(
    "start",
    [
        GOOD_INVITATION,
        GOOD_SHORT,
        "simplex:/contact#/?v=2&smp=",
        "https://",
        "https://a/i#",
        "simplex:/a#AAAA?h=",
    ],
)
def test_cost_of_long_texts_is_linear(repeated: str, start: str) -> None:
    def text(count: int) -> bytes:
        return (start + repeated * count).encode()

    assert calls_made(read_text, text(4_000)) <= 2.2 * calls_made(read_text, text(2_000)) + 100
    with contextlib.suppress(WireError):
        read_text(text(100_000))
