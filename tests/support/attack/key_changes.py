"""TLS records that change a client's keys, made by hand: no library sends them as often as an attacker."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, HashAlgorithm
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

KEY_UPDATE = b"\x18\x00\x00\x01\x01"
"""A handshake message: our keys change, change yours too."""
HANDSHAKE = b"\x16"
HEADER = b"\x17\x03\x03" + (len(KEY_UPDATE) + 1 + 16).to_bytes(2, "big")
BATCH = 100
_KINDS: dict[str, tuple[type[AESGCM | ChaCha20Poly1305], int, type[HashAlgorithm]]] = {
    "TLS_CHACHA20_POLY1305_SHA256": (ChaCha20Poly1305, 32, SHA256),
    "TLS_AES_256_GCM_SHA384": (AESGCM, 32, SHA384),
    "TLS_AES_128_GCM_SHA256": (AESGCM, 16, SHA256),
}


class KeyChanges:
    """The records of one connection on which nothing else was sent since its handshake."""

    def __init__(self, cipher: str, secret: bytes) -> None:
        self._kind, self._size, self._hash = _KINDS[cipher]
        self._secret = secret

    @classmethod
    def of(cls, tls: ssl.SSLObject, log: Path) -> KeyChanges:
        """Of the connection whose secrets were logged last."""
        cipher = tls.cipher()
        assert cipher is not None
        lines = [line.split() for line in log.read_text().splitlines()]
        secret = [words[2] for words in lines if words[0] == "CLIENT_TRAFFIC_SECRET_0"][-1]
        return cls(cipher[0], bytes.fromhex(secret))

    def records(self, count: int) -> bytes:
        return b"".join(self._next() for _ in range(count))

    def _next(self) -> bytes:
        sealing = self._kind(self._expanded("key", self._size))
        nonce = self._expanded("iv", 12)
        record = HEADER + sealing.encrypt(nonce, KEY_UPDATE + HANDSHAKE, HEADER)
        self._secret = self._expanded("traffic upd", len(self._secret))
        return record

    def _expanded(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
        return HKDFExpand(self._hash(), size, info).derive(self._secret)


class Flooder:
    """A client that shakes hands and then sends records that say nothing, or almost nothing."""

    def __init__(self, alpn: str, folder: Path) -> None:
        self._log = folder / "secrets"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._context.set_alpn_protocols([alpn])

    async def until_cut(self, port: int, *, tiny: bool = False, most: int = 20_000) -> int:
        """How many records were sent before the server hung up."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._context.keylog_filename = str(self._log)
        tls = self._context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while tls.version() is None:
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(1 << 16))
            writer.write(outgoing.read())
            changes = KeyChanges.of(tls, self._log)
            over = asyncio.create_task(reader.read(-1))
            for count in range(0, most, BATCH):
                if over.done():
                    return count
                writer.write(_tiny(tls, outgoing) if tiny else changes.records(BATCH))
                await writer.drain()
                await asyncio.sleep(0)
            await asyncio.wait([over], timeout=0.5)
            return most if over.done() else 2 * most
        except OSError:
            return 0
        finally:
            over.cancel()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await over
            writer.transport.abort()
            self._context.keylog_filename = None  # type: ignore[assignment]  # closes the file


def _tiny(tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> bytes:
    for _ in range(BATCH):
        tls.write(b"\0")
    return outgoing.read()
