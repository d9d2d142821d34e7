"""`smp-server.ini` in our words: every setting is taken over, or named as left with the reason.

A server that asks for a password, or takes no new queues, is never opened by moving: what cannot be
understood there stops the move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

DAY_S, HOUR_S = 86_400, 3_600
SMP_PORT = 5223


class IniError(Exception):
    """The file, or a value in it, cannot be understood; the text says which line or setting."""


class Fate(Enum):
    """What became of a setting."""

    TAKEN = "taken"
    CHANGED = "changed"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of the old file and what became of it."""

    key: str
    value: str
    fate: Fate
    remark: str


@dataclass(slots=True)
class Adopted:
    """What a file of the old server means here."""

    settings: dict[str, dict[str, object]] = field(default_factory=dict)
    """By table and name of our file; JSON values."""
    rows: list[Row] = field(default_factory=list)

    def put(self, name: str, value: object) -> None:
        table, _, key = name.partition(".")
        self.settings.setdefault(table, {})[key] = value


def read_ini(text: str) -> dict[str, str]:
    """Values by `SECTION.key`; lines that begin with # are absent, as smp-server reads them."""
    found: dict[str, str] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            continue
        places = [place for place in (line.find("="), line.find(":")) if place > 0]
        if not places or not section:
            raise IniError(f"line {number}: a section, or a name and a value expected.")
        key = f"{section}.{line[: min(places)].strip()}"
        if key in found:
            raise IniError(f"line {number}: {key} is there twice. Leave the one that holds.")
        found[key] = line[min(places) + 1 :].strip()
    return found


def adopted(ini: Mapping[str, str]) -> Adopted:
    """What the old server's settings mean here; a row for each of them, in the order of the file."""
    result = Adopted()
    for key, value in ini.items():
        rule = _RULES.get(key)
        if rule is None:
            result.rows.append(Row(key, _shown(key, value), Fate.LEFT, "not known to this version"))
            continue
        fate, remark = rule(result, key, value)
        result.rows.append(Row(key, _shown(key, value), fate, remark))
    _settle(result, ini)
    return result


def _settle(result: Adopted, ini: Mapping[str, str]) -> None:
    """What more than one setting decides, and where the old server's default is not ours."""
    if "STORE_LOG.expire_messages_on_send" not in ini:
        result.put("rules.expire_on_send", True)
    if ini.get("INACTIVE_CLIENTS.disconnect", "").lower() == "off":
        result.put("rules.idle_ttl_s", 30 * DAY_S)
    if "WEB.https" in ini:
        ports = result.settings.get("listen", {}).get("ports", [SMP_PORT])
        assert isinstance(ports, list)
        port = int(ini["WEB.https"])
        result.put("listen.ports", ports if port in ports else [*ports, port])


Told = tuple[Fate, str]
Rule = Callable[[Adopted, str, str], Told]


def _shown(key: str, value: str) -> str:
    """Passwords are not printed."""
    secret = "password" in key or key in {"STORE_LOG.db_connection", "NAMES.resolver_auth"}
    return "..." if secret and value else value


def _switch(key: str, value: str) -> bool:
    if value.lower() not in {"on", "off"}:
        raise IniError(f"{key}: on or off expected, not {value!r}.")
    return value.lower() == "on"


def _number(key: str, value: str, least: int = 1) -> int:
    if not (value.isascii() and value.isdigit() and int(value) >= least):
        raise IniError(f"{key}: a number of at least {least} expected, not {value!r}.")
    return int(value)


def _left(reason: str) -> Rule:
    return lambda result, key, value: (Fate.LEFT, reason)


def _text(name: str) -> Rule:
    def rule(result: Adopted, key: str, value: str) -> Told:
        if not value:
            return Fate.LEFT, "empty"
        result.put(name, value)
        return Fate.TAKEN, name

    return rule


def _flag(name: str) -> Rule:
    def rule(result: Adopted, key: str, value: str) -> Told:
        result.put(name, _switch(key, value))
        return Fate.TAKEN, name

    return rule


def _times(name: str, unit_s: int) -> Rule:
    def rule(result: Adopted, key: str, value: str) -> Told:
        result.put(name, _number(key, value) * unit_s)
        return Fate.TAKEN, f"{name}, in seconds"

    return rule


def _hosts(result: Adopted, key: str, value: str) -> Told:
    hosts = [host.strip() for host in value.split(",") if host.strip()]
    if not hosts:
        raise IniError(f"{key}: a host expected.")
    result.put("address.hosts", hosts)
    return Fate.TAKEN, "address.hosts"


def _ports(result: Adopted, key: str, value: str) -> Told:
    ports = [_number(key, port.strip()) for port in value.split(",") if port.strip()]
    if not ports or max(ports) > 65_535:
        raise IniError(f"{key}: ports expected, such as 5223,443.")
    result.put("listen.ports", ports)
    result.put("address.port", SMP_PORT if SMP_PORT in ports else ports[0])
    return Fate.TAKEN, "listen.ports"


def _metrics(result: Adopted, key: str, value: str) -> Told:
    result.put("metrics.enabled", True)
    return Fate.CHANGED, "metrics.enabled: Prometheus asks when it likes, instead of reading a file"


def _idle(result: Adopted, key: str, value: str) -> Told:
    if _switch(key, value):
        return Fate.TAKEN, "connections without subscriptions are always closed when idle"
    return Fate.CHANGED, "rules.idle_ttl_s: closed after 30 days of silence"


def _https(result: Adopted, key: str, value: str) -> Told:
    if _number(key, value) > 65_535:
        raise IniError(f"{key}: a port expected, not {value!r}.")
    return Fate.TAKEN, "listen.ports: every port serves both the site and SMP"


def _socks(result: Adopted, key: str, value: str) -> Told:
    host, _, port = value.rpartition(":")
    if not host.strip("[]"):
        raise IniError(f"{key}: host:port expected, not {value!r}.")
    _number(key, port)
    result.put("outbound.socks", value)
    return Fate.TAKEN, "outbound.socks"


def _choice(name: str, *values: str) -> Rule:
    def rule(result: Adopted, key: str, value: str) -> Told:
        if value not in values:
            raise IniError(f"{key}: {' or '.join(values)} expected, not {value!r}.")
        result.put(name, value)
        return Fate.TAKEN, name

    return rule


_DATABASE = "the new store is chosen by --store and --dsn, and filled by `blindpost router import`"
_DURABLE = "queues and messages are always stored before they are answered"
_SOCKET = "operators use a Unix socket that belongs to the server's user, without passwords"
_NAMES = "this router resolves no names"
_INFORMATION = (
    *("source_code", "usage_conditions", "condition_amendments", "server_country", "operator"),
    *("operator_country", "website", "admin_simplex", "admin_email", "admin_pgp", "admin_pgp_fingerprint"),
    *("complaints_simplex", "complaints_email", "complaints_pgp", "complaints_pgp_fingerprint"),
    *("hosting", "hosting_country"),
)

_RULES: dict[str, Rule] = {
    **{f"INFORMATION.{name}": _text(f"information.{name}") for name in _INFORMATION},
    "INFORMATION.hosting_type": _choice(
        "information.hosting_type", "virtual", "dedicated", "colocation", "owned"
    ),
    "STORE_LOG.enable": _left(_DURABLE),
    "STORE_LOG.store_queues": _left(_DATABASE),
    "STORE_LOG.db_connection": _left(_DATABASE),
    "STORE_LOG.db_schema": _left(_DATABASE),
    "STORE_LOG.db_pool_size": _left("a router uses one connection, and a few beside it"),
    "STORE_LOG.db_store_log": _left(_DATABASE),
    "STORE_LOG.db_deleted_ttl": _left("deleted queues are gone at once"),
    "STORE_LOG.store_messages": _left(_DURABLE),
    "STORE_LOG.restore_messages": _left(_DURABLE),
    "STORE_LOG.expire_messages_days": _times("rules.message_ttl_s", DAY_S),
    "STORE_LOG.expire_messages_on_start": _left("old messages are dropped at regular times"),
    "STORE_LOG.expire_messages_on_send": _flag("rules.expire_on_send"),
    "STORE_LOG.expire_ntfs_hours": _times("rules.notification_ttl_s", HOUR_S),
    "STORE_LOG.log_stats": _left("[journal] records numbers for `blindpost pipeline`, daily statistics too"),
    "STORE_LOG.prometheus_interval": _metrics,
    "AUTH.new_queues": _flag("rules.new_queues"),
    "AUTH.create_password": _text("rules.password"),
    "AUTH.control_port_admin_password": _left(_SOCKET),
    "AUTH.control_port_user_password": _left(_SOCKET),
    "AUTH.daily_block_queue_quota": _left(_SOCKET),
    "TRANSPORT.host": _hosts,
    "TRANSPORT.port": _ports,
    "TRANSPORT.log_tls_errors": _left("failed handshakes are counted, not logged one by one"),
    "TRANSPORT.websockets": _left("no client needs them"),
    "TRANSPORT.control_port": _left(_SOCKET),
    "PROXY.host_mode": _choice("outbound.host_mode", "public", "onion"),
    "PROXY.required_host_mode": _flag("outbound.required_host_mode"),
    "PROXY.own_server_domains": _left("relays of your own are not counted apart"),
    "PROXY.socks_proxy": _socks,
    "PROXY.socks_mode": _choice("outbound.socks_mode", "onion", "always"),
    "PROXY.client_concurrency": _left("a connection may have 32 commands on their way to relays"),
    "NAMES.enable": _left(_NAMES),
    "NAMES.resolver_endpoint": _left(_NAMES),
    "NAMES.resolver_auth": _left(_NAMES),
    "NAMES.resolver_timeout_ms": _left(_NAMES),
    "NAMES.resolver_max_response_bytes": _left(_NAMES),
    "NAMES.resolver_concurrency": _left(_NAMES),
    "INACTIVE_CLIENTS.disconnect": _idle,
    "INACTIVE_CLIENTS.ttl": _times("rules.idle_ttl_s", 1),
    "INACTIVE_CLIENTS.check_interval": _times("times.idle_check_s", 1),
    "WEB.static_path": _left("pages are made from the settings; put your own into web.folder"),
    "WEB.http": _left("browsers come by HTTPS; web.plain_port is for a proxy on this machine"),
    "WEB.https": _https,
    "WEB.cert": _text("web.certificate"),
    "WEB.key": _text("web.key"),
}
