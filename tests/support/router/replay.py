"""Recorded conversations said again to a router of ours, with keys of ours.

A recorded block is taken apart, recorded ids and keys are replaced by those that our router and we made,
and what was signed is signed anew; what was wrong or malformed stays so. Each recorded reply and event must
then find one of the same kind on the same connection, and nothing may be left over.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import assert_never

from blindpost.crypto.authorizers import kind_of
from blindpost.crypto.boxes import BoxKey, nonce_of
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.router.operator import Action
from blindpost.wire.batch import unpack
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.commands import (
    ACK,
    KEY,
    LKEY,
    LSET,
    NEW,
    NKEY,
    PING,
    RKEY,
    SKEY,
    Command,
    read_command,
)
from blindpost.wire.smp.errors import BLOCKED, RefusedError
from blindpost.wire.smp.messages import Message, QuotaMarker, ReceivedMessage, read_message, read_nmsg_meta
from blindpost.wire.smp.queue_info import QueueInfo
from blindpost.wire.smp.responses import (
    DELD,
    END,
    ERR,
    IDS,
    INFO,
    LNK,
    MSG,
    NID,
    NMSG,
    OK,
    PONG,
    SOK,
)
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.smp.values import NtfCreds, ServerNtfCreds
from blindpost.wire.transmission import (
    AUTHORIZATION_SIZES,
    authorized_bytes,
    start_signed,
    transmission_of,
)
from tests.support.router.lines import Line, open_line
from tests.support.router.operators import operate
from tests.support.router.routers import RunningRouter, new_key
from tests.support.wire.smp_transcripts import Event, Transcript
from tests.support.wire.taken_apart import Transmission, read_transmission


class Names:
    """Which of our values stands for which recorded one; each for one and no other."""

    def __init__(self) -> None:
        self._ours: dict[bytes, bytes] = {}
        self._recorded: dict[bytes, bytes] = {}

    def same(self, recorded: bytes, ours: bytes) -> None:
        """Learn that both are the same thing, or check it if either is known."""
        assert self._ours.setdefault(recorded, ours) == ours, "another id than before"
        assert self._recorded.setdefault(ours, recorded) == recorded, "an id that stands for another one"
        assert len(recorded) == len(ours)

    def ours(self, recorded: bytes) -> bytes:
        """Ours, or the very same bytes if no router made them."""
        return self._ours.get(recorded, recorded)


Step = Callable[["Replay"], Awaitable[None]]


@dataclass
class Replay:
    """One transcript against one router."""

    transcript: Transcript
    running: RunningRouter
    lines: dict[str, Line]
    names: Names
    keys: dict[PublicKey, PrivateKey]
    """Ours by the recorded public key."""
    boxes: dict[bytes, BoxKey]
    """What opens messages and notifications, by our id of the queue or notifier."""
    asked: dict[tuple[str, bytes], list[Command]]
    """Commands with keys, as we sent them, for the secrets that their replies complete."""

    @classmethod
    def of(cls, name: str, running: RunningRouter) -> Replay:
        return cls(Transcript(name), running, {}, Names(), {}, {}, defaultdict(list))

    async def run(self, left_out: dict[int, Step]) -> None:
        """Say everything in the recorded order; `left_out` fills in what goes before an event."""
        greeted: dict[str, int] = defaultdict(int)
        for place, event in enumerate(self.transcript.events):
            if place in left_out:
                await left_out[place](self)
            greeted[event.connection] += 1
            if greeted[event.connection] == 1:
                self.lines[event.connection] = await self.connected(event.connection)
            if greeted[event.connection] > 2:
                await self._event(event)
        for line in self.lines.values():
            assert isinstance(await line.ask(PING()), PONG)
        assert not [received for line in self.lines.values() for received in line.left_over]

    async def close(self) -> None:
        for line in self.lines.values():
            await line.stream.close()

    async def connected(self, name: str) -> Line:
        """A connection at the recorded version, with or without block encryption as recorded."""
        session = self.transcript.session(name)
        version: int = session["version"]
        line = await open_line(self.running, version)
        assert (line.version, line.stream.session.agreed.encrypted) == (version, session["encrypted"])
        return line

    def key(self, name: str) -> PrivateKey:
        """Our key for a recorded one of this name."""
        return self.our_key(self.transcript.private_keys[name].public)

    def our_key(self, recorded: PublicKey) -> PrivateKey:
        return self.keys.setdefault(recorded, new_key(recorded.algorithm))

    async def operate(self, action: Action, name: str, blocked: BLOCKED | None = None) -> str:
        """What the operator did between two recorded blocks."""
        return await operate(self.running, action, self.names.ours(self.transcript.id(name)), blocked)

    def recorded(self, place: int) -> list[Received]:
        """What the router said in a recorded block."""
        event = self.transcript.events[place]
        layout, version = self.transcript.layout(event.connection)
        heard = parse_responses(Reader(event.payload), layout, version)
        assert not event.to_router
        return [received for received in heard if isinstance(received, Received)]

    def recorded_message(self, received: Received) -> ReceivedMessage:
        """What a recorded MSG says."""
        assert isinstance(received.response, MSG)
        return opened(self.transcript.delivery_box(received.entity_id), received.response)

    # What the client said

    async def _event(self, event: Event) -> None:
        line = self.lines[event.connection]
        if not event.to_router:
            await self._heard(event, line)
            return
        line.send([self._again(event, line, item) for item in unpack(Reader(event.payload))])

    def _again(self, event: Event, line: Line, item: Reader) -> Writer:
        """One recorded transmission as we say it."""
        layout, version = self.transcript.layout(event.connection)
        raw = bytes(item.onward(item.position))
        try:
            said = read_transmission(item, layout)
        except WireError:
            return Writer().raw(raw)
        words = bytes(said.signed)[2 + len(said.corr_id) + len(said.entity_id) :]
        signed = start_signed(said.corr_id, self.names.ours(said.entity_id))
        command = self._command(item, version)
        translated = None if command is None else self._translated(command)
        if translated is None:
            signed.raw(words)
        else:
            translated.write(signed, version)
            self.asked[event.connection, said.corr_id].append(translated)
        return self._authorized(event, line, said, command, signed)

    @staticmethod
    def _command(item: Reader, version: int) -> Command | None:
        try:
            return read_command(item, version)
        except RefusedError:
            return None

    def _translated(self, command: Command) -> Command | None:
        """The command with our keys and ids; None if it has neither."""
        match command:
            case NEW():
                creds = command.ntf_creds
                return replace(
                    command,
                    auth_key=self.our_key(command.auth_key).public,
                    dh_key=self.our_key(command.dh_key).public,
                    ntf_creds=None if creds is None else self._creds(creds),
                )
            case KEY() | SKEY() | LKEY():
                return replace(command, key=self.our_key(command.key).public)
            case RKEY():
                return replace(command, keys=tuple(self.our_key(key).public for key in command.keys))
            case NKEY():
                return replace(command, creds=self._creds(command.creds))
            case ACK():
                return replace(command, msg_id=self.names.ours(command.msg_id))
            case LSET():
                return replace(command, link_id=self.names.ours(command.link_id))
            case _:
                return None

    def _creds(self, creds: NtfCreds) -> NtfCreds:
        return NtfCreds(self.our_key(creds.notifier_key).public, self.our_key(creds.dh_key).public)

    def _authorized(
        self, event: Event, line: Line, said: Transmission, command: Command | None, signed: Writer
    ) -> Writer:
        offered = said.authorization
        if not offered:
            return line.authorized_by(None, signed, said.corr_id)
        if len(offered) not in AUTHORIZATION_SIZES:
            return transmission_of(line.layout, signed, os.urandom(len(offered)), said.service_signature)
        signer = self._signer(event.connection, said, command)
        if signer is None and "another session id" in event.note:
            other = replace(line.layout, session_id=bytes(len(line.layout.session_id)))
            authorized = authorized_bytes(other, signed)
            key = self.key(f"{self.transcript.owner(said.entity_id)}.rcv_auth")
            return transmission_of(line.layout, signed, key.sign(authorized), said.service_signature)
        # A stranger of the same kind stands for whoever made an authorization that fits no listed key.
        key = new_key(kind_of(offered)) if signer is None else self.our_key(signer)
        return line.authorized_by(key, signed, said.corr_id, said.service_signature)

    def _signer(self, connection: str, said: Transmission, command: Command | None) -> PublicKey | None:
        """The recorded key that made an authorization: a listed one, or that of the command itself."""
        layout, _ = self.transcript.layout(connection)
        authorized = said.authorized(layout)
        names = self.transcript.authorizers(connection, said.authorization, authorized, said.corr_id)
        found = {self.transcript.private_keys[name].public for name in names}
        if isinstance(command, KEY | SKEY | LKEY) and verifies(command.key, authorized, said.authorization):
            found.add(command.key)
        assert len(found) <= 1
        return found.pop() if found else None

    # What the router said

    async def _heard(self, event: Event, line: Line) -> None:
        layout, version = self.transcript.layout(event.connection)
        for recorded in parse_responses(Reader(event.payload), layout, version):
            assert isinstance(recorded, Received)
            entity_id = self.names.ours(recorded.entity_id)
            if recorded.corr_id:
                ours = await line.reply(recorded.corr_id)
            else:
                ours = await line.event(entity_id)
            assert ours.entity_id == entity_id
            asked = self.asked[event.connection, recorded.corr_id]
            self._same(recorded, ours, asked[0] if asked else None)

    def _same(self, recorded: Received, ours: Received, asked: Command | None) -> None:
        """Both say the same, apart from ids, keys and times."""
        match recorded.response, ours.response:
            case IDS() as theirs, IDS() as mine:
                assert isinstance(asked, NEW)
                self._same_queue(theirs, mine, asked)
            case NID() as theirs, NID() as mine:
                assert isinstance(asked, NKEY)
                self._same_notifier(theirs.creds, mine.creds, asked.creds)
            case MSG() as theirs, MSG() as mine:
                self.names.same(theirs.msg_id, mine.msg_id)
                box = self.transcript.delivery_box(recorded.entity_id)
                same_message(opened(box, theirs), opened(self.boxes[ours.entity_id], mine))
            case NMSG() as theirs, NMSG() as mine:
                box = self.transcript.notification_box(recorded.entity_id)
                theirs_meta = read_nmsg_meta(Reader(box.open_padded(theirs.nonce, theirs.enc_meta)))
                box = self.boxes[ours.entity_id]
                mine_meta = read_nmsg_meta(Reader(box.open_padded(mine.nonce, mine.enc_meta)))
                self.names.same(theirs_meta.msg_id, mine_meta.msg_id)
            case INFO() as theirs, INFO() as mine:
                self._same_info(theirs.info, mine.info)
            case LNK() as theirs, LNK() as mine:
                assert mine.sender_id == self.names.ours(theirs.sender_id)
                assert mine.data == theirs.data
            case SOK() as theirs, SOK() as mine:
                self._same_optional(theirs.service_id, mine.service_id)
            case (OK() | PONG() | END() | DELD() | ERR()) as theirs, mine:
                assert mine == theirs
            case theirs, mine:
                raise AssertionError(f"{theirs!r} recorded, {mine!r} heard")

    def _same_queue(self, theirs: IDS, mine: IDS, asked: NEW) -> None:
        link = None if asked.request is None else asked.request.link
        assert mine.mode == theirs.mode
        self._same_optional(theirs.service_id, mine.service_id)
        if link is not None:
            assert mine.sender_id == theirs.sender_id == link.sender_id
            assert link.link_id in (None, mine.link_id)
        self.names.same(theirs.recipient_id, mine.recipient_id)
        self.names.same(theirs.sender_id, mine.sender_id)
        assert (mine.link_id is None) == (theirs.link_id is None)
        if mine.link_id is not None and theirs.link_id is not None:
            self.names.same(theirs.link_id, mine.link_id)
        self.boxes[mine.recipient_id] = self.box(asked.dh_key, mine.dh_key)
        assert (mine.ntf_creds is None) == (theirs.ntf_creds is None) == (asked.ntf_creds is None)
        if theirs.ntf_creds and mine.ntf_creds and asked.ntf_creds:
            self._same_notifier(theirs.ntf_creds, mine.ntf_creds, asked.ntf_creds)

    def _same_notifier(self, theirs: ServerNtfCreds, mine: ServerNtfCreds, asked: NtfCreds) -> None:
        self.names.same(theirs.notifier_id, mine.notifier_id)
        self.boxes[mine.notifier_id] = self.box(asked.dh_key, mine.dh_key)

    def box(self, asked: PublicKey, answered: PublicKey) -> BoxKey:
        """The secret of a key pair of ours, by its public key, and a key of the router."""
        (private,) = (key for key in self.keys.values() if key.public == asked)
        return BoxKey.agreed(private, answered)

    def _same_info(self, theirs: QueueInfo, mine: QueueInfo) -> None:
        for recorded, ours in ((theirs.sub, mine.sub), (theirs.msg, mine.msg)):
            assert (ours is None) == (recorded is None)
        assert (mine.secured, mine.notifier, mine.size) == (theirs.secured, theirs.notifier, theirs.size)
        if theirs.sub is not None and mine.sub is not None:
            assert mine.sub.thread is theirs.sub.thread
            self._same_optional(theirs.sub.delivered, mine.sub.delivered)
        if theirs.msg is not None and mine.msg is not None:
            assert mine.msg.type is theirs.msg.type
            self._same_optional(theirs.msg.msg_id, mine.msg.msg_id)

    def _same_optional(self, theirs: bytes | None, mine: bytes | None) -> None:
        assert (mine is None) == (theirs is None)
        if theirs is not None and mine is not None:
            self.names.same(theirs, mine)


def verifies(key: PublicKey, authorized: bytes, authorization: bytes) -> bool:
    """Whether a key that signs made this; of one that does not, nobody can tell."""
    return key.algorithm is not Algorithm.X25519 and verify(key, authorized, authorization)


def opened(box: BoxKey, msg: MSG) -> ReceivedMessage:
    return read_message(Reader(box.open_padded(nonce_of(msg.msg_id), msg.enc_body)))


def same_message(theirs: ReceivedMessage, mine: ReceivedMessage) -> None:
    """The same message but for the time it came."""
    match theirs:
        case QuotaMarker():
            assert isinstance(mine, QuotaMarker)
        case Message(_, notify, body):
            assert isinstance(mine, Message)
            assert (mine.notify, bytes(mine.body)) == (notify, bytes(body))
        case _:
            assert_never(theirs)
