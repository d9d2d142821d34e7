"""Ratchet synchronisation between two agents: the whole exchange, its roles, and what it forbids."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.agent import CommandCode, CommandError, RcvSwitch, SyncState
from blindpost.agent.messages.sending import enqueue_ratchet_key
from blindpost.agent.store import messages, ratchet_keys, ratchets
from blindpost.agent.sync.renewal import hash_of
from blindpost.testing.clock import run_virtual
from blindpost.wire.agent.envelopes import RatchetKey
from blindpost.wire.agent.messages import AgentMessage, EReady
from tests.support.agent.friends import Asked, Friend, Friends, friends

PROHIBITED = [state for state in SyncState if state.send_prohibited]


async def in_step(pair: Friends) -> None:
    """Wait until both ratchets match."""
    for friend in (pair.alice, pair.bob):
        await ok(friend)


async def ok(friend: Friend) -> None:
    await friend.until(lambda: friend.state is SyncState.OK)


async def synchronised(pair: Friends, friend: Friend) -> None:
    await friend.conn.synchronize(force=True)
    await friend.until(lambda: friend.syncs[-1:] == ["ok"])
    await in_step(pair)


def key_of(asked: Asked) -> RatchetKey:
    assert asked.ratchet_key is not None
    return asked.ratchet_key


def ready_of(asked: Asked) -> int:
    assert isinstance(asked.content, AgentMessage)
    assert isinstance(asked.content.message, EReady)
    return asked.content.message.last_received_msg_id


@pytest.mark.claim("CON-37", "CON-39")
@pytest.mark.parametrize("pq", [False, True], ids=["classic", "pq"])
def test_the_whole_exchange(tmp_path: Path, pq: bool) -> None:
    async def main() -> None:
        async with friends(tmp_path, pq=pq) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await pair.talk("before")
            before, code = alice.whole.record, alice.conn.security_code
            alice.put_state(SyncState.REQUIRED)
            await alice.restart()
            assert alice.state.value == "required"
            wire.refusing.add("R")
            await alice.conn.synchronize()
            kept = ratchets.find_params(alice.rt.ground.store.reading, alice.conn.id)
            assert kept is not None
            await alice.restart()
            assert alice.state.value == "started"
            assert ratchets.find_params(alice.rt.ground.store.reading, alice.conn.id) == kept
            await alice.until(lambda: wire.words("R"))
            offered = key_of(wire.of("R")[0])
            assert offered.e2e == kept.public(3)
            assert (offered.e2e.kem is not None) == pq
            assert offered.agent_version == 7
            assert offered.info == b"R"
            wire.refusing.clear()
            wire.hold("EREADY")
            await alice.until(lambda: alice.state is SyncState.AGREED)
            await bob.until(lambda: bob.state is SyncState.AGREED)
            await bob.restart()
            assert bob.state is SyncState.AGREED
            wire.let("EREADY")
            await in_step(pair)
            for friend in (alice, bob):
                assert ratchets.find_params(friend.rt.ground.store.reading, friend.conn.id) is None
            assert alice.syncs == ["agreed", "ok"]
            assert bob.syncs == ["agreed", "ok"]
            await pair.talk("after")
            assert code != alice.conn.security_code == bob.conn.security_code
            assert alice.whole.record.last_snd_id == before.last_snd_id + 3, "ratchet keys, EREADY, a message"
            assert not alice.errors + bob.errors
            await pair.talk("and on")
            await pair.talk("and on again")
            assert bob.messages[-1].pq == pq, "the KEM enters with the messages that follow"

    run_virtual(main())


@pytest.mark.claim("CON-40", "CON-41", "CON-42")
def test_roles_and_the_messages_of_each(tmp_path: Path) -> None:
    """Repeated from either side until both have had both roles."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            seen: set[tuple[str, str]] = set()
            for turn in range(40):
                if len(seen) == 4:
                    break
                await pair.talk(turn)
                starter = (alice, bob)[turn % 2]
                last = {friend.path.stem: friend.whole.record.last_external_id for friend in (alice, bob)}
                wire.log.clear()
                await synchronised(pair, starter)
                offered, answered = wire.of("R")
                assert offered.who == starter.path.stem != answered.who
                hashes = {asked.who: hash_of(asked.keys) for asked in (offered, answered)}
                first, second = wire.of("EREADY")
                assert hashes[first.who] > hashes[second.who]
                assert {asked.who: ready_of(asked) for asked in (first, second)} == last
                seen.add((starter.path.stem, first.who))
            assert len(seen) == 4
            await pair.talk("end")

    run_virtual(main())


@pytest.mark.parametrize("version", [2, 3])
def test_a_peer_without_ratchet_keys_support_is_offered_them_only_by_force(
    tmp_path: Path, version: int
) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice = pair.alice
            alice.put_state(SyncState.REQUIRED)
            alice.put_version(version)
            if version == 2:
                with pytest.raises(CommandError, match="too old") as refused:
                    await alice.conn.synchronize()
                assert refused.value.code is CommandCode.PROHIBITED
                assert alice.state is SyncState.REQUIRED
            await alice.conn.synchronize(force=version == 2)
            assert alice.state is SyncState.STARTED

    run_virtual(main())


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_new_ratchet_is_post_quantum_if_wanted_and_supported_by_the_peer(
    tmp_path: Path, version: int, wanted: bool
) -> None:
    async def main() -> None:
        async with friends(tmp_path, pq=not wanted) as pair:
            alice = pair.alice
            alice.put_version(version)
            await alice.conn.synchronize(force=True, pq=wanted)
            able = wanted and version == 5
            kept = ratchets.find_params(alice.rt.ground.store.reading, alice.conn.id)
            assert kept is not None
            assert (alice.whole.record.pq_support, kept.public(3).kem is not None) == (able, able)

    run_virtual(main())


@pytest.mark.claim("CON-38")
@pytest.mark.parametrize("state", SyncState)
def test_what_may_be_sent(tmp_path: Path, state: SyncState) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            alice.acknowledges = False
            await bob.conn.send(b"to be receipted")
            await alice.got(b"to be receipted")
            alice.put_state(state)
            if not state.send_prohibited:
                await alice.conn.send(b"goes")
                await bob.got(b"goes")
                await alice.messages[0].ack(b"")
                await alice.until(lambda: wire.words("A_RCVD"))
                await alice.conn.switch()
                await alice.until(lambda: wire.words("QUSE"))
                return
            for attempt in (alice.conn.send(b"stays"), alice.conn.switch(), alice.conn.abort_switch()):
                with pytest.raises(CommandError) as refused:
                    await attempt
                assert refused.value.code is CommandCode.PROHIBITED
            await alice.messages[0].ack(b"")
            await pair.quiet()
            assert not wire.words("A_MSG", "A_RCVD", "QADD")[1:], "only Bob's message"

    run_virtual(main())


@pytest.mark.claim("CON-38")
@pytest.mark.parametrize("word", ["QADD", "QUSE"])
def test_a_rotation_waits_until_the_ratchets_match(tmp_path: Path, word: str) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            stopper = {"QADD": "NEW", "QUSE": "KEY"}[word]
            wire.refusing.add(stopper)
            await alice.conn.switch()
            if word == "QUSE":
                await alice.until(lambda: wire.words("KEY"))
            await pair.quiet()
            alice.put_state(SyncState.REQUIRED)
            wire.refusing.clear()
            await pair.quiet(600)
            assert not wire.words(word)
            assert alice.whole.rcv[0].switch is not None
            await bob.conn.send(b"the ratchets fit")
            await alice.until(lambda: "rcv completed" in alice.switches)
            assert alice.syncs == ["ok"]
            await pair.talk("after")
            assert not alice.errors + bob.errors

    run_virtual(main())


@pytest.mark.claim("CON-38")
def test_messages_about_queues_are_refused_while_synchronising(tmp_path: Path) -> None:
    """Bob cannot answer QADD while he waits for ratchet keys; Alice sends it again after a restart."""

    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob = pair.alice, pair.bob
            bob.put_state(SyncState.STARTED)
            await alice.conn.switch()
            await bob.until(lambda: bob.errors == ["AGENT A_QUEUE"])
            await pair.quiet()
            assert not pair.wire.words("QKEY")
            bob.put_state(SyncState.OK)
            await alice.restart()
            await alice.until(lambda: "rcv completed" in alice.switches)

    run_virtual(main())


@pytest.mark.claim("CON-45")
@pytest.mark.parametrize("state", SyncState)
def test_a_readable_message_ends_the_need_to_synchronise(tmp_path: Path, state: SyncState) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob = pair.alice, pair.bob
            alice.put_state(state)
            await bob.conn.send(b"good")
            await alice.got(b"good")
            stays = state in (SyncState.OK, SyncState.STARTED)
            assert alice.state is (state if stays else SyncState.OK)
            assert alice.syncs == ([] if stays else ["ok"])
            await alice.restart()
            assert alice.state is (state if stays else SyncState.OK)

    run_virtual(main())


@pytest.mark.parametrize("state", SyncState)
def test_when_the_application_may_synchronise(tmp_path: Path, state: SyncState) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice = pair.alice
            link = await alice.agent.invite()
            for force in (False, True):
                with pytest.raises(CommandError, match="both ways"):
                    await link.conn.synchronize(force=force)
            pair.wire.hold("R")
            alice.put_state(state)
            if state in (SyncState.ALLOWED, SyncState.REQUIRED):
                await alice.conn.synchronize()
            else:
                with pytest.raises(CommandError) as refused:
                    await alice.conn.synchronize()
                assert refused.value.code is CommandCode.PROHIBITED
                await pair.quiet()
                assert alice.state is state
                assert not pair.wire.words("R")
                await alice.conn.synchronize(force=True)
            assert alice.state is SyncState.STARTED
            pair.wire.let("R")
            await in_step(pair)
            await pair.talk("after")

    run_virtual(main())


@pytest.mark.claim("CON-46")
def test_repeated_ratchet_keys(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob, wire = pair.alice, pair.bob, pair.wire
            await synchronised(pair, alice)
            await pair.talk("before")
            (offered, answered) = wire.of("R")
            told = bob.syncs
            for friend in (bob, alice):
                await friend.restart()
                reading, conn_id = friend.rt.ground.store.reading, friend.conn.id
                ratchet = ratchets.find_ratchet(reading, conn_id)
                processed = ratchet_keys.count_since(reading, conn_id, 0)
                other, again = (alice, offered) if friend is bob else (bob, answered)
                for _ in range(2):
                    with other.rt.ground.transaction() as tx:
                        enqueue_ratchet_key(tx, other.whole, again.keys)
                await pair.quiet()
                assert friend.state is SyncState.OK
                assert ratchets.find_ratchet(reading, conn_id) == ratchet
                assert ratchet_keys.count_since(reading, conn_id, 0) == processed
                assert not friend.errors
            assert len(wire.of("R")) == 2 + 4, "no answers"
            assert bob.syncs == told
            await pair.talk("after")

    run_virtual(main())


def test_memory_of_processed_ratchet_keys_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            rt, conn_id = pair.alice.rt, pair.alice.conn.id
            count = "SELECT count(*) FROM processed_ratchet_key_hashes"
            with rt.ground.transaction() as tx:
                for number in range(ratchet_keys.KEYS_MAX + 10):
                    ratchet_keys.remember(tx, conn_id, number.to_bytes(32, "big"), tx.now)
                assert tx.sql.execute(count).fetchone() == (ratchet_keys.KEYS_MAX,)
                assert not ratchet_keys.is_processed(tx, conn_id, (9).to_bytes(32, "big"))
                assert ratchet_keys.is_processed(tx, conn_id, (10).to_bytes(32, "big"))
                messages.forget_before(tx, tx.now + 1, 10_000)
                assert tx.sql.execute(count).fetchone() == (0,)

    run_virtual(main())


def test_pq_can_be_requested_with_a_synchronisation(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            alice, bob = pair.alice, pair.bob
            await bob.conn.synchronize(force=True, pq=True)
            await alice.until(lambda: "agreed" in alice.syncs)
            await in_step(pair)
            assert bob.conn.stats.pq_support
            assert not alice.conn.stats.pq_support
            await bob.conn.synchronize(force=True, pq=False)
            await pair.quiet()
            assert not bob.conn.stats.pq_support
            assert bob.conn.stats.sync_supported
            await pair.talk("after")

    run_virtual(main())


def test_stats_of_a_rotation_at_the_sender(tmp_path: Path) -> None:
    async def main() -> None:
        async with friends(tmp_path) as pair:
            pair.wire.hold("QTEST")
            await pair.alice.conn.switch()
            await pair.bob.until(lambda: pair.wire.words("QTEST"))
            await pair.quiet(60)
            (switch,) = (queue.switch for queue in pair.bob.conn.stats.snd if queue.switch is not None)
            assert switch.status.value == "sending_qtest"
            assert 60 <= switch.age_s <= 62
            assert not switch.can_abort
            assert pair.alice.whole.rcv[0].switch is RcvSwitch.SENDING_QUSE

    run_virtual(main())
