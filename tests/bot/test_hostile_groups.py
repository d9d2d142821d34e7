"""Groups whose owner means no good: a bot that follows invitations stays, and answers everybody else."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from blindpost.agent import AgentError, Connection
from blindpost.bot import Bot
from blindpost.chat.codec import events as e
from blindpost.chat.codec.bodies import BATCH_VERSION, write_body, write_info
from blindpost.chat.codec.content import Content
from blindpost.chat.codec.groups import GroupInvite, GroupProfile, MemberInfo, MemberRef
from blindpost.chat.codec.profiles import Profile
from blindpost.testing import Guest, virtual
from blindpost.testing.clock import run_virtual
from blindpost.wire.errors import WireError
from tests.support.bot.bots import BotWorld, with_echo
from tests.support.chat.host import HOST_ID, VERSIONS, Host
from tests.support.chat.strategies import messages, texts

Script = Callable[[Host, str], Awaitable[None]]
"""What the owner of a group does, given the address of the bot."""


async def admitted(host: Host, link: str) -> None:
    await host.invite_bot(link, "bot", "member")


async def still_answers(bot: Bot, guest: Guest) -> None:
    """After everything that was under way has come to an end."""
    await asyncio.sleep(600)
    assert bot.broken is not None
    assert not bot.broken.done()
    assert await guest.ask("/echo hello") == "hello"


async def all_at_once(host: Host, *events: e.AnyEvent) -> None:
    """Before the bot has done anything about the first."""
    for event in events:
        await host.tell("bot", event)


def introduced(host: Host, name: str = "x") -> e.MemberIntroduced:
    return e.MemberIntroduced(host.info(name))


async def remove_the_host(host: Host, link: str) -> None:
    await admitted(host, link)
    await all_at_once(host, introduced(host), introduced(host, "y"), e.MemberRemoved(HOST_ID))


async def remove_the_host_first(host: Host, link: str) -> None:
    await admitted(host, link)
    await all_at_once(host, e.MemberRemoved(HOST_ID), introduced(host), e.NewMessage(Content("/echo hi")))


async def remove_the_bot(host: Host, link: str) -> None:
    await admitted(host, link)
    await all_at_once(host, introduced(host), e.MemberRemoved(host.member_id("bot")), introduced(host, "y"))


async def delete_the_group(host: Host, link: str) -> None:
    await admitted(host, link)
    await all_at_once(host, introduced(host), e.GroupDeleted(), introduced(host, "y"))


async def leave(host: Host, link: str) -> None:
    await admitted(host, link)
    await all_at_once(host, introduced(host), e.GroupLeft(), introduced(host, "y"))


async def lose_the_role(host: Host, link: str) -> None:
    await admitted(host, link)
    await all_at_once(host, introduced(host), e.MemberRole(HOST_ID, "observer"), introduced(host, "y"))


async def go_away(host: Host, link: str) -> None:
    await admitted(host, link)
    await all_at_once(host, introduced(host))
    await host.conns["bot"].delete()


async def forward_bad_links(host: Host, link: str) -> None:
    await admitted(host, link)
    good = (await host.party.agent.invite(pq=False)).full.text
    bad = ["", " ", "https://", "simplex:/invitation#/?v=2", good[:-20], good + "&x", "x" * 9_000, "\0", link]
    for number, text in enumerate(bad):
        await host.tell("bot", e.MemberForwarded(host.info(f"m{number}"), text))


async def forward_one_link_for_many(host: Host, link: str) -> None:
    await admitted(host, link)
    good = (await host.party.agent.invite(pq=False)).full.text
    for number in range(5):
        await host.tell("bot", e.MemberForwarded(host.info(f"m{number}"), good))


async def odd_people(host: Host, link: str) -> None:
    await admitted(host, link)
    for info in (
        replace(host.info("x"), member_id=b""),
        replace(host.info("x"), member_id=HOST_ID),
        replace(host.info("x"), role=""),
        replace(host.info("x"), profile=Profile("")),
        replace(host.info("x"), profile=Profile("\n\0" + "y" * 5_000)),
        replace(host.info("x"), member_id=b"z" * 255),
    ):
        await all_at_once(host, e.MemberNew(info), e.MemberIntroduced(info), e.MemberRemoved(info.member_id))
    await all_at_once(host, e.Info(Profile("")), e.GroupChanged(GroupProfile("")))


async def odd_invitations(host: Host, link: str) -> None:
    contact = await befriended(host, link)
    good = (await host.party.agent.invite(pq=False)).full.text
    us, bot = MemberRef(HOST_ID, "owner"), MemberRef(host.member_id("bot"), "member")
    for invite in (
        GroupInvite(us, bot, "", GroupProfile("team")),
        GroupInvite(us, bot, good[:-20], GroupProfile("team")),
        GroupInvite(us, bot, link, GroupProfile("team")),
        GroupInvite(us, us, good, GroupProfile("team")),
        GroupInvite(us, us, good, GroupProfile("team")),
        GroupInvite(MemberRef(b"", ""), MemberRef(b"", ""), good, GroupProfile("")),
    ):
        await host.send(contact, e.GroupInvited(invite))


IDS = st.sampled_from([HOST_ID, b"member bot", b"member x", b"member y", b"m"])
ROLES = st.sampled_from(["owner", "admin", "member", "observer", ""])
PEOPLE = st.builds(MemberInfo, IDS, ROLES, st.builds(Profile, texts), st.just(VERSIONS))
IN_GROUPS: st.SearchStrategy[e.AnyEvent] = st.one_of(
    st.builds(e.MemberNew, PEOPLE),
    st.builds(e.MemberIntroduced, PEOPLE),
    st.builds(e.MemberForwarded, PEOPLE, texts),
    st.builds(e.MemberIdentity, IDS, st.builds(Profile, texts)),
    st.builds(e.MemberConnected, IDS),
    st.builds(e.MemberInvited, IDS, texts),
    st.builds(e.MemberRole, IDS, ROLES),
    st.builds(e.MemberRemoved, IDS),
    st.builds(e.GroupForwarded, IDS, messages, texts, st.none() | texts),
)
ANYTHING = messages | st.builds(e.Message, IN_GROUPS, st.none() | IDS, st.just(VERSIONS))
BODIES = st.lists(ANYTHING, min_size=1, max_size=3)


@given(st.lists(st.tuples(st.booleans(), BODIES), min_size=20, max_size=60))
@settings(max_examples=4, deadline=None, phases=[Phase.generate])
def test_a_bot_answers_others_whatever_it_is_told(said: list[tuple[bool, list[e.Message]]]) -> None:
    """By a contact, and in a group by its owner."""

    async def main(folder: Path) -> None:
        async with BotWorld(folder) as place:
            bot = with_echo(place.bot(groups=True))
            host = Host(await place.agent("host"))
            async with bot.open() as link:
                guest = await place.guest("guest", link)
                contact = await befriended(host, link)
                await admitted(host, link)
                for in_group, items in said:
                    with suppress(AgentError, WireError):
                        conn = host.conns["bot"] if in_group else contact
                        await conn.send(write_body(items, pq=not in_group, version=BATCH_VERSION))
                await still_answers(bot, guest)
            async with bot.open():
                await still_answers(bot, guest)
                assert bot.set_aside() == [], "nothing was the fault of a handler"

    with tempfile.TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))


async def befriended(host: Host, link: str) -> Connection:
    info = write_info(e.Message(e.ContactRequest(Profile("host")), versions=VERSIONS), pq=True)
    return await host.party.agent.join(link, info)


SCRIPTS: list[Script] = [
    remove_the_host,
    remove_the_host_first,
    remove_the_bot,
    delete_the_group,
    leave,
    lose_the_role,
    go_away,
    forward_bad_links,
    forward_one_link_for_many,
    odd_people,
    odd_invitations,
]


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "restarted"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
@virtual
async def test_a_bot_answers_others_whatever_a_group_does(
    tmp_path: Path, script: Script, restarted: bool
) -> None:
    """Also if it is started again in the middle of it: what it was told must not end it at every start."""
    async with BotWorld(tmp_path) as place:
        bot = with_echo(place.bot(groups=True))
        host = Host(await place.agent("host"))
        async with bot.open() as link:
            guest = await place.guest("guest", link)
            with suppress(AgentError):
                await script(host, link)
            if restarted:
                await asyncio.sleep(0.02)
            else:
                await still_answers(bot, guest)
        async with bot.open():
            await still_answers(bot, guest)
