"""Each line of a store log does what it says, or is left out with a reason; nothing else changes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindpost.crypto.ids_hash import QueueSet
from blindpost.router.model import Status
from blindpost.router.moving import replay
from blindpost.router.moving.values import created_of
from blindpost.wire.keys import Algorithm, PublicKey
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
)
from tests.support.router.moving import Line, files, imported
from tests.support.wire.vectors import vectors


def key(number: int) -> PublicKey:
    return PublicKey(Algorithm.ED25519, bytes([number]) * 32)


def an_id(number: int) -> bytes:
    return bytes([number]) * 24


RECIPIENT, SENDER, NOTIFIER, LINK, SERVICE, NTF_SERVICE = map(an_id, range(1, 7))
DATA, OTHER_USER, OTHER_FIXED = LinkData(b"f", b"u"), LinkData(b"f", b"v"), LinkData(b"g", b"u")
NTF = NotifierRecord(NOTIFIER, key(9), bytes(32))
PLAIN = CreateQueue(RECIPIENT, (key(1),), bytes(range(32)), SENDER, None, QueueMode.MESSAGING)
FULL = replace(
    PLAIN,
    sender_key=key(2),
    link=(LINK, DATA),
    notifier=replace(NTF, service_id=NTF_SERVICE),
    updated_at=86_400,
    status=Activity.OFF,
    service_id=SERVICE,
)
SERVICES = (
    NewService(SERVICE, ServiceRole.MESSAGING, (b"leaf", b"root"), bytes(32), 86_400),
    NewService(NTF_SERVICE, ServiceRole.NOTIFIER, (b"other",), b"\1" * 32, 172_800),
)
SPAM = BLOCKED(BlockingReason.SPAM, Notice(86_400))


async def the_queue(folder: Path, *lines: StoreRecord) -> CreateQueue | None:
    """What is left of the one queue after these lines, all of which are taken."""
    found = await imported(folder, files(folder, [*SERVICES, *lines]))
    assert found.report == []
    assert found.counts == {"queues: taken": len(lines) + 2}
    return created_of(found.queues[RECIPIENT]) if found.queues else None


@pytest.mark.parametrize(
    ("before", "line", "after"),
    [
        (PLAIN, SecureQueue(RECIPIENT, key(2)), replace(PLAIN, sender_key=key(2))),
        (FULL, SecureQueue(RECIPIENT, key(2)), FULL),
        (PLAIN, UpdateKeys(RECIPIENT, (key(3), key(4))), replace(PLAIN, recipient_keys=(key(3), key(4)))),
        (PLAIN, CreateLink(RECIPIENT, LINK, DATA), replace(PLAIN, link=(LINK, DATA))),
        (FULL, CreateLink(RECIPIENT, LINK, OTHER_USER), replace(FULL, link=(LINK, OTHER_USER))),
        (FULL, DeleteLink(RECIPIENT), replace(FULL, link=None)),
        (PLAIN, DeleteLink(RECIPIENT), PLAIN),
        (PLAIN, AddNotifier(RECIPIENT, NTF), replace(PLAIN, notifier=NTF)),
        (
            FULL,
            AddNotifier(RECIPIENT, replace(NTF, notifier_id=an_id(20), service_id=NTF_SERVICE)),
            replace(FULL, notifier=replace(NTF, notifier_id=an_id(20), service_id=NTF_SERVICE)),
        ),
        (FULL, DeleteNotifier(RECIPIENT), replace(FULL, notifier=None)),
        (PLAIN, DeleteNotifier(RECIPIENT), PLAIN),
        (PLAIN, SuspendQueue(RECIPIENT), replace(PLAIN, status=Activity.OFF)),
        (FULL, BlockQueue(RECIPIENT, SPAM), replace(FULL, status=SPAM)),
        (FULL, UnblockQueue(RECIPIENT), replace(FULL, status=Activity.ACTIVE)),
        (FULL, UpdateTime(RECIPIENT, 172_800), replace(FULL, updated_at=172_800)),
        (FULL, DeleteQueue(RECIPIENT), None),
        (PLAIN, QueueService(RECIPIENT, Party.RECIPIENT, SERVICE), replace(PLAIN, service_id=SERVICE)),
        (FULL, QueueService(RECIPIENT, Party.RECIPIENT, None), replace(FULL, service_id=None)),
        (FULL, QueueService(RECIPIENT, Party.NOTIFIER, None), replace(FULL, notifier=NTF)),
        (
            replace(PLAIN, notifier=NTF),
            QueueService(RECIPIENT, Party.NOTIFIER, NTF_SERVICE),
            replace(PLAIN, notifier=replace(NTF, service_id=NTF_SERVICE)),
        ),
    ],
)
async def test_each_kind_of_line(
    tmp_path: Path, before: CreateQueue, line: StoreRecord, after: CreateQueue | None
) -> None:
    assert await the_queue(tmp_path, before, line) == after


@pytest.mark.parametrize("created", [PLAIN, FULL, replace(PLAIN, mode=None, sender_key=key(5))])
async def test_a_queue_has_what_its_line_says(tmp_path: Path, created: CreateQueue) -> None:
    assert await the_queue(tmp_path, created) == created


async def test_services_count_their_queues(tmp_path: Path) -> None:
    found = await imported(tmp_path, files(tmp_path, [*SERVICES, FULL]))
    service, notifying = found.services[SERVICE], found.services[NTF_SERVICE]
    assert (service.queues, service.notifiers) == (QueueSet.of([RECIPIENT]), QueueSet())
    assert (notifying.queues, notifying.notifiers) == (QueueSet(), QueueSet.of([NOTIFIER]))
    assert (service.role, service.fingerprint, service.chain) == (
        ServiceRole.MESSAGING,
        bytes(32),
        (b"leaf", b"root"),
    )
    assert service.created_day == 86_400


async def test_missing_dh_keys_are_not_invented(tmp_path: Path) -> None:
    record = (await imported(tmp_path, files(tmp_path, [*SERVICES, FULL]))).queues[RECIPIENT].record
    assert record.recipient_dh_key is None
    assert record.router_dh_key is None
    assert record.notifier is not None
    assert record.notifier.router_dh_key is None
    assert record.secret.raw == bytes(range(32))
    assert record.status is Status.OFF


OTHER = CreateQueue(an_id(30), (key(1),), bytes(32), an_id(31))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "the kind of a store log line expected"),
        (b"FOO", "a known kind of store log line expected"),
        (SuspendQueue(an_id(99)), replay.NO_QUEUE),
        (replace(OTHER, recipient_id=RECIPIENT), replay.RECIPIENT_TAKEN),
        (replace(OTHER, sender_id=SENDER), replay.SENDER_TAKEN),
        (replace(OTHER, notifier=NTF), replay.NOTIFIER_TAKEN),
        (replace(OTHER, link=(LINK, DATA)), replay.LINK_TAKEN),
        (replace(OTHER, service_id=an_id(99)), replay.NO_SERVICE),
        (replace(OTHER, notifier=NotifierRecord(an_id(32), key(1), bytes(32), an_id(99))), replay.NO_SERVICE),
        (replace(OTHER, recipient_id=bytes(256)), "at most 255 bytes of an id expected"),
        (SecureQueue(RECIPIENT, key(7)), replay.OTHER_KEY),
        (CreateLink(RECIPIENT, an_id(33), DATA), replay.OTHER_LINK),
        (CreateLink(RECIPIENT, LINK, OTHER_FIXED), replay.OTHER_LINK),
        (AddNotifier(RECIPIENT, NTF), replay.NOTIFIER_TAKEN),
        (
            AddNotifier(RECIPIENT, NotifierRecord(an_id(32), key(1), bytes(32), an_id(99))),
            replay.NO_SERVICE,
        ),
        (QueueService(RECIPIENT, Party.RECIPIENT, an_id(99)), replay.NO_SERVICE),
        (replace(SERVICES[0], service_id=an_id(40)), replay.SERVICE_TAKEN),
        (replace(SERVICES[0], cert_hash=b"\7" * 32), replay.SERVICE_TAKEN),
        (replace(SERVICES[0], role=ServiceRole.NOTIFIER), replay.SERVICE_TAKEN),
    ],
)
@pytest.mark.parametrize("chunk_lines", [1, 100])
async def test_a_skipped_line_is_reported_and_changes_nothing(
    tmp_path: Path, line: StoreRecord | bytes, reason: str, chunk_lines: int
) -> None:
    lines: list[Line] = [*SERVICES, FULL, line, UpdateTime(RECIPIENT, 3)]
    found = await imported(tmp_path, files(tmp_path, lines), chunk_lines)
    assert found.report == [f"smp-server-store.log, line 4: {reason}"]
    assert found.counts == {"queues: taken": 4, "queues: not taken": 1}
    (queue,) = found.queues.values()
    assert queue.record.updated_day == 3


async def test_a_notifier_line_needs_a_notifier_and_a_link_id_must_be_free(tmp_path: Path) -> None:
    lines: list[Line] = [
        *SERVICES,
        PLAIN,
        OTHER,
        replace(OTHER, recipient_id=an_id(50), sender_id=an_id(51), link=(LINK, DATA)),
    ]
    refused: list[Line] = [
        QueueService(RECIPIENT, Party.NOTIFIER, NTF_SERVICE),
        CreateLink(RECIPIENT, LINK, DATA),
    ]
    lines += refused
    found = await imported(tmp_path, files(tmp_path, lines))
    assert found.reasons == [replay.NO_NOTIFIER, replay.LINK_TAKEN]


async def test_ids_of_a_deleted_queue_are_free_again(tmp_path: Path) -> None:
    again = replace(FULL, sender_key=key(8))
    for number, chunk_lines in enumerate((1, 100)):
        folder = tmp_path / str(number)
        folder.mkdir()
        lines: list[Line] = [
            *SERVICES,
            FULL,
            DeleteQueue(RECIPIENT),
            again,
            DeleteNotifier(RECIPIENT),
            DeleteLink(RECIPIENT),
        ]
        found = await imported(folder, files(folder, lines), chunk_lines)
        assert found.report == []
        assert found.queues[RECIPIENT].record.sender_key == key(8)
        assert found.services[NTF_SERVICE].notifiers == QueueSet()


async def test_a_service_listed_twice_is_one_service(tmp_path: Path) -> None:
    found = await imported(tmp_path, files(tmp_path, [*SERVICES, SERVICES[0], FULL]))
    assert found.report == []
    assert len(found.services) == 2


async def test_a_line_that_is_too_long_is_skipped(tmp_path: Path) -> None:
    lines: list[Line] = [PLAIN, b"x" * (1 << 21), UpdateTime(RECIPIENT, 5)]
    lines += [b"y" * (1 << 20), b"z" * ((1 << 20) + 1), UpdateTime(RECIPIENT, 6)]
    found = await imported(tmp_path, files(tmp_path, lines))
    assert [line.split(":")[0] for line in found.report] == [
        "smp-server-store.log, line 2",
        "smp-server-store.log, line 4",
        "smp-server-store.log, line 5",
    ]
    assert ["longer" in line for line in found.report] == [True, False, True]
    assert found.queues[RECIPIENT].record.updated_day == 6


async def test_a_last_line_without_a_newline_counts(tmp_path: Path) -> None:
    lines: list[Line] = [PLAIN, SuspendQueue(RECIPIENT)]
    source = files(tmp_path, lines)
    source.store_log.write_bytes(source.store_log.read_bytes().removesuffix(b"\n"))
    assert (await imported(tmp_path, source)).queues[RECIPIENT].record.status is Status.OFF


LINES = [vector for vector in vectors("store_log.json") if vector["kind"].startswith("store_log")]


@pytest.mark.parametrize("vector", LINES, ids=lambda vector: str(vector["name"]))
async def test_recorded_lines(tmp_path: Path, vector: dict[str, object]) -> None:
    """Lines that the reference reads are accepted, after a queue and services like those they refer to."""
    line = str(vector["line"]).encode()
    readable = vector.get("read_back", vector.get("result"))
    taken = readable is True or (isinstance(readable, dict) and "error" not in readable)
    record = decode_store_line(line) if taken else None
    creates = isinstance(record, CreateQueue | NewService)
    recipient_id = bytes(range(0xA0, 0xB8))
    service_id = bytes(range(0xD0, 0xE8))
    before: list[StoreRecord] = []
    if not isinstance(record, NewService):
        before.append(NewService(service_id, ServiceRole.MESSAGING, (b"c",), b"\3" * 32, 0))
    if taken and not creates:
        assert record is not None
        assert not isinstance(record, NewService)
        has_notifier = isinstance(record, DeleteNotifier | QueueService)
        queue = replace(OTHER, recipient_id=record.recipient_id, notifier=NTF if has_notifier else None)
        before.append(queue)
        assert record.recipient_id in (recipient_id, b"ab")
    found = await imported(tmp_path, files(tmp_path, [*before, line]))
    assert len(found.report) == (0 if taken else 1)
    assert found.counts["queues: taken"] == len(before) + taken


def _random_line(rng: random.Random) -> StoreRecord:
    """A line about one of a few queues, notifiers, links and services, so that lines collide."""
    queue, other = an_id(rng.randrange(5)), an_id(100 + rng.randrange(3))
    service = rng.choice([None, SERVICE, NTF_SERVICE, an_id(99)])
    link = (an_id(110 + rng.randrange(2)), rng.choice([DATA, OTHER_USER, OTHER_FIXED]))
    notifier = NotifierRecord(other, key(rng.randrange(3)), bytes(32), service)
    creating = CreateQueue(
        queue,
        (key(rng.randrange(3)),),
        bytes(32),
        an_id(120 + rng.randrange(6)),
        rng.choice([None, key(1)]),
        rng.choice([None, QueueMode.CONTACT]),
        rng.choice([None, None, link]),
        rng.choice([None, None, notifier]),
        rng.choice([None, 0, 86_400]),
        rng.choice([Activity.ACTIVE, Activity.OFF]),
        rng.choice([None, SERVICE]),
    )
    lines: list[StoreRecord] = [
        creating,
        creating,
        CreateLink(queue, *link),
        DeleteLink(queue),
        SecureQueue(queue, key(rng.randrange(2))),
        UpdateKeys(queue, (key(rng.randrange(3)),)),
        AddNotifier(queue, notifier),
        DeleteNotifier(queue),
        SuspendQueue(queue),
        BlockQueue(queue, SPAM),
        UnblockQueue(queue),
        DeleteQueue(queue),
        UpdateTime(queue, rng.randrange(2) * 86_400),
        rng.choice(SERVICES),
        QueueService(queue, rng.choice(list(Party)), service),
    ]
    return rng.choice(lines)


@given(seed=st.integers(0, 2**32), chunk_lines=st.sampled_from([1, 3, 1000]))
@settings(deadline=None, max_examples=40)
async def test_any_log_is_imported_completely(
    tmp_path_factory: pytest.TempPathFactory, seed: int, chunk_lines: int
) -> None:
    """Lines in any order, in chunks of any size: the store's tally equals the source's, computed apart."""
    rng = random.Random(seed)
    lines = [*SERVICES[: rng.randrange(3)], *(_random_line(rng) for _ in range(40))]
    folder = tmp_path_factory.mktemp("any")
    found = await imported(folder, files(folder, lines), chunk_lines)
    assert found.counts.get("queues: taken", 0) + len(found.report) == len(lines)


async def test_a_notifier_id_moves_between_queues_in_one_chunk(tmp_path: Path) -> None:
    lines: list[Line] = [replace(PLAIN, notifier=NTF), UpdateTime(RECIPIENT, 1), UpdateTime(RECIPIENT, 2)]
    lines += [OTHER, DeleteNotifier(RECIPIENT), AddNotifier(OTHER.recipient_id, NTF)]
    found = await imported(tmp_path, files(tmp_path, lines), chunk_lines=3)
    assert found.queues[RECIPIENT].record.notifier is None
    assert found.queues[OTHER.recipient_id].record.notifier is not None
