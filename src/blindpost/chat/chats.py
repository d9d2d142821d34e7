"""Chats above an agent: contacts and groups that a person at a phone would recognise.

async with Agent.open("ada.db", servers=["smp://..."]) as agent:
    chats = Chats(agent, Profile("Ada"))
    print(await chats.address())
    async for event in chats.events():
        match event:
            case Asked():
                await chats.accept(event)
            case MessageReceived(chat, message):
                await chats.say(chat, message.text)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice

from blindpost.agent import (
    Agent,
    AgentError,
    AgentFailed,
    ConfirmationReceived,
    Connected,
    Connection,
    ConnError,
    ContactRequest,
    ContactRequested,
    CreatedLink,
    CriticalError,
    Event,
    Failed,
    InactiveError,
    InfoReceived,
    InternalError,
    LinkCreated,
    OutOfStepError,
    PreparedLink,
    RatchetSync,
    ReceiptsReceived,
    ReceiptStatus,
    Received,
    SendFailed,
    SendsFailed,
    StoreFailedError,
    SyncState,
    Transaction,
)
from blindpost.chat import book, grouping, holding, receiving
from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import Item, read_body, read_link_data, write_info, write_link_data
from blindpost.chat.codec.content import Content
from blindpost.chat.codec.profiles import LinkProfile, Profile
from blindpost.chat.codec.rules import wants_receipt
from blindpost.chat.drafts import ID_SIZE, Draft
from blindpost.chat.events import (
    AgentNews,
    Asked,
    ChatEvent,
    Delivered,
    GroupEntered,
    GroupOffered,
    Trouble,
)
from blindpost.chat.model import Contact, ContactState, Conversation, Group
from blindpost.chat.notices import Notice, connected, notice_bytes, notice_from, notice_key
from blindpost.chat.ourselves import Ourselves
from blindpost.chat.presets import complete
from blindpost.crypto.entropy import system_entropy
from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.links.full import ContactLink

log = logging.getLogger(__name__)

UNFINISHED_S = 30 * 86_400
UNFINISHED_AT_ONCE = 100
STRANGER = Profile("somebody")
"""For somebody whose name is not known yet."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Something that happened, to be handled and acknowledged in one transaction."""

    key: str
    """The conversation that it belongs to: units of one conversation are taken in order."""
    events: tuple[ChatEvent, ...]
    _chats: Chats = field(repr=False)
    _settle: Draft = field(repr=False)

    async def done(self, draft: Draft | None = None) -> None:
        """It was handled: `draft` is committed together with the acknowledgement, or neither is."""
        whole = self._chats.draft()
        if draft is not None:
            whole.extend(draft)
        whole.extend(self._settle)
        await self._chats.commit(whole)


class Chats:
    """One profile, its contacts and groups, on top of an open agent."""

    def __init__(self, agent: Agent, profile: Profile, *, now: Callable[[], float] = time.time) -> None:
        self.agent = agent
        self._now = now
        self._ourselves = Ourselves(agent, profile, now)

    @property
    def profile(self) -> Profile:
        return self._ourselves.profile

    def set_profile(self, profile: Profile) -> None:
        """Change our profile; each contact gets it before our next message to them."""
        self._ourselves.set_profile(profile)

    # Who is there

    def contacts(self, *, after: str = "") -> Iterator[Contact]:
        """All contacts in order of their ids, starting after `after`; including those who left."""
        return book.contacts(self.agent.records, after)

    def contact(self, contact_id: str) -> Contact | None:
        return book.find_contact(self.agent.records, contact_id)

    def groups(self) -> Iterator[Group]:
        return book.groups(self.agent.records)

    def group(self, group_id: str) -> Group | None:
        return book.find_group(self.agent.records, group_id)

    # Links

    async def address(self, message: str | None = None) -> CreatedLink:
        """The link for anybody, made once; it shows our profile and `message` before anybody connects."""
        data = self._link_data(message)
        if self.address_id is None:
            return await self._make_address(data)
        conn, mark = self.agent.connection(self.address_id), hashlib.sha256(data).digest()
        if self.agent.records.get(book.OURSELVES, "link") == mark:
            return conn.link
        created = await conn.set_link_data(data)
        await self.agent.transact(lambda tx: tx.put(book.OURSELVES, "link", mark))
        return created

    @property
    def link(self) -> CreatedLink | None:
        """The link for anybody, if there is one."""
        return None if self.address_id is None else self.agent.connection(self.address_id).link

    async def new_address(self, message: str | None = None) -> CreatedLink:
        """Another link for anybody, in place of one that its router lost or that too many know. Contacts
        stay; if there can be no other, so does the old one."""
        created = await self._make_address(self._link_data(message))
        await self._bury()
        return created

    @property
    def address_id(self) -> str | None:
        """The connection behind the link for anybody."""
        found = self.agent.records.get(book.OURSELVES, "address")
        return None if found is None else found.decode()

    def _link_data(self, message: str | None) -> bytes:
        content = None if message is None else Content(message)
        return write_link_data(LinkProfile(self.profile, content))

    async def _make_address(self, data: bytes) -> CreatedLink:
        """If we crash meanwhile, the same one is made next time."""
        stored = self.agent.records.get(book.OURSELVES, "prepared")
        prepared = self.agent.prepare_address() if stored is None else PreparedLink.load(stored)
        await self.agent.transact(lambda tx: tx.put(book.OURSELVES, "prepared", prepared.dump()))
        created, old = await self.agent.create_address(prepared, data), self.address_id

        def remember(tx: Transaction) -> None:
            tx.put(book.OURSELVES, "address", created.conn.id.encode())
            tx.put(book.OURSELVES, "link", hashlib.sha256(data).digest())
            tx.delete(book.OURSELVES, "prepared")
            if old is not None:
                tx.put(book.LEFT, old, b"")

        await self.agent.transact(remember)
        return created

    async def invite(self) -> CreatedLink:
        """A link for one contact."""
        info = self._ourselves.info
        created = await self.agent.invite(info, user_data=write_link_data(LinkProfile(self.profile)))
        await self._begin(created.conn)
        return created

    async def look(self, link: str) -> LinkProfile | None:
        """Who is behind a link, if the link says."""
        content = await self.agent.read_link(complete(link))
        try:
            return read_link_data(content.user_data)
        except WireError:
            return None

    async def join(self, link: str, message: str | None = None) -> Contact:
        """Connect by a link of either kind, the app's preset routers included; `message` goes along with a
        request to an address. `ContactConnected` follows."""
        text = complete(link)
        content = await self.agent.read_link(text)
        profile = STRANGER
        with contextlib.suppress(WireError):
            profile = replace(read_link_data(content.user_data).profile, image=None)
        event: e.AnyEvent = e.Info(self.profile)
        if isinstance(content.link, ContactLink):
            said = None if message is None else Content(message)
            msg_id = None if message is None else system_entropy(ID_SIZE)
            event = e.ContactRequest(self.profile, system_entropy(16), msg_id=msg_id, content=said)
        info = write_info(e.Message(event), pq=True)
        reply = self._ourselves.info

        def change(tx: Transaction) -> Contact:
            contact = Contact(tx.join(text, info, reply=reply).id, profile, told=self._ourselves.mark)
            book.save_contact(tx, contact)
            return contact

        return await self.agent.transact(change)

    async def _begin(self, conn: Connection) -> None:
        contact = Contact(conn.id, STRANGER, told=self._ourselves.mark)
        await self.agent.transact(lambda tx: book.save_contact(tx, contact))

    # Doing

    def draft(self) -> Draft:
        """An empty draft: fill it, then `commit` it or give it to a unit."""
        return Draft(self._ourselves)

    async def commit(self, draft: Draft) -> None:
        """Do all of it in one transaction."""
        if not draft.empty:
            await self.agent.transact(draft.apply, *draft.connections)
            await self._bury()

    async def _bury(self) -> None:
        """Delete the connections with those who are gone; if we crash first, or the disk is full, that is
        done after the next commit or start."""
        try:
            for conn_id, _ in list(self.agent.records.scan(book.LEFT)):
                with contextlib.suppress(ConnError):
                    await self.agent.connection(conn_id).delete(wait_delivery=True)
                await self.agent.transact(_forgetting(conn_id))
        except StoreFailedError as error:
            log.error("a connection with somebody who is gone is deleted later: %s", error)

    async def say(self, to: Conversation, text: str) -> tuple[int, ...]:
        """Send one text; returns its numbers, which `Delivered` names."""
        draft = self.draft()
        msg_id = draft.say(to, text)
        await self.commit(draft)
        return tuple(draft.numbers.get(msg_id, ()))

    async def accept(self, asked: Asked) -> None:
        draft = self.draft()
        draft.accept(asked)
        await self.commit(draft)

    async def reject(self, asked: Asked) -> None:
        draft = self.draft()
        draft.reject(asked)
        await self.commit(draft)

    async def enter(self, offered: GroupOffered) -> None:
        draft = self.draft()
        draft.enter(offered)
        await self.commit(draft)

    async def forget_unfinished(self) -> int:
        """Forget who was accepted a month ago and is not connected yet: nothing that they were sent is left
        at any router. How many; whoever they are, they can ask again."""
        until, forgotten = f"{int(self._now()) - UNFINISHED_S:012d}", 0
        while due := list(islice(self.agent.records.scan(book.ACCEPTED, until=until), UNFINISHED_AT_ONCE)):
            forgotten += await self.agent.transact(_forgetting_unfinished([key for key, _ in due]))
            await self._bury()
        return forgotten

    # What happens

    async def events(self) -> AsyncIterator[ChatEvent]:
        """Events, one by one: each counts as taken when the next one is asked for."""
        async for unit in self.units():
            for event in unit.events:
                yield event
            await self.agent.lasting(unit.done)

    async def units(self) -> AsyncIterator[Unit]:
        """Events, each with its acknowledgement: for programs that do several things at once."""
        await self._bury()
        for conn_id in holding.held(self.agent.records):
            await self.agent.lasting(partial(self._release, conn_id))
            await asyncio.sleep(0)  # there may be very many of them
        for unit in self._noticed():
            yield unit
        for request in self._forgotten():
            asked = await self.agent.lasting(partial(self._taken, ContactRequested(request.conn, request)))
            if asked is not None:
                yield asked
        while (event := await self.agent.next_event()) is not None:
            if isinstance(event, Received):
                before = await self.agent.lasting(partial(self._heard_from, event.conn))
                if before is not None:
                    yield before
            taken = await self.agent.lasting(partial(self._taken, event))
            if taken is not None:
                yield taken

    async def _taken(self, event: Event) -> Unit | None:
        """What becomes of an event. One that nothing can be done about, such as one of a connection that was
        deleted since, must not end the program: it would come again after each start."""
        try:
            return await self._take(event)
        except (InactiveError, CriticalError, StoreFailedError):
            raise
        except Exception as error:
            log.exception("what the agent told was left alone")
            failure = error if isinstance(error, AgentError) else InternalError(repr(error))
        chat: Conversation | None = None
        if isinstance(event, Received | ReceiptsReceived):
            conn, msg_id = event.conn, event.msg.id
            chat = book.conversation(self.agent.records, conn.id)
            with contextlib.suppress(ConnError):
                await self.agent.transact(lambda tx: tx.ack(conn, msg_id), conn)
        elif isinstance(event, ContactRequested):
            request = event.request
            with contextlib.suppress(ConnError):
                await self.agent.transact(lambda tx: tx.reject(request))
        return self._told(Trouble(chat, failure))

    def _noticed(self) -> list[Unit]:
        """What was reported before a restart and not taken."""
        found = []
        for key, data in self.agent.records.scan(book.NOTICES):
            stored = notice_from(self.agent.records, key, data)
            if stored is not None:
                found.append(self._notice_unit(*stored, key))
        return found

    def _forgotten(self) -> list[ContactRequest]:
        """Requests that came right before a crash: the agent has them, but nothing here recorded them."""
        found = self.agent.records.get(book.OURSELVES, "address")
        if found is None:
            return []
        waiting = self.agent.connection(found.decode()).requests()
        noted = {key for key, _ in self.agent.records.scan(book.NOTICES)}
        return [request for request in waiting if f"asked {request.id}" not in noted]

    def _notice_unit(self, conversation: str, event: ChatEvent, key: str) -> Unit:
        settle = self.draft()
        settle.add(lambda tx: tx.delete(book.NOTICES, key))
        return Unit(conversation, (event,), self, settle)

    def _told(self, event: ChatEvent, key: str = "") -> Unit:
        return Unit(key, (event,), self, self.draft())

    async def _take(self, event: Event) -> Unit | None:
        match event:
            case Received(conn, msg):
                return await self._received(event)
            case ReceiptsReceived(conn, msg, receipts):
                settle = self.draft()
                conn = settle.involve(conn.id)
                settle.add(lambda tx: tx.ack(conn, msg.id))
                numbers = tuple(one.msg_id for one in receipts if one.status is ReceiptStatus.OK)
                chat = book.conversation(self.agent.records, conn.id)
                events = () if chat is None else (Delivered(chat, numbers),)
                return Unit(f"receipts {conn.id}", events, self, settle)
            case ContactRequested(_, request):
                return await self._requested(request)
            case ConfirmationReceived(conn, confirmation):
                await self._introduced(conn, confirmation.info)
            case InfoReceived(conn, info, _):
                await self._introduced(conn, bytes(info))
            case Connected(conn, _):
                return await self._connected(conn)
            case LinkCreated(conn, link):
                await self._link_made(conn, link.full.text)
            case RatchetSync(conn, SyncState.OK):
                await self._release(conn.id)
                return self._told(AgentNews(event))
            case Failed(conn, error):
                return self._told(Trouble(book.conversation(self.agent.records, conn.id), error))
            case SendFailed(conn, number, error):
                return self._told(Trouble(book.conversation(self.agent.records, conn.id), error, (number,)))
            case SendsFailed(conn, numbers, error):
                return self._told(Trouble(book.conversation(self.agent.records, conn.id), error, numbers))
            case AgentFailed(error):
                return self._told(Trouble(None, error))
            case _:
                return self._told(AgentNews(event))
        return None

    async def _heard_from(self, conn: Connection) -> Unit | None:
        """A contact who sends is connected, even if we crashed before recording it."""
        chat = book.find_contact(self.agent.records, conn.id)
        if chat is None or chat.state is not ContactState.CONNECTING:
            return None
        return await self._connected(conn)

    async def _received(self, event: Received) -> Unit | None:
        """A message. What is not ours to read is acknowledged and otherwise ignored."""
        msg, settle = event.msg, self.draft()
        conn = settle.involve(event.conn.id)
        items = _items(msg.body)
        chat = book.conversation(self.agent.records, conn.id)
        receipt = b"" if chat is not None and wants_receipt(items) else None
        settle.add(lambda tx: receiving.settle(tx, settle, conn, items))
        settle.add(lambda tx: tx.ack(conn, msg.id, receipt))
        events = [] if chat is None else receiving.told(chat, conn.id, msg.broker_ts, items)
        unit = Unit(conn.id if chat is None else chat.id, tuple(events), self, settle)
        if events:
            return unit
        await unit.done()
        return None

    async def _requested(self, request: ContactRequest) -> Unit | None:
        """A contact request; if its profile cannot be read, it is rejected."""
        message = next((item for item in _items(request.info) if isinstance(item, e.Message)), None)
        asked: Asked | None = None
        if message is not None:
            version = e.OUR_VERSIONS.agreed(message.versions) or 1
            match message.event:
                case e.ContactRequest(profile, _, welcome_id, msg_id, content):
                    text = None if content is None else content.text
                    profile = replace(profile, image=None)
                    asked = Asked(request.id, request.conn.id, profile, text, msg_id, version, welcome_id)
                case e.Info(profile):
                    asked = Asked(request.id, request.conn.id, replace(profile, image=None), version=version)
        if asked is None:
            await self.agent.transact(lambda tx: tx.reject(request))
            return None
        self._ourselves.requests[request.id] = request
        return await self._noted(asked, request.id)

    async def _noted(self, notice: Notice, conversation: str) -> Unit:
        key = notice_key(notice)
        data = notice_bytes(notice, int(self._now()))
        await self.agent.transact(lambda tx: tx.put(book.NOTICES, key, data))
        return self._notice_unit(conversation, notice, key)

    async def _introduced(self, conn: Connection, info: bytes) -> None:
        """What the other side says about itself in the handshake."""
        draft, items = self.draft(), _items(info)
        draft.add(lambda tx: receiving.settle(tx, draft, conn, items))
        await self.commit(draft)

    async def _connected(self, conn: Connection) -> Unit | None:
        chat = book.conversation(self.agent.records, conn.id)
        if isinstance(chat, Contact):
            contact = replace(chat, state=ContactState.CONNECTED)
            notice, now = connected(contact, int(self._now())), int(self._now())

            def change(tx: Transaction) -> None:
                book.save_contact(tx, contact)
                tx.put(book.NOTICES, notice_key(notice), notice_bytes(notice, now))

            if chat.state is not ContactState.CONNECTING:
                return None
            await self.agent.transact(change)
            return self._notice_unit(contact.id, notice, notice_key(notice))
        if isinstance(chat, Group):
            return await self._member_reached(conn, chat)
        return None

    async def _release(self, conn_id: str) -> None:
        """Send what waited until the ratchets of this connection are in step."""
        if not holding.is_held(self.agent.records, conn_id):
            return
        try:
            conn = self.agent.connection(conn_id)
            await self.agent.transact(lambda tx: holding.release(tx, conn), conn)
        except OutOfStepError:
            return
        except ConnError:
            await self.agent.transact(lambda tx: holding.forget(tx, conn_id))

    async def _member_reached(self, conn: Connection, chat: Group) -> Unit | None:
        draft = self.draft()
        host = draft.involve(chat.id)

        def change(tx: Transaction) -> Group | None:
            group = book.group_of(tx, conn.id)
            member = None if group is None else group.by_connection(conn.id)
            if group is None or member is None or member.reached:
                return None
            group = grouping.reached(tx, draft, host, group, member)
            if conn == host:
                tx.put(book.NOTICES, notice_key(GroupEntered(group)), notice_bytes(GroupEntered(group), 0))
            return group

        group = await self.agent.transact(change, host)
        if group is None or conn != host:
            return None
        return self._notice_unit(group.id, GroupEntered(group), notice_key(GroupEntered(group)))

    async def _link_made(self, conn: Connection, link: str) -> None:
        group = book.group_of(self.agent.records, conn.id)
        member = None if group is None else group.by_connection(conn.id)
        if group is None or member is None:
            return
        draft = self.draft()
        host = draft.involve(group.id)
        draft.add(lambda tx: grouping.link_made(tx, draft, host, group, member, link))
        await self.commit(draft)


def _forgetting(conn_id: str) -> Callable[[Transaction], None]:
    def forget(tx: Transaction) -> None:
        tx.delete(book.LEFT, conn_id)
        tx.delete(book.MEMBERS, conn_id)
        holding.forget(tx, conn_id)

    return forget


def _forgetting_unfinished(accepted: Sequence[str]) -> Callable[[Transaction], int]:
    def forget(tx: Transaction) -> int:
        forgotten = 0
        for key in accepted:
            tx.delete(book.ACCEPTED, key)
            contact = book.find_contact(tx, key.partition(" ")[2])
            if contact is not None and contact.state is ContactState.CONNECTING:
                tx.delete(book.CONTACTS, contact.id)
                tx.put(book.LEFT, contact.id, b"")
                forgotten += 1
        return forgotten

    return forget


def _items(body: bytes) -> tuple[Item, ...]:
    """The content of a body; nothing if it is not one of the app's."""
    try:
        return read_body(body)
    except WireError:
        return ()
