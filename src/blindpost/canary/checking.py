"""`blindpost canary check`: what a canary's start would run into, besides the common checks."""

from __future__ import annotations

from blindpost.canary.nodes import node_names, store_of
from blindpost.canary.process import CanaryService
from blindpost.canary.settings import CanaryPlace
from blindpost.serving.checking import Checks
from blindpost.serving.failures import OperatorError
from blindpost.store import sqlite
from blindpost.wire.addresses import RouterAddress

ANY_VERSION = 1 << 31
"""Agents check themselves whether they can read their stores."""


def checks_of(place: CanaryPlace, runs: bool) -> Checks:
    routers = place.settings.routers
    addresses = [RouterAddress.from_text(text) for text in routers.values()]

    async def agents() -> str:
        made = [file for name in node_names(routers) if (file := store_of(place.agents, name)).exists()]
        try:
            for file in made:
                sqlite.look(file, sqlite.AGENT, ANY_VERSION)
        except sqlite.UNUSABLE as error:
            raise OperatorError(f"{place.agents}: {error}.") from error
        return f"{len(made)} of {len(node_names(routers))} are made" if made else "made at the first start"

    return Checks(
        CanaryService.wanted_connections(place),
        CanaryService.connections_setting,
        hosts=[host.text for address in addresses for host in address.server.hosts],
        secrets=CanaryService.secrets(place),
        tries={"agents": agents},
    )
