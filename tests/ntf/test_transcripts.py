"""Recorded conversations with the reference's notification router, replayed to ours.

Ids and keys are ours, signatures are made again, what was wrong or malformed stays so. The message
router of the recording is a real one of ours; events there are repeated at the same points.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from blindpost.client.options import SmpOptions
from blindpost.client.smp import SmpClient
from blindpost.crypto.authorizers import kind_of
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.keys import PrivateKey, verify
from blindpost.ntf.subscriber.options import SubscriberOptions
from blindpost.ntf.subscriber.subscriber import SmpSubscriber
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import Server
from blindpost.wire.batch import unpack
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.ntf.commands import PING, SNEW, TNEW, TVFY, Command, read_command
from blindpost.wire.ntf.pushes import VerificationPush
from blindpost.wire.ntf.responses import IDSUB, IDTKN, OK, PONG, SUB, TKN, Response
from blindpost.wire.ntf.status import SubState, TokenState
from blindpost.wire.ntf.tokens import PushProvider
from blindpost.wire.ntf.transmissions import Received, parse_responses
from blindpost.wire.ntf.versions import connection_layout
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.commands import DEL, NKEY, NSUB
from blindpost.wire.smp.errors import RefusedError
from blindpost.wire.smp.responses import NID
from blindpost.wire.smp.values import NtfCreds
from blindpost.wire.transmission import AUTHORIZATION_SIZES, Layout
from tests.support.ntf.lines import NtfLine, open_ntf_line
from tests.support.ntf.routers import Apple, RunningNtf, running_ntf
from tests.support.router.routers import RunningRouter, new_key, new_queue, running_router
from tests.support.wire.smp_transcripts import Transcript
from tests.support.wire.taken_apart import read_transmission

UNDER_WAY = {TokenState.REGISTERED, TokenState.CONFIRMED}
MALFORMED = "count 0"
DELETED_AT = 9
"""Which of the SCHK queries found the queue deleted."""
NOT_YET = {SubState.NEW, SubState.PENDING}
"""Which of these is reported depends on timing."""


@dataclass
class Replay:
    """One transcript against one router."""

    transcript: Transcript
    ntf: RunningNtf
    line: NtfLine
    smp: RunningRouter
    ids: dict[bytes, bytes] = field(default_factory=dict)
    keys: dict[PublicKey, PrivateKey] = field(default_factory=dict)
    boxes: dict[bytes, BoxKey] = field(default_factory=dict)
    """By our token id."""
    recorded: dict[bytes, Response] = field(default_factory=dict)
    asked: TNEW | None = None
    before: dict[str, Callable[[Replay], Awaitable[None]]] = field(default_factory=dict)
    """What happened elsewhere before the command with this note."""

    def key(self, recorded: PublicKey) -> PrivateKey:
        return self.keys.setdefault(recorded, new_key(recorded.algorithm))

    @property
    def layout(self) -> Layout:
        """Of the recorded session."""
        return connection_layout(3, bytes.fromhex(self.transcript.session("A")["session_id"]))

    def replies(self, payload: bytes) -> list[Received]:
        found = parse_responses(Reader(payload), self.layout, 3)
        assert all(isinstance(received, Received) for received in found)
        return [received for received in found if isinstance(received, Received)]

    async def run(self) -> None:
        """Everything after the hellos."""
        events = self.transcript.events[2:]
        heard = [self.replies(event.payload) for event in events if not event.to_router]
        self.recorded = {reply.corr_id: reply.response for replies in heard for reply in replies}
        said: dict[bytes, Callable[[], Writer]] = {}
        for event in events:
            if not event.to_router:
                for reply in self.replies(event.payload):
                    await self.compare(reply, said.get(reply.corr_id))
                continue
            if event.note in self.before:
                await self.before[event.note](self)
            if event.note == MALFORMED:
                # Two such blocks were answered, one of them is in the recording.
                self.line.stream.send(event.payload)
                self.line.stream.send(event.payload)
                continue
            for item in unpack(Reader(event.payload)):
                corr_id, again = self.translated(item)
                said[corr_id] = again
                self.line.send(again())
        assert await self.line.ask(PING()) == PONG(), "nothing else was answered"

    def translated(self, item: Reader) -> tuple[bytes, Callable[[], Writer]]:
        """One recorded transmission in our terms, repeated as often as needed."""
        said = read_transmission(item, self.layout)
        words = bytes(said.signed)[2 + len(said.corr_id) + len(said.entity_id) :]
        entity_id = self.ids.get(said.entity_id, said.entity_id)
        spoken: Command | bytes = words
        with contextlib.suppress(RefusedError, WireError):
            spoken = self.command(read_command(item, 3), entity_id, self.recorded.get(said.corr_id))
        offered = said.authorization
        key, authorization = None, None
        if offered and len(offered) not in AUTHORIZATION_SIZES:
            authorization = os.urandom(len(offered))
        elif offered:
            signer = self.signer(offered, said.authorized(self.layout))
            key = new_key(kind_of(offered)) if signer is None else self.key(signer)
        return said.corr_id, lambda: self.line.spoken(
            spoken, entity_id, key, said.corr_id, authorization=authorization
        )

    def signer(self, authorization: bytes, authorized: bytes) -> PublicKey | None:
        """The recorded key that made an authorization, if it is listed."""
        listed = self.transcript.private_keys
        for key in listed.values():
            if key.algorithm is not Algorithm.X25519 and verify(key.public, authorized, authorization):
                return key.public
        if kind_of(authorization) is Algorithm.X25519:
            return listed["token_x25519_auth"].public
        return None

    def command(self, command: Command, entity_id: bytes, reply: Response | None) -> Command:
        """The command with our keys, ids and codes."""
        match command:
            case TNEW():
                self.asked = command
                return replace(
                    command,
                    verify_key=self.key(command.verify_key).public,
                    dh_key=self.key(command.dh_key).public,
                )
            case TVFY() if reply == OK():
                return TVFY(self.code(entity_id))
            case SNEW():
                key = self.key(PrivateKey.decoded(command.notifier_key).public)
                return SNEW(
                    self.ids.get(command.token_id, command.token_id),
                    self.server(command.server),
                    self.ids.get(command.notifier_id, command.notifier_id),
                    key.encoded,
                )
            case _:
                return command

    def server(self, recorded: Server) -> Server:
        port = self.smp.server.port if recorded.port == "16223" else "1"
        key_hash = recorded.key_hash if recorded.key_hash == b"\x01" * 32 else self.smp.server.key_hash
        return Server(self.smp.server.hosts, port, key_hash)

    def code(self, token_id: bytes) -> bytes:
        """The newest code that was pushed to this token."""
        for _, push in reversed(self.ntf.apple.pushed):
            assert isinstance(push, VerificationPush)
            with contextlib.suppress(WireError):
                return bytes(self.boxes[token_id].open_padded(push.nonce, push.ciphertext))
        raise AssertionError("no code was pushed")

    async def compare(self, recorded: Received, again: Callable[[], Writer] | None) -> None:
        heard = await self.line.hear()
        assert heard.corr_id == recorded.corr_id
        assert heard.entity_id == self.ids.get(recorded.entity_id, recorded.entity_id)
        match recorded.response, heard.response:
            case IDTKN() as theirs, IDTKN() as ours:
                assert self.ids.setdefault(theirs.token_id, ours.token_id) == ours.token_id
                assert self.asked is not None
                dh_key = self.key(self.asked.dh_key)
                self.boxes[ours.token_id] = BoxKey.agreed(dh_key, ours.dh_key)
                await self.ntf.settled()
            case IDSUB() as theirs, IDSUB() as ours:
                assert (
                    self.ids.setdefault(theirs.subscription_id, ours.subscription_id) == ours.subscription_id
                )
            case TKN(theirs_status), TKN(ours_status):
                states = {theirs_status.state, ours_status.state}
                assert len(states) == 1 or states == UNDER_WAY
            case SUB(theirs_sub), SUB(ours_sub):
                while ours_sub.state is not theirs_sub.state:
                    if {ours_sub.state, theirs_sub.state} <= NOT_YET or theirs_sub.state is SubState.NEW:
                        assert ours_sub.state in {*NOT_YET, SubState.ACTIVE}
                        return
                    assert again is not None
                    await asyncio.sleep(0)
                    self.line.send(again())
                    answer = (await self.line.hear()).response
                    assert isinstance(answer, SUB)
                    ours_sub = answer.status
            case theirs_response, ours_response:
                assert ours_response == theirs_response


@contextlib.asynccontextmanager
async def replaying(name: str, folder: Path) -> AsyncIterator[Replay]:
    network, apple = MemoryNetwork(), Apple()
    providers = dict.fromkeys(PushProvider, apple)
    (folder / "smp").mkdir()
    async with (
        running_router(folder / "smp", network=network) as smp,
        running_ntf(folder, network=network, apple=apple, providers=providers) as ntf,
    ):
        options = SubscriberOptions(smp=SmpOptions(network=network))
        subscriber = SmpSubscriber(ntf.router, options)
        ntf.router.subscriber = subscriber
        subscribing = asyncio.create_task(subscriber.run())
        line = await open_ntf_line(ntf)
        try:
            yield Replay(Transcript(name), ntf, line, smp)
        finally:
            await line.stream.close()
            subscribing.cancel()
            await asyncio.gather(subscribing, return_exceptions=True)


async def test_tokens_as_recorded(tmp_path: Path) -> None:
    async with replaying("30-ntf-token.json", tmp_path) as replay:
        await replay.run()


async def test_subscriptions_as_recorded(tmp_path: Path) -> None:
    async with replaying("31-ntf-subscription.json", tmp_path) as replay:
        recipient = await SmpClient.connect(replay.smp.server, SmpOptions(network=replay.smp.network))
        other = await SmpClient.connect(replay.smp.server, SmpOptions(network=replay.smp.network))
        queue = await new_queue(recipient)
        notifier_key = replay.key(replay.transcript.private_keys["notifier_auth"].public)
        creds = NtfCreds(notifier_key.public, new_key(Algorithm.X25519).public)
        nid = await recipient.send(NKEY(creds), queue.recipient_id, queue.key)
        assert isinstance(nid, NID)
        replay.ids[replay.transcript.id("notifier_id")] = nid.creds.notifier_id
        schks = 0

        async def take(_: Replay) -> None:
            await other.send(NSUB(), nid.creds.notifier_id, notifier_key)

        async def delete(_: Replay) -> None:
            nonlocal schks
            schks += 1
            if schks == DELETED_AT:
                await recipient.send(DEL(), queue.recipient_id, queue.key)

        replay.before = {"SCHK after another client took the notifier": take, "SCHK": delete}
        await replay.run()
        assert schks == 10
        await recipient.close()
        await other.close()
