"""Routers that say what no router should: the agent is told, and nothing of it is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.agent import AgentError
from blindpost.agent.queues.making import QueueMaker
from blindpost.agent.routers.sessions import Session
from blindpost.agent.store.queues import RcvQueueRequest
from blindpost.client.calls import Call
from blindpost.wire.smp.commands import NEW
from blindpost.wire.smp.responses import IDS
from tests.support.agent.agents import connect, party
from tests.support.router.routers import running_router


@pytest.mark.parametrize("which", ["recipient_id", "sender_id"])
async def test_two_queues_that_are_named_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "router").mkdir()
    answered, seen = QueueMaker._answered, dict[QueueMaker, IDS]()

    async def repeated(maker: QueueMaker, request: RcvQueueRequest, call: Call[NEW]) -> tuple[Session, IDS]:
        session, ids = await answered(maker, request, call)
        first = seen.setdefault(maker, ids)
        return session, replace(ids, **{which: getattr(first, which)})

    async with (
        running_router(tmp_path / "router") as router,
        party(tmp_path / "a.db", router.server) as alice,
        party(tmp_path / "b.db", router.server) as bob,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(QueueMaker, "_answered", repeated)
            _, theirs = await connect(alice, bob)
            known = {conn.id for conn in alice.agent.connections()}
            with pytest.raises(AgentError, match="UNEXPECTED"):
                await alice.agent.invite()
        assert {conn.id for conn in alice.agent.connections()} == known
        await theirs.send(b"as before")
        assert (await alice.message()).msg.body == b"as before"
        await alice.agent.invite()
    assert not caplog.records
