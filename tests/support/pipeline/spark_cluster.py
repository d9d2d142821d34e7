"""A real standalone cluster: a master and two workers, each a process of its own, from pyspark's own jars."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

import pyspark

from blindpost.pipeline.java import find_java, java_home
from tests.support.pipeline.shared_classes import archive

HOME = Path(pyspark.__file__).parent
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where it listens, and what a program that talks to it needs in its environment."""

    master: str
    environment: dict[str, str]

    def submit(self, wheel: Path, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program with the packaged wheel on the cluster."""
        command = [
            str(HOME / "bin" / "spark-submit"),
            *("--master", self.master, "--py-files", str(wheel)),
            *("--driver-memory", "1g", "--executor-memory", "512m", "--total-executor-cores", str(WORKERS)),
            *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.log.level=ERROR"),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
            str(program),
            *arguments,
        ]
        return subprocess.run(command, env=self.environment, check=False, capture_output=True, text=True)


def _environment(folder: Path) -> dict[str, str]:
    shared = f"-XX:SharedArchiveFile={archive()} -Xlog:disable"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYTHONPATH"))},
        "JAVA_HOME": str(java_home(find_java(), folder / "java")),
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {shared}".lstrip(),
    }


@contextlib.contextmanager
def connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Spark Connect as a process of its own; the address that clients are given."""
    given = {
        **settings,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
    }
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in given.items():
        command += ["--conf", f"{name}={value}"]
    server = subprocess.Popen(
        [*command, "spark-internal"],
        env=_environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        yield "sc://" + _until(server, r"Spark Connect server started at: (\S+)")
    finally:
        _end(server)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    environment = {**_environment(folder), "SPARK_DAEMON_MEMORY": "256m"}
    with contextlib.ExitStack() as processes:

        def started(kind: str, *arguments: str) -> subprocess.Popen[str]:
            name = f"org.apache.spark.deploy.{kind}"
            command = [str(HOME / "bin" / "spark-class"), name, "--host", "127.0.0.1", "--webui-port", "0"]
            process = subprocess.Popen(
                [*command, *arguments],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
            )
            processes.callback(_end, process)
            return process

        master = started("master.Master", "--port", "0")
        address = _until(master, r"Starting Spark master at (spark://\S+)")
        for number in range(WORKERS):
            place = folder / f"worker{number}"
            worker = started(
                *("worker.Worker", "--cores", "1", "--memory", "600m", "--work-dir", str(place), address)
            )
            _until(worker, r"Successfully registered with (master)")
        yield Cluster(address, environment)


def _until(process: subprocess.Popen[str], pattern: str) -> str:
    """What a line of its log says; the rest of the log is thrown away, so that it cannot block."""
    log = process.stderr
    assert log is not None
    seen: deque[str] = deque(maxlen=60)
    for line in log:
        seen.append(line)
        if match := re.search(pattern, line):
            Thread(target=_throw_away, args=(log,), daemon=True).start()
            return match[1]
    raise AssertionError(f"the process ended before it said {pattern}:\n" + "".join(seen))


def _throw_away(log: IO[str]) -> None:
    with log:
        deque(log, maxlen=0)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait()
