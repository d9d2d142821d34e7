"""The search by lines: change good inputs, go on from those that reach new lines, note findings and continue.

What was seen so far is written to a file every few seconds, and the input under trial stands in another, so
that neither a killed search nor one that ended its process loses what it found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fuzz.lines import Lines
from fuzz.target import One, Target, changed

ROUND = 100
"""How many inputs are made at once."""
SAVE_S = 5.0
HANG_S = 60
"""An input that takes longer is a finding."""
FINDINGS_MAX = 20
"""With so many different findings a search ends: whoever mends them starts it anew."""
LAST_MAX = 1 << 17


@dataclass
class Seen:
    """How far a search has come."""

    target: str
    seconds: float = 0.0
    inputs: int = 0
    reached: int = 0
    """Lines of ours that ran, of those in functions that were called."""
    known: int = 0
    first: int = 0
    """Lines that the good inputs reached alone."""
    seeds: int = 0
    kept: int = 0
    """Inputs that reached new lines."""
    findings: list[str] = field(default_factory=list)
    """What failed and where, each once."""
    is_over: bool = False

    def save(self, folder: Path) -> None:
        """Replace what was written before, whole or not at all."""
        beside = folder / "seen.new"
        beside.write_text(json.dumps(asdict(self), indent=1) + "\n")
        beside.replace(folder / "seen.json")

    @classmethod
    def load(cls, folder: Path) -> Seen | None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return cls(**json.loads((folder / "seen.json").read_text()))
        return None


class LastInput:
    """The input under trial, in a file that outlives the process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with file.open("wb") as made:
            made.truncate(LAST_MAX)
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), LAST_MAX)

    def begin(self, data: bytes) -> None:
        kept = data[: LAST_MAX - 4]
        self._map[: 4 + len(kept)] = len(kept).to_bytes(4, "big") + kept

    def close(self) -> None:
        self._map.close()
        self._file.unlink()

    @staticmethod
    def read(file: Path) -> bytes | None:
        """What was under trial when a process ended without closing this."""
        with contextlib.suppress(OSError):
            content = file.read_bytes()
            return content[4 : 4 + int.from_bytes(content[:4], "big")]
        return None


def place_of(error: BaseException) -> str:
    """What failed and where, so that the same failure is told once."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/blindpost/" in frame.filename] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"
    return f"{type(error).__name__} at {where}"


@contextlib.contextmanager
def _noticing_hangs() -> Iterator[None]:
    def hang(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"an input took more than {HANG_S} s")

    before = signal.signal(signal.SIGALRM, hang)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def look(
    target: Target,
    seconds: float,
    folder: Path,
    *,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Seen:
    """Search for so long. Each different failure is kept as an input in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, seen, last = Lines("blindpost"), Seen(target.name), LastInput(folder / "last")
    begin = clock()
    saved = begin
    seeds = [*target.seeds(), *target.cases.values()]
    seen.seeds = len(seeds)

    def inputs() -> Iterator[bytes]:
        yield from tuple(seeds)
        seen.first = lines.reached
        while True:
            yield from changed(seeds, ROUND, seed=(seed << 40) + seen.inputs)

    def note(error: BaseException, data: bytes) -> None:
        place = place_of(error)
        if place not in seen.findings:
            seen.findings.append(place)
            name = f"finding-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
            (folder / name).write_bytes(data)
            text = "".join(traceback.format_exception(error))
            (folder / f"{name}.txt").write_text(text)

    def tell() -> None:
        seen.seconds = clock() - begin
        seen.reached, seen.known, seen.kept = lines.reached, lines.known, len(seeds) - seen.seeds
        seen.save(folder)

    coming = inputs()
    with _noticing_hangs(), lines.followed():
        while clock() - begin < seconds and len(seen.findings) < FINDINGS_MAX:
            # A target that failed is made anew: what the failure left in it must not fail the next input.
            with contextlib.suppress(_FailedError), target.prepared() as one:
                for data in coming:
                    before = lines.reached
                    seen.inputs += 1
                    _try(one, data, last, note)
                    if lines.reached > before and seen.inputs > seen.seeds:
                        seeds.append(data)
                    now = clock()
                    if now - saved > SAVE_S:
                        saved = now
                        tell()
                    if now - begin >= seconds:
                        break
    seen.is_over = True
    tell()
    last.close()
    return seen


class _FailedError(Exception):
    """An input broke a promise; it is noted."""


def _try(one: One, data: bytes, last: LastInput, note: Callable[[BaseException, bytes], None]) -> None:
    last.begin(data)
    signal.alarm(HANG_S)
    try:
        one(data)
    except Exception as error:
        note(error, data)
        raise _FailedError from error
    finally:
        signal.alarm(0)
