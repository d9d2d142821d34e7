"""A router with a journal that lives more than once."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from blindpost.client.errors import ClientError
from blindpost.crypto.ids_hash import QueueSet, id_hash
from blindpost.journal.folder import SEGMENTS
from blindpost.journal.frames import read_segment
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.commands import ACK, DEL, NKEY, SUBS
from blindpost.wire.smp.responses import MSG, NID, OK, SOKS
from blindpost.wire.smp.values import NtfCreds
from tests.support.router.connecting import connected
from tests.support.router.routers import a_message, new_key, new_queue, pushed
from tests.support.serving.commands import StartedRouter, edit, init, started

ON = ("'blindpost[pipeline]').\nenabled = false", "'blindpost[pipeline]').\nenabled = true")


def with_journal(folder: Path, *arguments: str) -> None:
    init(folder, *arguments)
    edit(folder, *ON)
    edit(folder, 'name = ""', 'name = "smp-1"')
    edit(folder, "quota = 128", "quota = 2")


async def traffic(router: StartedRouter) -> list[bytes]:
    """Every kind of end that a message can have, and services that agree or do not; all ids in it."""
    seen: list[bytes] = []
    async with await router.connect() as bob, await router.connect() as alice, await connected(router) as one:
        seen += [client.agreement.session_id for client in (bob, alice, one)]
        acked, full, kept = [await new_queue(bob) for _ in range(3)]
        served = [await new_queue(one) for _ in range(2)]
        for queue in (acked, full, kept, *served):
            seen += [queue.recipient_id, queue.sender_id]
        for _ in range(2):
            await alice.send(a_message(notify=True), acked.sender_id)
        response = (await pushed(bob)).response
        assert isinstance(response, MSG)
        seen.append(response.msg_id)
        await bob.send(ACK(response.msg_id), acked.recipient_id, acked.key)
        for _ in range(4):
            with contextlib.suppress(ClientError):
                await alice.send(a_message(), full.sender_id)
        assert await bob.send(DEL(), full.recipient_id, full.key) == OK()
        await alice.send(a_message(), kept.sender_id)
        creds = NtfCreds(new_key().public, new_key(Algorithm.X25519).public)
        nid = await bob.send(NKEY(creds), kept.recipient_id, kept.key)
        assert isinstance(nid, NID)
        seen.append(nid.creds.notifier_id)
        own = QueueSet.of([queue.recipient_id for queue in served])
    for claim in (own, QueueSet(7, own.ids_hash), own):
        async with await connected(router) as again:
            assert isinstance(await again.send(SUBS(claim.count, claim.ids_hash)), SOKS)
    seen += [own.ids_hash, id_hash(seen[3])]
    return seen


class Lives:
    """A router that lived twice, with the ids that took part, what it logged and what it recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.secrets: list[bytes] = []
        self.log = b""
        self.records: list[bytes] = []

    async def live(self, more: Callable[[StartedRouter], Awaitable[None]] | None = None) -> None:
        async with started(self.folder) as router:
            self.secrets += await traffic(router)
            if more is not None:
                await more(router)
            assert await router.end() == 0
            self.log += router.log
        for path in (self.journal / SEGMENTS).glob("*.seg"):
            self.records += [bytes(body) for body in read_segment(path.read_bytes()).bodies]
