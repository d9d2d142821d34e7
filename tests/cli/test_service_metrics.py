"""The gauges of service subscriptions, as the running command shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.client.smp import SmpClient
from blindpost.wire.smp.commands import DEL, SUB, SUBS
from blindpost.wire.smp.responses import OK, SOK, SOKS
from tests.support.router.connecting import connected
from tests.support.router.routers import new_queue
from tests.support.serving.commands import StartedRouter, started
from tests.support.serving.metrics import scraped, with_metrics


async def gauges(router: StartedRouter) -> tuple[float, float]:
    """Subscribed services, and queues subscribed through them."""
    _, found = await scraped(router)
    return (
        found["simplex_smp_subscribtion_services_total", ()],
        found["simplex_smp_subscribtion_service_subs_total", ()],
    )


@pytest.mark.claim("SVC-34")
async def test_the_gauge_of_service_subscriptions_counts_each_queue_once(tmp_path: Path) -> None:
    with_metrics(tmp_path / "router")
    async with started(tmp_path / "router") as router:
        assert await gauges(router) == (0, 0)
        async with await connected(router) as client:
            queues = [await new_queue(client) for _ in range(3)]
            assert await gauges(router) == (1, 3)
        await _gone(router)
        async with await connected(router) as client:
            assert await gauges(router) == (0, 0)
            for queue in queues:
                assert isinstance(await client.send(SUB(), queue.recipient_id, queue.key), SOK)
            reply = await client.send(SUBS(3, bytes(16)))
            assert isinstance(reply, SOKS)
            assert await gauges(router) == (1, 3)
            assert await client.send(DEL(), queues[0].recipient_id, queues[0].key) == OK()
            assert await gauges(router) == (1, 2)
            await _taken_over(router, client)
        await _gone(router)


async def _taken_over(router: StartedRouter, old: SmpClient) -> None:
    async with await connected(router) as new:
        assert isinstance(await new.send(SUBS(2, bytes(16))), SOKS)
        assert await gauges(router) == (1, 2)
        assert old.closed_because is None


async def _gone(router: StartedRouter) -> None:
    """Wait until the router has noticed that nobody is connected."""
    while (await gauges(router)) != (0, 0):
        pass
