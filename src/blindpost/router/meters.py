"""What the router counts, under the names that the reference's statistics use."""

from __future__ import annotations

from enum import Enum

from blindpost.engine.histogram import Histogram
from blindpost.engine.meters import Meters

ACK_BOUNDS_S = (
    *range(6),
    *range(10, 31, 5),
    *(40, 50, 60),
    *range(90, 181, 30),
    *range(240, 601, 60),
    *range(1200, 3601, 600),
)
"""The reference's steps, coarser after ten minutes."""


class Meter(Enum):
    """One counter each."""

    __hash__ = object.__hash__  # members are single objects, and the enum's own hash is a call of Python

    QUEUES_CREATED = "qCreated"
    QUEUES_SECURED = "qSecured"
    QUEUES_DELETED = "qDeletedAll"
    QUEUES_DELETED_NEW = "qDeletedNew"
    QUEUES_DELETED_SECURED = "qDeletedSecured"
    QUEUES_DELETED_BATCHES = "qDeletedAllB"
    QUEUES_BLOCKED = "qBlocked"
    SUBS = "qSub"
    SUB_BATCHES = "qSubAllB"
    SUB_AUTH = "qSubAuth"
    SUB_DUPLICATE = "qSubDuplicate"
    SUB_PROHIBITED = "qSubProhibited"
    SUB_ENDS = "qSubEnd"
    SUB_END_BATCHES = "qSubEndB"
    NTF_CREATED = "ntfCreated"
    NTF_NEW_CREATED = "ntfNewCreated"
    NTF_DELETED = "ntfDeleted"
    NTF_DELETED_BATCHES = "ntfDeletedB"
    NTF_SUBS = "ntfSub"
    NTF_SUB_BATCHES = "ntfSubB"
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
    MESSAGES_DELETED = "msgDeleted"
    """Messages that left with their queue."""
    MARKERS = "msgMarkers"
    """Markers of full queues that were stored, and those that left again."""
    MARKERS_GONE = "msgMarkersGone"
    SENT_NTF = "msgSentNtf"
    RECEIVED_NTF = "msgRecvNtf"
    NTFS = "msgNtfs"
    NTF_BATCHES = "msgNtfsB"
    NTF_NO_SUB = "msgNtfNoSub"
    NTF_LOST = "msgNtfLost"
    NTF_EXPIRED = "msgNtfExpired"
    RCV_ASSOC_NEW = "rcvServices.assocNew"
    RCV_ASSOC_DUPLICATE = "rcvServices.assocDuplicate"
    RCV_ASSOC_UPDATED = "rcvServices.assocUpdated"
    RCV_ASSOC_REMOVED = "rcvServices.assocRemoved"
    RCV_SERVICE_SUBS = "rcvServices.subCount"
    RCV_SERVICE_SUB_DUPLICATE = "rcvServices.subDuplicate"
    RCV_SERVICE_SUB_QUEUES = "rcvServices.subQueues"
    RCV_SERVICE_SUB_ENDS = "rcvServices.subEnd"
    RCV_DRIFT_OK = "rcvServices.subOk"
    RCV_DRIFT_MORE = "rcvServices.subMore"
    RCV_DRIFT_FEWER = "rcvServices.subFewer"
    RCV_DRIFT_DIFF = "rcvServices.subDiff"
    RCV_DRIFT_MORE_TOTAL = "rcvServices.subMoreTotal"
    RCV_DRIFT_FEWER_TOTAL = "rcvServices.subFewerTotal"
    NTF_ASSOC_NEW = "ntfServices.assocNew"
    NTF_ASSOC_DUPLICATE = "ntfServices.assocDuplicate"
    NTF_ASSOC_UPDATED = "ntfServices.assocUpdated"
    NTF_ASSOC_REMOVED = "ntfServices.assocRemoved"
    NTF_SERVICE_SUBS = "ntfServices.subCount"
    NTF_SERVICE_SUB_DUPLICATE = "ntfServices.subDuplicate"
    NTF_SERVICE_SUB_QUEUES = "ntfServices.subQueues"
    NTF_SERVICE_SUB_ENDS = "ntfServices.subEnd"
    NTF_DRIFT_OK = "ntfServices.subOk"
    NTF_DRIFT_MORE = "ntfServices.subMore"
    NTF_DRIFT_FEWER = "ntfServices.subFewer"
    NTF_DRIFT_DIFF = "ntfServices.subDiff"
    NTF_DRIFT_MORE_TOTAL = "ntfServices.subMoreTotal"
    NTF_DRIFT_FEWER_TOTAL = "ntfServices.subFewerTotal"
    FORWARDED = "pMsgFwdsRecv"
    RELAYS = "pRelays.requests"
    RELAYS_OPENED = "pRelays.successes"
    RELAYS_FAILED = "pRelays.errorsOther"
    RELAYED = "pMsgFwds.requests"
    RELAYED_ANSWERED = "pMsgFwds.successes"
    RELAYED_FAILED = "pMsgFwds.errorsOther"
    RCV_WALK_MESSAGES = "rcvServices.subMsgCount"
    RCV_WALK_DUPLICATES = "rcvServices.subDuplicateCount"
    SERVICE_FAULTS = "serviceFaults"
    INTERNAL_ERRORS = "internalErrors"
    STORE_ERRORS = "storeErrors"


class RouterMeters(Meters[Meter]):
    """Counters since the start of the process."""

    __slots__ = ("ack_s",)

    def __init__(self) -> None:
        super().__init__(Meter)
        self.ack_s = Histogram(ACK_BOUNDS_S)
        """From the delivery of a message to its ACK, in whole seconds."""
