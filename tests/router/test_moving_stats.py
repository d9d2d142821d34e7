"""Counters of an smp-server continue in our router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blindpost.router.meters import Meter, RouterMeters
from blindpost.router.moving.stats import NAMES
from blindpost.serving.counters import KeptCounters, take_over_stats
from blindpost.serving.failures import OperatorError
from blindpost.serving.old_stats import StatsError, read_stats

OLD = """\
fromTime=2026-01-02T03:04:05.678Z
qCreated=11
qDeletedAll=4
qCount=7
msgSent=1000
msgNtfExpired=3
activeQueues:
dayHashes=1,-2
weekHashes=
monthHashes=3
activeQueuesNtf:
dayHashes=
pRelays:
requests=5
successes=4
errorsConnect=1
errorsCompat=0
errorsOther=0
pMsgFwdsOwn:
requests=9
pMsgFwdsRecv=8
rcvServices:
assocNew=2
assocUpdatedt=1
subQueues=6
rslvStats:
reqs=0
"""


def test_every_line_is_taken_or_named() -> None:
    found = read_stats(OLD, NAMES)
    counts = {meter.value: count for meter, count in found.counts.items()}
    assert counts == {
        "qCreated": 11,
        "qDeletedAll": 4,
        "msgSent": 1000,
        "msgNtfExpired": 3,
        "pRelays.requests": 5,
        "pRelays.successes": 4,
        "pRelays.errorsOther": 0,
        "pMsgFwdsRecv": 8,
        "rcvServices.assocNew": 2,
        "rcvServices.assocUpdated": 1,
        "rcvServices.subQueues": 6,
        **{
            name: count
            for name, count in counts.items()
            if name.startswith(("pRelays.errors", "pMsgFwdsOwn"))
        },
    }
    assert {"qCount", "activeQueues.dayHashes", "rslvStats.reqs"} <= set(found.left)
    lines = sum("=" in line for line in OLD.splitlines())
    assert len(found.counts) + len(found.left) + 1 == lines


def test_only_a_router_that_counted_nothing_continues_from_them(tmp_path: Path) -> None:
    (tmp_path / "stats").write_text(OLD)
    take_over_stats(tmp_path / "counters.json", tmp_path / "stats", NAMES)
    meters = RouterMeters()
    kept = KeptCounters(tmp_path / "counters.json", meters)
    kept.load()
    assert (meters[Meter.SENT], kept.since) == (1000, 1_767_323_045)
    assert json.loads((tmp_path / "counters.json").read_text())["counts"]["qSub"] == 0
    with pytest.raises(OperatorError, match="has counted already"):
        take_over_stats(tmp_path / "counters.json", tmp_path / "stats", NAMES)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "fromTime=yesterday", OLD.replace("qCreated=11", "qCreated=many")]
)
def test_a_malformed_stats_file_is_refused(text: str) -> None:
    with pytest.raises(StatsError):
        read_stats(text, NAMES)
