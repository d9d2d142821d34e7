"""Two people exchange the app's messages: both kinds of handshake, what they say, and what survives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blindpost.agent import (
    Agent,
    ConfirmationReceived,
    Connected,
    Connection,
    ContactRequested,
    InfoReceived,
    InternalError,
)
from blindpost.chat import receiving
from blindpost.chat.chats import Chats
from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import TooLongError, write_body, write_info
from blindpost.chat.codec.content import Content, FileOffer
from blindpost.chat.codec.profiles import Profile
from blindpost.chat.drafts import NotConnectedError
from blindpost.chat.events import (
    Asked,
    ChatEvent,
    ContactConnected,
    ContactGone,
    Delivered,
    MessageDeleted,
    MessageEdited,
    MessageReceived,
    ProfileChanged,
    Reacted,
    Trouble,
)
from blindpost.chat.model import ContactState
from blindpost.chat.presets import complete, preset_servers
from blindpost.testing import Person
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.versions import VersionRange
from tests.support.agent.agents import Party, on_network, party
from tests.support.chat.people import befriend, open_agent, people, person
from tests.support.chat.reader import read, read_info, read_link_data
from tests.support.client.scripted_router import settle, virtual
from tests.support.router.routers import running_router


@virtual
async def test_somebody_asks_with_a_first_message_and_is_accepted(tmp_path: Path) -> None:
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        link = await ada.chats.address("I answer questions")
        shown = await bob.chats.look(str(link))
        assert shown is not None
        assert (shown.profile.name, shown.message) == ("Ada", Content("I answer questions"))
        joined = await bob.chats.join(str(link), "hello from Bob")
        assert joined.name == "Ada"
        asked = await ada.expect(Asked)
        assert (asked.profile.name, asked.text) == ("Bob", "hello from Bob")
        await ada.chats.accept(asked)
        connected = await ada.expect(ContactConnected)
        assert connected.first is not None
        assert connected.first.text == "hello from Bob"
        assert (connected.contact.name, connected.contact.version) == ("Bob", 16)
        theirs = (await bob.expect(ContactConnected)).contact
        assert theirs.name == "Ada"
        numbers = await bob.say(theirs, "are you there?")
        assert (await ada.heard("are you there?")).chat.id == connected.contact.id
        assert (await bob.expect(Delivered)).numbers == numbers


@virtual
async def test_what_came_from_a_connection_that_was_deleted_since_is_told_and_no_more(tmp_path: Path) -> None:
    """The program was busy: the message waits for it when it deletes the connection."""
    async with people(tmp_path, "Ada", "Bob", "Carol") as (ada, bob, carol):
        _, of_bob = await befriend(ada, bob)
        _, of_carol = await befriend(ada, carol)
        await bob.say(of_bob, "too late")
        await settle()
        (left,) = (one for one in ada.chats.contacts() if one.name == "Bob")
        await ada.chats.agent.connection(left.id).delete()
        await carol.say(of_carol, "in time")
        trouble = await ada.expect(Trouble)
        assert "the connection was deleted" in str(trouble.error)
        assert (await ada.heard("in time")).chat.name == "Carol"


@virtual
async def test_a_message_that_nothing_can_be_done_about_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours costs that message, and not all that follow it."""
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        _, of_bob = await befriend(ada, bob)

        def mistaken(*_: object) -> list[ChatEvent]:
            raise LookupError("a mistake")

        with monkeypatch.context() as patch:
            patch.setattr(receiving, "told", mistaken)
            await bob.say(of_bob, "first")
            trouble = await ada.expect(Trouble)
        assert (type(trouble.error), trouble.chat is not None) == (InternalError, True)
        await bob.say(of_bob, "second")
        await ada.heard("second")


@virtual
async def test_an_invitation_makes_both_contacts(tmp_path: Path) -> None:
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        link = await ada.chats.invite()
        await bob.chats.join(str(link))
        ours = (await ada.expect(ContactConnected)).contact
        theirs = (await bob.expect(ContactConnected)).contact
        assert (ours.name, theirs.name) == ("Bob", "Ada")
        await ada.say(ours, "hello")
        await bob.heard("hello")


@virtual
async def test_a_request_is_answered_only_once(tmp_path: Path) -> None:
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        await bob.chats.join(str(await ada.chats.address()))
        asked = await ada.expect(Asked)
        await ada.chats.reject(asked)
        await ada.chats.accept(asked)
        assert list(ada.chats.contacts()) == []


@virtual
async def test_edits_deletions_reactions_and_quotes_arrive(tmp_path: Path) -> None:
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        ours, theirs = await befriend(ada, bob)
        draft = ada.chats.draft()
        msg_id = draft.say(ours, "frist", live=True)
        draft.edit(ours, msg_id, "first")
        draft.react(ours, msg_id, "🚀")
        draft.react(ours, msg_id, "🚀", add=False)
        draft.retract(ours, msg_id)
        draft.say(ours, "gone soon", ttl=60)
        await ada.chats.commit(draft)
        heard = await bob.heard("frist")
        assert heard.message.live
        edited = await bob.expect(MessageEdited)
        assert (edited.message.text, edited.message.id) == ("first", msg_id)
        reactions = [await bob.expect(Reacted) for _ in range(2)]
        assert [(one.emoji, one.added, one.msg_id) for one in reactions] == [
            ("🚀", True, msg_id),
            ("🚀", False, msg_id),
        ]
        assert (await bob.expect(MessageDeleted)).msg_id == msg_id
        assert (await bob.heard("gone soon")).message.ttl == 60
        answer = bob.chats.draft()
        answer.say(theirs, "which?", quote=heard.message.as_quote())
        await bob.chats.commit(answer)
        assert (await ada.heard("which?")).message.quoted == "frist"


@virtual
async def test_files_are_shown_by_name_and_size(tmp_path: Path) -> None:
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        ours, _ = await befriend(ada, bob)
        draft = ada.chats.draft()
        draft.send(ours, e.NewMessage(Content("", "voice", 3), file=FileOffer("voice.m4a", 10240)))
        await ada.chats.commit(draft)
        shown = (await bob.expect(MessageReceived)).message.shown
        assert shown == "[voice voice.m4a, 10240 bytes: cannot be taken here]"


@virtual
async def test_a_changed_profile_is_sent_with_the_next_message(tmp_path: Path) -> None:
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        ours, _ = await befriend(ada, bob)
        ada.chats.set_profile(Profile("Ada L."))
        await ada.say(ours, "it is me")
        assert (await bob.expect(ProfileChanged)).contact.name == "Ada L."
        await bob.heard("it is me")
        await ada.say(ours, "again")
        await bob.heard("again")
        assert not any(isinstance(event, ProfileChanged) for event in bob.aside)
        first = await ada.chats.address()
        assert str(await ada.chats.address()) == str(first)
        shown = await bob.chats.look(str(first))
        assert shown is not None
        assert shown.profile.name == "Ada L."


@virtual
async def test_a_contact_who_left_cannot_be_messaged(tmp_path: Path) -> None:
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        ours, theirs = await befriend(ada, bob)
        draft = bob.chats.draft()
        draft.leave(theirs)
        await bob.chats.commit(draft)
        await ada.expect(ContactGone)
        found = ada.chats.contact(ours.id)
        assert found is not None
        assert found.state is ContactState.LEFT
        with pytest.raises(NotConnectedError):
            await ada.say(ours, "hello?")
        with pytest.raises(NotConnectedError):
            await bob.say(theirs, "hello?")


@virtual
async def test_too_long_content_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    async with people(tmp_path, "Ada", "Bob") as (ada, bob):
        ours, _ = await befriend(ada, bob)
        with pytest.raises(TooLongError):
            await ada.say(ours, "\U0001f600" * 5000)
        long = "The quick brown fox. " * 700
        await ada.say(ours, long)
        await bob.heard(long)


@asynccontextmanager
async def stranger(folder: Path) -> AsyncIterator[tuple[Person, Party]]:
    """One person with chats, and one whose agent sends whatever a test wants."""
    network = MemoryNetwork()
    async with (
        running_router(folder / "router", network=network) as router,
        open_agent(folder / "a.db", router.server, network) as agent,
        party(folder / "b.db", router.server, config=on_network(network)) as other,
    ):
        yield person(agent, "Ada"), other


async def scripted_friend(ada: Person, other: Party, versions: VersionRange) -> tuple[str, Connection]:
    info = write_info(e.Message(e.ContactRequest(Profile("Old")), versions=versions), pq=True)
    conn = await other.agent.join(str(await ada.chats.address()), info)
    await ada.chats.accept(await ada.expect(Asked))
    await other.expect(Connected)
    contact = (await ada.expect(ContactConnected)).contact
    return contact.id, conn


@virtual
async def test_a_version_only_rises(tmp_path: Path) -> None:
    async with stranger(tmp_path) as (ada, other):
        contact_id, conn = await scripted_friend(ada, other, VersionRange(1, 7))

        async def spoke(low: int, high: int) -> int:
            text = f"{low}-{high}"
            message = e.Message(e.NewMessage(Content(text)), b"id", VersionRange(low, high))
            await conn.send(write_body([message], pq=True))
            await ada.heard(text)
            return version()

        def version() -> int:
            contact = ada.chats.contact(contact_id)
            assert contact is not None
            return contact.version

        assert version() == 7
        assert await spoke(1, 9) == 9
        assert await spoke(1, 3) == 9
        assert await spoke(1, 19) == 16
        assert await spoke(17, 19) == 16


@virtual
async def test_an_old_peer_gets_nothing_compressed(tmp_path: Path) -> None:
    async with stranger(tmp_path) as (ada, other):
        contact_id, _ = await scripted_friend(ada, other, VersionRange(1, 7))
        contact = ada.chats.contact(contact_id)
        assert contact is not None
        with pytest.raises(TooLongError):
            await ada.chats.say(contact, "The quick brown fox. " * 700)


@virtual
async def test_unreadable_and_unknown_messages_do_not_stop_a_conversation(tmp_path: Path) -> None:
    async with stranger(tmp_path) as (ada, other):
        _, conn = await scripted_friend(ada, other, VersionRange(1, 16))
        for body in (b"=\x01", b"/", b">", b"F\x00", b"\xff", b"{", b"[{}]", b"X\x01", b"plain text"):
            await conn.send(body)
        probe = e.Message(e.Other("x.info.probe", (("probe", '"AA=="'),)), b"id")
        hello = e.Message(e.NewMessage(Content("still here")), b"id")
        await conn.send(write_body([probe, hello], pq=True, version=16))
        await ada.heard("still here")
        assert not [event for event in ada.aside if isinstance(event, MessageReceived)]


@virtual
async def test_unreadable_requests_are_rejected(tmp_path: Path) -> None:
    async with stranger(tmp_path) as (ada, other):
        link = str(await ada.chats.address())
        for info in (b"", b"Alice", b'{"v":"1","event":"x.ok","params":{}}'):
            await other.agent.join(link, info)
        good = write_info(e.Message(e.Info(Profile("Good"))), pq=True)
        await other.agent.join(link, good)
        assert (await ada.expect(Asked)).profile.name == "Good"
        (address,) = [conn for conn in ada.chats.agent.connections() if conn.type.value == "contact"]
        assert len(address.requests()) == 1


@virtual
async def test_what_is_sent_matches_the_document(tmp_path: Path) -> None:
    """The other side uses a second reader, written from the document alone."""
    async with stranger(tmp_path) as (ada, other):
        link = await ada.chats.address("welcome")
        data = (await other.agent.read_link(str(link))).user_data
        assert read_link_data(data)["profile"]["displayName"] == "Ada"
        info = write_info(e.Message(e.ContactRequest(Profile("Old"))), pq=True)
        conn = await other.agent.join(str(link), info)
        asked = await ada.expect(Asked)
        await ada.chats.accept(asked)
        found = await other.expect(ConfirmationReceived)
        assert read_info(found.confirmation.info, pq=True)["event"] == "x.info"
        contact = (await ada.expect(ContactConnected)).contact
        draft = ada.chats.draft()
        msg_id = draft.say(contact, "hello", ttl=5, live=True)
        draft.edit(contact, msg_id, "hello!")
        draft.react(contact, msg_id, "👍")
        draft.retract(contact, msg_id)
        draft.say(contact, "The quick brown fox. " * 700)
        draft.leave(contact)
        await ada.chats.commit(draft)
        names = []
        for _ in range(6):
            names += [one["event"] for one in read((await other.message()).msg.body, pq=True)]
        assert names == ["x.msg.new", "x.msg.update", "x.msg.react", "x.msg.del", "x.msg.new", "x.direct.del"]
        assert conn.type.value == "duplex"


@virtual
async def test_handshakes_never_carry_empty_information(tmp_path: Path) -> None:
    async with stranger(tmp_path) as (ada, other):
        created = await other.agent.address()
        await ada.chats.join(str(created), "may I?")
        request = (await other.expect(ContactRequested)).request
        told = read_info(request.info, pq=True)
        assert told["event"] == "x.contact"
        assert told["params"]["content"]["text"] == "may I?"
        await request.accept(write_info(e.Message(e.Info(Profile("X"))), pq=True))
        assert read_info(bytes((await other.expect(InfoReceived)).info), pq=True)["event"] == "x.info"
        invitation = await ada.chats.invite()
        await other.agent.join(str(invitation), write_info(e.Message(e.Info(Profile("X"))), pq=True))
        found = await other.expect(InfoReceived)
        assert read_info(bytes(found.info), pq=True)["event"] == "x.info"


@virtual
async def test_events_not_taken_come_again(tmp_path: Path) -> None:
    """A request, the connection with its first message, and a message: each across a restart."""
    network = MemoryNetwork()
    async with running_router(tmp_path / "router", network=network) as router:

        def opened(name: str) -> Agent:
            return open_agent(tmp_path / f"{name}.db", router.server, network)

        async with opened("bob") as agent:
            bob = person(agent, "Bob")
            async with opened("ada") as ours:
                link = await Chats(ours, Profile("Ada")).address()
            await bob.chats.join(str(link), "first")
            async with opened("ada") as ours:
                unit = await person(ours, "Ada").unit_with(Asked)
            async with opened("ada") as ours:
                ada = person(ours, "Ada")
                unit = await ada.unit_with(Asked)
                (asked,) = unit.events
                assert isinstance(asked, Asked)
                draft = ada.chats.draft()
                draft.accept(asked)
                await unit.done(draft)
                await ada.unit_with(ContactConnected)
            async with opened("ada") as ours:
                ada = person(ours, "Ada")
                unit = await ada.unit_with(ContactConnected)
                (connected,) = unit.events
                assert isinstance(connected, ContactConnected)
                assert connected.first is not None
                await unit.done()
                theirs = (await bob.expect(ContactConnected)).contact
                await bob.say(theirs, "second")
                await ada.unit_with(MessageReceived)
            async with opened("ada") as ours:
                ada = person(ours, "Ada")
                unit = await ada.unit_with(MessageReceived)
                draft = ada.chats.draft()
                draft.say(connected.contact, "answer")
                await unit.done(draft)
                with pytest.raises(Exception, match="acknowledged"):
                    await unit.done(draft)
                await bob.heard("answer")
                await bob.say(theirs, "third")
                await ada.heard("third")


@virtual
async def test_a_request_not_yet_recorded_is_found(tmp_path: Path) -> None:
    """We died between the agent's event and our record of it."""
    network = MemoryNetwork()
    async with (
        running_router(tmp_path / "router", network=network) as router,
        open_agent(tmp_path / "bob.db", router.server, network) as agent,
    ):
        bob = person(agent, "Bob")
        async with open_agent(tmp_path / "ada.db", router.server, network) as ours:
            await bob.chats.join(str(await Chats(ours, Profile("Ada")).address()))
            while not isinstance(await ours.next_event(), ContactRequested):
                pass
        async with open_agent(tmp_path / "ada.db", router.server, network) as ours:
            ada = person(ours, "Ada")
            await ada.chats.accept(await ada.expect(Asked))
            await bob.expect(ContactConnected)
            await ada.expect(ContactConnected)
            assert not [event for event in ada.aside if isinstance(event, Asked)]


def test_links_of_preset_routers_are_completed() -> None:
    assert len(preset_servers()) == 21
    short = "https://smp6.simplex.im/a#_qlQfogHGDJ8MAF2wKmkglRBM-xHR142gDJstKiGRQQ"
    assert "c=PQUV2eL0t7OStZOoAsPEV2QYWt4-xilbakvGUGOItUo" in complete(short)
    whole = "https://example.org/a#_qlQfogHGDJ8MAF2wKmkglRBM-xHR142gDJstKiGRQQ?c=PQUV2eL0t7OStZOoAsPEV2QYWt4-xilbakvGUGOItUo"
    assert complete(f" {whole}\n") == whole
