"""The configuration file that `init` writes: every setting with its default and what it means."""

from __future__ import annotations

import json
from collections.abc import Sequence

from blindpost.serving.journal import JOURNAL_TEMPLATE, LAB_TEMPLATE
from blindpost.serving.outbound import OUTBOUND_TEMPLATE, allowed_for
from blindpost.serving.sections import CONTROL_TEMPLATE, METRICS_TEMPLATE
from blindpost.wire.ntf.pushes import APPLE_PADDED_SIZE

_TEMPLATE = (
    """\
# Configuration of a Blindpost notification router. Every setting is here with its default. Times are in
# seconds. After a change send SIGHUP: the log says which settings need a restart. See docs/notifications.md.

[address]
# Where devices reach this router: host names, IP addresses or onion addresses, and the port.
hosts = {hosts}
port = {port}

[listen]
# An address of this machine to listen on ("*": all of them), and the port; 0 lets the system choose one.
address = "*"
port = {port}
# In total, of one IPv4 address or IPv6 /64, and those that have not completed their handshake.
connections = 50000
connections_per_address = 1000
handshakes = 2000
# What the process may use. Near it the largest holders are closed.
memory_mib = 2048
# Addresses that stand for many users: not counted per address.
# exempt = ["127.0.0.1", "::1"]

[identity]
# The identity in the router's address, checked at start so that no other keys are used by mistake.
fingerprint = "{fingerprint}"
# Folder of the keys. `ca.key` in it is needed by `rotate-cert` only: move it to a safe place offline.
keys = "keys"

[store]
# "sqlite": in a file. "postgres": in a database that no other notification router uses.
kind = "{store}"
file = "ntf.db"
# Address of the database, such as "postgresql://user@host/database"; the password in ~/.pgpass or PGPASSWORD.
dsn = {dsn}
# "full": what was accepted survives kill -9 and power loss. "os": kill -9 only.
durability = "full"
# With true on two machines that share this database, one of them serves and the other waits; it takes over
# when the first ends, or was silent for so many seconds. See docs/standby.md.
standby = false
takeover_s = 10
# The key under which device tokens, addresses, queue ids and keys are sealed in the store. The environment
# variable BLINDPOST_NTF_KEY takes precedence. Keep it apart from backups of the store.
key_file = "store.key"

[apns]
# Apple's key for provider tokens (a .p8 file) and its ids. Without it nothing is pushed to Apple's devices,
# and their notifications wait until they expire.
key_file = ""
key_id = ""
team_id = "5NN7GUYB6T"
topic = "chat.simplex.app"
# Trusted certificates instead of the system's.
ca_file = ""
# After how many silent seconds a connection to Apple is tested with an HTTP/2 PING.
ping_s = 300.0
# To how many bytes every push is padded before it is encrypted. The default fits into Apple's limit of
# 4096 bytes for a push; the reference uses 3072, which does not.
padded_size = {padded_size}
# A server like Apple's for devices of the test provider; without a host they are refused.
test_host = ""
test_port = 443
test_ca_file = ""

[webpush]
# Devices with a Web Push subscription, also by UnifiedPush: see docs/webpush.md. The key by which push
# services know this router; whom their operators may write to, "mailto:..." or "https://..." (empty: the
# first host).
enabled = true
key_file = "vapid.pem"
subject = ""
# Trusted certificates instead of the system's.
ca_file = ""

[subscriber]
# Whether message routers are shown a certificate of ours, so that one command subscribes all queues there.
use_services = true

{outbound}[rules]
# Wrong codes that lock a registration, how long a code is valid, when a token that was never verified goes.
code_attempts = 5
code_ttl_s = 86400
unverified_ttl_s = 172800
# How many codes are pushed to one device, for one address, and to one Web Push service, in a window of time.
device_code_pushes = 10
address_code_pushes = 200
service_code_pushes = 5000
code_push_window_s = 3600
# How many message routers that nobody named before, and how many queues, one token may name in a window of
# time: this router connects to each of them.
token_routers = 100
token_queues = 10000
token_window_s = 3600
# How many queues one token may have in total.
token_subscriptions = 20000
# How long a notification that cannot be pushed is retried, with growing pauses.
notification_ttl_s = 172800
retry_first_s = 2.0
retry_max_s = 600.0
# How many pushes may wait in memory; any more wait in the store.
push_queue = 32768
# How often due periodic notifications are looked for.
period_step_s = 30.0
# Connections of devices are closed after this much silence.
idle_ttl_s = 43200

[log]
format = "plain"
level = "info"

{metrics}"""
    + CONTROL_TEMPLATE
)


def config_text(hosts: Sequence[str], port: int, fingerprint: str, store: str, dsn: str) -> str:
    """A file with all defaults."""
    text = _TEMPLATE.format(
        hosts=json.dumps(list(hosts)),
        port=port,
        fingerprint=fingerprint,
        outbound=OUTBOUND_TEMPLATE.format(whose="Devices", allow=json.dumps(allowed_for(hosts))),
        metrics=METRICS_TEMPLATE.format(port=9465),
        store=store,
        dsn=json.dumps(dsn),
        padded_size=APPLE_PADDED_SIZE,
    )
    lab = LAB_TEMPLATE.format(names="device tokens", about="notifications to them")
    return text + JOURNAL_TEMPLATE.format(default="the first host") + lab
