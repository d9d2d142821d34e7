"""The configuration file of a router: what it may contain, and the messages for what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from blindpost.router.config import MESSAGE_TTL_S, NOTIFICATION_TTL_S, QUOTA_DEFAULT
from blindpost.serving import place as places
from blindpost.serving.outbound import OutboundSection
from blindpost.serving.place import ServerSettings
from blindpost.serving.sections import (
    EVERYWHERE,
    MOST,
    Count,
    Database,
    Durability,
    HostText,
    IdentitySection,
    Listening,
    MetricsSection,
    NetworkText,
    Port,
    Positive,
    Seconds,
    SharedSection,
    Taking,
    demand_database,
)
from blindpost.serving.settings import Section
from blindpost.serving.stored import STORED_MAX
from blindpost.wire.addresses import PASSWORD_BYTES, Host, RouterAddress, Scheme, Server
from blindpost.wire.text import b64

if TYPE_CHECKING:
    from blindpost.store.ownership import Shared

SMP_PORT = 5223
LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"


def _password(text: str) -> str:
    if not PASSWORD_BYTES.issuperset(text.encode()):
        raise ValueError("printable characters without spaces, @, : and / expected")
    return text


def _https(text: str) -> str:
    if not text.startswith("https://") or not urlsplit(text).netloc:
        raise ValueError("an address that begins with https:// expected")
    return text


class AddressSection(Section):
    hosts: list[HostText] = Field(min_length=1)
    port: Port = SMP_PORT


class ListenSection(Section):
    addresses: list[Listening] = Field(default=[EVERYWHERE], min_length=1)
    ports: list[Port] = Field(default=[SMP_PORT], min_length=1)


class StoreSection(SharedSection):
    kind: Literal["lmdb", "postgres"] = "lmdb"
    folder: str = "store"
    dsn: Database = ""
    durability: Durability = "full"

    @model_validator(mode="after")
    def _complete(self) -> StoreSection:
        demand_database(self.kind, self.dsn)
        self.demand_shareable(in_database=self.kind == "postgres")
        return self


class RulesSection(Section):
    """`RouterRules`, as the file names them."""

    new_queues: bool = True
    password: Annotated[str, AfterValidator(_password)] = ""
    quota: Count = QUOTA_DEFAULT
    message_ttl_s: Seconds | Literal["never"] = MESSAGE_TTL_S
    expire_on_send: bool = False
    notification_ttl_s: Seconds = NOTIFICATION_TTL_S
    proxy: bool = True
    idle_ttl_s: Seconds = 6 * 3600


class LimitsSection(Taking):
    new_per_second: Positive = 500.0
    new_burst: Count = 5_000
    new_per_address_per_second: Positive = 10.0
    new_per_address_burst: Count = 500
    inbox_kib: Annotated[int, Field(ge=32, le=65_536)] = 128
    outbox_kib: Annotated[int, Field(ge=512, le=1_048_576)] = 8_192
    stored_mib: Annotated[int, Field(ge=16, le=MOST)] = STORED_MAX >> 20


class QueuesSection(Section):
    """`[queues]`: what the operator does to queues that were reported."""

    log: str = ""
    """A file that records these actions, with the queues' ids."""


class TimesSection(Section):
    expiry_check_s: Seconds = 2 * 3600
    idle_check_s: Seconds = 3600
    counters_save_s: Seconds = 60
    drain_s: Seconds = 30


class InformationSection(Section):
    """What the operator publishes about the server on its page; empty texts are not shown."""

    source_code: str = ""
    usage_conditions: str = ""
    condition_amendments: str = ""
    server_country: str = ""
    operator: str = ""
    operator_country: str = ""
    website: str = ""
    admin_simplex: str = ""
    admin_email: str = ""
    admin_pgp: str = ""
    admin_pgp_fingerprint: str = ""
    complaints_simplex: str = ""
    complaints_email: str = ""
    complaints_pgp: str = ""
    complaints_pgp_fingerprint: str = ""
    hosting: str = ""
    hosting_country: str = ""
    hosting_type: Literal["", "virtual", "dedicated", "colocation", "owned"] = ""


class RouterSection(Section):
    """`[router]`: in how many processes it works."""

    fronts: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = "auto"


class WebSection(Section):
    """The site that browsers see on the ports of the router."""

    certificate: str = ""
    key: str = ""
    acme: bool = False
    acme_email: str = ""
    acme_directory: Annotated[str, AfterValidator(_https)] = LETS_ENCRYPT
    acme_ca_file: str = ""
    folder: str = ""
    plain_port: Port | Literal["off"] = "off"
    proxies: list[NetworkText] = Field(default_factory=list)

    @model_validator(mode="after")
    def _complete(self) -> WebSection:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("both certificate and key expected, or neither")
        if self.acme and self.certificate:
            raise ValueError("either acme or files in certificate and key expected, not both")
        return self


class RouterMetricsSection(MetricsSection):
    port: Port = 9_464


class Settings(ServerSettings):
    """Everything that an operator can set."""

    address: AddressSection
    listen: ListenSection = ListenSection()
    identity: IdentitySection = IdentitySection()
    store: StoreSection = StoreSection()
    router: RouterSection = RouterSection()
    rules: RulesSection = RulesSection()
    limits: LimitsSection = LimitsSection()
    outbound: OutboundSection = OutboundSection()
    times: TimesSection = TimesSection()
    queues: QueuesSection = QueuesSection()
    information: InformationSection = InformationSection()
    web: WebSection = WebSection()
    metrics: RouterMetricsSection = RouterMetricsSection()

    def router_address(self, key_hash: bytes) -> RouterAddress:
        """What is handed out to users; it holds the password, if there is one."""
        hosts = tuple(Host(host) for host in self.address.hosts)
        port = "" if self.address.port == SMP_PORT else str(self.address.port)
        password = self.rules.password.encode() or None
        return RouterAddress(Scheme.SMP, Server(hosts, port, key_hash), password)


class RouterPlace(places.Place[Settings]):
    """A router's configuration and its folder."""

    word, title = "router", "router"
    model = Settings

    def __init__(self, file: Path, settings: Settings) -> None:
        super().__init__(file, settings)
        self.keys = self.folder / settings.identity.keys
        self.fingerprint = settings.identity.key_hash
        self.store = self.folder / settings.store.folder
        self.counters = self.folder / "counters.json"
        self.activity = self.folder / "activity.json"

    @property
    def known_as(self) -> str:
        return "" if self.fingerprint is None else b64(self.fingerprint)

    @property
    def store_folder(self) -> Path | None:
        return self.store if self.settings.store.kind == "lmdb" else None

    @property
    def schema(self) -> int:
        # Imported when needed: most commands need no tables.
        if self.settings.store.kind == "lmdb":
            from blindpost.router.tables import MIGRATIONS

            return len(MIGRATIONS)
        from blindpost.router.postgres_schema import SCHEMA

        return len(SCHEMA.migrations)

    @property
    def shared(self) -> Shared | None:
        store = self.settings.store
        if not store.standby:
            return None
        from blindpost.router.postgres_schema import SCHEMA
        from blindpost.store.ownership import Shared

        return Shared(store.dsn, SCHEMA, store.takeover_s, self.known_as)


CONFIG_NAME = RouterPlace.config_name()
