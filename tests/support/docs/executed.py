"""Where each command of README and docs is executed. Every command has exactly one place.

Most are typed in the order of their document. A new command is too, without further ado, and fails if it does
not work; what cannot be typed there has another place below, whose test asks for what belongs to it.
"""

from __future__ import annotations

import re
from enum import Enum

from tests.support.docs.documents import Command, commands, documents
from tests.support.docs.smallest import recipe, smallest


class Place(Enum):
    """The file that executes a command, or makes sure of it."""

    TYPED = "tests/docs/test_commands.py"
    """In the order of its document, in a folder of its own."""
    NAMED = "tests/docs/test_names.py"
    """A command whose name stands in a sentence: it exists, and a test runs it."""
    MEASURED = "tests/docs/test_measurements.py"
    """Benchmarks: each once, in its smallest form."""
    DEMO = "tests/cli/test_demo.py"
    ON_SPARK = "tests/pipeline/test_document.py"
    """In the order of its document, where a Spark runs already."""
    ON_A_CLUSTER = "tests/pipeline/test_cluster.py"
    """On a master and two workers, with a wheel."""
    CI = ".ci/run"
    """It runs the tests, so they cannot run it."""


NOT_OURS = {"systemctl stop smp-server", "systemctl status"}
"""Another program's, which is not here."""
TYPED_ALSO_INLINE = ("docs/router.md", "docs/moving-in.md")
"""Where commands in sentences and tables are whole commands; elsewhere they may be only names."""
_PLACES = (
    (r"make (test|lint)$", Place.CI),
    (r"make demo$", Place.DEMO),
    (r"make bench$|make figures\b|python3? -m benchmarks\.", Place.MEASURED),
    (r"make pipeline$", Place.ON_SPARK),
    (r"spark-submit |pip wheel ", Place.ON_A_CLUSTER),
)


def place(command: Command) -> Place:
    if command.is_inline and re.match(r"blindpost ", command.text):
        return Place.TYPED if command.document in TYPED_ALSO_INLINE else Place.NAMED
    for pattern, found in _PLACES:
        if re.match(pattern, command.text):
            return found
    return Place.ON_SPARK if command.document == "docs/pipeline.md" else Place.TYPED


def all_commands() -> list[Command]:
    """What is to be executed, in the order of documents and lines."""
    found = [command for document in documents() for command in commands(document)]
    return [command for command in found if command.text not in NOT_OURS]


def commands_at(wanted: Place, document: str | None = None) -> list[Command]:
    return [
        command
        for command in all_commands()
        if place(command) is wanted and document in (None, command.document)
    ]


def measurements() -> list[str]:
    """Every benchmark that a document or a documented target names: each different one once."""
    lines: list[str] = []
    for command in commands_at(Place.MEASURED):
        word, _, target = command.text.partition(" ")
        lines += recipe(target) if word == "make" else [command.text]
    return sorted({smallest(line) for line in lines})
