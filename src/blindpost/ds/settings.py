"""The configuration file of a delivery service: what it may contain, and the messages for mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from blindpost.ds.model import DS_PORT, KEY_SIZE, PAYLOAD_BYTES_MAX, DsRules
from blindpost.serving import place as places
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file, telling, write_file
from blindpost.serving.journal import JournalSection, hexadecimal
from blindpost.serving.place import ServerSettings
from blindpost.serving.sections import (
    EVERYWHERE,
    Count,
    Database,
    Durability,
    Listening,
    MetricsSection,
    Port,
    Positive,
    SharedSection,
    Taking,
)
from blindpost.serving.settings import Section
from blindpost.store.file_locks import in_turn

if TYPE_CHECKING:
    from blindpost.store.ownership import Shared

_DEFAULT = DsRules()
BYTES_MOST = 10**18

Bytes = Annotated[int, Field(ge=PAYLOAD_BYTES_MAX, le=BYTES_MOST)]


class ListenSection(Taking):
    address: Listening = EVERYWHERE
    tls_port: Port | Literal["off"] = DS_PORT
    quic_port: Port | Literal["off"] = DS_PORT
    connections: Count = 10_000


class IdentitySection(Section):
    certificate: str = "ds.crt"
    key: str = "ds.key"


class AuthSection(Section):
    mode: Literal["tokens", "open"] = "tokens"
    tokens: str = "tokens"


class StoreSection(SharedSection):
    folder: str = "store"
    database: Database = ""
    """The address of a PostgreSQL database in place of the folder."""
    durability: Durability = "full"

    @model_validator(mode="after")
    def _complete(self) -> StoreSection:
        self.demand_shareable(in_database=bool(self.database))
        return self


class LimitsSection(Section):
    """`DsRules`, as the file names them."""

    queue_payloads: Count = _DEFAULT.queue_payloads
    queue_bytes: Bytes = _DEFAULT.queue_bytes
    total_payloads: Count = _DEFAULT.total_payloads
    total_bytes: Bytes = _DEFAULT.total_bytes
    key_packages: Count = _DEFAULT.key_packages
    sender_payloads: Count = _DEFAULT.sender_payloads
    sender_bytes: Bytes = _DEFAULT.sender_bytes
    taken_packages: Count = _DEFAULT.taken_packages
    taken_packages_of_one: Count = _DEFAULT.taken_packages_of_one
    response_bytes: Annotated[int, Field(ge=PAYLOAD_BYTES_MAX, le=48 << 20)] = _DEFAULT.response_bytes
    wait_s_max: Positive = _DEFAULT.wait_s_max
    waits_per_connection: Count = _DEFAULT.waits_per_connection
    waits: Count = _DEFAULT.waits
    hold_s: Positive = _DEFAULT.hold_s
    lease_s: Positive = _DEFAULT.lease_s
    lease_s_max: Positive = _DEFAULT.lease_s_max


class DsJournalSection(JournalSection):
    lab: list[Annotated[str, AfterValidator(hexadecimal(KEY_SIZE))]] = Field(default_factory=list)
    """Recipient keys of the operator's own canaries and load tests."""


class DsMetricsSection(MetricsSection):
    port: Port = 9_466


class Settings(ServerSettings):
    """Everything that an operator can set."""

    listen: ListenSection = ListenSection()
    identity: IdentitySection = IdentitySection()
    auth: AuthSection = AuthSection()
    store: StoreSection = StoreSection()
    limits: LimitsSection = LimitsSection()
    metrics: DsMetricsSection = DsMetricsSection()
    journal: DsJournalSection = DsJournalSection()

    def rules(self) -> DsRules:
        return DsRules(**self.limits.model_dump())


class DsPlace(places.Place[Settings]):
    """A delivery service's configuration and its folder."""

    word, title = "ds", "delivery service"
    model = Settings

    def __init__(self, file: Path, settings: Settings) -> None:
        super().__init__(file, settings)
        self.certificate = self.folder / settings.identity.certificate
        self.key = self.folder / settings.identity.key
        self.tokens = self.folder / settings.auth.tokens
        self.quotas = self.folder / "quotas.json"
        self.store = self.folder / settings.store.folder

    @property
    def store_folder(self) -> Path | None:
        return None if self.settings.store.database else self.store

    @property
    def schema(self) -> int:
        # Imported when needed: most commands need no tables.
        if not self.settings.store.database:
            from blindpost.ds.tables import MIGRATIONS

            return len(MIGRATIONS)
        from blindpost.ds.tables_postgres import SCHEMA

        return len(SCHEMA.migrations)

    @property
    def shared(self) -> Shared | None:
        store = self.settings.store
        if not store.standby:
            return None
        from blindpost.ds.tables_postgres import SCHEMA
        from blindpost.store.ownership import Shared

        return Shared(store.database, SCHEMA, store.takeover_s)


CONFIG_NAME = DsPlace.config_name()


def without_identity(text: str, identity: bytes) -> tuple[str, int]:
    """The text of a token file without those of one identity, and how many were removed."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if line.partition("#")[0].lower().split()[1:] != [identity.hex()]]
    return "".join(kept), len(lines) - len(kept)


def change_tokens(file: Path, change: Callable[[str], str]) -> None:
    """Replace a token file by what `change` makes of its text.

    Commands that do so at the same time take turns: otherwise one would lose what the other gave out, or
    bring back what it revoked.
    """
    with telling(file), in_turn(file.with_name(f".{file.name}.lock")):
        read_tokens(file)
        before = _text_of(file)
        write_file(file, change(before if before.endswith("\n") or not before else f"{before}\n").encode())


def read_tokens(file: Path) -> dict[bytes, bytes]:
    """Identity keys by the SHA-256 of their tokens, one hexadecimal pair on each line."""
    found: dict[bytes, bytes] = {}
    for number, line in enumerate(_text_of(file).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            digest, identity = map(bytes.fromhex, words)
        except ValueError:
            digest = identity = b""
        if len(digest) != 32 or len(identity) != 32:
            raise OperatorError(
                f"{file}, line {number}: the SHA-256 of a token and an identity key expected, in hexadecimal"
            )
        found[digest] = identity
    return found


def _text_of(file: Path) -> str:
    """Empty if there is no file: then nobody has a token."""
    if not file.exists():
        return ""
    try:
        return read_file(file).decode()
    except UnicodeDecodeError as error:
        raise OperatorError(f"{file}: a text in UTF-8 expected. Restore it from a backup.") from error
