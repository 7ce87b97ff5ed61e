"""How long `import backplay` takes beyond torch's own import: a difference, taken within one run.

    python benchmarks/imports.py

Fresh processes import torch, then backplay, and tell both times. Their medians are printed as clock time and as time of
the processor, which bears a busy machine better. The first process is not counted: it compiles what it imports, as pip
does when it installs a package.
"""

import json
import os
import statistics
import subprocess
import sys

BAR = 0.5  # seconds
ROUNDS = 7

_PROCESS = """
import json, time
def now():
    return time.perf_counter(), time.process_time()
start = now()
import torch
between = now()
import backplay
end = now()
print(json.dumps([[b - a for a, b in zip(start, between)], [b - a for a, b in zip(between, end)]]))
"""


def main() -> int:
    rounds = [_round() for _ in range(ROUNDS + 1)][1:]
    for kind, name in enumerate(("clock", "processor")):
        torch, own = (statistics.median(times[part][kind] for times in rounds) for part in (0, 1))
        print(f"{name:>10}: torch {torch:.2f} s, backplay beyond it {own:.3f} s (bar {BAR} s), {ROUNDS} processes")
    return 0


def _round() -> list[list[float]]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    order = [sys.executable, "-c", _PROCESS]
    done = subprocess.run(order, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
