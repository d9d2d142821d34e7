"""Peers and routers that send what they should not: a reported error, no lost state, bounded work."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from blindpost.agent import (
    AgentError,
    ConfirmationReceived,
    Connected,
    Connection,
    Event,
    Failed,
    MsgBadHash,
    MsgBadId,
    MsgDuplicate,
    MsgOk,
    MsgSkipped,
    RatchetSync,
    ReceiptsReceived,
    ReceiptStatus,
    Received,
)
from blindpost.agent.messages.layers import open_client_envelope, seal_confirmation
from blindpost.agent.model import RcvSwitch, SndQueue
from blindpost.agent.store import messages, queues, ratchets
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.ratchet import encrypt_header
from blindpost.crypto.x3dh import PrivateParams
from blindpost.crypto.x448 import generate_x448
from blindpost.store.sqlite import SqliteStore
from blindpost.testing.clock import run_virtual
from blindpost.wire.agent.envelopes import (
    Confirmation,
    RatchetKey,
    read_client_envelope,
    write_agent_envelope,
)
from blindpost.wire.agent.messages import (
    AddedQueue,
    AMessage,
    AMsg,
    AQCont,
    ARcvd,
    EReady,
    Hello,
    KeyedQueue,
    QAdd,
    QKey,
    QTest,
    QUse,
    Receipt,
    UsedQueue,
)
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.queue_addresses import QueueAddress, QueueUri, SenderAddress
from blindpost.wire.smp.commands import ACK, SEND
from blindpost.wire.smp.messages import Message, write_message
from blindpost.wire.smp.responses import MSG
from blindpost.wire.versions import VersionRange
from tests.support.agent.agents import Party, connect, quick_config, recorded, two_parties
from tests.support.agent.forging import DELIVERED_SIZE, Forger
from tests.support.client.scripted_router import settle, virtual

World = tuple[Party, Party, Connection, Connection, Forger]


@asynccontextmanager
async def forged(folder: Path, *, pq: bool = False) -> AsyncIterator[World]:
    config = quick_config(pq=pq)
    async with two_parties(folder, config, replace(config)) as (alice, bob):
        ours, theirs = await connect(alice, bob)
        await settle()
        forger = Forger(alice, ours, bob, theirs)
        await forger.told()
        yield alice, bob, ours, theirs, forger


def received(events: list[Event]) -> Received:
    (event,) = [event for event in events if isinstance(event, Received)]
    return event


def words(events: list[Event]) -> list[str]:
    return [event.error.word if isinstance(event, Failed) else event.name for event in events]


@pytest.mark.claim("CON-57")
@pytest.mark.claim("CON-58")
@pytest.mark.claim("CON-59")
@virtual
async def test_every_outcome_of_the_chain_is_reported_with_the_message(tmp_path: Path) -> None:
    async with forged(tmp_path) as (_, _, _, _, forger):
        start = forger.number

        async def outcome(number: int, prev_hash: bytes | None = None) -> object:
            plain = forger.plain(AMsg(b"body"), number=number, prev_hash=prev_hash)
            event = received(await forger.deliver(forger.enveloped(forger.encrypted(plain))))
            assert event.msg.body == b"body"
            return event.msg.integrity

        assert await outcome(start + 1) == MsgOk()
        assert await outcome(start + 2, bytes(32)) == MsgBadHash()
        assert await outcome(start + 5) == MsgSkipped(start + 3, start + 4)
        assert await outcome(start + 9, bytes(32)) == MsgSkipped(start + 6, start + 8)
        assert await outcome(start + 9) == MsgDuplicate()
        assert await outcome(start + 2) == MsgBadId(start + 2)
        assert await outcome(start + 3) == MsgOk()


@pytest.mark.parametrize("comes", [True, False])
def test_only_a_real_gap_is_reported(tmp_path: Path, comes: bool) -> None:
    """During our rotation QTEST comes through the new queue, after its successors through the old one."""

    async def main() -> None:
        async with forged(tmp_path) as (alice, _, _, _, forger):

            def turning(state: RcvSwitch | None) -> None:
                with alice.rt.ground.transaction() as tx:
                    queues.set_switch(tx, forger.rcv_queue, state, None if state is None else tx.now)

            def made(message: AMessage) -> bytes:
                return forger.enveloped(forger.encrypted(forger.plain(message)))

            async def outcome(body: bytes) -> object:
                return received(await forger.deliver(body)).msg.integrity

            turning(RcvSwitch.SENDING_QUSE)
            assert await outcome(made(AMsg(b"before"))) == MsgOk()
            test = made(QTest((forger.rcv_queue.sender_address,)))
            number = forger.number
            assert await outcome(made(AMsg(b"one"))) == MsgOk()
            assert await outcome(made(AMsg(b"two"))) == MsgOk()
            if comes:
                assert await forger.deliver(test) == []
            assert await outcome(made(AMsg(b"three"))) == MsgOk()
            turning(None)
            told = MsgOk() if comes else MsgSkipped(number, number)
            assert await outcome(made(AMsg(b"four"))) == told
            assert await outcome(made(AMsg(b"five"))) == MsgOk()

    run_virtual(main())


@pytest.mark.claim("CON-63")
@virtual
async def test_gap_of_two_billion_is_refused_at_once(tmp_path: Path) -> None:
    async with forged(tmp_path) as (alice, _, ours, _, forger):
        before = forger.ratchet
        forger.ratchet = replace(before, ns=2**31)
        encrypted = forger.encrypted(forger.plain(AMsg(b"far")))
        started = time.process_time()
        (told,) = await forger.deliver(forger.enveloped(encrypted))
        assert time.process_time() - started < 20
        assert isinstance(told, RatchetSync)
        assert "RATCHET_SKIPPED" in str(told.error)
        assert ratchets.skipped_keys(alice.rt.ground.store.reading, ours.id) == {}
        forger.ratchet = before
        assert received(await forger.deliver(forger.good())).msg.body == b"good"


@pytest.mark.claim("CON-63")
@virtual
async def test_keys_of_missing_messages_are_bounded(tmp_path: Path) -> None:
    async with forged(tmp_path) as (alice, _, ours, _, forger):
        for _ in range(10):
            forger.skip(511)
            await forger.deliver(forger.good())
        keys = ratchets.skipped_keys(alice.rt.ground.store.reading, ours.id)
        assert sum(map(len, keys.values())) == ratchets.SKIPPED_MAX


@virtual
async def test_reordered_and_replayed_messages(tmp_path: Path) -> None:
    """Late ones are read with the keys that were kept; each is shown once."""
    async with forged(tmp_path, pq=True) as (_, _, _, _, forger):
        sent = [forger.good(bytes([number])) for number in range(6)]
        bodies = []
        for index in (0, 3, 1, 5, 2, 4):
            bodies.append(received(await forger.deliver(sent[index])).msg.body)
            assert await forger.deliver(sent[index]) == []
        assert bodies == [bytes([number]) for number in (0, 3, 1, 5, 2, 4)]
        for body in sent:
            assert await forger.deliver(body) == []


@pytest.mark.claim("CON-55")
@virtual
async def test_truncated_and_changed_messages_are_reported_and_acknowledged(tmp_path: Path) -> None:
    async with forged(tmp_path) as (alice, _, _, _, forger):
        good = forger.good()
        with recorded(alice) as sent:
            for cut in (0, 1, 2, 26, 40, 5000, len(good) - 1):
                assert words(await forger.deliver(good[:cut])), cut
            for place in (0, 2, 3, 30, 8000, len(good) - 1):
                changed = bytearray(good)
                changed[place] ^= 0xFF
                assert words(await forger.deliver(bytes(changed))), place
            await settle()
            assert len([call for call in sent if isinstance(call.command, ACK)]) == 13
        assert received(await forger.deliver(good)).msg.integrity == MsgOk()


@virtual
async def test_delivery_garbled_by_the_router(tmp_path: Path) -> None:
    async with forged(tmp_path) as (_, _, _, _, forger):
        queue = forger.rcv_queue
        for msg in (
            MSG(b"x" * 24, b""),
            MSG(b"x" * 24, bytes(16_120)),
            MSG(b"y" * 24, BoxKey(queue.dh_secret).seal_padded(nonce_of(b"y" * 24), b"", DELIVERED_SIZE)),
        ):
            assert words(await forger.handed(msg))[0].startswith("AGENT A_")
        assert received(await forger.deliver(forger.good()))


@virtual
async def test_oversized_content_is_refused_by_sender_and_receiver(tmp_path: Path) -> None:
    async with forged(tmp_path) as (_, _, ours, _, forger):
        with pytest.raises(AgentError):
            await ours.send(bytes(70_000))
        assert words(await forger.deliver(bytes(16_050))) == ["AGENT A_MESSAGE"]
        assert received(await forger.deliver(forger.good()))


@pytest.mark.claim("CON-13")
@virtual
async def test_refused_confirmations_leave_the_invitation_usable(tmp_path: Path) -> None:
    """Corrupt, with swapped keys or a wrong version: nothing changes, and the right one still works."""
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite(pq=True, user_data=b"")
        alice.rt.sessions.pause_receiving("test")
        with recorded(bob) as sent:
            await bob.agent.join(str(link))
            await settle_long()
        (body,) = [bytes(call.command.body) for call in sent if isinstance(call.command, SEND)]
        (queue,) = queues.rcv_queues(alice.rt.ground.store.reading, link.conn.id)
        before = rows(alice)
        other = await alice.agent.invite()
        with alice.rt.ground.transaction() as tx:
            tx.sql.execute("DELETE FROM connections WHERE conn_id = ?", (other.conn.id,))
        (theirs,) = queues.snd_queues(bob.rt.ground.store.reading, bob.agent.connections()[0].id)
        wrong = [body[:-1] + bytes([body[-1] ^ 1]), body[:2000], b"\0\x09" + body[2:]]
        wrong.append(seal_confirmation(theirs, b"\0\x07C1" + bytes(200), system_entropy))
        wrong += [resealed(theirs, altered) for altered in altered_confirmations(theirs, body)]
        for number, bad in enumerate(wrong):
            msg_id = bytes([number]) * 24
            content = encode(Message(1_750_000_000, True, bad), write_message)
            sealed = BoxKey(queue.dh_secret).seal_padded(nonce_of(msg_id), content, DELIVERED_SIZE)
            await alice.rt.reception.process(queue, MSG(msg_id, sealed))
            failed = await alice.expect(Failed)
            assert failed.error.word.startswith("AGENT A_")
            assert rows(alice) == before
        alice.rt.sessions.resume_receiving("test")
        assert (await alice.expect(Connected)).pq
        await bob.expect(Connected)


@virtual
async def test_what_comes_before_a_peer_is_let_in_is_refused(tmp_path: Path) -> None:
    """A ratchet exists by then, but nobody to answer: it stays, and the peer can still be let in."""
    async with two_parties(tmp_path) as (alice, bob):
        link = await alice.agent.invite(auto_allow=False)
        await bob.agent.join(str(link))
        waiting = await alice.expect(ConfirmationReceived)
        forger = Forger(alice, link.conn, bob, bob.agent.connections()[0])
        assert forger.ratchet.snd is not None
        forger.ratchet = replace(forger.ratchet, snd=replace(forger.ratchet.snd, header_key=bytes(32)))
        keys = PrivateParams(generate_x448(system_entropy), generate_x448(system_entropy))
        offer = forger.boxed(encode(RatchetKey(7, keys.public(3), b""), write_agent_envelope))
        before = rows(alice)
        assert words(await forger.deliver(offer)) == ["AGENT A_QUEUE"]
        assert rows(alice) == before
        assert words(await forger.deliver(forger.good())) == ["AGENT A_CRYPTO RATCHET_HEADER"]
        changed = [one for one, was in zip(rows(alice), before, strict=True) if one != was]
        assert changed == [rows(alice)[1]], "only that something has come through the queue"
        await waiting.confirmation.allow()
        await alice.expect(Connected)
        await bob.expect(Connected)


def altered_confirmations(queue: SndQueue, body: bytes) -> list[Confirmation]:
    """Well-formed confirmations that must not open: altered, another kind inside, swapped keys."""
    envelope = decode_whole(body, read_client_envelope)
    good = open_client_envelope(queue.e2e_secret, envelope).envelope
    assert isinstance(good, Confirmation)
    assert good.e2e is not None
    info, e2e = bytes(good.encrypted_info), good.e2e
    return [
        replace(good, encrypted_info=info[:-1] + bytes([info[-1] ^ 1])),
        replace(good, encrypted_info=info[:5000]),
        replace(good, e2e=replace(e2e, key1=e2e.key2, key2=e2e.key1)),
        replace(good, e2e=replace(e2e, kem=None)),
        replace(good, e2e=None),
    ]


def resealed(queue: SndQueue, confirmation: Confirmation) -> bytes:
    return seal_confirmation(queue, encode(confirmation, write_agent_envelope), system_entropy)


def rows(party: Party) -> list[object]:
    """Everything a confirmation could change."""
    sql = party.rt.ground.store.reading.sql
    tables = ("connections", "rcv_queues", "snd_queues", "ratchets", "conn_confirmations", "messages")
    return [sql.execute(f"SELECT * FROM {table}").fetchall() for table in tables]  # noqa: S608  constants


async def settle_long() -> None:
    for _ in range(30):
        await settle()


@virtual
async def test_a_message_is_read_although_the_store_is_wrong_about_a_rotation(tmp_path: Path) -> None:
    async with forged(tmp_path) as (alice, _, _, _, forger):
        with alice.rt.ground.transaction() as tx:
            tx.sql.execute("UPDATE rcv_queues SET replace_rcv_queue_id = 77, status = 'secured'")
        told = await forger.deliver(forger.good(b"read"))
        assert [str(event.error) for event in told if isinstance(event, Failed)] == [
            "INTERNAL: a queue replaces one that does not exist"
        ]
        assert received(told).msg.body == b"read"


@virtual
async def test_rotations_of_queues_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    """Each is told with its reason, and the connection goes on with the queues that it has."""
    async with forged(tmp_path) as (alice, _, ours, _, forger):
        (queue,) = queues.snd_queues(alice.rt.ground.store.reading, ours.id)
        other = SenderAddress(queue.server, b"other id".ljust(24))
        address = QueueAddress(other.server, other.sender_id, forger.rcv_queue.e2e_key.public)
        offered, newer = QueueUri(VersionRange(1, 4), address), QueueUri(VersionRange(90, 99), address)
        before = rows(alice)[2]
        for message, told in (
            (QAdd((AddedQueue(offered, None),)), "A_QUEUE: adding queue without switching is not supported"),
            (QAdd((AddedQueue(newer, queue.sender_address),)), "A_VERSION"),
            (
                QAdd((AddedQueue(offered, other),)),
                "A_QUEUE: QADD: replaced queue address is not found in connection",
            ),
            (
                QKey((KeyedQueue(offered.at(4), forger.rcv_queue.key.public),)),
                "A_QUEUE: QKEY: queue address not found in connection",
            ),
            (QKey((KeyedQueue(newer.at(99), forger.rcv_queue.key.public),)), "A_VERSION"),
            (
                QUse((UsedQueue(other, True),)),
                "A_QUEUE: QUSE: switched queue address not found in connection",
            ),
            (AQCont(other), "A_QUEUE: QCONT: queue address not found"),
        ):
            body = forger.enveloped(forger.encrypted(forger.plain(message)))
            (event,) = await forger.deliver(body)
            assert isinstance(event, Failed)
            assert str(event.error).startswith(f"AGENT {told}")
            assert rows(alice)[2] == before
            assert forger.rcv_queue.switch is None
        assert received(await forger.deliver(forger.good())).msg.integrity == MsgOk()


@pytest.mark.claim("CON-53")
@virtual
async def test_receipts_valid_mixed_and_wrong(tmp_path: Path) -> None:
    async with forged(tmp_path) as (alice, bob, ours, _, forger):
        number = await ours.send(b"mine")
        await bob.message()
        sent = messages.find_sent(alice.rt.ground.store.reading, ours.id, 2)
        assert sent is not None
        await forger.told()

        async def told(*receipts: Receipt) -> tuple[list[Event], int]:
            plain = forger.plain(ARcvd(receipts))
            with recorded(alice) as calls:
                events = await forger.deliver(forger.enveloped(forger.encrypted(plain)))
                await settle()
            return events, len([call for call in calls if isinstance(call.command, ACK)])

        events, acks = await told(Receipt(99, sent.msg_hash, b""))
        assert (words(events), acks) == (["INTERNAL"], 1)
        events, acks = await told(Receipt(2, bytes(32), b""), Receipt(98, bytes(32), b""))
        assert sorted(words(events)) == ["INTERNAL", "RCVD"]
        (receipts,) = [event for event in events if isinstance(event, ReceiptsReceived)]
        assert (receipts.receipts[0].status, acks) == (ReceiptStatus.BAD_MSG_HASH, 0)
        await receipts.msg.ack()
        await settle()
        events, acks = await told(Receipt(2, sent.msg_hash, b""))
        (receipts,) = [event for event in events if isinstance(event, ReceiptsReceived)]
        assert (receipts.receipts[0].status, receipts.receipts[0].msg_id) == (ReceiptStatus.OK, number)
        assert acks == 0
        events, acks = await told(Receipt(2, sent.msg_hash, b""))
        assert (events, acks) == ([], 1)


@pytest.mark.claim("CON-54")
@virtual
async def test_messages_between_agents_are_acknowledged_without_the_application(tmp_path: Path) -> None:
    """Also when they are out of place, which is reported."""
    async with forged(tmp_path) as (alice, _, _, _, forger):
        address = forger.snd_queue.sender_address
        for message in (
            Hello(),
            AQCont(forger.rcv_queue.sender_address),
            EReady(1),
            QTest((address,)),
            QUse((UsedQueue(address, True),)),
        ):
            with recorded(alice) as calls:
                plain = forger.plain(message)
                events = await forger.deliver(forger.enveloped(forger.encrypted(plain)))
                await settle()
            assert [type(call.command) for call in calls if isinstance(call.command, ACK)] == [ACK], message
            assert not any(isinstance(event, Received) for event in events)
        assert received(await forger.deliver(forger.good())).msg.integrity == MsgOk()


@contextmanager
def failing_store(party: Party, times: int, reason: str) -> Iterator[list[int]]:
    """This many commits fail."""
    left = [times]
    original = SqliteStore.commit

    def commit(file: SqliteStore) -> None:
        if left[0] and file is party.rt.ground.store._file:
            left[0] -= 1
            file.rollback()
            raise file.failed(sqlite3.OperationalError(reason))
        original(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "commit", commit)
        yield left


@pytest.mark.claim("CON-61")
@pytest.mark.parametrize("reason", ["database or disk is full", "database is locked", "disk I/O error"])
@virtual
async def test_message_that_could_not_be_stored_is_not_acknowledged(tmp_path: Path, reason: str) -> None:
    async with forged(tmp_path) as (alice, _, ours, theirs, _):
        ratchet = ratchets.find_ratchet(alice.rt.ground.store.reading, ours.id)
        alice.rt.ground.stream.settle()
        with failing_store(alice, 1, reason) as left, recorded(alice) as sent:
            await theirs.send(b"one")
            failed = await alice.expect(Failed)
            assert (failed.error.word, left) == ("CRITICAL", [0])
            assert ratchets.find_ratchet(alice.rt.ground.store.reading, ours.id) == ratchet
            assert not any(isinstance(call.command, ACK) for call in sent)
            got = (await alice.message()).msg
            assert (got.body, got.integrity) == (b"one", MsgOk())
        await theirs.send(b"two")
        assert (await alice.message()).msg.integrity == MsgOk()


@virtual
async def test_keys_swapped_between_connections(tmp_path: Path) -> None:
    """What belongs to another connection does not decrypt here."""
    async with forged(tmp_path) as (alice, bob, ours, theirs, forger):
        await connect(alice, bob)
        await settle()
        conns = [conn for conn in bob.agent.connections() if conn.id != theirs.id]
        other = ratchets.find_ratchet(bob.rt.ground.store.reading, conns[0].id)
        assert other is not None
        _, key = encrypt_header(other, None, 3)
        mine = forger.ratchet
        forger.ratchet = other
        (told,) = await forger.deliver(forger.good())
        assert isinstance(told, RatchetSync)
        assert told.state.value == "required"
        assert told.conn == ours
        forger.ratchet = mine
        forger.number -= 1
        events = await forger.deliver(forger.good())
        assert received(events).msg.body == b"good"
        assert key.version == 3
