"""Every benchmark that README, docs or `make bench` name is run in its smallest form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docs.executed import Place, commands_at, measurements
from tests.support.docs.typing_reader import Reader

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("line", measurements())
def test_a_benchmark_prints_its_figures(line: str, tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        said = reader.type(line)
    assert any(letter.isdigit() for letter in said)


def test_make_bench_is_among_them() -> None:
    assert any(command.text == "make bench" for command in commands_at(Place.MEASURED))
