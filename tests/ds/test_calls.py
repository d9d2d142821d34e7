"""What the calls promise, over real TLS and a real store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blindpost.ds.client import DsClient, RefusedError
from blindpost.ds.model import CHANNEL_ID_BYTES_MAX, KEY_PACKAGE_BYTES_MAX, PAYLOAD_BYTES_MAX
from blindpost.wire.capnp.node import Auth, Enqueue, Fetch, FetchWait, Payloads, Request
from tests.support.ds.delivery import ALICE, BOB, Running, running

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
async def ds(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as service:
        yield service


@pytest.fixture
async def client(ds: Running) -> AsyncIterator[DsClient]:
    async with await ds.client() as connected:
        yield connected


def stored(ds: Running) -> int:
    return ds.service.store.totals()[0]


async def refused(client: DsClient, request: Request) -> str:
    with pytest.raises(RefusedError) as caught:
        await client._ask(request, object)
    return str(caught.value)


@pytest.mark.claim("DLV-01")
async def test_payloads_round_trip(client: DsClient) -> None:
    payloads = [b"\0" * 100, b"\0", random.Random(1).randbytes(3000), b"\x00\x01\x00\x02not MLS", b"\xff" * 7]
    for payload in payloads:
        await client.enqueue(ALICE, payload)
    assert await client.fetch(ALICE) == tuple(payloads)


@pytest.mark.claim("DLV-02")
async def test_key_and_channel_are_two_fields(ds: Running, client: DsClient) -> None:
    async with await ds.client() as other:
        await client.enqueue(ALICE, b"one", b"c")
        await other.enqueue(ALICE, b"two", b"c")
    one, another = b"x" * 31 + b"y", b"x" * 32
    await client.enqueue(one, b"of one", b"z")
    await client.enqueue(another, b"of another", b"yz")
    assert await client.fetch(one, b"z") == (b"of one",)
    assert await client.fetch(another, b"yz") == (b"of another",)
    assert await client.fetch(ALICE, b"c") == (b"one", b"two")


@pytest.mark.claim("DLV-07")
async def test_queues_are_separate(client: DsClient) -> None:
    places = [(key, channel) for key in (ALICE, BOB) for channel in (b"1", b"2")]
    for key, channel in places:
        await client.enqueue(key, key[:1] + channel, channel)
    assert await client.fetch(ALICE, b"1") == (b"A1",)
    for key, channel in places[1:]:
        assert await client.fetch(key, channel) == (key[:1] + channel,)


@pytest.mark.claim("DLV-08")
async def test_channel_ids_of_many_lengths_name_separate_queues(client: DsClient) -> None:
    channels = [b"c" * length for length in (0, 1, 16, 64, CHANNEL_ID_BYTES_MAX)]
    for channel in channels:
        await client.enqueue(ALICE, b"%d" % len(channel), channel)
    for channel in channels:
        assert await client.fetch(ALICE, channel) == (b"%d" % len(channel),)


@pytest.mark.claim("DLV-53")
async def test_a_channel_id_above_the_limit_is_refused(ds: Running, client: DsClient) -> None:
    text = f"channelId exceeds max size ({CHANNEL_ID_BYTES_MAX} bytes)"
    assert await refused(client, Enqueue(ALICE, b"p", b"c" * (1 << 20), 1, Auth())) == text
    assert await refused(client, Fetch(ALICE, b"c" * 256, 1, Auth())) == text
    assert await refused(client, FetchWait(ALICE, b"c" * 256, 1, 0, Auth())) == text
    assert stored(ds) == 0


@pytest.mark.claim("DLV-09")
async def test_first_in_first_out(client: DsClient) -> None:
    payloads = [b"%d" % number for number in range(1000)]
    await asyncio.gather(*(client.enqueue(ALICE, payload) for payload in payloads))
    assert await client.fetch(ALICE) == tuple(payloads)


@pytest.mark.claim("DLV-13")
@pytest.mark.parametrize("length", [0, 31, 33])
async def test_recipient_keys_of_a_wrong_length(ds: Running, client: DsClient, length: int) -> None:
    key, text = b"k" * length, f"recipientKey must be exactly 32 bytes, got {length}"
    assert await refused(client, Enqueue(key, b"p", b"", 1, Auth())) == text
    assert await refused(client, Fetch(key, b"", 1, Auth())) == text
    assert await refused(client, FetchWait(key, b"", 1, 60_000, Auth())) == text
    assert stored(ds) == 0


@pytest.mark.claim("DLV-14")
async def test_an_empty_payload(ds: Running, client: DsClient) -> None:
    with pytest.raises(RefusedError, match=r"^payload must not be empty$"):
        await client.enqueue(ALICE, b"")
    assert stored(ds) == 0


@pytest.mark.claim("DLV-15")
async def test_the_largest_payload(ds: Running, client: DsClient) -> None:
    largest = random.Random(2).randbytes(5_242_880)
    assert len(largest) == PAYLOAD_BYTES_MAX
    await client.enqueue(ALICE, largest)
    with pytest.raises(RefusedError, match=r"^payload exceeds max size \(5242880 bytes\)$"):
        await client.enqueue(ALICE, largest + b"1")
    assert await client.fetch(ALICE) == (largest,)


@pytest.mark.claim("DLV-16")
@pytest.mark.parametrize("version", [2, 65_535])
async def test_other_wire_versions(ds: Running, client: DsClient, version: int) -> None:
    text = f"unsupported wire version {version} (expected 0 or 1)"
    assert await refused(client, Enqueue(ALICE, b"p", b"", version, Auth())) == text
    assert await refused(client, Fetch(ALICE, b"", version, Auth())) == text
    assert await refused(client, FetchWait(ALICE, b"", version, 60_000, Auth())) == text
    assert stored(ds) == 0
    for accepted in (0, 1):
        await client._ask(Enqueue(ALICE, b"%d" % accepted, b"", accepted, Auth()), object)
    assert await client.fetch(ALICE) == (b"0", b"1")


@pytest.mark.claim("DLV-19")
async def test_fetch_empties_the_queue(client: DsClient) -> None:
    for payload in (b"1", b"2", b"3"):
        await client.enqueue(ALICE, payload)
    assert await client.fetch(ALICE) == (b"1", b"2", b"3")
    assert await client.fetch(ALICE) == ()
    assert await client.fetch(random.Random(3).randbytes(32), b"unknown") == ()


@pytest.mark.claim("DLV-29")
async def test_version_0_has_no_channels(client: DsClient) -> None:
    await client._ask(Enqueue(ALICE, b"old", b"X", 0, Auth()), object)
    assert await client.fetch(ALICE, b"X") == ()
    assert await client.fetch(ALICE, b"") == (b"old",)
    await client.enqueue(ALICE, b"new")
    found = await client._ask(Fetch(ALICE, b"Y" * 500, 0, Auth()), Payloads)
    assert found.payloads == (b"new",)
    await client.enqueue(ALICE, b"newer")
    found = await client._ask(FetchWait(ALICE, b"Z", 0, 0, Auth()), Payloads)
    assert found.payloads == (b"newer",)


@pytest.mark.claim("DLV-30")
async def test_versions_share_the_empty_channel_only(client: DsClient) -> None:
    for into in (0, 1):
        for out in (0, 1):
            await client._ask(Enqueue(ALICE, b"%d%d" % (into, out), b"", into, Auth()), object)
            await client.enqueue(ALICE, b"of C", b"C")
            found = await client._ask(Fetch(ALICE, b"", out, Auth()), Payloads)
            assert found.payloads == (b"%d%d" % (into, out),)
            assert await client.fetch(ALICE, b"C") == (b"of C",)


@pytest.mark.claim("DLV-33")
async def test_the_largest_key_package(client: DsClient) -> None:
    assert KEY_PACKAGE_BYTES_MAX == 1_048_576
    largest = b"k" * KEY_PACKAGE_BYTES_MAX
    await client.upload_key_package(ALICE, largest)
    with pytest.raises(RefusedError, match=r"^package exceeds max size \(1048576 bytes\)$"):
        await client.upload_key_package(ALICE, largest + b"1")
    assert await client.fetch_key_package(ALICE) == largest


async def test_a_key_package_is_handed_out_once(ds: Running, client: DsClient) -> None:
    packages = [b"package %d" % number for number in range(20)]
    for package in packages:
        await client.upload_key_package(ALICE, package)
    async with await ds.client() as other:
        callers = [client, other] * 11
        found = await asyncio.gather(*(caller.fetch_key_package(ALICE) for caller in callers))
    assert sorted(package for package in found if package) == sorted(packages)
    assert found.count(None) == 2
    assert await client.fetch(ALICE) == ()


async def test_key_packages_and_payloads_do_not_mix(client: DsClient) -> None:
    await client.upload_key_package(ALICE, b"package")
    await client.enqueue(ALICE, b"payload")
    assert await client.fetch(ALICE) == (b"payload",)
    assert await client.fetch_key_package(ALICE) == b"package"
