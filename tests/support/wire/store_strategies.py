"""Generated records of the reference's saved state: store log, message logs and journal states."""

from __future__ import annotations

from hypothesis import strategies as st

from blindpost.wire.message_log import (
    JournalPosition,
    JournalState,
    MessageLine,
    NotificationLine,
    Saved,
    SavedMessage,
    SavedQuota,
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
)
from tests.support.wire.ntf_strategies import auth_keys, nonces

ids = st.binary(min_size=1, max_size=32)
secrets = st.binary(min_size=32, max_size=32)
seconds = st.integers(-(2**63), 2**63 - 1)
blobs = st.binary(min_size=1, max_size=200)
counts = st.integers(-(2**63), 2**63 - 1)

links = st.builds(LinkData, blobs, blobs)
notifiers = st.builds(NotifierRecord, ids, auth_keys, secrets, st.none() | ids)
key_lists = st.lists(auth_keys, min_size=1, max_size=3).map(tuple)
notices = st.builds(Notice, st.none() | st.integers(0, 2**40))
blocked = st.builds(BLOCKED, st.sampled_from(BlockingReason), st.none() | notices)


@st.composite
def queues(draw: st.DrawFn) -> CreateQueue:
    """Queues whose lines can be read back: none has both a notice and a service."""
    status = draw(st.sampled_from(Activity) | blocked)
    with_notice = isinstance(status, BLOCKED) and status.notice is not None
    return CreateQueue(
        draw(ids),
        draw(key_lists),
        draw(secrets),
        draw(ids),
        draw(st.none() | auth_keys),
        draw(st.none() | st.sampled_from(QueueMode)),
        draw(st.none() | st.tuples(ids, links)),
        draw(st.none() | notifiers),
        draw(st.none() | seconds),
        status,
        None if with_notice else draw(st.none() | ids),
    )


store_records: st.SearchStrategy[StoreRecord] = st.one_of(
    queues(),
    st.builds(CreateLink, ids, ids, links),
    st.builds(DeleteLink, ids),
    st.builds(SecureQueue, ids, auth_keys),
    st.builds(UpdateKeys, ids, key_lists),
    st.builds(AddNotifier, ids, notifiers),
    st.builds(DeleteNotifier, ids),
    st.builds(SuspendQueue, ids),
    st.builds(BlockQueue, ids, blocked),
    st.builds(UnblockQueue, ids),
    st.builds(DeleteQueue, ids),
    st.builds(UpdateTime, ids, seconds),
    st.builds(
        NewService, ids, st.sampled_from(ServiceRole), st.lists(blobs, min_size=1).map(tuple), ids, seconds
    ),
    st.builds(QueueService, ids, st.sampled_from(Party), st.none() | ids),
)

saved_messages: st.SearchStrategy[Saved] = st.one_of(
    st.builds(SavedMessage, ids, seconds, st.booleans(), blobs), st.builds(SavedQuota, ids, seconds)
)
message_lines = st.builds(MessageLine, ids, saved_messages)
notification_lines = st.builds(NotificationLine, ids, ids, seconds, nonces, blobs)

_numbers = st.integers(0, 2**63 - 1)
_positions = st.builds(
    JournalPosition,
    st.text("ABCDEFGHabcdefgh0123456789-_", max_size=16),
    _numbers,
    _numbers,
    _numbers,
    _numbers,
)
journal_states = st.builds(JournalState, _positions, _positions, st.booleans(), counts)
