"""Setting a router up: a password unless it is meant to be open, and everything of an smp-server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blindpost.router.running.settings import RouterPlace, Settings
from blindpost.serving.toml_text import with_settings
from tests.support.router.smp_server import INI, smp_server_keys
from tests.support.serving.commands import run
from tests.support.web.sites import write_certificate

LOCAL = ("--host", "localhost", "--port", "0")


def settings(folder: Path) -> Settings:
    return RouterPlace.read(folder).settings


def address(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("router", "address", "-c", folder, "--json").stdout)
    return found


def test_a_new_router_has_a_random_password(tmp_path: Path) -> None:
    said = [run("router", "init", tmp_path / name, *LOCAL).stdout for name in ("one", "two")]
    passwords = [settings(tmp_path / name).rules.password for name in ("one", "two")]
    assert len(set(passwords)) == 2
    assert all(len(password) >= 20 for password in passwords)
    assert f":{passwords[0]}@" in address(tmp_path / "one")["address"]
    assert "its password is part of it" in said[0]


def test_an_open_router_needs_an_explicit_option(tmp_path: Path) -> None:
    said = run("router", "init", tmp_path / "open", *LOCAL, "--open").stdout
    assert settings(tmp_path / "open").rules.password == ""
    assert "Anybody may create queues" in said
    both = run("router", "init", tmp_path / "both", *LOCAL, "--open", "--password", "x", code=2)
    assert "not together with --password" in both.stderr
    assert not (tmp_path / "both").exists()


def test_everything_of_an_smp_server_is_taken_over(tmp_path: Path) -> None:
    old = tmp_path / "etc"
    smp_server_keys(old)
    write_certificate(old, "smp.example.org")
    text = INI.replace("/etc/opt/simplex", str(old)).replace("secret word-free", "secret")
    (old / "smp-server.ini").write_text(text.replace(",abc.onion", ""))
    said = run("router", "init", tmp_path / "new", "--adopt", old).stdout
    found = settings(tmp_path / "new")
    assert found.address.hosts == ["smp.example.org"]
    assert found.listen.ports == [5223, 443]
    assert (found.rules.password, found.rules.message_ttl_s, found.rules.idle_ttl_s) == (
        "secret",
        604_800,
        43_200,
    )
    assert (found.information.operator, found.information.hosting_type) == ("Jane Doe", "dedicated")
    assert (found.outbound.socks, found.outbound.socks_mode) == ("localhost:9050", "onion")
    assert found.web.certificate == str(old / "web.crt")
    assert ":secret@smp.example.org" in address(tmp_path / "new")["address"]
    for word in ("taken", "left", "AUTH.create_password", "WEB.static_path"):
        assert word in said
    rows = [line for line in said.splitlines() if "create_password" in line]
    assert "secret" not in rows[0]


def test_a_protected_server_is_never_opened_by_moving(tmp_path: Path) -> None:
    old, new = tmp_path / "etc", tmp_path / "new"
    smp_server_keys(old)

    def refused(ini: str | None) -> str:
        if ini is not None:
            (old / "smp-server.ini").write_text(ini)
        said = run("router", "init", new, *LOCAL, "--adopt", old, code=1).stderr
        assert not new.exists()
        return said

    assert "--password or --open" in refused(None)
    assert "rules.password" in refused("[AUTH]\nnew_queues: off\ncreate_password: a@b\n")
    protected = "[AUTH]\nnew_queues: off\ncreate_password: ab\n"
    assert "TRANSPORT.port" in refused(protected + "[TRANSPORT]\nport: x\n")
    (old / "smp-server.ini").write_text(protected)
    run("router", "init", new, *LOCAL, "--adopt", old)
    rules = settings(new).rules
    assert (rules.new_queues, rules.password) == (False, "ab")


def test_a_host_must_be_known(tmp_path: Path) -> None:
    assert "--host" in run("router", "init", tmp_path / "new", code=2).stderr
    smp_server_keys(tmp_path / "etc")
    (tmp_path / "etc" / "smp-server.ini").write_text("[AUTH]\nnew_queues: on\n")
    assert "--host" in run("router", "init", tmp_path / "new", "--adopt", tmp_path / "etc", code=1).stderr


def test_settings_are_changed_in_place() -> None:
    text = '[a]\n# why\none = 1\n# two = ["x"]\n\n[b]\none = 2\n'
    changed = with_settings(text, {"a": {"two": ["y"]}, "b": {"one": "z"}})
    assert changed == '[a]\n# why\none = 1\ntwo = ["y"]\n\n[b]\none = "z"\n'
    with pytest.raises(KeyError, match=r"b\.two"):
        with_settings(text, {"b": {"two": 1}})
