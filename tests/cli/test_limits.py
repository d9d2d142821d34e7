"""The limits of a real router, seen from two addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from blindpost.client.errors import RefusedError
from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.transport.errors import TransportError
from blindpost.transport.network import TcpNetwork
from blindpost.wire.addresses import Host, Server
from blindpost.wire.smp.commands import ACK, DEL, PING, SEND
from blindpost.wire.smp.errors import STORE, Code
from blindpost.wire.smp.responses import MSG, OK, PONG
from blindpost.wire.smp.values import SubMode
from blindpost.wire.text import unb64
from tests.support.router.routers import new_queue, pushed
from tests.support.serving.commands import StartedRouter, edit, init, run, started

P = TypeVar("P", bound=asyncio.BaseProtocol)


class From(TcpNetwork):
    """Connections from this address of the machine."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(factory, host, port, local_addr=(self._address, 0))
        return protocol


async def connect(router: StartedRouter, address: str) -> SmpClient:
    server = Server(
        (Host("127.0.0.1"),), str(router.status["ports"][0]), unb64(str(router.status["fingerprint"]))
    )
    return await SmpClient.connect(server, SmpOptions(network=From(address)))


async def test_connections_are_limited_per_address_and_in_total(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    edit(folder, "connections_per_address = 1000", "connections_per_address = 2")
    edit(folder, "connections = 50000", "connections = 3")
    async with started(folder) as router:
        one = [await connect(router, "127.0.0.1") for _ in range(2)]
        with pytest.raises(TransportError):
            await connect(router, "127.0.0.1")
        two = await connect(router, "127.0.0.2")
        with pytest.raises(TransportError):
            await connect(router, "127.0.0.3")
        assert [await client.send(PING()) for client in (*one, two)] == [PONG()] * 3
        seen = await router.ask("connections")
        assert (seen["connections"], seen["refused"], seen["addresses"]) == (3, 2, 2)
        await one[0].close()
        async with await connect(router, "127.0.0.1") as again:
            assert await again.send(PING()) == PONG()


async def test_new_queues_are_limited_per_address(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    edit(folder, "new_per_address_burst = 500", "new_per_address_burst = 3")
    edit(folder, "new_per_address_per_second = 10.0", "new_per_address_per_second = 0.001")
    async with started(folder) as router:
        async with await connect(router, "127.0.0.1") as one:
            for _ in range(3):
                await new_queue(one)
            with pytest.raises(RefusedError) as refused:
                await new_queue(one)
            assert refused.value.error == STORE("too many new queues, try again later")
            assert await one.send(PING()) == PONG()
        async with await connect(router, "127.0.0.1") as again:
            with pytest.raises(RefusedError):
                await new_queue(again)
        async with await connect(router, "127.0.0.2") as two:
            await new_queue(two)
        assert (await router.ask("connections"))["new_refused"] == 2
        assert (await router.ask("status"))["queues"] == 4


async def test_handshakes_in_flight_are_limited(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    edit(folder, "handshakes = 2000", "handshakes = 16")
    async with started(folder) as router:
        port = int(router.status["ports"][0])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await silent[0][0].read() == b"", "the oldest made room for the third"
        seen = await router.ask("connections")
        assert (seen["handshakes"], seen["connections"]) == (2, 0)
        async with await router.connect() as client:
            assert await client.send(PING()) == PONG()
        top = run("router", "status", "--config", folder / "router.toml", "--top").stdout
        assert "made room" in top
        assert "127.0.0" not in top
        for _, writer in silent:
            writer.close()
            await writer.wait_closed()


async def test_only_the_address_that_fills_the_store_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    init(folder)
    edit(folder, "stored_mib = 262144", "stored_mib = 16")
    async with (
        started(folder) as router,
        await connect(router, "127.0.0.2") as greedy,
        await connect(router, "127.0.0.3") as other,
    ):
        mine = await new_queue(other, secured=True)
        queues = [await new_queue(greedy, sub_mode=SubMode.ONLY_CREATE) for _ in range(8)]
        stored = 0
        for queue in queues:
            asked = (greedy.send(SEND(False, b"more"), queue.sender_id) for _ in range(128))
            found = await asyncio.gather(*asked, return_exceptions=True)
            stored += found.count(OK())
            told = {one.error for one in found if isinstance(one, RefusedError)}
            assert told <= {Code.QUOTA}, "what senders take for a reason to try again later"
            await other.send(SEND(False, b"hello"), mine.sender_id, mine.sender_key)
            event = await pushed(other)
            assert isinstance(event.response, MSG)
            await other.send(ACK(event.response.msg_id), mine.recipient_id, mine.key)
        assert 500 < stored < 520
        made = await asyncio.gather(*(new_queue(greedy) for _ in range(40)), return_exceptions=True)
        told = {one.error for one in made if isinstance(one, RefusedError)}
        assert told == {STORE("the router is full, try again later")}
        await new_queue(other)
        top = run("router", "status", "--config", folder / "router.toml", "--top").stdout
        assert "stored refused" in top

        assert await greedy.send(DEL(), queues[3].recipient_id, queues[3].key) == OK()
        assert await greedy.send(SEND(False, b"again"), queues[7].sender_id) == OK(), (
            "what it deleted is gone"
        )
