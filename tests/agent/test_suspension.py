"""Suspending an agent: work under way ends, in order and in time; nothing starts; later all resumes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blindpost.agent import Confirmation, ContactRequest, InactiveError, Sent, Suspended, SyncState
from blindpost.agent.work.suspension import Operation
from blindpost.testing.clock import run_virtual
from tests.support.agent.friends import friends


def test_messages_being_sent_are_finished_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("A_MSG")
            await alice.conn.send(b"under way")
            await alice.until(lambda: wire.words("A_MSG"))
            await alice.conn.send(b"behind it")
            suspending = asyncio.create_task(alice.agent.suspend(60))
            await pair.quiet(5)
            assert not suspending.done()
            assert not alice.rt.ground.operations.is_open(Operation.DELIVERY)
            assert alice.rt.ground.operations.is_open(Operation.SENDING), "delivery has not ended"
            wire.let("A_MSG")
            assert await suspending
            await pair.quiet(600)
            assert alice.of(Suspended)
            assert len(alice.of(Sent)) == 1
            assert bob.bodies == [b"under way"]
            alice.agent.resume()
            await bob.got(b"behind it")

    run_virtual(main())


def test_an_agent_that_is_resumed_before_it_has_come_to_rest_goes_on(tmp_path: Path) -> None:
    """Somebody leaves a program and comes back in a moment, while a router is slow."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("A_MSG")
            await alice.conn.send(b"under way")
            await alice.until(lambda: wire.words("A_MSG"))
            suspending = asyncio.create_task(alice.agent.suspend(60))
            await pair.quiet(5)
            alice.agent.resume()
            assert not await suspending
            wire.let("A_MSG")
            await pair.quiet(120)
            assert not alice.of(Suspended)
            await alice.conn.send(b"after it")
            await bob.got(b"after it")
            await bob.conn.send(b"back")
            await alice.got(b"back")
            assert bob.bodies == [b"under way", b"after it"]

    run_virtual(main())


def test_what_needed_no_hurry_is_noted_first(tmp_path: Path) -> None:
    """A process at rest must not have a transaction open."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("A_MSG")
            await asyncio.gather(alice.conn.send(b"under way"), alice.conn.send(b"behind it"))
            await alice.until(lambda: wire.words("A_MSG"))
            suspending = asyncio.create_task(alice.agent.suspend(60))
            await asyncio.sleep(0)
            wire.let("A_MSG")
            assert await suspending
            store = alice.rt.ground.store
            assert (store._group, store._committed) == (None, [])
            await alice.until(lambda: len(alice.of(Sent)) == 1)
            alice.agent.resume()
            await bob.got(b"behind it")
            assert bob.bodies == [b"under way", b"behind it"]

    run_virtual(main())


def test_a_send_that_does_not_end_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("A_MSG")
            await alice.conn.send(b"slow")
            await alice.until(lambda: wire.words("A_MSG"))
            begun = asyncio.get_running_loop().time()
            assert not await alice.agent.suspend(5)
            assert asyncio.get_running_loop().time() == begun + 5
            wire.let("A_MSG")
            await pair.quiet()
            assert alice.of(Suspended)
            alice.agent.resume()
            await bob.got(b"slow")
            await pair.talk("after")
            assert bob.bodies.count(b"slow") == 1

    run_virtual(main())


def test_a_suspended_agent_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            assert await alice.agent.suspend()
            told, said = len(alice.events), len(wire.log)
            await bob.conn.send(b"for later")
            await pair.quiet(600)
            assert alice.bodies == []
            request = ContactRequest(alice.conn, "id", b"", False, ())
            for attempt in (
                alice.conn.send(b"no"),
                alice.conn.switch(),
                alice.conn.delete(),
                alice.agent.invite(),
                alice.agent.invite_later(),
                Confirmation(alice.conn, "id", b"", False, ()).allow(),
                request.accept(),
                request.reject(),
            ):
                with pytest.raises(InactiveError):
                    await attempt
            assert not alice.rt.ground.stream._held
            assert not [asked for asked in wire.log[said:] if asked.who == "alice"]
            alice.agent.resume()
            await alice.got(b"for later")
            await pair.talk("after")
            assert not alice.errors + bob.errors
            assert len(alice.events) > told

    run_virtual(main())


def test_a_rotation_and_a_synchronisation_resume_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob = pair.alice, pair.bob
            await alice.conn.switch()
            await alice.agent.suspend()
            await pair.quiet(60)
            alice.agent.resume()
            await alice.until(lambda: alice.switches[-1:] == ["rcv completed"])
            await alice.conn.synchronize(force=True)
            await bob.agent.suspend()
            await pair.quiet(60)
            assert alice.state is SyncState.STARTED
            bob.agent.resume()
            await alice.until(lambda: alice.syncs == ["agreed", "ok"])
            await pair.talk("after")

    run_virtual(main())


def test_a_suspended_agent_can_be_closed_and_opened(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            await pair.alice.agent.suspend()
            await pair.alice.restart()
            await pair.talk("after")

    run_virtual(main())
