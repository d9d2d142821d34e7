"""Routers of strangers: they let the attacked server connect to them, and then do what nobody asked for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

from blindpost.crypto.credentials import issue_router, make_authority
from blindpost.transport import ends
from blindpost.transport.errors import TransportError
from blindpost.transport.plans import smp_router_plan
from blindpost.transport.session import Handler, Session
from blindpost.wire.addresses import Host, Server
from blindpost.wire.batch import SMP_BATCH_LIMIT, pack
from blindpost.wire.primitives import Writer, encode
from blindpost.wire.smp.commands import PRXY
from blindpost.wire.smp.responses import END
from blindpost.wire.smp.versions import connection_layout
from blindpost.wire.transmissions import response_transmission
from tests.support.attack.attackers import SMP_VERSION, STEP_S, Aim, context, shaken

RELAYS = 40


class Talker(Handler):
    """Tells whoever connects of the ends of subscriptions that it never had, as fast as it reads."""

    def established(self, session: Session) -> None:
        self._talk(session)

    def drained(self, session: Session) -> None:
        asyncio.get_running_loop().call_soon(self._talk, session)

    def _talk(self, session: Session) -> None:
        agreed = session.agreed
        layout = connection_layout(agreed.version, agreed.session_id)
        said = [response_transmission(layout, agreed.version, b"", os.urandom(24), END()) for _ in range(255)]
        payloads: list[Writer] = list(pack(said, SMP_BATCH_LIMIT).payloads)
        with contextlib.suppress(TransportError):
            session.send_now(payloads)
            if not session.congested:
                asyncio.get_running_loop().call_soon(self._talk, session)


def asked(server: Server) -> bytes:
    command = encode(PRXY(server, None), lambda writer, one: one.write(writer, SMP_VERSION))
    return b"\x00" + b"\x18" + os.urandom(24) + b"\x00" + command


async def talking_relays(aim: Aim) -> None:
    """Have the router connect to relays that never stop talking."""
    handler, servers, listening = Talker(), list[Server](), list[ends.Server]()
    for number in range(RELAYS):
        now = int(time.time())
        credentials = issue_router(make_authority(now, os.urandom), "relay", now, os.urandom)
        server, port = await ends.listen(smp_router_plan(credentials), handler, f"127.0.2.{1 + number}", 0)
        listening.append(server)
        servers.append(Server((Host(f"127.0.2.{1 + number}"),), str(port), credentials.fingerprint))
    tls = context(aim)
    sessions = await asyncio.to_thread(lambda: [shaken(aim, tls, number, 4) for number in range(8)])
    for session in sessions:
        session.sock.setblocking(False)
    for number in aim.turns():
        items = [asked(server) for server in servers[number % 8 :: 8]]
        block = b"".join(len(one).to_bytes(2, "big") + one for one in items)
        session = sessions[number % 8]
        with contextlib.suppress(OSError):
            session.sock.send(session.sealed(aim.padded(bytes([len(items)]) + block)))
        with contextlib.suppress(OSError):
            session.sock.recv(1 << 16)
        await asyncio.sleep(10 * STEP_S)
    for server in listening:
        await server.stop_listening()
