"""The names of metrics: the reference's where it has one, misspellings included, ours otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from blindpost.router.meters import Meter

REFERENCE, OURS = "simplex_smp_", "blindpost_"


@dataclass(frozen=True, slots=True)
class Name:
    """A metric, what it is, and the label by which its samples differ."""

    text: str
    help: str
    label: tuple[str, str] | None = None


def _typed(text: str, kind: str, help: str) -> Name:  # noqa: A002 - Prometheus' own word
    return Name(REFERENCE + text, help, ("type", kind))


_SERVICE_COUNTERS = {
    "assocNew": ("assoc_new", "New associations of queues with services"),
    "assocDuplicate": ("assoc_duplicate", "Associations that were there already"),
    "assocUpdated": ("assoc_updated", "Associations that moved to another service"),
    "assocRemoved": ("assoc_removed", "Associations removed"),
    "subCount": ("sub_count", "Subscriptions of whole services"),
    "subDuplicate": ("sub_duplicate", "Repeated subscriptions of whole services"),
    "subQueues": ("sub_queues", "Queues subscribed through services"),
    "subEnd": ("sub_end", "Ended subscriptions of services"),
    "subOk": ("sub_ok", "Service subscriptions where both sides agreed"),
    "subMore": ("sub_more", "Service subscriptions where the router had more queues"),
    "subFewer": ("sub_fewer", "Service subscriptions where the router had fewer queues"),
    "subDiff": ("sub_diff", "Service subscriptions with as many queues and others"),
    "subMoreTotal": ("sub_more_total", "Queues that only the router had"),
    "subFewerTotal": ("sub_fewer_total", "Queues that only the service had"),
}

COUNTERS: dict[Meter, Name] = {
    Meter.QUEUES_CREATED: Name(REFERENCE + "queues_created", "Queues created"),
    Meter.QUEUES_SECURED: Name(REFERENCE + "queues_secured", "Queues secured"),
    Meter.QUEUES_DELETED: _typed("queues_deleted", "all", "Queues deleted"),
    Meter.QUEUES_DELETED_NEW: _typed("queues_deleted", "new", "Queues deleted"),
    Meter.QUEUES_DELETED_SECURED: _typed("queues_deleted", "secured", "Queues deleted"),
    Meter.QUEUES_DELETED_BATCHES: Name(REFERENCE + "queues_deleted_batch", "Blocks of several, DEL first"),
    Meter.QUEUES_BLOCKED: Name(REFERENCE + "queues_blocked", "Queues blocked"),
    Meter.SUBS: Name(REFERENCE + "subscribtion_successes", "Subscriptions that delivered a message"),
    Meter.SUB_BATCHES: Name(REFERENCE + "subscribtion_successes_batch", "Blocks of several, SUB first"),
    Meter.SUB_ENDS: Name(REFERENCE + "subscribtion_end", "END and DELD sent"),
    Meter.SUB_END_BATCHES: Name(REFERENCE + "subscribtion_end_batch", "Turns in which END or DELD was sent"),
    Meter.SUB_AUTH: _typed("subscribtion_errors", "auth", "Refused SUB"),
    Meter.SUB_DUPLICATE: _typed("subscribtion_errors", "duplicate", "Refused SUB"),
    Meter.SUB_PROHIBITED: _typed("subscribtion_errors", "prohibited", "Refused SUB"),
    Meter.SENT: Name(REFERENCE + "messages_sent", "Messages sent"),
    Meter.SENT_AUTH: _typed("messages_sent_errors", "auth", "Refused SEND"),
    Meter.SENT_QUOTA: _typed("messages_sent_errors", "quota", "Refused SEND"),
    Meter.SENT_LARGE: _typed("messages_sent_errors", "large", "Refused SEND"),
    Meter.SENT_BLOCKED: _typed("messages_sent_errors", "block", "Refused SEND"),
    Meter.RECEIVED: Name(REFERENCE + "messages_received", "Messages acknowledged"),
    Meter.EXPIRED: Name(REFERENCE + "messages_expired", "Messages expired"),
    Meter.SENT_NTF: Name(REFERENCE + "messages_notify_sent", "Messages sent with the notification flag"),
    Meter.RECEIVED_NTF: Name(
        REFERENCE + "messages_notify_received", "Messages acknowledged with the notification flag"
    ),
    Meter.GETS: Name(REFERENCE + "messages_notify_get_sent", "GET answered with a message"),
    Meter.RECEIVED_GET: Name(REFERENCE + "messages_notify_get_received", "Messages acknowledged after GET"),
    Meter.GETS_EMPTY: _typed("messages_notify_get_errors", "nomsg", "GET without a message"),
    Meter.GET_AUTH: _typed("messages_notify_get_errors", "auth", "GET without a message"),
    Meter.GET_DUPLICATE: _typed("messages_notify_get_errors", "duplicate", "GET without a message"),
    Meter.GET_PROHIBITED: _typed("messages_notify_get_errors", "prohibited", "GET without a message"),
    Meter.NTF_CREATED: Name(REFERENCE + "queues_notify_created", "Notifiers created"),
    Meter.NTF_NEW_CREATED: Name(REFERENCE + "queues_notify_new_created", "Queues created with a notifier"),
    Meter.NTF_DELETED: Name(REFERENCE + "queues_notify_deleted", "Notifiers deleted"),
    Meter.NTF_DELETED_BATCHES: Name(
        REFERENCE + "queues_notify_deleted_batch", "Blocks of several, NDEL first"
    ),
    Meter.NTFS: Name(REFERENCE + "messages_ntf_successes", "Notifications delivered"),
    Meter.NTF_BATCHES: Name(
        REFERENCE + "messages_ntf_successes_batch", "Turns in which notifications were delivered"
    ),
    Meter.NTF_NO_SUB: _typed("messages_ntf_errors", "nosub", "Notifications that were not delivered"),
    Meter.NTF_LOST: _typed("messages_ntf_errors", "lost", "Notifications that were not delivered"),
    Meter.NTF_EXPIRED: _typed("messages_ntf_errors", "expired", "Notifications that were not delivered"),
    Meter.NTF_SUBS: Name(REFERENCE + "subscription_ntf_requests", "NSUB"),
    Meter.NTF_SUB_BATCHES: Name(
        REFERENCE + "subscription_ntf_requests_batch", "Blocks of several, NSUB first"
    ),
    Meter.NTF_SUB_AUTH: _typed("subscribtion_ntf_errors", "auth", "Refused NSUB"),
    Meter.NTF_SUB_DUPLICATE: _typed("subscribtion_ntf_errors", "duplicate", "Refused NSUB"),
    Meter.RCV_WALK_DUPLICATES: Name(
        REFERENCE + "rcv_services_sub_duplicate_count",
        "Queues of services that had a message under way when the service subscribed",
    ),
    Meter.RCV_WALK_MESSAGES: Name(
        REFERENCE + "rcv_services_sub_msg_count", "Messages delivered to services when they subscribed"
    ),
}

_PROXY = {"pRelays": "relay_sessions", "pMsgFwds": "relay_messages"}
_PROXY_FIELDS = {
    "requests": ("requests", None),
    "successes": ("successes", None),
    "errorsConnect": ("errors", "connect"),
    "errorsCompat": ("errors", "compat"),
    "errorsOther": ("errors", "other"),
}


def counter_name(meter: Meter) -> tuple[Name, tuple[tuple[str, str], ...]]:
    """The metric of a counter and all labels of its sample."""
    known = COUNTERS.get(meter)
    if known is not None:
        return known, () if known.label is None else (known.label,)
    group, _, field = meter.value.partition(".")
    if group in {"rcvServices", "ntfServices"} and field in _SERVICE_COUNTERS:
        text, help_text = _SERVICE_COUNTERS[field]
        return Name(f"{REFERENCE}{group[:3]}_services_{text}", help_text), ()
    source = "own" if group.endswith("Own") else "all"
    proxy = _PROXY.get(group.removesuffix("Own"))
    if proxy is not None and field in _PROXY_FIELDS:
        text, kind = _PROXY_FIELDS[field]
        labels = (("source", source), *(() if kind is None else (("type", kind),)))
        return Name(f"{REFERENCE}{proxy}_{text}", "Forwarding to other routers"), labels
    if meter.value == "pMsgFwdsRecv":
        return Name(REFERENCE + "relay_messages_received", "Forwarded commands received"), ()
    return Name(f"{OURS}router_{_snake(meter.value)}_total", f"The router's own counter {meter.value}"), ()


def _snake(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", text).lower())


def all_counters() -> Iterator[tuple[Meter, Name, tuple[tuple[str, str], ...]]]:
    for meter in Meter:
        name, labels = counter_name(meter)
        yield meter, name, labels
