"""How Spark plans when there is little to do: one task and interpreted plans.

Of a run over few rows nearly all time is planning, generating code and compiling it. So below a number of
rows each table is one stage of one task without generated code; above it, Spark's defaults pay off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from blindpost.pipeline.files import LocalFiles, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_ROWS = 400_000
"""This many rows of a journal are few: chosen above the 280,000 that were measured, not a measured limit."""
SMALL_BYTES = 8 << 20
"""The same for a journal of which only the files' sizes are known."""
SETTINGS: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


@contextlib.contextmanager
def planned_small(spark: SparkSession) -> Iterator[None]:
    """These settings for the time of the block."""
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, str(old))


def is_small(folder: str) -> bool:
    """Whether a folder of this machine holds little; one elsewhere counts as large."""
    root = local_path(folder)
    if root is None:
        return False
    size = 0
    for file in LocalFiles().listed(root):
        size += file.size
        if size > SMALL_BYTES:
            return False
    return True
