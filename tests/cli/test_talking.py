"""The messenger in a terminal whose disk fails: what was typed is not taken for sent, and no silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from blindpost.agent import (
    CriticalError,
    RatchetSync,
    SmpError,
    StoreFailedError,
    SubscriptionsFailed,
    SyncState,
)
from blindpost.agent.store import connections
from blindpost.chat import ChatEvent, Chats, ContactConnected, MessageReceived, Profile
from blindpost.cli.talking import Talk
from blindpost.client.errors import RefusedError
from blindpost.testing import Person, World, virtual
from blindpost.wire.smp.errors import Code
from tests.support.chat.people import person


class Keyboard:
    """Lines that somebody types, one after the other is taken."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self.taken = 0

    def type(self, line: str) -> None:
        self._lines.put_nowait(line)

    async def lines(self) -> AsyncIterator[str]:
        while True:
            yield await self._lines.get()
            self.taken += 1


@asynccontextmanager
async def talking(world: World) -> AsyncIterator[tuple[Chats, Person, Keyboard]]:
    """Ann at her keyboard, and Bob, her contact."""
    ann, bob = await world.agent("ann"), person((await world.agent("bob")).agent, "Bob")
    chats, keyboard = Chats(ann.agent, Profile("Ann")), Keyboard()
    await bob.chats.join(str(await chats.invite()))
    await bob.expect(ContactConnected)
    running = asyncio.create_task(Talk(chats, qr=False).run(keyboard.lines()))
    await asyncio.sleep(10)
    yield chats, bob, keyboard
    keyboard.type("/quit")
    await running


@virtual
async def test_a_line_that_the_disk_has_no_room_for_is_not_sent(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talking(world) as (chats, bob, keyboard):
        file = chats.agent._ground.store._file
        original = file.commit

        def full() -> None:
            file.rollback()
            raise StoreFailedError("the disk is full")

        file.commit = full  # type: ignore[method-assign]
        keyboard.type("lost?")
        await asyncio.sleep(5)
        file.commit = original  # type: ignore[method-assign]
        assert "! nothing of this was done: the disk is full" in capsys.readouterr().out
        keyboard.type("here")
        assert (await bob.expect(MessageReceived)).message.text == "here"


@virtual
async def test_a_store_that_takes_nothing_more_ends_the_conversation(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who types is told; where an event cannot be taken the program ends, for it would show nothing more."""
    ann, keyboard = await world.agent("ann"), Keyboard()
    chats = Chats(ann.agent, Profile("Ann"))
    running = asyncio.create_task(Talk(chats, qr=False).run(keyboard.lines()))
    await asyncio.sleep(1)
    ann.agent._ground.store._break(StoreFailedError("its log cannot be synced"))
    await asyncio.sleep(1)
    keyboard.type("/invite")
    await asyncio.sleep(1)
    shown = capsys.readouterr().out
    assert "! CRITICAL: its log cannot be synced" in shown
    assert "! nothing of this was done: its log cannot be synced" in shown
    keyboard.type("/quit")
    await running

    async def events(chats: Chats) -> AsyncIterator[ChatEvent]:
        raise CriticalError("its log cannot be synced")
        yield

    monkeypatch.setattr(Chats, "events", events)
    with pytest.raises(CriticalError, match="cannot be synced"):
        await asyncio.wait_for(Talk(chats, qr=False).run(Keyboard().lines()), 60)


@virtual
async def test_somebody_who_went_back_to_an_old_state_can_be_read_again(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is typed meanwhile waits, and nothing is lost."""
    async with talking(world) as (chats, bob, keyboard):
        ground, (contact,) = chats.agent._ground, chats.contacts()
        with ground.transaction() as tx:
            connections.set_sync_state(tx, contact.id, SyncState.REQUIRED)
            tx.emit(RatchetSync(ground.handle(contact.id), SyncState.REQUIRED))
        keyboard.type("waits")
        await asyncio.sleep(5)
        keyboard.type("/fix")
        assert (await bob.expect(MessageReceived)).message.text == "waits"
        await asyncio.sleep(5)
        shown = capsys.readouterr().out
        assert "! Bob cannot be read: one side went back to an old state. /fix mends it" in shown
        assert "Bob can be read again. The security code is a new one" in shown


@virtual
async def test_an_address_and_a_contact_that_their_router_lost_are_shown(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talking(world) as (chats, _, keyboard):
        agent, link, (contact,) = chats.agent, str(await chats.address()), chats.contacts()
        gone = SmpError(agent._ground.servers[0].server, RefusedError(Code.AUTH))
        lost = [one for one in agent.connections() if one.id in (chats.address_id, contact.id)]
        agent._ground.stream.put(SubscriptionsFailed(tuple((one, gone) for one in lost)))
        keyboard.type("/address new")
        await asyncio.sleep(60)
        shown = capsys.readouterr().out
        assert "! Nobody can reach you by your address any more: SMP AUTH" in shown
        assert "! Bob cannot be heard any more: SMP AUTH" in shown
        assert link not in shown
        assert str(await chats.address()) in shown


@virtual
async def test_a_number_is_of_one_request_whatever_becomes_of_the_others(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Strangers who ask meanwhile are not accepted instead of the one whose number was shown."""
    async with talking(world) as (chats, _, keyboard):
        link = str(await chats.address())
        for name in ("carol", "dave", "erin"):
            asking = person((await world.agent(name)).agent, name)
            await asking.chats.join(link)
            await asyncio.sleep(10)
        for line in ("/accept", "/accept x", "/accept 4", "/accept ²", "/reject " + "9" * 5000, "/to ²"):
            keyboard.type(line)
        await asyncio.sleep(5)
        shown = capsys.readouterr().out
        assert "erin wants to talk to you: /accept 3 or /reject 3" in shown
        assert shown.count("Which one? /accept and /reject need a number") == 5
        assert shown.count("/to needs a number") == 1
        keyboard.type("/reject 1")
        keyboard.type("/accept 2")
        await asyncio.sleep(30)
        keyboard.type("/list")
        await asyncio.sleep(5)
        shown = capsys.readouterr().out
        assert "Connected with dave" in shown
        assert "erin wants to talk to you: /accept 3 or /reject 3" in shown
        assert "carol" not in shown
        keyboard.type("/accept")
        await asyncio.sleep(30)
        keyboard.type("/accept")
        await asyncio.sleep(5)
        shown = capsys.readouterr().out
        assert "Connected with erin" in shown
        assert "There are no requests or invitations." in shown


@virtual
async def test_a_request_that_could_not_be_accepted_for_now_waits_on(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    async with talking(world) as (chats, _, keyboard):
        asking = person((await world.agent("carol")).agent, "carol")
        await asking.chats.join(str(await chats.address()))
        await asyncio.sleep(10)
        file = chats.agent._ground.store._file
        original = file.commit

        def full() -> None:
            file.rollback()
            raise StoreFailedError("the disk is full")

        file.commit = full  # type: ignore[method-assign]
        keyboard.type("/accept")
        await asyncio.sleep(5)
        file.commit = original  # type: ignore[method-assign]
        assert "! nothing of this was done: the disk is full" in capsys.readouterr().out
        keyboard.type("/accept 1")
        await asking.expect(ContactConnected)
        await asyncio.sleep(5)
        assert "Connected with carol" in capsys.readouterr().out


@virtual
async def test_who_connects_meanwhile_does_not_get_what_is_typed_for_another(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ann has chosen somebody who has not used her link yet."""
    async with talking(world) as (chats, _, keyboard):
        keyboard.type("/invite")
        await asyncio.sleep(5)
        keyboard.type("/to 2")
        carol = person((await world.agent("carol")).agent, "carol")
        await carol.chats.join(str(await chats.address()))
        await asyncio.sleep(10)
        keyboard.type("/accept")
        await carol.expect(ContactConnected)
        await asyncio.sleep(10)
        assert "Connected with carol, post-quantum. /to 3 talks to them." in capsys.readouterr().out
        keyboard.type("only for you")
        await asyncio.sleep(10)
        assert "! nothing can be said: the contact left, or is not connected yet" in capsys.readouterr().out
        keyboard.type("/to 3")
        keyboard.type("for carol")
        assert (await carol.expect(MessageReceived)).message.text == "for carol"
