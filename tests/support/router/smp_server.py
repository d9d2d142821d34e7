"""What smp-server leaves behind."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from blindpost.crypto.credentials import issue_router, make_authority
from blindpost.crypto.entropy import system_entropy
from blindpost.wire.keys import Algorithm

INI = """\
[INFORMATION]
# server_country: ISO-3166 2-letter code
source_code: https://example.org/source
operator: Jane Doe
hosting_type: dedicated

[STORE_LOG]
enable: on
store_queues: memory
store_messages: memory
restore_messages: on
expire_messages_days: 7
expire_messages_on_start: on
expire_messages_on_send: off
expire_ntfs_hours: 12
log_stats: off

[AUTH]
new_queues: on
create_password: secret word-free
# control_port_admin_password:

[TRANSPORT]
host: smp.example.org,abc.onion
port: 5223,443
log_tls_errors: off
websockets: off

[PROXY]
socks_proxy = localhost:9050
socks_mode: onion
own_server_domains: example.org .example.net

[INACTIVE_CLIENTS]
disconnect: on
ttl: 43200
check_interval: 1800

[WEB]
static_path: /var/opt/simplex/www
https: 443
cert: /etc/opt/simplex/web.crt
key: /etc/opt/simplex/web.key
"""


def smp_server_keys(folder: Path) -> bytes:
    """The files that smp-server keeps of its identity; its fingerprint."""
    now = int(time.time())
    authority = make_authority(now, system_entropy, Algorithm.ED448)
    online = issue_router(authority, "localhost", now, system_entropy, Algorithm.ED448)
    folder.mkdir()
    for name, key in (("ca.key", authority.key), ("server.key", online.key)):
        pem = key.for_certificates().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / name).write_bytes(pem)
    for name, der in (("ca.crt", authority.certificate), ("server.crt", online.chain[0])):
        (folder / name).write_bytes(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM))
    return online.fingerprint
