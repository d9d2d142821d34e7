"""Metrics equal the traffic, and nothing that identifies a user appears anywhere."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from pathlib import Path

import pytest

from blindpost.client.errors import ClientError
from blindpost.router.meters import Meter
from blindpost.router.running.names import OURS, REFERENCE, all_counters, counter_name
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, DEL, GET, KEY, NKEY, NSUB, SUB
from blindpost.wire.smp.responses import MSG, NID
from blindpost.wire.smp.values import NtfCreds
from tests.support.router.routers import Queue, a_message, new_key, new_queue, pushed
from tests.support.serving.commands import StartedRouter, started
from tests.support.serving.metrics import http, scraped, with_metrics

OUR_OWN = {"internalErrors", "msgDeleted", "msgMarkers", "msgMarkersGone", "storeErrors", "serviceFaults"}
"""Counters that the reference does not have."""


async def traffic(router: StartedRouter) -> list[bytes]:
    """A known exchange; every id that took part in it."""
    seen: list[bytes] = []
    async with await router.connect() as bob, await router.connect() as alice:
        queues: list[Queue] = [await new_queue(bob, secured=True) for _ in range(3)]
        for queue in queues:
            seen += [queue.recipient_id, queue.sender_id]
        first, second, third = queues
        for _ in range(4):
            await alice.send(a_message(notify=True), first.sender_id, first.sender_key)
        response = (await pushed(bob)).response
        for _ in range(2):
            assert isinstance(response, MSG)
            seen.append(response.msg_id)
            response = await bob.send(ACK(response.msg_id), first.recipient_id, first.key)
        with pytest.raises(ClientError, match="AUTH"):
            await alice.send(a_message(), second.sender_id, new_key())
        await alice.send(SUB(), second.recipient_id, second.key)
        with pytest.raises(ClientError, match="PROHIBITED"):
            await alice.send(GET(), second.recipient_id, second.key)
        creds = NtfCreds(new_key().public, new_key(Algorithm.X25519).public)
        notifier = new_key()
        nid = await bob.send(NKEY(NtfCreds(notifier.public, creds.dh_key)), second.recipient_id, second.key)
        assert isinstance(nid, NID)
        seen.append(nid.creds.notifier_id)
        await alice.send(NSUB(), nid.creds.notifier_id, notifier)
        await bob.send(DEL(), third.recipient_id, third.key)
        with pytest.raises(ClientError, match="AUTH"):
            await bob.send(KEY(new_key().public), bytes(24), new_key())
        await scraped_equal(router)
    return seen


async def scraped_equal(router: StartedRouter) -> None:
    """Counters and gauges of `traffic`, while its connections are open."""
    _, found = await scraped(router)

    def value(name: str, **labels: str) -> float:
        return found[REFERENCE + name, tuple(sorted(labels.items()))]

    assert value("queues_created") == 3
    assert value("queues_secured") == 3
    assert value("queues_deleted", type="all") == 1
    assert value("queues_deleted", type="secured") == 1
    assert value("queues_deleted_batch") == 0
    assert value("queues_total1") == value("queues_total2") == 2
    assert value("messages_sent") == value("messages_notify_sent") == 4
    assert value("messages_received") == value("messages_notify_received") == 2
    assert value("messages_sent_errors", type="auth") == 1
    assert value("messages_total") == 2
    assert value("subscribtion_end") == value("subscribtion_end_batch") == 1
    assert value("subscribtion_successes_batch") == 0
    assert value("messages_notify_get_errors", type="prohibited") == 1
    assert value("queues_notify_created") == 1
    assert value("queues_notify_total1") == 1
    assert value("subscription_ntf_requests") == 1
    assert value("subscription_ntf_requests_batch") == 0
    assert value("subscription_ntf_total") == value("subscription_ntf_clients_total") == 1
    assert value("clients_total") == 2
    assert value("subscribtion_total") == value("subscribtion_clients_total") == 2
    assert value("delivered_total") == value("delivered_clients_total") == 1
    assert value("delivery_ack_confirmed_time_count") == 2
    assert value("delivery_ack_confirmed_count", period="0-60") == 2
    assert value("delivery_ack_pending_count", period="0-60") == 1
    port = str(router.status["ports"][0])
    assert value("sockets_accepted", port=port) == value("sockets_active", port=port) == 2
    assert value("sockets_closed", port=port) == value("sockets_leaked", port=port) == 0
    for period in ("daily", "weekly", "monthly"):
        assert value(f"queues_{period}") == value(f"queues_notify_{period}") == 1
    assert (
        found[OURS + "router_commit_seconds_count", ()] == found[OURS + "router_turn_seconds_count", ()] > 0
    )
    assert value("loaded_queues_queue_count") == 2
    for prefix in ("rcv", "ntf"):
        assert value(f"{prefix}_services_count") == value(f"{prefix}_services_queues_count") == 0
    for (name, _), amount in found.items():
        if name.endswith("_errors_total") or "refused" in name:
            assert amount == 0, name


def traces(secret: bytes) -> list[bytes]:
    """The forms in which bytes could appear in a text."""
    plain = base64.b64encode(secret).rstrip(b"=")
    return [secret, secret.hex().encode(), plain, base64.urlsafe_b64encode(secret).rstrip(b"=")]


async def test_metrics_equal_the_traffic_and_nobody_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    with_metrics(folder)
    async with started(folder) as router:
        ids = await traffic(router)
        text, _ = await scraped(router)
        said = [str(await router.ask(command)) for command in ("status", "stats", "connections")]
        sender = base64.urlsafe_b64encode(ids[1]).decode()
        said += [
            str(await router.ask("queue", id=sender)),
            str(await router.ask("block", id=sender, reason="spam")),
        ]
        assert await router.end() == 0
        kept = (folder / "counters.json").read_bytes()
        for place in (router.log, text.encode(), "".join(said).encode(), kept):
            for secret in ids:
                assert not any(trace in place for trace in traces(secret))
            assert b"127.0.0.1" not in place
            assert bytes([127, 0, 0, 1]) not in place
    assert not re.search(r"(queue|entity|id|address|host)=", text)


async def test_the_listener_answers_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    with_metrics(folder)
    async with started(folder) as router:
        port = int(router.status["metrics_port"])
        assert await http(port, "GET /health") == ("HTTP/1.1 200 OK", "everything works\n")
        assert (await http(port, "GET /"))[0] == "HTTP/1.1 404 Not Found"
        assert (await http(port, "POST /metrics"))[0] == "HTTP/1.1 405 Method Not Allowed"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 100_000)
        with contextlib.suppress(ConnectionResetError):  # it hangs up with our bytes unread
            assert await reader.read() == b""
        writer.close()


def test_every_counter_has_one_name() -> None:
    names = [(name.text, labels) for _, name, labels in all_counters()]
    assert len(set(names)) == len(names) == len(Meter)
    for text, labels in names:
        assert re.fullmatch(r"(simplex_smp|blindpost)_[a-z0-9_]+", text)
        assert all(label in {"type", "source"} for label, _ in labels)
    ours = {meter for meter in Meter if counter_name(meter)[0].text.startswith(OURS)}
    assert {meter.value for meter in ours} == OUR_OWN
