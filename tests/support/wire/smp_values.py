"""SMP values from the JSON of the golden vectors: a tag or field that nobody knows fails the test."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime
from typing import Any

from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import PublicKey
from blindpost.wire.signed_key import CertKey, signed_key_from_der
from blindpost.wire.smp import commands as c
from blindpost.wire.smp import errors as e
from blindpost.wire.smp import responses as r
from blindpost.wire.smp.commands import Command
from blindpost.wire.smp.errors import SMPError
from blindpost.wire.smp.names import NameRecord
from blindpost.wire.smp.queue_info import MessageInfo, MessageType, QueueInfo, SubInfo, SubThread
from blindpost.wire.smp.responses import Response
from blindpost.wire.smp.values import (
    LinkData,
    NewLink,
    NtfCreds,
    QueueMode,
    QueueRequest,
    ServerNtfCreds,
    SubMode,
)
from blindpost.wire.versions import VersionRange

Json = dict[str, Any]


def command_of(value: Json) -> Command:
    """The command that a vector describes."""
    fields = dict(value)
    command = _COMMANDS[fields.pop("tag")](fields)
    assert not fields, f"unused: {sorted(fields)}"
    return command


def response_of(value: Json) -> Response:
    """The response that a vector describes."""
    fields = dict(value)
    response = _RESPONSES[fields.pop("tag")](fields)
    assert not fields, f"unused: {sorted(fields)}"
    return response


def error_of_text(text: str) -> SMPError:
    """An error without parameters from its text, as results of parsers name it."""
    kind, _, rest = text.partition(" ")
    return e.CMD(e.CommandError(rest.encode())) if kind == "CMD" else e.Code(text.encode())


def error_of(value: Json) -> SMPError:
    """The error that a vector describes in the reference's JSON form."""
    match value:
        case {"type": "CMD", "cmdErr": {"type": kind}}:
            return e.CMD(e.CommandError(kind.encode()))
        case {"type": "PROXY", "proxyErr": {"type": "PROTOCOL", "protocolErr": inner}}:
            return e.PROXY(e.PROTOCOL(error_of(inner)))
        case {"type": "PROXY", "proxyErr": {"type": "BROKER", "brokerErr": inner}}:
            return e.PROXY(e.BROKER(_broker(inner)))
        case {"type": "PROXY", "proxyErr": {"type": kind}}:
            return e.PROXY(e.ProxyCode(kind.encode()))
        case {"type": "BLOCKED", "blockInfo": info}:
            notice = e.Notice(info["notice"].get("ttl")) if "notice" in info else None
            return e.BLOCKED(e.BlockingReason(info["reason"].encode()), notice)
        case {"type": "STORE", "storeErr": text}:
            return e.STORE(text)
        case {"type": "NAME", "nameErr": {"type": "RESOLVER", "resolverErr": text}}:
            return e.NAME(e.RESOLVER(text))
        case {"type": "NAME", "nameErr": {"type": kind}}:
            return e.NAME(e.NameCode(kind.encode()))
        case {"type": kind}:
            return e.Code(kind.encode())
    raise AssertionError(value)


_TRANSPORT = {
    "badBlock": e.TransportCode.BLOCK,
    "version": e.TransportCode.VERSION,
    "largeMsg": e.TransportCode.LARGE_MSG,
    "badSession": e.TransportCode.SESSION,
    "noServerAuth": e.TransportCode.NO_AUTH,
}


def _broker(value: Json) -> e.BrokerError:
    match value:
        case {"type": "RESPONSE", "respErr": text}:
            return e.RESPONSE(text)
        case {"type": "UNEXPECTED", "respErr": text}:
            return e.UNEXPECTED(text)
        case {"type": "TRANSPORT", "transportErr": {"type": "handshake", "handshakeErr": {"type": kind}}}:
            return e.TRANSPORT(e.TransportCode(f"HANDSHAKE {kind}".encode()))
        case {"type": "TRANSPORT", "transportErr": {"type": kind}}:
            return e.TRANSPORT(_TRANSPORT[kind])
        case {"type": "NETWORK", "networkError": detail}:
            return _network(detail)
        case {"type": kind}:
            return e.BrokerCode(kind.encode())
    raise AssertionError(value)


def _network(value: Json) -> e.NETWORK:
    match value:
        case {"type": "connectError", "connectError": text}:
            return e.NETWORK(e.NetworkFailure.CONNECT, text)
        case {"type": "tLSError", "tlsError": text}:
            return e.NETWORK(e.NetworkFailure.TLS, text)
        case {"type": "subscribeError", "subscribeError": text}:
            return e.NETWORK(e.NetworkFailure.SUBSCRIBE, text)
        case {"type": "unknownCAError"}:
            return e.NETWORK(e.NetworkFailure.UNKNOWN_CA)
        case {"type": "failedError"}:
            return e.NETWORK(e.NetworkFailure.FAILED)
        case {"type": "timeoutError"}:
            return e.NETWORK(e.NetworkFailure.TIMEOUT)
    raise AssertionError(value)


def key_of(spki: str) -> PublicKey:
    return PublicKey.from_spki(bytes.fromhex(spki))


def _taken(fields: Json, name: str) -> bytes:
    return bytes.fromhex(fields.pop(name))


def _optional(fields: Json, name: str) -> bytes | None:
    found = fields.pop(name)
    return None if found is None else bytes.fromhex(found)


def _key(fields: Json, name: str) -> PublicKey:
    return key_of(fields.pop(name))


def _password(fields: Json) -> bytes | None:
    found = fields.pop("basicAuth")
    return None if found is None else found.encode("latin-1")


def _link_data(fields: Json) -> LinkData:
    return LinkData(_taken(fields, "fixedData"), _taken(fields, "userData"))


def _request(value: Json | None) -> QueueRequest | None:
    if value is None:
        return None
    mode, data = QueueMode(value["mode"].encode()), value["data"]
    if data is None:
        return QueueRequest(mode)
    link_id = bytes.fromhex(data["linkId"]) if "linkId" in data else None
    return QueueRequest(mode, NewLink(bytes.fromhex(data["senderId"]), _link_data(dict(data)), link_id))


def _ntf_creds(fields: Json) -> NtfCreds:
    return NtfCreds(_key(fields, "notifierKey"), _key(fields, "rcvNtfDhKey"))


def _new(fields: Json) -> Command:
    creds = fields.pop("ntfCreds")
    return c.NEW(
        auth_key=_key(fields, "rcvAuthKey"),
        dh_key=_key(fields, "rcvDhKey"),
        basic_auth=_password(fields),
        sub_mode=SubMode(fields.pop("subMode").encode()),
        request=_request(fields.pop("request")),
        ntf_creds=None if creds is None else _ntf_creds(dict(creds)),
    )


def _prxy(fields: Json) -> Command:
    hosts = tuple(Host(host) for host in fields.pop("hosts"))
    relay = Server(hosts, fields.pop("port"), _taken(fields, "fingerprint"))
    return c.PRXY(relay, _password(fields))


def _lset(fields: Json) -> Command:
    return c.LSET(_taken(fields, "linkId"), _link_data(dict(fields.pop("data"))))


def _bare(value: Any) -> Callable[[Json], Any]:
    return lambda fields: value


_COMMANDS: dict[str, Callable[[Json], Command]] = {
    "SUB": _bare(c.SUB()),
    "LDEL": _bare(c.LDEL()),
    "LGET": _bare(c.LGET()),
    "NDEL": _bare(c.NDEL()),
    "NSUB": _bare(c.NSUB()),
    "GET": _bare(c.GET()),
    "OFF": _bare(c.OFF()),
    "DEL": _bare(c.DEL()),
    "QUE": _bare(c.QUE()),
    "PING": _bare(c.PING()),
    "NEW": _new,
    "SUBS": lambda fields: c.SUBS(fields.pop("count"), _taken(fields, "idsHash")),
    "NSUBS": lambda fields: c.NSUBS(fields.pop("count"), _taken(fields, "idsHash")),
    "KEY": lambda fields: c.KEY(_key(fields, "key")),
    "SKEY": lambda fields: c.SKEY(_key(fields, "key")),
    "LKEY": lambda fields: c.LKEY(_key(fields, "key")),
    "RKEY": lambda fields: c.RKEY(tuple(key_of(spki) for spki in fields.pop("keys"))),
    "LSET": _lset,
    "NKEY": lambda fields: c.NKEY(_ntf_creds(fields)),
    "ACK": lambda fields: c.ACK(_taken(fields, "msgId")),
    "SEND": lambda fields: c.SEND(fields.pop("notification"), _taken(fields, "body")),
    "PRXY": _prxy,
    "PFWD": lambda fields: c.PFWD(
        fields.pop("version"), _key(fields, "cmdKey"), _taken(fields, "encTransmission")
    ),
    "RFWD": lambda fields: c.RFWD(_taken(fields, "encForward")),
    "RSLV": lambda fields: c.RSLV(fields.pop("domain")),
}


def _server_ntf(fields: Json) -> ServerNtfCreds:
    return ServerNtfCreds(_taken(fields, "notifierId"), _key(fields, "srvNtfDhKey"))


def _ids(fields: Json) -> Response:
    mode, ntf = fields.pop("mode"), fields.pop("ntf")
    return r.IDS(
        recipient_id=_taken(fields, "recipientId"),
        sender_id=_taken(fields, "senderId"),
        dh_key=_key(fields, "srvDhKey"),
        mode=None if mode is None else QueueMode(mode.encode()),
        link_id=_optional(fields, "linkId"),
        service_id=_optional(fields, "serviceId"),
        ntf_creds=None if ntf is None else _server_ntf(dict(ntf)),
    )


def _pkey(fields: Json) -> Response:
    chain = tuple(bytes.fromhex(certificate) for certificate in fields.pop("certificates"))
    cert_key = CertKey(chain, signed_key_from_der(_taken(fields, "signedKey")))
    versions = VersionRange(fields.pop("minV"), fields.pop("maxV"))
    return r.PKEY(_taken(fields, "relaySessionId"), versions, cert_key)


def _info(fields: Json) -> Response:
    info = fields.pop("info")
    sub, msg = info.get("qiSub"), info.get("qiMsg")
    delivered = None if sub is None or "qDelivered" not in sub else base64.b64decode(sub["qDelivered"])
    return r.INFO(
        QueueInfo(
            secured=info["qiSnd"],
            notifier=info["qiNtf"],
            sub=None if sub is None else SubInfo(SubThread(sub["qSubThread"]), delivered),
            size=info["qiSize"],
            msg=None if msg is None else _message_info(msg),
        )
    )


def _message_info(msg: Json) -> MessageInfo:
    whole, _, fraction = msg["msgTs"].removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    nanoseconds = seconds * 10**9 + int(fraction.ljust(9, "0") or "0")
    return MessageInfo(base64.b64decode(msg["msgId"]), nanoseconds, MessageType(msg["msgType"]))


def _rname(fields: Json) -> Response:
    record = dict(fields.pop("record"))
    return r.RNAME(
        NameRecord(
            simplex_contact=tuple(record.pop("simplexContact")),
            simplex_channel=tuple(record.pop("simplexChannel")),
            **record,
        )
    )


def _err(fields: Json) -> Response:
    fields.pop("error")
    return r.ERR(error_of(fields.pop("errorJSON")))


_RESPONSES: dict[str, Callable[[Json], Response]] = {
    "OK": _bare(r.OK()),
    "PONG": _bare(r.PONG()),
    "END": _bare(r.END()),
    "ALLS": _bare(r.ALLS()),
    "DELD": _bare(r.DELD()),
    "IDS": _ids,
    "SOK": lambda fields: r.SOK(_optional(fields, "serviceId")),
    "SOKS": lambda fields: r.SOKS(fields.pop("count"), _taken(fields, "idsHash")),
    "ENDS": lambda fields: r.ENDS(fields.pop("count"), _taken(fields, "idsHash")),
    "MSG": lambda fields: r.MSG(_taken(fields, "msgId"), _taken(fields, "encBody")),
    "LNK": lambda fields: r.LNK(_taken(fields, "senderId"), _link_data(fields)),
    "NID": lambda fields: r.NID(_server_ntf(fields)),
    "NMSG": lambda fields: r.NMSG(_taken(fields, "nonce"), _taken(fields, "encMeta")),
    "PKEY": _pkey,
    "PRES": lambda fields: r.PRES(_taken(fields, "encResponse")),
    "RRES": lambda fields: r.RRES(_taken(fields, "encForwardResponse")),
    "INFO": _info,
    "RNAME": _rname,
    "ERR": _err,
}
