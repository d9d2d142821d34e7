"""Reading the text of a configuration file, and changing settings in it so that its comments stay."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

_TABLE = re.compile(r"\[([a-z_]+)\]\s*$")
_SETTING = re.compile(r"(?:# )?([a-z_0-9]+) = ")


def read_toml(text: str) -> dict[str, Any]:
    """What a text says; everything that is wrong with it is a `ValueError`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError("it has a number or a nesting that is too large") from error


def with_settings(text: str, settings: Mapping[str, Mapping[str, object]]) -> str:
    """The text with these settings in their tables; `KeyError` for one that the text does not have.

    JSON's texts, numbers, lists and truth values are TOML's too.
    """
    wanted = {(table, name): value for table, names in settings.items() for name, value in names.items()}
    lines, table = [], ""
    for line in text.splitlines():
        if (header := _TABLE.match(line)) is not None:
            table = header[1]
        elif (found := _SETTING.match(line)) is not None and (table, found[1]) in wanted:
            value = wanted.pop((table, found[1]))
            line = f"{found[1]} = {json.dumps(value, ensure_ascii=False)}"
        lines.append(line)
    if wanted:
        raise KeyError(", ".join(f"{table}.{name}" for table, name in wanted))
    return "\n".join(lines) + "\n"
