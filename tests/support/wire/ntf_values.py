"""Values of the notification protocol from the way the vectors write them."""

from __future__ import annotations

from typing import Any

from blindpost.wire.addresses import Host, Server
from blindpost.wire.keys import PublicKey
from blindpost.wire.ntf.commands import PING, SCHK, SDEL, SNEW, TCHK, TCRN, TDEL, TNEW, TRPL, TVFY, Command
from blindpost.wire.ntf.responses import ERR, IDSUB, IDTKN, OK, PONG, SUB, TKN, Response
from blindpost.wire.ntf.status import SubStatus, TokenStatus
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider
from blindpost.wire.private_keys import EncodedPrivateKey
from blindpost.wire.smp.errors import CMD, STORE, Code, CommandError, SMPError


def key_of(spki: str) -> PublicKey:
    return PublicKey.from_spki(bytes.fromhex(spki))


def token_of(value: dict[str, str]) -> DeviceToken:
    provider = PushProvider.from_text(value["provider_text"])
    assert provider.letters == value["provider"].encode()
    return DeviceToken(provider, value["token"].encode())


def server_of(value: dict[str, Any]) -> Server:
    return Server(tuple(map(Host, value["hosts"])), value["port"], bytes.fromhex(value["keyHash"]))


def command_of(value: dict[str, Any]) -> Command:
    """The command that a vector describes; an unknown tag fails."""
    match value["tag"]:
        case "TNEW":
            verify_key, dh_key = key_of(value["verifyKey"]), key_of(value["clientDhKey"])
            return TNEW(token_of(value["deviceToken"]), verify_key, dh_key)
        case "TVFY":
            return TVFY(bytes.fromhex(value["code"]))
        case "TCHK":
            return TCHK()
        case "TRPL":
            return TRPL(token_of(value["deviceToken"]))
        case "TDEL":
            return TDEL()
        case "TCRN":
            return TCRN(value["minutes"])
        case "SNEW":
            token_id, notifier_id = bytes.fromhex(value["tokenId"]), bytes.fromhex(value["notifierId"])
            key = EncodedPrivateKey.from_pkcs8(bytes.fromhex(value["notifierKey"]))
            return SNEW(token_id, server_of(value), notifier_id, key)
        case "SCHK":
            return SCHK()
        case "SDEL":
            return SDEL()
        case "PING":
            return PING()
        case tag:
            raise AssertionError(f"no command {tag}")


def error_of(text: str) -> SMPError:
    word, _, detail = text.partition(" ")
    if word == "CMD":
        return CMD(CommandError(detail.encode()))
    if word == "STORE":
        return STORE(detail)
    return Code(text.encode())


def response_of(value: dict[str, Any]) -> Response:
    """The response that a vector describes; an unknown tag fails."""
    match value["tag"]:
        case "IDTKN":
            return IDTKN(bytes.fromhex(value["tokenId"]), key_of(value["routerDhKey"]))
        case "IDSUB":
            return IDSUB(bytes.fromhex(value["subscriptionId"]))
        case "OK":
            return OK()
        case "PONG":
            return PONG()
        case "ERR":
            return ERR(error_of(value["error"]))
        case "TKN":
            return TKN(TokenStatus.from_text(value["status"]))
        case "SUB":
            return SUB(SubStatus.from_encoded(value["status"].encode()))
        case tag:
            raise AssertionError(f"no response {tag}")
