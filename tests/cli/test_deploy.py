"""What deploy/ describes is executed: the systemd units and the container file, with their own commands.

Paths of a real machine (/opt/blindpost, /var/lib/blindpost) are replaced by paths of the test, and ports
are free ones; everything else is unchanged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blindpost.cli.page import PAGE_PORT
from blindpost.ntf import settings as ntf
from blindpost.router.running import settings as router
from blindpost.serving.children import free_port
from tests.support.docs.documents import ROOT
from tests.support.docs.typing_reader import BIN, PACKAGES, see_what_is_installed
from tests.support.serving.commands import ENVIRONMENT
from tests.support.serving.kinds import NOWHERE

pytestmark = pytest.mark.timeout(400)
UNITS = sorted((ROOT / "deploy").glob("*.service"))
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()
EXPOSURE_MAX = 1.5
READY = re.compile(r"is ready|The page is at ")


@contextmanager
def served(line: str, folder: Path) -> Iterator[None]:
    """A command as systemd or a container starts it, with no input; SIGTERM must end it well."""
    server = subprocess.Popen(
        ["sh", "-c", f"exec {line}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=ENVIRONMENT,
    )
    assert server.stdout is not None
    said = ""
    with server:
        for printed in server.stdout:
            said += printed
            if READY.search(printed):
                break
        try:
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            said += server.communicate(timeout=120)[0]
    assert READY.search(said), said
    assert server.returncode == 0, said


def run(line: str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        ["sh", "-ec", line], capture_output=True, text=True, cwd=folder, env={**ENVIRONMENT, **environment}
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def here(folder: Path) -> Callable[[str], str]:
    """Paths and ports of this test instead of those of a machine."""
    replaced = {
        "/opt/blindpost/bin/": f"{BIN}/",
        "/var/lib/blindpost": str(folder / "state"),
        "--host smp.example.org": f"--host 127.0.0.1 --port {free_port()}",
        "--host ntf.example.org": f"--host 127.0.0.1 --port {free_port()}",
        "--host ds.example.org": f"--host 127.0.0.1 --port {free_port()}",
        "home=smp://...": f"home={NOWHERE}",
    }

    def change(line: str) -> str:
        for before, after in replaced.items():
            line = line.replace(before, after)
        if " up " in line:
            line += f" --ntf-port {free_port()} --page-port 0"
        return line

    return change


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_what_its_first_lines_set_up(unit: Path, tmp_path: Path) -> None:
    text, change = unit.read_text(), here(tmp_path)
    for line in re.findall(r"^#   (blindpost .*)$", text, re.MULTILINE):
        run(change(line), tmp_path, PATH=f"{BIN}:{os.environ['PATH']}")
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    with served(change(start), tmp_path):
        pass
    writable = re.findall(r"^(?:ReadWritePaths|StateDirectory)=(.*)$", text, re.MULTILINE)
    assert writable == [start.split()[-1] if " start " in start else "blindpost"]


def test_systemd_finds_no_fault_with_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    units = [*UNITS, *(ROOT / "deploy").glob("*.socket")]
    for unit in units:
        text = unit.read_text().replace("/opt/blindpost/bin/blindpost", f"{BIN}/blindpost")
        (tmp_path / unit.name).write_text(text)
    names = [str(tmp_path / unit.name) for unit in units]
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_are_sandboxed_as_far_as_possible(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(
            unit.read_text().replace("/opt/blindpost/bin/blindpost", "/bin/true")
        )
        command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(tmp_path / unit.name)]
        done = subprocess.run(command, capture_output=True, text=True)
        found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
        assert found is not None, done.stderr
        assert float(found[1]) <= EXPOSURE_MAX, (unit.name, done.stdout)


def instructions(word: str) -> list[str]:
    joined = CONTAINERFILE.replace("\\\n", " ")
    return re.findall(rf"^{word} (.*)$", joined, re.MULTILINE)


def test_the_container_s_steps_lead_to_servers_that_run(tmp_path: Path) -> None:
    """COPY and RUN of the first stage, the command in its first lines, and its entry point."""
    image = tmp_path / "image"
    image.mkdir()
    for copied in instructions("COPY"):
        if not copied.startswith("--from"):
            *sources, target = copied.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                    shutil.copytree(ROOT / source, image / target, ignore=ignored)
                else:
                    shutil.copy(ROOT / source, image / target)
    opt = tmp_path / "opt"
    make, install = instructions("RUN")[0].replace("/opt/blindpost", str(opt)).split("&&", 1)
    run(f"{make.replace('python ', f'{BIN}/python ', 1)}", image)
    see_what_is_installed(opt)
    run(install, image, PIP_NO_INDEX="1")

    (entry,) = (json.loads(found) for found in instructions("ENTRYPOINT"))
    assert instructions("COPY")[-1] == f"--from=build {Path(entry[0]).parents[1]} {Path(entry[0]).parents[1]}"
    program = entry[0].replace("/opt/blindpost", str(opt))
    assert run(f"{program} --version", tmp_path).startswith("blindpost ")
    found = run(f"{opt}/bin/python -c 'import blindpost; print(blindpost.__file__)'", tmp_path)
    assert found.startswith(str(opt)), "the installed package, not these sources"
    assert not found.startswith(PACKAGES)
    (given,) = re.findall(r"^#       (?:blindpost) (up .*)$", CONTAINERFILE, re.MULTILINE)
    line = given.replace("/data", str(tmp_path / "data")).replace("smp.example.org", "127.0.0.1")
    ports = f"--port {free_port()} --ntf-port {free_port()} --page-port 0"
    with served(f"{program} {line} {ports}", tmp_path):
        pass
    assert (tmp_path / "data" / "page.token").exists()


def test_the_container_installs_what_is_locked_and_nothing_else() -> None:
    """Each step checks hashes or fetches nothing: no dependencies and no build tools."""
    steps = [step.split() for step in instructions("RUN")[0].split("&&") if " pip install " in step]
    locked, own = ([word for word in step if word.startswith("-")] for step in steps)
    assert {"--require-hashes", "-r"} <= set(locked)
    assert {"--no-deps", "--no-build-isolation"} <= set(own)
    assert steps[0][-2:] == ["-r", "requirements.lock"]
    assert steps[1][-1] == "."
    pins = re.findall(r"^[a-z0-9].*(?:\n .*)*", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert all(re.match(r"[\w.-]+==\S+ ", pin) and "--hash=sha256:" in pin for pin in pins)
    assert any(pin.startswith("setuptools==") for pin in pins)


def test_the_container_exposes_what_is_listened_to() -> None:
    (exposed,) = instructions("EXPOSE")
    ports = (*router.ListenSection().ports, ntf.ListenSection().port, PAGE_PORT)
    assert {int(port) for port in exposed.split()} == set(ports)
    for port in ports:
        assert f"-p {'127.0.0.1:' if port == PAGE_PORT else ''}{port}:{port} " in CONTAINERFILE


def test_the_container_has_a_pinned_base_and_its_own_user() -> None:
    bases = instructions("FROM")
    assert len({base.removesuffix(" AS build") for base in bases}) == 1
    assert all(re.search(r"@sha256:[0-9a-f]{64}( AS build)?$", base) for base in bases)
    assert instructions("USER") == ["blindpost"]
