"""Services in a session: the third message, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.transport import errors
from blindpost.transport.handshake import Effect, FindService, Handshake, Send
from blindpost.transport.keeper import Keeper
from blindpost.transport.plan import SessionLimits
from blindpost.transport.session import Session, Stage
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.value import Buffer
from tests.support.transport.sessions import (
    HOST,
    SERVICE_ID,
    Recorder,
    service_credentials,
    serving,
    smp_client,
    smp_router,
)
from tests.support.transport.streams import connect

SERVICE = (ServiceRole.MESSAGING, service_credentials())
BLOCK_RECORD = 16384 + 22


class Hesitant(Recorder):
    """A router with a slow store."""

    def __init__(self) -> None:
        super().__init__(echo=True)
        self.asking: list[Session] = []

    def service_requested(self, session: Session, request: FindService) -> None:
        self.requests.append(request)
        self.asking.append(session)
        self.changed.set()


@pytest.mark.claim("SVC-09")
def test_a_client_sends_nothing_between_its_hello_and_the_routers_answer() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Hesitant()
        async with serving(smp_router(), router, network) as port:
            connecting = asyncio.ensure_future(connect(smp_client(service=SERVICE), HOST, port, network))
            await router.until("asking")
            caller, called = network.connections[0]
            before = caller.bytes_delivered
            await asyncio.sleep(30)
            assert not connecting.done()
            assert caller.bytes_delivered == before
            assert router.sessions == []
            assert router.asking[0].stage is Stage.HANDSHAKE
            received = called.bytes_delivered
            router.asking[0].service_found(SERVICE_ID)
            stream = await connecting
            assert called.bytes_delivered == received + BLOCK_RECORD, "the third message is one block"
            assert stream.session.agreed.service is not None
            assert stream.session.agreed.service.service_id == SERVICE_ID
            stream.send(b"first command")
            assert bytes(await stream.read_block()) == b"first command"
            assert router.payloads == [b"first command"]
            await stream.close()

    run_virtual(main())


def test_a_session_refuses_to_send_before_it_is_established() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Hesitant()
        async with serving(smp_router(), router, network) as port:
            connecting = asyncio.ensure_future(connect(smp_client(service=SERVICE), HOST, port, network))
            await router.until("asking")
            with pytest.raises(errors.ClosedError, match="not established"):
                router.asking[0].send(b"too early")
            router.asking[0].service_found(SERVICE_ID)
            await (await connecting).close()

    run_virtual(main())


def test_a_store_that_never_answers_ends_in_a_timeout_on_both_sides() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Hesitant()
        limits = SessionLimits(handshake_timeout_s=20)
        async with serving(smp_router(limits=limits), router, network) as port:
            with pytest.raises(errors.ConnectionCutError):
                await connect(smp_client(service=SERVICE), HOST, port, network)
            assert asyncio.get_running_loop().time() == 20.0
            assert [type(reason) for reason in router.reasons] == [errors.HandshakeTimeoutError]
            router.asking[0].service_found(SERVICE_ID)
            router.asking[0].service_refused()
            assert router.sessions == []

    run_virtual(main())


def test_only_the_first_answer_counts() -> None:
    async def main() -> None:
        network, router = MemoryNetwork(), Hesitant()
        async with serving(smp_router(), router, network) as port:
            connecting = asyncio.ensure_future(connect(smp_client(service=SERVICE), HOST, port, network))
            await router.until("asking")
            session = router.asking[0]
            session.service_found(SERVICE_ID)
            session.service_refused()
            session.service_found(bytes(24))
            stream = await connecting
            assert session.agreed.service is not None
            assert session.agreed.service.service_id == SERVICE_ID
            await stream.close()

    run_virtual(main())


def test_blocks_that_come_before_the_routers_answer_wait_for_it() -> None:
    """A client that does not wait for the third message is not read until the store has answered."""

    async def main() -> None:
        network, router = MemoryNetwork(), Hesitant()
        async with serving(smp_router(), router, network) as port:
            plan = smp_client(service=SERVICE, offer_key=False)
            session = Session(plan, Recorder(), Keeper(plan.limits.release_after_s))
            await network.connect(lambda: session, HOST, port)
            await router.until("asking")
            for payload in (b"early", b"also early"):
                session._blocks.write([payload], len(payload))
            session._write_out()
            await asyncio.sleep(5)
            assert router.payloads == []
            assert router.failures == []
            assert router.reasons == []
            router.asking[0].service_found(SERVICE_ID)
            await router.until("payloads", 2)
            assert router.payloads == [b"early", b"also early"]
            session.close()

    run_virtual(main())


def test_a_block_in_the_same_read_as_the_hello_waits_too() -> None:
    """The hello and a block behind it arrive together, so only the session itself can hold the block back."""

    async def main() -> None:
        network, router = MemoryNetwork(), Hesitant()
        async with serving(smp_router(), router, network) as port:
            plan = smp_client(service=SERVICE, offer_key=False)
            session = Session(plan, Recorder(), Keeper(plan.limits.release_after_s))

            def hello_and_block(effects: list[Effect]) -> None:
                for effect in effects:
                    assert isinstance(effect, Send)
                    session._blocks.write([effect.payload], len(effect.payload))
                    session._blocks.write([b"early"], 5)
                session._write_out()

            machine = plan.handshake
            session._plan = replace(plan, handshake=lambda peer: Doubled(machine(peer), hello_and_block))
            await network.connect(lambda: session, HOST, port)
            await router.until("asking")
            assert router.reasons == []
            assert router.asking[0].stage is Stage.HANDSHAKE
            router.asking[0].service_found(SERVICE_ID)
            await router.until("payloads")
            assert router.payloads == [b"early"]
            session.abort()
            await router.until("reasons")

    run_virtual(main())


class Doubled(Handshake):
    """A client's handshake that hands its effects to someone else."""

    def __init__(self, inner: Handshake, take: Callable[[list[Effect]], None]) -> None:
        self._inner = inner
        self._take = take

    def start(self) -> list[Effect]:
        return self._inner.start()

    def _read(self, payload: Buffer) -> list[Effect]:
        self._take(self._inner.received(payload))
        return []
