"""When a canary gives a connection up: by events of scripted agents, in the order that matters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

from blindpost.agent import Agent, Connection, Event, Received, SendFailed, Sent, SmpError
from blindpost.canary.nodes import Fleet
from blindpost.client.errors import RefusedError
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.smp.errors import Code

ADDRESS = "smp://u2dS9sG8nMNURyZwqASV4yROM28Er0luVTx5X1CsMrU=@127.0.0.1:1"
SERVER = RouterAddress.from_text(ADDRESS).server


class Scripted:
    """An agent with one connection, on which this happens."""

    def __init__(self, conn_id: str, script: Sequence[str] = ()) -> None:
        self.conn = Connection(cast(Any, None), conn_id)
        self._script = script

    async def events(self) -> AsyncIterator[Event]:
        refused = SmpError(SERVER, RefusedError(Code.AUTH))
        full = SmpError(SERVER, RefusedError(Code.QUOTA))
        for word in self._script:
            match word:
                case "received":
                    yield Received(self.conn, cast(Any, None))
                case "sent":
                    yield Sent(self.conn, 1, None)
                case "full":
                    yield SendFailed(self.conn, 1, full)
                case _:
                    yield SendFailed(self.conn, 1, refused)


async def left(folder: Path, script: str) -> int:
    """How many ends of the only connection are still used after this."""
    agents = {"one": Scripted("a", script.split()), "two": Scripted("b")}
    fleet = Fleet(
        cast("dict[str, Agent]", agents), dict.fromkeys(agents, ADDRESS), folder / "pairs.json", print
    )
    fleet._noted["one", "two"] = "a", "b"
    fleet._add("one", "two", agents["one"].conn)
    fleet._add("two", "one", agents["two"].conn)
    await fleet.listen("one")
    return len(fleet.ends)


async def test_a_connection_that_its_router_does_not_have_is_given_up(tmp_path: Path) -> None:
    assert await left(tmp_path, "gone gone") == 2
    assert await left(tmp_path, "gone gone gone") == 0
    assert (tmp_path / "pairs.json").read_text() == "[]"


async def test_what_comes_the_other_way_does_not_hide_that(tmp_path: Path) -> None:
    assert await left(tmp_path, "gone received gone received gone") == 0


async def test_a_router_that_takes_messages_again_is_kept(tmp_path: Path) -> None:
    assert await left(tmp_path, "gone gone sent gone gone") == 2
    assert await left(tmp_path, "full full full full") == 2, "a full queue is not gone"
