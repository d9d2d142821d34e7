"""`ntf init --adopt`: the identity and every setting of an ntf-server are taken over or reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blindpost.ntf.adopting import RULES, read_old
from blindpost.ntf.settings import NtfPlace
from blindpost.serving.failures import OperatorError
from blindpost.serving.identity import Identity
from blindpost.serving.ini import Fate
from blindpost.wire.text import b64
from tests.support.router.smp_server import smp_server_keys
from tests.support.serving.commands import run

INI = """\
[STORE_LOG]
enable: off
db_connection: postgresql://ntf:hush@/ntf_server_store
db_schema: ntf_server
db_pool_size: 10
# db_deleted_ttl: 21
log_stats: on
prometheus_interval: 60

[AUTH]
control_port_admin_password: hush

[TRANSPORT]
host: ntf.example.org
port: 443,5224
log_tls_errors: off
websockets: off
control_port: 5227

[SUBSCRIBER]
host_mode: onion
required_host_mode: off
socks_proxy: localhost:9050
socks_mode: always
own_server_domains: example.org

[INACTIVE_CLIENTS]
disconnect: off
ttl: 86400
check_interval: 3600
something_new: 1
"""


def test_an_old_server_is_taken_over_with_its_address(tmp_path: Path) -> None:
    old = tmp_path / "old"
    fingerprint = smp_server_keys(old)
    (old / "ntf-server.ini").write_text(INI)
    told = run("ntf", "init", tmp_path / "new", "--adopt", old).stdout
    assert f"ntf://{b64(fingerprint)}@ntf.example.org" in told
    assert "hush" not in told
    for name in ("own_server_domains", "something_new", "not known to this version"):
        assert name in told
    place = NtfPlace.read(tmp_path / "new")
    settings = place.settings
    assert (settings.address.hosts, settings.listen.port) == (["ntf.example.org"], 443)
    assert (settings.outbound.socks, settings.outbound.socks_mode) == ("localhost:9050", "always")
    assert (settings.outbound.host_mode, settings.outbound.required_host_mode) == ("onion", False)
    assert settings.metrics.enabled
    assert settings.rules.idle_ttl_s == 30 * 86_400
    assert Identity(place.keys, "ntf").load(fingerprint).fingerprint == fingerprint
    again = run(
        "ntf", "init", tmp_path / "b", "--adopt", old, "--host", "127.0.0.1", "--port", "5224", "--json"
    )
    assert json.loads(again.stdout)["address"].endswith("@127.0.0.1:5224")


@pytest.mark.parametrize(
    ("before", "after"), [("port: 443,5224", "port: many"), ("socks_mode: always", "socks_mode: often")]
)
def test_a_setting_that_cannot_be_parsed_stops_the_adoption(before: str, after: str, tmp_path: Path) -> None:
    (tmp_path / "ntf-server.ini").write_text(INI.replace(before, after))
    with pytest.raises(OperatorError, match="Nothing was taken over"):
        read_old(tmp_path)


def test_every_setting_has_a_row(tmp_path: Path) -> None:
    (tmp_path / "ntf-server.ini").write_text(INI)
    rows = {row.key: row.fate for row in read_old(tmp_path).rows}
    assert rows.keys() - RULES.keys() == {"INACTIVE_CLIENTS.something_new"}
    assert RULES.keys() - rows.keys() == {"STORE_LOG.db_deleted_ttl", "AUTH.control_port_user_password"}
    assert rows["TRANSPORT.port"] is Fate.CHANGED
