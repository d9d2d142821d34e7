"""Files that are replaced whole, also by several commands at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from blindpost.serving.files import write_file

COMMANDS, EACH, SIZE = 8, 6, 100_000


def test_of_commands_that_write_a_file_at_once_none_fails_and_none_is_mixed_with_another(
    tmp_path: Path,
) -> None:
    file, together = tmp_path / "key", Barrier(COMMANDS)

    def write(command: int) -> None:
        together.wait()
        for _ in range(EACH):
            write_file(file, bytes([command]) * SIZE)
            seen = file.read_bytes()
            assert len(seen) == SIZE
            assert len(set(seen)) == 1

    with ThreadPoolExecutor(COMMANDS) as commands:
        list(commands.map(write, range(COMMANDS)))
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
