"""The README's table beside captum, zennit, LXT, grad-cam and Quantus: every cell is the result of a call.

    python benchmarks/peers_table.py

asks each library that is installed here, in a process of its own (LXT changes torch for the whole process), and keeps
the answers in results/peers.json. Answers of libraries that are not installed stay as they were, with the version that
gave them; `--python PATH` asks those of another environment. `--print` only writes the table.

LXT 2.1 needs transformers 4 and so an environment of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "results" / "peers.json"

# what a library is called, what of it is imported, and which distribution it comes in
LIBRARIES = {
    "backplay": ("backplay", "backplay"),
    "captum": ("captum", "captum"),
    "zennit": ("zennit", "zennit"),
    "LXT": ("lxt.efficient", "lxt"),
    "grad-cam": ("pytorch_grad_cam", "grad-cam"),
    "Quantus": ("quantus", "quantus"),
}

# The questions, by name, as the table asks them; `peers_asked.py` answers them.
QUESTIONS = {
    "plain": "LRP-ε of a plain ReLU network as by hand",
    "residual": "LRP-ε on ResNet-18 adds up to the logit",
    "attention": "LRP on torchvision's ViT (CP-LRP)",
    "spelled": "same map if layers are written as functions",
    "reused": "DeepLift with a ReLU that is used twice",
    "recurrent": "integrated gradients of an LSTM",
    "units": "Grad-CAM in its own units",
    "untouched": "model and torch.nn are as before",
    "metrics": "metrics of maps",
    "walks": "walks, and distances between networks by them",
}
NONE = "–"  # no call for it is known, and nothing was tried


def main() -> int:
    parser = argparse.ArgumentParser(description="ask the peers, and write their answers as a table")
    parser.add_argument("--python", default=sys.executable, help="the interpreter whose libraries are asked")
    parser.add_argument("--only", default=",".join(LIBRARIES), help="libraries, with commas between them")
    parser.add_argument("--print", action="store_true", help="only write the table that is kept")
    given = parser.parse_args()
    if not given.print:
        kept = read() if KEPT.is_file() else {}
        for library in given.only.split(","):
            answers = ask(library, given.python)
            if answers is None:
                print(f"{library} cannot be imported there", file=sys.stderr)
            else:
                kept[library] = answers
        ordered = {name: kept[name] for name in LIBRARIES if name in kept}
        KEPT.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(read()))
    return 0


def read() -> dict[str, Any]:
    """The answers by library: its `version`, and by question whether it `holds` and what is `said`."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def ask(library: str, python: str = sys.executable) -> dict[str, Any] | None:
    """The answers of one library, in a fresh process; None if it cannot be imported there."""
    order = [python, str(Path(__file__).parent / "peers_asked.py"), library]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        return None
    if done.returncode:
        raise RuntimeError(f"{library}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def version(library: str) -> str:
    return importlib.metadata.version(LIBRARIES[library][1])


def table(kept: dict[str, Any]) -> str:
    """In Markdown, a column for each library; the version of a peer stands at its head."""
    head = ["", *(f"{name} {answers['version']}".strip() for name, answers in kept.items())]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, question in QUESTIONS.items():
        cells = [_cell(answers["answers"].get(name)) for answers in kept.values()]
        lines.append(f"| {' | '.join([question, *cells])} |")
    return "\n".join(lines)


def _cell(answer: dict[str, Any] | None) -> str:
    """`yes`, `no` and why, or a dash."""
    if answer is None:
        return NONE
    word = "yes" if answer["holds"] else "no"
    return f"{word}: {answer['said']}" if answer["said"] else word


if __name__ == "__main__":
    sys.exit(main())
