"""deploy/compose.yml, the dashboard and the alert rules name real commands, settings, files and metrics."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from blindpost.cli.main import app
from blindpost.cli.page import PAGE_PORT
from blindpost.ntf.settings import NtfPlace
from blindpost.router.running.settings import RouterPlace
from tests.support.docs.documents import ROOT
from tests.support.serving.commands import run
from tests.support.serving.dashboards import PREFIXES, expressions

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "blindpost"}
PROGRAM = "/opt/blindpost/bin/blindpost"


def words_of(service: dict[str, Any]) -> list[str]:
    """The arguments of `blindpost`, given directly or through the shell that sets up."""
    if "entrypoint" not in service:
        return [str(word) for word in service["command"]]
    (script,) = service["command"]
    return shlex.split(script.partition(PROGRAM)[2])


@pytest.mark.parametrize("name", OURS)
def test_every_command_and_option_exists(name: str) -> None:
    """Parsed by the program's own parser, stopped before anything is done."""
    command: Any = typer.main.get_command(app)
    words = words_of(OURS[name])
    while hasattr(command, "get_command"):
        command = command.get_command(None, words.pop(0))
        assert command is not None, name
    command.make_context(name, words)


def test_servers_listen_where_the_other_services_expect_them(database: str, tmp_path: Path) -> None:
    """The set-up commands are run; Prometheus, the ports and the page match what they made."""
    host = {"$BLINDPOST_HOST": "127.0.0.1", "/data": str(tmp_path)}
    for name in ("router-init", "ntf-init"):
        words = words_of(OURS[name])
        for before, after in {**host, "postgresql://blindpost@postgres/blindpost": database}.items():
            words = [word.replace(before, after) for word in words]
        run(*words)
    router, ntf = RouterPlace.read(tmp_path / "router"), NtfPlace.read(tmp_path / "ntf")
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == [
        f"router:{router.settings.metrics.port}",
        f"ntf:{ntf.settings.metrics.port}",
    ]
    for place in (router, ntf):
        assert (place.settings.metrics.enabled, place.settings.metrics.address) == (True, "*")
    ports = {name: service["ports"] for name, service in OURS.items() if "ports" in service}
    assert ports["router"] == [f"{router.settings.listen.ports[0]}:{router.settings.listen.ports[0]}"]
    assert ports["ntf"] == [f"{ntf.settings.listen.port}:{ntf.settings.listen.port}"]
    assert ports["page"] == [f"127.0.0.1:{PAGE_PORT}:{PAGE_PORT}"]


def test_our_services_run_unprivileged_and_every_mount_exists() -> None:
    for name, service in OURS.items():
        assert service["user"] == "blindpost", name
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        for other in service.get("depends_on", ()):
            assert other in SERVICES


def test_prometheus_finds_no_fault_with_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here")
    for kind, file in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        checked = [promtool, "check", kind, str(DEPLOY / "prometheus" / file)]
        done = subprocess.run(checked, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_expressions_cover_every_kind_of_server() -> None:
    together = "\n".join(expressions())
    assert all(prefix in together for prefixes in PREFIXES.values() for prefix in prefixes)
