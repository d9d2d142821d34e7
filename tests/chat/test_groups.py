"""Members of a group: they join when invited, connect to each other, get what is forwarded, and speak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.agent import Transaction
from blindpost.chat import book, drafts, model
from blindpost.chat.book import GROUPS
from blindpost.chat.codec import events as e
from blindpost.chat.codec.content import Content
from blindpost.chat.codec.groups import GroupProfile
from blindpost.chat.codec.profiles import Profile
from blindpost.chat.drafts import NotConnectedError
from blindpost.chat.events import (
    Asked,
    ContactConnected,
    GroupOver,
    GroupUpdated,
    Incoming,
    MemberCame,
    MemberGone,
    MessageDeleted,
    MessageReceived,
)
from blindpost.chat.grouping import NAME_MAX, ROLE_MAX
from blindpost.chat.model import Group, GroupState
from blindpost.router.config import QUOTA_DEFAULT
from blindpost.testing import Person
from blindpost.testing.network import MemoryNetwork
from tests.support.agent.agents import on_network, party
from tests.support.chat.host import HOST_ID, Host
from tests.support.chat.people import open_agent, person
from tests.support.chat.reader import CHECKS
from tests.support.chat.second_opinion import sent_kinds
from tests.support.client.scripted_router import virtual
from tests.support.router.routers import running_router


@asynccontextmanager
async def team(folder: Path) -> AsyncIterator[tuple[Host, Person, Person]]:
    network = MemoryNetwork()
    async with (
        running_router(folder / "router", network=network) as router,
        party(folder / "host.db", router.server, config=on_network(network)) as host,
        open_agent(folder / "bob.db", router.server, network) as bob,
        open_agent(folder / "carol.db", router.server, network) as carol,
    ):
        yield Host(host), person(bob, "bob"), person(carol, "carol")


def group_of(one: Person) -> Group:
    (group,) = one.chats.groups()
    return group


async def introduce(host: Host, bob: Person, carol: Person) -> None:
    """Both are members and reach each other without the host."""
    await host.admit(bob, "bob")
    await host.admit(carol, "carol")
    listening = [asyncio.create_task(take_until_reached(one)) for one in (bob, carol)]
    invited = await host.heard("carol")
    assert isinstance(invited, e.MemberInvited)
    assert invited.member_id == host.member_id("bob")
    await host.tell("bob", e.MemberForwarded(host.info("carol"), invited.link))
    told = {await host.heard("bob") for _ in range(1)}
    assert told == {e.MemberConnected(host.member_id("carol"))}
    await asyncio.gather(*listening)


async def take_until_reached(one: Person) -> None:
    while len(group_of(one).reached) < 2:
        unit = await one.unit()
        await unit.done()
        one.aside += unit.events


@virtual
async def test_members_reach_each_other_and_speak(tmp_path: Path) -> None:
    async with team(tmp_path) as (host, bob, carol):
        await introduce(host, bob, carol)
        came = await bob.expect(MemberCame)
        assert came.member.name == "carol"
        await bob.say(group_of(bob), "hello team")
        heard = await carol.heard("hello team")
        assert heard.member is not None
        assert (heard.member.name, heard.chat.name) == ("bob", "team")
        event = await host.heard("bob")
        assert isinstance(event, e.NewMessage)
        assert event.content.text == "hello team"
        answer = carol.chats.draft()
        answer.say(group_of(carol), "hello bob", quote=heard.message.as_quote(heard.member))
        await carol.chats.commit(answer)
        quoted = (await bob.heard("hello bob")).message.quote
        assert quoted is not None
        assert quoted.ref.member_id == host.member_id("bob")


@virtual
async def test_what_the_host_forwards_is_attributed_to_its_author(tmp_path: Path) -> None:
    async with team(tmp_path) as (host, bob, _):
        await host.admit(bob, "bob")
        inner = e.Message(e.NewMessage(Content("from afar")), b"inner")
        forwarded = e.GroupForwarded(b"dave's id", inner, "2026-11-15T21:19:00Z", "dave")
        await host.tell("bob", forwarded)
        heard = await bob.heard("from afar")
        assert heard.member is not None
        assert (heard.member.name, heard.message.id) == ("dave", b"inner")


@virtual
async def test_changes_are_accepted_only_from_members_with_the_right(tmp_path: Path) -> None:
    async with team(tmp_path) as (host, bob, carol):
        await introduce(host, bob, carol)
        draft = carol.chats.draft()
        ours = group_of(carol)
        draft.send(ours, e.GroupChanged(GroupProfile("carol's")))
        draft.send(ours, e.MemberRemoved(host.member_id("bob")))
        draft.send(ours, e.GroupDeleted())
        draft.say(ours, "did that work?")
        await carol.chats.commit(draft)
        await bob.heard("did that work?")
        assert (group_of(bob).name, group_of(bob).state) == ("team", GroupState.JOINED)
        await host.tell("bob", e.GroupChanged(GroupProfile("renamed")))
        assert (await bob.expect(GroupUpdated)).group.name == "renamed"
        await host.tell("bob", e.MemberRole(host.member_id("bob"), "moderator"))
        await bob.expect(GroupUpdated)
        assert (group_of(bob).name, group_of(bob).role) == ("renamed", "moderator")
        await host.tell("bob", e.DeleteMessage(b"spam", host.member_id("carol")))
        assert (await bob.expect(MessageDeleted)).author_id == host.member_id("carol")
        await host.tell("bob", e.MemberRemoved(host.member_id("carol")))
        assert (await bob.expect(MemberGone)).member.name == "carol"
        assert [one.id for one in group_of(bob).members] == [HOST_ID]
        await host.tell("bob", e.MemberRemoved(host.member_id("bob")))
        assert (await bob.expect(GroupOver)).removed
        with pytest.raises(NotConnectedError):
            await bob.say(group_of(bob), "anybody?")


@virtual
async def test_leaving_a_group_is_announced(tmp_path: Path) -> None:
    async with team(tmp_path) as (host, bob, carol):
        await introduce(host, bob, carol)
        ours = {one.conn_id for one in group_of(carol).members}
        theirs = next(one.conn_id for one in group_of(bob).members if one.name == "carol")
        draft = carol.chats.draft()
        draft.leave(group_of(carol))
        await carol.chats.commit(draft)
        assert isinstance(await host.heard("carol"), e.MemberConnected | e.GroupLeft)
        assert (await bob.expect(MemberGone)).member.name == "carol"
        assert group_of(carol).state is GroupState.ENDED
        await asyncio.sleep(60)
        assert not ours & {conn.id for conn in carol.chats.agent.connections()}, "no queue is left behind"
        left = {conn.id for conn in bob.chats.agent.connections()}
        assert theirs not in left
        assert group_of(bob).id in left, "the group itself goes on"


@virtual
async def test_introductions_of_oneself_and_repeated_ones_are_ignored(tmp_path: Path) -> None:
    async with team(tmp_path) as (host, bob, _):
        await host.admit(bob, "bob")
        count = len(bob.chats.agent.connections())
        for name in ("bob", "dave", "dave"):
            await host.tell("bob", e.MemberIntroduced(host.info(name)))
        await host.tell("bob", e.NewMessage(Content("end")))
        await bob.heard("end")
        assert len(bob.chats.agent.connections()) == count + 1
        assert replace(group_of(bob), members=()).name == "team"
        assert not [event for event in bob.aside if isinstance(event, MessageReceived)]


@virtual
async def test_what_is_kept_of_members_is_bounded(tmp_path: Path) -> None:
    """All of a group is read with each message: one of megabytes would take all the time there is."""
    async with team(tmp_path) as (host, bob, _):
        await host.admit(bob, "bob")
        long = replace(host.info("x"), profile=Profile("x" * 9_000), role="r" * 4_000)
        ids = [b"new", b"introduced", b"i" * 200]
        await host.tell("bob", e.MemberNew(replace(long, member_id=ids[0])))
        await host.tell("bob", e.MemberIntroduced(replace(long, member_id=ids[1])))
        await host.tell("bob", e.MemberNew(replace(long, member_id=ids[2])))
        await host.tell("bob", e.MemberIntroduced(replace(long, member_id=ids[2])))
        await host.tell("bob", e.MemberRole(b"new", "s" * 9_000))
        await host.tell("bob", e.MemberRole(host.member_id("bob"), "s" * 9_000))
        await host.tell("bob", e.Info(Profile("h" * 9_000)))
        await host.tell("bob", e.NewMessage(Content("done")))
        assert (await bob.expect(MemberCame)).member.name == "x" * NAME_MAX
        await bob.heard("done")
        group = group_of(bob)
        assert [len(one.name) for one in group.members] == [NAME_MAX] * 3
        assert [one.id for one in group.members] == [HOST_ID, *ids[:2]]
        assert [len(group.role), *(len(one.role) for one in group.members[1:])] == [ROLE_MAX] * 3
        assert len(bob.chats.agent.records.get(GROUPS, group.id) or b"") < 2_000


@virtual
async def test_what_is_said_in_a_group_neither_reads_nor_writes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with team(tmp_path) as (host, bob, _):
        await host.admit(bob, "bob")
        written: list[Group] = []
        save = book.save_group

        def note(tx: Transaction, group: Group) -> None:
            written.append(group)
            save(tx, group)

        monkeypatch.setattr(book, "save_group", note)
        group_of(bob)
        read = model.group_from.cache_info().misses
        for text in ("first", "second"):
            await host.tell("bob", e.NewMessage(Content(text)), text.encode())
            await bob.heard(text)
        assert (written, model.group_from.cache_info().misses) == ([], read)
        await host.tell("bob", e.MemberNew(host.info("x")))
        await bob.expect(MemberCame)
        await host.tell("bob", e.NewMessage(Content("third")))
        await bob.heard("third")
        assert len(written) == 1


@virtual
async def test_a_member_who_reads_nothing_is_sent_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who read get all of it."""
    monkeypatch.setattr(drafts, "UNREAD_MAX", 3)
    async with team(tmp_path) as (host, bob, carol):
        await introduce(host, bob, carol)
        group = group_of(bob)
        for number in range(QUOTA_DEFAULT + 12):
            await bob.say(group, str(number))
            await carol.heard(str(number))
        assert bob.chats.agent.connection(group.id).waiting == 3


@virtual
async def test_every_kind_that_is_ever_sent_passes_the_second_reader(
    tmp_path: Path, second_opinion: list[str]
) -> None:
    """Every event our code can make, as found in its source, is made here and read by both readers."""
    async with team(tmp_path) as (host, bob, carol):
        await introduce(host, bob, carol)
        await carol.chats.join(str(await bob.chats.address("welcome")), "may I?")
        await bob.chats.accept(await bob.expect(Asked))
        contact = (await bob.expect(ContactConnected)).contact
        heard = Incoming(b"some id", Content("what was said"), 1)
        draft, group = bob.chats.draft(), group_of(bob)
        for chat, author in ((contact, None), (group, host.member_id("carol"))):
            said = draft.say(chat, "hello", quote=heard.as_quote(group.members[0] if author else None))
            draft.edit(chat, said, "hello!", live=False)
            draft.react(chat, b"some id", "👍", add=author is None, author_id=author)
            draft.retract(chat, b"some id", author)
        draft.remove(group, host.member_id("carol"))
        draft.leave(group)
        draft.leave(contact)
        await bob.chats.commit(draft)
    assert set(second_opinion) == sent_kinds()
    assert sent_kinds() <= CHECKS.keys()
