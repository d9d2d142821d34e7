"""Where a router's configuration is, and what is in it."""

from __future__ import annotations

from pathlib import Path

from blindpost.router.running.settings import Place, Settings
from blindpost.serving import settings
from blindpost.serving.files import read_file

CONFIG_NAME = "router.toml"


def read_place(given: Path) -> Place:
    """The configuration at `given`, complete and checked."""
    file = settings.find_config(given, CONFIG_NAME, "router")
    return Place(file, parse(read_file(file), file))


def parse(content: bytes, file: Path) -> Settings:
    return settings.parse(content, file, Settings)
