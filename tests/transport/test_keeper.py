"""Memory of idle or closed sessions: released at once, and returned to the system."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from blindpost.transport import keeper as keepers
from blindpost.transport.keeper import TRIM_AFTER, Keeper
from blindpost.transport.session import Session
from tests.support.serving.waiting import until
from tests.support.transport.sessions import HOST, QUICK, Recorder, serving, smp_client, smp_router
from tests.support.transport.streams import connect


class Idle(Session):
    """A session with no traffic for a long time."""

    def __init__(self) -> None:
        """It has no socket."""

    def cool(self, idle_since: float) -> bool:
        return True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the allocator was asked to trim."""
    found: list[int] = []
    monkeypatch.setattr(keepers, "give_back", found.append)
    return found


def sweep(keeper: Keeper, sessions: int) -> None:
    for _ in range(sessions):
        keeper.warmed(Idle())
    keeper._sweep(asyncio.get_running_loop())


async def test_idle_sessions_return_their_memory_together(asked: list[int]) -> None:
    keeper = Keeper(3600.0)
    sweep(keeper, TRIM_AFTER - 1)
    assert not asked
    sweep(keeper, 1)
    assert asked == [0]
    sweep(keeper, TRIM_AFTER - 1)
    assert asked == [0]


async def test_closed_sessions_return_their_memory_together(asked: list[int]) -> None:
    keeper = Keeper(3600.0)
    for _ in range(TRIM_AFTER):
        assert not asked
        session = Idle()
        keeper.opened(session)
        keeper.closed(session)
    assert asked == [0]


def test_the_allocator_of_this_system_can_be_trimmed() -> None:
    assert keepers.give_back(0) in {0, 1, None}


async def test_a_session_closed_by_the_peer_is_freed_without_collection() -> None:
    """Its end must not leave a reference cycle: a full collection may be a long time off."""
    router = Recorder()
    gc.collect()
    gc.disable()
    try:
        async with serving(smp_router(limits=QUICK), router) as port:
            stream = await connect(smp_client(), HOST, port)
            await router.until("sessions")
            tls = weakref.ref(router.sessions.pop()._tls._connection)
            await stream.close()
            await router.until("reasons")
            await until(lambda: tls() is None)
            assert router.reasons, "the reason is kept, the session is not"
    finally:
        gc.enable()
