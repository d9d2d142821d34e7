"""Values of the agent's vectors, built from how the vector files write them."""

from __future__ import annotations

from typing import Any

from blindpost.wire.addresses import Host, Server
from blindpost.wire.agent.messages import (
    AddedQueue,
    AMessage,
    AMsg,
    AQCont,
    ARcvd,
    EReady,
    Hello,
    KeyedQueue,
    QAdd,
    QKey,
    QTest,
    QUse,
    Receipt,
    UsedQueue,
)
from blindpost.wire.e2e import E2EParams, E2EParamsUri, KemAccepted, KemParams, KemProposed
from blindpost.wire.keys import PublicKey
from blindpost.wire.links.full import ContactLink, FullLink, InvitationLink
from blindpost.wire.links.short import ContactType, LinkScheme, ShortContact, ShortInvitation, ShortLink
from blindpost.wire.queue_addresses import QueueAddress, QueueInfo, QueueUri, SenderAddress
from blindpost.wire.smp.values import QueueMode
from blindpost.wire.versions import VersionRange
from tests.support.wire.long_values import ramp

Json = dict[str, Any]

KEM_KEY = ramp(0, 1158)
KEM_CIPHERTEXT = ramp(7, 1039)
"""The public key and ciphertext of all vectors with a KEM, as the files describe them."""

_MODES = {None: None, "messaging": QueueMode.MESSAGING, "contact": QueueMode.CONTACT}


def key(spki: str) -> PublicKey:
    return PublicKey.from_spki(bytes.fromhex(spki))


def server(value: Json) -> Server:
    hosts = tuple(Host(host) for host in value["hosts"])
    return Server(hosts, value["port"], bytes.fromhex(value["keyHash"]))


def sender_address(value: Json) -> SenderAddress:
    return SenderAddress(server(value["server"]), bytes.fromhex(value["senderId"]))


def queue_address(value: Json) -> QueueAddress:
    sender_id = bytes.fromhex(value["senderId"])
    return QueueAddress(server(value["server"]), sender_id, key(value["dh"]), _MODES[value["mode"]])


def queue_info(value: Json) -> QueueInfo:
    return QueueInfo(value["version"], queue_address(value["address"]))


def queue_uri(value: Json) -> QueueUri:
    return QueueUri(VersionRange(value["min"], value["max"]), queue_address(value["address"]))


def full_link(value: Json) -> FullLink:
    """The link without its scheme, which is only a way of writing it."""
    data = value["data"]
    versions = VersionRange(data["agent_min"], data["agent_max"])
    queues = tuple(queue_uri(queue) for queue in data["queues"])
    if value["mode"] == "contact":
        return ContactLink(versions, queues, data["clientData"])
    assert value["mode"] == "invitation"
    return InvitationLink(versions, queues, _e2e_uri(value["e2e"]), data["clientData"])


def _e2e_uri(value: Json) -> E2EParamsUri:
    kem = None if value["kem_key_sha256"] is None else KemProposed(KEM_KEY)
    return E2EParamsUri(VersionRange(value["min"], value["max"]), key(value["k1"]), key(value["k2"]), kem)


def e2e_params(value: Json) -> E2EParams:
    kems: dict[str, KemParams | None] = {
        "none": None,
        "absent (not encoded)": None,
        "proposed": KemProposed(KEM_KEY),
        "accepted": KemAccepted(KEM_CIPHERTEXT, KEM_KEY),
    }
    return E2EParams(value["version"], key(value["k1"]), key(value["k2"]), kems[value["kem"]])


def short_link(value: Json) -> ShortLink:
    where, link_key = server(value["server"]), bytes.fromhex(value["linkKey"])
    scheme = LinkScheme(value["scheme"])
    if value["mode"] == "contact":
        return ShortContact(ContactType(value["type"]), where, link_key, scheme)
    assert value["mode"] == "invitation"
    return ShortInvitation(where, bytes.fromhex(value["linkId"]), link_key, scheme)


def a_message(tag: str, value: Json) -> AMessage:
    match tag:
        case "H":
            return Hello()
        case "M":
            return AMsg(bytes.fromhex(value["body"]))
        case "V":
            return ARcvd(tuple(_receipt(receipt) for receipt in value["receipts"]))
        case "QC":
            return AQCont(sender_address(value["address"]))
        case "QA":
            return QAdd(tuple(_added(queue) for queue in value["queues"]))
        case "QK":
            return QKey(tuple(KeyedQueue(queue_info(q["queue"]), key(q["key"])) for q in value["queues"]))
        case "QU":
            return QUse(tuple(UsedQueue(sender_address(q["address"]), q["primary"]) for q in value["queues"]))
        case "QT":
            return QTest(tuple(sender_address(address) for address in value["addresses"]))
        case "E":
            return EReady(value["lastReceivedMsgId"])
    raise AssertionError(f"a vector of an unknown message type {tag}")


def _receipt(value: Json) -> Receipt:
    return Receipt(value["msgId"], bytes.fromhex(value["msgHash"]), bytes.fromhex(value["rcptInfo"]))


def _added(value: Json) -> AddedQueue:
    replaced = None if value["replaced"] is None else sender_address(value["replaced"])
    return AddedQueue(queue_uri(value["queue"]), replaced)
