"""`smp-server.ini` in our terms: every setting is taken over, or reported as skipped with the reason.

A server that asks for a password, or takes no new queues, is never opened by moving: a setting about this
that cannot be parsed stops the move.
"""

from __future__ import annotations

from collections.abc import Mapping

from blindpost.serving.ini import (
    DAY_S,
    HOUR_S,
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
    socks,
    switch,
    text,
    times,
)

SMP_PORT = 5223
_SECRETS = frozenset({"STORE_LOG.db_connection", "NAMES.resolver_auth"})
"""Settings not printed, besides passwords."""


def adopted(ini: Mapping[str, str]) -> Adopted:
    """What the old server's settings mean here."""
    result = adopt(ini, _RULES, _SECRETS)
    _settle(result, ini)
    return result


def _settle(result: Adopted, ini: Mapping[str, str]) -> None:
    """Settings that depend on each other, and those whose default differs from the old server's."""
    if "STORE_LOG.expire_messages_on_send" not in ini:
        result.put("rules.expire_on_send", True)
    if ini.get("INACTIVE_CLIENTS.disconnect", "").lower() == "off":
        result.put("rules.idle_ttl_s", 30 * DAY_S)
    if "WEB.https" in ini:
        ports = result.settings.get("listen", {}).get("ports", [SMP_PORT])
        assert isinstance(ports, list)
        port = int(ini["WEB.https"])
        result.put("listen.ports", ports if port in ports else [*ports, port])


def _ports(result: Adopted, key: str, value: str) -> Told:
    ports = [number(key, port.strip()) for port in value.split(",") if port.strip()]
    if not ports or max(ports) > 65_535:
        raise IniError(f"{key}: ports expected, such as 5223,443.")
    result.put("listen.ports", ports)
    result.put("address.port", SMP_PORT if SMP_PORT in ports else ports[0])
    return Fate.TAKEN, "listen.ports"


def _metrics(result: Adopted, key: str, value: str) -> Told:
    result.put("metrics.enabled", True)
    return Fate.CHANGED, "metrics.enabled: Prometheus asks when it likes, instead of reading a file"


def _idle(result: Adopted, key: str, value: str) -> Told:
    if switch(key, value):
        return Fate.TAKEN, "connections without subscriptions are always closed when idle"
    return Fate.CHANGED, "rules.idle_ttl_s: closed after 30 days of silence"


def _https(result: Adopted, key: str, value: str) -> Told:
    if number(key, value) > 65_535:
        raise IniError(f"{key}: a port expected, not {value!r}.")
    return Fate.TAKEN, "listen.ports: every port serves both the site and SMP"


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
    **{f"INFORMATION.{name}": text(f"information.{name}") for name in _INFORMATION},
    "INFORMATION.hosting_type": choice(
        "information.hosting_type", "virtual", "dedicated", "colocation", "owned"
    ),
    "STORE_LOG.enable": left(_DURABLE),
    "STORE_LOG.store_queues": left(_DATABASE),
    "STORE_LOG.db_connection": left(_DATABASE),
    "STORE_LOG.db_schema": left(_DATABASE),
    "STORE_LOG.db_pool_size": left("a router uses one connection, and a few beside it"),
    "STORE_LOG.db_store_log": left(_DATABASE),
    "STORE_LOG.db_deleted_ttl": left("deleted queues are gone at once"),
    "STORE_LOG.store_messages": left(_DURABLE),
    "STORE_LOG.restore_messages": left(_DURABLE),
    "STORE_LOG.expire_messages_days": times("rules.message_ttl_s", DAY_S),
    "STORE_LOG.expire_messages_on_start": left("old messages are dropped at regular times"),
    "STORE_LOG.expire_messages_on_send": flag("rules.expire_on_send"),
    "STORE_LOG.expire_ntfs_hours": times("rules.notification_ttl_s", HOUR_S),
    "STORE_LOG.log_stats": left("[journal] records numbers for `blindpost pipeline`, daily statistics too"),
    "STORE_LOG.prometheus_interval": _metrics,
    "AUTH.new_queues": flag("rules.new_queues"),
    "AUTH.create_password": text("rules.password"),
    "AUTH.control_port_admin_password": left(_SOCKET),
    "AUTH.control_port_user_password": left(_SOCKET),
    "AUTH.daily_block_queue_quota": left(_SOCKET),
    "TRANSPORT.host": hosts,
    "TRANSPORT.port": _ports,
    "TRANSPORT.log_tls_errors": left("failed handshakes are counted, not logged one by one"),
    "TRANSPORT.websockets": left("no client needs them"),
    "TRANSPORT.control_port": left(_SOCKET),
    "PROXY.host_mode": choice("outbound.host_mode", "public", "onion"),
    "PROXY.required_host_mode": flag("outbound.required_host_mode"),
    "PROXY.own_server_domains": left("relays of your own are not counted apart"),
    "PROXY.socks_proxy": socks,
    "PROXY.socks_mode": choice("outbound.socks_mode", "onion", "always"),
    "PROXY.client_concurrency": left("a connection may have 32 commands on their way to relays"),
    "NAMES.enable": left(_NAMES),
    "NAMES.resolver_endpoint": left(_NAMES),
    "NAMES.resolver_auth": left(_NAMES),
    "NAMES.resolver_timeout_ms": left(_NAMES),
    "NAMES.resolver_max_response_bytes": left(_NAMES),
    "NAMES.resolver_concurrency": left(_NAMES),
    "INACTIVE_CLIENTS.disconnect": _idle,
    "INACTIVE_CLIENTS.ttl": times("rules.idle_ttl_s", 1),
    "INACTIVE_CLIENTS.check_interval": times("times.idle_check_s", 1),
    "WEB.static_path": left("pages are made from the settings; put your own into web.folder"),
    "WEB.http": left("browsers come by HTTPS; web.plain_port is for a proxy on this machine"),
    "WEB.https": _https,
    "WEB.cert": text("web.certificate"),
    "WEB.key": text("web.key"),
}
