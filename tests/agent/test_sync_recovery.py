"""Ratchets that no longer match: every way to get there, and the way back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.agent import AgentFailed, Failed, SyncState
from blindpost.agent.messages.sending import enqueue_ratchet_key
from blindpost.agent.model import Whole
from blindpost.agent.store import connections, ratchet_keys, ratchets
from blindpost.agent.sync import synchronisation
from blindpost.agent.sync.renewal import ad_of, hash_of, sign_of
from blindpost.agent.work.transactions import Tx
from blindpost.crypto.ratchet import encrypt_header
from blindpost.crypto.ratchet_state import Ratchet
from blindpost.crypto.x3dh import proposed_params
from blindpost.testing.clock import run_virtual
from blindpost.wire.agent.envelopes import RatchetKey
from blindpost.wire.e2e import E2EParams
from tests.support.agent.friends import Friend, Friends, friends
from tests.support.agent.parties import RecordedPairs
from tests.support.agent.ratchets import seeded

Change = Callable[[Ratchet], Ratchet]


async def in_step(pair: Friends) -> None:
    for friend in (pair.alice, pair.bob):
        await ok(friend)


async def ok(friend: Friend) -> None:
    await friend.until(lambda: friend.state is SyncState.OK)


def ratchet_of(friend: Friend) -> Ratchet:
    ratchet = ratchets.find_ratchet(friend.rt.ground.store.reading, friend.conn.id)
    assert ratchet is not None
    return ratchet


def change(friend: Friend, how: Change) -> None:
    with friend.rt.ground.transaction() as tx:
        ratchets.step_ratchet(tx, friend.conn.id, how(ratchet_of(friend)))


def run_ahead(ratchet: Ratchet) -> Ratchet:
    """As if more messages had been lost than a peer skips."""
    for _ in range(600):
        ratchet, _key = encrypt_header(ratchet, None, 3)
    return ratchet


def wrong_header_key(ratchet: Ratchet) -> Ratchet:
    assert ratchet.snd is not None
    return replace(ratchet, snd=replace(ratchet.snd, header_key=bytes(32)))


def wrong_chain(ratchet: Ratchet) -> Ratchet:
    """The header opens, the body does not."""
    assert ratchet.snd is not None
    return replace(ratchet, snd=replace(ratchet.snd, chain_key=bytes(32)))


@pytest.mark.claim("CON-44")
@pytest.mark.parametrize(
    ("fault", "state", "word"),
    [
        ("header", SyncState.REQUIRED, "RATCHET_HEADER"),
        ("skipped", SyncState.REQUIRED, "RATCHET_SKIPPED 601"),
        ("earlier", SyncState.ALLOWED, "RATCHET_EARLIER 2"),
        ("aes", SyncState.ALLOWED, "DECRYPT_AES"),
    ],
)
def test_what_each_decryption_failure_leads_to(
    tmp_path: Path, fault: str, state: SyncState, word: str
) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await pair.talk("before")
            old = ratchet_of(bob)
            for number in range(3):
                await bob.conn.send(b"%d" % number)
            await alice.got(b"2")
            faults: dict[str, Change] = {
                "header": wrong_header_key,
                "skipped": run_ahead,
                "earlier": lambda _: old,
                "aes": wrong_chain,
            }
            change(bob, faults[fault])
            await bob.conn.send(b"nobody reads this")
            await alice.until(lambda: alice.syncs)
            assert alice.state is state
            assert alice.syncs == [state.value]
            assert alice.sync_errors == [f"AGENT A_CRYPTO {word}"]
            await pair.quiet()
            assert not wire.words("R"), "nothing starts by itself"
            assert b"nobody reads this" not in alice.bodies
            await alice.restart()
            assert alice.state is state
            await alice.conn.synchronize()
            await in_step_again(pair)
            await pair.talk("after")

    run_virtual(main())


async def in_step_again(pair: Friends) -> None:
    await pair.alice.until(lambda: pair.alice.syncs[-2:] == ["agreed", "ok"])
    await in_step(pair)


@pytest.mark.claim("CON-47")
@pytest.mark.parametrize("who", ["alice", "bob"])
@pytest.mark.parametrize("pq", [False, True], ids=["classic", "pq"])
def test_an_old_database_is_restored(tmp_path: Path, who: str, pq: bool) -> None:
    async def main() -> None:
        async with friends(tmp_path, pq=pq) as pair:
            restored, other = (pair.alice, pair.bob) if who == "alice" else (pair.bob, pair.alice)
            await pair.talk("before the backup")
            backup = tmp_path / "backup.db"
            restored.agent.backup(backup)
            for number in range(3):
                await pair.talk(number)
            queues = [queue.rcv_id for queue in restored.whole.rcv]
            await pair.quiet()
            await restored.stop()
            restored.restore(backup)
            await restored.start()
            restored.events.clear()
            other.events.clear()
            number = restored.whole.record.last_snd_id
            await other.conn.send(b"cannot be read")
            await restored.until(lambda: restored.syncs == ["required"])
            assert restored.sync_errors == ["AGENT A_CRYPTO RATCHET_HEADER"]
            await restored.conn.synchronize()
            await restored.until(lambda: restored.syncs == ["required", "agreed", "ok"])
            await in_step(pair)
            await pair.talk("after")
            await pair.talk("and on")
            assert [queue.rcv_id for queue in restored.whole.rcv] == queues
            assert restored.whole.record.last_snd_id > number
            assert restored.outcomes == ["MsgOk", "MsgOk"], "EREADY has closed the gap"
            assert other.outcomes == ["MsgOk", "MsgOk"]
            assert not restored.errors + other.errors

    run_virtual(main())


@pytest.mark.claim("CON-43")
def test_messages_in_flight_under_the_old_ratchet(tmp_path: Path) -> None:
    """One arrives when keys are agreed, one after the end: neither is read, and neither breaks anything."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await pair.talk("before")
            while True:
                stale = ratchet_of(bob)
                wire.hold("EREADY")
                await alice.conn.synchronize(force=True)
                await agreed(pair)
                if wire.of("EREADY")[-1].who == "alice":
                    break
                wire.let("EREADY")
                await in_step(pair)
            told, fresh = len(alice.syncs), ratchet_of(bob)
            await send_under(bob, stale, b"old, while agreed")
            await pair.quiet()
            assert (alice.state, len(alice.syncs), alice.errors) == (SyncState.AGREED, told, [])
            change(bob, lambda _: fresh)
            bob.put_state(SyncState.AGREED)
            wire.let("EREADY")
            await in_step(pair)
            await pair.talk("between")
            assert not ratchets.skipped_keys(alice.rt.ground.store.reading, alice.conn.id)
            fresh = ratchet_of(bob)
            await send_under(bob, stale, b"old, afterwards")
            await alice.until(lambda: alice.sync_errors)
            assert alice.sync_errors == ["AGENT A_CRYPTO RATCHET_HEADER"]
            assert alice.state is SyncState.REQUIRED
            change(bob, lambda _: fresh)
            await bob.conn.send(b"new")
            await alice.got(b"new")
            await in_step(pair)
            await pair.talk("after")
            assert not {b"old, while agreed", b"old, afterwards"} & set(alice.bodies)

    run_virtual(main())


@pytest.mark.claim("CON-43")
def test_the_old_ratchet_is_deleted_with_its_skipped_keys(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.lost += ["A_MSG", "A_MSG"]
            for body in (b"lost", b"lost too", b"found"):
                await bob.conn.send(body)
            await alice.got(b"found")
            assert alice.outcomes == ["MsgSkipped"]
            (kept,) = ratchets.skipped_keys(alice.rt.ground.store.reading, alice.conn.id).values()
            assert len(kept) == 2
            await synchronised(pair, alice)
            assert not ratchets.skipped_keys(alice.rt.ground.store.reading, alice.conn.id)
            await pair.talk("after")
            assert alice.outcomes[1:] == ["MsgOk"]

    run_virtual(main())


async def agreed(pair: Friends) -> None:
    for friend in (pair.alice, pair.bob):
        await friend_agreed(friend)
    await pair.alice.until(lambda: pair.wire.words("EREADY"))


async def friend_agreed(friend: Friend) -> None:
    await friend.until(lambda: friend.state is SyncState.AGREED)


async def send_under(friend: Friend, ratchet: Ratchet, body: bytes) -> None:
    """As if the message had been in flight since this was the ratchet."""
    friend.put_state(SyncState.OK)
    change(friend, lambda _: ratchet)
    await friend.conn.send(body)


async def synchronised(pair: Friends, friend: Friend) -> None:
    await friend.conn.synchronize(force=True)
    await friend.until(lambda: friend.syncs[-1:] == ["ok"])
    await in_step(pair)


@pytest.mark.claim("CON-62", "CON-40")
@pytest.mark.parametrize("seed", range(6))
def test_both_start_at_once(tmp_path: Path, seed: int) -> None:
    """With random delays: the ratchets match in the end, without any intervention."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            chance = random.Random(seed)
            for turn in range(3):
                await asyncio.gather(
                    *(start(friend, chance.random() / 10) for friend in (pair.alice, pair.bob))
                )
                await pair.quiet(60)
                assert {friend.state for friend in (pair.alice, pair.bob)} == {SyncState.OK}
                assert "required" not in pair.alice.syncs + pair.bob.syncs
                await pair.talk(turn)
            assert len(pair.wire.of("R")) <= 3 * 2 * 4, "no loop"

    async def start(friend: Friend, delay: float) -> None:
        await asyncio.sleep(delay)
        await friend.conn.synchronize(force=True)

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_new_keys_after_keys_are_agreed(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("EREADY")
            await alice.conn.synchronize(force=True)
            await alice.until(lambda: alice.state is SyncState.AGREED)
            await bob.until(lambda: wire.words("EREADY"))
            ready = wire.of("EREADY")[0].who
            sender, receiver = (alice, bob) if ready == "bob" else (bob, alice)
            send_keys(sender, new_keys("new"))
            await receiver.until(lambda: len(receiver.syncs) > 1)
            assert receiver.syncs[:2] == ["agreed", "agreed"]
            wire.let("EREADY")
            await in_step(pair)
            await pair.talk("after")
            assert not receiver.sync_errors
            assert len(wire.of("R")) <= 10, "no loop"

    run_virtual(main())


def strict(friend: Friend) -> Callable[[Tx, Whole, RatchetKey], None]:
    """This one does as the reference: keys that come when others are agreed are a mistake."""
    real = synchronisation.key_received

    def received(tx: Tx, whole: Whole, envelope: RatchetKey) -> None:
        record = connections.load(tx, whole.conn_id)
        if tx.sql is not friend.rt.ground.store.reading.sql or record.sync_state is not SyncState.AGREED:
            real(tx, whole, envelope)
        elif not ratchet_keys.is_processed(tx, whole.conn_id, hash_of(envelope.e2e)):
            ratchet_keys.remember(tx, whole.conn_id, hash_of(envelope.e2e), tx.now)
            connections.set_sync_state(tx, whole.conn_id, SyncState.REQUIRED)

    return received


def deaf(friend: Friend) -> Callable[[Tx, Whole, RatchetKey], None]:
    """This one takes no notice of ratchet keys."""
    real = synchronisation.key_received

    def received(tx: Tx, whole: Whole, envelope: RatchetKey) -> None:
        if tx.sql is not friend.rt.ground.store.reading.sql:
            real(tx, whole, envelope)

    return received


@pytest.mark.claim("CON-62")
@pytest.mark.parametrize("seed", range(4))
def test_both_start_at_once_and_the_peer_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The reference treats unexpected keys as an error: our side restarts the exchange."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob = pair.alice, pair.bob
            chance = random.Random(seed)
            monkeypatch.setattr(synchronisation, "key_received", strict(bob))
            for turn in range(3):
                delays = [chance.random() / 10 for _ in range(2)]
                await asyncio.gather(start(alice, delays[0]), start(bob, delays[1]))
                await in_step(pair)
                await pair.talk(turn)

    async def start(friend: Friend, delay: float) -> None:
        await asyncio.sleep(delay)
        await friend.conn.synchronize(force=True)

    run_virtual(main())


AFTER_S, SAME = synchronisation.REPEAT_AFTER_S, synchronisation.SAME_KEYS
MEANWHILE_S = sum(AFTER_S[: SAME + 1])
"""For so long the same keys are sent; with a minute for each look."""


async def lose_second(pair: Friends, word: str) -> None:
    """Synchronise, and lose the second message of this kind."""
    wire = pair.wire
    wire.hold(word)
    await pair.alice.conn.synchronize(force=True)
    await pair.quiet()
    wire.let(word)
    wire.hold(word)
    await pair.quiet()
    wire.lost.append(word)
    wire.let(word)
    await pair.quiet()


def new_keys(name: str) -> E2EParams:
    return proposed_params(3, pq=False, entropy=seeded(name), kem=RecordedPairs()).public(3)


def send_keys(friend: Friend, keys: E2EParams, about: bytes = b"") -> None:
    with friend.rt.ground.transaction() as tx:
        enqueue_ratchet_key(tx, friend.whole, keys, about)


@pytest.mark.claim("CON-62")
def test_the_first_message_under_a_new_ratchet_is_lost(tmp_path: Path) -> None:
    """Both have agreed and neither hears of it: it is sent again, with the keys."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.lost.append("EREADY")
            await alice.conn.synchronize(force=True)
            await pair.quiet(60)
            assert [friend.state for friend in (alice, bob)] == [SyncState.AGREED] * 2
            await pair.quiet(120)
            await in_step(pair)
            await pair.talk("after")
            assert len({str(asked.keys) for asked in wire.of("R")}) == 2, "the same keys"
            said = len(wire.of("R"))
            await pair.quiet(90_000)
            assert len(wire.of("R")) == said

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_the_answer_to_the_first_message_is_lost(tmp_path: Path) -> None:
    """One of them may send, the other waits for that, and asks for new ratchets in the end."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            await lose_second(pair, "EREADY")
            states = {pair.alice.state, pair.bob.state}
            assert states == {SyncState.OK, SyncState.AGREED}
            await pair.quiet(MEANWHILE_S - 60)
            assert {pair.alice.state, pair.bob.state} == states
            await pair.quiet(300)
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_an_answer_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await lose_second(pair, "R")
            assert (alice.state, bob.state) == (SyncState.STARTED, SyncState.AGREED)
            await pair.quiet(180)
            await in_step(pair)
            await pair.talk("after")
            assert len({str(asked.keys) for asked in wire.of("R")}) == 2, "the same keys"

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_an_answer_to_keys_that_were_offered_before(tmp_path: Path) -> None:
    """The second keys are lost, and the peer answers the first: each has a ratchet that the other lacks."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await bob.stop()
            await alice.conn.synchronize(force=True)
            await pair.quiet()
            wire.lost.append("R")
            await alice.conn.synchronize(force=True)
            await pair.quiet()
            await bob.start()
            await alice.until(lambda: alice.state is SyncState.AGREED)
            await pair.quiet(60)
            assert [friend.state for friend in (alice, bob)] == [SyncState.AGREED] * 2
            await pair.quiet(120)
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_keys_of_which_nothing_ever_comes_are_offered_a_few_times(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, wire = pair.alice, pair.wire
            wire.lost.extend(["EREADY"] * 1000)
            await alice.conn.synchronize(force=True)
            await pair.quiet(2 * sum(AFTER_S))
            offered = len(wire.of("R"))
            assert 2 * len(AFTER_S) <= offered <= 4 * (1 + len(AFTER_S))
            await pair.quiet(2 * AFTER_S[-1])
            assert len(wire.of("R")) == offered, "no more"
            assert not alice.of(AgentFailed)
            wire.lost.clear()
            await alice.conn.synchronize(force=True)
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-62")
@pytest.mark.parametrize("word", ["R", "EREADY"])
def test_no_keys_are_offered_while_the_last_word_is_on_its_way(tmp_path: Path, word: str) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.refusing.add(word)
            await alice.conn.synchronize(force=True)
            await pair.quiet()
            one, other = (alice, bob) if wire.of(word)[0].who == "alice" else (bob, alice)
            await other.stop()
            await pair.quiet(90_000)
            rows = one.rt.ground.store.reading.sql.execute("SELECT count(*) FROM snd_message_deliveries")
            assert rows.fetchone() == (1,)
            wire.refusing.clear()
            wire.lost.append(word)
            await other.start()
            await pair.quiet(300)
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_who_is_in_step_or_gone_when_keys_are_due_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something may come of the keys between the look at all connections and the turn of one."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, wire = pair.alice, pair.wire
            seen = [(conn_id, SyncState.STARTED) for conn_id in (alice.conn.id, "gone")]
            monkeypatch.setattr(connections, "unsettled_sync", lambda _: seen)
            await pair.quiet(MEANWHILE_S + 300)
            await alice.rt.sync.finish_as_copy([conn_id for conn_id, _ in seen])
            await pair.quiet()
            assert not wire.of("R")
            assert not alice.of(AgentFailed)
            assert alice.state is SyncState.OK

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_a_peer_that_was_away_finds_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds others behind them, as the reference does, takes those for a mistake."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            monkeypatch.setattr(synchronisation, "key_received", strict(bob))
            await bob.stop()
            await alice.conn.synchronize(force=True)
            await pair.quiet(MEANWHILE_S - 60)
            offered = [str(asked.keys) for asked in wire.of("R")]
            assert len(offered) == 1 + SAME
            assert len(set(offered)) == 1
            await bob.start()
            await in_step(pair)
            await pair.talk("after")
            assert bob.syncs == ["agreed", "ok"]
            assert len(wire.of("R")) == len(offered) + 1

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_keys_that_nobody_answers_are_replaced_in_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await bob.stop()
            await alice.conn.synchronize(force=True)
            await pair.quiet(MEANWHILE_S + 300)
            offered = [str(asked.keys) for asked in wire.of("R")]
            assert len(offered) == 2 + SAME
            assert len(set(offered)) == 2
            await bob.start()
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_an_answer_begins_another_wait(tmp_path: Path) -> None:
    """Keys that are answered late are not sent again at once."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await bob.stop()
            await alice.conn.synchronize(force=True)
            await pair.quiet(100)
            wire.lost.append("EREADY")
            await bob.start()
            await alice.until(lambda: alice.state is SyncState.AGREED)
            await pair.quiet(60)
            assert [asked.who for asked in wire.of("R")] == ["alice", "bob"]
            await pair.quiet(120)
            await in_step(pair)

    run_virtual(main())


@pytest.mark.claim("CON-62")
@pytest.mark.parametrize("version", [2, 3])
def test_an_answer_that_is_sent_again_has_the_version_of_the_new_ratchet(
    tmp_path: Path, version: int
) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            params = proposed_params(version, pq=False, entropy=seeded("older"), kem=RecordedPairs())
            await bob.stop()
            send_keys(alice, params.public(version))
            await pair.quiet()
            await alice.stop()
            await bob.start()
            await pair.quiet(300)
            answers = [asked.keys for asked in wire.of("R") if asked.who == "bob"]
            assert [answer.version for answer in answers] == [version] * 2
            await alice.start()

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_known_keys_are_an_answer_if_the_peer_has_agreed_on_ours(tmp_path: Path) -> None:
    """Bob knows Alice's keys when he offers others, and she takes these for the answer to hers."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await lose_second(pair, "R")
            assert (alice.state, bob.state) == (SyncState.STARTED, SyncState.AGREED)
            await bob.conn.synchronize(force=True)
            await pair.quiet(60)
            assert (alice.state, bob.state) == (SyncState.AGREED, SyncState.STARTED)
            await pair.quiet(180)
            await in_step(pair)
            await pair.talk("after")
            assert len({str(asked.keys) for asked in wire.of("R")}) == 3, "the same keys"

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_a_copy_of_keys_that_comes_late_is_no_answer(tmp_path: Path) -> None:
    """What follows it is read, since the ratchet stays what it was."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await alice.conn.synchronize(force=True)
            await pair.quiet()
            await in_step(pair)
            known = next(asked.keys for asked in wire.of("R") if asked.who == "bob")
            wire.lost.append("R")
            await alice.conn.synchronize(force=True)
            await pair.quiet()
            send_keys(bob, known)
            await bob.conn.send(b"behind it")
            await alice.got(b"behind it")
            assert alice.state is SyncState.STARTED
            await pair.quiet(180)
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_what_a_peer_may_say_of_known_keys(tmp_path: Path) -> None:
    """That it has agreed on them with the keys that we offer; anything else changes nothing."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            for _ in range(2):
                await alice.conn.synchronize(force=True)
                await pair.quiet()
                await in_step(pair)
            before = ratchet_of(alice).ad
            first, second = [asked.keys for asked in wire.of("R") if asked.who == "bob"]
            wire.lost.append("R")
            await alice.conn.synchronize(force=True)
            offered = ratchets.find_params(alice.rt.ground.store.reading, alice.conn.id)
            assert offered is not None
            agreed_on = sign_of(ad_of(offered, first))
            for keys, about in (
                (second, agreed_on),
                (first, b""),
                (first, sign_of(before)),
                (first, agreed_on + b"?"),
                (replace(first, version=99), agreed_on),
            ):
                send_keys(bob, keys, about)
                await pair.quiet()
                assert alice.state is SyncState.STARTED
            assert alice.errors == ["AGENT A_VERSION"]
            assert ratchet_of(alice).ad == before
            send_keys(bob, first, agreed_on)
            await pair.quiet()
            assert alice.state is SyncState.AGREED
            assert ratchet_of(alice).ad == ad_of(offered, first)
            await pair.quiet(180)
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_so_many_keys_are_answered_in_a_short_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ones are taken for an answer to the last of our own."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            monkeypatch.setattr(synchronisation, "key_received", deaf(alice))

            async def offered(name: str) -> int:
                """How many keys Bob has sent after these."""
                told = len(bob.syncs)
                send_keys(alice, new_keys(name))
                await bob.until(lambda: len(bob.syncs) > told)
                await pair.quiet()
                return len([asked for asked in wire.of("R") if asked.who == "bob"])

            most = synchronisation.ANSWERS_MAX
            assert [await offered(f"keys {number}") for number in range(5)] == [1, 2, most, most, most]
            await pair.quiet(synchronisation.ANSWERS_WITHIN_S)
            so_far = len([asked for asked in wire.of("R") if asked.who == "bob"])
            assert await offered("later") == so_far + 1

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_keys_that_are_not_in_the_store_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.lost.append("R")
            await alice.conn.synchronize(force=True)
            await pair.quiet()
            with alice.rt.ground.transaction() as tx:
                ratchets.forget_params(tx, alice.conn.id)
            send_keys(bob, new_keys("for nothing"))
            await alice.until(lambda: alice.errors)
            assert [str(event.error) for event in alice.of(Failed)] == [
                "INTERNAL: the ratchet keys that were sent are not in the store"
            ]
            assert alice.state is SyncState.STARTED

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_own_keys_sent_back_when_others_are_agreed(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("EREADY")
            await alice.conn.synchronize(force=True)
            await agreed(pair)
            said, ready = wire.of("R"), wire.of("EREADY")[0].who
            one, other = (alice, bob) if ready == "alice" else (bob, alice)
            send_keys(other, next(asked.keys for asked in said if asked.who == ready))
            await one.until(lambda: one.errors)
            assert one.errors == ["AGENT A_CRYPTO RATCHET_SYNC"]
            await pair.quiet()
            assert len(wire.of("R")) == len(said) + 1, "no answer"
            wire.let("EREADY")
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-62")
def test_own_keys_sent_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            wire.hold("R")
            await alice.conn.synchronize(force=True)
            await alice.until(lambda: wire.words("R"))
            own = wire.of("R")[0].keys
            wire.held.pop("R")
            send_keys(bob, own)
            await alice.until(lambda: alice.errors)
            assert alice.errors == ["AGENT A_CRYPTO RATCHET_SYNC"]
            assert alice.state is SyncState.STARTED
            send_keys(bob, own)
            await pair.quiet()
            assert alice.state is SyncState.STARTED, "nor when they come again"
            await alice.restart()
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())
