"""The problems the page reports, and that it escapes everything: without servers."""

from __future__ import annotations

from typing import Any

import pytest
import typer

import blindpost
from blindpost.cli.main import GROUPS
from blindpost.ops import problems
from blindpost.ops.history import DAY, Track
from blindpost.ops.kinds import KINDS
from blindpost.ops.model import Address, Card, Chart, Face, Fact, Health, Problem, Snapshot, Tile
from blindpost.ops.rendering import document


def test_every_problem_has_a_command_that_exists() -> None:
    """The rest of its text is a sentence for people."""
    commands: dict[str, str] = {}
    for kind in KINDS:
        for row in (*problems.EVERY, *kind.problems):
            commands[row.help.format(word=kind.word, folder="FOLDER")] = row.text
    for command, text in commands.items():
        _, word, name, *options = command.split()
        found = typer.main.get_group(GROUPS[word]()).commands
        assert name in found, command
        known = {each for option in found[name].params for each in option.opts}
        assert {option for option in options if option.startswith("-")} <= known, command
        assert text.endswith("."), text


MACHINE = {
    "memory_bytes": 1 << 20,
    "memory_limit_bytes": 2 << 20,
    "disk_free_bytes": 50,
    "disk_size_bytes": 100,
    "descriptors_left": 100,
    "connections_limit": 100,
    "certificate_since": 0,
    "certificate_until": 400 * 86_400,
}


@pytest.mark.parametrize(
    ("machine", "status", "told"),
    [
        ({}, {}, set()),
        ({"certificate_until": 29 * 86_400}, {}, {"certificate"}),
        ({"certificate_until": -1}, {}, {"certificate"}),
        ({"certificate_until": None, "disk_size_bytes": None, "connections_limit": None}, {}, set()),
        ({"disk_free_bytes": 9}, {}, {"disk"}),
        ({"memory_bytes": (2 << 20) - 1}, {}, {"memory"}),
        ({}, {"connections": 91}, {"connections"}),
        ({}, {"version": "0.0"}, {"version"}),
        ({}, {"schema": 1}, {"schema"}),
    ],
)
def test_resources_about_to_run_out_are_reported(
    machine: dict[str, int | None], status: dict[str, Any], told: set[str]
) -> None:
    whole = {"version": blindpost.__version__, "schema": 2, "connections": 1, **status}
    whole["machine"] = {**MACHINE, **machine}
    found = list(problems.levels(whole, Face("h", schema=2), "router", "/x", 0.0))
    assert {problem.name for problem in found} == told
    assert all(problem.text.endswith(".") for problem in found)


def test_a_counted_failure_is_a_problem_for_a_day() -> None:
    (lost, *_), track = problems.CANARY, Track()
    for minute, count in ((0, 0), (1, 3), (2, 3)):
        track.sample(60.0 * minute, {"lost": count})
    (problem,) = problems.counted([lost], track, "canary", "/x")
    assert problem == Problem("lost", "Messages were lost.", "blindpost canary status -c /x", 3)
    track.sample(60.0 * (DAY + 2), {"lost": 3})
    assert list(problems.counted([lost], track, "canary", "/x")) == []


def test_a_limit_that_the_page_has_no_words_for_is_shown_by_its_name() -> None:
    status = {
        **dict.fromkeys(("payloads", "bytes", "connections", "waiting", "in_hand"), 0),
        "machine": MACHINE,
        "limited": {"refused_total": 1, "too_blue": 3},
    }
    (kind,) = [kind for kind in KINDS if kind.word == "ds"]
    found = {tile.name: (tile.label, tile.value) for tile in kind.tiles({"status": status})}
    assert found["limited.too_blue"] == ("too blue", 3)
    assert found["limited.refused_total"] == ("refused: too many connections", 1)


def test_values_from_servers_and_settings_are_escaped() -> None:
    """Also in attributes."""
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>`<b>`'
    card = Card(
        *("Canary", "canary", evil, Face(evil, Address(evil, evil + "!")), Health.DOWN, evil, evil),
        (Tile(evil, evil, 1, is_main=True), Tile(evil, evil, 1)),
        (Fact(evil, evil),),
        (Problem(evil, evil, evil, 1),),
        Chart(evil, evil, evil, ((1,), (1,)), ((1,), (1,))),
        evil,
        ("audit", "backup", "block"),
    )
    html = document(Snapshot("now", (card,), evil, evil))
    assert "<script>alert" not in html
    assert "<img" not in html
    assert "<b>`" not in html
    assert html.count("<script") == 1
    assert "&lt;script&gt;alert(1)" in html
