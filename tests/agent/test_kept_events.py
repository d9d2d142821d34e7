"""Events that a program must act on are repeated until it has taken the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import (
    Agent,
    AgentError,
    BrokerError,
    CommandCode,
    CommandError,
    Connected,
    Connection,
    ConnectionCode,
    ConnError,
    CriticalError,
    Event,
    Failed,
    InfoReceived,
    InternalError,
    Joined,
    ProtocolCode,
    ProtocolError,
    ProxyError,
    RatchetSync,
    SendFailed,
    SendsFailed,
    Sent,
    SmpError,
    SyncState,
)
from blindpost.agent.notifications.errors import NtfError
from blindpost.agent.work.keeping import dump_event, load_event
from blindpost.client.errors import ProxyFailedError, RefusedError, ResponseTimeoutError
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.errors import WireError
from blindpost.wire.smp.errors import PROXY, Code, ProxyCode
from tests.support.agent.agents import Party, connect, on_network, party, quick_config
from tests.support.client.scripted_router import virtual
from tests.support.router.routers import running_router

SERVER = RouterAddress.from_text("smp://" + "A" * 43 + "=@smp.example.org:5223").server


async def killed(agent: Agent) -> None:
    """As if the process had died while the program handled its latest event."""
    await agent._close(finished=False)


async def taken(path: Path, network: MemoryNetwork, kind: type[Event], *, finish: bool) -> list[Event]:
    """Open the agent, take events up to one of this kind, and end; also while it is being handled."""
    agent = Agent.open(path, config=on_network(network, quick_config(subscribe=False)))
    await agent.__aenter__()
    alone = Party(agent)
    await alone.next_of(kind)
    if finish:
        await agent.close()
    else:
        await killed(agent)
    return alone.seen


@virtual
async def test_killed_at_connected(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with running_router(tmp_path / "router", network=network) as router:
        config = on_network(network, quick_config())
        async with party(tmp_path / "b.db", router.server, config=config) as bob:
            agent = Agent.open(
                tmp_path / "a.db", [RouterAddress.from_text(bob_address(bob)).text], config=config
            )
            await agent.__aenter__()
            alice = Party(agent)
            await connect(alice, bob)
            await killed(agent)
            for _ in range(2):
                seen = await taken(tmp_path / "a.db", network, Connected, finish=False)
                assert [event.name for event in seen if event.name in ("CONF", "CON")] == ["CON"]
            await taken(tmp_path / "a.db", network, Connected, finish=True)
            async with Agent.open(tmp_path / "a.db", config=config) as again:
                assert not again._ground.stream._events


def bob_address(bob: Party) -> str:
    return bob.rt.ground.servers[0].text


@virtual
async def test_killed_at_info_received_with_events_behind_it(tmp_path: Path) -> None:
    """Everything not taken comes again, in order; what was taken before does not."""
    network = MemoryNetwork()
    async with running_router(tmp_path / "router", network=network) as router:
        config = on_network(network, quick_config())
        async with party(tmp_path / "a.db", router.server, config=config) as alice:
            link = await alice.agent.invite(b"hello")
            agent = Agent.open(tmp_path / "b.db", [bob_address(alice)], config=config)
            await agent.__aenter__()
            bob = Party(agent)
            await agent.join(str(link))
            await alice.expect(Connected)
            await bob.next_of(InfoReceived)
            await killed(agent)
            seen = await taken(tmp_path / "b.db", network, Connected, finish=True)
            told = [event for event in seen if isinstance(event, Joined | InfoReceived | Connected)]
            assert [event.name for event in told] == ["INFO", "CON"]
            assert isinstance(told[0], InfoReceived)
            assert told[0].info == b"hello"


@virtual
async def test_a_row_that_cannot_be_read_is_dropped(tmp_path: Path) -> None:
    async with Agent.open(tmp_path / "a.db", config=on_network(MemoryNetwork(), quick_config())) as agent:
        with agent._ground.transaction() as tx:
            tx.sql.execute("INSERT INTO events (name, content) VALUES ('CON', x'00'), ('XYZ', x'0000')")
    async with Agent.open(tmp_path / "a.db", config=on_network(MemoryNetwork(), quick_config())) as agent:
        sql = agent._ground.store.reading.sql
        assert sql.execute("SELECT count(*) FROM events").fetchone() == (0,)


ERRORS: list[AgentError] = [
    CommandError(CommandCode.LARGE, "too long"),
    ConnError(ConnectionCode.NOT_AVAILABLE),
    ProtocolError(ProtocolCode.A_CRYPTO, "no", detail="DECRYPT_AES"),
    NtfError(SERVER, RefusedError(Code.AUTH)),
    SmpError(SERVER, RefusedError(Code.AUTH)),
    ProxyError(SERVER, ProxyFailedError(PROXY(ProxyCode.NO_SESSION))),
    BrokerError(SERVER, ResponseTimeoutError()),
    CriticalError("full", temporary=True),
    InternalError("a bug"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.word)
async def test_errors_read_back_as_stored(tmp_path: Path, error: AgentError) -> None:
    async with Agent.open(tmp_path / "a.db") as agent:
        conn = agent._ground.handle("some id")
        for event in (
            SendFailed(conn, 7, error),
            SendsFailed(conn, (1, 2), error),
            Failed(conn, error),
            RatchetSync(conn, SyncState.REQUIRED, error),
        ):
            content = dump_event(event)
            assert content is not None
            again = load_event(event.name, content, agent._ground.handle)
            assert type(again) is type(event)
            assert isinstance(again, SendFailed | SendsFailed | Failed | RatchetSync)
            assert again.conn == conn
            assert again.error is not None
            assert (type(again.error), str(again.error)) == (type(error), str(error))
            assert (again.error.word, again.error.kind) == (error.word, error.kind)


async def test_only_events_to_act_on_are_kept(tmp_path: Path) -> None:
    async with Agent.open(tmp_path / "a.db") as agent:
        conn: Connection = agent._ground.handle("some id")
        assert dump_event(Sent(conn, 1, None)) is None
        with pytest.raises(WireError):
            load_event("SENT", b"\0\0", agent._ground.handle)
