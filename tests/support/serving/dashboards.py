"""The metrics that deploy/ names: in the dashboard's and the alerts' expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

from tests.support.docs.documents import ROOT

PREFIXES = {
    "router": ("blindpost_router_", "simplex_smp_", "process_"),
    "ntf": ("blindpost_ntf_", "simplex_ntf_", "process_"),
    "ds": ("blindpost_ds_", "process_"),
    "canary": ("blindpost_canary_", "process_"),
}
LATER = {"blindpost_canary_latency_seconds", "blindpost_router_fronts_cpu_seconds_total"}
"""Exposed once the first message has arrived, or by a router with fronts."""
_NAME = re.compile(r"\b(?:blindpost|simplex|process)_[a-z0-9_]+")
_PATTERN = re.compile(r'__name__=~"([^"]+)"')


def expressions() -> Iterator[str]:
    board = json.loads((ROOT / "deploy" / "grafana" / "blindpost.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def missing(word: str, exposed: set[str]) -> list[str]:
    """What the expressions name of this kind of server and it does not expose."""
    found: list[str] = []
    for expression in expressions():
        for pattern in _PATTERN.findall(expression):
            alternatives = re.search(r"\(([a-z|]+)\)", pattern)
            assert alternatives is not None, pattern
            if word in alternatives[1].split("|") and not any(
                re.fullmatch(pattern, name) for name in exposed
            ):
                found.append(pattern)
        for name in _NAME.findall(_PATTERN.sub("", expression)):
            if name.startswith(PREFIXES[word]) and name not in exposed | LATER:
                found.append(name)
    return found
