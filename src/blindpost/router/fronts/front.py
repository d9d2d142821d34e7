"""A front: the process that owns connections. `python -m blindpost.router.fronts.front DESCRIPTOR`

It speaks TLS, opens and seals blocks, verifies what it knows the key of and encrypts messages. It decides
nothing and keeps nothing: what came goes to the engine, what the engine answers goes out. It ends with the
engine, and takes its connections with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import socket
import sys
import time
from collections.abc import Callable

from blindpost.crypto.authorizers import ED448_WORK, AuthenticatorCheck, AuthenticatorKeys, check_of
from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.verifying import OneByOne
from blindpost.router.fronts import frames
from blindpost.router.fronts.channel import Channel
from blindpost.router.fronts.line import FOR_THE_ENGINE, Line, SocketLine
from blindpost.router.sealing import sealed_message
from blindpost.serving import logs
from blindpost.serving.memory import LOOK_S, GivingBack
from blindpost.serving.tasks import Tasks
from blindpost.transport import errors
from blindpost.transport.handshake import FindService
from blindpost.transport.keeper import Keeper
from blindpost.transport.plan import SessionPlan
from blindpost.transport.plans import smp_router_plan
from blindpost.transport.session import Handler, Session, Stage
from blindpost.transport.tls import scratch
from blindpost.wire.batch import SMP_BATCH_LIMIT, pack, unpack
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm, PublicKey
from blindpost.wire.primitives import Reader, Writer
from blindpost.wire.smp.errors import Code
from blindpost.wire.smp.responses import ERR, MSG
from blindpost.wire.smp.versions import connection_layout
from blindpost.wire.transmission import AUTHORIZATION_SIZES, ED448_SIGNATURE_SIZE, Layout, read_fields
from blindpost.wire.transmissions import response_transmission

KEYS_MAX = 65_536
"""Keys of queues that are remembered; the one learnt first makes room."""
WORK_MAX = 1024
"""After so many verifications with Ed25519 in one turn of the loop, or what costs as much, the others are
left to the engine. There addresses take turns; here one of them would make all others wait.
"""
COLLECT_AFTER = (20_000, 10, 10)
PR_SET_PDEATHSIG = 1
"""What Linux calls a signal at the end of the parent. Elsewhere there is none."""


class Carried(Session):
    """A connection that the engine accepted, with what had come on it by then."""

    __slots__ = (
        "_held",
        "doomed",
        "engine_holds",
        "layout",
        "number",
        "secrets",
        "verifies",
        "version",
        "we_hold",
    )

    def __init__(self, plan: SessionPlan, handler: Handler, keeper: Keeper, number: int, held: bytes) -> None:
        super().__init__(plan, handler, keeper)
        self._held = held
        self.number = number
        self.doomed = False
        """The engine wants it to end, and it has not begun."""
        self.engine_holds = False
        self.we_hold = False
        self.layout: Layout
        self.version = 0
        self.secrets: AuthenticatorKeys
        self.verifies = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.doomed:
            self.abort()
            return
        held, self._held = memoryview(self._held), b""
        while held and self.stage is not Stage.CLOSED:
            count = min(len(held), len(scratch.received))
            scratch.received[:count] = held[:count]
            held = held[count:]
            self.buffer_updated(count)

    def read_or_not(self) -> None:
        """Read if neither the engine nor we have a reason not to."""
        if self.engine_holds or self.we_hold:
            self.pause_reading()
        else:
            self.resume_reading()


class FrontProcess(Handler):
    """All connections of one front."""

    def __init__(
        self,
        line: Line,
        *,
        entropy: Entropy = system_entropy,
        now: Callable[[], float] = time.time,
        set_up_logs: Callable[[str, str], None] = logs.set_up,
    ) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sessions: dict[int, Carried] = {}
        self._held: dict[Carried, None] = {}
        """Those that are not read because the engine lags."""
        self._keys: dict[bytes, PublicKey] = {}
        self._verifier = OneByOne()
        self._work = 0
        """What was verified in this turn of the loop."""
        self._spare_key = PrivateKey.generate(Algorithm.X25519, entropy)
        self._entropy = entropy
        self._now = now
        self._set_up_logs = set_up_logs
        self._opening: set[asyncio.Task[None]] = set()
        self.ended = 0
        """Connections that have ended."""
        self._plan: SessionPlan
        self._keeper: Keeper
        self._channel = Channel(line, self._hear, self._end)
        self._channel.on_relief = self._read_on

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    # --- what the engine says

    def _hear(self, kind: int, number: int, view: memoryview) -> None:
        if kind == frames.SAY:
            session = self._sessions.get(number)
            if session is not None:
                self._say(session, view)
        elif kind == frames.ACCEPT:
            self._accept(number, bytes(view))
        elif kind == frames.LEARN:
            self._learn(*frames.read_learnt(view))
        elif kind == frames.PING:
            self._channel.tell(frames.PONG, 0)
        elif kind == frames.SETUP:
            self._set_up(frames.Setup.read(bytes(view)))
        else:
            session = self._sessions.get(number)
            if session is not None:
                self._told(session, kind, bytes(view))

    def _set_up(self, setup: frames.Setup) -> None:
        if not hasattr(self, "_keeper"):
            self._keeper = Keeper(setup.limits.release_after_s)
        self._plan = smp_router_plan(
            setup.credentials,
            limits=setup.limits,
            versions=setup.versions,
            now=self._now,
            entropy=self._entropy,
        )
        self._set_up_logs(setup.log_format, setup.log_level)
        logs.log.debug("a front has the settings")

    def _accept(self, number: int, held: bytes) -> None:
        descriptor = self._channel.descriptors.popleft()
        session = self._sessions[number] = Carried(self._plan, self, self._keeper, number, held)
        task = asyncio.create_task(self._open(session, descriptor))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, session: Carried, descriptor: int) -> None:
        try:
            await self._channel.line.open(descriptor, session)
        except OSError:
            self.closed(session, errors.ConnectionCutError())

    def _told(self, session: Carried, kind: int, body: bytes) -> None:
        if session.stage is Stage.CONNECTING:
            session.doomed = session.doomed or kind in (frames.CLOSE, frames.ABORT)
            return
        match kind:
            case frames.PAUSE:
                session.engine_holds = True
                session.read_or_not()
            case frames.RESUME:
                session.engine_holds = False
                session.read_or_not()
            case frames.CLOSE:
                session.close()
            case frames.ABORT:
                session.abort()
            case frames.MARK:
                self._channel.tell(frames.MARKED, session.number, body)
            case frames.FOUND:
                session.service_found(body)
            case frames.REFUSED:
                session.service_refused()

    def _learn(self, entity_id: bytes, key: PublicKey) -> None:
        keys = self._keys
        if len(keys) >= KEYS_MAX and entity_id not in keys:
            del keys[next(iter(keys))]
        keys[entity_id] = key

    def _say(self, session: Carried, view: memoryview) -> None:
        transmissions: list[Writer] = []
        for one in frames.said(view):
            transmissions.append(self._sealed(session, one) if isinstance(one, frames.Late) else one)
        try:
            session.send_now(pack(transmissions, SMP_BATCH_LIMIT).payloads)
        except errors.TransportError:
            return
        if session.congested:
            self._channel.tell(frames.LAGS, session.number, session.outbox_size.to_bytes(8, "little"))

    def _sealed(self, session: Carried, late: frames.Late) -> Writer:
        response: MSG | ERR
        try:
            response = sealed_message(late.secret, late.message)
        except Exception:
            # A row that cannot be written only affects the client that asked for it.
            logs.log.exception("an answer could not be written")
            self._channel.tell(frames.UNWRITTEN, session.number)
            response = ERR(Code.INTERNAL)
        return response_transmission(session.layout, session.version, late.corr_id, late.entity_id, response)

    # --- what connections say

    def established(self, session: Session) -> None:
        assert isinstance(session, Carried)
        agreed = session.agreed
        session.version = agreed.version
        session.layout = connection_layout(agreed.version, agreed.session_id)
        session.secrets = AuthenticatorKeys(agreed.own_key or self._spare_key)
        session.verifies = agreed.service is None
        self._channel.tell(frames.ESTABLISHED, session.number, frames.write_agreement(agreed))

    def service_requested(self, session: Session, request: FindService) -> None:
        assert isinstance(session, Carried)
        self._channel.tell(frames.SERVICE, session.number, frames.write_request(request))

    def block_received(self, session: Session, payload: bytes) -> None:
        assert isinstance(session, Carried)
        keys = self._verified(session, payload) if session.verifies else ()
        self._channel.put(frames.BLOCK, session.number, *frames.block_of(keys, payload))
        if self._channel.lags:
            self._held[session] = None
            session.we_hold = True
            session.read_or_not()

    def block_failed(self, session: Session, error: errors.BlockError) -> None:
        assert isinstance(session, Carried)
        self._channel.tell(frames.BAD_BLOCK, session.number)

    def drained(self, session: Session) -> None:
        assert isinstance(session, Carried)
        self._channel.tell(frames.DRAINED, session.number)

    def closed(self, session: Session, reason: errors.TransportError) -> None:
        assert isinstance(session, Carried)
        self._held.pop(session, None)
        self.ended += 1
        if self._sessions.pop(session.number, None) is not None:
            self._channel.tell(frames.CLOSED, session.number, type(reason).__name__.encode())

    def _read_on(self) -> None:
        held, self._held = self._held, {}
        for session in held:
            session.we_hold = False
            session.read_or_not()

    def _verified(self, session: Carried, payload: bytes) -> list[bytes]:
        """For each transmission of a block, the key with which its authorization is valid, or nothing.

        Where no key is known a dummy is tried: how long an answer takes must not tell which queues are known.
        """
        layout, secrets, work = session.layout, session.secrets, self._work
        try:
            readers = unpack(Reader(payload))
        except WireError:
            return []
        verified: list[bytes] = []
        for reader in readers:
            verified.append(b"")
            try:
                authorization, _, corr_id, entity_id, signed = read_fields(reader, layout)
            except WireError:
                continue
            if work >= WORK_MAX or not authorization or len(authorization) not in AUTHORIZATION_SIZES:
                continue
            work += ED448_WORK if len(authorization) == ED448_SIGNATURE_SIZE else 1
            authorized = b"".join((layout.session_field, signed))
            key = self._keys.get(entity_id)
            check = check_of(key, authorization, authorized, corr_id, secrets)
            if self._verifier.verify_many((check,))[0] and key is not None:
                verified[-1] = key.raw
                if type(check) is AuthenticatorCheck:
                    secrets.keep(check)
        if work and not self._work:
            asyncio.get_running_loop().call_soon(self._work_again)
        self._work = work
        return verified

    def _work_again(self) -> None:
        self._work = 0


async def run(sock: socket.socket) -> None:
    asyncio.get_running_loop().set_exception_handler(logs.keep_quiet)
    process, giving_back, tasks = FrontProcess(SocketLine(sock)), GivingBack(), Tasks()

    async def give_back() -> None:
        giving_back.look(process.ended)

    tasks.repeat("giving memory back", LOOK_S, give_back)
    tasks.repeat("counted log lines", logs.COUNTED_S, logs.tell_repeated)
    await process.over
    logs.tell_all_repeated()


def end_with_engine() -> None:
    """However this process fares: one that stands still does not notice that its engine was killed."""
    control = getattr(ctypes.CDLL(None), "prctl", None)
    if control is not None:
        control(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    end_with_engine()
    # The engine ends a front by closing its end; signals are for the engine, which blocked them until now.
    for number in FOR_THE_ENGINE:
        signal.signal(number, signal.SIG_IGN)
    if sys.argv[2] != str(frames.VERSION):
        sys.exit(
            "blindpost: a newer program is installed than the router that runs: `blindpost router upgrade`"
        )
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    asyncio.run(run(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
