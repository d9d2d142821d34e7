"""Version ranges: how both sides say what they support."""

from __future__ import annotations

import re

from blindpost.wire.errors import WireError
from blindpost.wire.frozen import dataclass
from blindpost.wire.primitives import Reader, Writer

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 0xFFFF:
            raise WireError("a version range whose minimum is not above its maximum expected")

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def agreed(self, other: VersionRange) -> int | None:
        """The highest version in both ranges, or None if they do not overlap."""
        if self.low <= other.high and other.low <= self.high:
            return min(self.high, other.high)
        return None

    def common(self, other: VersionRange) -> VersionRange | None:
        """The versions in both ranges, or None if they do not overlap."""
        high = self.agreed(other)
        return None if high is None else VersionRange(max(self.low, other.low), high)

    @property
    def text(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"

    @classmethod
    def from_text(cls, text: str) -> VersionRange:
        match = _RANGE.fullmatch(text)
        if match is None:
            raise WireError("a version or a version range expected")
        low, high = match.groups()
        return cls(int(low), int(high if high is not None else low))


def read_version_range(reader: Reader) -> VersionRange:
    low = reader.u16()
    return VersionRange(low, reader.u16())


def write_version_range(writer: Writer, versions: VersionRange) -> None:
    writer.u16(versions.low).u16(versions.high)
