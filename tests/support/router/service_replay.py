"""Recorded conversations of services, said again: two signatures, and counts and hashes of our own ids."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, combinations

from blindpost.crypto.authorizers import authorize, kind_of, with_fingerprint
from blindpost.crypto.credentials import Credentials
from blindpost.crypto.ids_hash import QueueSet
from blindpost.crypto.keys import verify
from blindpost.wire.primitives import Writer
from blindpost.wire.smp.commands import NEW, NSUBS, SEND, SUB, SUBS, Command
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.responses import ALLS, ENDS, IDS, OK, SOKS, Response
from blindpost.wire.smp.transmissions import Received
from blindpost.wire.smp.values import NtfCreds, QueueMode, QueueRequest, SubMode
from blindpost.wire.transmission import authorized_bytes, transmission_of
from tests.support.router.lines import Line, Said, open_line
from tests.support.router.replay import Names, Replay, Step
from tests.support.router.routers import RunningRouter, new_key
from tests.support.router.services import MESSAGING, NOTIFIER, ServiceLine, new_service, open_service
from tests.support.wire.smp_transcripts import Event
from tests.support.wire.taken_apart import Transmission

HELLOS = ("server hello", "client hello", "service response")
NOTIFIER_CONNECTIONS = ("N", "N2", "N3")


@dataclass
class ServiceReplay(Replay):
    """One transcript with services against one router; earlier recordings left their queues behind."""

    certificates: dict[bytes, Credentials] = field(default_factory=dict)
    """Ours by the recorded fingerprint."""

    @classmethod
    def of(cls, name: str, running: RunningRouter) -> ServiceReplay:
        made = Replay.of(name, running)
        return cls(made.transcript, running, {}, Names(), {}, {}, made.asked)

    async def run(self, left_out: dict[int, Step]) -> None:
        for place, event in enumerate(self.transcript.events):
            if place in left_out:
                await left_out[place](self)
            if event.connection not in self.lines:
                self.lines[event.connection] = await self.connected(event.connection)
            if event.note not in HELLOS:
                await self._event(event)
        for line in self.lines.values():
            assert await line.settle() == []

    async def connected(self, name: str) -> Line:
        session = self.transcript.session(name)
        if session["service_id"] is None:
            return await super().connected(name)
        line = await open_service(self.running, self.certificate(name), self.role(name), session["version"])
        self.names.same(bytes.fromhex(session["service_id"]), line.service_id)
        recorded = self.transcript.private_keys[f"{name}.service_session_ed25519"].public
        self.keys[recorded] = line.session_key
        return line

    def certificate(self, name: str) -> Credentials:
        fingerprint = self.transcript.secret(f"{name}.service_cert_fingerprint")
        assert fingerprint is not None
        return self.certificates.setdefault(fingerprint, new_service())

    @staticmethod
    def role(name: str) -> ServiceRole:
        return NOTIFIER if name in NOTIFIER_CONNECTIONS else MESSAGING

    # What the client said

    def _authorized(
        self, event: Event, line: Line, said: Transmission, command: Command | None, signed: Writer
    ) -> Writer:
        if not isinstance(line, ServiceLine) or not said.authorization:
            return super()._authorized(event, line, said, command, signed)
        connection = event.connection
        layout, _ = self.transcript.layout(connection)
        theirs, ours = said.authorized(layout), authorized_bytes(line.layout, signed)
        fingerprint = self.transcript.secret(f"{connection}.service_cert_fingerprint")
        assert fingerprint is not None
        vouched = self._signed_by(connection, with_fingerprint(fingerprint, theirs), said)
        key = vouched or self._signed_by(connection, theirs, said)
        covered = ours if vouched is None else with_fingerprint(line.service.fingerprint, ours)
        signer = new_key(kind_of(said.authorization)) if key is None else self.key(key)
        authorization = authorize(signer, covered, said.corr_id, line.router_key)
        service_signature = said.service_signature
        if service_signature is not None:
            session_key = self.transcript.private_keys[f"{connection}.service_session_ed25519"]
            good = verify(session_key.public, theirs, service_signature)
            service_signature = line.session_key.sign(ours) if good else os.urandom(64)
        return transmission_of(line.layout, signed, authorization, service_signature)

    def _signed_by(self, connection: str, covered: bytes, said: Transmission) -> str | None:
        names = self.transcript.authorizers(connection, said.authorization, covered, said.corr_id)
        return min(names) if names else None

    def _translated(self, command: Command) -> Command | None:
        if isinstance(command, SUBS | NSUBS):
            return replace(command, ids_hash=self.same_hash(command.ids_hash))
        return super()._translated(command)

    def same_hash(self, recorded: bytes) -> bytes:
        """Our hash of the same set of ids; a hash of nothing we know stays as it is."""
        for theirs, ours in self._sets():
            if theirs.ids_hash == recorded:
                return ours.ids_hash
        return recorded

    def _sets(self) -> Iterator[tuple[QueueSet, QueueSet]]:
        ids = sorted({self.transcript.id(name) for name in self.transcript.names if name != "service_id"})
        for chosen in chain.from_iterable(combinations(ids, size) for size in range(1, 4)):
            yield QueueSet.of(chosen), QueueSet.of(map(self.names.ours, chosen))

    # What the router said

    def _same(self, recorded: Received, ours: Received, asked: Command | None) -> None:
        match recorded.response, ours.response:
            case (SOKS() as theirs, SOKS() as mine) | (ENDS() as theirs, ENDS() as mine):
                assert mine.count == theirs.count
                assert mine.ids_hash in (self.same_hash(theirs.ids_hash), self._by_notifiers(theirs))
            case ALLS(), mine:
                assert mine == ALLS()
            case _:
                super()._same(recorded, ours, asked)

    def _by_notifiers(self, recorded: SOKS | ENDS) -> bytes | None:
        """The recorded router hashes recipient ids in an ENDS after NSUB; ours the ids that NSUB names."""
        queues = [name.removesuffix(".ntf_id") for name in self.transcript.names if name.endswith(".ntf_id")]
        theirs = QueueSet.of(self.transcript.id(f"{queue}.rcv_id") for queue in queues)
        ours = QueueSet.of(self.names.ours(self.transcript.id(f"{queue}.ntf_id")) for queue in queues)
        quirk = isinstance(recorded, ENDS) and recorded.ids_hash == theirs.ids_hash
        return ours.ids_hash if quirk else None

    # What earlier recordings left behind

    async def make(self, maker: Line, name: str, *, notifier: bool = False) -> None:
        """A queue with the recorded names and our keys, made on this connection."""
        auth, dh = self.key(f"{name}.rcv_auth"), self.key(f"{name}.rcv_dh_x25519")
        creds = None
        if notifier:
            ntf_auth, ntf_dh = self.key(f"{name}.ntf_auth"), self.key(f"{name}.ntf_dh_x25519")
            creds = NtfCreds(ntf_auth.public, ntf_dh.public)
        mode = SubMode.SUBSCRIBE if isinstance(maker, ServiceLine) else SubMode.ONLY_CREATE
        command = NEW(auth.public, dh.public, None, mode, QueueRequest(QueueMode.MESSAGING), creds)
        ids = await maker.ask(command, key=auth)
        assert isinstance(ids, IDS)
        self.names.same(self.transcript.id(f"{name}.rcv_id"), ids.recipient_id)
        self.names.same(self.transcript.id(f"{name}.snd_id"), ids.sender_id)
        self.boxes[ids.recipient_id] = self.box(dh.public, ids.dh_key)
        if ids.ntf_creds is not None and creds is not None:
            self.names.same(self.transcript.id(f"{name}.ntf_id"), ids.ntf_creds.notifier_id)
            self.boxes[ids.ntf_creds.notifier_id] = self.box(creds.dh_key, ids.ntf_creds.dh_key)

    async def say(self, line: Line, name: str, body: bytes, *, notify: bool = False) -> None:
        sender_id = self.names.ours(self.transcript.id(f"{name}.snd_id"))
        assert await line.ask(SEND(notify, body), sender_id) == OK()

    async def sub(self, line: Line, name: str) -> Response:
        recipient_id = self.names.ours(self.transcript.id(f"{name}.rcv_id"))
        return (await line.ask_many([Said(SUB(), recipient_id, self.key(f"{name}.rcv_auth"))]))[0]

    def body(self, place: int) -> bytes:
        """The body of the MSG in a recorded block."""
        (received,) = self.recorded(place)
        message = self.recorded_message(received)
        return bytes(getattr(message, "body", b""))

    async def plain_line(self) -> Line:
        return await open_line(self.running)
