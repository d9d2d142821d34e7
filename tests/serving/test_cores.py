"""How many processors a server may use, and how many fronts a router has because of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindpost.router.running import choices
from blindpost.router.running.settings import LimitsSection, RouterSection, Settings
from blindpost.serving import cores
from blindpost.serving.cores import OVERRIDE

WITHOUT_QUOTA = "max 100000"


@pytest.mark.parametrize(
    ("outer", "inner", "found"),
    [
        (None, None, 16),
        (WITHOUT_QUOTA, WITHOUT_QUOTA, 16),
        (None, "250000 100000", 2),
        ("300000 100000", WITHOUT_QUOTA, 3),
        ("200000 100000", "800000 100000", 2),
        (WITHOUT_QUOTA, "50000 100000", 1),
        (WITHOUT_QUOTA, "6400000 100000", 16),
        ("garbage", "1 0", 16),
    ],
)
def test_a_quota_of_any_group_around_a_server_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outer: str | None, inner: str | None, found: int
) -> None:
    monkeypatch.delenv(OVERRIDE)
    monkeypatch.setattr(cores, "_allowed", lambda: 16)
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    (groups / "system.slice" / "router").mkdir(parents=True)
    own.write_text("1:cpu:/old\n0::/system.slice/router\n")
    for folder, quota in ((groups / "system.slice", outer), (groups / "system.slice" / "router", inner)):
        if quota is not None:
            (folder / "cpu.max").write_text(f"{quota}\n")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert cores.cores(groups, own) == found


def test_without_groups_the_processors_that_are_allowed_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OVERRIDE)
    monkeypatch.setattr(cores, "_allowed", lambda: 5)
    assert cores.cores(tmp_path / "none", tmp_path / "neither") == 5


@pytest.mark.parametrize(
    ("count", "memory_mib", "fronts"),
    [
        (1, 2048, 0),
        (2, 2048, 0),
        (3, 2048, 2),
        (4, 2048, 3),
        (8, 2048, 7),
        (64, 2048, 7),
        (8, 896, 7),
        (8, 512, 4),
        (8, 128, 1),
    ],
)
def test_a_router_has_one_front_less_than_cores_where_that_helps_and_memory_allows(
    monkeypatch: pytest.MonkeyPatch, count: int, memory_mib: int, fronts: int
) -> None:
    monkeypatch.setenv(OVERRIDE, str(count))
    limits = LimitsSection(memory_mib=memory_mib)
    settings = Settings.model_construct(router=RouterSection(), limits=limits)
    assert choices.fronts(settings) == fronts
    for explicit in (0, 1, 64):
        settings = Settings.model_construct(router=RouterSection(fronts=explicit), limits=limits)
        assert choices.fronts(settings) == explicit


@pytest.mark.parametrize(
    ("fronts", "memory_mib", "is_short"),
    [(0, 128, False), (2, 128, False), (3, 128, True), (7, 128, True), (7, 512, False), (64, 2048, False)],
)
def test_fronts_that_leave_no_memory_for_connections_are_told(
    fronts: int, memory_mib: int, is_short: bool
) -> None:
    """Such a router left one connection to each address, said that everything works, and never why."""
    settings = Settings.model_construct(
        router=RouterSection(fronts=fronts), limits=LimitsSection(memory_mib=memory_mib)
    )
    told = choices.too_little_memory(settings)
    assert (told is not None) is is_short
    if told is not None:
        assert f"{fronts} fronts" in told
        assert "limits.memory_mib = 128" in told
