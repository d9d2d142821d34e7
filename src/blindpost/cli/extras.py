"""Which extra of the package brings what a command needs, told in one sentence where it is missing."""

from __future__ import annotations

EXTRAS = {"canary": "router", "demo": "all", "page": "router", "up": "all"}
"""Commands whose extra has another name."""


def remedy(command: str, error: ModuleNotFoundError) -> str | None:
    """What to install for a command that misses a module; None if the module is one of our own."""
    missing = (error.name or "").partition(".")[0]
    if missing in ("", "blindpost"):
        return None
    extra = EXTRAS.get(command, command)
    return (
        f"`blindpost {command}` needs the package {missing}, which is not installed: "
        f'pip install "blindpost[{extra}]"'
    )
