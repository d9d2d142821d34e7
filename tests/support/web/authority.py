"""Pebble, the ACME authority that Let's Encrypt made for tests, with names that all lead to this machine."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.web.sites import write_certificate

CACHE = Path.home() / ".cache" / "blindpost" / "pebble" / "usr" / "bin"
_PATH = f"{os.environ.get('PATH', '')}{os.pathsep}{CACHE}"
PEBBLE, NAMES = (shutil.which(name, path=_PATH) for name in ("pebble", "pebble-challtestsrv"))

needs_acme = pytest.mark.skipif(
    importlib.util.find_spec("acme") is None, reason="needs the extra acme: pip install 'blindpost[acme]'"
)
needs_pebble = pytest.mark.skipif(
    PEBBLE is None or NAMES is None,
    reason=f"needs pebble: install Debian's package, or unpack it into {CACHE.parent.parent}",
)


@dataclass(frozen=True, slots=True)
class Authority:
    directory: str
    ca_file: Path
    """Whom to trust for the directory itself."""
    _management: str

    async def trusting(self) -> ssl.SSLContext:
        """A browser that trusts this authority."""
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=self.ca_file)) as visitor:
            root = await visitor.get(f"{self._management}/roots/0")
        return ssl.create_default_context(cadata=root.text)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.asynccontextmanager
async def authority(folder: Path, tls_port: int) -> AsyncIterator[Authority]:
    """An authority that looks at `tls_port` of this machine, whatever the name."""
    assert PEBBLE is not None
    assert NAMES is not None
    chain, key = write_certificate(folder, "localhost")
    ports = {name: free_port() for name in ("directory", "management", "names")}
    config = {
        "listenAddress": f"127.0.0.1:{ports['directory']}",
        "managementListenAddress": f"127.0.0.1:{ports['management']}",
        "certificate": str(chain),
        "privateKey": str(key),
        "httpPort": 1,
        "tlsPort": tls_port,
    }
    (folder / "pebble.json").write_text(json.dumps({"pebble": config}))
    names = f"127.0.0.1:{ports['names']}"
    off = ("-http01", "", "-https01", "", "-tlsalpn01", "", "-management", "127.0.0.1:0")
    commands = [
        [NAMES, "-dns01", names, "-defaultIPv6", "", *off],
        [PEBBLE, "-strict", "-config", str(folder / "pebble.json"), "-dnsserver", names],
    ]
    environment = {
        **os.environ,
        "PEBBLE_VA_NOSLEEP": "1",
        "PEBBLE_WFE_NONCEREJECT": "0",
        "PEBBLE_AUTHZREUSE": "0",
    }
    async with contextlib.AsyncExitStack() as started:
        for command in commands:
            with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *command, stdout=log, stderr=log, env=environment
                )
            started.push_async_callback(_ended, process)
        for port in ports.values():
            await _answers(port)
        yield Authority(
            f"https://localhost:{ports['directory']}/dir", chain, f"https://localhost:{ports['management']}"
        )


async def _ended(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def _answers(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
