"""What waits during a handshake: confirmations, requests to connect, and keys given to short links."""

from __future__ import annotations

import hashlib

from blindpost.agent.model import ConnId
from blindpost.agent.store.database import Db
from blindpost.agent.store.servers import server_key, stored_server
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.addresses import Server
from blindpost.wire.frozen import dataclass
from blindpost.wire.keys import PublicKey
from blindpost.wire.links.full import InvitationLink, full_link_from_text
from blindpost.wire.primitives import Reader, Writer, decode_whole, encode
from blindpost.wire.queue_addresses import QueueInfo, read_queue_info, write_queue_info
from blindpost.wire.value import Value

# Confirmations


@dataclass(frozen=True, slots=True, repr=False)
class StoredConfirmation(Value):
    """That somebody joined: the key to secure our queue with, if we must, and the queues to reply to."""

    confirmation_id: str
    conn_id: ConnId
    sender_key: PublicKey | None
    e2e_key: PublicKey
    info: bytes
    reply_queues: tuple[QueueInfo, ...]
    client_version: int
    own_info: bytes | None = None


def _write_queues(writer: Writer, queues: tuple[QueueInfo, ...]) -> None:
    writer.list1(queues, _write_sized)


def _write_sized(writer: Writer, info: QueueInfo) -> None:
    writer.large(encode(info, write_queue_info))


def _read_queues(reader: Reader) -> tuple[QueueInfo, ...]:
    return reader.list1(_read_sized)


def _read_sized(reader: Reader) -> QueueInfo:
    return decode_whole(reader.large(), read_queue_info)


def insert_confirmation(db: Db, confirmation: StoredConfirmation) -> None:
    key, name = confirmation.sender_key, confirmation.confirmation_id

    def sealed(value: bytes, column: str) -> bytes:
        return db.vault.seal(value, f"conn_confirmations.{column}", name)

    db.sql.execute(
        "INSERT INTO conn_confirmations (confirmation_id, conn_id, sender_key, e2e_snd_pub_key,"
        " sender_conn_info, smp_reply_queues, smp_client_version) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            name,
            confirmation.conn_id,
            None if key is None else sealed(key.spki, "sender_key"),
            sealed(confirmation.e2e_key.spki, "e2e_snd_pub_key"),
            sealed(confirmation.info, "sender_conn_info"),
            sealed(encode(confirmation.reply_queues, _write_queues), "smp_reply_queues"),
            confirmation.client_version,
        ),
    )


def find_confirmation(
    db: Db, conn_id: ConnId, confirmation_id: str | None = None, *, accepted: bool = False
) -> StoredConfirmation | None:
    """The named confirmation, or the one that was accepted."""
    query = (
        "SELECT confirmation_id, sender_key, e2e_snd_pub_key, sender_conn_info, smp_reply_queues,"
        " smp_client_version, own_conn_info FROM conn_confirmations"
        " WHERE conn_id = :conn AND (:name IS NULL OR confirmation_id = :name)"
        " AND accepted = :accepted LIMIT 1"
    )
    asked = {"conn": conn_id, "name": confirmation_id, "accepted": int(accepted)}
    row = db.sql.execute(query, asked).fetchone()
    if row is None:
        return None
    name = row[0]

    def opened(value: bytes, column: str) -> bytes:
        return db.vault.open(value, f"conn_confirmations.{column}", name)

    return StoredConfirmation(
        confirmation_id=name,
        conn_id=conn_id,
        sender_key=None if row[1] is None else PublicKey.from_spki(opened(row[1], "sender_key")),
        e2e_key=PublicKey.from_spki(opened(row[2], "e2e_snd_pub_key")),
        info=opened(row[3], "sender_conn_info"),
        reply_queues=decode_whole(opened(row[4], "smp_reply_queues"), _read_queues),
        client_version=row[5],
        own_info=None if row[6] is None else opened(row[6], "own_conn_info"),
    )


def accept_confirmation(db: Db, confirmation_id: str, own_info: bytes) -> None:
    db.sql.execute(
        "UPDATE conn_confirmations SET accepted = 1, own_conn_info = ? WHERE confirmation_id = ?",
        (db.vault.seal(own_info, "conn_confirmations.own_conn_info", confirmation_id), confirmation_id),
    )


def delete_confirmations(db: Db, conn_id: ConnId) -> None:
    db.sql.execute("DELETE FROM conn_confirmations WHERE conn_id = ?", (conn_id,))


# Requests to connect to an address


@dataclass(frozen=True, slots=True, repr=False)
class StoredInvitation(Value):
    """A request that came to a contact address; accepting it joins its invitation."""

    invitation_id: str
    contact_conn_id: ConnId | None
    link: InvitationLink
    info: bytes


def insert_invitation(db: Db, invitation: StoredInvitation, now: int) -> None:
    seal, name = db.vault.seal, invitation.invitation_id
    db.sql.execute(
        "INSERT INTO conn_invitations (invitation_id, contact_conn_id, cr_invitation, link_hash,"
        " recipient_conn_info, created_at) VALUES (?, ?, ?, ?, ?, ?)",
        (
            name,
            invitation.contact_conn_id,
            seal(invitation.link.text.encode("ascii"), "conn_invitations.cr_invitation", name),
            _link_hash(db, invitation.link),
            seal(invitation.info, "conn_invitations.recipient_conn_info", name),
            now,
        ),
    )


def _link_hash(db: Db, link: InvitationLink) -> bytes:
    digest = hashlib.sha256(link.text.encode("ascii")).digest()
    return db.vault.blind(digest, "conn_invitations.link_hash")


def has_invitation(db: Db, contact_conn_id: ConnId, link: InvitationLink) -> bool:
    """Whether this very request came to the address before, decided on or not."""
    query = "SELECT EXISTS (SELECT 1 FROM conn_invitations WHERE contact_conn_id = ? AND link_hash = ?)"
    return bool(db.sql.execute(query, (contact_conn_id, _link_hash(db, link))).fetchone()[0])


def count_invitations(db: Db, contact_conn_id: ConnId) -> int:
    """How many requests wait at an address."""
    query = "SELECT count(*) FROM conn_invitations WHERE contact_conn_id = ? AND accepted = 0"
    return int(db.sql.execute(query, (contact_conn_id,)).fetchone()[0])


def find_invitation(db: Db, invitation_id: str) -> StoredInvitation | None:
    """A request that was not accepted yet."""
    query = (
        "SELECT contact_conn_id, cr_invitation, recipient_conn_info FROM conn_invitations"
        " WHERE invitation_id = ? AND accepted = 0"
    )
    row = db.sql.execute(query, (invitation_id,)).fetchone()
    if row is None:
        return None
    written = db.vault.open(row[1], "conn_invitations.cr_invitation", invitation_id)
    link = full_link_from_text(written.decode("ascii"))
    assert isinstance(link, InvitationLink)
    info = db.vault.open(row[2], "conn_invitations.recipient_conn_info", invitation_id)
    return StoredInvitation(invitation_id, row[0], link, info)


def invitations_of(db: Db, contact_conn_id: ConnId) -> list[str]:
    """The requests that wait at an address."""
    query = (
        "SELECT invitation_id FROM conn_invitations WHERE contact_conn_id = ? AND accepted = 0"
        " ORDER BY created_at"
    )
    return [found for (found,) in db.sql.execute(query, (contact_conn_id,))]


def set_invitation_accepted(db: Db, invitation_id: str, accepted: bool) -> None:
    db.sql.execute(
        "UPDATE conn_invitations SET accepted = ? WHERE invitation_id = ?", (int(accepted), invitation_id)
    )


def delete_invitation(db: Db, invitation_id: str) -> None:
    db.sql.execute("DELETE FROM conn_invitations WHERE invitation_id = ?", (invitation_id,))


# Short links of invitations that we read


def short_link_key(db: Db, server: Server, link_id: bytes, link_key: bytes, fresh: PrivateKey) -> PrivateKey:
    """The key that was or will be given with LKEY: `fresh`, unless one was given for this id before.

    The router knows the id only. So a link whose key was mistyped can still be read when it is right.
    """
    query = "SELECT snd_private_key FROM inv_short_links WHERE host = ? AND port = ? AND link_id = ?"
    row = db.sql.execute(query, (*server_key(server), link_id)).fetchone()
    if row is not None:
        return _given(db, row[0], server, link_id)
    place = (*server_key(server), link_id)
    sealed_link_key = db.vault.seal(link_key, "inv_short_links.link_key", *place)
    sealed_key = db.vault.seal(fresh.pkcs8, "inv_short_links.snd_private_key", *place)
    db.sql.execute(
        "INSERT INTO inv_short_links (host, port, server_key_hash, link_id, link_key, snd_private_key)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (*stored_server(db, server), link_id, sealed_link_key, sealed_key),
    )
    return fresh


def set_short_link_sender(db: Db, server: Server, link_id: bytes, snd_id: bytes) -> None:
    db.sql.execute(
        "UPDATE inv_short_links SET snd_id = ? WHERE host = ? AND port = ? AND link_id = ?",
        (snd_id, *server_key(server), link_id),
    )


def given_key(db: Db, server: Server, snd_id: bytes) -> PrivateKey | None:
    """The key that secures a queue since its short link was read."""
    query = "SELECT snd_private_key, link_id FROM inv_short_links WHERE host = ? AND port = ? AND snd_id = ?"
    row = db.sql.execute(query, (*server_key(server), snd_id)).fetchone()
    return None if row is None else _given(db, row[0], server, row[1])


def _given(db: Db, stored: bytes, server: Server, link_id: bytes) -> PrivateKey:
    place = (*server_key(server), link_id)
    return PrivateKey.from_pkcs8(db.vault.open(stored, "inv_short_links.snd_private_key", *place))


def forget_short_link(db: Db, server: Server, snd_id: bytes) -> None:
    db.sql.execute(
        "DELETE FROM inv_short_links WHERE host = ? AND port = ? AND snd_id = ?",
        (*server_key(server), snd_id),
    )
