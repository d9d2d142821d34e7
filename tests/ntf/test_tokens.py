"""What devices do with their tokens, at a real router, on both stores."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.errors import CryptoError
from blindpost.engine.undo import Undo
from blindpost.ntf import tokens
from blindpost.ntf.meters import Meter
from blindpost.ntf.model import DAY_S, NtfRules, day_of
from blindpost.ntf.ports import Failed, RetryLater, TokenInvalid
from blindpost.ntf.view import View
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import SCHK, TCHK, TCRN, TDEL, TNEW, TRPL, TVFY
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, VerificationPush
from blindpost.wire.ntf.responses import ERR, IDTKN, OK
from blindpost.wire.ntf.status import InvalidReason, TokenState, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.smp.errors import CMD, Code, CommandError
from tests.support.ntf.lines import open_ntf_line
from tests.support.ntf.routers import (
    ON_BOTH,
    Apple,
    Clock,
    Device,
    RunningNtf,
    active_device,
    device_token,
    running_ntf,
    some_queue,
)
from tests.support.ntf.stores import stored_token
from tests.support.router.routers import new_credentials, new_key

AUTH, QUOTA = ERR(Code.AUTH), ERR(Code.QUOTA)
PROHIBITED = ERR(CMD(CommandError.PROHIBITED))


async def registered(ntf: RunningNtf, name: DeviceToken | None = None) -> tuple[Device, bytes]:
    """A device that is not verified yet, and its code."""
    device = Device(await ntf.connect(), name or device_token("ab"))
    await device.register()
    _, push = await ntf.apple.next()
    await ntf.settled()
    return device, device.code(push)


@pytest.mark.both_stores
@pytest.mark.claim("NTF-11", "NTF-13", "NTF-14")
async def test_the_code_reaches_the_device_and_nobody_else(ntf: RunningNtf) -> None:
    device, code = await registered(ntf)
    ((where, push),) = ntf.apple.pushed
    assert where == device.name
    assert isinstance(push, VerificationPush)
    assert len(code) == 32
    assert code not in push.ciphertext
    stranger = BoxKey(os.urandom(32))
    with pytest.raises(CryptoError):
        stranger.open_padded(push.nonce, push.ciphertext)
    assert len(device.token_id) == 24
    assert await device.status() == "CONFIRMED"


@pytest.mark.both_stores
@pytest.mark.claim("NTF-12")
async def test_only_the_registered_key_speaks_for_a_token(ntf: RunningNtf) -> None:
    device = Device(await ntf.connect())
    other = Device(device.client)
    signed_by_another = TNEW(device.name, new_key().public, device.dh_key.public)
    assert await device.ask(signed_by_another, b"") == AUTH
    assert ntf.apple.pushed == []
    await device.register()
    other.token_id = device.token_id
    for command in (TCHK(), TVFY(b"c" * 32), TRPL(device.name), TDEL(), TCRN(20)):
        assert await other.ask(command) == AUTH
    assert await device.status() in {"REGISTERED", "CONFIRMED"}


@pytest.mark.both_stores
@pytest.mark.claim("NTF-15")
async def test_a_code_makes_the_token_active_and_may_come_twice(ntf: RunningNtf) -> None:
    device, code = await registered(ntf)
    assert await device.ask(TVFY(bytes(32))) == AUTH
    assert await device.ask(TVFY(code[:-1])) == AUTH
    assert await device.status() == "CONFIRMED"
    assert await device.ask(TVFY(code)) == OK()
    assert await device.status() == "ACTIVE"
    assert await device.ask(TVFY(code)) == OK()
    assert await device.ask(TVFY(bytes(32))) == AUTH
    assert await device.status() == "ACTIVE"


@pytest.mark.both_stores
@pytest.mark.claim("NTF-16", "NTF-17")
async def test_every_status_is_reported_in_the_words_of_the_protocol(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    token = await stored_token(ntf, device.token_id)
    lines = {version: await open_ntf_line(ntf, version) for version in (2, 3)}
    statuses = [
        *(TokenStatus(state) for state in TokenState),
        *(TokenStatus(TokenState.INVALID, reason) for reason in InvalidReason),
    ]
    for status in statuses:
        view = View(Undo(), ntf.router.store.received)
        view.put_token(replace(token, status=status))
        await ntf.router.store.commit(view)
        for version, line in lines.items():
            line.send(line.spoken(TCHK(), device.token_id, device.key))
            payload = bytes(await line.stream.read_block())
            words = status.text if version == 3 else status.state.value
            assert payload.endswith(device.token_id + b"TKN " + words.encode())


@pytest.mark.both_stores
@pytest.mark.claim("NTF-18")
async def test_answers_of_the_provider_change_the_status_of_a_token(ntf: RunningNtf) -> None:
    ntf.apple.open.clear()
    device, code = Device(await ntf.connect()), b""
    await device.register()
    _, push = await ntf.apple.next()
    code = device.code(push)
    assert await device.status() == "REGISTERED"
    ntf.apple.open.set()
    await ntf.settled()
    assert await device.status() == "CONFIRMED"
    assert await device.ask(TVFY(code)) == OK()
    assert await device.status() == "ACTIVE"
    ntf.apple.answer = lambda _device, _push: TokenInvalid(InvalidReason.EXPIRED)
    await device.subscribe(queue := some_queue())
    await ntf.nmsg(queue)
    await ntf.settled()
    assert await device.status() == "INVALID,EXPIRED"


@pytest.mark.both_stores
@pytest.mark.claim("NTF-17", "NTF-19")
@pytest.mark.parametrize("reason", InvalidReason)
async def test_a_refused_token_tells_why_and_is_left_alone(ntf: RunningNtf, reason: InvalidReason) -> None:
    device = await active_device(ntf)
    neighbour = await active_device(ntf, device_token("cd"), device.client)
    queue, next_door = some_queue(1), some_queue(2)
    subscription_id = await device.subscribe(queue)
    await neighbour.subscribe(next_door)
    ntf.apple.answer = lambda _device, _push: TokenInvalid(reason)
    await ntf.nmsg(queue)
    await ntf.settled()
    assert await device.status() == f"INVALID,{reason.value}"
    older = await ntf.connect(version=2)
    assert await Device(older, key=device.key, token_id=device.token_id).status() == "INVALID"
    pushed = len(ntf.apple.pushed)
    await ntf.nmsg(queue)
    await ntf.settled()
    assert len(ntf.apple.pushed) == pushed
    assert await device.sub_status(subscription_id) == b"NEW"
    ntf.apple.answer = Apple().answer
    await ntf.nmsg(next_door)
    await ntf.settled()
    assert ntf.apple.pushed[-1][0] == neighbour.name
    assert await neighbour.status() == "ACTIVE"


async def test_an_invalid_token_registers_again_with_the_keys_it_had(ntf: RunningNtf) -> None:
    device, code = await registered(ntf)
    assert await device.ask(TVFY(code)) == OK()
    await device.subscribe(queue := some_queue())
    ntf.apple.answer = lambda _device, _push: TokenInvalid(InvalidReason.UNREGISTERED)
    await ntf.nmsg(queue)
    await ntf.settled()
    assert await device.ask(TVFY(code)) == AUTH
    ntf.apple.answer = Apple().answer
    before = device.token_id
    await device.register()
    await ntf.settled()
    assert device.token_id == before
    assert await device.status() == "CONFIRMED"
    assert device.code(ntf.apple.pushed[-1][1]) == code
    assert await device.ask(TVFY(code)) == OK()


@pytest.mark.both_stores
@pytest.mark.claim("NTF-20", "NTF-21", "NTF-23")
async def test_a_replaced_device_keeps_everything_and_must_show_a_new_code(ntf: RunningNtf) -> None:
    device, old_code = await registered(ntf)
    assert await device.ask(TVFY(old_code)) == OK()
    queue = some_queue()
    subscription_id = await device.subscribe(queue)
    stranger = Device(device.client, token_id=device.token_id)
    new_name = device_token("cd")
    assert await stranger.ask(TRPL(new_name)) == AUTH
    assert await device.ask(TRPL(new_name)) == OK()
    await ntf.settled()
    where, push = ntf.apple.pushed[-1]
    assert where == new_name
    assert device.code(push) != old_code
    assert await device.ask(TVFY(old_code)) == AUTH
    await ntf.nmsg(queue)
    await ntf.settled()
    assert ntf.apple.of_kind(MessagePush) == []
    assert await device.sub_status_refused(subscription_id)
    assert await device.ask(TVFY(device.code(push))) == OK()
    assert await device.sub_status(subscription_id) == b"NEW"
    await ntf.nmsg(queue)
    await ntf.settled()
    where, push = ntf.apple.pushed[-1]
    assert where == new_name
    assert [item.notifier_id for item in device.items(push)] == [queue.notifier_id]


async def test_a_notification_that_waited_is_pushed_when_the_new_device_is_verified(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    await device.subscribe(queue := some_queue())
    ntf.apple.answer = lambda _device, _push: RetryLater("out of order")
    await ntf.nmsg(queue)
    await ntf.settled()
    ntf.apple.answer = Apple().answer
    assert await device.ask(TRPL(device_token("cd"))) == OK()
    await ntf.settled()
    code = device.code(ntf.apple.pushed[-1][1])
    await ntf.look()
    assert len(ntf.apple.of_kind(MessagePush)) == 1
    assert await device.ask(TVFY(code)) == OK()
    await ntf.settled()
    assert len(ntf.apple.of_kind(MessagePush)) == 2
    assert ntf.apple.pushed[-1][0] == device_token("cd")
    assert ntf.ledger()["waiting"] == 0


async def test_answers_about_the_former_device_do_not_affect_the_new_one(ntf: RunningNtf) -> None:
    device, code = await registered(ntf)
    assert await device.ask(TVFY(code)) == OK()
    await device.subscribe(queue := some_queue())
    ntf.apple.open.clear()
    await ntf.nmsg(queue)
    await device.register()
    for _ in range(2):
        await ntf.apple.next()
    ntf.apple.answer = lambda name, _push: (
        TokenInvalid(InvalidReason.UNREGISTERED) if name == device.name else RetryLater("503")
    )
    assert await device.ask(TRPL(device_token("cd"))) == OK()
    ntf.apple.open.set()
    await ntf.settled()
    assert await device.status() == "REGISTERED", "neither INVALID nor CONFIRMED"
    assert ntf.ledger()["waiting"] == 1


@pytest.mark.both_stores
@pytest.mark.claim("NTF-24")
async def test_a_deleted_token_is_gone_with_everything_it_had(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queue = some_queue()
    subscription_id = await device.subscribe(queue)
    assert await device.ask(TCRN(20)) == OK()
    assert await device.ask(TDEL()) == OK()
    assert ntf.subscriber.forgotten == [(queue.server, queue.notifier_id)]
    pushed = len(ntf.apple.pushed)
    await ntf.nmsg(queue)
    ntf.clock.now += 7200
    await ntf.look()
    assert len(ntf.apple.pushed) == pushed
    for command in (TCHK(), TDEL(), TCRN(0), TVFY(bytes(32))):
        assert await device.ask(command) == AUTH
    assert await device.ask(SCHK(), subscription_id) == AUTH
    counts = ntf.router.store.counts()
    assert (counts["tokens"], counts["subscriptions"], counts["notifications"]) == (0, 0, 0)


@pytest.mark.both_stores
@pytest.mark.claim("NTF-25")
async def test_periods_below_twenty_minutes_are_refused(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    assert await device.ask(TCRN(0)) == OK()
    assert await device.ask(TCRN(20)) == OK()
    for minutes in (1, 19):
        assert await device.ask(TCRN(minutes)) == QUOTA
    ntf.clock.now += 20 * 60 + 1
    await ntf.look()
    assert len(ntf.apple.of_kind(CheckPush)) == 1, "the former setting was kept"
    assert await device.ask(TCRN(65_535)) == OK()
    ntf.clock.now += 65_535 * 60 - 1
    await ntf.look()
    assert len(ntf.apple.of_kind(CheckPush)) == 1
    ntf.clock.now += 65_535 * 60
    await ntf.look()
    assert len(ntf.apple.of_kind(CheckPush)) == 2


@pytest.mark.both_stores
@pytest.mark.claim("NTF-26")
async def test_periodic_notifications_come_in_their_rhythm_and_survive_a_restart(tmp_path: Path) -> None:
    network, clock, credentials = MemoryNetwork(), Clock(), new_credentials()

    async def checks(running: RunningNtf, minutes: int) -> int:
        """How many came while these minutes passed."""
        before = len(running.apple.of_kind(CheckPush))
        for _ in range(minutes * 2):
            clock.now += 30
            await running.look()
        return len(running.apple.of_kind(CheckPush)) - before

    async with running_ntf(tmp_path, network=network, clock=clock, credentials=credentials) as running:
        device = await active_device(running)
        assert await device.ask(TCRN(30)) == OK()
        await running.look()
        assert running.apple.of_kind(CheckPush) == [], "it starts after the registration"
        assert await checks(running, 30) == 1
        assert await checks(running, 60) == 2
    async with running_ntf(tmp_path, network=network, clock=clock, credentials=credentials) as running:
        assert await checks(running, 60) == 2
        device.client = await running.connect()
        assert await device.ask(TCRN(30)) == OK()
        assert await checks(running, 30) == 1, "the same setting again changes nothing"
        assert await device.ask(TCRN(0)) == OK()
        assert await checks(running, 90) == 0


async def test_periods_start_at_different_moments(ntf: RunningNtf) -> None:
    client = await ntf.connect()
    for number in range(40):
        device = await active_device(ntf, device_token(f"{number:02x}"), client)
        assert await device.ask(TCRN(20)) == OK()
    found = []
    for _ in range(20):
        ntf.clock.now += 60
        await ntf.look()
        found.append(len(ntf.apple.of_kind(CheckPush)))
    assert found[-1] == 40
    assert found[4] <= 25
    assert found[9] >= 8


async def test_a_failed_check_waits_for_its_next_period(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    assert await device.ask(TCRN(20)) == OK()
    ntf.apple.answer = lambda _device, _push: Failed("no")
    ntf.clock.now += 20 * 60
    await ntf.look()
    await ntf.look()
    assert len(ntf.apple.of_kind(CheckPush)) == 1
    ntf.clock.now += 20 * 60
    await ntf.look()
    assert len(ntf.apple.of_kind(CheckPush)) == 2


@pytest.mark.both_stores
@pytest.mark.claim("NTF-54")
async def test_a_repeated_registration_is_the_same_and_other_keys_take_nothing(ntf: RunningNtf) -> None:
    device = Device(await ntf.connect())
    command = TNEW(device.name, device.key.public, device.dh_key.public)
    first = await device.ask(command, b"")
    await ntf.settled()
    again = await device.ask(command, b"")
    await ntf.settled()
    assert first == again
    assert isinstance(first, IDTKN)
    device.token_id = first.token_id
    device.secret = BoxKey.agreed(device.dh_key, first.dh_key)
    codes = [device.code(push) for _, push in ntf.apple.pushed]
    assert codes[0] == codes[1]
    assert ntf.apple.pushed[0][1] != ntf.apple.pushed[1][1], "a fresh nonce"
    other_dh = TNEW(device.name, device.key.public, new_key(Algorithm.X25519).public)
    assert await device.ask(other_dh, b"") == AUTH
    assert await device.ask(TVFY(codes[0])) == OK()
    rival = Device(device.client)
    await rival.register()
    await ntf.settled()
    assert rival.token_id != device.token_id
    assert await device.status() == "ACTIVE"
    assert await rival.status() == "CONFIRMED"


@ON_BOTH
async def test_the_token_verified_last_owns_the_device(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    queue = some_queue()
    subscription_id = await device.subscribe(queue)
    second, code = await registered(ntf)
    assert await second.ask(TVFY(code)) == OK()
    assert await device.ask(TCHK()) == AUTH
    assert await device.ask(SCHK(), subscription_id) == AUTH
    assert ntf.subscriber.forgotten == [(queue.server, queue.notifier_id)]
    assert ntf.router.store.counts()["tokens"] == 1
    await second.subscribe(queue)


@ON_BOTH
@pytest.mark.parametrize(("first", "second"), [("ab", "AB"), ("AB", "ab"), ("aB", "AB")])
async def test_a_device_has_one_owner_however_its_token_is_spelled(
    ntf: RunningNtf, first: str, second: str
) -> None:
    former = await active_device(ntf, device_token(first))
    latter = await active_device(ntf, device_token(second))
    assert [where for where, _ in ntf.apple.pushed] == [former.name, latter.name], "pushed to as given"
    assert await former.ask(TCHK()) == AUTH
    assert await latter.status() == "ACTIVE"
    assert (await stored_token(ntf, latter.token_id)).device == latter.name


@pytest.mark.both_stores
@pytest.mark.claim("NTF-50")
async def test_a_foreign_device_token_gains_nothing(ntf: RunningNtf) -> None:
    owner = await active_device(ntf)
    thief = Device(await ntf.connect(), owner.name)
    await thief.register()
    await ntf.settled()
    for guess in (bytes(32), b"", os.urandom(32)):
        assert await thief.ask(TVFY(guess)) == AUTH
    queue = some_queue()
    assert await thief.subscribe_refused(queue)
    pushed = len(ntf.apple.pushed)
    await ntf.nmsg(queue)
    await ntf.settled()
    assert len(ntf.apple.pushed) == pushed
    assert await thief.status() == "CONFIRMED"
    assert await owner.status() == "ACTIVE"


@pytest.mark.both_stores
@pytest.mark.claim("NTF-56")
async def test_guessing_locks_the_code_and_registering_again_makes_a_new_one(ntf: RunningNtf) -> None:
    device, code = await registered(ntf)
    for _ in range(ntf.router.rules.code_attempts):
        assert ntf.router.plan.meters[Meter.CODES_LOCKED] == 0
        assert await device.ask(TVFY(os.urandom(32))) == AUTH
    assert ntf.router.plan.meters[Meter.CODES_LOCKED] == 1
    assert await device.ask(TVFY(code)) == AUTH
    await device.register()
    await ntf.settled()
    second = device.code(ntf.apple.pushed[-1][1])
    assert second != code
    assert await device.ask(TVFY(code)) == AUTH
    ntf.clock.now += ntf.router.rules.code_ttl_s
    assert await device.ask(TVFY(second)) == AUTH, "too old"
    await device.register()
    await ntf.settled()
    third = device.code(ntf.apple.pushed[-1][1])
    assert len({code, second, third}) == 3
    assert min(len(each) for each in (code, second, third)) >= 16
    assert await device.ask(TVFY(third)) == OK()
    ntf.clock.now += 30 * DAY_S
    assert await device.ask(TVFY(third)) == OK(), "its time is over only until it has come back"


@pytest.mark.claim("NTF-56")
async def test_codes_are_compared_in_constant_time(ntf: RunningNtf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the library's comparison decides the answer, whatever the code."""
    device, code = await registered(ntf)
    compared: list[tuple[bytes, bytes]] = []
    said = [False]

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return said[0]

    monkeypatch.setattr(tokens, "hmac", SimpleNamespace(compare_digest=compare))
    wrong = code[:-1] + bytes([code[-1] ^ 1])
    for said[0], answer in ((False, AUTH), (True, OK())):
        for given in (code, wrong, code[:-1], b""):
            assert await device.ask(TVFY(given)) == answer
            assert compared.pop() == (code, given)
    assert compared == []


@pytest.mark.both_stores
@pytest.mark.claim("NTF-57")
async def test_nobody_can_make_the_router_flood_a_device(tmp_path: Path) -> None:
    rules = NtfRules(device_code_pushes=4, address_code_pushes=6)
    async with running_ntf(tmp_path, rules, network=MemoryNetwork()) as ntf:
        answers = []
        for _ in range(100):
            client = await ntf.connect()
            stranger = Device(client, device_token("ab"))
            answers.append(
                await stranger.ask(TNEW(stranger.name, stranger.key.public, stranger.dh_key.public), b"")
            )
            await client.close()
        await ntf.settled()
        assert len(ntf.apple.pushed) == 4
        assert [type(answer) for answer in answers[:4]] == [IDTKN] * 4
        assert answers[4:] == [QUOTA] * 96
        client = await ntf.connect()
        for number in range(10):
            one = Device(client, device_token(f"1{number}"))
            answers.append(await one.ask(TNEW(one.name, one.key.public, one.dh_key.public), b""))
        await ntf.settled()
        assert len(ntf.apple.pushed) == 10
        assert answers[-4:] == [QUOTA] * 4
        assert ntf.router.store.counts()["tokens"] == 10
        ntf.clock.now += rules.unverified_ttl_s + 1
        await ntf.look()
        assert ntf.router.store.counts()["tokens"] == 0
        again = Device(client, device_token("ab"))
        await again.register()


async def test_a_token_with_subscriptions_survives_an_unverified_replacement(
    ntf: RunningNtf,
) -> None:
    device = await active_device(ntf)
    await device.subscribe(some_queue())
    assert await device.ask(TRPL(device_token("cd"))) == OK()
    ntf.clock.now += 30 * DAY_S
    await ntf.look()
    assert ntf.router.store.counts()["tokens"] == 1


async def test_the_test_provider_is_only_for_those_who_enable_it(tmp_path: Path) -> None:
    name = device_token("ab", PushProvider.APNS_TEST)
    async with running_ntf(tmp_path, network=MemoryNetwork()) as ntf:
        device = Device(await ntf.connect(), name)
        command = TNEW(name, device.key.public, device.dh_key.public)
        assert await device.ask(command, b"") == PROHIBITED
        other = await active_device(ntf, device_token("cd"))
        assert await other.ask(TRPL(name)) == PROHIBITED
        assert await other.status() == "ACTIVE"
    async with running_ntf(tmp_path, NtfRules(test_provider=True), network=MemoryNetwork()) as ntf:
        await active_device(ntf, name)
    async with running_ntf(tmp_path, network=MemoryNetwork()) as ntf:
        await ntf.look()
        assert ntf.apple.pushed == []


@ON_BOTH
async def test_a_device_cannot_be_replaced_by_one_that_has_another_token(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    twin = Device(device.client, device_token("cd"), device.key)
    await twin.register()
    assert await device.ask(TRPL(twin.name)) == AUTH
    assert await device.ask(TRPL(device.name)) == OK()


async def test_null_tokens_push_nothing_and_are_not_limited_by_device(ntf: RunningNtf) -> None:
    name = DeviceToken(PushProvider.APNS_NULL, b"test_ntf_token")
    for _ in range(ntf.router.rules.device_code_pushes + 5):
        client = await ntf.connect()
        device = Device(client, name)
        await device.register()
        await ntf.settled()
        assert await device.status() == "CONFIRMED"
        assert await device.ask(TDEL()) == OK()
        await client.close()
    assert ntf.apple.pushed == []
    assert ntf.router.plan.meters.values()["tokens_created"] == 0


async def test_only_the_day_of_use_is_kept(ntf: RunningNtf) -> None:
    device = await active_device(ntf)
    first = await stored_token(ntf, device.token_id)
    ntf.clock.now += 3 * DAY_S + 12_345
    assert await device.status() == "ACTIVE"
    await ntf.settled()
    later = await stored_token(ntf, device.token_id)
    assert later == replace(first, updated_day=day_of(ntf.clock.now))
    assert later.updated_day % DAY_S == 0
    assert later.updated_day - first.updated_day in (3 * DAY_S, 4 * DAY_S)


async def test_a_code_pushed_again_is_timed_again(ntf: RunningNtf) -> None:
    """An active token registers again unchanged; if it lost its device, its code's time starts again."""
    device, code = await registered(ntf)
    assert await device.ask(TVFY(code)) == OK()
    await device.register()
    await ntf.settled()
    assert (await stored_token(ntf, device.token_id)).code_at is None
    await device.subscribe(queue := some_queue())
    ntf.apple.answer = lambda _device, _push: TokenInvalid(InvalidReason.UNREGISTERED)
    await ntf.nmsg(queue)
    await ntf.settled()
    ntf.apple.answer = Apple().answer
    ntf.clock.now += 60
    await device.register()
    await ntf.settled()
    assert (await stored_token(ntf, device.token_id)).code_at == int(ntf.clock.now)
