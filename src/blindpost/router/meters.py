"""What the router counts, under the names that the reference's statistics use."""

from __future__ import annotations

from enum import Enum


class Meter(Enum):
    """One counter each."""

    QUEUES_CREATED = "qCreated"
    QUEUES_SECURED = "qSecured"
    QUEUES_DELETED = "qDeletedAll"
    QUEUES_DELETED_NEW = "qDeletedNew"
    QUEUES_DELETED_SECURED = "qDeletedSecured"
    QUEUES_BLOCKED = "qBlocked"
    SUBS = "qSub"
    SUB_AUTH = "qSubAuth"
    SUB_DUPLICATE = "qSubDuplicate"
    SUB_PROHIBITED = "qSubProhibited"
    SUB_ENDS = "qSubEnd"
    NTF_CREATED = "ntfCreated"
    NTF_NEW_CREATED = "ntfNewCreated"
    NTF_DELETED = "ntfDeleted"
    NTF_SUBS = "ntfSub"
    NTF_SUB_AUTH = "ntfSubAuth"
    NTF_SUB_DUPLICATE = "ntfSubDuplicate"
    SENT = "msgSent"
    SENT_AUTH = "msgSentAuth"
    SENT_QUOTA = "msgSentQuota"
    SENT_LARGE = "msgSentLarge"
    SENT_BLOCKED = "msgSentBlock"
    RECEIVED = "msgRecv"
    RECEIVED_GET = "msgRecvGet"
    GETS = "msgGet"
    GETS_EMPTY = "msgGetNoMsg"
    GET_AUTH = "msgGetAuth"
    GET_DUPLICATE = "msgGetDuplicate"
    GET_PROHIBITED = "msgGetProhibited"
    EXPIRED = "msgExpired"
    SENT_NTF = "msgSentNtf"
    RECEIVED_NTF = "msgRecvNtf"
    NTFS = "msgNtfs"
    NTF_NO_SUB = "msgNtfNoSub"
    NTF_LOST = "msgNtfLost"
    NTF_EXPIRED = "msgNtfExpired"
    INTERNAL_ERRORS = "internalErrors"
    STORE_ERRORS = "storeErrors"


class RouterMeters:
    """Counters since the start of the process."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = dict.fromkeys(Meter, 0)

    def add(self, meter: Meter, by: int = 1) -> None:
        self._counts[meter] += by

    def __getitem__(self, meter: Meter) -> int:
        return self._counts[meter]
