"""The journal in a server's configuration file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from blindpost.journal.author import checked_name
from blindpost.journal.keeping import Keeping, can_seal
from blindpost.journal.schema import DAYS_LAB, DAYS_MINUTES
from blindpost.serving.failures import OperatorError
from blindpost.serving.settings import Section

Days = Annotated[int, Field(ge=1, le=3_650)]


def _name(text: str) -> str:
    return checked_name(text) if text else text


class JournalSection(Section):
    """`[journal]`: numbers about the server, once a minute, for the pipeline."""

    enabled: bool = False
    folder: str = "journal"
    name: Annotated[str, AfterValidator(_name)] = ""
    minute_days: Days = DAYS_MINUTES
    lab_days: Days = DAYS_LAB
    seal_minutes: Annotated[int, Field(ge=1, le=60)] = 10


JOURNAL_TEMPLATE = """\
[journal]
# Once a minute, counters and levels of this server for `blindpost pipeline`: sums only, never a row about a
# queue, a user or an address. Needs the extra "pipeline" (pip install 'blindpost[pipeline]').
enabled = false
folder = "journal"
# The name of this server in the pipeline's tables ("": {default}).
name = ""
# How many days the minutes and the events of load tests are kept; sums of whole days are kept for ever.
minute_days = 30
lab_days = 7
# How often what was written is sealed to Parquet, by a short process of low priority.
seal_minutes = 10
"""


LAB_TEMPLATE = """\
# The {names} of canaries and load tests of your own, hexadecimal: of {about} every event is recorded, under
# numbers that change each day. Never name what is a user's.
lab = []
"""


def hexadecimal(size: int | None = None) -> Callable[[str], str]:
    """Bytes in hexadecimal digits, of this size if there is one."""

    def checked(text: str) -> str:
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if not raw or len(raw) != (size or len(raw)) or len(text) != 2 * len(raw):
            digits = "an even number of" if size is None else str(2 * size)
            raise ValueError(f"{digits} hexadecimal digits expected")
        return text.lower()

    return checked


def journal_name(section: JournalSection, default: str) -> str:
    """The name of the server in all tables."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in default)
    return section.name or plain.strip("-")[:64] or "server"


def keeping_of(section: JournalSection, folder: Path, default_name: str) -> Keeping | None:
    """What the section asks for; None if there is no journal."""
    if not section.enabled:
        return None
    if not can_seal():
        raise OperatorError(
            "[journal] enabled: writing it needs pyarrow. Install it with "
            "`pip install 'blindpost[pipeline]'`, or set enabled = false."
        )
    name = journal_name(section, default_name)
    return Keeping(folder / section.folder, name, section.seal_minutes, section.minute_days, section.lab_days)
