"""The slow handshake step by step: who says HELLO, and when each side is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blindpost.agent import Connected, Versions
from blindpost.client.calls import Call, Failure
from blindpost.client.smp import SmpClient
from blindpost.wire.smp.commands import SEND, Command
from blindpost.wire.smp.responses import Response
from blindpost.wire.versions import VersionRange
from tests.support.agent.agents import Party, quick_config, recorded, two_parties
from tests.support.client.scripted_router import settle, virtual

OLD = Versions(client=VersionRange(1, 2))


class Held:
    """Holds back the authorized SENDs of one agent: before the router hears them, or their answers."""

    def __init__(self, party: Party, *, heard: bool) -> None:
        self._party = party
        self._heard = heard
        self.reached = asyncio.Event()
        self.released = asyncio.Event()

    @contextmanager
    def holding(self) -> Iterator[None]:
        original, held = SmpClient.send_many, self

        async def send_many(client: SmpClient, calls: Iterable[Call[Command]]) -> list[Response | Failure]:
            listed = list(calls)
            if not held.is_hello(client, listed[0]):
                return await original(client, listed)
            if held._heard:
                answers = await original(client, listed)
            held.reached.set()
            await held.released.wait()
            return answers if held._heard else await original(client, listed)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SmpClient, "send_many", send_many)
            yield

    def is_hello(self, client: SmpClient, call: Call[Command]) -> bool:
        """In this handshake confirmations go out without a key, and the first SEND with one is HELLO."""
        sessions = self._party.rt.sessions
        found = (sessions.current(key) for key in list(sessions._slots))
        ours = any(session is not None and session.client is client for session in found)
        return ours and isinstance(call.command, SEND) and call.key is not None


async def all_of(party: Party) -> list[str]:
    """All events so far."""
    await settle()
    await asyncio.sleep(1)
    while len(party.rt.ground.stream._events):
        await party.next()
    return party.names()


@pytest.mark.claim("CON-14")
@virtual
async def test_two_hellos_with_the_notification_flag(tmp_path: Path) -> None:
    config = quick_config(versions=OLD)
    async with two_parties(tmp_path, config, config) as (alice, bob):
        with recorded(alice) as ours, recorded(bob) as theirs:
            await bob.agent.join(str(await alice.agent.invite()))
            await alice.expect(Connected)
            await bob.expect(Connected)
            await all_of(alice)
        for calls in (ours, theirs):
            sends = [(call.command, call.key) for call in calls if isinstance(call.command, SEND)]
            assert [(command.notify, key is not None) for command, key in sends] == [
                (True, False),
                (True, True),
            ]


@pytest.mark.claim("CON-15")
@virtual
async def test_initiator_is_connected_when_her_hello_is_delivered(tmp_path: Path) -> None:
    config = quick_config(versions=OLD)
    async with two_parties(tmp_path, config, config) as (alice, bob):
        held = Held(alice, heard=True)
        with held.holding():
            await bob.agent.join(str(await alice.agent.invite()))
            await held.reached.wait()
            assert "CON" in await all_of(bob)
            assert "CON" not in await all_of(alice)
            held.released.set()
            assert "CON" in await all_of(alice)


@pytest.mark.claim("CON-16")
@virtual
async def test_joiner_is_connected_when_the_initiators_hello_arrives(tmp_path: Path) -> None:
    config = quick_config(versions=OLD)
    async with two_parties(tmp_path, config, config) as (alice, bob):
        held = Held(alice, heard=False)
        with held.holding():
            await bob.agent.join(str(await alice.agent.invite()))
            await held.reached.wait()
            assert "CON" not in await all_of(bob)
            held.released.set()
            assert "CON" in await all_of(bob)
            assert "CON" in await all_of(alice)
