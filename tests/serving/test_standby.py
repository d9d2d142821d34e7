"""Every server whose store is a database has a standby, by the same frame."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.serving.kinds import DS, NTF, Kind, change, http, make, started
from tests.support.serving.processes import until
from tests.support.store.postgres import database, postgres

__all__ = ["database", "postgres"]


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
