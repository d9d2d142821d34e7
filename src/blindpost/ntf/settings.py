"""The configuration file of a notification router: what may stand in it, and what is said about mistakes."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from blindpost.client.hosts import NTF_PORT
from blindpost.ntf.model import NtfRules
from blindpost.ntf.push.apns import TOPIC
from blindpost.ntf.sealing import KEY_SIZE
from blindpost.serving import settings as reading
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file
from blindpost.serving.journal import JournalSection
from blindpost.serving.settings import Section
from blindpost.wire.addresses import Host, RouterAddress, Scheme, Server
from blindpost.wire.errors import WireError
from blindpost.wire.ntf.pushes import APPLE_PADDED_SIZE, PADDED_SIZE
from blindpost.wire.text import unb64

CONFIG_NAME = "ntf.toml"
KEY_VARIABLE = "BLINDPOST_NTF_KEY"
TEAM = "5NN7GUYB6T"
EVERYWHERE = "*"
_DEFAULT = NtfRules()

Port = Annotated[int, Field(ge=0, le=65_535)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[int, Field(ge=1)]


def _host(text: str) -> str:
    try:
        return Host(text).text
    except WireError as error:
        raise ValueError(f"{error}, such as ntf.example.org") from error


def _fingerprint(text: str) -> str:
    try:
        if len(unb64(text)) == 32:
            return text
    except WireError:
        pass
    raise ValueError("the base64url text of 32 bytes expected, as `blindpost ntf address` prints it")


def _database(text: str) -> str:
    if text and not text.startswith(("postgresql://", "postgres://")):
        raise ValueError("postgresql://user@host/database expected")
    return text


def _loopback(text: str) -> str:
    try:
        if ipaddress.ip_address(text).is_loopback:
            return text
    except ValueError:
        pass
    raise ValueError("a loopback address expected, such as 127.0.0.1: metrics are for this machine")


class AddressSection(Section):
    """What devices are given."""

    hosts: list[Annotated[str, AfterValidator(_host)]] = Field(min_length=1)
    port: Port = NTF_PORT


class ListenSection(Section):
    address: str = EVERYWHERE
    """An address of this machine, or "*" for all of them."""
    port: Port = NTF_PORT
    connections: Count = 50_000


class IdentitySection(Section):
    fingerprint: Annotated[str, AfterValidator(_fingerprint)] | None = None
    keys: str = "keys"


class StoreSection(Section):
    kind: Literal["sqlite", "postgres"] = "sqlite"
    file: str = "ntf.db"
    dsn: Annotated[str, AfterValidator(_database), Field(repr=False)] = ""
    durability: Literal["full", "os"] = "full"
    key_file: str = "store.key"
    """The key under which secrets are sealed; the environment variable goes before it."""

    @model_validator(mode="after")
    def _complete(self) -> StoreSection:
        if self.kind == "postgres" and not self.dsn:
            raise ValueError("the address of the database expected in dsn, since kind is postgres")
        return self


class ApnsSection(Section):
    """Apple. Without a key nothing is pushed to its devices; their notifications wait."""

    key_file: str = ""
    key_id: str = ""
    team_id: str = TEAM
    topic: str = TOPIC
    ca_file: str = ""
    """Certificates that Apple is verified with, in place of the system's."""
    padded_size: Annotated[int, Field(ge=512, le=PADDED_SIZE)] = APPLE_PADDED_SIZE
    test_host: str = ""
    """A server of one's own for devices of the test provider."""
    test_port: Port = 443
    test_ca_file: str = ""

    @model_validator(mode="after")
    def _complete(self) -> ApnsSection:
        if self.key_file and not self.key_id:
            raise ValueError("key_id expected, since there is a key_file")
        return self


class SubscriberSection(Section):
    use_services: bool = True
    """Whether message routers are shown a certificate, so that one command subscribes all queues there."""
    socks_host: str = ""
    socks_port: Port = 9050
    """The SOCKS5 proxy through which onion hosts are reached."""


class RulesSection(Section):
    """`NtfRules`, in the file's words."""

    code_attempts: Count = _DEFAULT.code_attempts
    code_ttl_s: Seconds = _DEFAULT.code_ttl_s
    unverified_ttl_s: Seconds = _DEFAULT.unverified_ttl_s
    device_code_pushes: Count = _DEFAULT.device_code_pushes
    connection_code_pushes: Count = _DEFAULT.connection_code_pushes
    code_push_window_s: Seconds = _DEFAULT.code_push_window_s
    notification_ttl_s: Seconds = _DEFAULT.notification_ttl_s
    retry_first_s: Annotated[float, Field(gt=0)] = _DEFAULT.retry_first_s
    retry_max_s: Annotated[float, Field(gt=0)] = _DEFAULT.retry_max_s
    push_queue: Count = _DEFAULT.push_queue
    period_step_s: Annotated[float, Field(gt=0)] = _DEFAULT.period_step_s
    idle_ttl_s: Seconds = 43_200


class LogSection(Section):
    format: Literal["plain", "json"] = "plain"
    level: Literal["debug", "info", "warning", "error"] = "info"


class MetricsSection(Section):
    enabled: bool = False
    address: Annotated[str, AfterValidator(_loopback)] = "127.0.0.1"
    port: Port = 9_465


class Settings(Section):
    """Everything that an operator can set."""

    address: AddressSection
    listen: ListenSection = ListenSection()
    identity: IdentitySection = IdentitySection()
    store: StoreSection = StoreSection()
    apns: ApnsSection = ApnsSection()
    subscriber: SubscriberSection = SubscriberSection()
    rules: RulesSection = RulesSection()
    log: LogSection = LogSection()
    metrics: MetricsSection = MetricsSection()
    journal: JournalSection = JournalSection()

    def ntf_rules(self) -> NtfRules:
        rules = self.rules.model_dump(exclude={"idle_ttl_s"})
        is_test = bool(self.apns.test_host)
        return NtfRules(**rules, padded_size=self.apns.padded_size, test_provider=is_test)

    def router_address(self, key_hash: bytes) -> RouterAddress:
        """What devices are configured with."""
        hosts = tuple(Host(host) for host in self.address.hosts)
        port = "" if self.address.port == NTF_PORT else str(self.address.port)
        return RouterAddress(Scheme.NTF, Server(hosts, port, key_hash))


class Place:
    """A configuration file and the folder that its relative paths start from."""

    def __init__(self, file: Path, settings: Settings) -> None:
        self.file = file
        self.folder = file.parent
        self.settings = settings
        self.keys = self.folder / settings.identity.keys
        self.database = self.folder / settings.store.file
        self.key_file = self.folder / settings.store.key_file
        self.control = self.folder / "control.sock"
        self.lock = self.folder / "ntf.lock"

    @property
    def fingerprint(self) -> bytes | None:
        """The identity that the file names."""
        text = self.settings.identity.fingerprint
        return None if text is None else unb64(text)

    def store_key(self) -> bytes:
        """The key of the store, from the environment or from its file."""
        written = os.environ.get(KEY_VARIABLE)
        if written is not None:
            return _key(written, f"the environment variable {KEY_VARIABLE}")
        return _key(read_file(self.key_file).decode("ascii", "replace"), str(self.key_file))


def _key(written: str, source: str) -> bytes:
    try:
        key = bytes.fromhex(written.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_SIZE:
        raise OperatorError(f"{source}: the store's key expected, {2 * KEY_SIZE} hexadecimal digits.")
    return key


def parse(content: bytes, file: Path) -> Settings:
    return reading.parse(content, file, Settings)


def read_place(given: Path) -> Place:
    """The configuration that a person names by its file or its folder."""
    file = reading.find_config(given, CONFIG_NAME, "notification router")
    return Place(file, parse(read_file(file), file))
