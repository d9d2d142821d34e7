"""Files by path or URI: on this machine through the system, anywhere else through Spark's Hadoop.

What publishing needs and no more. `replace` is atomic and durable: a reader sees the old content or the new.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from blindpost.pipeline.errors import PipelineError
from blindpost.pipeline.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PRIVATE_FOLDER = 0o700


class FileInfo(NamedTuple):
    """A file as a listing shows it; one with the same values has the same content."""

    path: str
    size: int
    modified_us: int


def join(base: str, *names: str) -> str:
    return "/".join((base.rstrip("/"), *names))


def literal(path: str) -> str:
    """A path as Spark takes it, when it has characters that mean something in a pattern of Hadoop."""
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in path)


def name_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


class Files(ABC):
    """What can be done with files of one file system."""

    local = False
    """Whether any program on this machine can open them by their paths."""

    def __init__(self) -> None:
        self.closed: dict[str, str] = {}
        """Folders that the system did not let us list, and links that lead nowhere, and why."""

    @abstractmethod
    def listed(self, root: str) -> Iterator[FileInfo]:
        """All files below a folder, in any order; none if it is not there."""

    def folders(self, root: str) -> Iterator[tuple[str, list[FileInfo]]]:
        """The same by the folders they are in, one after another."""
        found: dict[str, list[FileInfo]] = {}
        for file in self.listed(root):
            found.setdefault(file.path.rpartition("/")[0], []).append(file)
        yield from found.items()

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The content, or None if there is no such file."""

    @abstractmethod
    def replace(self, path: str, content: bytes) -> None:
        """Put this content there, as a whole."""

    @abstractmethod
    def show(self, source: str, path: str) -> None:
        """Let a finished file be seen under another name too, as a whole; what was there is replaced."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Rename a folder to a name that is not there yet."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file or a folder with all it holds, if it is there."""

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def make_private(self, root: str) -> None:
        """Make a folder that only its owner can enter, or make one that is there so."""

    def is_closed(self, root: str) -> bool:
        """Whether a folder is there and we may not enter it."""
        return False

    @contextlib.contextmanager
    def locked(self, root: str) -> Iterator[None]:
        """Keep other runs away from a folder, where the file system can."""
        yield


class LocalFiles(Files):
    """Files of this machine, or mounted on it."""

    local = True

    def listed(self, root: str) -> Iterator[FileInfo]:
        for _, files in self.folders(root):
            yield from files

    def folders(self, root: str) -> Iterator[tuple[str, list[FileInfo]]]:
        for path in [path for path in self.closed if path == root or path.startswith(f"{root}/")]:
            del self.closed[path]
        above: tuple[tuple[int, int], ...] = ()
        with contextlib.suppress(OSError):
            known = os.stat(root)
            above = ((known.st_dev, known.st_ino),)
        yield from self._walked(root, above)

    def _walked(self, root: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, list[FileInfo]]]:
        """Through links too, but not back into a folder that it is in: `above` are those."""
        below: list[tuple[str, tuple[int, int]]] = []
        files: list[FileInfo] = []
        with self._open_folder(root) as found:
            for entry in found:
                try:
                    known = entry.stat()
                except OSError as error:  # a compaction has removed it, or it is a link that leads nowhere
                    if not (entry.is_file(follow_symlinks=False) or entry.name.startswith(".")):
                        self.closed[entry.path] = error.strerror or type(error).__name__
                    continue
                if stat.S_ISDIR(known.st_mode):
                    below.append((entry.path, (known.st_dev, known.st_ino)))
                elif stat.S_ISREG(known.st_mode):  # a pipe would never end
                    files.append(FileInfo(entry.path, known.st_size, known.st_mtime_ns // 1000))
        if files:
            yield root, files
        for folder, own in below:
            if own not in above:
                yield from self._walked(folder, (*above, own))

    @contextlib.contextmanager
    def _open_folder(self, root: str) -> Iterator[Iterable[os.DirEntry[str]]]:
        """What is in a folder; one that cannot be listed is remembered, and does not stop the others."""
        try:
            opened = os.scandir(root)
        except (FileNotFoundError, NotADirectoryError):
            yield ()
        except OSError as error:
            self.closed[root] = error.strerror or type(error).__name__
            yield ()
        else:
            with opened:
                yield opened

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: str, content: bytes) -> None:
        with self._beside(path) as temporary:
            temporary.write_bytes(content)
            _sync(temporary)
            temporary.replace(path)
        _sync(Path(path).parent)

    def show(self, source: str, path: str) -> None:
        with self._beside(path) as temporary:
            try:
                os.link(source, temporary)
            except OSError:  # no hard links here
                shutil.copyfile(source, temporary)
            _sync(temporary)
            temporary.replace(path)
            # Two names of one file: rename(2) then does nothing, and leaves the temporary name.
            temporary.unlink(missing_ok=True)
        _sync(Path(path).parent)

    @contextlib.contextmanager
    def _beside(self, path: str) -> Iterator[Path]:
        """A name for a file that nobody looks at: readers want names that end in .parquet."""
        folder = Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=folder))
        try:
            yield own / "file"
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def move(self, source: str, target: str) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        for folder, _, names in os.walk(source):
            for name in names:
                _sync(Path(folder) / name)
            _sync(Path(folder))
        Path(source).rename(target)
        _sync(Path(target).parent)

    def remove(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_private(self, root: str) -> None:
        Path(root).mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if stat.S_IMODE(os.stat(root).st_mode) != PRIVATE_FOLDER:
            os.chmod(root, PRIVATE_FOLDER)

    def is_closed(self, root: str) -> bool:
        return os.path.exists(root) and not os.access(root, os.R_OK | os.X_OK)

    @contextlib.contextmanager
    def locked(self, root: str) -> Iterator[None]:
        Path(root).mkdir(parents=True, exist_ok=True)
        with (Path(root) / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(
                    f"{root}: another run is writing there. Wait until it has ended."
                ) from None
            yield


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles(Files):
    """Files of any file system that Hadoop knows, through Spark's own Java."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        super().__init__()
        context: Any = spark.sparkContext
        self._java = context._jvm
        self._gateway = context._gateway
        settings = context._jsc.hadoopConfiguration()
        hadoop = self._java.org.apache.hadoop.fs
        self._path = hadoop.Path
        self._context = hadoop.FileContext.getFileContext(self._path(root).toUri(), settings)
        self._system = self._path(root).getFileSystem(settings)
        self._settings = settings
        renames = hadoop.Options.Rename
        self._plainly = self._gateway.new_array(renames, 0)
        self._over_another = self._gateway.new_array(renames, 1)
        self._over_another[0] = renames.OVERWRITE

    def listed(self, root: str) -> Iterator[FileInfo]:
        if not self.exists(root):
            return
        found = self._system.listFiles(self._path(root), True)
        while found.hasNext():
            status = found.next()
            yield FileInfo(status.getPath().toString(), status.getLen(), status.getModificationTime() * 1000)

    def read(self, path: str) -> bytes | None:
        if not self.exists(path):
            return None
        stream = self._system.open(self._path(path))
        try:
            return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def replace(self, path: str, content: bytes) -> None:
        temporary = self._beside(path)
        stream = self._system.create(self._path(temporary), True)
        stream.write(content)
        stream.close()
        self._context.rename(self._path(temporary), self._path(path), self._over_another)

    def show(self, source: str, path: str) -> None:
        temporary = self._beside(path)
        copy = self._java.org.apache.hadoop.fs.FileUtil.copy
        here, there = self._path(source), self._path(temporary)
        copy(self._system, here, self._system, there, False, True, self._settings)
        self._context.rename(there, self._path(path), self._over_another)

    def _beside(self, path: str) -> str:
        folder, name = path.rsplit("/", 1)
        self._system.mkdirs(self._path(folder))
        return join(folder, f".{name}.{os.urandom(4).hex()}.tmp")

    def move(self, source: str, target: str) -> None:
        self._system.mkdirs(self._path(target).getParent())
        self._context.rename(self._path(source), self._path(target), self._plainly)

    def remove(self, path: str) -> None:
        self._system.delete(self._path(path), True)

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def make_private(self, root: str) -> None:
        self._system.mkdirs(self._path(root))
        mode = self._java.org.apache.hadoop.fs.permission.FsPermission(f"{PRIVATE_FOLDER:o}")
        self._system.setPermission(self._path(root), mode)


def local_path(uri: str) -> str | None:
    """The path on this machine that a path or URI means, or None if it is elsewhere."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return unquote(parts.path)
    return None if parts.scheme else os.path.abspath(uri)


def open_root(spark: SparkSession, uri: str) -> tuple[Files, str]:
    """The file system of a folder, and the folder as that file system and Spark both call it."""
    path = local_path(uri)
    if path is not None:
        return LocalFiles(), path
    if is_remote(spark):
        raise PipelineError(
            f"{uri}: through Spark Connect only folders can be used that this machine and the cluster both "
            "see. Mount it, or use --master or spark-submit."
        )
    return HadoopFiles(spark, uri), uri.rstrip("/")
