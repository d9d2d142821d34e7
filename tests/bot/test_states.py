"""What a bot can remember: whatever is stored can be read again, or is refused before it is stored."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from blindpost.bot import Bot, Chat
from blindpost.bot.typed import StateError, dump_state, load_state
from tests.support.bot.bots import BotWorld
from tests.support.client.scripted_router import virtual


class Size(enum.Enum):
    SMALL = 1
    LARGE = "large"


@dataclass
class Inner:
    number: int = 0


@dataclass
class Everything:
    mode: Literal["on", "off"] = "on"
    either: int | str = 0
    maybe: str | int | None = None
    real: float | int = 0.5
    size: Size = Size.SMALL
    sizes: dict[str, Size | None] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    bare_tuple: tuple = ()  # type: ignore[type-arg]  # as authors write it
    bare_set: set = field(default_factory=set)  # type: ignore[type-arg]
    bare_list: list = field(default_factory=list)  # type: ignore[type-arg]
    anything: Any = None
    inner: Inner | None = None


@pytest.mark.parametrize(
    "value",
    [
        Everything(),
        Everything("off", "text", 7, 3, Size.LARGE, {"a": None, "b": Size.SMALL}, (1, "one")),
        Everything(maybe="m", bare_tuple=(1, "x"), bare_set={1, "x"}, bare_list=[[1], 2.5]),
        Everything(anything=[{"a": 1}], inner=Inner(3)),
    ],
)
def test_it_is_read_as_it_was(value: Everything) -> None:
    found = load_state(Everything, dump_state(value))
    assert found == value
    assert type(found.real) is type(value.real)


@dataclass
class Few:
    number: int = 0
    mode: Literal["on", "off"] = "on"
    either: int | str = 0
    when: datetime | None = None


@virtual
async def test_what_could_not_be_read_again_is_not_stored(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot = place.bot()
        wrong: dict[str, object] = {
            "number": 1.5,
            "mode": "high",
            "either": 2.5,
            "when": datetime(2026, 1, 1),
        }

        @bot.command("set")
        async def change(chat: Chat, name: str) -> None:
            setattr(chat.state(Few), name, wrong[name])
            await chat.reply("set")

        @bot.command("count")
        async def count(chat: Chat) -> None:
            chat.state(Few).number += 1
            await chat.reply(str(chat.state(Few).number))

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            for number, name in enumerate(wrong):
                assert "Something went wrong" in await bob.ask(f"/set {name}")
                assert await bob.ask("/count") == str(number + 1), "what was stored before is still there"
            assert {one.error.partition(":")[0] for one in bot.set_aside()} == {StateError.__name__}


@virtual
async def test_choices_and_unions_are_remembered(tmp_path: Path) -> None:
    async with BotWorld(tmp_path) as place:
        bot: Bot = place.bot()

        @bot.command("mode")
        async def mode(chat: Chat, to: Literal["on", "off"], last: str = "") -> None:
            state = chat.state(Few)
            await chat.reply(f"{state.mode} {state.either}")
            state.mode, state.either = to, last

        async with bot.open() as link:
            bob = await place.guest("Bob", link)
            answers = [await bob.ask(text) for text in ("/mode off a", "/mode on b", "/mode off")]
            assert answers == ["on 0", "off a", "on b"]
