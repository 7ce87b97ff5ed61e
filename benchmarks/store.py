"""The results of the suite: one JSON file, written after every case, so that a stopped run loses one case at most."""

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import torch

from cases import Case
from rounds import Row

FILE = "results.json"
FAILED = "all"  # the one row of a case that failed as a whole


def machine() -> dict[str, Any]:
    """What figures depend on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def revision() -> str | None:
    """The last commit that changed the package, with a + where its files differ from it; None outside a repository."""
    here = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        commit = subprocess.check_output([*here, "log", "-1", "--format=%h", "--", "src"], text=True, stderr=DEVNULL)
        changes = subprocess.check_output([*here, "status", "--porcelain", "--", "src"], text=True, stderr=DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip() + ("+" if changes.strip() else "")


class Store:
    """The cases measured so far in a folder; those of another machine or another number of threads do not mix in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.machine, self.revision = folder, machine(), revision()
        self.cases: dict[str, dict[str, Any]] = {}
        if (folder / FILE).is_file():
            kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
            if kept["machine"] == self.machine:
                self.cases = {case["key"]: case for case in kept["cases"]}

    def has(self, case: Case) -> bool:
        """Whether this case was measured on this commit; one that failed as a whole was not."""
        kept = self.cases.get(case.key)
        return kept is not None and kept["revision"] == self.revision and kept["rows"][0]["what"] != FAILED

    def put(self, case: Case, rows: list[Row], seconds: float) -> None:
        """Store a case in place of an earlier measurement of it."""
        self.cases[case.key] = {
            "key": case.key,
            "section": case.section,
            "network": case.network,
            case.axis: case.size,
            "axis": case.axis,
            "revision": self.revision,
            "measured": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "took": round(seconds, 1),
            "rows": [_written(row) for row in rows],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / f"{FILE}.new"
        fresh.write_text(self.text(), encoding="utf-8")
        fresh.replace(self.folder / FILE)  # whole or not at all

    def text(self) -> str:
        """All of it as JSON, cases in the order of the suite."""
        return json.dumps({"machine": self.machine, "cases": list(self.cases.values())}, indent=1, ensure_ascii=False)


def _written(row: Row) -> dict[str, Any]:
    """A row as JSON holds it: figures to five digits."""
    five = lambda x: None if x is None else float(f"{x:.5g}")  # noqa: E731
    facts = {name: five(value) for name, value in row.facts.items()}
    return {
        "what": row.what,
        "seconds": five(row.seconds),
        "ratio": five(row.ratio),
        "repeats": len(row.times),
        "least": five(min(row.times, default=None)),
        "most": five(max(row.times, default=None)),
        "first": five(row.first),
        "why": row.why,
        **facts,
    }
