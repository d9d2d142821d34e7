"""The log of messages as they came: what is in it after a power loss, and what an agent makes of that."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from blindpost.agent import Failed, MsgOk, Received
from blindpost.agent.messages import flows
from blindpost.agent.store import intake as intake_module
from blindpost.agent.store.database import AgentStore
from blindpost.agent.store.intake import SIZE, Came, Entry, Intake, Record, left_at
from blindpost.agent.store.vault import PlainVault, SealedVault, Vault
from blindpost.client.inflight import Awaited
from blindpost.client.smp import SmpClient
from blindpost.engine.loop import StoreFailedError
from blindpost.store import sqlite
from blindpost.store.contract import Durability
from blindpost.testing import Network
from blindpost.testing.clock import run_virtual
from blindpost.wire.primitives import LIST_MAX, encode
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.responses import Response
from tests.support.agent.agents import on_network, party
from tests.support.agent.flowing import content, nothing_for, right, waiting
from tests.support.client.scripted_router import settle, virtual

KEY, OTHER_KEY = b"k" * 16, b"o" * 16
PLAIN = PlainVault()


def zeros(size: int) -> bytes:
    return bytes(size)


def record(number: int, *done: int, size: int = 100) -> Record:
    return Record(came(number), tuple(came(one) for one in done), bytes([number]) * size)


def came(number: int) -> Came:
    return Came("conn", number % 3, b"message %d" % number)


_made: list[Intake] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close(is_stored=False)


def log_at(path: Path, vault: Vault = PLAIN, left: tuple[Record, ...] = ()) -> Intake:
    _made.append(Intake(path, KEY, vault, zeros, left))
    return _made[-1]


async def opened(path: Path, vault: Vault = PLAIN) -> Intake:
    """A log whose file is made: that begins when it is first asked to take something."""
    log = log_at(path, vault)
    assert log.add(record(0)) is None
    await settle()
    return log


def added(log: Intake, one: Record) -> Entry:
    entry = log.add(one)
    assert entry is not None
    return entry


def ran(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


@contextmanager
def held_syncs() -> Iterator[list[asyncio.Future[None]]]:
    """What a thread is given waits here."""
    given: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()

    def later(*_: object) -> asyncio.Future[None]:
        given.append(loop.create_future())
        return given[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "run_in_executor", later)
        yield given


# The file


def test_what_was_written_is_read_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def main() -> None:
        log = await opened(path)
        for one in (record(1), record(2, 1), record(3, 2, 1, size=0)):
            added(log, one)

    ran(main())
    assert left_at(path, KEY, PLAIN) == [record(1), record(2, 1), record(3, 2, 1, size=0)]
    assert left_at(path, OTHER_KEY, PLAIN) == []
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == SIZE


def test_it_begins_again_once_nothing_in_it_is_needed(tmp_path: Path) -> None:
    """What was written before and not overwritten is not read."""
    path = tmp_path / "log"

    async def main() -> None:
        log = await opened(path)
        first, second, _ = [added(log, record(number)) for number in (1, 2, 3)]
        log.release(first)
        log.release(second)
        third = log.of(came(3))
        assert third is not None
        added(log, record(4))
        assert left_at(path, KEY, PLAIN) == [record(number) for number in (1, 2, 3, 4)]
        fourth = log.of(came(4))
        assert fourth is not None
        log.release(fourth)
        log.release(third)
        assert left_at(path, KEY, PLAIN) == [record(number) for number in (1, 2, 3, 4)]
        added(log, record(5))
        assert left_at(path, KEY, PLAIN) == [record(5)]
        added(log, record(6, size=40))
        assert left_at(path, KEY, PLAIN) == [record(5), record(6, size=40)]

    ran(main())


def test_whatever_was_torn_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def main() -> None:
        log = await opened(path)
        added(log, record(1))
        added(log, record(2))

    ran(main())
    whole = path.read_bytes()
    size = whole.rindex(bytes([2]) * 100) + 100
    path.write_bytes(whole[:size])
    assert left_at(path, KEY, PLAIN) == [record(1), record(2)]
    for at in range(0, size, 7):
        path.write_bytes(whole[:at])
        assert left_at(path, KEY, PLAIN) == ([record(1)] if at >= size // 2 else [])
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert left_at(path, KEY, PLAIN) == ([record(1)] if at >= size // 2 else [])
    path.write_bytes(b"")
    assert left_at(path, KEY, PLAIN) == []
    assert left_at(tmp_path / "none", KEY, PLAIN) == []


def test_in_a_sealed_store_it_is_sealed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ours, other = SealedVault(bytes(32), os.urandom), SealedVault(bytes([1]) * 32, os.urandom)

    async def main() -> None:
        log = await opened(path, ours)
        added(log, record(7, 8))
        added(log, record(9))

    ran(main())
    assert b"conn" not in path.read_bytes()
    assert b"message" not in path.read_bytes()
    assert left_at(path, KEY, ours) == [record(7, 8), record(9)]
    assert left_at(path, KEY, other) == []


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """It may have what nobody else has."""
    (tmp_path / "log").mkdir()
    with pytest.raises(StoreFailedError, match="log cannot be read, and may have messages"):
        left_at(tmp_path / "log", KEY, PLAIN)


def test_a_file_that_cannot_be_made_is_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it stays."""
    tried: list[Path] = []

    def full(path: Path) -> None:
        tried.append(path)
        if path == tmp_path:
            raise OSError(28, "No space left on device")

    async def main() -> None:
        log = await opened(tmp_path / "log")
        for number in (1, 2):
            assert log.add(record(number)) is None
        log.close(is_stored=True)

    monkeypatch.setattr(intake_module, "sync_whole", full)
    ran(main())
    assert tried == [tmp_path / "log", tmp_path]
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    monkeypatch.setattr(intake_module, "SIZE", 500)

    async def main() -> None:
        log = await opened(path)
        first = added(log, record(1, size=400))
        assert log.add(record(2)) is None
        assert log.of(came(2)) is None
        log.release(first)
        assert log.add(record(2, size=500)) is None
        room = 500 - log_size(record(2, size=0))
        assert log.add(record(2, size=room + 1)) is None
        added(log, record(2, size=room))
        assert left_at(path, KEY, PLAIN) == [record(2, size=room)]
        assert log.add(record(2)) is None, "it is there"

    ran(main())


def log_size(one: Record) -> int:
    """What a record takes in the file."""
    return 4 + 16 + len(encode(one, intake_module._write_record))


def test_so_many_messages_that_are_done_fit(tmp_path: Path) -> None:
    async def main() -> None:
        log = await opened(tmp_path / "log")
        assert log.add(Record(came(3), (came(1),) * (LIST_MAX + 1), b"")) is None
        most = Record(came(3), (came(1),) * LIST_MAX, b"")
        added(log, most)
        assert left_at(tmp_path / "log", KEY, PLAIN) == [most]

    ran(main())


@pytest.mark.parametrize("short", [False, True])
def test_what_the_disk_does_not_take_is_written_over(tmp_path: Path, short: bool) -> None:
    path = tmp_path / "log"

    class Full:
        def __init__(self, file: object) -> None:
            self._file = file

        def seek(self, at: int) -> None:
            pass

        def write(self, whole: bytes) -> int:
            if short:
                return len(whole) - 1
            raise OSError(28, "No space left on device")

    async def main() -> None:
        log = await opened(path)
        added(log, record(1))
        file, log._file = log._file, Full(log._file)  # type: ignore[assignment]
        assert log.add(record(2)) is None
        log._file = file
        added(log, record(3))
        assert left_at(path, KEY, PLAIN) == [record(1), record(3)]

    ran(main())


def test_until_what_was_left_is_stored_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"

    async def main() -> None:
        added(await opened(path), record(1))
        found = tuple(left_at(path, KEY, PLAIN))
        log = log_at(path, left=found)
        for _ in range(2):
            assert log.add(record(2)) is None
            await settle()
        log.close(is_stored=True)
        assert left_at(path, KEY, PLAIN) == [record(1)]
        log = log_at(path, left=found)
        log.forget_left()
        assert not path.exists()
        assert log.add(record(2)) is None
        await settle()
        added(log, record(3))

    ran(main())


async def test_a_file_that_is_being_made_when_it_is_closed_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    made = intake_module._made

    def slowly_made(path: Path) -> FileIO:
        begun.set()
        assert go_on.wait(10)
        try:
            return made(path)
        finally:
            ended.set()

    monkeypatch.setattr(intake_module, "_made", slowly_made)
    log = log_at(tmp_path / "log")
    assert log.add(record(1)) is None
    assert begun.wait(10)
    go_on.set()
    log.close(is_stored=True)
    assert ended.wait(10)
    assert os.listdir(tmp_path) == []
    assert log._file is None


@pytest.mark.parametrize("is_stored", [True, False])
def test_it_goes_when_the_store_has_all_of_it(tmp_path: Path, is_stored: bool) -> None:
    path = tmp_path / "log"

    async def main() -> None:
        log = await opened(path)
        added(log, record(1))
        for _ in range(2):
            log.close(is_stored=is_stored)
        assert log.add(record(2)) is None
        await settle()

    ran(main())
    assert path.exists() is not is_stored


# Durable


def fails(_: bool) -> None:
    raise LookupError("a bug")


def test_each_is_kept_when_the_disk_says_so(tmp_path: Path) -> None:
    """What comes while the disk is busy is synced after that."""

    async def main() -> None:
        log = await opened(tmp_path / "log")
        with held_syncs() as syncs:
            told: list[tuple[int, bool]] = []
            for number in (1, 2, 3):
                entry = added(log, record(number))
                entry.once_kept(lambda kept, number=number: told.append((number, kept)))  # type: ignore[misc]
            assert len(syncs) == 1
            waits = asyncio.create_task(entry.kept())
            syncs[0].set_result(None)
            await settle()
            assert told == [(1, True)]
            assert len(syncs) == 2
            entry.once_kept(fails)
            entry.once_kept(lambda kept: told.append((4, kept)))
            given_up = asyncio.create_task(entry.kept())
            await asyncio.sleep(0)
            given_up.cancel()
            syncs[1].set_result(None)
            await settle()
            assert told == [(1, True), (2, True), (3, True), (4, True)]
            assert await waits
            assert await entry.kept()
            assert len(syncs) == 2

    ran(main())


@pytest.mark.parametrize("by_store", [True, False])
@pytest.mark.parametrize("heard", [True, False])
def test_a_disk_that_could_not_sync_it_is_trusted_no_more(
    tmp_path: Path, by_store: bool, heard: bool
) -> None:
    async def main() -> None:
        log = await opened(tmp_path / "log")
        failures: list[str] = []
        told: list[bool] = []
        if heard:
            log.on_failure = lambda failure: failures.append(str(failure))
        with held_syncs() as syncs:
            for number in (1, 2):
                added(log, record(number)).once_kept(told.append)
            if by_store:
                log.fail()
                syncs[0].set_result(None)
            else:
                syncs[0].set_exception(OSError(5, "Input/output error"))
            await settle()
        assert told == [False, False]
        assert len(failures) == (heard and not by_store)
        assert all("log cannot be synced: [Errno 5] Input/output error" in failure for failure in failures)
        assert log.add(record(3)) is None
        await settle()
        log.close(is_stored=False)

    ran(main())


@virtual
async def test_a_store_whose_log_could_not_be_synced_takes_nothing(tmp_path: Path) -> None:
    with closing(AgentStore.open(tmp_path / "a.db")) as store:
        assert store.came(came(1), b"one") is None
        await settle()
        with held_syncs() as syncs:
            entry = store.came(came(2), b"two")
            assert entry is not None
            waits = asyncio.create_task(entry.kept())
            syncs[0].set_exception(OSError(5, "Input/output error"))
            assert not await waits
        assert store.is_broken
        assert store.came(came(3), b"three") is None
        with pytest.raises(StoreFailedError, match=r"a\.db-intake cannot be synced"), store.transaction():
            pass
    assert (tmp_path / "a.db-intake").exists(), "the store may not have what is in it"


@virtual
async def test_a_store_that_breaks_tells_those_who_wait_for_its_log(tmp_path: Path) -> None:
    with closing(AgentStore.open(tmp_path / "a.db")) as store:
        store.came(came(1), b"one")
        await settle()
        with held_syncs():
            entry = store.came(came(2), b"two")
            assert entry is not None
            store._break(StoreFailedError("lost"))
            assert not await entry.kept()


@virtual
async def test_what_the_program_is_done_with_by_the_next_commit_is_noted(tmp_path: Path) -> None:
    """In a copy too, which has the key of the log and not the log."""
    with closing(AgentStore.open(tmp_path / "a.db")) as store:
        store.came(came(1), b"one")
        await settle()
        with store.part() as group:
            group.done.append(came(1))
        assert store.came(came(2), b"two") is not None
        store.commit()
        with store.part():
            pass
        entry = store.came(came(3), b"three")
        assert entry is not None
        assert (entry.came, entry.done) == (came(3), ())
        shutil.copy(tmp_path / "a.db-intake", tmp_path / "left")
        store.backup(tmp_path / "b.db")
    assert not (tmp_path / "a.db-intake").exists()
    for name in ("a.db", "b.db"):
        shutil.copy(tmp_path / "left", tmp_path / f"{name}-intake")
        with closing(AgentStore.open(tmp_path / name)) as store:
            assert [(one.came, one.done) for one in store.intake.left] == [
                (came(2), (came(1),)),
                (came(3), ()),
            ]
            assert store.was_cut


@virtual
async def test_a_store_that_does_not_sync_needs_no_log(tmp_path: Path) -> None:
    with closing(AgentStore.open(tmp_path / "a.db", durability=Durability.OS)) as store:
        for number in (1, 2):
            assert store.came(came(number), b"one") is None
            await settle()
    assert sorted(os.listdir(tmp_path)) == ["a.db", "a.db-life"]


@virtual
async def test_a_fork_writes_nothing_into_the_log(tmp_path: Path) -> None:
    with closing(AgentStore.open(tmp_path / "a.db")) as store:
        store._file._forked = True
        with pytest.raises(StoreFailedError, match="this one is a fork of"):
            store.came(came(1), b"one")
        store._file._forked = False


def test_what_says_that_a_message_is_done_is_known_as_long_as_it_is_needed(tmp_path: Path) -> None:
    async def main() -> None:
        log = await opened(tmp_path / "log")
        first, second = added(log, record(1, 7, 8)), added(log, record(2, 8))
        assert (log.saying_done(came(7)), log.saying_done(came(8))) == (first, second)
        log.release(first)
        assert (log.saying_done(came(7)), log.saying_done(came(8))) == (None, second)
        assert (log.of(came(1)), log.of(came(2))) == (None, second)
        log.release(second)
        assert log.saying_done(came(8)) is None

    ran(main())


# The power fails


class PowerLoss:
    """Notes what the disk has for good, and at one moment takes away all else."""

    def __init__(self, of: Path, to: Path, at: int) -> None:
        self._of, self._to = of, to
        self._left = at
        self._synced: dict[str, bytes] = {}
        self.is_out = False
        for file in self._files():
            self._synced[file.name] = file.read_bytes()

    def _files(self) -> list[Path]:
        return [file for file in self._of.parent.glob(f"{self._of.name}*") if not file.name.endswith("-shm")]

    def synced(self, descriptor: int) -> None:
        for file in self._files():
            if file.stat().st_ino == os.fstat(descriptor).st_ino:
                self._synced[file.name] = file.read_bytes()

    def tick(self) -> None:
        """One more of the moments in which it may happen."""
        self._left -= 1
        if self._left == 0:
            self.is_out = True
            for name, durable in self._synced.items():
                self._to.with_name(name.replace(self._of.name, self._to.name)).write_bytes(durable)


SYNC_S = 0.003


def slowly(_: object, work: Callable[..., object], *given: object) -> asyncio.Future[object]:
    """A thread whose work takes a while."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_later(SYNC_S, lambda: done.set_result(work(*given)))
    return done


@contextmanager
def losing(power: PowerLoss) -> Iterator[None]:
    """Syncs take a while and are noted, and when the power is out nothing leaves the machine."""
    datasync, send_ready, send_many = sqlite._datasync, SmpClient.send_ready, SmpClient.send_many

    def noted(descriptor: int) -> None:
        power.tick()
        datasync(descriptor)
        power.synced(descriptor)
        power.tick()

    def send(client: SmpClient, ready: Awaited[Command, Response]) -> None:
        power.tick()
        if not power.is_out:
            send_ready(client, ready)
            power.tick()

    async def send_all(client: SmpClient, calls: list[object]) -> object:
        if power.is_out:
            await asyncio.Event().wait()
        return await send_many(client, calls)  # type: ignore[arg-type]  # as they came

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "run_in_executor", slowly)
        patch.setattr(sqlite, "_datasync", noted)
        patch.setattr(SmpClient, "send_ready", send)
        patch.setattr(SmpClient, "send_many", send_all)
        yield


MESSAGES = 9


@pytest.mark.parametrize(
    ("one_by_one", "moment"), [(True, 8), (True, 15), *((False, moment) for moment in range(3, 30, 2))]
)
@virtual
async def test_nothing_is_lost_and_nothing_done_is_shown_again_when_the_power_fails(
    tmp_path: Path, one_by_one: bool, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps; what the store has synced is a while ago."""
    monkeypatch.setattr(flows, "SEEN_MIN", 1)
    network, begun, done = Network(), 0, 0
    async with waiting(tmp_path, MESSAGES, network, Durability.FULL) as (bob, _):
        left = tmp_path / "left.db"
        bob.rt.ground.store.commit()
        power = PowerLoss(tmp_path / "b.db", left, moment)

        async def acknowledged(event: Received) -> None:
            nonlocal done
            await event.msg.ack()
            if not power.is_out:
                done += 1

        async def taken() -> None:
            nonlocal begun
            async with asyncio.TaskGroup() as tasks:
                for number in range(MESSAGES):
                    event = await bob.message(ack=False)
                    assert content(event) == (b"%d" % number, MsgOk())
                    if power.is_out:
                        return
                    begun += 1
                    if one_by_one:
                        await acknowledged(event)
                    else:
                        tasks.create_task(acknowledged(event))

        with losing(power):
            program = asyncio.create_task(taken())
            await asyncio.sleep(1)
            assert power.is_out
            program.cancel()
            await bob.agent.close()
        always_there(left)
        async with party(left, config=on_network(network)) as again:
            found: list[tuple[bytes, object]] = []
            while not found or found[-1] != right(MESSAGES - 1)[0]:
                found.append(content(await again.message()))
            first = int(found[0][0])
            assert found == right(*range(first, MESSAGES))
            assert done <= first <= begun, "what was being acknowledged may be shown again"
            await nothing_for(again)
            assert not [event for event in again.seen if isinstance(event, Failed)]
            assert not left.with_name("left.db-intake").exists()


def always_there(store: Path) -> None:
    """It is no copy: it does not know where it was."""
    with closing(sqlite3.connect(store)) as file, file:
        file.execute("DELETE FROM settings WHERE name LIKE 'life%'")
