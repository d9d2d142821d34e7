"""Notification subscriptions of connections: made, checked, replaced and removed, whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import Connected, Failed, LinkCreated, Switched, SwitchPhase
from blindpost.agent.notifications import tokens, workers
from blindpost.agent.notifications.model import REGISTERED, NtfSubscription, Step
from blindpost.agent.notifications.routers import NtfRouters
from blindpost.agent.notifications.workers import CHECK_EVERY_S, FIRST_CHECK_S
from blindpost.agent.store import ntf_subscriptions as rows
from blindpost.agent.store import ntf_tokens
from blindpost.agent.store.database import Db
from blindpost.agent.store.queues import sealed_rcv
from blindpost.agent.work.retries import Schedule
from blindpost.client.calls import Call
from blindpost.crypto.keys import PrivateKey
from blindpost.engine.loop import StoreFailedError
from blindpost.testing.apns import ACCEPTED, UNREGISTERED
from blindpost.wire.addresses import Server
from blindpost.wire.ntf.commands import SNEW, Command
from blindpost.wire.ntf.pushes import MessagePush, VerificationPush
from blindpost.wire.smp.commands import NDEL
from blindpost.wire.smp.versions import NEW_NTF_CREDS_VERSION
from blindpost.wire.versions import VersionRange
from tests.support.agent.phones import ONE, OTHER, START, Phone, World, phones
from tests.support.ntf.notified import until_all
from tests.support.ntf.routers import NotifiedQueue
from tests.support.router.routers import new_key

PIPELINE = ("NKEY", "SNEW", "SCHK", "NDEL")


@pytest.mark.parametrize("tag", ["NKEY", "SNEW"])
@pytest.mark.parametrize("after", [False, True], ids=["not sent", "answer lost"])
async def test_a_step_that_crashed_is_repeated(tmp_path: Path, tag: str, after: bool) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        world.asked.hold(tag, after=after)
        await world.activate(phone)
        await world.asked.stuck.wait()
        await phone.restart()
        await phone.subscribed(conn)
        assert world.asked.tags.count(tag) == 2
        await phone.restart(subscribe=False)
        await world.send(alice, b"hello")
        (news,) = await world.news(phone)
        await news.fetch()
        await phone.got(b"hello")
        assert not phone.errors


async def test_unreachable_routers_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (workers, tokens):
        monkeypatch.setattr(module, "RECONNECT", Schedule(1000, 1000, 2000))
    async with phones(tmp_path) as (world, phone):
        _, conn = await world.friend(phone)
        world.asked.failing = {"NKEY": 2, "SNEW": 2, "NDEL": 1, "TDEL": 2}
        await world.activate(phone)
        await phone.subscribed(conn)
        assert world.asked.of("NKEY", "SNEW") == ["NKEY"] * 3 + ["SNEW"] * 3
        await phone.agent.delete_push()
        await phone.until(lambda: phone.row(conn) is None)
        await phone.until(lambda: not ntf_tokens.doomed(phone.rt.ground.store.reading))
        assert sorted(world.asked.of("NDEL", "TDEL")) == ["NDEL"] * 2 + ["TDEL"] * 3
        assert not phone.errors


async def test_a_broken_disk_is_told_once_and_ends_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "RECONNECT", Schedule(10_000, 0, 10_000))
    async with phones(tmp_path) as (world, phone):
        _, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        phone.rt.ground.store._break(StoreFailedError("the log cannot be synced"))
        (row,) = rows.all_rows(phone.rt.ground.store.reading)
        phone.rt.push._workers.wake(row)
        await phone.until(lambda: not phone.rt.push._workers._woken)
        assert [str(error) for error in phone.errors] == ["CRITICAL: the log cannot be synced"]


async def test_refusal_by_the_notification_router_is_reported_and_not_retried(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        _, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        row = phone.row(conn)
        assert row is not None
        with phone.rt.ground.transaction() as tx:
            ntf_tokens.put(tx, replace(phone.token, token_id=b"of somebody else"))
            rows.put(tx, replace(row, step=Step.NEW), tx.now, by_supervisor=True)
        await phone.restart()
        await phone.until(lambda: bool(phone.of(Failed)))
        (failed,) = phone.of(Failed)
        assert (failed.conn.id, failed.error.word) == (conn.id, "NTF AUTH")
        assert phone.row(conn) == replace(row, step=None)


async def test_a_device_token_that_changes_meanwhile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SNEW meets a token that TRPL has just replaced; it is made once the new device is verified."""
    send_many = NtfRouters.send_many

    async def overtaken(routers: NtfRouters, server: Server, calls: Sequence[Call[Command]]) -> Any:
        if any(isinstance(call.command, SNEW) for call in calls) and phone.token.is_active:
            monkeypatch.undo()
            await phone.agent.register_push(OTHER)
        return await send_many(routers, server, calls)

    async with phones(tmp_path) as (world, phone):
        await world.activate(phone)
        monkeypatch.setattr(NtfRouters, "send_many", overtaken)
        _, conn = await world.friend(phone)
        await phone.until(lambda: world.asked.tags.count("SNEW") == 1)
        await phone.agent.push_received(await world.push(VerificationPush, device=OTHER))
        await phone.subscribed(conn)
        assert world.asked.of("TRPL", "SNEW") == ["TRPL", "SNEW", "SNEW"]
        assert not phone.errors


async def replaced_unheard(world: World, phone: Phone) -> None:
    """The router has the new device, and the phone was started again before it heard of that."""
    world.asked.hold("TRPL", after=True)
    naming = asyncio.create_task(phone.agent.register_push(OTHER))
    await world.asked.stuck.wait()
    await world.ntf.settled()
    await phone.restart()
    naming.cancel()
    await asyncio.wait([naming])


@pytest.mark.parametrize("device", [OTHER, ONE], ids=["the new device", "the former device"])
async def test_a_replacement_whose_answer_was_lost_is_no_failure(tmp_path: Path, device: str) -> None:
    """The router waits for the code of a device that the agent does not know of, and refuses SNEW. The agent
    asks it why, tells nobody, and goes on when the program has named its device again."""
    async with phones(tmp_path) as (world, phone):
        alice, older = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(older)
        await replaced_unheard(world, phone)
        assert phone.token.is_active
        _, conn = await world.friend(phone)
        await phone.until(lambda: not phone.token.is_active)
        await phone.restart()
        assert world.asked.of("SNEW", "TCHK") == ["SNEW", "SNEW", "TCHK"]
        assert await phone.agent.register_push(device) == REGISTERED
        assert phone.token.device.text == device
        await phone.agent.push_received(await world.push(VerificationPush, 2, device))
        await phone.subscribed(older, conn)
        assert not phone.errors
        await world.send(alice, b"hello")
        await world.push(MessagePush, 1, device)


async def test_a_replacement_by_a_device_that_is_refused_is_no_failure_either(tmp_path: Path) -> None:
    """Its answer was lost, and the push service does not know the new device: the token is invalid."""
    async with phones(tmp_path) as (world, phone):
        _, older = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(older)
        world.apple.decide = lambda device: UNREGISTERED
        await replaced_unheard(world, phone)
        assert phone.token.is_active
        _, conn = await world.friend(phone)
        await phone.until(lambda: not phone.token.is_active)
        assert phone.token.status.text == "INVALID,UNREGISTERED"
        world.apple.decide = lambda device: ACCEPTED
        assert await phone.agent.register_push(OTHER) == REGISTERED
        await world.push(VerificationPush, 1, OTHER)
        await phone.agent.push_received(world.pushed(VerificationPush, OTHER)[-1])
        await phone.subscribed(older, conn)
        assert not phone.errors


async def test_a_refusal_of_a_token_that_is_verified_again_by_then_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SNEW meets the token while it is replaced, and the new device's code is returned before it is asked."""
    send_many = NtfRouters.send_many

    async def overtaken(routers: NtfRouters, server: Server, calls: Sequence[Call[Command]]) -> Any:
        if not any(isinstance(call.command, SNEW) for call in calls):
            return await send_many(routers, server, calls)
        monkeypatch.undo()
        await phone.agent.register_push(OTHER)
        refused = await send_many(routers, server, calls)
        await phone.agent.push_received(await world.push(VerificationPush, device=OTHER))
        return refused

    async with phones(tmp_path) as (world, phone):
        await world.activate(phone)
        monkeypatch.setattr(NtfRouters, "send_many", overtaken)
        _, conn = await world.friend(phone)
        await phone.subscribed(conn)
        assert world.asked.of("TRPL", "SNEW", "TCHK") == ["TRPL", "SNEW", "TCHK", "SNEW"]
        assert not phone.errors


async def test_a_check_that_is_refused_for_a_replaced_token_waits_for_it(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        _, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        world.asked.hold("TRPL", after=True)
        naming = asyncio.create_task(phone.agent.register_push(OTHER))
        await world.asked.stuck.wait()
        await phone.stop()
        naming.cancel()
        await asyncio.wait([naming])
        world.clock.now += 2 * FIRST_CHECK_S
        await phone.start()
        await phone.until(lambda: not phone.token.is_active)
        assert await phone.agent.register_push(OTHER) == REGISTERED
        await phone.agent.push_received(await world.push(VerificationPush, 2, OTHER))
        await phone.until(lambda: world.asked.tags.count("SCHK") == 2)
        await phone.subscribed(conn)
        assert world.asked.of("NKEY", "SNEW") == ["NKEY", "SNEW"], "the subscription was kept"
        assert not phone.errors


async def test_new_connections_notify_from_the_start(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        await world.activate(phone)
        conns = [(await world.friend(phone))[1] for _ in range(3)]
        await phone.subscribed(*conns)
        assert world.asked.of(*PIPELINE) == ["SNEW"] * 3, "NEW brought their keys"
        found = [phone.row(conn) for conn in conns]
        assert {row.step for row in found if row is not None} == {Step.CHECK}


async def test_a_router_that_takes_no_keys_in_new_is_asked_afterwards(tmp_path: Path) -> None:
    async with phones(tmp_path, versions=VersionRange(6, NEW_NTF_CREDS_VERSION - 1)) as (world, phone):
        await world.activate(phone)
        alice, conn = await world.friend(phone)
        await phone.subscribed(conn)
        assert world.asked.of(*PIPELINE) == ["NKEY", "SNEW"]
        await phone.restart(subscribe=False)
        await world.send(alice, b"hello")
        assert [news.conn.id for news in await world.news(phone)] == [conn.id]


@pytest.mark.parametrize("after", [False, True], ids=["not sent", "answer lost"])
async def test_a_queue_whose_creation_was_interrupted_keeps_its_notifier_keys(
    tmp_path: Path, after: bool
) -> None:
    async with phones(tmp_path) as (world, phone):
        await world.activate(phone)
        world.asked.hold("NEW", after=after)
        await phone.agent.invite_later(user_data=b"")
        await world.asked.stuck.wait()
        await phone.restart()
        await phone.until(lambda: bool(phone.of(LinkCreated)))
        alice = await world.alice.agent.join(str(phone.of(LinkCreated)[0].link))
        await world.alice.expect(Connected)
        await phone.until(lambda: bool(phone.of(Connected)))
        conn = phone.of(Connected)[0].conn
        await phone.subscribed(conn)
        assert world.asked.of("NEW", *PIPELINE)[:3] == ["NEW", "NEW", "SNEW"]
        await phone.restart(subscribe=False)
        await world.send(alice, b"hello")
        (news,) = await world.news(phone)
        await news.fetch()
        await phone.got(b"hello")
        assert not phone.errors


async def test_a_rotation_moves_notifications_to_the_new_queue(tmp_path: Path) -> None:
    async with phones(tmp_path, routers=2) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        before = phone.row(conn)
        await conn.switch()
        done = SwitchPhase.COMPLETED

        await world.alice.expect(Switched, lambda event: event.phase is done)
        await phone.until(lambda: any(event.phase is done for event in phone.of(Switched)))
        await phone.until(lambda: moved(phone.row(conn), before))
        await phone.subscribed(conn)
        await phone.restart(subscribe=False)
        pushed = len(world.pushed(MessagePush))
        await world.send(alice, b"by the new queue")
        found = await world.news(phone, pushed + 1)
        assert [news.conn.id for news in found] == [conn.id]
        await found[0].fetch()
        await phone.got(b"by the new queue")
        assert world.asked.of(*PIPELINE) == ["NKEY", "SNEW", "SNEW"], "the new queue had its keys from birth"


def moved(row: NtfSubscription | None, before: NtfSubscription | None) -> bool:
    assert before is not None
    return row is not None and row.smp_server != before.smp_server and row.step is Step.CHECK


async def test_switching_one_connection_off_and_on(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        _, other = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn, other)
        await conn.set_notifications(False)
        await phone.until(lambda: phone.row(conn) is None)
        primary = rows.primary(phone.rt.ground.store.reading, conn.id)
        assert primary is not None
        assert primary.creds is None
        assert phone.row(other) is not None
        await phone.agent.register_push(phone.token.device.text)
        assert phone.row(conn) is None, "it stays off"
        await conn.set_notifications(True)
        await phone.subscribed(conn)
        await phone.restart(subscribe=False)
        await world.send(alice, b"hello")
        assert [news.conn.id for news in await world.news(phone)] == [conn.id]


async def test_healthy_subscriptions_are_checked_periodically(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        _, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        due = rows.next_due(phone.rt.ground.store.reading, world.ntf.server)
        assert due == START + FIRST_CHECK_S
        await phone.restart()
        assert "SCHK" not in world.asked.tags, "not before its time"
        world.clock.now = START + FIRST_CHECK_S
        await phone.restart()
        await phone.until(lambda: "SCHK" in world.asked.tags)
        later = START + FIRST_CHECK_S + CHECK_EVERY_S
        await phone.until(lambda: rows.next_due(phone.rt.ground.store.reading, world.ntf.server) == later)
        row = phone.row(conn)
        assert row is not None
        assert (row.step, row.status) == (Step.CHECK, "CREATED ACTIVE")
        assert world.asked.of("NKEY", "SNEW") == ["NKEY", "SNEW"]


async def test_a_subscription_that_ended_is_replaced(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        before = phone.row(conn)
        assert before is not None
        primary = rows.primary(phone.rt.ground.store.reading, conn.id)
        assert primary is not None
        async with await world.routers[0].connect() as intruder:
            await intruder.send(NDEL(), primary.queue.rcv_id, primary.queue.key)
        lost = NotifiedQueue(before.notifier_id or b"", server=before.smp_server)
        async with asyncio.timeout(20):
            await until_all(world.ntf.router.store, [lost], "DELETED")
        world.clock.now = START + FIRST_CHECK_S
        await phone.restart()
        await phone.until(
            lambda: (row := phone.row(conn)) is not None and row.notifier_id != before.notifier_id
        )
        await phone.subscribed(conn)
        await phone.restart(subscribe=False)
        await world.send(alice, b"hello")
        (news,) = await world.news(phone)
        await news.fetch()
        await phone.got(b"hello")


def _put_key(db: Db, conn_id: str, rcv_id: bytes, key: PrivateKey) -> None:
    """Replace the device's key for its queue; the router accepts only the right one."""
    stored = sealed_rcv(db, conn_id, rcv_id, key.pkcs8, "rcv_private_key")
    db.sql.execute("UPDATE rcv_queues SET rcv_private_key = ? WHERE rcv_id = ?", (stored, rcv_id))


async def test_a_permanent_failure_is_reported_and_retried_on_request(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        _, conn = await world.friend(phone)
        primary = rows.primary(phone.rt.ground.store.reading, conn.id)
        assert primary is not None
        with phone.rt.ground.transaction() as tx:
            _put_key(tx, conn.id, primary.queue.rcv_id, new_key())
        await world.activate(phone)
        await phone.until(lambda: bool(phone.of(Failed)))
        (failed,) = phone.of(Failed)
        assert (failed.conn.id, failed.error.word) == (conn.id, "SMP AUTH")
        row = phone.row(conn)
        assert row is not None
        assert row.step is None
        with phone.rt.ground.transaction() as tx:
            _put_key(tx, conn.id, primary.queue.rcv_id, primary.queue.key)
        await phone.agent.register_push(phone.token.device.text)
        await phone.subscribed(conn)


async def test_a_newer_wish_of_the_supervisor_wins(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        _, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        row = phone.row(conn)
        assert row is not None
        with phone.rt.ground.transaction() as tx:
            rows.put(tx, row, tx.now, by_supervisor=False)
            (taken,) = rows.take_ntf(tx, row.ntf_server, tx.now, 10)
            rows.put(tx, replace(row, step=Step.DELETE), tx.now, by_supervisor=True)
            newer = replace(taken, subscription_id=b"newer")
            assert not rows.finish(tx, newer, tx.now)
            kept = rows.find(tx, conn.id)
            assert kept is not None
            assert (kept.step, kept.subscription_id) == (Step.DELETE, b"newer")
            rows.fail(tx, newer)
            rows.delete_finished(tx, conn.id)
            assert rows.find(tx, conn.id) == kept
            rows.take_smp(tx, kept.smp_server, frozenset({Step.DELETE}), 10)
            rows.delete_finished(tx, conn.id)
            assert rows.find(tx, conn.id) is None


async def test_the_time_of_the_newest_message_never_goes_back(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        _, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        primary = rows.primary(phone.rt.ground.store.reading, conn.id)
        assert primary is not None
        for seconds in (START + 100, START + 50):
            with phone.rt.ground.transaction() as tx:
                rows.came(tx, primary.queue, seconds)
        found = rows.notifying(phone.rt.ground.store.reading, primary.server, primary.notifier_id or b"")
        assert found == (primary, START + 100)


@pytest.mark.claim("NTF-52")
async def test_dropped_coalesced_and_reordered_pushes_lose_no_messages(tmp_path: Path) -> None:
    async with phones(tmp_path) as (world, phone):
        alice, conn = await world.friend(phone)
        await world.activate(phone)
        await phone.subscribed(conn)
        await phone.stop()
        bodies = [b"message %d" % number for number in range(6)]
        for place, body in enumerate(bodies[:3], 1):
            await world.send(alice, body)
            await world.push(MessagePush, place)
        await world.send(alice, *bodies[3:])
        await phone.start(subscribe=False)
        (late,) = await phone.agent.push_received(world.pushed(MessagePush)[2])
        assert await late.fetch() is not None, "the newest push first: the oldest message is read"
        await phone.got(bodies[0])
        assert phone.bodies == bodies[:1]
        await phone.restart()
        await phone.got(*bodies)
        assert phone.bodies == bodies, "all of them, in order, without a push"
