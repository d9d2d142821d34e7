"""The program that `spark-submit` starts, with the packaged wheel beside it:

    spark-submit --master spark://HOST:PORT --py-files blindpost-*.whl \\
        .../blindpost/pipeline/submit/run_pipeline.py --journal hdfs://.../journal --out hdfs://.../lake

It does what `blindpost pipeline run` does; master and settings are those of spark-submit. Every machine of
the cluster needs Python with pandas and pyarrow.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, date, datetime
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    from blindpost.pipeline.dataset import datasets
    from blindpost.pipeline.errors import full_disks_explained
    from blindpost.pipeline.lake import Lake
    from blindpost.pipeline.runner import Days, run
    from blindpost.pipeline.session import SparkOptions, spark_session
    from blindpost.pipeline.settings import read_settings

    parser = argparse.ArgumentParser(description="Bring the tables of a lake up to date.")
    parser.add_argument("--journal", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--zone")
    parser.add_argument("--from", dest="first", type=date.fromisoformat)
    parser.add_argument("--to", dest="last", type=date.fromisoformat)
    parser.add_argument("--config", type=Path, help="a TOML file about the fleet")
    parser.add_argument("--as-of", type=datetime.fromisoformat, help="judge as if it were this moment (UTC)")
    parser.add_argument("--table", action="append", help="only this table; may be repeated")
    given = parser.parse_args(arguments)
    known = datasets()
    wanted = [known[name] for name in given.table or known]
    with full_disks_explained(given.out), spark_session(SparkOptions()) as spark:
        clock = time.time if given.as_of is None else given.as_of.replace(tzinfo=UTC).timestamp
        about = read_settings(given.config)
        lake = Lake(spark, given.journal, given.out, given.zone, about, clock)
        summary = run(lake, wanted, Days(given.first, given.last))
    told = {"computed": summary.computed, "set_aside": len(summary.set_aside), "failed": summary.failed}
    print(json.dumps({**told, "unfinished": summary.unfinished}))
    if summary.failed or summary.unfinished:
        sys.exit(1)


if __name__ == "__main__":
    main()
