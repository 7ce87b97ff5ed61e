"""Scripts in a process beside the tests, one for all of them: Gradio leaves an event loop open where it is imported.

To import it takes longer than most scripts do. Each has a namespace of its own, and what it puts into the modules of
the explorer is taken out again.
"""

import atexit
import importlib
import json
import os
import subprocess
import sys
import textwrap
import traceback
from functools import cache

MODULES = ("explore", "comparison", "page")  # of the explorer: those that scripts put something of theirs into


def check(script):
    """Run a script there; fails with its traceback."""
    process = _process()
    process.stdin.write(json.dumps(textwrap.dedent(script)) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, f"the process has ended: {process.wait(60)}"
    assert json.loads(answer) == "", json.loads(answer)


@cache
def _process():
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(_end, process)
    return process


def _end(process):
    """At once: threads that still sleep are not waited for."""
    process.kill()
    process.communicate()


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a script prints is no answer
    modules = [importlib.import_module(f"backplay.app.{name}") for name in MODULES]
    before = [dict(vars(module)) for module in modules]
    for line in sys.stdin:
        failed = ""
        try:
            exec(compile(json.loads(line), "script", "exec"), {"__name__": "script"})
        except BaseException:
            failed = traceback.format_exc()
        for module, held in zip(modules, before, strict=True):
            vars(module).update(held)
        answers.write(json.dumps(failed) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
