"""What is taken for a command in a document, and what is not."""

from __future__ import annotations

from tests.support.documents import commands_in

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
