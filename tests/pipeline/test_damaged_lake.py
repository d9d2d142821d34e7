"""A file of the lake that is not what we wrote is named, and left as it is."""

from __future__ import annotations

import json
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.outside import publish
from blindpost.pipeline.runner import run
from tests.support.pipeline import journals
from tests.support.pipeline.lakes import LASTING, plain, seal_journal

pytestmark = pytest.mark.timeout(300)
WANTED = [datasets()["daily_statistics"]]
DAMAGES = [b"", b"{", b"[1]", b"\xff\xfe", json.dumps({"of": {"a later release": 1}}).encode()]
FILES = [
    "bronze/ledger/index.json",
    "bronze/ledger/**/*.parquet",
    "silver/p_counters/_CURRENT",
    "gold/daily_statistics/_CURRENT",
    "keep.json",
    "outside/numbers.json",
]


@pytest.mark.parametrize("pattern", FILES)
def test_a_damaged_file_is_named(spark: SparkSession, tmp_path: Path, pattern: str) -> None:
    rng = random.Random(4)
    seal_journal(tmp_path / "journal", journals.production(rng, routers=1, days=1), rng)

    def work() -> object:
        lake = Lake(spark, str(tmp_path / "journal"), str(tmp_path / "lake"))
        run(lake, WANTED)
        return lake.ledger.all(), publish(lake, Fraction(1))

    told = Lake(spark, str(tmp_path / "journal"), str(tmp_path / "lake"), settings=LASTING)
    run(told, WANTED)
    made = work()
    (file, *_) = sorted((tmp_path / "lake").glob(pattern))
    content = file.read_bytes()
    for damage in DAMAGES:
        file.write_bytes(damage)
        with pytest.raises(PipelineError, match=re.escape(f"{file} cannot be read")):
            work()
        assert file.read_bytes() == damage
    file.write_bytes(content)
    assert work() == made
    assert plain(told.gold(WANTED[0]).collect())
