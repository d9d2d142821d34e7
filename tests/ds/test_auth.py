"""Who may do what, and what is never disclosed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from blindpost.ds.auth import Closed
from blindpost.ds.client import DsClient, RefusedError
from blindpost.ds.meters import Meter
from blindpost.ds.model import DsRules
from blindpost.ds.server import DeliveryService
from blindpost.ds.tables import LmdbTables
from blindpost.serving.logs import _Lines
from blindpost.wire.capnp.node import (
    Ack,
    Auth,
    Enqueue,
    Fetch,
    FetchKeyPackage,
    FetchWait,
    Lease,
    Request,
    UploadKeyPackage,
)
from tests.support.ds.delivery import ALICE, BOB, Running, cut, running, silent, tokens

pytestmark = pytest.mark.usefixtures("way")

OF_ALICE, OF_BOB = b"token of alice", b"token of bob"


async def refused(client: DsClient, request: Request) -> str:
    with pytest.raises(RefusedError) as caught:
        await client._ask(request, object)
    return str(caught.value)


def content(ds: Running) -> dict[str, int]:
    return ds.service.store.counts()


@pytest.mark.claim("DLV-12")
@pytest.mark.parametrize("auth", [Auth(), Auth(1, b"a wrong token"), Auth(0, OF_ALICE), Auth(2, OF_ALICE)])
async def test_authentication_is_checked_first(tmp_path: Path, auth: Auth) -> None:
    async with running(tmp_path, authority=tokens()) as ds, await ds.client(OF_ALICE) as client:
        await client.enqueue(ALICE, b"there")
        before = content(ds)
        requests = (
            Enqueue(ALICE, b"x", b"", 1, auth),
            Enqueue(b"short", b"", b"c" * 999, 77, auth),
            Fetch(ALICE, b"", 1, auth),
            FetchWait(ALICE, b"", 1, 60_000, auth),
            FetchWait(BOB, b"", 1, 60_000, auth),
            Lease(ALICE, b"", 1, 60_000, 0, 0, auth),
            Ack(ALICE, b"", 1, (b"x" * 16,), auth),
            UploadKeyPackage(ALICE, b"p", auth),
            FetchKeyPackage(ALICE, auth),
        )
        for request in requests:
            assert await refused(client, request) == "authentication failed"
        assert content(ds) == before
        assert len(ds.service.plan.state.waiting) == len(ds.service.plan.state.held) == 0
        assert ds.count(Meter.REFUSED_AUTH) == len(requests)
        assert await client.fetch(ALICE) == (b"there",)


async def test_a_service_without_configured_authority_refuses_everybody(tmp_path: Path) -> None:
    store = LmdbTables(tmp_path / "store")
    service = DeliveryService(store)
    assert isinstance(service.plan.authority, Closed)
    store.close()
    async with running(tmp_path, authority=Closed()) as ds, await ds.client(OF_ALICE) as client:
        with pytest.raises(RefusedError, match=r"^authentication failed$"):
            await client.enqueue(ALICE, b"x")


@pytest.mark.claim("DLV-50")
async def test_only_the_owner_can_fetch_from_a_queue(tmp_path: Path) -> None:
    async with running(tmp_path, authority=tokens()) as ds:
        async with await ds.client(OF_BOB) as bob, await ds.client(OF_ALICE) as alice:
            await bob.enqueue(ALICE, b"for alice")
            (leased,) = await alice.lease(ALICE)
            auth = Auth(1, OF_BOB)
            for request in (
                Fetch(ALICE, b"", 1, auth),
                FetchWait(ALICE, b"", 1, 60_000, auth),
                Lease(ALICE, b"", 1, 60_000, 0, 0, auth),
                Ack(ALICE, b"", 1, (leased.id,), auth),
            ):
                assert await refused(bob, request) == "recipientKey belongs to another identity"
            with pytest.raises(RefusedError, match=r"^identityKey belongs to another identity$"):
                await bob.upload_key_package(ALICE, b"not hers")
            await alice.upload_key_package(ALICE, b"hers")
            assert await bob.fetch_key_package(ALICE) == b"hers"
        async with await ds.client(OF_ALICE) as alice:
            assert await alice.fetch_wait(ALICE, timeout_s=60) == (b"for alice",)


@pytest.mark.claim("DLV-11")
async def test_a_refused_enqueue_writes_nothing_and_wakes_nobody(tmp_path: Path) -> None:
    rules = DsRules(queue_payloads=0)
    async with (
        running(tmp_path, rules, tokens()) as ds,
        await ds.client(OF_ALICE) as client,
        await ds.client(OF_ALICE) as waiting,
    ):
        task = asyncio.create_task(waiting.fetch_wait(ALICE, timeout_s=60))
        await ds.until(lambda: len(ds.service.plan.state.waiting) == 1)
        good = Auth(1, OF_ALICE)
        for request in (
            Enqueue(ALICE, b"x", b"", 1, Auth()),
            Enqueue(ALICE, b"", b"", 1, good),
            Enqueue(ALICE, b"x", b"", 2, good),
            Enqueue(ALICE[1:], b"x", b"", 1, good),
            Enqueue(ALICE, b"x", b"", 1, good),
        ):
            await refused(client, request)
        assert set(content(ds).values()) == {0}
        assert ds.count(Meter.WAKES) == 0
        task.cancel()


@pytest.mark.claim("DLV-38")
async def test_payloads_and_tokens_are_never_logged_or_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marker, token = b"MARKERPAYLOAD", b"token of alice"
    caplog.set_level(logging.DEBUG)
    rules = DsRules(queue_payloads=2)
    texts: list[str] = []
    async with running(tmp_path, rules, tokens()) as ds, await ds.client(token) as client:
        store = ds.service.store
        await client.enqueue(ALICE, marker)
        await client.enqueue(ALICE, marker)
        for request in (
            Enqueue(ALICE, marker, b"", 1, Auth(1, token)),
            Enqueue(ALICE, marker, b"", 3, Auth(1, token)),
            Enqueue(ALICE[1:], marker, b"", 1, Auth(1, token)),
            Enqueue(ALICE, marker, b"", 1, Auth(1, token + b"?")),
            Fetch(BOB, b"", 1, Auth(1, token)),
        ):
            texts.append(await refused(client, request))
            texts.append(repr(request))
        silent(client)
        await client.fetch(ALICE)
        cut(client)
        await ds.until(lambda: ds.count(Meter.PUT_BACK) == 2)
        async with await ds.client(token) as other:
            commit = store.commit

            async def failing(changes: object) -> None:
                raise RuntimeError(marker.decode(), changes)

            setattr(store, "commit", failing)  # noqa: B010 - a store with a bug
            texts.append(await refused(other, Enqueue(BOB, marker, b"", 1, Auth(1, token))))
            setattr(store, "commit", commit)  # noqa: B010 - and without
        texts += map(str, ds.service.plan.meters.values().items())
    lines = _Lines()  # as `blindpost ds start` writes them
    for record in caplog.records:
        record.exc_text = None
        texts.append(lines.format(record))
    told = "\n".join(texts)
    assert "failed" in told
    for secret in (marker, token):
        assert secret.decode() not in told
        assert secret.hex() not in told


async def test_no_single_identity_can_take_all_key_packages_of_another(tmp_path: Path) -> None:
    rules = DsRules(taken_packages=3, taken_packages_of_one=2, sender_payloads=2)
    async with (
        running(tmp_path, rules, authority=tokens()) as ds,
        await ds.client(OF_ALICE) as alice,
        await ds.client(OF_BOB) as bob,
    ):
        for number in range(4):
            await alice.upload_key_package(ALICE, b"package %d" % number)
        for _ in range(2):
            assert await bob.fetch_key_package(ALICE)
        told = "too many key packages were taken, try again later"
        assert await refused(bob, FetchKeyPackage(ALICE, Auth(1, OF_BOB))) == told
        for _ in range(2):
            assert await alice.fetch_key_package(ALICE), "his own are not counted"
        for _ in range(2):
            await bob.enqueue(ALICE, b"x")
        told = "too much was sent by one identity, try again later"
        assert await refused(bob, Enqueue(ALICE, b"x", b"", 1, Auth(1, OF_BOB))) == told
        await alice.enqueue(BOB, b"y")
        assert len(await alice.fetch(ALICE)) == 2
