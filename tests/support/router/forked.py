"""Runs the real router, each life of it in a fresh fork (`tests.support.serving.forking`)."""

from __future__ import annotations

import sys
from pathlib import Path

from blindpost.router.running.process import RouterProcess, serve
from blindpost.router.running.reading import read_place
from blindpost.serving import logs
from tests.support.serving.forking import lives, ready


def live(folder: Path) -> None:
    """One life of the router of this folder."""
    place = read_place(folder)
    logs.set_up(place.settings.log.format, place.settings.log.level)

    def serving(process: RouterProcess) -> None:
        ready(process.ports[0])

    serve(place, serving)


if __name__ == "__main__":
    lives(lambda: live(Path(sys.argv[1])))
