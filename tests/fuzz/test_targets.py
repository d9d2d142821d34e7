"""Inputs that failed once, the seeds of the fuzzer and some changes of them: no target fails any more.

`make fuzz TARGET=... MINUTES=...` looks for more.
"""

from __future__ import annotations

import contextlib
import os

import pytest

from blindpost.wire.errors import WireError
from blindpost.wire.text import unb64
from fuzz.faces import FACES
from fuzz.lines import Lines
from fuzz.sessions import SESSIONS
from fuzz.target import CASES, Source, changed, piece
from fuzz.targets import TARGETS

SLOW = 3
"""How many of the faces are whole sessions too."""
CHANGES = int(os.environ.get("BLINDPOST_FUZZ", "300"))
"""How many changed inputs each decoder gets; a whole session gets a tenth of that."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    assert seeds
    with target.prepared() as one:
        for case, data in target.cases.items():
            try:
                one(data)
            except Exception as error:
                raise AssertionError(f"the case {case} fails again") from error
        is_session = target in (*SESSIONS, *FACES[:SLOW])
        for data in seeds[:: 1 + len(seeds) // 60] if is_session else seeds:
            one(data)
        for data in changed(seeds, CHANGES // 10 if is_session else CHANGES, seed=1):
            one(data)


def test_every_case_belongs_to_a_target() -> None:
    assert {folder.name for folder in CASES.iterdir()} <= TARGETS.keys()


def test_an_input_is_read_in_pieces() -> None:
    source = Source(b"\x07" + piece(b"abc") + b"\0")
    assert (source.byte(), source.piece(), source.number(), source.rest()) == (7, b"abc", 0, b"")
    assert (source.byte(), source.piece(), source.left) == (0, b"", 0)


def test_changes_are_the_same_each_time() -> None:
    once = list(changed([b"a good input"], 50, seed=3))
    assert once == list(changed([b"a good input"], 50, seed=3))
    assert len(set(once)) > 40


def test_an_input_that_reaches_new_lines_is_noticed() -> None:
    lines = Lines("blindpost")

    def reached(text: str) -> int:
        before = lines.reached
        with lines.followed(), contextlib.suppress(WireError):
            unb64(text)
        return lines.reached - before

    assert reached("AAAA") > 0
    assert reached("BBBB") == 0, "the same lines again"
    assert reached("not base64 at all") > 0
    assert 0 < lines.reached <= lines.known
