"""Speed and memory in one run: ratios to one gradient of the same network, beside the peers, and how they grow.

    python benchmarks/suite.py [--only games,peers] [--networks vgg16,resnet50] [--small] [--resume] [--json]

Writes results.json, a page of tables and a picture of each growth into a folder, after every case: a run may be stopped
at any time, and `--resume` goes on behind what it has measured of the same commit.
"""

import argparse
import ctypes
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import captures
import games
import growth
import memory
import peers
import plots
import tables
from cases import Case
from networks import SOURCES
from rounds import Pace, Row, in_words
from store import FAILED, Store

SECTIONS: dict[str, Callable[[bool], list[Case]]] = {
    "games": games.cases,
    "peers": peers.cases,
    "growth": growth.cases,
    "memory": memory.cases,
    "capture": captures.cases,
}
ROOT = Path(__file__).parents[1]


def main() -> int:
    options = _options()
    chosen = _chosen(options)
    store = Store(options.out)
    begin = time.monotonic()
    try:
        for k, case in enumerate(chosen):
            place = f"[{k + 1}/{len(chosen)}, {time.monotonic() - begin:.0f} s] {case.key}"
            if options.resume and store.has(case):
                _say(f"{place}: there already\n")
                continue
            if time.monotonic() - begin > 60 * options.minutes:
                _say(f"{place}: left out, the time is over; --resume goes on here\n")
                break
            started = time.monotonic()
            rows = _run(case, options.pace, place)
            store.put(case, rows, time.monotonic() - started)
            _say(f"{place}: {_summary(rows)}\n")
            tables.write(options.out, store.machine, store.cases)
            _tidy()
    except KeyboardInterrupt:
        _say("\nstopped; --resume goes on here\n")
        return 130
    plots.draw(options.out, store.cases)
    tables.write(options.out, store.machine, store.cases)
    if options.json:
        print(store.text())
    _say(f"{len(chosen)} cases in {time.monotonic() - begin:.0f} s\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_words, default=list(SECTIONS), help=f"sections: {', '.join(SECTIONS)}")
    parser.add_argument("--networks", type=_words, default=[], help="e.g. vgg16,vit-b/16,bert; all by default")
    parser.add_argument("--small", action="store_true", help="tiny networks and few repeats: does the suite work?")
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="for each row, 1.5 by default; rows with a bar take longer"
    )
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no case after so many; --resume goes on"
    )
    parser.add_argument("--out", type=Path, help="a folder; benchmarks/results by default, out/bench with --small")
    parser.add_argument("--resume", action="store_true", help="leave out what was measured on this commit")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if unknown := [name for name in options.networks if not any(_is(name, known) for known in [*SOURCES, "ResNet"])]:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(SOURCES)}")
    options.out = options.out or ROOT / ("out/bench" if options.small else "benchmarks/results")
    options.pace = Pace(0.0, 1) if options.small else Pace(options.seconds)
    return options


def _chosen(options: argparse.Namespace) -> list[Case]:
    """The cases of a run in the order of the sections; what takes longest, batches, comes last."""
    every = [case for name, cases in SECTIONS.items() if name in options.only for case in cases(options.small)]
    wanted = options.networks
    chosen = [case for case in every if not wanted or any(_is(name, case.network) for name in wanted)]
    return sorted(chosen, key=lambda case: case.section in ("games", "peers", "memory") and case.size > 1)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _is(name: str, network: str) -> bool:
    """Whether somebody who writes vgg16 means VGG-16."""
    plain = ["".join(c for c in word.lower() if c.isalnum()) for word in (name, network)]
    return plain[0] == plain[1]


def _run(case: Case, pace: Pace, place: str) -> list[Row]:
    """The rows of a case; one that fails as a whole is a row that says why, and the others go on."""
    try:
        return case.run(pace, lambda what: _say(f"{place}: {what}", passing=True))
    except Exception as error:
        return [Row(FAILED, why=in_words(error))]


def _summary(rows: list[Row]) -> str:
    parts = [f"{row.what} {row.why or '–' if row.ratio is None else f'{row.ratio:.2f}'}" for row in rows]
    return ", ".join(parts)


def _say(words: str, passing: bool = False) -> None:
    """On standard error; passing words are written over by the next, and are for terminals alone."""
    terminal = sys.stderr.isatty()
    if passing and not terminal:
        return
    print(f"\r\033[K{words}" if terminal else words, end="", file=sys.stderr, flush=True)


def _tidy() -> None:
    """What a case held is gone before the next begins."""
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    sys.exit(main())
