"""Whether everything arrived when a router moved in."""

from __future__ import annotations

from pyspark.sql.types import BooleanType, DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input, Kept
from blindpost.pipeline.gold.migration_proof.compute import compute
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.snapshots import sums
from blindpost.pipeline.types import columns

DATASET = Dataset(
    name="migration_proof",
    title="Did everything arrive? Counts and hashes of source and result of each import, and what is stored.",
    schema=columns(
        ("day", DateType(), "The UTC day on which the import began."),
        ("router", StringType(), "The router's name."),
        ("migration", StringType(), "Which import."),
        ("name", StringType(), "What was counted: queues, messages, service ..."),
        ("service", IntegerType(), "Which service, numbered within the import."),
        ("role", StringType(), "By which ids: messaging or notifier."),
        ("source_count", LongType(), "How many there were in the source."),
        ("result_count", LongType(), "How many there are in the result."),
        ("counts_equal", BooleanType(), "Whether these are equal and both sides are there."),
        ("hashes_equal", BooleanType(), "Whether the hashes over ids and contents are equal."),
        ("verdict", StringType(), "equal, different, only in the source, only in the result."),
        ("stored_count", LongType(), "How many the first complete export within a day after it has."),
        ("stored_agrees", BooleanType(), "Whether count and ids hash of that export are the result's."),
        ("stored_online", BooleanType(), "Whether the router ran while it was exported."),
        nullable=(
            "service",
            "role",
            "source_count",
            "result_count",
            "stored_count",
            "stored_agrees",
            "stored_online",
        ),
    ),
    key=("router", "migration", "name", "service", "role"),
    inputs=(Input("s_migration"), Input("s_queues", days_after=1), Input("s_snapshot", days_after=1)),
    compute=compute,
    kept={"summed": Kept("s_queues", sums)},
    rules=(
        Rule("equal", "verdict = 'equal'", "Nothing may be lost or changed by an import."),
        Rule(
            "stored as imported",
            "stored_online OR stored_agrees",
            "A router that has not run yet stores what was imported.",
        ),
        Rule(
            "equal sides have equal counts",
            "verdict <> 'equal' OR source_count <=> result_count",
            "Equal hashes over different counts would be a bug here.",
            Breaking.STOPS,
        ),
    ),
    where="in the router's trust zone, beside its exports; the result holds counts only",
    size="a few lines per import, and one export of 10 to 200 M queues",
    why_spark="the stored queues are counted and hashed anew, apart from the code that imported them",
)
