"""A real delivery service over TLS with a real store, and callers of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from blindpost.crypto.pem import Pair, read_pair
from blindpost.ds.auth import Authority, Open, Tokens, token_digest
from blindpost.ds.certificate import fingerprint, make_certificate
from blindpost.ds.client import DsClient
from blindpost.ds.meters import Meter
from blindpost.ds.model import DsRules
from blindpost.ds.quic import QuicListener
from blindpost.ds.server import DeliveryService
from blindpost.ds.streams import TlsListener, server_context
from blindpost.ds.tables import DsStore, LmdbTables
from blindpost.ds.tables_postgres import PostgresTables
from blindpost.serving.limits import Limits, LimitSizes

ALICE, BOB = b"A" * 32, b"B" * 32
TOKENS = {b"token of alice": ALICE, b"token of bob": BOB}
TURN_S_MAX = 60.0


def tokens() -> Tokens:
    return Tokens({token_digest(token): identity for token, identity in TOKENS.items()})


@dataclass
class Way:
    """How services are reached and where they keep what they have, where a test does not say."""

    quic: bool = False
    dsn: str | None = None


WAY = Way()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TURN_S_MAX):
        while True:
            if true():
                return
            await asyncio.sleep(0.002)


class Running:
    """A service that listens, and how to reach it."""

    def __init__(
        self, service: DeliveryService, port: int, quic_port: int, certificate: Path, pair: Pair
    ) -> None:
        self.service = service
        self.port = port
        self.quic_port = quic_port
        self.certificate = certificate
        self.pair = pair
        self.fingerprint = fingerprint(certificate.read_bytes())

    async def client(self, token: bytes = b"", *, quic: bool | None = None) -> DsClient:
        quic = WAY.quic if quic is None else quic
        port = self.quic_port if quic else self.port
        return await DsClient.connect("127.0.0.1", port, token=token, fingerprint=self.fingerprint, quic=quic)

    def count(self, meter: Meter) -> int:
        return self.service.plan.meters[meter]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until the service has come so far."""
        await until(true)


def certificate_in(folder: Path) -> tuple[Path, Path]:
    """A certificate and its key, made once for each folder."""
    certificate, key = folder / "ds.crt", folder / "ds.key"
    if not certificate.exists():
        made, private = make_certificate("127.0.0.1", int(time.time()))
        certificate.write_bytes(made)
        key.write_bytes(private)
    return certificate, key


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    rules: DsRules | None = None,
    authority: Authority | None = None,
    store: DsStore | None = None,
    sizes: LimitSizes | None = None,
) -> AsyncIterator[Running]:
    """A service in this folder, open to everybody unless told otherwise."""
    certificate, key = certificate_in(folder)
    if store is None:
        store = LmdbTables(folder / "store") if WAY.dsn is None else await PostgresTables.open(WAY.dsn)
    limits = Limits(sizes or LimitSizes(), time.monotonic)
    service = DeliveryService(store, rules, authority or Open(), limits=limits)
    deciding = asyncio.create_task(service.run())
    listener = TlsListener(service, server_context(certificate, key))
    pair = read_pair(certificate.read_bytes(), key.read_bytes())
    quic = QuicListener(service, pair)
    try:
        port = await listener.listen("127.0.0.1", 0)
        quic_port = await quic.listen("127.0.0.1", 0)
        yield Running(service, port, quic_port, certificate, pair)
    finally:
        listener.close()
        service.stop()
        await deciding
        for connection in tuple(service.connections.values()):
            connection.close()
        await until(lambda: not service.connections)
        quic.close()
        store.close()


def silent(client: DsClient) -> None:
    """Let a client never say that it has taken an answer."""
    wire = client._wire
    assert wire is not None
    setattr(wire, "_finish", lambda question: None)  # noqa: B010 - a method of this one instance


def cut(client: DsClient) -> None:
    """End a client's connection in the middle, without a word."""
    wire = client._wire
    assert wire is not None
    assert wire._transport is not None
    if WAY.quic:
        wire._transport.close()  # falling silent is noticed too, but later
    else:
        wire._transport.abort()
