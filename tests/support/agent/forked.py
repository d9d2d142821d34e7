"""A small application on the agent, each life of it in a fresh fork of a process that has imported it.

The line `live` on standard input begins a life; `ready PID` and `ended STATUS` say when it begins and ends.
In a life every line is a request in JSON, answered by a line. What the application learns is in its journal
on disk before it acknowledges or goes on, so the journal outlives any kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from blindpost.agent import (
    Agent,
    AgentError,
    Connected,
    Connection,
    Event,
    Failed,
    RatchetSync,
    Received,
    SendFailed,
    Switched,
)


class Journal:
    """Lines that are on disk when `write` returns. Half a line at the end, left by a kill, is cut off."""

    def __init__(self, path: Path) -> None:
        whole = b""
        with suppress(FileNotFoundError):
            text = path.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")
        os.fdatasync(self._file)
        self.lines.append(line)

    def all(self, key: str) -> Iterator[Any]:
        return (line[key] for line in self.lines if key in line)

    def close(self) -> None:
        os.close(self._file)


class Application:
    """Sends numbered messages to its one peer, and writes down what comes."""

    def __init__(self, agent: Agent, journal: Journal) -> None:
        self.agent = agent
        self.journal = journal
        self.epoch = len(list(journal.all("restored")))
        """How often the store went back to an older one: message ids are counted anew then."""
        self.seen = {(line["epoch"], line["id"]) for line in journal.lines if "got" in line}
        self.conn: Connection | None = None
        for conn_id in journal.all("conn"):
            self.conn = agent.connection(conn_id)

    async def run(self) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            async for event in self.agent.events():
                await self._take(event)
        finally:
            listening.cancel()

    async def _take(self, event: Event) -> None:
        match event:
            case Received(_, msg):
                if (self.epoch, msg.id) not in self.seen:
                    self.seen.add((self.epoch, msg.id))
                    outcome = type(msg.integrity).__name__
                    self.journal.write(
                        got=msg.body.decode(),
                        id=msg.id,
                        epoch=self.epoch,
                        outcome=outcome,
                        number=msg.sender_number,
                    )
                await msg.ack()
            case Connected():
                self.journal.write(event="connected")
            case Switched(_, direction, phase):
                self.journal.write(event=f"switch {direction.value} {phase.value}")
            case RatchetSync(_, state, _):
                self.journal.write(event=f"sync {state.value}")
            case Failed(_, error) | SendFailed(_, _, error):
                self.journal.write(event=f"{event.name} {error}")

    async def _listen(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            try:
                answer = await self._do(json.loads(line))
            except AgentError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
        os._exit(1)

    async def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request["do"]
        if what == "invite":
            link = await self.agent.invite()
            self._know(link.conn)
            return {"link": link.text}
        if what == "join":
            self._know(await self.agent.join(request["link"]))
            return {}
        assert self.conn is not None
        match what:
            case "send":
                await self._send(self.conn, request["count"])
            case "switch":
                await self.conn.switch()
            case "synchronize":
                await self.conn.synchronize()
            case "backup":
                self.agent.backup(request["to"])
            case "stats":
                return self._stats(self.conn)
        return {}

    def _know(self, conn: Connection) -> None:
        self.conn = conn
        self.journal.write(conn=conn.id)

    async def _send(self, conn: Connection, count: int) -> None:
        """Each message has a label of its own: one that was cut off by a kill is not tried again."""
        first = len(list(self.journal.all("tried")))
        for number in range(first, first + count):
            self.journal.write(tried=number)
            await conn.send(str(number).encode())
            self.journal.write(sent=number)

    def _stats(self, conn: Connection) -> dict[str, Any]:
        stats, sql = conn.stats, self.agent._core.ground.store.reading.sql
        count = (
            "SELECT (SELECT count(*) FROM commands) + (SELECT count(*) FROM snd_message_deliveries),"
            " (SELECT max(rcv_queue_id) FROM rcv_queues)"
        )
        waiting, queues = sql.execute(count).fetchone()
        return {
            "rcv": [queue.server.port for queue in stats.rcv],
            "snd": [queue.server.port for queue in stats.snd],
            "switching": any(queue.switch for queue in stats.rcv) or any(queue.switch for queue in stats.snd),
            "sync": stats.sync_state.value,
            "waiting": waiting,
            "queues": queues,
        }


def live(folder: Path, servers: list[str]) -> None:
    """One life of the agent of this folder."""

    async def main() -> None:
        journal = Journal(folder / "journal")
        async with Agent.open(folder / "agent.db", servers) as agent:
            print(f"ready {os.getpid()}", flush=True)
            await Application(agent, journal).run()

    asyncio.run(main())


def main() -> None:
    folder, *servers = sys.argv[1:]
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as commands:
        for line in commands:
            if line.strip() != b"live":
                continue
            child = os.fork()
            if child == 0:
                live(Path(folder), servers)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            os.set_blocking(sys.stdin.fileno(), True)  # the life has read from it without blocking
            print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
