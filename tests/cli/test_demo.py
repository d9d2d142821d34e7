"""The demonstration tells the truth, ends well and leaves nothing running."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from blindpost.demo.figures import Row, quantile_ms
from blindpost.demo.report import follow
from blindpost.demo.story import Shown
from blindpost.serving.children import COMMAND
from tests.support.docs.executed import Place, commands_at
from tests.support.docs.smallest import recipe
from tests.support.docs.typing_reader import BIN
from tests.support.serving.commands import ENVIRONMENT

SHORT = ("--no-report", "--queues", "1000")


def processes_of(folder: Path) -> list[str]:
    """Processes that were started with this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in line:
            found.append(line.decode(errors="replace"))
    return found


def documented() -> list[str]:
    """What the make target that README names first does."""
    (named,) = {command.text for command in commands_at(Place.DEMO)}
    return recipe(named.removeprefix("make "))


@pytest.mark.timeout(400)
def test_the_demo_loses_nothing_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "build" / "demo"
    done = subprocess.run(
        ["sh", "-ec", f"{'; '.join(documented())} {' '.join(SHORT)} --json"],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "PATH": f"{BIN}:{ENVIRONMENT['PATH']}"},
        cwd=tmp_path,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout)
    rows = {name: row["value"] for name, row in shown["rows"].items()}
    assert shown["good"]
    assert all(row["good"] for row in shown["rows"].values())
    assert rows["letters, each once and in order"] == "120"
    assert rows["post-quantum in both directions"] == "yes"
    assert rows["queue rotated under traffic"] == "to another router"
    assert rows["routers killed with kill -9"] == "80 of 80 letters, once each"
    assert rows["ratchet broken by a restored backup"] == "resynchronised"
    assert rows["service with 1,000 queues reconnects"].startswith("one SUBS")
    assert rows["drift injected and repaired"] == "7 queues"
    assert rows["MLS payloads taken with fetchWait"].startswith("25, ")
    assert rows["push through HTTP/2 wakes a phone"].endswith("nothing in clear")
    assert ", 0 lost, " in rows["canary between the routers"]
    assert [*tmp_path.iterdir(), *tmp_path.glob("build/*")] == [folder.parent, folder]
    assert processes_of(folder) == []


@pytest.mark.timeout(200)
def test_ctrl_c_stops_everything(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with subprocess.Popen(
        [*COMMAND, "demo", *SHORT, "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
    ) as demo:
        assert demo.stdout is not None
        (page,) = re.findall(r"http://\S+", demo.stdout.readline())
        assert "two SMP routers" in demo.stdout.readline()
        assert "all of them run" in demo.stdout.readline()
        token = {"Authorization": f"Bearer {page.partition('=')[2]}"}
        told = httpx.get(f"{page.partition('?')[0]}snapshot", headers=token, timeout=60).json()
        assert [card["kind"] for card in told["cards"]] == [
            *("SMP router", "SMP router", "Notification router", "Delivery service", "Canary")
        ]
        assert all(card["health"] != "down" for card in told["cards"])
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert errors.startswith("Stopped; nothing runs any more.")
    assert errors.count("\n") == 1
    assert processes_of(folder) == []


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "demo", *SHORT, "--folder", str(tmp_path)], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 1
    assert "Name a new folder" in done.stderr


def test_one_bad_row_fails_the_demonstration() -> None:
    assert Shown([Row("a", "1"), Row("b", "2")]).good
    assert not Shown([Row("a", "1"), Row("b", "2", good=False)]).good


def test_quantiles_of_latency() -> None:
    latencies = [number / 1000 for number in range(100, 0, -1)]
    assert (quantile_ms(latencies, 0.5), quantile_ms(latencies, 0.99), quantile_ms(latencies, 1)) == (
        51,
        100,
        100,
    )


async def test_each_table_is_announced_when_it_appears(tmp_path: Path) -> None:
    told: list[str] = []
    heard = asyncio.Event()

    def say(line: str) -> None:
        told.append(line)
        heard.set()

    async def compute() -> str:
        for name in ("delivery_slo", "router_backlog"):
            (tmp_path / "gold" / name).mkdir(parents=True)
            (tmp_path / "gold" / name / "_CURRENT").touch()
            await heard.wait()
            heard.clear()
        return ""

    await follow(asyncio.create_task(compute()), tmp_path, say, look_s=0.01)
    assert told == ["1 tables so far; new: delivery slo", "2 tables so far; new: router backlog"]
