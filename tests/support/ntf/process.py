"""`blindpost ntf start` in a process of its own that can be killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from typer.testing import CliRunner

from blindpost.cli.ntf import app
from blindpost.client.ntf import NtfClient
from blindpost.serving.children import free_port
from blindpost.serving.failures import OperatorError
from blindpost.testing.apns import KEY_ID, ApnsServer
from blindpost.wire.addresses import Host, Server
from blindpost.wire.text import unb64
from tests.support.ntf.apns_process import CERTIFICATE_FILE, KEY_FILE, ApnsInProcess
from tests.support.ntf.web_process import WEB_CERTIFICATE_FILE, WebPushInProcess
from tests.support.serving.commands import Started


def invoke(*arguments: str | Path) -> str:
    """`blindpost ntf` in this process, which takes a moment where a process of its own takes seconds."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(done.exception, OperatorError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


class StartedNtf(Started):
    """The notification router of one folder; `start` and `end` it as often as you like."""

    kind = "ntf"

    def __init__(self, folder: Path, port: int, fingerprint: bytes) -> None:
        super().__init__(folder)
        self.server = Server((Host("127.0.0.1"),), str(port), fingerprint)

    async def connect(self) -> NtfClient:
        return await NtfClient.connect(self.server)


def configure(folder: Path, *edits: tuple[str, str]) -> None:
    """Change lines of the configuration."""
    file = folder / "ntf.toml"
    text = file.read_text()
    for before, after in edits:
        assert text.count(before) == 1, f"{before!r} is there {text.count(before)} times"
        text = text.replace(before, after)
    file.write_text(text)


def at(folder: Path, apple: ApnsServer) -> tuple[tuple[str, str], ...]:
    """Edits that make devices of the test provider those of `apple`."""
    pem = apple.signing.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _at(folder, pem, apple.certificate, apple.port)


def at_process(folder: Path, apple: ApnsInProcess) -> tuple[tuple[str, str], ...]:
    """The same for an Apple that has started in a process of its own."""
    key, certificate = ((apple.folder / name).read_bytes() for name in (KEY_FILE, CERTIFICATE_FILE))
    return _at(folder, key, certificate, apple.port)


def at_web(folder: Path, service: WebPushInProcess) -> tuple[tuple[str, str], ...]:
    """Edits that make the router trust a push service on loopback."""
    certificate = (service.folder / WEB_CERTIFICATE_FILE).read_bytes()
    (folder / WEB_CERTIFICATE_FILE).write_bytes(certificate)
    line = 'subject = ""\n'
    before = line + "# Trusted certificates instead of the system's.\n" + 'ca_file = ""\n'
    return ((before, line + f'ca_file = "{WEB_CERTIFICATE_FILE}"\n'),)


def _at(folder: Path, key: bytes, certificate: bytes, port: int) -> tuple[tuple[str, str], ...]:
    (folder / KEY_FILE).write_bytes(key)
    (folder / CERTIFICATE_FILE).write_bytes(certificate)
    return (
        ('\nkey_file = ""', f'\nkey_file = "{KEY_FILE}"'),
        ('key_id = ""', f'key_id = "{KEY_ID}"'),
        ('test_host = ""', 'test_host = "localhost"'),
        ("test_port = 443", f"test_port = {port}"),
        ('test_ca_file = ""', f'test_ca_file = "{CERTIFICATE_FILE}"'),
    )


@contextlib.asynccontextmanager
async def ntf_in_process(folder: Path, *arguments: str) -> AsyncIterator[StartedNtf]:
    """A new router that was not started yet."""
    port = free_port()
    where = ("--host", "127.0.0.1", "--port", str(port), "--key-algorithm", "ed25519", "--json")
    printed = await asyncio.to_thread(invoke, "init", folder, *where, *arguments)
    configure(folder, ('address = "*"', 'address = "127.0.0.1"'))
    started = StartedNtf(folder, port, unb64(json.loads(printed)["fingerprint"]))
    try:
        yield started
    finally:
        await started.close()
