"""What a message router's counters and its gauge of messages must agree on."""

from __future__ import annotations

MESSAGE_BALANCE = {
    "msgSent": 1,
    "msgRecv": -1,
    "msgExpired": -1,
    "msgDeleted": -1,
    "msgMarkers": 1,
    "msgMarkersGone": -1,
}
"""Accepted = acknowledged + expired + deleted + pending, of a message router. Between two records of a boot
the gauge `messages` changes by the sum of these counters with these signs. It also counts markers, which a
router puts behind the last message of a full queue: `msgMarkers` came, `msgMarkersGone` left again.
`msgRecv` holds `msgRecvGet`; `msgDeleted` are messages that left with their queue."""
