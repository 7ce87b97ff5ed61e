"""`make fuzz`: random networks by their seeds, on two processes; whatever differs is printed with its seed.

python -m fuzz --n 10000 --start 0        # from the folder tests, or with it on PYTHONPATH
python -m fuzz --seed 4711                # one network in full
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time

import torch

from fuzz.checks import failure, outcome
from fuzz.generator import draw

SHOWN = 200  # networks between two lines of progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1000, help="how many networks")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this one alone, described")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.seed is not None:
        print(draw(given.seed).program)
        print(draw(given.seed).describe())
        print(found := failure(given.seed, thorough=True))
        return found not in ("ok", "delicate")
    seeds = range(given.start, given.start + given.n)
    counts, differing, began = collections.Counter(), [], time.monotonic()
    with multiprocessing.get_context("spawn").Pool(given.processes, torch.set_num_threads, (1,)) as pool:
        for done, (seed, found, words) in enumerate(pool.imap(outcome, seeds, chunksize=5), 1):
            counts[found if found in ("ok", "delicate") else "different"] += 1
            if words:
                differing.append(seed)
                print(f"seed {seed}: {found}\n  {words}", flush=True)
            if done % SHOWN == 0:
                rate = done / (time.monotonic() - began)
                print(f"  {done} of {given.n}, {len(differing)} differences, {rate:.1f} a second", flush=True)
    if differing:
        print(f"look at one with: make fuzz SEED={differing[0]}; all: {differing}")
    print(f"  {counts['delicate']} of them stood so near a kink that rounding decides, and were not compared")
    print(f"fuzz: {given.n} networks, {len(differing)} differences, seeds {seeds[0]}..{seeds[-1]}")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
