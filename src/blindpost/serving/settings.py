"""Reading a configuration file, and saying on which line a mistake is and how to correct it."""

from __future__ import annotations

import codecs
import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from blindpost.serving.failures import OperatorError
from blindpost.serving.toml_text import read_toml

_TABLE = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")
_PYDANTIC_PREFIX = "Value error, "


class Section(BaseModel):
    """A table of the file: unknown names are mistakes, a number is not a text, and none is infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


S = TypeVar("S", bound=Section)


def parse(content: bytes, file: Path, settings: type[S]) -> S:
    """The settings in a file, complete and checked."""
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        tables = read_toml(text)
    except UnicodeDecodeError as error:
        raise OperatorError(f"{file}: UTF-8 text expected.") from error
    except ValueError as error:
        raise OperatorError(f"{file}: not valid TOML: {error}.") from error
    try:
        return settings.model_validate(tables)
    except ValidationError as error:
        lines = Lines(text)
        told: list[str] = []
        place: tuple[int | str, ...] = ()
        for mistake in error.errors():
            if mistake["type"] == "literal_error" and mistake["loc"][:2] == place:
                # A setting that takes a number or a word, and got neither.
                told[-1] = f"{told[-1].removesuffix('.')}, or {mistake['ctx']['expected']}."
            else:
                told.append(_told(file, lines, mistake, settings))
            place = mistake["loc"][:2]
        raise OperatorError("\n".join(told)) from error


class Lines:
    """The lines of tables and keys in the text."""

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        for number, line in enumerate(text.splitlines(), start=1):
            if (header := _TABLE.match(line)) is not None:
                table = (header[1],)
                self._found.setdefault(table, number)
            elif (key := _KEY.match(line)) is not None:
                self._found.setdefault((*table, key[1]), number)

    def of(self, path: tuple[str, ...]) -> int | None:
        """The line of a key, or of the table that should have it."""
        while path:
            if path in self._found:
                return self._found[path]
            path = path[:-1]
        return None


def _told(file: Path, lines: Lines, mistake: ErrorDetails, settings: type[Section]) -> str:
    path = tuple(str(part) for part in mistake["loc"])[:2]
    number = lines.of(path)
    place = f"{file}, line {number}" if number is not None else f"{file}"
    name = ".".join(path)
    if mistake["type"] == "extra_forbidden":
        return f"{place}: unknown setting {name}. {_hint(path, settings)}"
    if mistake["type"] == "missing":
        return f"{place}: {name} is missing. Add it, as in a file that `init` writes."
    return f"{place}: {name}: {mistake['msg'].removeprefix(_PYDANTIC_PREFIX)}."


def _hint(path: tuple[str, ...], settings: type[Section]) -> str:
    """Valid names for this place, the closest first."""
    model: type[BaseModel] = settings
    for part in path[:-1]:
        annotation: Any = model.model_fields[part].annotation
        model = annotation
    names = list(model.model_fields)
    near = difflib.get_close_matches(path[-1], names, n=1)
    if near:
        return f"Did you mean {'.'.join((*path[:-1], near[0]))}?"
    kind = "Tables" if len(path) == 1 else f"Settings of [{path[0]}]"
    return f"{kind} are: {', '.join(names)}."
