"""A whole agent that goes through a recorded connection from its very beginning.

It makes or joins the recorded link itself, with the recorded keys as its draws, so that the confirmations and
messages it sends must be the recorded ones to the byte inside the ratchet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

from blindpost.agent import (
    Agent,
    AgentConfig,
    Connection,
    ContactRequested,
    CreatedLink,
    Received,
    SessionOptions,
    Versions,
)
from blindpost.agent.core import Core
from blindpost.agent.model import MessageKind
from blindpost.agent.store import messages, queues
from blindpost.client.calls import Call
from blindpost.client.options import SmpOptions
from blindpost.crypto.boxes import BoxKey
from blindpost.crypto.kem import Encapsulated, KemKeyPair
from blindpost.crypto.link_data import USER_DATA_SIZE
from blindpost.store.contract import Durability
from blindpost.testing.network import MemoryNetwork
from blindpost.wire.addresses import RouterAddress
from blindpost.wire.agent.envelopes import Invitation, read_agent_envelope
from blindpost.wire.agent.messages import (
    AgentConnInfo,
    AgentConnInfoReply,
    AgentMessage,
    ARcvd,
    read_agent_message,
)
from blindpost.wire.e2e import E2EParamsUri
from blindpost.wire.links.data import Signed, write_signed
from blindpost.wire.links.full import InvitationLink
from blindpost.wire.primitives import decode_whole, encode
from blindpost.wire.queue_addresses import QueueAddress, QueueUri
from blindpost.wire.smp.commands import LGET, LKEY, NEW, SEND, Command
from blindpost.wire.smp.responses import IDS, LNK, Response
from blindpost.wire.smp.values import NONCE_SIZE, LinkData, QueueMode
from blindpost.wire.versions import VersionRange
from tests.support.agent.ratchets import x448_public
from tests.support.agent.replay import CONFIRMATION_SIZES, recorded_pair, sha256, x25519_public
from tests.support.agent.replayed import Draws, ReplayedAgent, SentMessage

_NAMES = {
    MessageKind.CONN_INFO: "initiator",
    MessageKind.CONN_INFO_REPLY: "joiner",
    MessageKind.RATCHET_INFO: "R",
}
_MODES = {"M": QueueMode.MESSAGING, "C": QueueMode.CONTACT, None: None}


class HandshakeDraws(Draws):
    """Correlation ids are drawn too."""

    def __init__(self) -> None:
        super().__init__()
        self.corr_ids: deque[bytes] = deque()

    def entropy(self, count: int) -> bytes:
        if count == NONCE_SIZE and self.corr_ids:
            return self.corr_ids.popleft()
        return super().entropy(count)


class ReplayedHandshake(ReplayedAgent):
    """One transcript, with everything before its first event."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.draws: HandshakeDraws = HandshakeDraws()
        self.plains: list[bytes] = []
        self.created: CreatedLink | None = None
        self._new = deque(sorted(key for key in self.keys if key.startswith("rq")))
        self._versions = Versions(e2e=VersionRange(2, 2)) if name == "ratchet_v2" else Versions()
        self._conn: Connection | None = None

    async def run(self) -> None:
        servers = sorted({queue["server"] for queue in self.keys.values() if "server" in queue})
        config = AgentConfig(
            sessions=SessionOptions(client=SmpOptions(network=MemoryNetwork("nowhere"))),
            durability=Durability.OS,
            pair_maker=self.draws,
            entropy=self.draws.entropy,
            versions=self._versions,
        )
        async with Agent.open(self._path, servers, config=config) as agent:
            self._agent = agent
            rt = agent._opened
            assert rt is not None
            self._tap(rt)
            taking = asyncio.create_task(self._take(agent))
            await self._begin(agent)
            await asyncio.sleep(5)
            position = 0
            for event in self.events:
                position = await self._play(rt, event, position)
            assert position == len(self.sent), "nothing more is sent than was recorded"
            assert self.draws.exhausted
            taking.cancel()

    @property
    def conn(self) -> Connection:
        assert self._conn is not None
        return self._conn

    # How it begins

    async def _begin(self, agent: Agent) -> None:
        for name in ("sq1", "rq1") if "x3dh_S" in self.keys else ("rq1", "sq1"):
            self._queue_keys(name)
        if "short_link_read" in self.keys and self.keys["short_link_read"]["sender_auth_priv"]:
            self.draws.keys.appendleft(bytes.fromhex(self.keys["short_link_read"]["sender_auth_priv"]))
        if "x3dh_S" in self.keys:
            await self._join_invitation(agent)
        elif "contact_queue" in self.keys:
            await self._join_contact(agent)
        else:
            await self._create(agent)

    def _queue_keys(self, name: str) -> None:
        queue = self.keys.get(name)
        if queue is None:
            return
        order: tuple[str, ...] = ("rcv_auth_priv", "rcv_dh_priv", "e2e_priv")
        if name[0] == "s":
            known = "short_link_read" in self.keys and "x3dh_S" in self.keys
            order = ("e2e_priv",) if known else ("e2e_priv", "snd_auth_priv")
        self.draws.keys += [bytes.fromhex(queue[key]) for key in order]

    async def _join_invitation(self, agent: Agent) -> None:
        recorded, first = self.keys["x3dh_S"], self.events[0]
        self.draws.x448 += [bytes.fromhex(recorded[key]) for key in ("s1_priv", "s2_priv", "sD_priv")]
        kem = recorded["kem"]
        if kem is not None:
            self.draws.pairs.append(KemKeyPair(bytes.fromhex(kem["pk"]), bytes.fromhex(kem["sk"])))
            if "ct" in kem:
                made = Encapsulated(bytes.fromhex(kem["ct"]), bytes.fromhex(kem["ss"]))
                self.draws.encapsulated.append(made)
        confirmation = decode_whole(bytes.fromhex(first["agent_message"]), read_agent_message)
        assert isinstance(confirmation, AgentConnInfoReply)
        pq = CONFIRMATION_SIZES[first["padded_to"]]
        self._conn = await agent.join(self._link(), bytes(confirmation.info), pq=pq)

    def _link(self) -> str:
        """The link that was joined; where none is recorded it is made of its keys."""
        record = self.replay.record
        found = record.get("short_link") if "short_link_read" in self.keys else record.get("link")
        if found is not None:
            return str(found)
        queue, keys = self.keys["sq1"], self.keys["x3dh_S"]
        server = RouterAddress.from_text(queue["server"]).server
        sender_id, dh_key = bytes.fromhex(queue["sender_id"]), x25519_public(queue["peer_dh_pub"])
        uri = QueueUri(VersionRange(1, queue["client_version"]), QueueAddress(server, sender_id, dh_key))
        e2e = E2EParamsUri(VersionRange(2, 3), x448_public(keys["r1_pub"]), x448_public(keys["r2_pub"]))
        return InvitationLink(VersionRange(2, 7), (uri,), e2e).text

    def _proposed(self) -> None:
        recorded = self.keys["x3dh_R"]
        self.draws.x448 += [bytes.fromhex(recorded["r1_priv"]), bytes.fromhex(recorded["r2_priv"])]
        pair = recorded_pair(recorded)
        if pair is not None:
            self.draws.pairs.append(pair)

    async def _join_contact(self, agent: Agent) -> None:
        self._proposed()
        once = bytes.fromhex(self.keys["contact_queue"]["e2e_priv"])
        self.draws.keys.insert(3, once)
        envelope = decode_whole(bytes.fromhex(self.events[0]["agent_envelope"]), read_agent_envelope)
        assert isinstance(envelope, Invitation)
        text = self.replay.record["short_link" if "short_link_read" in self.keys else "link"]
        self._conn = await agent.join(text, bytes(envelope.info), pq=self._wants_pq())
        with agent._core.ground.transaction() as tx:
            tx.sql.execute("UPDATE connections SET own_conn_info = ?", (self._own_info(),))

    def _wants_pq(self) -> bool:
        """Whether the confirmation that goes out has room for a KEM."""
        sizes = [event["padded_to"] for event in self.events if event["note"].startswith("initiator confirm")]
        out = [CONFIRMATION_SIZES[size] for size in sizes if size is not None]
        return out[0] if out else "kem_pk" in self.keys.get("x3dh_R", {})

    def _own_info(self) -> bytes:
        """What the recorded side said about itself when it allowed the connection."""
        for event in self.events:
            if event["dir"] == "out" and event["note"].startswith("initiator confirmation"):
                content = decode_whole(bytes.fromhex(event["agent_message"]), read_agent_message)
                assert isinstance(content, AgentConnInfo)
                return bytes(content.info)
        return b""

    async def _create(self, agent: Agent) -> None:
        user_data = None
        if "short_link" in self.keys:
            self.draws.corr_ids.append(bytes.fromhex(self.keys["short_link"]["nonce_corr_id"]))
            self.draws.keys.insert(3, bytes.fromhex(self.keys["short_link"]["root_priv"]))
            user_data = b"python link data"
        if "x3dh_R" not in self.keys:
            self.draws.keys = deque(list(self.draws.keys)[: 4 if user_data is not None else 3])
            self.created = await agent.address(user_data=user_data)
        else:
            self._proposed()
            in_link = "kem_pk" in self.keys["x3dh_R"] and user_data is None
            allow = any(event["dir"] == "out" for event in self.events)
            self.created = await agent.invite(
                self._own_info(),
                auto_allow=allow,
                pq=self._wants_pq(),
                kem_in_link=in_link,
                user_data=user_data,
            )
        self._conn = self.created.conn

    # Routers that take everything

    async def _answer(self, rt: Core, call: Call[Command]) -> Response:
        if isinstance(call.command, NEW):
            self.commands.append("NEW")
            queue = self.keys[self._new.popleft()]
            link_id = None
            if "short_link" in self.keys:
                link_id = bytes.fromhex(self.keys["short_link"]["link_id"])
            ids = (bytes.fromhex(queue["recipient_id"]), bytes.fromhex(queue["sender_id"]))
            return IDS(*ids, x25519_public(queue["router_dh_pub"]), _MODES[queue["mode"]], link_id)
        if isinstance(call.command, LKEY | LGET):
            recorded = self.keys["short_link_read"]
            data = LinkData(bytes.fromhex(recorded["fixed_blob"]), _user_blob(recorded))
            return LNK(bytes.fromhex(recorded["sender_id"]), data)
        return await super()._answer(rt, call)

    async def _sends(self, rt: Core, call: Call[Command], command: SEND) -> None:
        if call.entity_id == bytes.fromhex(self.keys.get("contact_queue", {"sender_id": ""})["sender_id"]):
            self.sent.append(
                SentMessage("invitation", call.entity_id, 0, command.notify, call.key is not None)
            )
            self.plains.append(b"")
            return
        db, conn_id = rt.ground.store.reading, self.conn.id
        (queue,) = (one for one in queues.snd_queues(db, conn_id) if one.snd_id == call.entity_id)
        pending = messages.next_delivery(db, conn_id, queue.number)
        assert pending is not None
        query = "SELECT internal_snd_id FROM snd_messages WHERE conn_id = ? AND internal_id = ?"
        (number,) = db.sql.execute(query, (conn_id, pending.internal_id)).fetchone()
        kind = _NAMES.get(pending.kind, pending.kind.name)
        self.sent.append(SentMessage(kind, queue.snd_id, number, command.notify, call.key is not None))
        self.plains.append(pending.body)

    # One event

    async def _play(self, rt: Core, event: dict[str, Any], position: int) -> int:
        if event["note"].startswith("duplicate copy"):
            await self._receive(rt, {**self.events[2], "smp_message_id": "77" * 24})
            await asyncio.sleep(5)
            return position
        if event["note"] == "A_RCVD receipt":
            await self._receipt(event)
        position = await super()._play(rt, event, position)
        if event["dir"] == "out" and "agent_message" in event:
            assert self.plains[position - 1].hex() == event["agent_message"]
        return position

    async def _receipt(self, event: dict[str, Any]) -> None:
        message = decode_whole(bytes.fromhex(event["agent_message"]), read_agent_message)
        assert isinstance(message, AgentMessage)
        assert isinstance(message.message, ARcvd)
        received = [told for told in self.told if isinstance(told, Received)]
        await received[-1].msg.ack(bytes(message.message.receipts[0].info))

    def _compare(self, event: dict[str, Any], sent: SentMessage) -> None:
        super()._compare({"send_number": 0, **event}, sent)

    @property
    def requests(self) -> list[ContactRequested]:
        return [told for told in self.told if isinstance(told, ContactRequested)]


def _user_blob(recorded: dict[str, Any]) -> bytes:
    """The blob of user data, of which only the parts are recorded, and its hash."""
    signed = Signed(bytes.fromhex(recorded["user_signature"]), bytes.fromhex(recorded["user_data"]))
    nonce = bytes.fromhex(recorded["user_blob_nonce"])
    key = BoxKey(bytes.fromhex(recorded["sym_key"]))
    blob = nonce + bytes(key.seal_padded(nonce, encode(signed, write_signed), USER_DATA_SIZE))
    assert sha256(blob) == recorded["user_blob_sha256"]
    return blob
