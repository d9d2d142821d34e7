"""Everything that a bot writes, read by the second reader as well."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import blindpost
from blindpost.chat import chats, drafts, grouping, ourselves
from blindpost.chat.codec import bodies, events
from tests.support.chat.reader import read, read_info, read_link_data

CODE = Path(blindpost.__file__).parent
ROOMS = (*(CODE / "chat").glob("*.py"), *(CODE / "bot").glob("*.py"))


@functools.cache
def sent_kinds() -> frozenset[str]:
    """The events that our chats and bots make: all that are called in their code."""
    found = set()
    for path in ROOMS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name: str = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
                found.add(kind_of(getattr(events, name, None)))
    return frozenset(found - {""})


def kind_of(event: object) -> str:
    """The name of an event or of its class, empty if it is none."""
    name = getattr(event, "name", "")
    return name if isinstance(name, str) and name.startswith("x.") else ""


def read_everything(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on all bodies, informations and link data are read twice; the events so far, by name."""
    ours, seen = sent_kinds(), list[str]()

    def write_body(messages: Sequence[events.Message], **options: Any) -> bytes:
        body = bodies.write_body(messages, **options)
        if all(kind_of(one.event) in ours for one in messages):
            seen.extend(one["event"] for one in read(body, pq=options["pq"]))
        return body

    def write_info(message: events.Message, *, pq: bool) -> bytes:
        info = bodies.write_info(message, pq=pq)
        seen.append(read_info(info, pq=pq)["event"])
        return info

    def write_link_data(*args: Any, **options: Any) -> bytes:
        data = bodies.write_link_data(*args, **options)
        read_link_data(data)
        return data

    for module in (drafts, grouping, ourselves, chats):
        for name, writer in (
            ("write_body", write_body),
            ("write_info", write_info),
            ("write_link_data", write_link_data),
        ):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, writer)
    return seen
