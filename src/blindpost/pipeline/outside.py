"""What may be published outside: a few sums of whole days, noised once, rounded, and small ones left out.

Noise is that of the discrete Laplace mechanism, drawn exactly in whole numbers: floating point would leak the
value under it. A day's budget is shared by its numbers. A number is noised once and kept, since anyone who
could ask again would average the noise away: a later correction of the day is not published. Rounding and
leaving out happen to the noised number, which costs nothing more.
"""

from __future__ import annotations

import csv
import io
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blindpost.pipeline.dataset import datasets
from blindpost.pipeline.errors import PipelineError, damage_explained
from blindpost.pipeline.files import join
from blindpost.pipeline.lake import Lake
from blindpost.pipeline.quality import is_over

LEAST = 8
"""Smaller numbers are not published."""
ROUND_TO = 10
FOLDER, NUMBERS = "outside", "numbers.json"
SOURCE = "daily_statistics"

RandomBelow = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Published:
    """A number that may leave: where it comes from, and by how much one person may change it in a day.

    An exact count: one queue more may change an estimate of queues by hundreds.
    """

    name: str
    column: str
    most: int


PUBLISHED = (
    Published("messages_sent", "msgSent", 100),
    Published("messages_received", "msgRecv", 100),
    Published("queues_created", "qCreated", 10),
)


def discrete_laplace(scale: Fraction, below: RandomBelow = secrets.randbelow) -> int:
    """A whole number with probability proportional to exp(-|number| / scale), exactly.

    The method of Canonne, Kamath and Steinke: only whole random numbers are drawn and compared.
    """
    top, bottom = scale.numerator, scale.denominator
    while True:
        rest = below(top)
        if not _happens(Fraction(rest, top), below):
            continue
        whole = 0
        while _happens(Fraction(1), below):
            whole += 1
        size = (rest + top * whole) // bottom
        negative = below(2)
        if size or not negative:  # zero has one sign
            return -size if negative else size


def _happens(power: Fraction, below: RandomBelow) -> bool:
    """True with probability exp(-power), for a power from 0 to 1."""
    count = 1
    while below(power.denominator * count) < power.numerator:
        count += 1
    return count % 2 == 1


def noised(value: int, one: Published, epsilon: Fraction, below: RandomBelow = secrets.randbelow) -> int:
    """A number of a day with its share of the day's budget spent on it."""
    return value + discrete_laplace(one.most * len(PUBLISHED) / epsilon, below)


def shown(number: int) -> int | None:
    """What is published of a noised number: rounded, or nothing if it is small."""
    return None if number < LEAST else max((number + ROUND_TO // 2) // ROUND_TO * ROUND_TO, ROUND_TO)


def publish(
    lake: Lake, epsilon: Fraction, below: RandomBelow = secrets.randbelow
) -> list[dict[str, int | str | None]]:
    """A row for each whole day. Days that are new are noised and kept first; nothing is noised twice."""
    if epsilon <= 0:
        raise PipelineError("The budget of a day must be above 0.")
    with lake.writing():
        place = join(lake.out, FOLDER, NUMBERS)
        content = lake.files.read(place)
        with damage_explained(place):
            read: dict[str, dict[str, Any]] = {} if content is None else json.loads(content)
            known = {day: {name: kept[name] for name in ("epsilon", "noised")} for day, kept in read.items()}
        for day, sums in _days(lake).items():
            if day not in known:
                values = {one.name: noised(sums[one.name], one, epsilon, below) for one in PUBLISHED}
                known[day] = {"epsilon": str(epsilon), "noised": values}
        lake.files.replace(place, json.dumps(known, indent=1, sort_keys=True).encode())
    return [
        {
            "day": day,
            "epsilon": kept["epsilon"],
            **{one.name: shown(kept["noised"][one.name]) for one in PUBLISHED if one.name in kept["noised"]},
        }
        for day, kept in sorted(known.items())
    ]


def _days(lake: Lake) -> dict[str, dict[str, int]]:
    """The sums of all routers on each day that has ended."""
    rows = lake.gold(datasets()[SOURCE]).select("day", *(one.column for one in PUBLISHED)).collect()
    days: dict[str, dict[str, int]] = {}
    for row in rows:
        day = row["day"].isoformat()
        if is_over(day, lake.clock()):
            sums = days.setdefault(day, dict.fromkeys((one.name for one in PUBLISHED), 0))
            for one in PUBLISHED:
                sums[one.name] += row[one.column]
    return days


def written(rows: Sequence[Mapping[str, int | str | None]], *, as_json: bool) -> str:
    """The file that leaves, with what was done to its numbers."""
    about = (
        f"Sums of whole UTC days over all routers, each with discrete Laplace noise: a day's numbers "
        f"together are epsilon-differentially private for a person of at most "
        f"{', '.join(f'{one.most} {one.name}' for one in PUBLISHED)} that day. Rounded to {ROUND_TO}; "
        f"below {LEAST} nothing is said."
    )
    if as_json:
        return json.dumps({"about": about, "days": rows}, indent=1) + "\n"
    text = io.StringIO()
    text.write(f"# {about}\n")
    table = csv.DictWriter(text, ["day", "epsilon", *(one.name for one in PUBLISHED)], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
