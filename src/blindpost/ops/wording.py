"""Numbers as people write them."""

from __future__ import annotations

from blindpost.ops.model import Unit

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def shown(value: float | None, unit: Unit = Unit.COUNT) -> str:
    """A number in its unit."""
    if value is None:
        return "not yet"
    if unit is Unit.BYTES:
        return size(value)
    if unit is Unit.MILLISECONDS:
        return f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:,.0f} ms"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def size(count: float) -> str:
    """Bytes in the largest unit of which there is at least one."""
    for unit in _SIZES:
        if count < 1024 or unit == _SIZES[-1]:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("there is a largest unit")


def period(seconds: float) -> str:
    """How long something lasts, in its two largest units."""
    days, hours, minutes = (
        int(seconds // DAY_S),
        int(seconds % DAY_S // HOUR_S),
        int(seconds % HOUR_S // MINUTE_S),
    )
    if days >= 60:
        return f"{days} days"
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
