"""Starting Spark: on this machine by default, on any master, or as a client of Spark Connect.

Nothing is downloaded and no environment variable has to be set. Days are days of UTC everywhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.java import find_java, java_home, put, shared_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
APP_NAME = "blindpost pipeline"
CONNECT_PORT, CONNECT_S = 15_002, 10.0
_LOG_SETTINGS = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = fatal
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""

ALWAYS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    "spark.sql.icu.caseMappings.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings that results or privacy depend on, whatever the master.

Letters are changed by Java's own tables: loading those of ICU takes two seconds, for digits of hashes.
"""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where Spark runs, and settings on top of ours."""

    master: str | None = None
    remote: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    small: bool = False
    """There is little to do: Java's slower compiler and multi-threaded collector would not pay off."""


def require_pyspark() -> None:
    try:
        import pandas  # noqa: F401 (only whether it is there)
        import pyarrow  # noqa: F401 (only whether it is there)
        import pyspark  # noqa: F401 (only whether it is there)
    except ImportError as error:
        raise PipelineError(
            f"The pipeline needs the Python package {error.name}: pip install 'blindpost[pipeline]'."
        ) from error


@contextlib.contextmanager
def spark_session(options: SparkOptions | None = None) -> Iterator[SparkSession]:
    """Spark for the time of the block."""
    session = start(SparkOptions() if options is None else options)
    try:
        yield session
    finally:
        session.stop()


def start(options: SparkOptions) -> SparkSession:
    require_pyspark()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if options.remote is not None:
        return _connect(options.remote, options.settings)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(APP_NAME)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:  # spark-submit has started Java and knows its master
        home = java_home(find_java())
        os.environ["JAVA_HOME"] = str(home)
        master = options.master or LOCAL
        _reach_master(master)
        builder = builder.master(master)
        for name, value in {
            **_driver(home, small=options.small),
            **(_local() if master.startswith("local") else {}),
        }.items():
            builder = builder.config(name, value)
    for name, value in {**ALWAYS, **options.settings}.items():
        builder = builder.config(name, value)
    with _safe_path():
        return builder.getOrCreate()


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """What is started here imports nothing from the folder it is started in: Java, and by it Spark's Python.

    Only that: other programs that this process starts may need their folder.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _connect(remote: str, settings: Mapping[str, str]) -> SparkSession:
    try:
        import grpc  # noqa: F401 (only whether it is there)
    except ImportError as error:
        raise PipelineError("Spark Connect needs more packages: pip install 'pyspark[connect]'.") from error
    from pyspark.sql import SparkSession

    _reach(remote)
    session = SparkSession.builder.remote(remote).getOrCreate()
    for name, value in ALWAYS.items():
        if session.conf.isModifiable(name):  # the others are the server's own
            session.conf.set(name, value)
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


def _reach(remote: str) -> None:
    """Fail at once when nothing answers; the client would retry for minutes."""
    parts = urlsplit(remote)
    try:
        if parts.scheme != "sc" or parts.hostname is None:
            raise ValueError("sc://HOST:PORT expected")
        address = (parts.hostname, parts.port or CONNECT_PORT)
        socket.create_connection(address, CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"{remote}: no Spark Connect server is there ({error}). Start one with Spark's "
            "`start-connect-server.sh`, or leave --remote out to run Spark on this machine."
        ) from error


def _reach_master(master: str) -> None:
    """Fail at once when nothing answers; Spark would try for more than a minute and end with a Java trace."""
    if not master.startswith("spark://"):
        return
    failures = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
            return
        except (OSError, ValueError) as error:
            failures.append(str(error))
    raise PipelineError(
        f"{master}: no Spark master is there ({failures[0]}). Start one with Spark's `start-master.sh`, "
        "or leave --master out to run Spark on this machine."
    )


def is_remote(spark: SparkSession) -> bool:
    """Whether Spark is reached through Spark Connect: we run no Java then."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _driver(home: Path, *, small: bool) -> dict[str, str]:
    """What must be known before Java starts. Jobs want throughput, not short pauses: hence the collector."""
    import pyspark

    java = "-XX:+UseParallelGC"
    if small:
        jars = Path(pyspark.__file__).parent / "jars"
        java = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {shared_classes(home, jars)}".rstrip()
    log_settings = home / "log4j2.properties"
    put(log_settings, _LOG_SETTINGS)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "spark.driver.extraJavaOptions": f'{java} "-Dlog4j2.configurationFile={log_settings}"',
        "spark.driver.memory": f"{max(1, min(16, memory // 3 // 2**30))}g",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }


def _local() -> dict[str, str]:
    """On one machine: no port that others can reach, and no more shuffle partitions than it can use.

    Counters of minutes are packed to a byte a row: by Spark's own measure all of them would be one task.
    """
    return {
        "spark.sql.files.maxPartitionBytes": "32m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
    }
