"""Attackers who speak the protocols as they are meant, and store as much as they can."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blindpost.crypto.credentials import Credentials, make_service, sign_session_key
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.wire.capnp.node import METHODS, NODE_SERVICE, Auth, Enqueue, UploadKeyPackage, write_request
from blindpost.wire.capnp.rpc import write_bootstrap, write_call
from blindpost.wire.errors import WireError
from blindpost.wire.keys import Algorithm
from blindpost.wire.ntf.commands import TNEW
from blindpost.wire.ntf.handshake import read_server_hello as read_ntf_hello
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.ntf.versions import connection_layout as ntf_layout
from blindpost.wire.padding import unpad
from blindpost.wire.primitives import Reader, Writer, encode
from blindpost.wire.smp import handshake as smp
from blindpost.wire.smp.commands import NEW, SEND
from blindpost.wire.smp.responses import IDS
from blindpost.wire.smp.transmissions import Received, parse_responses
from blindpost.wire.smp.values import SubMode
from blindpost.wire.smp.versions import SERVICE_CERTS_VERSION, connection_layout
from tests.support.attack.attackers import NTF_VERSION, SMP_VERSION, STEP_S, Aim, Tls, context
from tests.support.wire.speaking import Speaker

ADDRESSES = 4
BODY = bytes(15_000)
SENT_TO_EACH = 30
PAYLOAD = 32 << 10
QUESTIONS = 1_000


def _key(algorithm: Algorithm = Algorithm.ED25519) -> PrivateKey:
    return PrivateKey.generate(algorithm, system_entropy)


class Speaking:
    """A session that gives proper commands, one in a block."""

    def __init__(self, aim: Aim, tls: ssl.SSLContext, number: int) -> None:
        self.aim = aim
        self.tls = Tls(aim, tls, number, ADDRESSES)
        hello = Reader(unpad(self.tls.read(aim.block)))
        if aim.kind == "ntf":
            self.version = NTF_VERSION
            layout = ntf_layout(self.version, read_ntf_hello(hello).session_id)
        else:
            self.version = SMP_VERSION
            layout = connection_layout(self.version, smp.read_server_hello(hello).session_id)
        self._speaker = Speaker(self.version, layout, None)
        self.tls.send(aim.padded(aim.hello()))

    def say(self, command: NEW | SEND | TNEW, entity_id: bytes = b"", key: PrivateKey | None = None) -> None:
        said: Writer = self._speaker.spoken(command, entity_id, key)
        item = said.done()
        self.tls.send(self.aim.padded(b"\1" + len(item).to_bytes(2, "big") + item))

    def created(self) -> bytes | None:
        """The sender id of a queue whose NEW was answered in the next block."""
        block = unpad(self.tls.read(self.aim.block))
        for received in parse_responses(Reader(block), self._speaker.layout, self.version):
            if isinstance(received, Received) and isinstance(received.response, IDS):
                return received.response.sender_id
        return None


async def filled_router(aim: Aim) -> None:
    """New queues as fast as they are given, and long messages to each."""
    tls = context(aim)
    for number in aim.turns():
        with contextlib.suppress(OSError, WireError):
            session = Speaking(aim, tls, number)
            while time.time() < aim.until:
                key = _key()
                new = NEW(key.public, _key(Algorithm.X25519).public, sub_mode=SubMode.ONLY_CREATE)
                session.say(new, b"", key)
                sender_id = session.created()
                if sender_id is None:
                    break
                for _ in range(SENT_TO_EACH):
                    session.say(SEND(False, BODY), sender_id)
                    session.tls.read(aim.block)
                    await asyncio.sleep(0)
            session.tls.sock.close()
        await asyncio.sleep(STEP_S)


async def fresh_services(aim: Aim) -> None:
    """Handshakes of services that nobody knows, each with a certificate of its own."""
    with TemporaryDirectory() as folder:
        for number in aim.turns():
            credentials = make_service(int(time.time()), system_entropy)
            with contextlib.suppress(OSError):
                session = Tls(aim, _presenting(aim, credentials, Path(folder)), number, ADDRESSES)
                session.read(aim.block)
                proof = sign_session_key(credentials, _key().public)
                service = smp.ClientService(smp.ServiceRole.NOTIFIER, proof)
                key_hash = bytes.fromhex(aim.key_hash)
                hello = smp.ClientHello(SERVICE_CERTS_VERSION, key_hash, service=service)
                session.send(aim.padded(encode(hello, smp.write_client_hello)))
                session.read(aim.block)
                session.sock.close()
            await asyncio.sleep(STEP_S)


def _presenting(aim: Aim, credentials: Credentials, folder: Path) -> ssl.SSLContext:
    private = credentials.key.for_certificates()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    file = folder / "service.pem"
    file.write_text(pem + ssl.DER_cert_to_PEM_cert(credentials.chain[0]))
    tls = context(aim)
    tls.load_cert_chain(file)
    return tls


async def many_tokens(aim: Aim) -> None:
    """Devices that nobody has."""
    tls = context(aim)
    for number in aim.turns():
        with contextlib.suppress(OSError):
            session = Speaking(aim, tls, number)
            for _ in range(20):
                key, device = _key(), DeviceToken(PushProvider.APNS_PROD, os.urandom(32).hex().encode())
                session.say(TNEW(device, key.public, _key(Algorithm.X25519).public), b"", key)
                session.tls.read(aim.block)
                await asyncio.sleep(0)
            session.tls.sock.close()
        await asyncio.sleep(STEP_S)


async def filled_delivery(aim: Aim) -> None:
    """Payloads for nobody and key packages of nobody."""
    tls = context(aim)
    for number in aim.turns():
        with contextlib.suppress(OSError):
            session = Tls(aim, tls, number, ADDRESSES)
            session.send(write_bootstrap(1))
            session.sock.settimeout(0.5)
            for question in range(2, QUESTIONS):
                who, what = os.urandom(32), os.urandom(PAYLOAD)
                if question % 2:
                    request: UploadKeyPackage | Enqueue = UploadKeyPackage(who, what, Auth())
                else:
                    request = Enqueue(who, what, b"", 1, Auth())
                method = METHODS.index(type(request))
                session.send(write_call(question, 1, NODE_SERVICE, method, write_request(request)))
                await asyncio.sleep(STEP_S / 10)
                if time.time() >= aim.until:
                    break
            session.sock.close()
        await asyncio.sleep(STEP_S)
