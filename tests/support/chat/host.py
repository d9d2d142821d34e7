"""The host of a group, by script: it invites, introduces and forwards as the app was recorded to do."""

from __future__ import annotations

from blindpost.agent import (
    ConfirmationReceived,
    Connected,
    Connection,
    ConnEvent,
    ReceiptsReceived,
    Received,
)
from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import read_body, write_body, write_info
from blindpost.chat.codec.groups import GroupInvite, GroupProfile, MemberInfo, MemberRef
from blindpost.chat.codec.profiles import Profile
from blindpost.chat.events import Asked, ContactConnected, GroupEntered, GroupOffered
from blindpost.testing import Peer, Person
from blindpost.wire.versions import VersionRange

VERSIONS = VersionRange(1, 19)
HOST_ID = b"host-member-id"


class Host:
    """Owns a group; members are known by their names."""

    def __init__(self, party: Peer, role: str = "owner") -> None:
        self.party = party
        self.role = role
        self.conns: dict[str, Connection] = {}

    def member_id(self, name: str) -> bytes:
        return f"member {name}".encode()

    def info(self, name: str) -> MemberInfo:
        return MemberInfo(self.member_id(name), "member", Profile(name), VERSIONS)

    async def send(self, conn: Connection, event: e.AnyEvent, msg_id: bytes = b"some id") -> None:
        await conn.send(write_body([e.Message(event, msg_id, VERSIONS)], pq=False))

    async def tell(self, name: str, event: e.AnyEvent, msg_id: bytes = b"some id") -> None:
        await self.send(self.conns[name], event, msg_id)

    async def heard(self, name: str) -> e.AnyEvent:
        """The next thing that a member says to us in the group."""
        while True:
            event = await self.party.expect(ConnEvent, _is_message)
            assert isinstance(event, Received | ReceiptsReceived)
            await event.msg.ack()
            if isinstance(event, Received) and event.conn == self.conns[name]:
                (item,) = read_body(event.msg.body)
                assert isinstance(item, e.Message)
                return item.event

    async def invite(self, person: Person, name: str, role: str = "member") -> GroupOffered:
        """Befriend somebody, and offer the group to them."""
        info = write_info(e.Message(e.ContactRequest(Profile("host")), versions=VERSIONS), pq=True)
        contact = await self.party.agent.join(str(await person.chats.address()), info)
        await person.chats.accept(await person.expect(Asked))
        await self.party.expect(Connected, lambda event: event.conn == contact)
        await person.expect(ContactConnected)
        accepted = write_info(e.Message(e.Accepted(), versions=VERSIONS), pq=False)
        link = await self.party.agent.invite(accepted, pq=False)
        self.conns[name] = link.conn
        sender = MemberRef(HOST_ID, self.role)
        invited = MemberRef(self.member_id(name), role)
        invite = GroupInvite(sender, invited, link.full.text, GroupProfile("team"))
        await self.send(contact, e.GroupInvited(invite))
        return await person.expect(GroupOffered)

    async def admit(self, person: Person, name: str, role: str = "member") -> None:
        """The same, and they enter; older members are introduced to them."""
        older = list(self.conns)
        await person.chats.enter(await self.invite(person, name, role))
        confirmed = await self.party.expect(
            ConfirmationReceived, lambda event: event.conn == self.conns[name]
        )
        (item,) = read_body(confirmed.confirmation.info)
        assert isinstance(item, e.Message)
        assert item.event == e.GroupAccepted(self.member_id(name))
        await self.party.expect(Connected, lambda event: event.conn == self.conns[name])
        await person.expect(GroupEntered)
        for other in older:
            await self.tell(other, e.MemberNew(self.info(name)))
            await self.tell(name, e.MemberIntroduced(self.info(other)))

    async def invite_bot(self, link: str, name: str, role: str) -> None:
        """Befriend a bot at its address, and take it in: it enters by itself."""
        info = write_info(e.Message(e.ContactRequest(Profile("host")), versions=VERSIONS), pq=True)
        contact = await self.party.agent.join(link, info)
        await self.party.expect(Connected, lambda event: event.conn == contact)
        accepted = write_info(e.Message(e.Accepted(), versions=VERSIONS), pq=False)
        created = await self.party.agent.invite(accepted, pq=False)
        self.conns[name] = created.conn
        sender, invited = MemberRef(HOST_ID, self.role), MemberRef(self.member_id(name), role)
        invite = GroupInvite(sender, invited, created.full.text, GroupProfile("team"))
        await self.send(contact, e.GroupInvited(invite))
        await self.party.expect(Connected, lambda event: event.conn == created.conn)


def _is_message(event: ConnEvent) -> bool:
    return isinstance(event, Received | ReceiptsReceived)
