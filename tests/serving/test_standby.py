"""Every server whose store is a database has a standby, by the same frame."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from blindpost.ds.process import DsService
from blindpost.ds.settings import DsPlace
from blindpost.ntf.settings import NtfPlace
from blindpost.ops.model import Health
from blindpost.ops.servers import find
from blindpost.serving import process as processes
from blindpost.serving.failures import OperatorError
from blindpost.serving.process import Process
from tests.support.serving.commands import Started, run
from tests.support.serving.kinds import DS, NTF, Kind, change, http, make, started
from tests.support.serving.passing import pass_sockets
from tests.support.serving.processes import until
from tests.support.serving.systemd import Systemd
from tests.support.store.postgres import PostgresServer, database, postgres

__all__ = ["database", "postgres"]

LOSES_IT = """
import os, signal
from blindpost.{module} import {owner}
work = {owner}.{name}
async def fail(*arguments):
    if {owner}.failed:
        return await work(*arguments)
    {owner}.failed = True
    for number in (signal.SIGHUP, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    raise {error}
{owner}.failed = False
{owner}.{name} = fail
"""
"""The database is away at this step of the first take-over, and somebody sends signals at the same time."""


LOSES_THE_RACE = """
from blindpost.serving import standby
from blindpost.store import ownership, postgres
standby.UNSAID_S = postgres.LOCK_WAIT_S = postgres.STATEMENT_S = postgres.SILENCE_S = 3600.0
wait = ownership.Candidate.wait
async def saw_it_free(candidate):
    ownership.Candidate.wait = wait
ownership.Candidate.wait = saw_it_free
"""
"""It has seen that nobody owns the database, and another server was quicker."""

HAS_NO_ROOM = """
import asyncpg
from blindpost.serving import process
from blindpost.store.postgres import PostgresStore
async def fail(*arguments):
    raise asyncpg.DiskFullError("could not extend file: No space left on device")
PostgresStore._migrate = fail
process.AGAIN_S = 3600.0
"""


def runs_first(server: Started, folder: Path, code: str) -> None:
    """Let its process begin with this."""
    (folder / "sitecustomize.py").write_text(code)
    server.environment["PYTHONPATH"] = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


def shared(kind: Kind, folder: Path, dsn: str) -> None:
    """Let its store be this database, in turn with others."""
    where = ('durability = "full"', f'durability = "full"\ndatabase = "{dsn}"')
    if kind is NTF:
        change(folder, kind, ('kind = "sqlite"', 'kind = "postgres"'))
        where = ('dsn = ""', f'dsn = "{dsn}"')
    change(folder, kind, where, ("standby = false", "standby = true"))


@pytest.mark.parametrize("kind", [NTF, DS], ids=lambda kind: str(kind.word))
async def test_a_standby_serves_what_the_killed_owner_had_stored(
    kind: Kind, tmp_path: Path, database: str
) -> None:
    made = await asyncio.to_thread(make, kind, tmp_path / "one")
    shared(kind, tmp_path / "one", database)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    owner, standby = started(kind, tmp_path / "one"), started(kind, tmp_path / "two")
    try:
        await owner.start()
        await kind.use(owner, made)
        await standby.start()
        assert standby.status["state"] == "standby"
        code, said = await http(standby.status["metrics_port"], "/health")
        assert (code, "another server owns the database" in said) == (503, True)
        _, metrics = await http(standby.status["metrics_port"], "/metrics")
        assert f"blindpost_{kind.word}_standby 1" in metrics
        assert await owner.end(signal.SIGKILL) == -signal.SIGKILL

        async def serves() -> bool:
            standby.status = await asyncio.to_thread(standby.child.wait_up)
            return bool(standby.status["state"] == "running")

        await until(serves)
        assert kind.kept(standby.status) == 1
        await kind.use(standby, made)
        assert kind.kept(await standby.ask("status")) == 2
        assert await standby.end(signal.SIGTERM) == 0
    finally:
        await owner.close()
        await standby.close()


async def becomes(server: Started, state: str) -> None:
    """Wait until it says that it is so; between two states nobody answers."""

    async def is_so() -> bool:
        with contextlib.suppress(OperatorError):
            server.status = await server.ask("status")
            return bool(server.status["state"] == state)
        return False

    try:
        await until(is_so)
    except TimeoutError:
        raise AssertionError(f"it did not come to be {state}: {server.log.decode()}") from None


@pytest.fixture
async def pair(tmp_path: Path, database: str) -> AsyncIterator[tuple[Started, Started]]:
    """Two delivery services in turn, not started yet."""
    await asyncio.to_thread(make, DS, tmp_path / "one")
    shared(DS, tmp_path / "one", database)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    servers = started(DS, tmp_path / "one"), started(DS, tmp_path / "two")
    try:
        yield servers
    finally:
        for server in servers:
            await server.close()


async def test_systemd_hears_of_a_hand_over_but_not_that_the_server_stops(
    pair: tuple[Started, Started], tmp_path: Path
) -> None:
    """It would kill what does not end in time; and the watchdog waits for a drain and a take-over."""
    owner, standby = pair
    owner.environment |= {"NOTIFY_SOCKET": str(tmp_path / "systemd"), "WATCHDOG_USEC": "60000000"}
    with Systemd(tmp_path / "systemd") as systemd:
        await owner.start()
        await standby.start()
        await asyncio.to_thread(run, "ds", "handover", "-c", owner.folder)
        await becomes(owner, "standby")
        await becomes(standby, "running")
        assert await standby.end(signal.SIGKILL) == -signal.SIGKILL
        await becomes(owner, "running")
        assert await owner.end(signal.SIGTERM) == 0
    said = [text.replace("\n", " ") for text in systemd.said if text != "WATCHDOG=1"]
    patient, ready = "WATCHDOG_USEC=86400000000 STATUS={}", "READY=1 WATCHDOG_USEC=60000000 STATUS={}"
    expected = (
        ready.format("everything works"),
        patient.format("answering what was accepted"),
        ready.format("another server owns the database; this one takes over when that one ends"),
        patient.format("taking the database over"),
        ready.format("everything works"),
        "STOPPING=1 WATCHDOG=1 STATUS=answering what was accepted",
    )
    assert tuple(text for text in said if not text.startswith("WATCHDOG=1")) == expected


@pytest.mark.parametrize(
    "step",
    [
        {
            "module": "store.postgres",
            "owner": "PostgresStore",
            "name": "_connect",
            "error": "ConnectionRefusedError",
        },
        {
            "module": "ds.process",
            "owner": "DsService",
            "name": "begin",
            "error": "__import__('blindpost.store.postgres', fromlist=['']).DatabaseAwayError('it is away')",
        },
    ],
    ids=["open", "begin"],
)
async def test_a_database_that_is_lost_while_it_is_taken_over_is_waited_for(
    pair: tuple[Started, Started], tmp_path: Path, step: dict[str, str]
) -> None:
    server, _ = pair
    runs_first(server, tmp_path, LOSES_IT.format(**step))
    await server.start()
    await becomes(server, "running")
    assert b"cannot take the database over, it waits again" in server.log
    assert await server.end(signal.SIGTERM) == 0


async def test_a_standby_that_lost_the_race_for_a_free_database_is_a_standby_at_once(
    pair: tuple[Started, Started], tmp_path: Path
) -> None:
    """While it waited for the lock nobody could ask it, and a watchdog heard nothing."""
    owner, standby = pair
    await owner.start()
    runs_first(standby, tmp_path, LOSES_THE_RACE)
    await standby.start()
    assert b"cannot take the database over, it waits again" in standby.log
    await becomes(standby, "standby")
    assert (await http(standby.status["metrics_port"], "/health"))[0] == 503


async def test_a_standby_that_could_not_take_a_database_over_says_why(
    pair: tuple[Started, Started], tmp_path: Path
) -> None:
    """It would say that another server owns the database, which nobody does."""
    server, _ = pair
    runs_first(server, tmp_path, HAS_NO_ROOM)
    await server.start()
    status = await server.ask("status")
    assert "the database could not be taken over" in status["health"]
    assert "No space left on device" in status["health"]
    assert not status["follows"]


async def test_a_mistake_in_the_settings_is_told_and_does_not_keep_a_standby_from_serving(
    pair: tuple[Started, Started],
) -> None:
    owner, standby = pair
    await owner.start()
    await standby.start()
    assert await standby.ask("reload") == {"taken": [], "after_a_restart": []}
    change(standby.folder, DS, ("takeover_s = 10", "takeover_s = 0"))
    with pytest.raises(OperatorError, match="takeover_s"):
        await standby.ask("reload")
    assert await owner.end(signal.SIGKILL) == -signal.SIGKILL
    await becomes(standby, "running")
    assert b"it takes over with the settings that it had" in standby.log


@pytest.mark.parametrize("by_signal", [False, True], ids=["asked", "signalled"])
async def test_a_standby_takes_a_corrected_database_from_its_settings(
    pair: tuple[Started, Started], database: str, by_signal: bool
) -> None:
    """Such as a new password: while it waits with the former one it would never take over."""
    server, _ = pair
    wrong = database.replace("tests@", "nobody@")
    change(server.folder, DS, (database, wrong))
    await server.start()
    await server.told(b"the database cannot be used")
    change(server.folder, DS, (f'database = "{wrong}"', "database = 1"))
    if by_signal:
        server.child.send(signal.SIGHUP)
        await server.told(b"nothing was changed")
    change(server.folder, DS, ("database = 1", f'database = "{database}"'))
    if by_signal:
        server.child.send(signal.SIGHUP)
    else:
        await server.ask("reload")
    await becomes(server, "running")


async def test_a_standby_that_does_not_see_its_database_is_not_well(tmp_path: Path) -> None:
    await asyncio.to_thread(make, DS, tmp_path / "one")
    shared(DS, tmp_path / "one", f"postgresql://tests@/missing?host={tmp_path}")
    server = started(DS, tmp_path / "one")
    try:
        await server.start()
        await server.told(b"the database cannot be used")
        status = await server.ask("status")
        assert (status["state"], status["follows"]) == ("standby", False)
        _, metrics = await http(status["metrics_port"], "/metrics")
        assert "blindpost_ds_standby 0" in metrics
        assert (await find(tmp_path / "one").look()).health is Health.NOT_READY
        with pytest.raises(OperatorError, match="a standby is not upgraded while it waits: restart it"):
            await server.ask("upgrade")
        assert await server.end(signal.SIGINT) == 0
    finally:
        await server.close()


async def test_ports_that_a_supervisor_holds_for_a_standby_are_told(pair: tuple[Started, Started]) -> None:
    owner, standby = pair
    await owner.start()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pass_sockets(standby.child, [listening])
        await standby.start()
        assert b"whoever connects to this standby waits in vain" in standby.log
        assert b"that [listen] does not name" not in standby.log


async def test_the_check_of_a_standby_that_does_not_run_finds_no_fault_with_the_owner(
    pair: tuple[Started, Started],
) -> None:
    owner, standby = pair
    await owner.start()
    told = await asyncio.to_thread(run, "ds", "check", "-c", standby.folder, "--json", code=1)
    assert "another server owns it, and this one would wait" in told.stdout
    change(standby.folder, DS, ("standby = true", "standby = false"))
    told = await asyncio.to_thread(run, "ds", "check", "-c", standby.folder, "--json", code=1)
    assert "another process uses this store" in told.stdout


async def test_the_check_of_a_standby_with_keys_of_its_own_says_that_it_could_never_serve(
    tmp_path: Path, database: str
) -> None:
    for name in ("one", "two"):
        await asyncio.to_thread(make, NTF, tmp_path / name)
        shared(NTF, tmp_path / name, database)
    owner = started(NTF, tmp_path / "one")
    try:
        await owner.start()
        await asyncio.to_thread(run, "ntf", "check", "-c", owner.folder, "--json")
        told = await asyncio.to_thread(run, "ntf", "check", "-c", tmp_path / "two", "--json", code=1)
        whose = NtfPlace.read(owner.folder).known_as
        assert f"the database belongs to the server {whose}, and this one is" in told.stdout
        change(tmp_path / "two", NTF, ("standby = true", "standby = false"))
        told = await asyncio.to_thread(run, "ntf", "check", "-c", tmp_path / "two", "--json", code=1)
        assert "another process uses this store" in told.stdout
    finally:
        await owner.close()


async def test_a_server_that_stops_does_not_hand_over(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits(_shared: object) -> bool:
        return True

    monkeypatch.setattr(processes, "_standby_waits", waits)
    await asyncio.to_thread(make, DS, tmp_path / "one")
    shared(DS, tmp_path / "one", database)
    process = await Process.open(DsService, DsPlace.read(tmp_path / "one"))
    try:
        process.stop()
        with pytest.raises(OperatorError, match="it is stopping already"):
            await process._handover({})
        assert not process.displaced
    finally:
        await process.service.close()


async def test_a_server_says_that_it_lives_while_it_begins(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the one that waits would take a long beginning for the silence of one that is frozen."""
    await asyncio.to_thread(make, DS, tmp_path / "one")
    shared(DS, tmp_path / "one", database)
    process = await Process.open(DsService, DsPlace.read(tmp_path / "one"))
    operator = await asyncpg.connect(database)
    heard = "SELECT max(state_change) FROM pg_stat_activity WHERE application_name = 'blindpost owner'"

    async def begin(_service: DsService) -> None:
        opened = await operator.fetchval(heard)

        async def lives() -> bool:
            return bool(await operator.fetchval(heard) > opened)

        await until(lives)

    monkeypatch.setattr(DsService, "begin", begin)
    await process.run(process.stop)
    await operator.close()


async def one_serves(servers: tuple[Started, Started]) -> None:
    """Wait until one of them serves and the other waits."""

    async def is_so() -> bool:
        states: list[str] = []
        for server in servers:
            assert server.child.runs, server.log.decode()
            with contextlib.suppress(OperatorError):
                status = await server.ask("status")
                states.append(f"{status['state']} {status['ready']}")
        return sorted(states) == ["running True", "standby False"]

    await until(is_so)


async def test_both_outlive_a_restart_of_the_database(
    pair: tuple[Started, Started], postgres: PostgresServer
) -> None:
    for server in pair:
        await server.start()
    for how in (signal.SIGINT, signal.SIGQUIT):
        await asyncio.to_thread(postgres.stop, how)
        postgres.spawn()
        await asyncio.to_thread(postgres.wait_ready)
        await one_serves(pair)


async def test_while_the_database_is_away_for_long_both_wait_and_nobody_can_connect(
    pair: tuple[Started, Started], postgres: PostgresServer
) -> None:
    owner, standby = pair
    for server in pair:
        change(server.folder, DS, ("takeover_s = 10", "takeover_s = 3"))
        await server.start()
    port = owner.status["ports"]["tls"]
    await asyncio.to_thread(postgres.stop)
    try:
        await becomes(owner, "standby")
        await becomes(standby, "standby")
        assert not owner.status["follows"]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    finally:
        postgres.spawn()
        await asyncio.to_thread(postgres.wait_ready)
    await one_serves(pair)
