"""The commands that README and docs tell a reader to type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PROGRAM = re.compile(
    r"(?:\$ )?(?:[A-Z][A-Z_]*=\S+ )*"
    r"(?:(?:\S*/)?(?:blindpost|pip)|make|python3?|pytest|spark-submit|uv|npm|curl|docker|podman|sudo|systemctl|sh|cd"
    r"|export|echo|\$EDITOR|git)(?: |$)"
)
_SHELL = ("", "sh", "bash", "console", "shell")
_FENCE = re.compile(r"^ *```(\w*)")
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Command:
    """One line to be typed, with its continuation lines; or one that a sentence names."""

    document: str
    number: int
    text: str
    is_inline: bool = False

    def __str__(self) -> str:
        return f"{self.document}:{self.number}: {self.text}"


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(document: Path) -> list[Command]:
    """Every command of a document, in its order."""
    name = str(document.relative_to(ROOT))
    return commands_in(document.read_text(), name)


def commands_in(text: str, name: str) -> list[Command]:
    found: list[Command] = []
    fence: str | None = None
    pending = ""
    for number, line in enumerate(text.splitlines(), 1):
        opened = _FENCE.match(line)
        if opened is not None:
            fence = opened[1] if fence is None else None
            continue
        in_block = fence in _SHELL if fence is not None else line.startswith("    ")
        if not in_block:
            if fence is None:
                found += _named(name, number, line)
            continue
        whole = f"{pending} {line.strip()}".strip()
        if whole.endswith("\\"):
            pending = whole.removesuffix("\\").strip()
            continue
        pending = ""
        if whole and (fence in _SHELL[1:] or _PROGRAM.match(whole)) and not whole.startswith("#"):
            found.append(Command(name, number, _without_comment(whole.removeprefix("$ "))))
    return found


def _named(name: str, number: int, line: str) -> list[Command]:
    return [
        Command(name, number, span, is_inline=True)
        for span in _INLINE.findall(line)
        if " " in span and _PROGRAM.match(span)
    ]


def _without_comment(line: str) -> str:
    """Without what follows a # that is not in quotes."""
    quote = ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and line[place - 1 : place].isspace():
            return line[:place].rstrip()
    return line
