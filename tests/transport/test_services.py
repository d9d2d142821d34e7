"""Services in a session: the third message, and who waits for whom."""

from __future__ import annotations

import asyncio

import pytest

from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.transport import errors
from blindpost.transport.ends import connect
from blindpost.transport.handshake import FindService
from blindpost.transport.plan import Limits
from blindpost.transport.session import Session, Stage
from blindpost.wire.smp.handshake import ServiceRole
from tests.support.transport import (
    HOST,
    SERVICE_ID,
    Recorder,
    service_credentials,
    serving,
    smp_client,
    smp_router,
)

SERVICE = (ServiceRole.MESSAGING, service_credentials())
BLOCK_RECORD = 16384 + 22


class Hesitant(Recorder):
    """A router whose store takes its time."""

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
        limits = Limits(handshake_timeout_s=20)
        async with serving(smp_router(limits=limits), router, network) as port:
            with pytest.raises(errors.ConnectionCutError):
                await connect(smp_client(service=SERVICE), HOST, port, network)
            assert asyncio.get_running_loop().time() == 20.0
            assert [type(reason) for reason in router.reasons] == [errors.HandshakeTimeoutError]
            router.asking[0].service_found(SERVICE_ID)
            router.asking[0].service_refused()
            assert router.sessions == []

    run_virtual(main())


def test_an_answer_may_come_only_once() -> None:
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
