"""Runs the real router, each life of it in a fresh fork (`tests.support.serving.forking`)."""

from __future__ import annotations

import sys
from pathlib import Path

from blindpost.router.running.process import RouterService
from blindpost.router.running.settings import RouterPlace
from blindpost.serving.process import Process, serve
from tests.support.serving.forking import lives, ready


def live(folder: Path) -> None:
    """One life of the router of this folder."""

    def serving(process: Process[RouterService]) -> None:
        (port, *_) = process.ports
        ready(int(port))

    serve(RouterService, RouterPlace.read(folder), serving)


if __name__ == "__main__":
    lives(lambda: live(Path(sys.argv[1])))
