"""`python -m fuzz TARGET --minutes N`: look for inputs that break a promise, guided by coverage.

`--all` looks with every target, two at a time, and ends with a table.

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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Look for inputs that break promises."
    )
    parser.add_argument("target", nargs="?", help="one target; without it they are listed")
    parser.add_argument("--all", action="store_true", help="all targets, by lines, and a table of them")
    parser.add_argument("--jobs", type=int, default=2, help="how many targets at a time, with --all (2)")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to look, for each target (1)")
    parser.add_argument("--seed", type=int, default=0, help="another number makes other inputs (0)")
    parser.add_argument("--into", type=Path, default=BUILD, help=f"where findings go ({BUILD})")
    parser.add_argument("--lines", action="store_true", help="guided by lines, without atheris")
    parser.add_argument("--file", type=Path, help="try the input in this file and nothing else")
    arguments = parser.parse_args()
    if arguments.all:
        from fuzz.targets import TARGETS
        from fuzz.together import search

        return int(
            search(list(TARGETS), arguments.minutes, arguments.jobs, arguments.seed, arguments.into) > 0
        )
    if arguments.target is None:
        from fuzz.targets import TARGETS

        for target in TARGETS.values():
            print(f"{target.name:16} {target.promise}")
        return 0
    if arguments.file is not None:
        return _replayed(arguments)
    if not arguments.lines and importlib.util.find_spec("atheris"):
        return _guided(arguments)
    return _by_lines(arguments)


def _replayed(arguments: argparse.Namespace) -> int:
    from fuzz.targets import TARGETS

    with TARGETS[arguments.target].prepared() as one:
        one(arguments.file.read_bytes())
    return 0


def _by_lines(arguments: argparse.Namespace) -> int:
    from fuzz.looking import look
    from fuzz.targets import TARGETS

    if not arguments.lines:
        print(ABSENT, file=sys.stderr)
    folder = arguments.into / arguments.target
    seen = look(TARGETS[arguments.target], arguments.minutes * 60, folder, seed=arguments.seed)
    found = "; ".join(seen.findings) or "no finding"
    print(
        f"{seen.target}: {seen.inputs} inputs, {found}; {seen.reached} of {seen.known} lines reached, "
        f"{seen.first} of them by the {seen.seeds} good inputs alone, the others by {seen.kept} found ones"
    )
    if seen.findings:
        print(f"What failed is in {folder}: try one with --file.", file=sys.stderr)
    return 1 if seen.findings else 0


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
