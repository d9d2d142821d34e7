"""`smp-server.ini`: every setting is taken over or reported as skipped, and nothing protected is opened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from blindpost.router.moving.ini import adopted
from blindpost.serving.ini import Adopted, Fate, IniError, read_ini
from tests.support.router.smp_server import INI

FACTS = Path(__file__).parents[1] / "vectors" / "smp-server-ini.md"


def of(text: str) -> Adopted:
    return adopted(read_ini(text))


def test_a_whole_file_is_understood() -> None:
    taken = of(INI).settings
    assert taken == {
        "information": {
            "source_code": "https://example.org/source",
            "operator": "Jane Doe",
            "hosting_type": "dedicated",
        },
        "rules": {
            "message_ttl_s": 7 * 86_400,
            "expire_on_send": False,
            "notification_ttl_s": 12 * 3_600,
            "new_queues": True,
            "password": "secret word-free",
            "idle_ttl_s": 43_200,
        },
        "address": {"hosts": ["smp.example.org", "abc.onion"], "port": 5223},
        "listen": {"ports": [5223, 443]},
        "outbound": {"socks": "localhost:9050", "socks_mode": "onion"},
        "times": {"idle_check_s": 1_800},
        "web": {"certificate": "/etc/opt/simplex/web.crt", "key": "/etc/opt/simplex/web.key"},
    }


def test_every_setting_has_a_row_and_no_password_is_shown() -> None:
    result = of(INI)
    assert [row.key for row in result.rows] == list(read_ini(INI))
    assert all(row.remark for row in result.rows)
    assert "secret" not in repr(result.rows)


def test_a_number_with_too_many_digits_is_named() -> None:
    """Python refuses to read one of thousands of digits."""
    for digits in (19, 5000):
        with pytest.raises(IniError, match=f"at most 18 digits expected, not one of {digits}"):
            of(INI.replace("expire_messages_days: 7", "expire_messages_days: " + "9" * digits))


def known_keys() -> list[str]:
    """Every key that smp-server 7.0.0.3 knows, from the table of facts."""
    part = FACTS.read_text().partition("## smp-server.ini")[2].partition("\nBeside it")[0]
    keys = []
    for cell in re.findall(r"^\| ([A-Z_]+\.[^|]+) \|", part, re.MULTILINE):
        section, _, names = cell.partition(".")
        bare = re.sub(r"\([^)]*\)", "", names)
        keys += [f"{section}.{name.strip()}" for name in bare.split(",") if name.strip()]
    return keys


VALUES = {
    "INFORMATION.hosting_type": "owned",
    "PROXY.host_mode": "onion",
    "PROXY.socks_mode": "always",
    "PROXY.socks_proxy": "[::1]:9050",
}


def test_the_table_of_facts_covers_all_sections() -> None:
    assert len(known_keys()) > 55
    assert {key.partition(".")[0] for key in known_keys()} == {
        *("INFORMATION", "STORE_LOG", "AUTH", "TRANSPORT", "PROXY", "NAMES", "INACTIVE_CLIENTS", "WEB")
    }


@pytest.mark.parametrize("key", known_keys())
def test_every_key_of_the_old_server_is_known(key: str) -> None:
    section, _, name = key.partition(".")
    for value in (VALUES.get(key, "5"), "on"):
        try:
            (row,) = of(f"[{section}]\n{name}: {value}\n").rows
        except IniError:
            continue
        assert row.remark != "not known to this version"
        return
    pytest.fail(f"{key} takes no value")


def test_an_unknown_key_is_named() -> None:
    (row,) = of("[TRANSPORT]\nnew_thing: 5\n").rows
    assert (row.fate, row.remark) == (Fate.LEFT, "not known to this version")


@pytest.mark.parametrize(
    "text",
    [
        "[AUTH]\nnew_queues: maybe\n",
        "[AUTH]\ncreate_password: a\ncreate_password: b\n",
        "[STORE_LOG]\nexpire_messages_days: soon\n",
        "[TRANSPORT]\nport: 70000\n",
        "[TRANSPORT]\nhost: ,\n",
        "[PROXY]\nsocks_proxy: 9050\n",
        "[WEB]\nhttps: 0\n",
        "just words\n",
        "key: value\n",
    ],
)
def test_what_cannot_be_understood_stops_the_move(text: str) -> None:
    with pytest.raises(IniError, match=r"line \d|[A-Z_]+\.\w+: "):
        of(text)


def test_disconnect_off_becomes_a_long_idle_limit() -> None:
    taken = of("[INACTIVE_CLIENTS]\ndisconnect: off\nttl: 60\n").settings
    assert taken["rules"]["idle_ttl_s"] == 30 * 86_400


def test_the_old_default_of_expiring_holds() -> None:
    assert of("[STORE_LOG]\nenable: on\n").settings["rules"]["expire_on_send"] is True


def test_a_web_port_is_listened_on_wherever_it_is_named() -> None:
    assert of("[WEB]\nhttps: 443\n[TRANSPORT]\nport: 5223\n").settings["listen"]["ports"] == [5223, 443]
