"""Two agents over a real router: the fast handshake, messages both ways, restarts."""

from __future__ import annotations

from pathlib import Path

from blindpost.agent import MsgOk, Sent
from tests.support.agent.agents import connect, party
from tests.support.router.routers import running_router


async def test_two_agents_connect_talk_and_resume_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "router").mkdir()
    async with running_router(tmp_path / "router") as router:
        async with (
            party(tmp_path / "a.db", router.server) as alice,
            party(tmp_path / "b.db", router.server) as bob,
        ):
            ours, theirs = await connect(alice, bob)
            assert ours.security_code == theirs.security_code
            assert await ours.send(b"hello") == 2
            got = await bob.message()
            assert (got.msg.body, got.msg.integrity, got.msg.id) == (b"hello", MsgOk(), 2)
            await theirs.send(b"hi")
            assert (await alice.message()).msg.body == b"hi"
            assert (await alice.expect(Sent)).msg_id == 2
        async with (
            party(tmp_path / "a.db", router.server) as alice,
            party(tmp_path / "b.db", router.server) as bob,
        ):
            await alice.agent.connection(ours.id).send(b"again")
            assert (await bob.message()).msg.body == b"again"
            await bob.agent.connection(theirs.id).send(b"and back")
            back = await alice.message()
            assert (back.msg.body, back.msg.integrity, back.msg.pq) == (b"and back", MsgOk(), True)
