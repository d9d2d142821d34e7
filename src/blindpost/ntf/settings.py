"""The configuration file of a notification router: what it may contain, and the messages for mistakes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from blindpost.client.hosts import NTF_PORT
from blindpost.ntf.model import NtfRules
from blindpost.ntf.push.apns import TOPIC
from blindpost.ntf.push.http2 import WATCH
from blindpost.ntf.sealing import KEY_SIZE
from blindpost.serving import place as places
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file
from blindpost.serving.journal import JournalSection, hexadecimal
from blindpost.serving.outbound import OutboundSection
from blindpost.serving.place import ServerSettings
from blindpost.serving.sections import (
    EVERYWHERE,
    Count,
    Database,
    Durability,
    HostText,
    IdentitySection,
    Listening,
    MetricsSection,
    Port,
    Positive,
    Seconds,
    SharedSection,
    Taking,
    demand_database,
)
from blindpost.serving.settings import Section
from blindpost.wire.addresses import Host, RouterAddress, Scheme, Server
from blindpost.wire.ntf.pushes import APPLE_PADDED_SIZE, PADDED_SIZE
from blindpost.wire.text import b64

if TYPE_CHECKING:
    from blindpost.store.ownership import Shared

KEY_VARIABLE = "BLINDPOST_NTF_KEY"
TEAM = "5NN7GUYB6T"
_DEFAULT = NtfRules()


class AddressSection(Section):
    """The address that devices are given."""

    hosts: list[HostText] = Field(min_length=1)
    port: Port = NTF_PORT


class ListenSection(Taking):
    address: Listening = EVERYWHERE
    port: Port = NTF_PORT


class StoreSection(SharedSection):
    kind: Literal["sqlite", "postgres"] = "sqlite"
    file: str = "ntf.db"
    dsn: Database = ""
    durability: Durability = "full"
    key_file: str = "store.key"
    """The key under which secrets are sealed; the environment variable takes precedence."""

    @model_validator(mode="after")
    def _complete(self) -> StoreSection:
        demand_database(self.kind, self.dsn)
        self.demand_shareable(in_database=self.kind == "postgres")
        return self


class ApnsSection(Section):
    """Apple. Without a key nothing is pushed to its devices; their notifications wait."""

    key_file: str = ""
    key_id: str = ""
    team_id: str = TEAM
    topic: str = TOPIC
    ca_file: str = ""
    """Certificates that Apple is verified with, in place of the system's."""
    ping_s: Positive = WATCH.idle_s
    """A connection silent for this long is probed with a PING."""
    padded_size: Annotated[int, Field(ge=512, le=PADDED_SIZE)] = APPLE_PADDED_SIZE
    test_host: str = ""
    """The operator's own server for devices of the test provider."""
    test_port: Port = 443
    test_ca_file: str = ""

    @model_validator(mode="after")
    def _complete(self) -> ApnsSection:
        if self.key_file and not self.key_id:
            raise ValueError("key_id expected, since there is a key_file")
        return self


class WebPushSection(Section):
    """Web Push and UnifiedPush. Without its key such devices are refused."""

    enabled: bool = True
    key_file: str = "vapid.pem"
    """The key by which push services know this router."""
    subject: Annotated[str, Field(pattern=r"^((mailto:|https://)[\x21-\x7e]+)?$")] = ""
    """A contact for their operators; the router's first host if empty."""
    ca_file: str = ""
    """Certificates that push services are verified with, in place of the system's."""


class SubscriberSection(Section):
    use_services: bool = True
    """Whether message routers are shown a certificate, so that one command subscribes all queues there."""


class RulesSection(Section):
    """`NtfRules`, as the file names them."""

    code_attempts: Count = _DEFAULT.code_attempts
    code_ttl_s: Seconds = _DEFAULT.code_ttl_s
    unverified_ttl_s: Seconds = _DEFAULT.unverified_ttl_s
    device_code_pushes: Count = _DEFAULT.device_code_pushes
    address_code_pushes: Count = _DEFAULT.address_code_pushes
    service_code_pushes: Count = _DEFAULT.service_code_pushes
    code_push_window_s: Seconds = _DEFAULT.code_push_window_s
    token_routers: Count = _DEFAULT.token_routers
    token_queues: Count = _DEFAULT.token_queues
    token_subscriptions: Count = _DEFAULT.token_subscriptions
    token_window_s: Seconds = _DEFAULT.token_window_s
    notification_ttl_s: Seconds = _DEFAULT.notification_ttl_s
    retry_first_s: Positive = _DEFAULT.retry_first_s
    retry_max_s: Positive = _DEFAULT.retry_max_s
    push_queue: Count = _DEFAULT.push_queue
    period_step_s: Positive = _DEFAULT.period_step_s
    idle_ttl_s: Seconds = 43_200


class NtfMetricsSection(MetricsSection):
    port: Port = 9_465


class NtfJournalSection(JournalSection):
    lab: list[Annotated[str, AfterValidator(hexadecimal())]] = Field(default_factory=list)
    """Device tokens of the operator's own canaries and load tests."""


class Settings(ServerSettings):
    """Everything that an operator can set."""

    address: AddressSection
    listen: ListenSection = ListenSection()
    identity: IdentitySection = IdentitySection()
    store: StoreSection = StoreSection()
    apns: ApnsSection = ApnsSection()
    webpush: WebPushSection = WebPushSection()
    subscriber: SubscriberSection = SubscriberSection()
    outbound: OutboundSection = OutboundSection()
    rules: RulesSection = RulesSection()
    metrics: NtfMetricsSection = NtfMetricsSection()
    journal: NtfJournalSection = NtfJournalSection()

    def ntf_rules(self) -> NtfRules:
        rules = self.rules.model_dump(exclude={"idle_ttl_s"})
        is_test = bool(self.apns.test_host)
        return NtfRules(**rules, padded_size=self.apns.padded_size, test_provider=is_test)

    def router_address(self, key_hash: bytes) -> RouterAddress:
        """What devices are configured with."""
        hosts = tuple(Host(host) for host in self.address.hosts)
        port = "" if self.address.port == NTF_PORT else str(self.address.port)
        return RouterAddress(Scheme.NTF, Server(hosts, port, key_hash))


class NtfPlace(places.Place[Settings]):
    """A notification router's configuration and its folder."""

    word, title = "ntf", "notification router"
    model = Settings

    def __init__(self, file: Path, settings: Settings) -> None:
        super().__init__(file, settings)
        self.keys = self.folder / settings.identity.keys
        self.fingerprint = settings.identity.key_hash
        self.database = self.folder / settings.store.file
        self.key_file = self.folder / settings.store.key_file
        self.counters = self.folder / "counters.json"
        self.vapid_file = self.folder / settings.webpush.key_file

    @property
    def known_as(self) -> str:
        return "" if self.fingerprint is None else b64(self.fingerprint)

    @property
    def store_folder(self) -> Path | None:
        return self.database.parent if self.settings.store.kind == "sqlite" else None

    @property
    def schema(self) -> int:
        # Imported when needed: most commands need no tables.
        if self.settings.store.kind == "sqlite":
            from blindpost.ntf.schema_sqlite import MIGRATIONS

            return len(MIGRATIONS)
        from blindpost.ntf.tables_postgres import SCHEMA

        return len(SCHEMA.migrations)

    @property
    def shared(self) -> Shared | None:
        store = self.settings.store
        if not store.standby:
            return None
        from blindpost.ntf.tables_postgres import SCHEMA
        from blindpost.store.ownership import Shared

        return Shared(store.dsn, SCHEMA, store.takeover_s, self.known_as)

    def store_key(self) -> bytes:
        """The key of the store, from the environment or from its file."""
        written = os.environ.get(KEY_VARIABLE)
        if written is not None:
            return _key(written, f"the environment variable {KEY_VARIABLE}")
        if not self.key_file.exists():
            raise OperatorError(
                f"{self.key_file}: the store's key is missing. Put back the copy that you keep apart, or set "
                f"the environment variable {KEY_VARIABLE}: nothing else opens the store."
            )
        return _key(read_file(self.key_file).decode("ascii", "replace"), str(self.key_file))


def _key(written: str, source: str) -> bytes:
    try:
        key = bytes.fromhex(written.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_SIZE:
        raise OperatorError(f"{source}: the store's key expected, {2 * KEY_SIZE} hexadecimal digits.")
    return key


CONFIG_NAME = NtfPlace.config_name()
