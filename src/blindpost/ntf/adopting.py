"""`ntf-server.ini` in our terms, for `blindpost ntf init --adopt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blindpost.client.hosts import NTF_PORT
from blindpost.ntf.template import config_text
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file
from blindpost.serving.ini import (
    DAY_S,
    Adopted,
    Fate,
    IniError,
    Rule,
    Told,
    adopt,
    choice,
    flag,
    hosts,
    left,
    number,
    read_ini,
    socks,
    switch,
    times,
)
from blindpost.serving.toml_text import with_settings

INI_NAME = "ntf-server.ini"
_DATABASE = "the new store is chosen by --store and --dsn"
_SOCKET = "operators use a Unix socket that belongs to the server's user, without passwords"
_SECRETS = frozenset({"STORE_LOG.db_connection"})


def _port(result: Adopted, key: str, value: str) -> Told:
    """The old server may have several; ours has one, the first of them or the usual one."""
    ports = [number(key, port.strip()) for port in value.split(",") if port.strip()]
    if not ports or max(ports) > 65_535:
        raise IniError(f"{key}: a port expected, such as 443.")
    port = NTF_PORT if NTF_PORT in ports else ports[0]
    result.put("address.port", port)
    result.put("listen.port", port)
    if len(ports) > 1:
        return Fate.CHANGED, f"listen.port: {port} alone; let a firewall forward the others to it"
    return Fate.TAKEN, "listen.port"


def _idle(result: Adopted, key: str, value: str) -> Told:
    if switch(key, value):
        return Fate.TAKEN, "silent connections are always closed"
    return Fate.CHANGED, "rules.idle_ttl_s: closed after 30 days of silence"


def _metrics(result: Adopted, key: str, value: str) -> Told:
    result.put("metrics.enabled", True)
    return Fate.CHANGED, "metrics.enabled: Prometheus asks when it likes, instead of reading a file"


RULES: dict[str, Rule] = {
    "STORE_LOG.enable": left("tokens and subscriptions are always stored before they are answered"),
    "STORE_LOG.db_connection": left(_DATABASE),
    "STORE_LOG.db_schema": left(_DATABASE),
    "STORE_LOG.db_pool_size": left("a router uses one connection, and a few beside it"),
    "STORE_LOG.db_deleted_ttl": left("what is deleted is gone at once"),
    "STORE_LOG.log_stats": left("[journal] records numbers for `blindpost pipeline`, daily statistics too"),
    "STORE_LOG.prometheus_interval": _metrics,
    "AUTH.control_port_admin_password": left(_SOCKET),
    "AUTH.control_port_user_password": left(_SOCKET),
    "TRANSPORT.host": hosts,
    "TRANSPORT.port": _port,
    "TRANSPORT.log_tls_errors": left("failed handshakes are counted, not logged one by one"),
    "TRANSPORT.websockets": left("no client needs them"),
    "TRANSPORT.control_port": left(_SOCKET),
    "SUBSCRIBER.host_mode": choice("outbound.host_mode", "public", "onion"),
    "SUBSCRIBER.required_host_mode": flag("outbound.required_host_mode"),
    "SUBSCRIBER.socks_proxy": socks,
    "SUBSCRIBER.socks_mode": choice("outbound.socks_mode", "onion", "always"),
    "SUBSCRIBER.own_server_domains": left("message routers of your own are not counted apart"),
    "INACTIVE_CLIENTS.disconnect": _idle,
    "INACTIVE_CLIENTS.ttl": times("rules.idle_ttl_s", 1),
    "INACTIVE_CLIENTS.check_interval": left("silent connections are looked for every ten minutes"),
}


def read_old(folder: Path) -> Adopted:
    """What the settings of the ntf-server in this folder mean here."""
    file = folder / INI_NAME
    if not file.exists():
        return Adopted()
    try:
        ini = read_ini(read_file(file).decode("utf-8"))
        old = adopt(ini, RULES, _SECRETS)
    except UnicodeDecodeError as error:
        raise OperatorError(f"{file}: UTF-8 text expected.") from error
    except IniError as error:
        raise OperatorError(f"{file}: {error} Nothing was taken over.") from error
    if ini.get("INACTIVE_CLIENTS.disconnect", "").lower() == "off":
        old.put("rules.idle_ttl_s", 30 * DAY_S)
    return old


def first_settings(
    given: Sequence[str], port: int | None, fingerprint: str, store: str, dsn: str, old: Adopted | None
) -> str:
    """The configuration of a new router. Given options override the old server's."""
    taken = {} if old is None else {table: dict(names) for table, names in old.settings.items()}
    address = taken.setdefault("address", {})
    named = [*given] or address.get("hosts")
    if not isinstance(named, list) or not named:
        raise OperatorError("Where devices reach the router is not known. Name it with --host.")
    address["hosts"] = named
    if port is not None:
        address["port"] = port
        taken.setdefault("listen", {})["port"] = port
    return with_settings(config_text(named, NTF_PORT, fingerprint, store, dsn), taken)
