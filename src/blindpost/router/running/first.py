"""The initial settings of a router: what `init` is given, and what an old server had."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blindpost.router.moving.ini import adopted
from blindpost.router.running.settings import SMP_PORT
from blindpost.router.running.template import config_text
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file
from blindpost.serving.ini import Adopted, IniError, read_ini
from blindpost.serving.sections import EVERYWHERE
from blindpost.serving.toml_text import with_settings

INI_NAME = "smp-server.ini"
PASSWORD_BYTES = 18


@dataclass(frozen=True, slots=True)
class Given:
    """The options of `init`; those not given are empty or None."""

    hosts: Sequence[str]
    port: int | None
    addresses: Sequence[str]
    password: str | None
    """None: generate one, or keep the old server's."""
    store: str
    dsn: str


def read_old(folder: Path, given: Given) -> Adopted:
    """What the settings of the smp-server in this folder mean here; nothing, if it has none."""
    file = folder / INI_NAME
    if not file.exists():
        if given.password is None:
            raise OperatorError(
                f"{file}: the old server's settings are not there, so that it is not known whether it asks "
                "for a password. Copy the file beside the keys, or say --password or --open."
            )
        return Adopted()
    try:
        old = adopted(read_ini(read_file(file).decode("utf-8")))
    except UnicodeDecodeError as error:
        raise OperatorError(f"{file}: UTF-8 text expected.") from error
    except IniError as error:
        raise OperatorError(f"{file}: {error} Nothing was taken over.") from error
    web = old.settings.get("web", {})
    for name in ("certificate", "key"):
        if name in web:
            web[name] = str((folder / str(web[name])).absolute())
    return old


def first_settings(given: Given, fingerprint: str, old: Adopted | None) -> str:
    """The configuration of a new router. Given options override the old server's."""
    taken = {} if old is None else {table: dict(names) for table, names in old.settings.items()}
    address, rules = taken.setdefault("address", {}), taken.setdefault("rules", {})
    hosts = [*given.hosts] or address.get("hosts")
    if not isinstance(hosts, list) or not hosts:
        raise OperatorError("The router's public host is not known. Name it with --host.")
    address["hosts"] = hosts
    if given.port is not None:
        address["port"] = given.port
        taken.setdefault("listen", {})["ports"] = [given.port]
    if given.password is not None:
        rules["password"] = given.password
    elif old is None:
        rules["password"] = secrets.token_urlsafe(PASSWORD_BYTES)
    port = address.get("port", SMP_PORT)
    assert isinstance(port, int)
    text = config_text(hosts, port, given.addresses or [EVERYWHERE], fingerprint, given.store, given.dsn)
    return with_settings(text, taken)
