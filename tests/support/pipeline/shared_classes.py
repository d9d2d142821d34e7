"""The archive from which every Java of the tests takes Spark's classes, which it would load for seconds."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pyspark

from blindpost.pipeline.java import class_archive, find_java, java_home
from blindpost.serving.children import COMMAND
from tests.support.pipeline import journals
from tests.support.pipeline.lakes import AS_OF, seal_journal
from tests.support.serving.commands import ENVIRONMENT


def archive() -> Path:
    return class_archive(java_home(find_java()), Path(pyspark.__file__).parent / "jars")


def leave_behind(folder: Path) -> None:
    """A short run, which leaves the archive behind; Java has both outputs open until it has."""
    rng = random.Random(1)
    seal_journal(folder / "journal", journals.messages(rng, count=20), rng)
    where = ("--journal", str(folder / "journal"), "--out", str(folder / "lake"))
    command = [*COMMAND, "pipeline", "run", "--table", "delivery_slo", "--as-of", AS_OF, *where]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
