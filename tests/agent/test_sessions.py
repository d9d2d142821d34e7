"""Sessions: connecting once, failing once, keeping circuits apart, and sending through proxies or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import Fallback, ProxyOptions, ProxyPolicy, SessionMode, SessionOptions
from blindpost.agent.failures import Kind, kind_of, kind_of_answer
from blindpost.agent.routers.proxying import QueueSender
from blindpost.agent.routers.sessions import SessionKey, Sessions, circuit_name
from blindpost.client.calls import Call, Failure
from blindpost.client.errors import (
    NoHostError,
    ProxyFailedError,
    RefusedError,
    ResponseTimeoutError,
    TooLargeError,
)
from blindpost.client.options import SmpOptions
from blindpost.client.relay import Relay
from blindpost.client.socks import SocksNetwork
from blindpost.testing.network import MemoryNetwork
from blindpost.transport import errors as transport
from blindpost.wire.addresses import Host, RouterAddress, Scheme, Server
from blindpost.wire.smp.commands import PING, SEND
from blindpost.wire.smp.errors import (
    BROKER,
    NETWORK,
    PROTOCOL,
    PROXY,
    STORE,
    TRANSPORT,
    BrokerCode,
    Code,
    ProxyCode,
    SMPError,
    TransportCode,
)
from blindpost.wire.smp.responses import MSG, OK, PONG
from tests.support.agent.network import AgentNetwork, agent_world, make_queues
from tests.support.client.scripted_router import virtual
from tests.support.router.routers import RunningRouter, running_router

HELLO = SEND(False, b"hello")


@virtual
async def test_concurrent_callers_share_one_attempt_and_one_connection(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 0) as world:
        sessions: Sessions = world.agent.sessions
        key = world.agent.key(world.server)
        before = len(world.network.connections)
        found = await asyncio.gather(*(sessions.session(key) for _ in range(10)))
        assert len(set(map(id, found))) == 1
        assert len(world.network.connections) == before + 1
        assert sessions.is_current(found[0])
        assert await sessions.send(1, world.server, Call(PING())) == PONG()


@virtual
async def test_a_caller_that_gives_up_does_not_cancel_the_attempt_for_others(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 0) as world:
        sessions: Sessions = world.agent.sessions
        key = world.agent.key(world.server)
        impatient = asyncio.create_task(sessions.session(key))
        patient = asyncio.create_task(sessions.session(key))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).key == key


@virtual
async def test_a_failed_attempt_is_remembered_for_a_moment(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 0) as world:
        sessions: Sessions = world.agent.sessions
        nowhere = replace(world.server, port="9")
        attempts = 0
        original = world.network.connect

        async def connect(*args: Any) -> Any:
            nonlocal attempts
            attempts += 1
            return await original(*args)

        world.network.connect = connect  # type: ignore[method-assign,assignment]
        for _ in range(5):
            with pytest.raises(Exception, match="nobody listens"):
                await sessions.send(1, nowhere, Call(PING()))
            await asyncio.sleep(0.5)
        assert attempts == 1
        await asyncio.sleep(1)
        with pytest.raises(Exception, match="nobody listens"):
            await sessions.send(1, nowhere, Call(PING()))
        assert attempts == 2


@virtual
async def test_a_closed_agent_opens_nothing_and_leaves_nobody_waiting(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 0) as world:
        agent = AgentNetwork(tmp_path / "other.db", network=world.network)
        waiting = asyncio.create_task(agent.sessions.session(agent.key(world.server)))
        await asyncio.sleep(0)
        await agent.close()
        with pytest.raises(transport.ClosedHereError):
            await waiting
        with pytest.raises(transport.ClosedHereError):
            await agent.sessions.session(agent.key(world.server))


@virtual
async def test_a_message_that_cannot_be_processed_does_not_stop_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with agent_world(tmp_path, 2) as world:
        agent = world.agent
        await agent.subs.subscribe_all()
        original = agent._note

        def note(rcv_id: bytes, msg: Any) -> None:
            if rcv_id == world.made[0].rcv_id:
                raise RuntimeError("a bug")
            original(rcv_id, msg)

        agent._note = note  # type: ignore[method-assign]
        await world.send()
        await world.until_received(1)
        assert "a bug" in caplog.text


@virtual
async def test_what_waited_on_a_session_that_was_replaced_is_given_by_the_new_one_alone(
    tmp_path: Path,
) -> None:
    """Taken again, behind what the new session has brought, it would be the past."""
    async with agent_world(tmp_path, 3) as world:
        agent, sessions = world.agent, world.agent.sessions
        await agent.subs.subscribe_all()
        sessions.pause_receiving("full")
        await world.send()
        async with world.away():
            pass
        await agent.told.until(lambda: agent.told.conns("UP").total() == 6)
        sessions.resume_receiving("full")
        await world.until_received(3)
        await asyncio.sleep(60)
        assert (len(agent.messages), agent.repeated) == (3, 0)


@virtual
async def test_what_waited_on_a_session_that_ended_is_taken_while_there_is_no_other(tmp_path: Path) -> None:
    async with agent_world(tmp_path, 3) as world:
        agent, sessions = world.agent, world.agent.sessions
        await agent.subs.subscribe_all()
        sessions.pause_receiving("full")
        await world.send()
        async with world.away():
            sessions.resume_receiving("full")
            await world.until_received(3)


@virtual
async def test_what_was_read_without_a_subscription_is_taken_whatever_became_of_its_session(
    tmp_path: Path,
) -> None:
    """No other session brings it, and nobody else would acknowledge it."""
    async with agent_world(tmp_path, 1) as world:
        agent, sessions = world.agent, world.agent.sessions
        await agent.subs.subscribe_all()
        taken: list[bytes] = []
        agent._note = lambda rcv_id, msg: taken.append(msg.msg_id)  # type: ignore[method-assign]
        agent.acknowledges = False
        ended = agent.session(world.server)
        async with world.away():
            pass
        await agent.told.until(lambda: agent.told.conns("UP").total() == 2)
        for subscribed in (True, False):
            msg = MSG(b"subscribed" if subscribed else b"read", b"")
            await sessions.hand_over(ended, [(world.made[0].rcv_id, msg)], subscribed=subscribed)
        assert taken == [b"read"]


@virtual
async def test_what_comes_on_a_session_that_is_retired_is_taken(tmp_path: Path) -> None:
    """It serves its queues until they have moved to the new one."""
    async with agent_world(tmp_path, 3) as world:
        agent, sessions = world.agent, world.agent.sessions
        await agent.subs.subscribe_all()
        key = agent.key(world.server)
        retired = sessions.retire(key)
        assert await sessions.session(key) is not retired
        await world.send()
        await world.until_received(3)
        sessions.dismiss(retired)


SERVER = Server((Host("one.example"),), "5223", bytes(32))
OTHER = Server((Host("two.example"),), "5223", bytes(32))


def test_circuits_are_shared_according_to_the_mode() -> None:
    def name(mode: SessionMode, user_id: int, server: Server, entity: str | None, started_at: float) -> str:
        return circuit_name(SessionKey(user_id, server, entity), mode, started_at)

    first = (1, SERVER, "a", 5.0)
    others = [(2, SERVER, "a", 5.0), (1, SERVER, "a", 6.0), (1, OTHER, "a", 5.0), (1, SERVER, "b", 5.0)]
    shared = {
        SessionMode.USER: [False, True, True, True],
        SessionMode.SESSION: [False, False, True, True],
        SessionMode.SERVER: [False, False, False, True],
        SessionMode.ENTITY: [False, False, False, False],
    }
    for mode, expected in shared.items():
        assert [name(mode, *other) == name(mode, *first) for other in others] == expected


async def test_the_circuit_name_is_sent_to_the_socks_proxy() -> None:
    socks = SocksNetwork("127.0.0.1", 9050)
    options = SessionOptions(client=SmpOptions(network=socks, onion_network=socks))
    sessions = Sessions(None, None, options)  # type: ignore[arg-type]
    key = sessions.key(1, SERVER)
    chosen = sessions._network(key, socks)
    assert isinstance(chosen, SocksNetwork)
    assert chosen.user == circuit_name(key, SessionMode.SESSION, sessions._started_at)
    assert sessions._onion_network(key) == chosen


# Proxies


class Routers:
    """Two routers and an agent that knows the first."""

    def __init__(self, network: MemoryNetwork, ours: RunningRouter, theirs: RunningRouter) -> None:
        self.network = network
        self.ours = ours
        self.theirs = theirs
        self.agent: AgentNetwork
        self.queue: bytes
        self.known: list[RouterAddress] = [RouterAddress(Scheme.SMP, ours.server)]

    def sender(self, policy: ProxyPolicy, fallback: Fallback = Fallback.ALLOW) -> QueueSender:
        return QueueSender(self.agent.sessions, lambda _: self.known, ProxyOptions(policy, fallback))

    def connected_to(self, running: RunningRouter) -> bool:
        return self.agent.sessions.current(self.agent.key(running.server)) is not None


@asynccontextmanager
async def two_routers(folder: Path) -> AsyncIterator[Routers]:
    network = MemoryNetwork()
    async with (
        running_router(folder / "ours", network=network) as ours,
        running_router(folder / "theirs", network=network) as theirs,
    ):
        theirs.server = replace(theirs.server, hosts=(Host("127.0.0.1"), Host("theirs.example")))
        routers = Routers(network, ours, theirs)
        peer = await theirs.connect(network=network)
        (made,) = await make_queues(peer, theirs.server, 1)
        routers.queue = made.snd_id
        routers.agent = AgentNetwork(folder / "agent.db", network=network)
        try:
            yield routers
        finally:
            await routers.agent.close()
            await peer.close()


@pytest.mark.parametrize(
    ("policy", "by_proxy"),
    [(ProxyPolicy.ALWAYS, True), (ProxyPolicy.NEVER, False), (ProxyPolicy.UNKNOWN, False)],
)
def test_the_policy_decides_about_known_routers(tmp_path: Path, policy: ProxyPolicy, by_proxy: bool) -> None:
    """Both routers are at 127.0.0.1, so the peer's counts as known."""

    @virtual
    async def run() -> None:
        async with two_routers(tmp_path) as routers:
            answered = await routers.sender(policy).send_to_queue(
                1, routers.theirs.server, Call(HELLO, routers.queue)
            )
            assert answered.response == OK()
            assert answered.proxy == (routers.ours.server if by_proxy else None)
            assert routers.connected_to(routers.theirs) is not by_proxy

    run()


@virtual
async def test_a_proxy_session_is_shared_and_remade_when_the_proxy_forgot_it(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as routers:
        sender, proxy = routers.sender(ProxyPolicy.ALWAYS), routers.ours.server
        opened = 0
        original = Relay.open.__func__  # type: ignore[attr-defined]

        async def counted(cls: type[Relay], *args: Any) -> Relay:
            nonlocal opened
            opened += 1
            relay: Relay = await original(cls, *args)
            return relay

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Relay, "open", classmethod(counted))
            calls = [
                sender.send_to_queue(1, routers.theirs.server, Call(HELLO, routers.queue)) for _ in range(5)
            ]
            answers = await asyncio.gather(*calls)
            assert {answered.proxy for answered in answers} == {proxy}
            assert opened == 1
            proxy_session = routers.agent.session(proxy)
            relay = proxy_session.relays[routers.theirs.server].result()
            assert isinstance(relay, Relay)
            relay._session_id = bytes(32)
            answered = await sender.send_to_queue(1, routers.theirs.server, Call(HELLO, routers.queue))
            assert answered.response == OK()
            assert opened == 2


@virtual
async def test_a_refusal_by_the_relay_is_raised_and_never_retried_directly(tmp_path: Path) -> None:
    async with two_routers(tmp_path) as routers:
        sender = routers.sender(ProxyPolicy.ALWAYS)
        with pytest.raises(RefusedError) as refused:
            await sender.send_to_queue(1, routers.theirs.server, Call(HELLO, bytes(24)))
        assert refused.value.error is Code.AUTH
        assert not routers.connected_to(routers.theirs)


@pytest.mark.parametrize(("fallback", "direct"), [(Fallback.ALLOW, True), (Fallback.PROHIBIT, False)])
def test_falling_back_to_a_direct_connection(tmp_path: Path, fallback: Fallback, direct: bool) -> None:
    @virtual
    async def run() -> None:
        async with two_routers(tmp_path) as routers:
            sender = routers.sender(ProxyPolicy.ALWAYS, fallback)

            async def no_host(*args: Any) -> Relay:
                raise ProxyFailedError(PROXY(BROKER(BrokerCode.HOST)))

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Relay, "open", no_host)
                sending = sender.send_to_queue(1, routers.theirs.server, Call(HELLO, routers.queue))
                if direct:
                    assert (await sending).proxy is None
                else:
                    with pytest.raises(ProxyFailedError):
                        await sending
            assert routers.connected_to(routers.theirs) is direct

    run()


def test_a_protected_network_needs_no_proxy_and_may_fall_back() -> None:
    socks = SocksNetwork("127.0.0.1", 9050)
    onion = Server((Host("abcdefgh.onion"),), "", bytes(32))

    def protected(client: SmpOptions, server: Server) -> tuple[bool, bool]:
        sessions = Sessions(None, None, SessionOptions(client=client))  # type: ignore[arg-type]
        options = ProxyOptions(ProxyPolicy.UNPROTECTED, Fallback.PROTECTED)
        sender = QueueSender(sessions, lambda _: [RouterAddress(Scheme.SMP, OTHER)], options)
        return sender._wants_proxy(1, server), sender._may_fall_back(server)

    unknown = ProxyOptions(ProxyPolicy.UNKNOWN)
    sessions = Sessions(None, None, SessionOptions(client=SmpOptions(network=socks)))  # type: ignore[arg-type]
    sender = QueueSender(sessions, lambda _: [RouterAddress(Scheme.SMP, OTHER)], unknown)
    assert [sender._wants_proxy(1, server) for server in (SERVER, OTHER)] == [True, False]
    assert protected(SmpOptions(), SERVER) == (True, False)
    assert protected(SmpOptions(), OTHER) == (False, False)
    assert protected(SmpOptions(network=socks), SERVER) == (False, True)
    assert protected(SmpOptions(onion_network=socks), onion) == (False, True)
    assert protected(SmpOptions(), onion) == (True, False)


# What errors mean


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ResponseTimeoutError(), Kind.TEMPORARY),
        (transport.ConnectError(), Kind.TEMPORARY),
        (transport.UnknownCaError(), Kind.TEMPORARY),
        (transport.PeerClosedError(), Kind.TEMPORARY),
        (transport.TlsTimeoutError(), Kind.TEMPORARY),
        (transport.HandshakeBadServiceError(), Kind.TEMPORARY),
        (NoHostError(), Kind.HOST),
        (transport.HandshakeVersionError(), Kind.HOST),
        (transport.HandshakeIdentityError(), Kind.PERMANENT),
        (TooLargeError(), Kind.PERMANENT),
        (RefusedError(Code.AUTH), Kind.PERMANENT),
        (RefusedError(STORE("full")), Kind.TEMPORARY),
        (ProxyFailedError(PROXY(BROKER(NETWORK()))), Kind.TEMPORARY),
        (ProxyFailedError(PROXY(ProxyCode.BASIC_AUTH)), Kind.PERMANENT),
    ],
)
def test_every_failure_has_one_kind(failure: Failure, kind: Kind) -> None:
    assert kind_of(failure) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PROXY(ProxyCode.NO_SESSION), Kind.TEMPORARY),
        (PROXY(BROKER(BrokerCode.TIMEOUT)), Kind.TEMPORARY),
        (PROXY(BROKER(TRANSPORT(TransportCode.HANDSHAKE_BAD_SERVICE))), Kind.TEMPORARY),
        (PROXY(BROKER(TRANSPORT(TransportCode.VERSION))), Kind.HOST),
        (PROXY(BROKER(BrokerCode.HOST)), Kind.HOST),
        (PROXY(BROKER(BrokerCode.NO_SERVICE)), Kind.PERMANENT),
        (PROXY(PROTOCOL(STORE("full"))), Kind.TEMPORARY),
        (PROXY(PROTOCOL(Code.AUTH)), Kind.PERMANENT),
        (Code.QUOTA, Kind.PERMANENT),
    ],
)
def test_errors_behind_a_proxy_have_a_kind_too(error: SMPError, kind: Kind) -> None:
    assert kind_of_answer(error) is kind
