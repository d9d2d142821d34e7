"""What the answers of push services mean for a push and for its device token."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from blindpost.ntf.ports import Accepted, Failed, PushOutcome, RetryLater, TokenInvalid
from blindpost.wire.ntf.status import InvalidReason

_INVALID: dict[tuple[int, str], InvalidReason] = {
    (400, "BadDeviceToken"): InvalidReason.BAD,
    (400, "DeviceTokenNotForTopic"): InvalidReason.TOPIC,
    (410, "ExpiredToken"): InvalidReason.EXPIRED,
    (410, "Unregistered"): InvalidReason.UNREGISTERED,
}

EXPIRED_PROVIDER_TOKEN = "ExpiredProviderToken"  # noqa: S105 (a reason that Apple gives)
CHANGED_TOO_OFTEN = "TooManyProviderTokenUpdates"

_TEMPORARY = frozenset({(400, "IdleTimeout"), (403, EXPIRED_PROVIDER_TOKEN)})
"""Refusals worth retrying, with the same push over a new connection or with a new provider token."""

RETRY_AFTER_MAX_S = 3600.0
"""A push is never delayed longer than this, whatever a push service asks for."""

_DIGITS_MAX = 9
_THROTTLED = 429
_GONE = 410
_BROKEN = 500
_REASON_MAX = 64


def outcome_of(status: int, reason: str, after_s: float | None = None) -> PushOutcome:
    """What an HTTP status and the reason in its body mean for the push and for its device token.

    Only the four reasons about the device token invalidate it. `after_s` is the pause Apple asked for.
    """
    if status == 200:
        return Accepted()
    invalid = _INVALID.get((status, reason))
    if invalid is not None:
        return TokenInvalid(invalid)
    told = f"{status} {_printable(reason)}".strip()
    temporary = (status, reason) in _TEMPORARY or status in (_THROTTLED, _GONE) or status >= _BROKEN
    if not temporary:
        return Failed(told)
    return RetryLater(told, 0.0 if reason == EXPIRED_PROVIDER_TOKEN else after_s)


def _printable(reason: str) -> str:
    """Reasons go to logs: pass on one plain word, as Apple's are, or nothing."""
    return reason if reason.isascii() and reason.isalnum() and len(reason) <= _REASON_MAX else ""


def retry_after_s(header: bytes, now: float) -> float | None:
    """How long a push service asks to wait: seconds, or a date."""
    text = header.decode("ascii", "replace").strip()
    if text.isascii() and text.isdecimal():
        seconds = float(text[:_DIGITS_MAX])
    else:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)
