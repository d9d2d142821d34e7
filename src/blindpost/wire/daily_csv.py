"""The daily lines of the reference routers' statistics: comma-separated, no header, one line a day."""

from __future__ import annotations

import re
from dataclasses import dataclass

from blindpost.wire.errors import WireError
from blindpost.wire.scanner import Scanner, from_utf8
from blindpost.wire.value import Buffer, Value

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _names(names: str) -> list[str]:
    return names.split()


def _with(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(f"{prefix} {name}" for name in _names(names))


_PERIODS = "day week month"
_PROXY = "requests successes errorsConnect errorsCompat errorsOther"
_SERVICES = "assocNew assocDuplicate assocUpdated assocRemoved subCount subDuplicate subQueues subEnd"

ROUTER_COLUMNS: tuple[str, ...] = (
    *_names("qCreated qSecured qDeletedAll msgSent msgRecv"),
    *_with("activeQueues", _PERIODS),
    *_names("msgSentNtf msgRecvNtf"),
    *_with("activeQueuesNtf", _PERIODS),
    *_names("qCount msgCount msgExpired qDeletedNew qDeletedSecured"),
    *_with("pRelays", _PROXY),
    *_with("pRelaysOwn", _PROXY),
    *_with("pMsgFwds", _PROXY),
    *_with("pMsgFwdsOwn", _PROXY),
    *_names("pMsgFwdsRecv qSub qSubAuth qSubDuplicate qSubProhibited msgSentAuth msgSentQuota msgSentLarge"),
    *_names("msgNtfs msgNtfNoSub msgNtfLost"),
    "0",
    *_names("msgRecvGet msgGet msgGetNoMsg msgGetAuth msgGetDuplicate msgGetProhibited"),
    *("0", "0", "0"),
    *_names("queueCount ntfCreated ntfDeleted ntfSub ntfSubAuth ntfSubDuplicate notifierCount"),
    *_names("qDeletedAllB qSubAllB qSubEnd qSubEndB ntfDeletedB ntfSubB msgNtfsB msgNtfExpired ntfCount"),
    *_names("rcvServiceCount ntfServiceCount rcvServiceQueuesCount ntfServiceQueuesCount"),
    *_with("rcvServices", _SERVICES),
    *_with("ntfServices", _SERVICES),
    *_with("rslv", "reqs succ notFound resolverErrs disabled"),
)
"""What the 100 cells after the day mean, for a message router; a column named 0 is always 0."""

NOTIFIER_COLUMNS: tuple[str, ...] = (
    *_names("tknCreated tknVerified tknDeleted subCreated subDeleted ntfReceived ntfDelivered"),
    *_with("activeTokens", _PERIODS),
    *_with("activeSubs", _PERIODS),
    *_names("tknReplaced ntfFailed ntfCronDelivered ntfCronFailed"),
    *_names("ntfVrfQueued ntfVrfDelivered ntfVrfFailed ntfVrfInvalidTkn"),
)
"""What the 21 cells after the day mean, for a notification router."""


@dataclass(frozen=True, slots=True, repr=False)
class DailyRow(Value):
    """One day. Cells of weeks and months are None on days when no week or month ended."""

    day: str
    cells: tuple[int | None, ...]


def decode_daily_row(line: Buffer, columns: tuple[str, ...]) -> DailyRow:
    day, *written = from_utf8(line).split(",")
    row = DailyRow(day, tuple(_cell(text) for text in written))
    _check(row, columns)
    return row


def encode_daily_row(row: DailyRow, columns: tuple[str, ...]) -> bytes:
    _check(row, columns)
    cells = ("" if cell is None else str(cell) for cell in row.cells)
    return ",".join((row.day, *cells)).encode("ascii")


def _cell(text: str) -> int | None:
    if not text:
        return None
    scanner = Scanner(text)
    number = scanner.integer()
    scanner.end()
    return number


def _check(row: DailyRow, columns: tuple[str, ...]) -> None:
    if _DAY.fullmatch(row.day) is None:
        raise WireError("a day as YYYY-MM-DD expected")
    if len(row.cells) != len(columns):
        raise WireError(f"{len(columns)} cells after the day expected, not {len(row.cells)}")
    for column, cell in zip(columns, row.cells, strict=True):
        if cell is None and not column.endswith((" week", " month")):
            raise WireError(f"a number in column {column} expected")
        if column == "0" and cell != 0:
            raise WireError("0 in a column that is always 0 expected")
