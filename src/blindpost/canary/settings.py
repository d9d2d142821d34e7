"""The configuration file of a canary: which routers, how often, where its journal is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from blindpost.journal.author import checked_name
from blindpost.serving import settings as reading
from blindpost.serving.failures import OperatorError
from blindpost.serving.files import read_file
from blindpost.serving.journal import JournalSection
from blindpost.serving.settings import Section
from blindpost.wire.addresses import RouterAddress, Scheme
from blindpost.wire.errors import WireError

CONFIG_NAME = "canary.toml"
SIZE_MIN, SIZE_MAX = 32, 13_000


def _name(text: str) -> str:
    return checked_name(text)


def _address(text: str) -> str:
    try:
        if RouterAddress.from_text(text).scheme is Scheme.SMP:
            return text
    except WireError:
        pass
    raise ValueError("a router's address expected, smp://..., as `blindpost router address` prints it")


Name = Annotated[str, AfterValidator(_name)]
Address = Annotated[str, AfterValidator(_address)]
Seconds = Annotated[float, Field(gt=0)]


class MessagesSection(Section):
    interval_s: Seconds = 10.0
    """How often each direction of each pair carries a message."""
    size: Annotated[int, Field(ge=SIZE_MIN, le=SIZE_MAX)] = 1_000
    lost_after_s: Seconds = 600.0
    proxy: bool = False
    """Send through the sender's router, as users do who hide from the recipient's."""


class LogSection(Section):
    format: Literal["plain", "json"] = "plain"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(Section):
    """Everything that an operator can set."""

    routers: dict[Name, Address] = Field(min_length=1)
    messages: MessagesSection = MessagesSection()
    journal: JournalSection = JournalSection()
    log: LogSection = LogSection()


class Place:
    """A configuration file and the folder that its relative paths start from."""

    def __init__(self, file: Path, settings: Settings) -> None:
        self.file = file
        self.folder = file.parent
        self.settings = settings
        self.agents = self.folder / "agents"
        self.pairs = self.folder / "pairs.json"
        self.control = self.folder / "control.sock"
        self.lock = self.folder / "canary.lock"


def read_place(given: Path) -> Place:
    """The configuration that a person names by its file or its folder."""
    file = given / CONFIG_NAME if given.is_dir() else given
    if not file.exists():
        raise OperatorError(
            f"{file}: no canary is set up here. Create one with "
            f"`blindpost canary init {file.parent} --router NAME=smp://...`."
        )
    file = file.absolute()
    return Place(file, reading.parse(read_file(file), file, Settings))


def config_text(routers: dict[str, str]) -> str:
    """A commented configuration for these routers."""
    lines = "\n".join(f'{name} = "{address}"' for name, address in routers.items())
    return f"""\
# A canary: its own connections on every router of a fleet. It sees no user and no user's data.

[routers]
# Name in the tables, and address as `blindpost router address` prints it.
{lines}

[messages]
# How often each direction of each pair of routers carries a message, in seconds.
interval_s = 10.0
# Bytes of a message ({SIZE_MIN} to {SIZE_MAX}).
size = 1000
# A message that did not arrive in this time is lost.
lost_after_s = 600.0
# true: send through the sender's own router, as users do who hide from the recipient's.
proxy = false

[journal]
# Every event of every message, for `blindpost pipeline`. Needs the extra "pipeline".
enabled = true
folder = "journal"
name = "canary"
lab_days = 7
seal_minutes = 10

[log]
format = "plain"
level = "info"
"""
