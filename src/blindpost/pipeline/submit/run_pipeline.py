"""The program that `spark-submit` starts, with the packaged wheel beside it:

    spark-submit --master spark://HOST:PORT --py-files blindpost-*.whl \\
        .../blindpost/pipeline/submit/run_pipeline.py --journal hdfs://.../journal --out hdfs://.../lake

It does what `blindpost pipeline run` does; master and settings are those of spark-submit. Every machine of
the cluster needs Python with pandas and pyarrow.
"""

from __future__ import annotations

import argparse
import json
from datetime import date


def main(arguments: list[str] | None = None) -> None:
    from blindpost.pipeline.dataset import datasets
    from blindpost.pipeline.errors import full_disks_explained
    from blindpost.pipeline.lake import Lake
    from blindpost.pipeline.runner import Days, run
    from blindpost.pipeline.session import SparkOptions, spark_session

    parser = argparse.ArgumentParser(description="Bring the tables of a lake up to date.")
    parser.add_argument("--journal", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--zone")
    parser.add_argument("--from", dest="first", type=date.fromisoformat)
    parser.add_argument("--to", dest="last", type=date.fromisoformat)
    parser.add_argument("--table", action="append", help="only this table; may be repeated")
    given = parser.parse_args(arguments)
    known = datasets()
    wanted = [known[name] for name in given.table or known]
    with full_disks_explained(given.out), spark_session(SparkOptions()) as spark:
        lake = Lake(spark, given.journal, given.out, given.zone)
        summary = run(lake, wanted, Days(given.first, given.last))
    print(json.dumps({"computed": summary.computed, "set_aside": len(summary.set_aside)}))


if __name__ == "__main__":
    main()
