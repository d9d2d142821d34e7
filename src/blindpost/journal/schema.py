"""The one schema of everything that is recorded: which tables there are, in which tier, with which columns.

Nothing here knows Parquet or Spark; the writers and the pipeline build their own schemas from these values.
The schema only grows: a later version may add tables, nullable columns at the end of a table and legal values
at the end of a list. A reader takes a file of an earlier version (columns it does not have are null) and sets
a file of a later version aside.

Times are integers with their unit at the end of the name, always UTC since 1970. Every table names its `key`:
two rows with the same key are one row that was written twice (a file and its compaction may both be visible).

The tiers, and where they may go:

P  production, always on: sums per minute about a whole server. No row about a queue, a user, an address or a
   session; no hash of ids, since the XOR of two consecutive ones is the MD5 of an id. May leave the host.
S  state: what a router keeps anyway, without keys and messages. Stays in the router's trust zone.
L  lab: whole events of load tests and of the operator's own canaries, kept for 7 days, blinded by day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from blindpost.wire.daily_csv import ROUTER_COLUMNS

SCHEMA_VERSION = 2
"""The highest version of any table."""


class Tier(Enum):
    """Where a table may be; also the name of its folder."""

    PRODUCTION = "P"
    STATE = "S"
    LAB = "L"


class Type(Enum):
    """The type of a column, with the names that Spark and Arrow share."""

    STRING = "string"
    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    BINARY = "binary"
    INT64_LIST = "list<int64>"
    FLOAT64_LIST = "list<float64>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `values`, where there are any, are the only legal ones and are added to at the end."""

    name: str
    type: Type
    doc: str
    nullable: bool = False
    since: int = 1
    """The version of the table that has it first."""
    values: tuple[str, ...] = ()
    unlike: bool = False
    """Nearly every row has a different value: files store them without a dictionary."""


@dataclass(frozen=True, slots=True)
class Table:
    """One data set: its columns in order, and which of them identify a row."""

    name: str
    tier: Tier
    doc: str
    key: tuple[str, ...]
    time: str
    """The column whose UTC day is the partition `date=YYYY-MM-DD`; its unit is the end of its name."""
    columns: tuple[Column, ...]
    version: int = 1
    days_kept: int | None = None
    """How many days files are kept by default; None: forever."""
    by_name: dict[str, Column] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {column.name: column for column in self.columns})
        names = [column.name for column in self.columns]
        if len(self.by_name) != len(names) or not {*self.key, self.time} <= self.by_name.keys():
            raise ValueError(f"table {self.name}: a column is there twice, or a key has no column")
        if any(column.since > 1 and not column.nullable for column in self.columns):
            raise ValueError(f"table {self.name}: a column that was added later must be nullable")
        if self.columns != tuple(sorted(self.columns, key=lambda column: column.since)):
            raise ValueError(f"table {self.name}: later columns come after earlier ones")
        if self.version != max(column.since for column in self.columns):
            raise ValueError(f"table {self.name}: its version is that of its youngest column")

    def with_dictionary(self, names: Sequence[str]) -> bool | list[str]:
        """Which of these columns get a dictionary, as Arrow's writer takes it."""
        unlike = {column.name for column in self.columns if column.unlike}
        return [name for name in names if name not in unlike] if unlike else True

    def at(self, version: int) -> tuple[Column, ...]:
        """The columns that a file of this version has."""
        return tuple(column for column in self.columns if column.since <= version)


DAYS_LAB, DAYS_MINUTES = 7, 30

ROLES = ("smp", "ntf", "ds", "canary", "load")
"""Which program wrote: message router, notification router, delivery service, canary, load test."""

SERVICE_ROLES = ("messaging", "notifier")
"""The id by which a queue belongs to a service: recipient id (SUBS) or notifier id (NSUBS)."""

SIDES = ("router", "subscriber")

_ROUTER = Column(
    "router", Type.STRING, "The server's name, as its operator chose it; the same after a restart."
)
_ROLE = Column("role", Type.STRING, "Which program wrote this.", values=ROLES)
_BOOT = Column("boot", Type.STRING, "16 hexadecimal digits, random, new at each start of the process.")
_SEQ = Column(
    "seq", Type.INT64, "Number of the record in its boot, from 0, without gaps unless something is lost."
)
_MINUTE = Column("minute_s", Type.INT64, "Start of the minute that the record is about, in Unix seconds.")
_WRITER = (_ROUTER, _ROLE, _BOOT, _SEQ)
_PER_MINUTE = (*_WRITER, _MINUTE)
_RECORD = ("router", "boot", "seq")


def _minutes(name: str, doc: str, key: tuple[str, ...], *columns: Column) -> Table:
    """A table of tier P with rows for each minute."""
    return Table(
        name,
        Tier.PRODUCTION,
        doc,
        (*_RECORD, *key),
        "minute_s",
        (*_PER_MINUTE, *columns),
        version=max((column.since for column in columns), default=1),
        days_kept=DAYS_MINUTES,
    )


P_BOOTS = _minutes(
    "p_boots",
    "A server started: one row, in its record 0.",
    (),
    Column("started_s", Type.INT64, "When the process started, in Unix seconds."),
    Column("program", Type.STRING, "Name and version of the program."),
)

P_COUNTERS = _minutes(
    "p_counters",
    "By how much counters grew in this minute. A counter that did not grow has no row. The sum over all "
    "records of a boot is what the counter grew by since the process started; the last record of a boot "
    "that was killed is lost. Names are those of the server's meters: `qCreated`, `rcvServices.assocNew`, "
    "`enqueued` ...",
    ("name",),
    Column("name", Type.STRING, "Name of the counter."),
    Column("value", Type.INT64, "By how much it grew; a taken-back event may make it negative."),
)

P_GAUGES = _minutes(
    "p_gauges",
    "What there was at the end of the minute. All gauges of a server are in every record of it.",
    ("name",),
    Column(
        "name", Type.STRING, "Name of the gauge; those of `DAILY_GAUGES` are written by every message router."
    ),
    Column("value", Type.FLOAT64, "The level."),
)

P_HISTOGRAMS = _minutes(
    "p_histograms",
    "How many observations of this minute fell into which bucket. Without observations there is no row.",
    ("name",),
    Column("name", Type.STRING, "What was measured, with its unit: `ack_s`, `turn_s`, `wait_s` ..."),
    Column("bounds", Type.FLOAT64_LIST, "Upper bounds of the buckets, ascending, each inclusive."),
    Column(
        "counts",
        Type.INT64_LIST,
        "Observations in this minute, one place more than bounds: above all of them.",
    ),
    Column("total", Type.FLOAT64, "Sum of the observations of this minute."),
    Column("maximum", Type.FLOAT64, "The largest observation since the process started."),
)

SKETCHES = ("queues", "queues_notify", "tokens", "subscriptions")

P_SKETCHES = _minutes(
    "p_sketches",
    "HyperLogLog sketches (Apache DataSketches, HLL_8, lg k 12) of what was in use on a day so far; "
    "written once an hour and at the end of the day, each holds the earlier ones of its day. Values are "
    "hashed under a salt of this router that never leaves it, so sketches of two routers say nothing "
    "about a common queue: merge only those of one router. Union over days counts each queue once.",
    ("name", "day_s"),
    Column("name", Type.STRING, "What was counted.", values=SKETCHES),
    Column("day_s", Type.INT64, "Start of the UTC day that the sketch is about, in Unix seconds."),
    Column(
        "sketch", Type.BINARY, "The compact serialization, for `hll_union_agg` and `hll_sketch_estimate`."
    ),
)

P_SERVICES = _minutes(
    "p_services",
    "A service subscribed with SUBS or NSUBS, and both sides agreed or did not. Nothing says which "
    "service: the ordinal counts services from 0 in the order in which they came since the process "
    "started.",
    ("ordinal", "service_role"),
    Column("ordinal", Type.INT32, "Which service, within this boot only."),
    Column("service_role", Type.STRING, "What it subscribed to.", values=SERVICE_ROLES),
    Column(
        "agreed", Type.BOOL, "Whether count and hash were the same on both sides, each time in this minute."
    ),
    Column("times", Type.INT32, "How often it subscribed in this minute."),
)

TOKEN_STATES = ("NEW", "REGISTERED", "INVALID", "CONFIRMED", "ACTIVE", "EXPIRED")
INVALID_REASONS = ("", "BAD", "TOPIC", "EXPIRED", "UNREGISTERED")

P_TOKEN_TRANSITIONS = _minutes(
    "p_token_transitions",
    "How many device tokens of a notification router went from one state to another.",
    ("from_state", "to_state", "reason"),
    Column(
        "from_state",
        Type.STRING,
        "State before; empty for a token that was created.",
        values=("", *TOKEN_STATES),
    ),
    Column(
        "to_state",
        Type.STRING,
        "State after; empty for a token that was deleted.",
        values=("", *TOKEN_STATES),
    ),
    Column(
        "reason", Type.STRING, "Why it became INVALID; empty otherwise or unknown.", values=INVALID_REASONS
    ),
    Column("value", Type.INT64, "How many."),
)

NOTIFICATION_STATES = (
    "received",
    "stored",
    "pushed",
    "retried",
    "accepted",
    "replaced",
    "expired",
    "token_invalid",
    "token_inactive",
    "no_token",
    "refused",
    "failed",
    "dropped",
)
"""What happens to a notification: `received` from a message router, `stored` for its token, `pushed` to the
provider, maybe `retried`; then exactly one of the terminal states."""

TERMINAL_STATES = NOTIFICATION_STATES[NOTIFICATION_STATES.index("accepted") :]
"""`accepted` by the provider; `replaced` by a newer one of its queue before it was pushed; `expired` while it
waited; `token_invalid`: the provider says so; `token_inactive`: the token takes none now; `no_token`: its
subscription is gone; `refused` by the provider for another reason; `failed` after the last retry; `dropped`
because a bound was reached."""

PROVIDERS = ("apns", "webpush", "test", "none")
"""Apple, Web Push, the null provider of devices that test a router; none: for no device of the router."""

P_FUNNEL = _minutes(
    "p_funnel",
    "How many notifications of a notification router reached which state.",
    ("state", "reason", "provider"),
    Column("state", Type.STRING, "The state that was entered.", values=NOTIFICATION_STATES),
    Column("reason", Type.STRING, "The provider's word where it gave one, else empty."),
    Column("value", Type.INT64, "How many."),
    Column(
        "provider",
        Type.STRING,
        "By which kind of push provider; null in files that do not say.",
        nullable=True,
        since=2,
        values=PROVIDERS,
    ),
)

P_DAY = Table(
    "p_day",
    Tier.PRODUCTION,
    "One day of one boot, made from the minutes of that day when it is over: what stays when the minutes "
    "are deleted. Levels are those of the last minute. Several boots of a day: sums add, of levels the "
    "one with the latest `last_minute_s` counts.",
    ("router", "boot", "day_s", "kind", "name"),
    "day_s",
    (
        _ROUTER,
        _ROLE,
        _BOOT,
        Column("day_s", Type.INT64, "Start of the UTC day, in Unix seconds."),
        Column(
            "kind", Type.STRING, "Sum of a counter, or last level of a gauge.", values=("counter", "gauge")
        ),
        Column("name", Type.STRING, "As in p_counters and p_gauges."),
        Column("value", Type.FLOAT64, "The sum or the level; whole numbers are exact up to 2^53."),
        Column("minutes", Type.INT32, "How many minutes of the day the boot wrote."),
        Column("last_minute_s", Type.INT64, "The last of them, in Unix seconds."),
    ),
)

P_DAY_SKETCHES = Table(
    "p_day_sketches",
    Tier.PRODUCTION,
    "The last sketch of a day, of each boot that wrote one; union of the rows of one router and day is "
    "the day.",
    ("router", "boot", "day_s", "name"),
    "day_s",
    (
        _ROUTER,
        _ROLE,
        _BOOT,
        Column("day_s", Type.INT64, "Start of the UTC day, in Unix seconds."),
        Column("name", Type.STRING, "What was counted.", values=SKETCHES),
        Column("sketch", Type.BINARY, "As in p_sketches."),
    ),
)

_SNAPSHOT = Column("snapshot", Type.STRING, "Which export: 16 hexadecimal digits, random.")
_SIDE = Column(
    "side", Type.STRING, "Whose state: the router's, or that of who subscribes through it.", values=SIDES
)
_AT = Column(
    "at_s", Type.INT64, "When the export began, in Unix seconds; the same in all rows of a snapshot."
)
_STATE = (_SNAPSHOT, _ROUTER, _SIDE, _AT)
_HIGH = Column(
    "h_hi", Type.INT64, "First 8 bytes of the MD5 of the queue id, big-endian, signed.", unlike=True
)
_LOW = Column("h_lo", Type.INT64, "Last 8 bytes of the MD5 of the queue id, big-endian, signed.", unlike=True)

S_QUEUES = Table(
    "s_queues",
    Tier.STATE,
    "Every queue, without keys and messages: one row by its recipient id and, if it has a notifier, one "
    "by its notifier id. Nothing in the table says which two rows are one queue. A subscriber writes the "
    "queues that it believes to be its own on that router; what it does not know is null.",
    ("snapshot", "router", "side", "role", "queue_id"),
    "at_s",
    (
        *_STATE,
        Column("role", Type.STRING, "By which id.", values=SERVICE_ROLES),
        Column(
            "queue_id",
            Type.BINARY,
            "Recipient id or notifier id: what SUB or NSUB would name to repair a drift.",
            unlike=True,
        ),
        _HIGH,
        _LOW,
        Column("service_id", Type.BINARY, "The service it belongs to; null for none.", nullable=True),
        Column(
            "status", Type.STRING, "State of the queue.", nullable=True, values=("active", "off", "blocked")
        ),
        Column("mode", Type.STRING, "What it is for.", nullable=True, values=("messaging", "contact")),
        Column("secured", Type.BOOL, "Whether a sender has secured it.", nullable=True),
        Column("waiting", Type.INT32, "Messages (or notifications) that wait in it.", nullable=True),
        Column(
            "oldest_s", Type.INT64, "Age of the oldest that waits, at `at_s`; null for none.", nullable=True
        ),
        Column("full", Type.BOOL, "Whether it takes no message until it is empty.", nullable=True),
        Column("updated_day_s", Type.INT64, "Day of its last use, in Unix seconds.", nullable=True),
    ),
    days_kept=DAYS_LAB,
)

S_SERVICE_CLAIMS = Table(
    "s_service_claims",
    Tier.STATE,
    "What a side says about a service's queues: their count and the XOR of the MD5 of their ids, in two "
    "lanes.",
    ("snapshot", "router", "side", "service_id", "role"),
    "at_s",
    (
        *_STATE,
        Column("service_id", Type.BINARY, "The service."),
        Column("role", Type.STRING, "By which ids.", values=SERVICE_ROLES),
        Column("count", Type.INT64, "How many queues."),
        Column("h_hi", Type.INT64, "First 8 bytes of the ids hash, big-endian, signed."),
        Column("h_lo", Type.INT64, "Last 8 bytes of the ids hash, big-endian, signed."),
    ),
    days_kept=DAYS_LAB,
)

S_SNAPSHOT = Table(
    "s_snapshot",
    Tier.STATE,
    "The manifest of an export, written last: a snapshot without it is not complete and is not read.",
    ("snapshot", "router", "side", "table"),
    "at_s",
    (
        *_STATE,
        Column("table", Type.STRING, "A table of the snapshot.", values=("s_queues", "s_service_claims")),
        Column("rows", Type.INT64, "How many rows the snapshot has in it."),
        Column("finished_s", Type.INT64, "When the export ended; the router went on in between."),
        Column(
            "online",
            Type.BOOL,
            "Whether the router ran meanwhile: then claims and queues may differ a little.",
        ),
    ),
    days_kept=DAYS_LAB,
)

S_MIGRATION = Table(
    "s_migration",
    Tier.STATE,
    "The certificate of an import: counts and hashes, independent of order, of what was read and what is "
    "stored.",
    ("migration", "router", "side", "name", "service_id", "role"),
    "at_s",
    (
        Column("migration", Type.STRING, "Which import: 16 hexadecimal digits, random."),
        _ROUTER,
        Column("side", Type.STRING, "Whether it is about source or result.", values=("source", "result")),
        Column("at_s", Type.INT64, "When the import was found complete, in Unix seconds."),
        Column("name", Type.STRING, "What was counted: `queues`, `messages`, `service` ..."),
        Column(
            "service_id", Type.BINARY, "The service, where `name` is `service`; else null.", nullable=True
        ),
        Column("role", Type.STRING, "By which ids, where it is one.", nullable=True, values=SERVICE_ROLES),
        Column("count", Type.INT64, "How many; null where only a hash is known.", nullable=True),
        Column("ids_hash", Type.STRING, "XOR of the MD5 of their ids, hexadecimal, if known.", nullable=True),
        Column(
            "content_hash",
            Type.STRING,
            "XOR of the SHA-256 of contents, hexadecimal, if known.",
            nullable=True,
        ),
    ),
)

_TIME = Column("time_us", Type.INT64, "When it happened, in Unix microseconds, by the clock of who wrote it.")
_EVENT = (*_WRITER, _TIME)


def _events(name: str, doc: str, *columns: Column) -> Table:
    """A table of tier L: one row per event, written as frames of fixed width."""
    return Table(name, Tier.LAB, doc, _RECORD, "time_us", (*_EVENT, *columns), days_kept=DAYS_LAB)


MESSAGE_EVENTS = ("sent", "accepted", "refused", "delivered", "acked", "duplicate", "lost")
INTEGRITY = ("", "ok", "skipped", "bad_id", "bad_hash", "duplicate")

L_MESSAGES = _events(
    "l_messages",
    "What happened to a message of a canary or a load test: `sent` when SEND left, `accepted` when its OK "
    "came, `refused` when something else came, `delivered` when MSG came, `acked` when the OK to ACK "
    "came, `duplicate` when it came again, `lost` when its time was over.",
    Column("from_router", Type.STRING, "Where the sender is connected."),
    Column("to_router", Type.STRING, "Where the queue is."),
    Column("connection", Type.INT64, "Which connection, blinded by the day of `sent`."),
    Column("number", Type.INT64, "Number of the message in its connection."),
    Column("event", Type.STRING, "What happened.", values=MESSAGE_EVENTS),
    Column(
        "integrity", Type.STRING, "What the recipient's agent said of its order and hash.", values=INTEGRITY
    ),
    Column("size", Type.INT32, "Bytes of the message."),
)

L_NOTIFICATIONS = _events(
    "l_notifications",
    "What happened to a notification to a device of a canary or a load test; ids are blinded otherwise than "
    "in `l_messages`.",
    Column("token", Type.INT64, "Which device token, blinded by the day."),
    Column("notification", Type.INT64, "Which notification, blinded by the day of `received`."),
    Column("state", Type.STRING, "The state that it entered.", values=NOTIFICATION_STATES),
)

DELIVERY_EVENTS = ("enqueued", "waited", "woken", "timed_out", "leased", "put_back", "acked", "expired")

L_DELIVERY = _events(
    "l_delivery",
    "What happened in queues of a delivery service that belong to canaries and load tests: a payload was "
    "`enqueued`, `leased` to a caller (by a fetch or a lease), `put_back` untouched, taken away after its "
    "time (`expired`), `acked` when it left; a call `waited`, was `woken` with payloads, or `timed_out`.",
    Column("queue", Type.INT64, "Which queue, blinded by the day."),
    Column(
        "payload", Type.INT64, "Which payload of it, blinded by the day; 0 where the event is about a wait."
    ),
    Column("event", Type.STRING, "What happened.", values=DELIVERY_EVENTS),
    Column("depth", Type.INT32, "Payloads in the queue after it."),
    Column(
        "age_us",
        Type.INT64,
        "Since the payload came (or was first seen by this process), or since the wait began.",
    ),
)

ALL_TABLES: tuple[Table, ...] = (
    P_BOOTS,
    P_COUNTERS,
    P_GAUGES,
    P_HISTOGRAMS,
    P_SKETCHES,
    P_SERVICES,
    P_TOKEN_TRANSITIONS,
    P_FUNNEL,
    P_DAY,
    P_DAY_SKETCHES,
    S_QUEUES,
    S_SERVICE_CLAIMS,
    S_SNAPSHOT,
    S_MIGRATION,
    L_MESSAGES,
    L_NOTIFICATIONS,
    L_DELIVERY,
)
TABLES: dict[str, Table] = {table.name: table for table in ALL_TABLES}

METADATA_TABLE, METADATA_VERSION = b"blindpost.table", b"blindpost.version"
"""Keys of a sealed file's metadata: the name of its table, and the table's version when it was written."""


class Source(Enum):
    """Where the number in a column of the reference's daily statistics comes from."""

    COUNTER = "counter"
    """Sum of `p_counters` over the day."""
    GAUGE = "gauge"
    """Last value of `p_gauges` on the day."""
    ACTIVE = "active"
    """Estimate of the union of `p_sketches` over the days of the period."""
    ZERO = "zero"
    """Always 0, in the reference or because this router has no such thing."""


@dataclass(frozen=True, slots=True)
class DailyColumn:
    """One of the 101 columns of the reference's daily statistics."""

    position: int
    """From 1; column 0 is the day, YYYY-MM-DD."""
    name: str
    """As the reference calls it; those that are always 0 have their position in the name."""
    source: Source
    metric: str = ""
    """Name of the counter, gauge or sketch."""
    days: int = 1
    """Over how many days, up to and including this one."""


DAILY_GAUGES = {
    "qCount": "queues",
    "msgCount": "messages",
    "queueCount": "queues",
    "notifierCount": "notifiers",
    "ntfCount": "notifications",
    "rcvServiceCount": "services_messaging",
    "ntfServiceCount": "services_notifier",
    "rcvServiceQueuesCount": "service_queues_messaging",
    "ntfServiceQueuesCount": "service_queues_notifier",
}
"""The gauge that each column of levels shows."""

_ACTIVE = {"activeQueues": "queues", "activeQueuesNtf": "queues_notify"}
_PERIOD_DAYS = {"day": 1, "week": 7, "month": 30}
_NOT_COUNTED = ("pRelaysOwn ", "pMsgFwdsOwn ", "rslv ")


def _daily(position: int, name: str) -> DailyColumn:
    first, _, last = name.partition(" ")
    if name == "0":
        return DailyColumn(position, f"zero{position}", Source.ZERO)
    if first in _ACTIVE:
        return DailyColumn(position, name, Source.ACTIVE, _ACTIVE[first], _PERIOD_DAYS[last])
    if name in DAILY_GAUGES:
        return DailyColumn(position, name, Source.GAUGE, DAILY_GAUGES[name])
    if name.startswith(_NOT_COUNTED):
        return DailyColumn(position, name, Source.ZERO)
    return DailyColumn(position, name, Source.COUNTER, name.replace(" ", "."))


DAILY_COLUMNS: tuple[DailyColumn, ...] = tuple(
    _daily(position, name) for position, name in enumerate(ROUTER_COLUMNS, start=1)
)
"""The 100 columns after the day."""
