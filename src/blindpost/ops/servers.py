"""The servers that a page looks at: each has a folder, and a control socket that answers in numbers."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blindpost
from blindpost.ops import problems
from blindpost.ops.faces import face_of
from blindpost.ops.history import Track
from blindpost.ops.kinds import KINDS, Answers, Kind
from blindpost.ops.model import Card, Chart, Curve, Face, Fact, Health, Line, Tile
from blindpost.ops.wording import DAY_S, period
from blindpost.serving.control import NotRunningError, ask
from blindpost.serving.failures import OperatorError
from blindpost.serving.place import WAITING, control_of
from blindpost.store.file_locks import is_held

ASK_S_MAX = 5.0
"""A server that takes longer to answer has stopped turning."""
_HOUR, _DAY = (60, 1), (96, 15)
"""How many bars a chart has, and how many minutes each of them is."""


@dataclass
class Watched:
    """One server and what is remembered of its counters."""

    kind: Kind
    folder: Path
    track: Track = field(default_factory=Track)
    _face: Face | None = None
    _push_key: str = ""
    _stamp: tuple[int, int] | None = None

    @property
    def face(self) -> Face:
        """Read again when its configuration has changed."""
        try:
            status = (self.folder / self.kind.config).stat()
            stamp = status.st_mtime_ns, status.st_ino
        except OSError:
            stamp = None
        if self._face is None or stamp != self._stamp:
            self._face, self._stamp = face_of(self.kind.word, self.folder), stamp
        return self._face

    async def look(self, now_s: Callable[[], float] = time.time) -> Card:
        """Ask it now; one that does not answer is down."""
        face, answers, error = await asyncio.to_thread(self._ask)
        at_s = now_s()
        if answers is None:
            self.track.forget_last()
            return self._bare(face, Health.DOWN, *error)
        status = answers["status"]
        health, sentence = Health.RUNNING, str(status["health"])
        if status["state"] == WAITING:
            health = Health.STANDBY if status.get("follows", True) else Health.NOT_READY
            return self._bare(face, health, sentence)
        if status["state"] == "draining":
            health, sentence = Health.DRAINING, "it is stopping: it answers what it accepted"
        elif not status["ready"]:
            health = Health.NOT_READY
        try:
            return self._card(face, answers, health, sentence, at_s)
        except (LookupError, TypeError, ValueError, AttributeError):
            told = (
                f"it runs version {status['version']}, whose numbers this page of version "
                f"{blindpost.__version__} cannot read"
            )
            return self._bare(face, Health.NOT_READY, told, "Restart both, the page and the server.")

    def _bare(self, face: Face, health: Health, sentence: str, remedy: str = "") -> Card:
        """The card of a server without numbers."""
        kind = self.kind
        return Card(
            *(kind.title, kind.word, str(self.folder), face, health, sentence, remedy),
            push_key=self._push_key,
            actions=kind.actions,
        )

    def _card(self, face: Face, answers: Answers, health: Health, sentence: str, at_s: float) -> Card:
        """The card of a server that answered."""
        kind, folder, status = self.kind, shlex.quote(str(self.folder)), answers["status"]
        self._push_key = str(status.get("vapid_public_key") or "")
        rows = (*problems.EVERY, *kind.problems)
        counters = {each.name: number(answers, each.path) for each in (kind.flow.arrived, kind.flow.left)}
        counters |= {row.name: row.value(answers) for row in rows}
        self.track.sample(at_s, counters)
        for line in () if kind.measure is None else kind.measure.lines:
            self.track.level(line.name, level(answers, line.path))
        found = [
            *problems.levels(status, face, kind.word, folder, at_s),
            *problems.counted(rows, self.track, kind.word, folder),
        ]
        return Card(
            kind.title,
            kind.word,
            str(self.folder),
            face,
            health,
            sentence,
            "",
            (*self._rates(), *kind.tiles(answers)),
            tuple(_facts(status, at_s)),
            tuple(found),
            self._chart(),
            self._push_key,
            kind.actions,
            self._curve(),
        )

    def _rates(self) -> list[Tile]:
        """What came and went in the last minute; folded away while nothing has for a day."""
        track, sides = self.track, (self.kind.flow.arrived, self.kind.flow.left)
        flows = any(track.last_day(each.name) for each in sides)
        return [
            Tile(
                f"{each.name}.per_minute",
                f"{each.word}, last minute",
                track.per_minute(each.name),
                is_main=flows,
            )
            for each in sides
        ]

    def _chart(self) -> Chart:
        flow, bars = self.kind.flow, self.track.bars
        hour, day = (
            (bars(flow.arrived.name, *spans), bars(flow.left.name, *spans)) for spans in (_HOUR, _DAY)
        )
        return Chart(flow.noun, flow.arrived.word, flow.left.word, hour, day)

    def _curve(self) -> Curve | None:
        measure, curve = self.kind.measure, self.track.curve
        if measure is None:
            return None
        lines = (Line(each.word, curve(each.name, *_HOUR), curve(each.name, *_DAY)) for each in measure.lines)
        return Curve(measure.noun, tuple(lines))

    def _ask(self) -> tuple[Face, dict[str, Mapping[str, Any]] | None, tuple[str, ...]]:
        """Its face, and what it answered or why not."""
        face, control = self.face, control_of(self.folder / self.kind.config)
        try:
            answers: dict[str, Mapping[str, Any]] = {"status": ask(control, "status", timeout_s=ASK_S_MAX)}
            if answers["status"]["state"] != WAITING:
                rest = [each for each in self.kind.commands if each not in answers]
                answers |= {each: ask(control, each, timeout_s=ASK_S_MAX) for each in rest}
            return face, answers, ()
        except NotRunningError:
            if is_held(self.folder / f"{self.kind.word}.lock"):
                return face, None, ("it does not answer", "It is starting or ending: wait for some seconds.")
            return face, None, ("it does not run", f"Start it with `{self._start}`.")
        except OperatorError as error:
            return face, None, (str(error).removesuffix("."),)

    @property
    def _start(self) -> str:
        return f"blindpost {self.kind.word} start -c {shlex.quote(str(self.folder))}"


def number(answers: Answers, path: str) -> int:
    """A counter at `answer/table/name`; 0 where it is not there."""
    return int(_at(answers, path) or 0)


def level(answers: Answers, path: str) -> float | None:
    """A level at such a place; None where nothing was measured."""
    value = _at(answers, path)
    return None if value is None else float(value)


def _at(answers: Answers, path: str) -> Any:
    value: Any = answers
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _facts(status: Mapping[str, Any], now_s: float) -> list[Fact]:
    machine = status["machine"]
    facts = [Fact("version", str(status["version"])), Fact("up for", period(status["uptime_s"]))]
    since, until = machine["certificate_since"], machine["certificate_until"]
    if until is not None:
        age, left = period(max(0, now_s - since)), period(max(0, until - now_s))
        ends = time.strftime("%Y-%m-%d", time.gmtime(until))
        long = until - now_s > 50 * 365 * DAY_S
        facts.append(
            Fact("certificate", f"{age} old, {'does not end' if long else f'ends in {left} ({ends})'}")
        )
    return facts


def find(folder: Path) -> Watched:
    """The server that is set up in a folder."""
    for kind in KINDS:
        if (folder / kind.config).exists():
            return Watched(kind, folder.absolute())
    names = ", ".join(kind.config for kind in KINDS)
    raise OperatorError(
        f"{folder}: no server is set up here (none of {names} is in it). Name the folder of a server."
    )
