"""Each case needs an interpreter of its own: importing torchvision cannot be undone."""

import subprocess
import sys
import textwrap

import pytest

REAL_OPERATORS = """
import torch
real = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    real.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    real.impl(name, lambda dets, scores, iou_threshold: torch.arange(len(dets)), "CPU")
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_models_run_and_a_second_call_changes_nothing():
    assert (
        run("""
        import torch
        from backplay.interop.torchvision import _declared, ensure
        first = ensure()
        count = len(_declared)
        assert ensure() is first and len(_declared) == count
        print(tuple(first.models.resnet18().eval()(torch.zeros(1, 3, 32, 32)).shape))
    """)
        == "(1, 1000)"
    )


@pytest.mark.slow
def test_an_import_that_failed_before_is_mended():
    run("""
        try:
            import torchvision
        except RuntimeError:
            pass
        from backplay.interop.torchvision import ensure
        ensure()
        import zennit.rules
    """)


@pytest.mark.slow
def test_real_operators_stay():
    assert (
        run(
            REAL_OPERATORS
            + """
from backplay.interop.torchvision import _declared, ensure
ensure()
assert not _declared
print(torch.ops.torchvision.nms(torch.zeros(2, 4), torch.zeros(2), 0.5).tolist())
    """
        )
        == "[0, 1]"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "error, message",
    [("ModuleNotFoundError", "No module named 'torchvision'"), ("RuntimeError", "something else")],
)
def test_other_failures_are_raised_as_they_are(error: str, message: str):
    assert (
        run(f"""
        import importlib, torch
        from backplay.interop import torchvision as bridge
        def fail(name):
            raise {error}({message!r})
        bridge.importlib.import_module = fail
        try:
            bridge.ensure()
        except {error} as error:
            print(error)
        assert not bridge._declared
    """)
        == message
    )
