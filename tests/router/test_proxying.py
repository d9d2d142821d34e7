"""PRXY, PFWD and RFWD between two real routers: permissions, answers, and what is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from blindpost.client.errors import (
    ClientError,
    GarbledResponseError,
    NoHostError,
    ProxyFailedError,
    RefusedError,
    ResponseTimeoutError,
    UnexpectedResponseError,
)
from blindpost.client.gate import GateSizes
from blindpost.client.relay import Relay
from blindpost.crypto.errors import CryptoError
from blindpost.crypto.keys import PrivateKey
from blindpost.router.changes import Wanted
from blindpost.router.config import RouterRules
from blindpost.router.relays import UNASKED_MAX, RelayKeyError, proxy_error
from blindpost.router.server import RELAY_COMMANDS_MAX
from blindpost.router.turn import RelayEffect
from blindpost.router.view import View
from blindpost.testing.clock import run_virtual
from blindpost.testing.network import Link, MemoryNetwork, P
from blindpost.transport import errors
from blindpost.wire.addresses import Host, Server
from blindpost.wire.batch import SMP_BATCH_LIMIT, pack
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.primitives import Writer, encode
from blindpost.wire.smp.commands import (
    ACK,
    DEL,
    GET,
    KEY,
    LDEL,
    LGET,
    LKEY,
    NDEL,
    NEW,
    NSUB,
    OFF,
    PING,
    PRXY,
    QUE,
    RSLV,
    SEND,
    SKEY,
    SUB,
    Command,
)
from blindpost.wire.smp.error_codec import write_error
from blindpost.wire.smp.errors import (
    BROKER,
    CMD,
    NAME,
    NETWORK,
    PROHIBITED,
    PROTOCOL,
    PROXY,
    RESPONSE,
    SYNTAX,
    TRANSPORT,
    UNEXPECTED,
    BrokerCode,
    Code,
    NameCode,
    ProxyCode,
    SMPError,
    TransportCode,
)
from blindpost.wire.smp.responses import END, ERR, LNK, OK, PKEY, PONG, PRES, Response
from blindpost.wire.smp.values import LinkData, QueueMode, SubMode
from blindpost.wire.transmissions import response_transmission
from blindpost.wire.versions import VersionRange
from tests.support.router.forwarding import ProxyLine, Sender
from tests.support.router.lines import Line, Said, create, error, open_line, pushed
from tests.support.router.routers import RunningRouter, new_credentials, new_key, running_router
from tests.support.serving.waiting import until

BASIC_AUTH = PROXY(ProxyCode.BASIC_AUTH)
NO_SESSION = PROXY(ProxyCode.NO_SESSION)
UNREACHABLE = PROXY(BROKER(NETWORK()))
BODY_MAX = 16048


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    async with running_router(tmp_path / "relay") as router:
        yield router


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[RunningRouter]:
    async with running_router(tmp_path / "proxy") as router:
        yield router


async def prxy(line: Line, server: Server, password: bytes | None = None) -> PKEY:
    reply = await line.ask(PRXY(server, password))
    assert isinstance(reply, PKEY), reply
    return reply


async def forwarded(line: Line, sender: Sender, *transmissions: Writer) -> Response:
    """What the relay answers to one PFWD, or what the proxy says instead."""
    (reply,) = await line.ask_many([sender.pfwd(*transmissions)])
    return sender.opened(reply.enc_response).response if isinstance(reply, PRES) else reply


@pytest.mark.parametrize(
    ("rules", "password", "refused"),
    [
        (RouterRules(), None, False),
        (RouterRules(), b"any", False),
        (RouterRules(password=b"secret"), b"secret", False),
        (RouterRules(password=b"secret"), b"other", True),
        (RouterRules(password=b"secret"), None, True),
        (RouterRules(password=b"secret"), b"", True),
        (RouterRules(proxy=False), None, True),
        (RouterRules(proxy=False, password=b"secret"), b"secret", True),
    ],
)
async def test_who_may_have_a_session_with_a_relay(
    relay: RunningRouter, tmp_path: Path, rules: RouterRules, password: bytes | None, refused: bool
) -> None:
    async with running_router(tmp_path / "proxy", rules) as proxy:
        line = await open_line(proxy)
        reply = await line.ask(PRXY(relay.server, password))
        assert reply == ERR(BASIC_AUTH) if refused else isinstance(reply, PKEY)
        await until(lambda: refused or bool(relay.router.connections))
        assert len(relay.router.connections) == (0 if refused else 1)
        await line.stream.close()


async def test_all_senders_share_one_session_with_a_relay(relay: RunningRouter, proxy: RunningRouter) -> None:
    first, second = await open_line(proxy), await open_line(proxy)
    pkeys = [await prxy(line, relay.server) for line in (first, first, second)]
    assert pkeys[0] == pkeys[1] == pkeys[2]
    assert pkeys[0].versions == VersionRange(8, 20)
    await until(lambda: bool(relay.router.connections))
    assert len(relay.router.connections) == len(proxy.router.relays) == 1
    (connection,) = relay.router.connections.values()
    agreed = connection.session.agreed
    assert (agreed.proxy, agreed.encrypted, agreed.session_id) == (True, False, pkeys[0].session_id)
    third = await open_line(proxy)
    sender = Sender.through(pkeys[0])
    assert await forwarded(third, sender, sender.transmission(LGET(), bytes(24))) == ERR(Code.AUTH)


async def test_two_senders_that_ask_at_once_wait_for_one_attempt(
    relay: RunningRouter, proxy: RunningRouter
) -> None:
    lines = [await open_line(proxy) for _ in range(3)]
    pkeys = await asyncio.gather(*(prxy(line, relay.server) for line in lines))
    assert pkeys[0] == pkeys[1] == pkeys[2]
    await until(lambda: bool(relay.router.connections))
    assert len(relay.router.connections) == 1


async def test_a_session_that_was_never_opened_is_unknown(proxy: RunningRouter) -> None:
    line = await open_line(proxy)
    sender = Sender(bytes(32), new_key(Algorithm.X25519).public)
    assert await forwarded(line, sender, sender.transmission(LGET(), bytes(24))) == ERR(NO_SESSION)


async def test_a_relay_that_restarts_gets_a_new_session(proxy: RunningRouter, tmp_path: Path) -> None:
    credentials, line = new_credentials(), await open_line(proxy)
    async with running_router(tmp_path / "relay", credentials=credentials) as relay:
        port, server = relay.port, relay.server
        queue = await create(await open_line(relay))
        old = await prxy(line, server)
    await until(lambda: len(proxy.router.relays) == 0)
    sender = Sender.through(old)
    assert await forwarded(line, sender, sender.transmission(SEND(False, b"hi"), queue.sender_id)) == ERR(
        NO_SESSION
    )
    async with running_router(tmp_path / "relay", credentials=credentials, port=port) as relay:
        new = await prxy(line, server)
        assert new.session_id != old.session_id
        sender = Sender.through(new)
        assert await forwarded(line, sender, sender.transmission(SEND(False, b"hi"), queue.sender_id)) == OK()


async def test_the_sender_learns_why_a_relay_cannot_be_reached(
    relay: RunningRouter, proxy: RunningRouter
) -> None:
    line = await open_line(proxy)
    here = (Host("127.0.0.1"),)
    gone = Server(here, "1", relay.server.key_hash)
    other = Server(here, str(relay.port), bytes(32))
    onion = Server((Host("a" * 56 + ".onion"),), "5223", relay.server.key_hash)
    assert await line.ask(PRXY(gone, None)) == ERR(UNREACHABLE)
    assert await line.ask(PRXY(other, None)) == ERR(UNREACHABLE)
    assert await line.ask(PRXY(onion, None)) == ERR(PROXY(BROKER(BrokerCode.HOST)))


@pytest.mark.parametrize(("offered", "reported"), [(8, 8), (9, 9), (10, 10), (12, 10), (14, 14), (20, 20)])
async def test_relays_of_all_versions_are_reached(
    proxy: RunningRouter, tmp_path: Path, offered: int, reported: int
) -> None:
    """Below 14, blocks to a proxy would be encrypted from 11 on, so it negotiates 10 at most."""
    async with running_router(tmp_path / "relay", versions=VersionRange(6, offered)) as relay:
        queue = await create(await open_line(relay, offered), mode=QueueMode.MESSAGING)
        line = await open_line(proxy)
        pkey = await prxy(line, relay.server)
        assert pkey.versions == VersionRange(8, reported)
        await until(lambda: len(relay.router.connections) == 2)
        (connection,) = (
            connection
            for connection in relay.router.connections.values()
            if connection.session.agreed.session_id == pkey.session_id
        )
        assert not connection.session.agreed.encrypted
        sender = Sender.through(pkey, reported)
        sent = sender.transmission(SEND(False, b"hello"), queue.sender_id)
        assert await forwarded(line, sender, sent) == OK()


async def test_a_relay_older_than_proxies_is_refused(proxy: RunningRouter, tmp_path: Path) -> None:
    async with running_router(tmp_path / "relay", versions=VersionRange(6, 7)) as relay:
        line = await open_line(proxy)
        too_old = ERR(PROXY(BROKER(TRANSPORT(TransportCode.VERSION))))
        assert await line.ask(PRXY(relay.server, None)) == too_old
        assert len(proxy.router.relays) == 0
        await until(lambda: not relay.router.connections)


async def test_forwarded_commands_are_decided_like_direct_ones(
    relay: RunningRouter, proxy: RunningRouter
) -> None:
    owner, line = await open_line(relay), await open_line(proxy)
    data = LinkData(b"fixed", b"user")
    contact = await create(owner, mode=QueueMode.CONTACT, link=data)
    invitation = await create(owner, link=data)
    secured = await create(owner, subscribe=True)
    pkey = await prxy(line, relay.server)

    async def ask(command: Command, entity_id: bytes = b"", key: PrivateKey | None = None) -> Response:
        sender = Sender.through(pkey)
        return await forwarded(line, sender, sender.transmission(command, entity_id, key))

    key = new_key()
    assert await ask(LGET(), contact.link_id) == LNK(contact.sender_id, data)
    assert await ask(LKEY(key.public), invitation.link_id, key) == LNK(invitation.sender_id, data)
    assert await ask(SKEY(key.public), secured.sender_id, key) == OK()
    assert await ask(SEND(False, b"hello"), secured.sender_id, key) == OK()
    assert await ask(SEND(False, b"hello"), secured.sender_id, new_key()) == ERR(Code.AUTH)
    assert await pushed(owner, secured) == b"hello"
    assert await ask(RSLV("name.example.simplex")) == ERR(NAME(NameCode.NO_RESOLVER))


@pytest.mark.parametrize(
    "command",
    [SUB(), GET(), ACK(b"id"), OFF(), DEL(), QUE(), NSUB(), NDEL(), LDEL(), PING()],
    ids=lambda command: type(command).__name__,
)
async def test_what_may_not_be_forwarded_is_refused_to_the_sender(
    relay: RunningRouter, command: Command
) -> None:
    line = await ProxyLine.open(relay)
    queue = await create(await open_line(relay), notifier=True)
    sender = line.sender()
    if isinstance(command, PING):
        said = sender.transmission(command)
    else:
        said = sender.transmission(command, queue.recipient_id, queue.key)
    reply = await line.forward(sender, said)
    assert isinstance(reply, PRES)
    answered = sender.opened(reply.enc_response)
    assert (answered.corr_id, answered.response) == (sender.corr_id, ERR(PROHIBITED))


async def test_a_queue_cannot_be_made_or_secured_by_its_recipient_through_a_proxy(
    relay: RunningRouter,
) -> None:
    line, key = await ProxyLine.open(relay), new_key()
    queue = await create(await open_line(relay))
    new = NEW(key.public, new_key(Algorithm.X25519).public, None, SubMode.SUBSCRIBE)
    for command, entity_id, signer in ((new, b"", key), (KEY(key.public), queue.recipient_id, queue.key)):
        sender = line.sender()
        reply = await line.forward(sender, sender.transmission(command, entity_id, signer))
        assert isinstance(reply, PRES)
        assert sender.opened(reply.enc_response).response == ERR(PROHIBITED)
    assert relay.router.store.counts()["queues"] == 1


async def test_exactly_one_command_is_forwarded(relay: RunningRouter, proxy: RunningRouter) -> None:
    queue = await create(await open_line(relay))
    line = await open_line(proxy)
    pkey = await prxy(line, relay.server)
    sender = Sender.through(pkey)
    one = sender.transmission(SEND(False, b"one"), queue.sender_id)
    two = sender.transmission(SEND(False, b"two"), queue.sender_id)
    assert await forwarded(line, sender, one, two) == ERR(PROXY(PROTOCOL(Code.BLOCK)))
    sender = Sender.through(pkey)
    (reply,) = await line.ask_many([sender.pfwd()])
    assert isinstance(reply, PRES), "an empty batch is one failed transmission, and its sender hears of it"
    refused = sender.opened(reply.enc_response)
    assert (refused.corr_id, refused.entity_id, refused.response) == (b"", b"", ERR(Code.BLOCK))
    assert relay.router.store.counts()["messages"] == 0


async def test_a_relay_tells_the_proxy_what_it_cannot_decrypt_or_parse(relay: RunningRouter) -> None:
    line = await ProxyLine.open(relay)
    sender = line.sender()
    stranger = Sender(line.session_id, new_key(Algorithm.X25519).public)
    said = stranger.transmission(LGET(), bytes(24))
    assert await line.forward(stranger, said) == ERR(Code.CRYPTO), "the inner box"
    assert await line.forward_raw(b"garbage") == ERR(SYNTAX)
    honest = line.box
    line.box = sender.secret
    assert await line.forward_raw(b"anything") == ERR(Code.CRYPTO), "the outer box"
    line.box = honest
    reply = await line.forward(sender, sender.transmission(LGET(), bytes(24)))
    assert isinstance(reply, PRES), "and the session goes on"
    assert sender.opened(reply.enc_response).response == ERR(Code.AUTH)


async def test_a_proxy_without_a_session_key_cannot_forward(relay: RunningRouter) -> None:
    line = await open_line(relay, offer_key=False)
    reply = await line.ask(b"RFWD " + bytes(64))
    assert reply == ERR(PROXY(BROKER(TRANSPORT(TransportCode.NO_AUTH))))


@pytest.mark.parametrize("version", [5, 6, 7, 8, 15, 16, 20, 21])
async def test_the_forwarded_version_is_the_senders_own(relay: RunningRouter, version: int) -> None:
    line, owner = await ProxyLine.open(relay), await open_line(relay)
    queue = await create(owner, subscribe=True)
    sender = line.sender(version)
    reply = await line.forward(sender, sender.transmission(SEND(False, b"hi"), queue.sender_id))
    assert isinstance(reply, PRES)
    assert sender.opened(reply.enc_response).response == OK()
    assert await pushed(owner, queue) == b"hi"


@pytest.mark.parametrize("algorithm", [Algorithm.ED25519, Algorithm.ED448, Algorithm.X25519])
async def test_the_largest_body_fits_with_every_kind_of_key(
    relay: RunningRouter, proxy: RunningRouter, algorithm: Algorithm
) -> None:
    owner, body = await open_line(relay), bytes(range(256)) * 63
    body = body[:BODY_MAX].ljust(BODY_MAX, b"!")
    queue, key = await create(owner, subscribe=True), new_key(algorithm)
    async with await proxy.connect() as client:
        session = await Relay.open(client, relay.server)
        assert await session.send(SKEY(key.public), queue.sender_id, key) == OK()
        assert await session.send(SEND(False, body), queue.sender_id, key) == OK()
        assert await pushed(owner, queue) == body
        await queue.ask(owner, ACK(queue.last_id))
        with pytest.raises(ClientError) as raised:
            await session.send(SEND(False, body + b"!"), queue.sender_id, key)
        if isinstance(raised.value, RefusedError):
            assert raised.value.error is Code.LARGE_MSG
        assert relay.router.store.counts()["messages"] == 0


async def test_a_proxy_may_be_its_own_relay(proxy: RunningRouter) -> None:
    owner = await open_line(proxy)
    queue = await create(owner, subscribe=True)
    async with await proxy.connect() as client:
        session = await Relay.open(client, proxy.server)
        assert await session.send(SEND(False, b"to myself"), queue.sender_id) == OK()
    assert await pushed(owner, queue) == b"to myself"


async def test_commands_in_flight_are_limited_per_connection(
    relay: RunningRouter, proxy: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those above the limit wait; other connections are not held up, and all are answered eventually."""
    queue, gate, under_way = await create(await open_line(relay)), asyncio.Event(), 0
    relays = proxy.router.relays
    perform, store = relays.perform, relay.router.store
    load = store.load

    def counted(effect: RelayEffect) -> None:
        nonlocal under_way
        under_way += 1
        perform(effect)

    async def held(wanted: Wanted, view: View) -> None:
        await gate.wait()
        await load(wanted, view)

    async with await proxy.connect() as client:
        session = await Relay.open(client, relay.server)
        monkeypatch.setattr(store, "load", held)
        monkeypatch.setattr(relays, "perform", counted)
        sends = [SEND(False, b"%d" % number) for number in range(RELAY_COMMANDS_MAX + 8)]
        sending = [asyncio.create_task(session.send(send, queue.sender_id)) for send in sends]
        await until(lambda: under_way >= RELAY_COMMANDS_MAX)
        other = await open_line(proxy)
        for _ in range(20):
            assert await other.ask(PING()) == PONG()
        assert under_way == RELAY_COMMANDS_MAX
        gate.set()
        assert await asyncio.gather(*sending) == [OK()] * len(sends)
        assert under_way == len(sends)
        assert await session.send(SEND(False, b"and on"), queue.sender_id) == OK()
    assert store.counts()["messages"] == len(sends) + 1


ERRORS: list[tuple[Exception, SMPError]] = [
    (RefusedError(Code.AUTH), PROXY(PROTOCOL(Code.AUTH))),
    (RefusedError(CMD(PROHIBITED.error)), PROXY(PROTOCOL(PROHIBITED))),
    (GarbledResponseError(Code.BLOCK), PROXY(BROKER(RESPONSE("BLOCK")))),
    (WireError("odd"), PROXY(BROKER(RESPONSE("odd")))),
    (UnexpectedResponseError(PONG()), PROXY(BROKER(UNEXPECTED("PONG")))),
    (ResponseTimeoutError(), PROXY(BROKER(BrokerCode.TIMEOUT))),
    (errors.ConnectTimeoutError(), PROXY(BROKER(BrokerCode.TIMEOUT))),
    (errors.HandshakeTimeoutError(), PROXY(BROKER(BrokerCode.TIMEOUT))),
    (errors.ConnectError(), UNREACHABLE),
    (errors.UnknownCaError(), UNREACHABLE),
    (errors.ConnectionCutError(), UNREACHABLE),
    (NoHostError(), PROXY(BROKER(BrokerCode.HOST))),
    (errors.HandshakeVersionError(), PROXY(BROKER(TRANSPORT(TransportCode.VERSION)))),
    (errors.HandshakeBadAuthError(), PROXY(BROKER(TRANSPORT(TransportCode.HANDSHAKE_BAD_AUTH)))),
    (RelayKeyError(), PROXY(BROKER(TRANSPORT(TransportCode.NO_AUTH)))),
    (CryptoError("no"), Code.CRYPTO),
    (OSError("disk"), Code.INTERNAL),
]


@pytest.mark.parametrize(("failure", "told"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_failure_of_a_proxy_has_its_error(failure: Exception, told: SMPError) -> None:
    assert proxy_error(failure) == told


def test_long_error_texts_fit_into_their_field() -> None:
    for failure in (WireError("x" * 1000), GarbledResponseError(Code.BLOCK)):
        encode(proxy_error(failure), write_error)


async def test_what_a_relay_answers_to_the_proxy_is_passed_on(
    relay: RunningRouter, proxy: RunningRouter
) -> None:
    async with await proxy.connect() as client:
        session = await Relay.open(client, relay.server)
        with pytest.raises(RefusedError) as refused:
            await session.send(SEND(False, b"hi"), bytes(24))
        assert refused.value.error is Code.AUTH, "the relay's own word, inside the box"
    line = await open_line(proxy)
    sender = Sender.through(await prxy(line, relay.server))
    sender.relay_key = new_key(Algorithm.X25519).public
    said = sender.pfwd(sender.transmission(LGET(), bytes(24)))
    (reply,) = await line.ask_many([said])
    assert error(reply) == PROXY(PROTOCOL(Code.CRYPTO))


async def test_a_stopped_router_leaves_no_task_and_no_connection(
    relay: RunningRouter, tmp_path: Path
) -> None:
    before = asyncio.all_tasks()
    async with running_router(tmp_path / "proxy") as proxy:
        line = await open_line(proxy)
        await prxy(line, relay.server)
        dead = Server((Host("127.0.0.1"),), "1", bytes(32))
        assert await line.ask(PRXY(dead, None)) == ERR(UNREACHABLE)
        await line.stream.close()
    await until(lambda: not relay.router.connections)
    assert asyncio.all_tasks() == before


async def test_stopping_abandons_hanging_attempts_and_commands(tmp_path: Path) -> None:
    """A relay that accepts and says nothing."""
    accepted: list[asyncio.StreamWriter] = []
    quiet = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    port = quiet.sockets[0].getsockname()[1]
    before = asyncio.all_tasks()
    async with running_router(tmp_path / "proxy") as proxy:
        line = await open_line(proxy)
        said = Said(PRXY(Server((Host("127.0.0.1"),), str(port), bytes(32)), None))
        line.send([line.written(said)])
        await until(lambda: bool(accepted))
        await line.stream.close()
    assert asyncio.all_tasks() == before
    for writer in accepted:
        writer.close()
    quiet.close()
    await quiet.wait_closed()


@pytest.mark.one_process
async def test_a_relay_may_say_little_that_nobody_asked_for(
    relay: RunningRouter, proxy: RunningRouter
) -> None:
    """Nobody reads events of a relay: a few do not matter, but they cost time, and with many it is left."""
    queue = await create(await open_line(relay))
    async with await proxy.connect() as client:
        session = await Relay.open(client, relay.server)
        say(relay, UNASKED_MAX)
        assert await session.send(SEND(False, b"hi"), queue.sender_id) == OK()
        say(relay, 1)
        await until(lambda: not proxy.router.relays)
        with pytest.raises(ProxyFailedError) as failed:
            await Relay.open(client, relay.server)
        assert failed.value.error == UNREACHABLE, "it is left alone for a while"


def say(relay: RunningRouter, count: int) -> None:
    """Let a relay say this often to its proxy what nobody asked for."""
    (peer,) = (peer for peer in relay.router.connections.values() if peer.session.agreed.proxy)
    layout, version = peer.client.layout, peer.client.version
    ends = [response_transmission(layout, version, b"", bytes(24), END()) for _ in range(count)]
    for payload in pack(ends, SMP_BATCH_LIMIT).payloads:
        peer.session.send_payload(payload)


async def test_failures_of_the_proxy_itself_are_distinguished(proxy: RunningRouter) -> None:
    async with await proxy.connect() as client:
        nowhere = Server((Host("127.0.0.1"),), "1", bytes(32))
        with pytest.raises(ProxyFailedError) as failed:
            await Relay.open(client, nowhere)
        assert failed.value.error == UNREACHABLE


@contextlib.asynccontextmanager
async def several(tmp_path: Path, count: int) -> AsyncIterator[list[RunningRouter]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running_router(tmp_path / f"relay{number}"))
            for number in range(count)
        ]


async def test_the_least_recently_used_relay_makes_room(tmp_path: Path, proxy: RunningRouter) -> None:
    proxy.router.relays._relays_max = 2
    async with several(tmp_path, 3) as relays:
        line = await open_line(proxy)
        first, second = [await prxy(line, relay.server) for relay in relays[:2]]
        sender = Sender.through(first)
        said = sender.transmission(LGET(), bytes(24))
        assert await forwarded(line, sender, said) == ERR(Code.AUTH)
        await prxy(line, relays[2].server)
        await until(lambda: not relays[1].router.connections)
        sender = Sender.through(second)
        assert await forwarded(line, sender, sender.transmission(LGET(), bytes(24))) == ERR(NO_SESSION)
        sender = Sender.through(first)
        assert await forwarded(line, sender, sender.transmission(LGET(), bytes(24))) == ERR(Code.AUTH)
        assert len(proxy.router.relays) == 2


class CountingNetwork(MemoryNetwork):
    """A network that counts attempts."""

    attempts = 0

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        self.attempts += 1
        return await super().connect(factory, host, port)


def test_pauses_before_retrying_a_dead_relay_grow_for_everyone(tmp_path: Path) -> None:
    async def main() -> None:
        network = CountingNetwork()
        async with running_router(tmp_path, network=network) as proxy:
            lines = [await open_line(proxy) for _ in range(2)]
            before = network.attempts
            asked = 0
            while asyncio.get_running_loop().time() < 120:
                # Other identities at the same place are the same dead place.
                dead = Server((Host("127.0.0.1"),), "1", bytes(31) + bytes((asked % 250,)))
                assert await lines[asked % 2].ask(PRXY(dead, None)) == ERR(UNREACHABLE)
                asked += 1
                await asyncio.sleep(0.25)
            assert asked > 400
            assert network.attempts - before <= 10
            for line in lines:
                await line.stream.close()

    run_virtual(main())


def test_a_relay_that_comes_back_is_reached_once_the_failure_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        network, credentials = MemoryNetwork(), new_credentials()
        async with running_router(tmp_path / "proxy", network=network) as proxy:
            line = await open_line(proxy)
            server = Server((Host("127.0.0.1"),), "5555", credentials.fingerprint)
            assert await line.ask(PRXY(server, None)) == ERR(UNREACHABLE)
            relay = running_router(tmp_path / "relay", network=network, credentials=credentials, port=5555)
            async with relay:
                assert await line.ask(PRXY(server, None)) == ERR(UNREACHABLE), "from memory"
                await asyncio.sleep(GateSizes().first_s)
                assert isinstance(await line.ask(PRXY(server, None)), PKEY)
            await line.stream.close()

    run_virtual(main())


def test_a_relay_that_does_not_answer_in_time_is_a_timeout(tmp_path: Path) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with (
            running_router(tmp_path / "relay", network=network) as relay,
            running_router(tmp_path / "proxy", network=network) as proxy,
        ):
            line = await open_line(proxy)
            network.plan(to_caller=Link(stall_after=1000))
            assert await line.ask(PRXY(relay.server, None)) == ERR(PROXY(BROKER(BrokerCode.TIMEOUT)))
            await asyncio.sleep(GateSizes().first_s)
            pkey = await prxy(line, relay.server)
            (stalled,) = (ends for ends in network.connections[-1:])
            stalled[1].join(stalled[0], Link(stall_after=0), random.Random(0))
            sender = Sender.through(pkey)
            started = asyncio.get_running_loop().time()
            reply = await forwarded(line, sender, sender.transmission(LGET(), bytes(24)))
            assert reply == ERR(PROXY(BROKER(BrokerCode.TIMEOUT)))
            assert asyncio.get_running_loop().time() - started == pytest.approx(60)
            await line.stream.close()

    run_virtual(main())


def test_an_attempt_in_progress_is_not_abandoned_for_another(tmp_path: Path) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with (
            running_router(tmp_path / "slow", network=network) as slow,
            running_router(tmp_path / "quick", network=network) as quick,
            running_router(tmp_path / "proxy", network=network) as proxy,
        ):
            proxy.router.relays._relays_max = 1
            line, other = await open_line(proxy), await open_line(proxy)
            network.plan(to_caller=Link(delay_s=(1, 1)))
            asking = asyncio.create_task(line.ask(PRXY(slow.server, None)))
            await until(lambda: len(slow.router.connections) + len(network.connections) > 2)
            assert await other.ask(PRXY(quick.server, None)) == ERR(UNREACHABLE)
            assert isinstance(await asking, PKEY)
            for one in (line, other):
                await one.stream.close()

    run_virtual(main())


async def test_dead_relays_cost_nobody_else_a_session(relay: RunningRouter, proxy: RunningRouter) -> None:
    line = await open_line(proxy)
    sender = Sender.through(await prxy(line, relay.server))
    stranger = await open_line(proxy)
    for number in range(1001):
        dead = Server((Host("127.0.0.1"),), "1", number.to_bytes(32, "big"))
        assert await stranger.ask(PRXY(dead, None)) == ERR(UNREACHABLE)
    said = sender.transmission(LGET(), bytes(24))
    assert await forwarded(line, sender, said) == ERR(Code.AUTH), "the session is still there"
    assert len(proxy.router.relays) == len(relay.router.connections) == 1


async def test_new_relays_replace_those_of_the_client_with_the_most(
    tmp_path: Path, proxy: RunningRouter
) -> None:
    proxy.router.relays._relays_max = 4
    async with several(tmp_path, 6) as relays:
        shared, greedy, other = [await open_line(proxy) for _ in range(3)]
        sender = Sender.through(await prxy(shared, relays[0].server))
        for relay in relays[1:4]:
            await prxy(greedy, relay.server)
        await prxy(other, relays[4].server)
        await until(lambda: not relays[1].router.connections)
        said = sender.transmission(LGET(), bytes(24))
        assert await forwarded(shared, sender, said) == ERR(Code.AUTH)
        await prxy(greedy, relays[5].server)
        await until(lambda: [len(relay.router.connections) for relay in relays] == [1, 0, 0, 1, 1, 1])


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..example", ".", "a.!.example"])
async def test_an_impossible_host_name_is_answered_and_not_logged(
    proxy: RunningRouter, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    line = await open_line(proxy)
    impossible = Server((Host(host),), "", bytes(32))
    assert await line.ask(PRXY(impossible, None)) == ERR(PROXY(BROKER(BrokerCode.HOST)))
    assert not caplog.records
