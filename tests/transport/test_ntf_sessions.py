"""The notification protocol's sessions over real TLS sockets."""

from __future__ import annotations

import pytest

from blindpost.testing.clock import run_virtual
from blindpost.testing.network import MemoryNetwork
from blindpost.transport import errors
from blindpost.wire.versions import VersionRange
from tests.support.transport.sessions import (
    HOST,
    QUICK,
    Recorder,
    ntf_client,
    ntf_router,
    serving,
    smp_client,
)
from tests.support.transport.streams import connect


@pytest.mark.claim("NTF-05")
@pytest.mark.parametrize("high", [1, 2, 3])
async def test_versions_1_to_3(high: int) -> None:
    router = Recorder(echo=True)
    async with serving(ntf_router(limits=QUICK), router) as port:
        stream = await connect(ntf_client(versions=VersionRange(1, high), limits=QUICK), HOST, port)
        stream.send(bytes(510))
        assert bytes(await stream.read_block()) == bytes(510)
        with pytest.raises(errors.LargeMessageError):
            stream.send(bytes(511))
        client, own = stream.session.agreed, router.sessions[0].agreed
        assert client.version == own.version == high
        assert client.session_id == own.session_id
        assert not client.encrypted
        assert own.own_key is not None
        assert client.peer_key == own.own_key.public
        await stream.close()


@pytest.mark.claim("NTF-05")
@pytest.mark.parametrize("high", [1, 2, 3])
async def test_an_older_router(high: int) -> None:
    async with serving(ntf_router(versions=VersionRange(1, high), limits=QUICK), Recorder()) as port:
        stream = await connect(ntf_client(limits=QUICK), HOST, port)
        assert stream.session.agreed.version == high
        assert (stream.session.agreed.peer_key is None) is (high == 1)
        await stream.close()


@pytest.mark.claim("NTF-05")
async def test_versions_4_and_5_are_unknown() -> None:
    router = Recorder()
    async with serving(ntf_router(limits=QUICK), router) as port:
        with pytest.raises(errors.HandshakeVersionError):
            await connect(ntf_client(versions=VersionRange(4, 5), limits=QUICK), HOST, port)
        await router.until("reasons")
    assert router.sessions == []


@pytest.mark.claim("NTF-04")
async def test_the_protocol_name_decides_the_versions() -> None:
    router = Recorder()
    async with serving(ntf_router(limits=QUICK), router) as port:
        for alpn, version in ((b"ntf/1", 3), (b"h2", 3), (None, 1)):
            stream = await connect(ntf_client(alpn=alpn, limits=QUICK), HOST, port)
            assert stream.session.agreed.version == version
            assert stream.session.agreed.offered == VersionRange(1, version)
            assert stream.session._tls.alpn == alpn
            await stream.close()
        with pytest.raises(errors.AlpnError):
            await connect(ntf_client(alpn=b"smp/1", limits=QUICK), HOST, port)
        with pytest.raises(errors.AlpnError):
            await connect(smp_client(limits=QUICK), HOST, port)


async def test_another_identity() -> None:
    async with serving(ntf_router(limits=QUICK), Recorder()) as port:
        with pytest.raises(errors.UnknownCaError):
            await connect(ntf_client(key_hash=bytes(32), limits=QUICK), HOST, port)


@pytest.mark.claim("NTF-01")
def test_every_payload_travels_in_a_block_of_512_bytes() -> None:
    """As read from TLS itself: one 512-byte record for each payload, in both directions."""

    async def main() -> None:
        network, router = MemoryNetwork(), Recorder(echo=True)
        async with serving(ntf_router(), router, network) as port:
            stream = await connect(ntf_client(), HOST, port, network)
            up, down = network.connections[0]
            await router.until("sessions")
            for size in range(511):
                before = up.bytes_delivered, down.bytes_delivered
                stream.send(bytes(size))
                assert bytes(await stream.read_block()) == bytes(size)
                after = up.bytes_delivered, down.bytes_delivered
                assert [now - then for now, then in zip(after, before, strict=True)] == [512 + 22, 512 + 22]
            await stream.close()

    run_virtual(main())
