"""The configuration file of a canary: which routers, how often, where its journal is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from blindpost.journal.author import checked_name
from blindpost.serving import place as places
from blindpost.serving.place import ServerSettings
from blindpost.serving.sections import CONTROL_TEMPLATE, METRICS_TEMPLATE, MetricsSection, Port, Positive
from blindpost.serving.settings import Section
from blindpost.wire.addresses import RouterAddress, Scheme
from blindpost.wire.errors import WireError

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


class MessagesSection(Section):
    interval_s: Positive = 10.0
    """How often each direction of each pair carries a message."""
    size: Annotated[int, Field(ge=SIZE_MIN, le=SIZE_MAX)] = 1_000
    lost_after_s: Positive = 600.0
    proxy: bool = False
    """Send through the sender's router, like users who hide from the recipient's."""


class CanaryMetricsSection(MetricsSection):
    port: Port = 9_467


class Settings(ServerSettings):
    """Everything that an operator can set."""

    routers: dict[Name, Address] = Field(min_length=1)
    messages: MessagesSection = MessagesSection()
    metrics: CanaryMetricsSection = CanaryMetricsSection()


class CanaryPlace(places.Place[Settings]):
    """A canary's configuration and its folder."""

    word, title = "canary", "canary"
    model = Settings
    init_options = " --router NAME=smp://..."

    def __init__(self, file: Path, settings: Settings) -> None:
        super().__init__(file, settings)
        self.agents = self.folder / "agents"
        self.pairs = self.folder / "pairs.json"


CONFIG_NAME = CanaryPlace.config_name()


def config_text(routers: dict[str, str]) -> str:
    """A commented configuration for these routers."""
    lines = "\n".join(f'"{name}" = "{address}"' for name, address in routers.items())
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
# true: send through the sender's own router, as users do who hide from the recipient's router.
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

{METRICS_TEMPLATE.format(port=9467)}{CONTROL_TEMPLATE}"""
