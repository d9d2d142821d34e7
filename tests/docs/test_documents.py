"""What counts as a command in a document, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docs.documents import ROOT, commands_in
from tests.support.docs.typing_reader import Reader

TEXT = """\
Say `blindpost up` or `make help`; `blindpost.client` and `pytest` are names.

    blindpost one --host "a # b"     # why
    $ echo hello | blindpost two
    {"ok": true}

```python
make = "no command"
```

1. In a list:

   ```sh
   A_B=1 pytest tests \\
       --slow
   ls
   ```

| `blindpost three ID` | cell |
"""


def test_commands_are_found() -> None:
    found = commands_in(TEXT, "a.md")
    assert [(one.number, one.text, one.is_inline) for one in found] == [
        (1, "blindpost up", True),
        (1, "make help", True),
        (3, 'blindpost one --host "a # b"', False),
        (4, "echo hello | blindpost two", False),
        (15, "A_B=1 pytest tests --slow", False),
        (16, "ls", False),
        (19, "blindpost three ID", True),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "blindpost router fly",
        "blindpost router start -c nowhere",
        "echo hello | blindpost ds send nonsense",
        "make nonsense",
        "frobnicate",
        "python -m benchmarks.nothing",
        "pytest tests/nothing.py",
        "BLINDPOST_NOTHING=1 pytest tests/repository/test_rooms.py",
        "pip install 'blindpost[nothing]' no-such-package",
    ],
)
def test_a_command_that_does_not_work_is_reported(line: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError), Reader(tmp_path) as reader:
        reader.type(line)


def test_every_example_is_run() -> None:
    """As a program: by its own test, or because a document says so."""
    texts = [path.read_text() for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/*.md"))]
    for example in (ROOT / "examples").glob("*.py"):
        typed = (f"python examples/{example.name} ", f'"examples/{example.name}"')
        assert any(command in text for text in texts for command in typed), example
