"""Following a journal: each sealed file is taken up once, by a stream with a checkpoint.

The stream only says which files are new. For each of its batches the days that they touch are computed by the
same functions as in any other run, so a followed lake and one that is computed at once hold the same rows. A
batch that was killed is retried from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from blindpost.pipeline.dataset import Dataset
from blindpost.pipeline.files import join
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.runner import Observer, Summary, run
from blindpost.pipeline.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES_IN_BATCH = 2_000
_LISTING = "path string, modificationTime timestamp, length bigint, content binary"


def follow(
    lake: Lake, wanted: Collection[Dataset], observer: Observer = lambda _: None, *, again: bool = False
) -> list[Summary]:
    """Take up everything that is there now; one summary for each batch.

    The stream does not show a file twice: `again` also computes what failed before, if nothing is new.
    """
    if is_remote(lake.spark):  # a stream cannot call back through Spark Connect; a run finds what is new
        summary = run(lake, wanted, None, observer)
        return [summary] if summary.has_news else []
    summaries: list[Summary] = []
    failures: list[Exception] = []

    def take_up(batch: DataFrame, _number: int) -> None:
        if batch.isEmpty():
            return
        try:
            summaries.append(run(lake, wanted, None, observer))
        except Exception as error:
            failures.append(error)  # Spark would only pass its text on
            raise

    files = (
        lake.spark.readStream.format("binaryFile")
        .schema(_LISTING)
        .option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .option("maxFilesPerTrigger", FILES_IN_BATCH)
        .load(lake.journal)
        .select("path", "length")
    )
    query = (
        files.writeStream.foreachBatch(take_up)
        .option("checkpointLocation", join(lake.out, "checkpoints", "follow"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception:
        if failures:
            raise failures[0] from None
        raise
    if again and not summaries:
        summaries.append(run(lake, wanted, None, observer))
    return summaries
