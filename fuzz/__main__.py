"""`python -m fuzz TARGET --minutes N`: look for inputs that break a promise, guided by coverage.

A finding is written to `build/fuzz/TARGET`. Whoever mends it moves the input to `fuzz/cases/TARGET`, where
the tests replay it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

BUILD = Path("build/fuzz")
ABSENT = (
    "atheris is not installed: the search is guided by the lines that inputs reach, which is slower.\n"
    "It has wheels for Linux on x86-64: pip install --require-hashes -r fuzz/requirements.lock.\n"
    "Elsewhere it is built with Clang."
)
ROUND = 100
"""How many inputs are made at once."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Look for inputs that break promises."
    )
    parser.add_argument("target", nargs="?", help="one target; without it they are listed")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to look (1)")
    parser.add_argument("--lines", action="store_true", help="guided by lines, without atheris")
    parser.add_argument("--file", type=Path, help="try the input in this file and nothing else")
    arguments = parser.parse_args()
    if arguments.target is None:
        from fuzz.targets import TARGETS

        for target in TARGETS.values():
            print(f"{target.name:16} {target.promise}")
        return 0
    if arguments.file is None and not arguments.lines and importlib.util.find_spec("atheris"):
        return _guided(arguments)
    return _by_lines(arguments)


def _by_lines(arguments: argparse.Namespace) -> int:
    """Change good inputs at random, and go on from those that reach lines that none reached before."""
    import time

    from fuzz.lines import Lines
    from fuzz.target import changed
    from fuzz.targets import TARGETS

    target, lines = TARGETS[arguments.target], Lines("blindpost")
    if arguments.file is None and not arguments.lines:
        print(ABSENT, file=sys.stderr)
    with lines.followed(), target.prepared() as one:
        if arguments.file is not None:
            one(arguments.file.read_bytes())
            return 0
        end, count = time.monotonic() + arguments.minutes * 60, 0
        seeds = [*target.seeds(), *target.cases.values()]
        for data in seeds:
            _tried(one, data, target.name)
        good, first = len(seeds), lines.reached
        while time.monotonic() < end:
            for data in changed(seeds, ROUND, seed=count):
                before = lines.reached
                _tried(one, data, target.name)
                count += 1
                if lines.reached > before:
                    seeds.append(data)
    print(
        f"{target.name}: {count} inputs, no finding; {lines.reached} of {lines.known} lines reached, "
        f"{first} of them by the {good} good inputs alone, the others by {len(seeds) - good} found ones"
    )
    return 0


def _tried(one: object, data: bytes, name: str) -> None:
    assert callable(one)
    try:
        one(data)
    except BaseException:
        folder = BUILD / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "finding").write_bytes(data)
        print(f"a finding: {folder / 'finding'}", file=sys.stderr)
        raise


def _guided(arguments: argparse.Namespace) -> int:
    import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]  # only where it has a wheel

    with atheris.instrument_imports(include=["blindpost"]):
        from fuzz.targets import TARGETS
    target = TARGETS[arguments.target]
    corpus = BUILD / target.name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    for name, case in target.cases.items():
        (corpus / f"case-{name}").write_bytes(case)
    with target.prepared() as one:
        options = [
            f"-max_total_time={int(arguments.minutes * 60)}",
            f"-artifact_prefix={BUILD / target.name}/",
            "-max_len=40000",
            "-rss_limit_mb=0",
            "-timeout=60",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *options, str(corpus)], one)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
