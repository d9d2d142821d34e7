"""Short-link data: derivations, blobs, and what must be refused, against the reference and by hand."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.link_data import (
    LinkDataError,
    VerifiedLinkData,
    blob_key,
    check_owners,
    contact_link_secrets,
    invitation_link_secret,
    link_key_of,
    open_blob,
    resolve_link_data,
    seal_fixed_data,
    seal_user_data,
    sign_fixed_data,
    sign_user_data,
    verify_link_data,
)
from blindpost.wire.addresses import Host, Server
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.links.data import (
    ContactLinkData,
    FixedLinkData,
    InvitationLinkData,
    OwnerAuth,
    Signed,
    owner_signed_bytes,
    read_fixed_link_data,
    read_signed,
    read_user_link_data,
)
from blindpost.wire.links.full import ContactLink, InvitationLink, full_link_from_text
from blindpost.wire.links.short import ContactType, ShortContact, ShortInvitation, ShortLink
from blindpost.wire.primitives import decode_whole
from blindpost.wire.queue_addresses import QueueUri
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.versions import VersionRange
from tests.support.wire.long_values import ramp, same
from tests.support.wire.vectors import named, vector_file, vectors

DERIVED = vectors("links.json", "link_kdf")
LINK_DATA = vectors("links.json", "link_data")
OWNERS = vectors("links.json", "owner_auth")
MATRIX = vector_file("agent_transcripts/short_link_data_matrix.json")["cases"]
GOLDEN = {vector["name"]: vector for vector in vectors("doc_golden.json")}
VERSIONS = VersionRange(2, 7)


def private(seed: bytes) -> PrivateKey:
    return PrivateKey(Algorithm.ED25519, seed)


def signing_key(value: dict[str, Any]) -> PrivateKey:
    return private(bytes.fromhex(value["private"]))


@contextlib.contextmanager
def refused(reason: str) -> Iterator[None]:
    """The block must be refused with A_LINK for this reason."""
    with pytest.raises(LinkDataError) as caught:
        yield
    assert str(caught.value) == reason


def short_link(kind: str, server: Server, link_key: bytes) -> ShortLink:
    if kind == "contact":
        return ShortContact(ContactType.CONTACT, server, link_key)
    return ShortInvitation(server, b"link id", link_key)


@pytest.mark.parametrize("vector", DERIVED, ids=lambda vector: vector["linkKey"][:8])
def test_what_follows_from_a_link_key(vector: dict[str, Any]) -> None:
    link_key = bytes.fromhex(vector["linkKey"])
    link_id, key = contact_link_secrets(link_key)
    assert link_id.hex() == vector["contact_linkId"]
    assert key.hex() == vector["contact_key"]
    assert invitation_link_secret(link_key).hex() == vector["invitation_key"]
    server = Server((Host("a"),), "", b"")
    assert blob_key(short_link("contact", server, link_key)) == key
    assert blob_key(short_link("invitation", server, link_key)).hex() == vector["invitation_key"]


def reason_of(result: str) -> str | None:
    """The text of A_LINK, or None for A_MESSAGE."""
    found = re.search(r'A_LINK \{linkErr = "(.*?)"', result)
    if found is None:
        assert "A_MESSAGE" in result
        return None
    return found[1]


@pytest.mark.parametrize("vector", LINK_DATA, ids=named)
def test_link_data_of_the_reference(vector: dict[str, Any]) -> None:
    fixed = decode_whole(bytes.fromhex(vector["signed_fixedData"]), read_signed)
    user = decode_whole(bytes.fromhex(vector["signed_userData"]), read_signed)
    assert user.signature == signing_key(vector["user_data_signer"]).sign(user.content)
    key = bytes.fromhex(vector["key"])
    blobs = []
    for seal, signed, name in ((seal_fixed_data, fixed, "fixed"), (seal_user_data, user, "user")):
        blob = seal(key, signed, bytes.fromhex(vector[f"{name}_nonce"]).ljust)
        assert same(blob, vector[f"encrypted_{name}"])
        assert open_blob(key, blob) == signed
        blobs.append(blob)
    content = decode_whole(fixed.content, read_fixed_link_data)
    queue = content.link.queues[0].address
    link = short_link(vector["mode"], queue.server, bytes.fromhex(vector["linkKey"]))
    if vector["linkId"] is not None and vector["mode"] == "contact":
        assert contact_link_secrets(link.link_key)[0].hex() == vector["linkId"]
    assert blob_key(link) == key
    if "error" in vector["decrypted"]:
        reason = reason_of(vector["decrypted"]["error"])
        assert reason is not None
        with refused(reason):
            resolve_link_data(link, queue.sender_id, *blobs)
        return
    assert link_key_of(fixed.content) == link.link_key
    root = signing_key(vector["root_key"])
    assert sign_fixed_data(root, content) == fixed
    read_user = decode_whole(user.content, read_user_link_data)
    assert sign_user_data(signing_key(vector["user_data_signer"]), root.public, read_user) == user
    assert resolve_link_data(link, queue.sender_id, *blobs) == VerifiedLinkData(content, read_user)


@pytest.mark.parametrize("vector", OWNERS, ids=named)
def test_owners_of_the_reference(vector: dict[str, Any]) -> None:
    owner_key = PublicKey.from_spki(bytes.fromhex(vector["ownerKey"]))
    authorized = owner_signed_bytes(bytes.fromhex(vector["ownerId"]), owner_key)
    assert signing_key(vector["signer"]).sign(authorized).hex() == vector["signature"]


@pytest.mark.parametrize("case", MATRIX, ids=lambda case: case["case"])
def test_data_that_the_reference_accepted_or_refused(case: dict[str, Any]) -> None:
    key_hash = bytes.fromhex("d852f803c957f438f891d53e4ab9820b662c44aa57a7f0333a82602ddca45bc2")
    server = Server((Host("127.0.0.1"),), "15223", key_hash)
    kind = {"contact": "contact", "inv": "invitation"}[case["kind"]]
    link = short_link(kind, server, bytes.fromhex(case["link_key"]))
    key = blob_key(link)
    assert key.hex() == case["key"]
    sender_id = bytes.fromhex(case["router_sender_id"])
    fixed = decode_whole(bytes.fromhex(case["fixed_plain"]), read_signed)
    user = decode_whole(bytes.fromhex(case["user_plain"]), read_signed)
    blobs = seal_fixed_data(key, fixed, bytes), seal_user_data(key, user, bytes)
    if case["accepted"]:
        data = resolve_link_data(link, sender_id, *blobs)
        assert data.fixed.link.queues[0].address.server == server
        assert data.fixed.link.queues[0].address.sender_id == sender_id
        return
    reason = reason_of(case["reference_result"])
    if reason is None:
        with pytest.raises(WireError) as caught:
            resolve_link_data(link, sender_id, *blobs)
        assert not isinstance(caught.value, CryptoError)
        return
    with refused(reason):
        resolve_link_data(link, sender_id, *blobs)


ROOT = private(bytes([9]) * 32)


def golden_queue() -> QueueUri:
    queue = QueueUri.from_text(GOLDEN["queue URI text"]["text"])
    return replace(queue, address=replace(queue.address, mode=QueueMode.CONTACT))


FIXED = FixedLinkData(VERSIONS, ROOT.public, ContactLink(VERSIONS, (golden_queue(),)), b"entity")
USER = ContactLinkData(VERSIONS, True, (), (), b"user data")
SENDER_ID = golden_queue().address.sender_id


def test_the_document_s_contact_link() -> None:
    fixed, user = sign_fixed_data(ROOT, FIXED), sign_user_data(ROOT, ROOT.public, USER)
    link_key = link_key_of(fixed.content)
    link_id, key = contact_link_secrets(link_key)
    assert link_key.hex() == GOLDEN["link data linkKey"]["bytes"]
    assert link_id.hex() == GOLDEN["link data linkId"]["bytes"]
    assert key.hex() == GOLDEN["link data key"]["bytes"]
    assert bytes(user.content).hex() == GOLDEN["user data"]["bytes"]
    assert same(seal_fixed_data(key, fixed, bytes), GOLDEN["fixed blob, zero nonce"]["bytes"])
    assert same(seal_user_data(key, user, bytes), GOLDEN["user blob, zero nonce"]["bytes"])
    link = ShortContact(ContactType.CONTACT, golden_queue().address.server, link_key)
    assert link.text == GOLDEN["contact short link"]["text"]
    link_id, key = contact_link_secrets(ramp(0, 32))
    assert link_id.hex() == GOLDEN["contact linkId of 00..1f"]["bytes"]
    assert key.hex() == GOLDEN["contact key of 00..1f"]["bytes"]
    assert invitation_link_secret(ramp(0, 32)).hex() == GOLDEN["invitation key of 00..1f"]["bytes"]


def made(
    fixed: FixedLinkData = FIXED, user: ContactLinkData = USER
) -> tuple[ShortContact, Signed, Signed, bytes]:
    """A contact link, its signed data and its key."""
    signed_fixed = sign_fixed_data(ROOT, fixed)
    server = fixed.link.queues[0].address.server
    link = ShortContact(ContactType.CONTACT, server, link_key_of(signed_fixed.content))
    return link, signed_fixed, sign_user_data(ROOT, ROOT.public, user), blob_key(link)


@pytest.mark.claim("CON-09")
def test_fixed_data_that_the_link_key_does_not_prove_is_refused() -> None:
    """A router returns its own correctly signed fixed data, or changes a byte of the true data."""
    link, fixed, user, key = made()
    blobs = seal_fixed_data(key, fixed, bytes), seal_user_data(key, user, bytes)
    assert resolve_link_data(link, SENDER_ID, *blobs) == VerifiedLinkData(FIXED, USER)
    router = private(bytes([1]) * 32)
    theirs = sign_fixed_data(router, replace(FIXED, root_key=router.public))
    their_user = sign_user_data(router, router.public, USER)
    with refused("link data hash"):
        resolve_link_data(
            link, SENDER_ID, seal_fixed_data(key, theirs, bytes), seal_user_data(key, their_user, bytes)
        )
    other_link = sign_fixed_data(ROOT, replace(FIXED, entity_id=b"another link of the same owner"))
    with refused("link data hash"):
        resolve_link_data(link, SENDER_ID, seal_fixed_data(key, other_link, bytes), blobs[1])
    for place in range(len(fixed.content)):
        changed = bytearray(fixed.content)
        changed[place] ^= 1
        with pytest.raises(WireError):
            verify_link_data(link, Signed(fixed.signature, bytes(changed)), user)
    for longer in (b"\x00", b"later"):
        with refused("link data hash"):
            verify_link_data(link, Signed(fixed.signature, bytes(fixed.content) + longer), user)


def test_blobs_that_do_not_open() -> None:
    link, fixed, user, key = made()
    blobs = seal_fixed_data(key, fixed, bytes), seal_user_data(key, user, bytes)
    assert [len(blob) for blob in blobs] == [2048, 13824]
    for place in (0, 23, 24, 39, 40, 2047):
        changed = bytearray(blobs[0])
        changed[place] ^= 1
        with pytest.raises(CryptoError):
            resolve_link_data(link, SENDER_ID, bytes(changed), blobs[1])
    for count in (0, 23, 24, 39, 2047):
        with pytest.raises(WireError):
            resolve_link_data(link, SENDER_ID, blobs[0][:count], blobs[1])
        with pytest.raises(WireError):
            resolve_link_data(link, SENDER_ID, blobs[0], blobs[1][:count])
    with pytest.raises(CryptoError):
        open_blob(bytes(32), blobs[0])


def test_nonces_come_from_the_given_entropy() -> None:
    _, fixed, user, key = made()
    nonce = ramp(1, 24)
    for blob in (seal_fixed_data(key, fixed, lambda _: nonce), seal_user_data(key, user, lambda _: nonce)):
        assert blob[:24] == nonce
    assert seal_fixed_data(key, fixed, lambda _: nonce) != seal_fixed_data(key, fixed, bytes)


def test_data_that_does_not_fit() -> None:
    _, fixed, _, key = made()
    room = 13784 - 2 - 65
    empty = len(sign_user_data(ROOT, ROOT.public, replace(USER, user_data=bytes(300))).content) - 300
    largest = sign_user_data(ROOT, ROOT.public, replace(USER, user_data=bytes(room - empty)))
    assert open_blob(key, seal_user_data(key, largest, bytes)) == largest
    larger = sign_user_data(ROOT, ROOT.public, replace(USER, user_data=bytes(room - empty + 1)))
    with pytest.raises(WireError):
        seal_user_data(key, larger, bytes)
    with pytest.raises(WireError):
        seal_fixed_data(key, Signed(fixed.signature, bytes(2008)), bytes)


def test_the_link_says_where_the_router_is() -> None:
    link, fixed, user, key = made()
    blobs = seal_fixed_data(key, fixed, bytes), seal_user_data(key, user, bytes)
    hosts = link.server.hosts
    for server in (
        replace(link.server, port="443"),
        replace(link.server, key_hash=b"other"),
        replace(link.server, hosts=hosts[:1]),
        replace(link.server, hosts=hosts[1:]),
        replace(link.server, hosts=(hosts[1], Host("x.y"))),
    ):
        found = resolve_link_data(replace(link, server=server), SENDER_ID, *blobs)
        assert found.fixed.link.queues[0].address.server == server
        assert found.fixed.entity_id == b"entity"
    for server in (
        replace(link.server, hosts=(Host("x.y"),)),
        replace(link.server, hosts=(Host("x.y"), *hosts)),
    ):
        with refused("different address"):
            resolve_link_data(replace(link, server=server), SENDER_ID, *blobs)
    with refused("different address"):
        resolve_link_data(link, SENDER_ID[:-1], *blobs)


def test_only_the_first_queue_is_moved_to_the_link_s_router() -> None:
    queue = golden_queue()
    second = replace(queue, address=replace(queue.address, sender_id=b"second"))
    link, fixed, user, key = made(replace(FIXED, link=ContactLink(VERSIONS, (queue, second), "data")))
    elsewhere = replace(link, server=replace(link.server, port="443"))
    blobs = seal_fixed_data(key, fixed, bytes), seal_user_data(key, user, bytes)
    found = resolve_link_data(elsewhere, SENDER_ID, *blobs).fixed.link
    assert found.queues[0].address.server == elsewhere.server
    assert found.queues[1] == second
    assert found.client_data == "data"


def owner(seed: int, signer: PrivateKey, owner_id: bytes | None = None) -> OwnerAuth:
    named_id = bytes([seed]) if owner_id is None else owner_id
    owner_key = private(bytes([seed]) * 32).public
    return OwnerAuth(named_id, owner_key, signer.sign(owner_signed_bytes(named_id, owner_key)))


SECOND, THIRD = private(bytes([2]) * 32), private(bytes([3]) * 32)


@pytest.mark.parametrize(
    ("owners", "reason"),
    [
        ([], None),
        ([owner(2, ROOT), owner(3, SECOND), owner(4, SECOND), owner(5, ROOT)], None),
        ([owner(9, ROOT)], "owner key for ID CQ matches root key"),
        ([owner(2, ROOT), owner(2, ROOT, b"x")], "duplicate owner key or ID eA"),
        ([owner(2, ROOT, b"x"), owner(3, ROOT, b"x")], "duplicate owner key or ID eA"),
        ([owner(3, SECOND), owner(2, ROOT)], "invalid authorization of owner ID Aw"),
        ([owner(2, SECOND)], "invalid authorization of owner ID Ag"),
        ([replace(owner(2, ROOT), owner_id=b"x")], "invalid authorization of owner ID eA"),
        ([replace(owner(2, ROOT), owner_key=THIRD.public)], "invalid authorization of owner ID Ag"),
    ],
)
def test_lists_of_owners(owners: list[OwnerAuth], reason: str | None) -> None:
    user = replace(USER, owners=tuple(owners))
    if reason is None:
        check_owners(ROOT.public, owners)
        link, fixed, signed, _ = made(user=user)
        assert verify_link_data(link, fixed, signed).user == user
        return
    with refused(reason):
        check_owners(ROOT.public, owners)
    with refused(reason):
        sign_user_data(ROOT, ROOT.public, user)


def test_who_may_sign_user_data() -> None:
    user = replace(USER, owners=(owner(2, ROOT),))
    link, fixed, _, _ = made(user=user)
    by_owner = sign_user_data(SECOND, ROOT.public, user)
    assert verify_link_data(link, fixed, by_owner).user == user
    with refused("the signer is not an owner of the link"):
        sign_user_data(THIRD, ROOT.public, user)
    with refused("the signer is not an owner of the link"):
        sign_user_data(SECOND, ROOT.public, USER)
    stranger = Signed(THIRD.sign(by_owner.content), by_owner.content)
    with refused("user data signature"):
        verify_link_data(link, fixed, stranger)
    with pytest.raises(CryptoError):
        sign_fixed_data(SECOND, FIXED)


def test_invitations_are_signed_by_their_root_alone() -> None:
    full = full_link_from_text(GOLDEN["invitation text"]["text"])
    assert isinstance(full, InvitationLink)
    data = InvitationLinkData(VERSIONS, b"hello")
    fixed = sign_fixed_data(ROOT, FixedLinkData(VERSIONS, ROOT.public, full))
    user = sign_user_data(ROOT, ROOT.public, data)
    server = full.queues[0].address.server
    link = ShortInvitation(server, b"chosen by the router", link_key_of(fixed.content))
    key = blob_key(link)
    found = resolve_link_data(
        link,
        full.queues[0].address.sender_id,
        seal_fixed_data(key, fixed, bytes),
        seal_user_data(key, user, bytes),
    )
    assert found.user == data
    assert found.fixed.link == full
    with refused("user data signature"):
        verify_link_data(link, fixed, Signed(SECOND.sign(user.content), user.content))
    with refused("the signer is not an owner of the link"):
        sign_user_data(SECOND, ROOT.public, data)
    with refused("link data signature"):
        verify_link_data(link, Signed(SECOND.sign(fixed.content), fixed.content), user)


def test_data_of_the_other_kind_is_refused() -> None:
    full = full_link_from_text(GOLDEN["invitation text"]["text"])
    contact_link, contact_fixed, contact_user, _ = made()
    invitation_fixed = sign_fixed_data(ROOT, FixedLinkData(VERSIONS, ROOT.public, full))
    invitation_user = sign_user_data(ROOT, ROOT.public, InvitationLinkData(VERSIONS, b""))
    server = contact_link.server
    for kind, fixed, user in (
        ("contact", contact_fixed, invitation_user),
        ("contact", invitation_fixed, contact_user),
        ("contact", invitation_fixed, invitation_user),
        ("invitation", invitation_fixed, contact_user),
        ("invitation", contact_fixed, invitation_user),
        ("invitation", contact_fixed, contact_user),
    ):
        with pytest.raises(WireError) as caught:
            verify_link_data(short_link(kind, server, link_key_of(fixed.content)), fixed, user)
        assert not isinstance(caught.value, CryptoError)
