"""Any connection link as text, for who has only a string."""

from __future__ import annotations

from blindpost.wire.links.full import FullLink, full_link_from_text, is_full_link
from blindpost.wire.links.short import ShortLink, short_link_from_text


def link_from_text(text: str) -> FullLink | ShortLink:
    """Read a full or a short link."""
    return full_link_from_text(text) if is_full_link(text) else short_link_from_text(text)
