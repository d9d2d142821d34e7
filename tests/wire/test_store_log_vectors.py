"""Every vector of `store_log.json`: lines and files that the reference wrote, and what it reads from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blindpost.wire.daily_csv import (
    ROUTER_COLUMNS,
)
from blindpost.wire.errors import WireError
from blindpost.wire.keys import PublicKey
from blindpost.wire.message_log import (
    JournalPosition,
    JournalState,
    MessageLine,
    NotificationLine,
    SavedMessage,
    SavedQuota,
    decode_journal_message,
    decode_journal_state,
    decode_message_line,
    decode_notification_line,
    encode_journal_message,
    encode_message_line,
    encode_notification_line,
)
from blindpost.wire.smp.errors import BLOCKED, BlockingReason, Notice
from blindpost.wire.smp.handshake import ServiceRole
from blindpost.wire.smp.values import LinkData, QueueMode
from blindpost.wire.store_log import (
    Activity,
    AddNotifier,
    BlockQueue,
    CreateLink,
    CreateQueue,
    DeleteLink,
    DeleteNotifier,
    DeleteQueue,
    NewService,
    NotifierRecord,
    Party,
    QueueService,
    SecureQueue,
    StoreRecord,
    SuspendQueue,
    UnblockQueue,
    UpdateKeys,
    UpdateTime,
    decode_store_line,
    encode_store_line,
)
from blindpost.wire.text import unb64
from tests.support.wire.journal_states import encode_journal_state
from tests.support.wire.long_values import ramp
from tests.support.wire.vectors import named, vectors

FILE = "store_log.json"

QUEUE_ID = ramp(0xA0, 24)
NOTIFIER_ID = ramp(0xC0, 24)
SERVICE_ID = ramp(0xD0, 24)
LINK_ID = ramp(0x30, 24)
MSG_ID = ramp(0x50, 24)
DAY = 1_699_920_000
LINK_DATA = LinkData(ramp(0x11, 10), ramp(0x22, 12))


def spki(text: str) -> PublicKey:
    return PublicKey.from_spki(unb64(text))


RECIPIENT_KEY = spki("MCowBQYDK2VwAyEAA6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=")
RECIPIENT_KEY_448 = spki(
    "MEMwBQYDK2VxAzoAGNCnDkKnQt-1YSeYkzhQYde02tj2_u1HkeqrZrL0pPAvwJRiqL-xhC0LrGDoobPlW6JAfzMibzgA"
)
SENDER_KEY = spki("MCowBQYDK2VwAyEANVi6HvD4DxA2HpFtF2m0Mzkq2Oi_fePLwYtIl68Z2fY=")
SENDER_KEY_X = spki("MCowBQYDK2VuAyEAZ13VdO13iTELPS52gfN5C0ZsdzsVIf7PNld5WDcepS8=")
NOTIFIER_KEY = spki("MCowBQYDK2VwAyEAiC0Oo7KGTnpYfz5pjOpEWZmDEuZV4F-l6LURnYuqyM0=")

NOTIFIER = NotifierRecord(NOTIFIER_ID, NOTIFIER_KEY, unb64("PMlL9NZFPaG2NBtRQukW7fi2olqClN3apzZXEBWtlFA="))
SERVED_NOTIFIER = replace(NOTIFIER, service_id=SERVICE_ID)
MINIMAL = CreateQueue(
    QUEUE_ID,
    (RECIPIENT_KEY,),
    unb64("qE3Hw8jwWLGy3EzR6bXcCnmH-ItqlWTN4zkfxCEVnnc="),
    ramp(0xB8, 24),
)
MESSAGING = replace(MINIMAL, mode=QueueMode.MESSAGING)
CONTACT = replace(MINIMAL, mode=QueueMode.CONTACT)
BLOCKED_WITH_NOTICE = BLOCKED(BlockingReason.CONTENT, Notice(86400))
UNREADABLE = "CREATE blocked with notice and service (cannot be read back)"

RECORDS: dict[str, StoreRecord] = {
    "CREATE minimal (mode unknown)": MINIMAL,
    "CREATE messaging": replace(MESSAGING, updated_at=DAY),
    "CREATE contact, two recipient keys, sender key": replace(
        CONTACT, recipient_keys=(RECIPIENT_KEY, RECIPIENT_KEY_448), sender_key=SENDER_KEY_X
    ),
    "CREATE link data": replace(CONTACT, link=(LINK_ID, LINK_DATA)),
    "CREATE notifier": replace(MESSAGING, notifier=NOTIFIER),
    "CREATE notifier with service": replace(MESSAGING, notifier=SERVED_NOTIFIER),
    "CREATE off": replace(MESSAGING, status=Activity.OFF),
    "CREATE blocked": replace(MESSAGING, status=BLOCKED(BlockingReason.SPAM)),
    "CREATE blocked with notice": replace(MESSAGING, status=BLOCKED_WITH_NOTICE),
    "CREATE everything": replace(
        CONTACT,
        sender_key=SENDER_KEY,
        link=(LINK_ID, LINK_DATA),
        notifier=SERVED_NOTIFIER,
        updated_at=DAY,
        status=Activity.OFF,
        service_id=SERVICE_ID,
    ),
    UNREADABLE: replace(MESSAGING, status=BLOCKED_WITH_NOTICE, service_id=SERVICE_ID),
    "LINK": CreateLink(QUEUE_ID, LINK_ID, LINK_DATA),
    "LDELETE": DeleteLink(QUEUE_ID),
    "SECURE": SecureQueue(QUEUE_ID, SENDER_KEY),
    "KEYS": UpdateKeys(QUEUE_ID, (RECIPIENT_KEY, SENDER_KEY_X)),
    "NOTIFIER": AddNotifier(QUEUE_ID, NOTIFIER),
    "NOTIFIER with service": AddNotifier(QUEUE_ID, SERVED_NOTIFIER),
    "SUSPEND": SuspendQueue(QUEUE_ID),
    "BLOCK spam": BlockQueue(QUEUE_ID, BLOCKED(BlockingReason.SPAM)),
    "BLOCK content with notice": BlockQueue(QUEUE_ID, BLOCKED_WITH_NOTICE),
    "BLOCK spam, indefinite notice": BlockQueue(QUEUE_ID, BLOCKED(BlockingReason.SPAM, Notice(None))),
    "UNBLOCK": UnblockQueue(QUEUE_ID),
    "DELETE": DeleteQueue(QUEUE_ID),
    "NDELETE": DeleteNotifier(QUEUE_ID),
    "TIME": UpdateTime(QUEUE_ID, DAY),
    "QUEUE_SERVICE recipient": QueueService(QUEUE_ID, Party.RECIPIENT, SERVICE_ID),
    "QUEUE_SERVICE recipient removed": QueueService(QUEUE_ID, Party.RECIPIENT, None),
    "QUEUE_SERVICE notifier": QueueService(QUEUE_ID, Party.NOTIFIER, SERVICE_ID),
}
SERVICES = {
    "NEW_SERVICE": (ServiceRole.MESSAGING, 1),
    "NEW_SERVICE notifier, chain of two": (ServiceRole.NOTIFIER, 2),
}


@pytest.mark.parametrize("entry", vectors(FILE, "store_log"), ids=named)
def test_store_log(entry: dict[str, Any]) -> None:
    line, name = entry["line"].encode(), entry["name"]
    if name in SERVICES:
        record = decode_store_line(line)
        assert isinstance(record, NewService)
        role, certificates = SERVICES[name]
        assert (record.service_id, record.role, record.created_at) == (SERVICE_ID, role, DAY)
        assert len(record.chain) == certificates
        assert all(certificate.startswith(b"\x30\x81") for certificate in record.chain)
        assert len(record.cert_hash) == 32
        assert encode_store_line(record) == line
        return
    assert encode_store_line(RECORDS[name]) == line
    if entry["read_back"] is True:
        assert decode_store_line(line) == RECORDS[name]
    else:
        assert entry["read_back"]["error"]
        assert name == UNREADABLE
        with pytest.raises(WireError):
            decode_store_line(line)


def check_parsed(entry: dict[str, Any], rewritten: Callable[[bytes], bytes]) -> None:
    """The line reads and is rewritten as recorded, or is refused."""
    if "error" in entry["result"]:
        with pytest.raises(WireError):
            rewritten(entry["line"].encode())
    else:
        assert rewritten(entry["line"].encode()) == entry["result"]["written_as"].encode()


@pytest.mark.parametrize("entry", vectors(FILE, "store_log_parse"), ids=named)
def test_store_log_read(entry: dict[str, Any]) -> None:
    check_parsed(entry, lambda line: encode_store_line(decode_store_line(line)))


def test_link_data_with_an_empty_part_is_written_and_refused() -> None:
    record = replace(CONTACT, link=(LINK_ID, LinkData(b"", b"")))
    line = encode_store_line(record)
    assert line.endswith(b" queue_data= ")
    with pytest.raises(WireError):
        decode_store_line(line)


MESSAGES: dict[str, SavedMessage | SavedQuota] = {
    "message, flag F": SavedMessage(MSG_ID, 1_700_000_000, False, b"hello"),
    "message, flag T": SavedMessage(MSG_ID, 1_700_000_000, True, b"hello"),
    "quota": SavedQuota(MSG_ID, 1_700_000_000),
    "empty body": SavedMessage(MSG_ID, 1_700_000_000, False, b""),
}


@pytest.mark.parametrize("entry", vectors(FILE, "message_log"), ids=named)
def test_message_log(entry: dict[str, Any]) -> None:
    line, journal_line = entry["line"].encode(), entry["journal_line"].encode()
    message = MESSAGES[entry["name"]]
    assert encode_message_line(MessageLine(QUEUE_ID, message)) == line
    assert encode_journal_message(message) == journal_line
    if entry["read_back"] is True:
        assert decode_message_line(line) == MessageLine(QUEUE_ID, message)
        assert decode_journal_message(journal_line) == message
        return
    assert entry["read_back"]["error"]
    with pytest.raises(WireError):
        decode_message_line(line)
    with pytest.raises(WireError):
        decode_journal_message(journal_line)


@pytest.mark.parametrize("entry", vectors(FILE, "message_log_parse"), ids=named)
def test_message_log_read(entry: dict[str, Any]) -> None:
    check_parsed(entry, lambda line: encode_message_line(decode_message_line(line)))


@pytest.mark.parametrize("entry", vectors(FILE, "ntf_log"), ids=named)
def test_notification_log(entry: dict[str, Any]) -> None:
    line = entry["line"].encode()
    nonce, meta = ramp(0x80, 24), ramp(0x10, 144)
    notification = NotificationLine(NOTIFIER_ID, MSG_ID, 1_700_000_000, nonce, meta)
    assert encode_notification_line(notification) == line
    assert decode_notification_line(line) == notification


JOURNAL_STATES = {
    "new": JournalState(
        JournalPosition("journal1", 0, 0, 0, 0), JournalPosition("journal1", 0, 0, 0, 0), True, 0
    ),
    "different files": JournalState(
        JournalPosition("AAAA", 3, 3, 300, 300), JournalPosition("BBBB", 1, 256, 100, 25600), False, 258
    ),
}


@pytest.mark.parametrize("entry", vectors(FILE, "journal_state"), ids=named)
def test_journal_states(entry: dict[str, Any]) -> None:
    line, state = entry["line"].encode(), JOURNAL_STATES[entry["name"]]
    assert encode_journal_state(state) == line
    assert decode_journal_state(line) == state
    assert state.valid


@pytest.mark.parametrize("entry", vectors(FILE, "stats_csv"), ids=lambda _: "columns")
def test_daily_columns(entry: dict[str, Any]) -> None:
    day, *columns = entry["columns"]
    assert day == "fromTime (day)"
    assert tuple(columns) == ROUTER_COLUMNS
    assert len(entry["columns"]) == entry["count"] == 101


def test_every_kind_has_its_test() -> None:
    known = {
        *("store_log", "store_log_parse", "message_log", "message_log_parse", "ntf_log", "journal_state"),
        "stats_csv",
    }
    unread = {"stats_backup", "ntf_stats_backup"}  # counters of a process that nothing here continues
    assert {entry["kind"] for entry in vectors(FILE)} == known | unread
    assert {entry["name"] for entry in vectors(FILE, "store_log")} == RECORDS.keys() | SERVICES.keys()
