"""A bot with very many contacts in one store, as a service: start to ready, memory, a broadcast to all.

    python -m benchmarks.bot_scale [--contacts 100000] [--seconds 3600] [--json]

The router is the real command in a process of its own. Its store has, before it starts, two queues for each
contact: one that the bot receives from, which belongs to its service, and one that the contact would receive
from. The bot's store has the connections and the contacts, written by the agent's own functions; all have the
ratchet of one real connection, which was used in both directions. Ready is when the address is known and the
router has answered SUBS. A broadcast is stored when all of its messages are in the bot's store, and sent when
the router has taken them all; after `--seconds` it is left as it is, and counted. Every ten seconds it is
told how far it is, and how much memory it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import floor
from benchmarks.agent_scale import USER, server_of
from benchmarks.figures.rows import Better, Figure, as_json, single
from benchmarks.load.filling import derived, fill, fill_service, recipient_id, recipient_key, sender_id
from benchmarks.load.process import MeasuredRouter, measured_router
from benchmarks.load.rows import started
from blindpost.agent import AgentConfig, QueueStatus
from blindpost.agent.application import Transaction
from blindpost.agent.model import ConnMode, RcvQueue, SndQueue
from blindpost.agent.store import connections, queues, ratchets
from blindpost.agent.store import subscriptions as rows
from blindpost.agent.store.database import AgentStore
from blindpost.bot import Bot
from blindpost.chat import Contact, ContactState, Profile
from blindpost.chat.book import save_contact
from blindpost.chat.codec.fields import json_bytes
from blindpost.chat.codec.profiles import write_profile
from blindpost.crypto.credentials import Credentials, make_service
from blindpost.crypto.entropy import system_entropy
from blindpost.crypto.keys import PrivateKey
from blindpost.crypto.ratchet_state import Ratchet
from blindpost.store.contract import Durability
from blindpost.testing import World, run_virtual
from blindpost.wire.addresses import RouterAddress, Scheme, Server
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.values import QueueMode

FILL_STEP = 5_000
VERSION = 15


@dataclass(frozen=True)
class Result:
    """What so many contacts cost."""

    contacts: int
    store_mb: float
    ready_s: float
    memory_ready_mb: float
    broadcast_s: float
    stored: int
    """How many messages of the broadcast are in the store by then."""
    stored_s: float
    sent: int
    """How many of them the router has taken."""
    memory_most_mb: float


def a_ratchet(folder: Path) -> Ratchet:
    """Of a post-quantum connection that was really made, and was used in both directions."""
    found: list[Ratchet] = []

    async def main() -> None:
        async with World(folder) as world:
            alice, bob = await world.pair()
            await alice.conn.send(b"hello")
            await bob.agent.flush()
            await asyncio.sleep(5)
            ratchet = ratchets.find_ratchet(alice.agent._ground.store.reading, alice.conn.id)
            assert ratchet is not None
            found.append(ratchet)

    run_virtual(main())
    return found[0]


def fill_bot(
    path: Path, server: Server, count: int, service: tuple[bytes, Credentials], ratchet: Ratchet, told: str
) -> None:
    """A connection with a service's queue, a queue to send to, a ratchet and a contact, who knows the bot's
    profile, for each."""
    key, e2e_key = recipient_key(0), PrivateKey(Algorithm.X25519, derived("e2e key", 0, 32))
    secret, profile = derived("e2e secret", 0, 32), Profile("somebody with a name")
    store = AgentStore.open(path, durability=Durability.OS)
    with store.transaction() as db:
        rows.put_credentials(db, USER, server, service[1])
        rows.set_service_id(db, USER, server, service[0])
    for first in range(0, count, FILL_STEP):
        with store.transaction() as db:
            for number in range(first, min(first + FILL_STEP, count)):
                conn_id = f"connection {number:07}"
                connections.insert(db, conn_id, USER, ConnMode.INVITATION, agent_version=7, pq_support=True)
                rcv = RcvQueue(
                    conn_id=conn_id,
                    user_id=USER,
                    number=1,
                    server=server,
                    rcv_id=recipient_id(number),
                    snd_id=sender_id(number),
                    mode=QueueMode.MESSAGING,
                    key=key,
                    dh_secret=secret,
                    e2e_key=e2e_key,
                    e2e_secret=secret,
                    client_version=4,
                    status=QueueStatus.ACTIVE,
                    service_associated=True,
                )
                queues.insert_rcv(db, rcv)
                snd = SndQueue(
                    conn_id=conn_id,
                    user_id=USER,
                    number=1,
                    server=server,
                    snd_id=sender_id(count + number),
                    mode=QueueMode.MESSAGING,
                    key=key,
                    e2e_public=e2e_key.public,
                    e2e_secret=secret,
                    client_version=4,
                    status=QueueStatus.ACTIVE,
                )
                queues.insert_snd(db, snd)
                ratchets.set_ratchet(db, conn_id, ratchet)
                contact = Contact(conn_id, profile, ContactState.CONNECTED, VERSION, told=told)
                save_contact(Transaction(db, frozenset(), USER, lambda _: None), contact)  # type: ignore[arg-type]  # it only writes
    store.close()


async def measured(router: MeasuredRouter, folder: Path, count: int, seconds: float) -> Result:
    ratchet = await asyncio.to_thread(a_ratchet, folder / "world")
    service_id, credentials = derived("service id", 0, 24), make_service(int(time.time()), system_entropy)
    await fill_service(router.store, service_id, credentials, count, 0)
    await fill(router.store, count, usable=False, first=count)
    async with started(router):
        server, path = server_of(router), folder / "bot.db"
        address = RouterAddress(Scheme.SMP, server).text
        config = AgentConfig(durability=Durability.OS)
        bot = Bot("Scale", servers=[address], store=path, service=True, config=config)
        told = hashlib.sha256(json_bytes(write_profile(bot._profile()))).hexdigest()[:12]
        fill_bot(path, server, count, (service_id, credentials), ratchet, told)
        store_mb = path.stat().st_size / 1e6
        forget_most()
        began = time.perf_counter()
        async with bot.open():
            subscriptions = bot.chats.agent._core.subscriptions
            work = subscriptions.work(subscriptions.sessions.key(USER, server))
            while (up := work.table.active_service) is None or up.queues.count < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            ready_s, ready_mb = time.perf_counter() - began, memory_mb("VmRSS")
            broadcast_s, stored, stored_s, sent = await broadcast(bot, seconds)
    # The kernel notes the most a little late: it may lie some pages below what was read before.
    most_mb = max(memory_mb("VmHWM"), ready_mb)
    return Result(count, store_mb, ready_s, ready_mb, broadcast_s, stored, stored_s, sent, most_mb)


async def broadcast(bot: Bot, seconds: float) -> tuple[float, int, float, int]:
    """To everybody, for so long at most: how long it took, how many were stored, in what time, how many
    were sent."""
    waiting = "SELECT count(*) FROM snd_message_deliveries"
    sql = bot.chats.agent._ground.store.reading.sql
    began = time.perf_counter()
    progress = await bot.broadcast("We are back, and this is what we have to say.", key="one")

    async def whole() -> None:
        await progress.finished()
        await bot.chats.agent.flush()

    working, stored_s = asyncio.create_task(whole()), 0.0
    while True:
        await asyncio.wait([working], timeout=min(10.0, seconds))
        took = time.perf_counter() - began
        stored, (left,) = progress.sent, sql.execute(waiting).fetchone()
        stored_s = took if not stored_s or not progress.done else stored_s
        told = f"stored {stored:,}, sent {stored - left:,}, {memory_mb('VmRSS'):.0f} MB"
        print(f"{took:6.0f} s  {told}", file=sys.stderr)
        if working.done() or took >= seconds:
            working.cancel()
            return took, stored, stored_s, stored - left


def forget_most() -> None:
    """Let the kernel count the most memory from here on."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_mb(what: str) -> float:
    """Of this process, from the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith(f"{what}:")]
    return int(found.split()[1]) / 1024


def shown(result: Result) -> str:
    lines = [f"{what}: {value}" for what, value in floor.machine().items()]
    count = result.contacts
    lines += [
        "",
        f"{count:,} contacts in a store of {result.store_mb:,.0f} MB",
        f"  start to ready     {result.ready_s:8.2f} s, {result.memory_ready_mb:,.0f} MB",
        f"  broadcast stored   {result.stored:8,} in {result.stored_s:.0f} s,"
        f" {result.stored / result.stored_s:,.0f} contacts/s",
        f"  broadcast sent     {result.sent:8,} in {result.broadcast_s:.0f} s,"
        f" {result.sent / result.broadcast_s:,.0f} contacts/s",
        f"  memory at the most {result.memory_most_mb:8.0f} MB",
    ]
    return "\n".join(lines)


def figures(result: Result) -> list[Figure]:
    of = f"{result.contacts:,} contacts"
    return [
        single(f"{of}: start to ready", "s", result.ready_s),
        single(f"{of}: memory when ready", "MB", result.memory_ready_mb),
        single(f"{of}: memory at the most", "MB", result.memory_most_mb),
        single(f"{of}: broadcast stored", "contacts/s", result.stored / result.stored_s, Better.HIGHER),
        single(f"{of}: broadcast sent", "contacts/s", result.sent / result.broadcast_s, Better.HIGHER),
        single(f"{of}: store", "MB", result.store_mb),
    ]


def run(contacts: int, seconds: float = 3600.0) -> Result:
    with tempfile.TemporaryDirectory() as folder, measured_router() as router:
        return asyncio.run(measured(router, Path(folder), contacts, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a bot with very many contacts.")
    parser.add_argument("--contacts", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long a broadcast may take")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    result = run(arguments.contacts, arguments.seconds)
    if arguments.json:
        print(as_json(figures(result)))
    else:
        print(shown(result))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
