"""The source of the program that runs, with every change its operator made, as the AGPL asks for it."""

from __future__ import annotations

import functools
import gzip
import io
import tarfile
from pathlib import Path

import blindpost

_LEFT_OUT = {"__pycache__"}
_SUFFIXES_LEFT_OUT = {".pyc", ".so"}


@functools.lru_cache(maxsize=1)
def running_source() -> bytes:
    """A gzipped archive of this package, the same bytes each time."""
    root = Path(blindpost.__file__).parent
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in sorted(root.rglob("*")):
            if not path.is_file() or _LEFT_OUT & set(path.parts) or path.suffix in _SUFFIXES_LEFT_OUT:
                continue
            member = tarfile.TarInfo(f"blindpost/{path.relative_to(root).as_posix()}")
            content = path.read_bytes()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)
