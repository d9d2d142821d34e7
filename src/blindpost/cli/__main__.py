"""`python -m blindpost.cli` is the command `blindpost`."""

from __future__ import annotations

from blindpost.cli.main import main

main()
