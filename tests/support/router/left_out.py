"""What recordings with a plain client leave out, and which ones they are."""

from __future__ import annotations

from blindpost.crypto.ids_hash import sender_id_of
from blindpost.router.operator import Action
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, NEW, SEND, SUB
from blindpost.wire.smp.errors import BLOCKED, BlockingReason, Code, Notice
from blindpost.wire.smp.messages import Message
from blindpost.wire.smp.responses import ERR, IDS, MSG, OK, SOK
from blindpost.wire.smp.values import LinkData, NewLink, QueueMode, QueueRequest, SubMode
from tests.support.router.replay import Replay, Step, opened
from tests.support.router.routers import new_key
from tests.support.wire.smp_transcripts import FILES

PROXIES = ("18", "19")
SERVICES = ("20", "21", "22", "23", "24", "25", "26")
PLAIN = [name for name in FILES if name[:2] not in (*PROXIES, *SERVICES)]

QUOTA = 128
ACKED_BEFORE_RETRY = 9


async def take_the_sender_id(replay: Replay) -> None:
    """The recorded router had a queue with this short correlation id already, of somebody else."""
    line, key, corr_id = replay.lines["A"], new_key(), b"abc"
    link = NewLink(sender_id_of(corr_id), LinkData(b"", b""))
    request = QueueRequest(QueueMode.MESSAGING, link)
    command = NEW(key.public, new_key(Algorithm.X25519).public, None, SubMode.ONLY_CREATE, request)
    assert isinstance(await line.ask(command, key=key, corr_id=corr_id), IDS)


async def fill_the_queue(replay: Replay) -> None:
    """128 messages are accepted and one more is refused before the recording continues."""
    sender_id = replay.names.ours(replay.transcript.id("q.snd_id"))
    last = replay.recorded_message(replay.recorded(13)[0])
    assert isinstance(last, Message)
    for number in range(QUOTA):
        body = bytes(last.body) if number == QUOTA - 1 else f"fill {number}".encode()
        assert await replay.lines["S"].ask(SEND(False, body), sender_id) == OK()
    assert await replay.lines["S"].ask(SEND(False, b"one more"), sender_id) == ERR(Code.QUOTA)


async def subscribe_and_acknowledge_some(replay: Replay) -> None:
    recipient_id = replay.names.ours(replay.transcript.id("q.rcv_id"))
    line, key = replay.lines["R"], replay.key("q.rcv_auth")
    assert await line.ask(SUB(), recipient_id, key) == SOK(None)
    first = (await line.event(recipient_id)).response
    assert isinstance(first, MSG)
    await _acknowledge(replay, first, 0, ACKED_BEFORE_RETRY)


async def _acknowledge(replay: Replay, msg: MSG, first: int, last: int) -> MSG:
    """ACK message number `first` and those after it, up to `last`, which is returned."""
    recipient_id = replay.names.ours(replay.transcript.id("q.rcv_id"))
    for number in range(first, last):
        message = opened(replay.boxes[recipient_id], msg)
        assert isinstance(message, Message)
        assert bytes(message.body) == f"fill {number}".encode()
        reply = await replay.lines["R"].ask(ACK(msg.msg_id), recipient_id, replay.key("q.rcv_auth"))
        assert isinstance(reply, MSG)
        msg = reply
    return msg


async def acknowledge_almost_all(replay: Replay) -> None:
    """Until two messages are left before the marker; a new SUB shows which one is next."""
    recipient_id = replay.names.ours(replay.transcript.id("q.rcv_id"))
    line, key = replay.lines["R"], replay.key("q.rcv_auth")
    assert await line.ask(SUB(), recipient_id, key) == SOK(None)
    msg = (await line.event(recipient_id)).response
    assert isinstance(msg, MSG)
    msg = await _acknowledge(replay, msg, ACKED_BEFORE_RETRY, QUOTA - 2)
    recorded_id = recorded_ack(replay, 12)
    replay.names.same(recorded_id, msg.msg_id)


def recorded_ack(replay: Replay, place: int) -> bytes:
    """The id that a recorded ACK carries: the end of its block."""
    return replay.transcript.events[place].payload[-24:]


async def make_queues_with_messages(replay: Replay) -> None:
    """Three queues, each with the message that the recording delivers, by a connection that is not in it."""
    line = await replay.connected("R")
    replay.lines["maker"] = line
    delivered = [replay.recorded(3)[3], *replay.recorded(4), *replay.recorded(5)]
    bodies = {replay.transcript.owner(msg.entity_id): replay.recorded_message(msg) for msg in delivered}
    assert set(bodies) == {"q0", "q1", "q2"}
    for queue, message in bodies.items():
        auth, dh = replay.key(f"{queue}.rcv_auth"), replay.key(f"{queue}.rcv_dh_x25519")
        command = NEW(auth.public, dh.public, None, SubMode.ONLY_CREATE, QueueRequest(QueueMode.MESSAGING))
        ids = await line.ask(command, key=auth)
        assert isinstance(ids, IDS)
        replay.names.same(replay.transcript.id(f"{queue}.rcv_id"), ids.recipient_id)
        replay.boxes[ids.recipient_id] = replay.box(dh.public, ids.dh_key)
        assert isinstance(message, Message)
        assert await line.ask(SEND(message.notify, bytes(message.body)), ids.sender_id) == OK()


def block(name: str, blocked: BLOCKED) -> Step:
    async def step(replay: Replay) -> None:
        assert await replay.operate(Action.BLOCK, name, blocked) == "blocked"

    return step


async def unblock(replay: Replay) -> None:
    assert await replay.operate(Action.UNBLOCK, "q2.snd_id") == "unblocked"


LEFT_OUT: dict[str, dict[int, Step]] = {
    "03-new-modes-v20.json": {40: take_the_sender_id},
    "14-quota.json": {
        6: fill_the_queue,
        10: subscribe_and_acknowledge_some,
        12: acknowledge_almost_all,
    },
    "17-batch-sub-pending.json": {2: make_queues_with_messages},
    "27-blocked.json": {
        6: block("q.snd_id", BLOCKED(BlockingReason.SPAM, Notice(3600))),
        39: block("q2.snd_id", BLOCKED(BlockingReason.CONTENT)),
        42: unblock,
    },
}
"""What a recording leaves out, by the event before which it happened."""
