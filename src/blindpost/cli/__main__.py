"""`python -m blindpost.cli` is the command `blindpost`."""

from __future__ import annotations

from blindpost.cli.entry import main

main()
