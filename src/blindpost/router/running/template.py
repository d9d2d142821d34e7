"""The configuration file that `init` writes: every setting with its default and what it means."""

from __future__ import annotations

import json
from collections.abc import Sequence

from blindpost.serving.journal import JOURNAL_TEMPLATE
from blindpost.serving.outbound import OUTBOUND_TEMPLATE, allowed_for
from blindpost.serving.sections import CONTROL_TEMPLATE, METRICS_TEMPLATE

_TEMPLATE = (
    """\
# Configuration of a Blindpost router. Every setting is here with its default; what begins with # has no
# effect. Times are in seconds. After a change send SIGHUP: the log says which settings need a restart.

[address]
# Where users reach this router: host names, IP addresses or onion addresses, and the port.
hosts = {hosts}
port = {port}

[listen]
# Addresses of this machine to listen on ("*": all of them), and ports; 0 lets the system choose one.
addresses = {addresses}
ports = [{port}]

[identity]
# The identity in the router's address, checked at start so that no other keys are used by mistake.
fingerprint = "{fingerprint}"
# Folder of the keys. `ca.key` in it is needed by `rotate-cert` only: move it to a safe place offline.
keys = "keys"

[store]
# "lmdb": in a folder. "postgres": in a database that no other router uses.
kind = "{store}"
folder = "store"
# Address of the database, such as "postgresql://user@host/database". A password may stand in it, in ~/.pgpass
# or in the environment variable PGPASSWORD. Connect to the server itself, not through a pooler.
dsn = {dsn}
# "full": what was answered OK survives kill -9 and power loss. "os": kill -9 only, and faster on slow disks
# (of a database server: not its own crash).
durability = "full"
# With true on two machines that share this database, one of them serves and the other waits; it takes over
# when the first ends, or was silent for so many seconds. See docs/standby.md.
standby = false
takeover_s = 10

[router]
# Processes that own the connections (TLS, encryption, signatures), besides the one that decides and stores.
# 0: one process does everything. "auto": one less than the cores of this machine, 7 at most, one for every
# 128 MiB of memory_mib, and 0 with less than three cores. `status` tells what it is. See docs/fronts.md.
fronts = "auto"

[rules]
# Whether new queues may be created, and the password that is needed for it ("" for none).
new_queues = true
password = ""
# Messages a queue may hold.
quota = 128
# Messages that nobody fetched are dropped after this time; "never" keeps them.
message_ttl_s = 1814400
# Drop expired messages of a queue also when a message is sent to it.
expire_on_send = false
notification_ttl_s = 86400
# Whether senders may reach other routers through this one, which hides their addresses from those.
proxy = true
# Connections without subscriptions are closed after this much silence.
idle_ttl_s = 21600

[limits]
# Per address means per IPv4 address and per IPv6 /64; its /56 and /48 may have two and four times as
# much. These counts are kept in memory only. When a total is reached, the largest holder makes room.
connections = 50000
connections_per_address = 1000
# Connections that have not completed their handshake.
handshakes = 2000
# What the process may use, not counting its store's mapped files. Near it the largest holders are closed.
memory_mib = 2048
# New queues: a steady rate and a burst, over all and per address. Above it NEW is answered
# "STORE too many new queues, try again later".
new_per_second = 500.0
new_burst = 5000
new_per_address_per_second = 10.0
new_per_address_burst = 500
# What all queues, messages, links and services may take in the store: 1 KiB, and 16 KiB each. From half of it
# on it is counted who adds what, and whoever adds most is refused first: SEND with QUOTA, others with STORE.
stored_mib = 262144
# Memory of one connection: commands that wait to be decided, and answers that wait to be read.
inbox_kib = 128
outbox_kib = 8192
# Addresses that stand for many users, such as a Tor daemon: not counted per address.
# exempt = ["127.0.0.1", "::1"]

{outbound}[web]
# A page about this router, and pages for the links that name it (https://host/a#...), on its own ports.
# Browsers need a certificate for the router's host from a public authority: a file with the chain and one
# with its key, as certbot and others write them. A renewed certificate is noticed within a minute.
certificate = ""
key = ""
# Or with true the router gets and renews one itself, for the DNS names in [address] hosts, by ACME: needs the
# extra "acme" (pip install 'blindpost[acme]') and port 443 of these names, on which the authority looks. With
# true you agree to the authority's terms of service.
acme = false
# Where the authority may write to you, which directory is asked, and a file with certificates to trust for
# the directory's host ("": those of public authorities).
acme_email = ""
acme_directory = "https://acme-v02.api.letsencrypt.org/directory"
acme_ca_file = ""
# A folder with pages of your own: index.html, link.html, media/, .well-known/ and whatever they need.
folder = ""
# A port on 127.0.0.1 where the site is served without TLS, for a proxy on this machine; "off" for none.
plain_port = "off"
# Addresses of proxies in front that speak the PROXY protocol (version 1 or 2) on the ports of [listen].
proxies = []

[information]
# What the page says about you. Empty lines are not shown; without source_code the site offers its own source.
operator = ""
operator_country = ""
website = ""
server_country = ""
hosting = ""
hosting_country = ""
# "virtual", "dedicated", "colocation" or "owned".
hosting_type = ""
usage_conditions = ""
condition_amendments = ""
admin_simplex = ""
admin_email = ""
admin_pgp = ""
admin_pgp_fingerprint = ""
complaints_simplex = ""
complaints_email = ""
complaints_pgp = ""
complaints_pgp_fingerprint = ""
source_code = ""

[queues]
# A file in which every block, unblock and delete of a reported queue is noted, with its id ("": none). It is
# yours alone: the router's own log never holds ids.
log = ""

[times]
expiry_check_s = 7200
idle_check_s = 3600
# How often counters are saved; a crash loses at most this much of them, never messages.
counters_save_s = 60
# How long SIGTERM waits for clients to read their last answers.
drain_s = 30

[log]
# "plain" or "json", to standard error. Logs never hold ids, keys, addresses or messages.
format = "plain"
level = "info"

{metrics}"""
    + CONTROL_TEMPLATE
    + JOURNAL_TEMPLATE.format(default="the first host, its dots as -")
)


def config_text(
    hosts: Sequence[str],
    port: int,
    addresses: Sequence[str],
    fingerprint: str,
    store: str = "lmdb",
    dsn: str = "",
) -> str:
    """A complete file for these choices. JSON's lists and strings are TOML's too."""
    return _TEMPLATE.format(
        hosts=json.dumps(list(hosts)),
        port=port,
        addresses=json.dumps(list(addresses)),
        fingerprint=fingerprint,
        outbound=OUTBOUND_TEMPLATE.format(whose="Senders", allow=json.dumps(allowed_for(hosts))),
        metrics=METRICS_TEMPLATE.format(port=9464),
        store=store,
        dsn=json.dumps(dsn, ensure_ascii=False),
    )
