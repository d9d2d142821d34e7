"""The metrics endpoint, as whoever scrapes it sees it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.serving.commands import StartedRouter, edit, init

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def http(port: int, request: str) -> tuple[str, str]:
    """Status line and body of one answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head.split("\r\n")[0], body


async def scraped(router: StartedRouter) -> tuple[str, Samples]:
    status, text = await http(int(router.status["metrics_port"]), "GET /metrics")
    assert status == "HTTP/1.1 200 OK"
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    found: Samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            # The parser has read all of it; only it calls every counter a total.
            sample = re.fullmatch(r"([a-z0-9_]+)(?:{(.*)})? (\S+)", line)
            assert sample is not None
            name, labels, value = sample.groups("")
            key = name, tuple(sorted(re.findall(r'(\w+)="(.*?)"', labels)))
            assert key not in found
            found[key] = float(value)
    assert len(found) == sum(len(family.samples) for family in families)
    return text, found


def with_metrics(folder: Path) -> None:
    init(folder)
    edit(folder, "only.\nenabled = false", "only.\nenabled = true")
    edit(folder, "port = 9464", "port = 0")
    edit(folder, 'level = "info"', 'level = "debug"')
