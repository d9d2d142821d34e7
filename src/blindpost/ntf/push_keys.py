"""The files of the keys by which push services know this router, and their rotation with overlap."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from blindpost.crypto.entropy import Entropy, system_entropy
from blindpost.crypto.webpush import new_key_pem
from blindpost.ntf.push.provider_tokens import SigningKey, SigningKeyError
from blindpost.ntf.push.vapid import VapidKey, VapidTokens
from blindpost.ntf.settings import NtfPlace
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file, write_file

_UNTIL = re.compile(r"-until-([0-9]{1,12})", re.ASCII)
DAY_S = 86_400


def vapid_of(place: NtfPlace) -> VapidTokens | None:
    """The keys by which push services know this router; None if Web Push is off or has no key."""
    section = place.settings.webpush
    if not section.enabled or not place.vapid_file.exists():
        return None
    current = _key(place.vapid_file)
    former = [_key(path, until) for until, path in former_files(place)]
    subject = section.subject or f"https://{place.settings.address.hosts[0]}"
    others = [key for key in former if key.name != current.name]
    return VapidTokens([current, *others], subject, time.time)


def rotate(place: NtfPlace, overlap_days: int, entropy: Entropy = system_entropy) -> int | None:
    """Make a new key; until when the one that it replaces is used, if it is used at all.

    The former key is written first: killed in between, the router has one key twice, never none.
    """
    path, now = place.vapid_file, int(time.time())
    if not path.exists():
        raise OperatorError(f"{path}: there is no key to replace. `init` makes one, and Web Push needs it.")
    before, until = read_file(path), now + overlap_days * DAY_S
    _key(path)
    taken = {ends for ends, former in former_files(place) if read_file(former) != before}
    while until in taken:  # by another rotation in this second
        until += 1
    if overlap_days:
        write_file(path.with_name(f"{path.stem}-until-{until}{path.suffix}"), before)
    write_file(path, new_key_pem(entropy))
    for ends, former in former_files(place):
        if ends <= now or (not overlap_days and read_file(former) == before):
            former.unlink()
    return until if overlap_days else None


def former_files(place: NtfPlace) -> list[tuple[int, Path]]:
    """Until when each key that was replaced is used, and its file; the newest first."""
    return sorted(_named(place.vapid_file), reverse=True)


def day_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _named(current: Path) -> Iterator[tuple[int, Path]]:
    for path in current.parent.glob(f"{current.stem}-until-*{current.suffix}"):
        found = _UNTIL.fullmatch(path.stem.removeprefix(current.stem))
        if found is not None:
            yield int(found[1]), path


def _key(path: Path, until: float | None = None) -> VapidKey:
    try:
        private = SigningKey.from_file(path, "", "").key
    except SigningKeyError as error:
        raise OperatorError(
            f"{path}: a P-256 key in PEM form expected, as `init` makes it. "
            "Restore it, or name another in [webpush] key_file."
        ) from error
    return VapidKey(private) if until is None else VapidKey(private, until)
