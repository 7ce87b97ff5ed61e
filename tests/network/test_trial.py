"""A model that fails on an input: its own error is told, on the input that was given, and is the cause."""

import traceback

import numpy as np
import pytest
import torch
from torch import nn

import backplay as bp
from refusals import refused

pytestmark = pytest.mark.capture


def normed():
    """It takes batches of pictures alone."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    ).eval()


def caught(action):
    with pytest.raises(bp.BackplayError) as found:
        action()
    return found.value


@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (1, 5, 9, 7), (3, 1, 8, 8)])
def test_the_shape_is_the_one_given(shape):
    """One sample is doubled for the exporter; the message, and what the model says in it, speak of the one."""
    error = caught(lambda: bp.RoutingGame(normed()).attribute(torch.randn(shape)))
    first, second = str(error).split("\n")
    assert first.startswith(f"Sequential itself fails on input {shape} torch.float32: RuntimeError: Given groups=1")
    assert f"expected input{list(shape)}" in first and "accepts" in second


def test_the_cause_is_the_model_s_own_error():
    """The model's few frames, none of torch's exporter."""
    error = caught(lambda: bp.RoutingGame(normed()).attribute(torch.randn(1, 1, 8, 8)))
    printed = "".join(traceback.format_exception(error))
    assert isinstance(error.__cause__, RuntimeError) and "Given groups=1" in str(error.__cause__)
    assert "torch/export" not in printed and "_dynamo" not in printed and printed.count("\n") < 100


def test_the_exporter_s_error_stays_where_it_failed():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    error = caught(lambda: bp.capture(Branching(), torch.ones(1, 4)))
    assert "torch.export cannot follow Branching on input (1, 4)" in str(error)
    assert error.__cause__ is not None and "torch/export" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("shape", [(3, 8, 8), (4,), ()])
def test_missing_batch_dimension(shape):
    """Where the model takes x[None], or nothing could be taken, that is the advice; several inputs name theirs."""
    message = refused(
        lambda: bp.RoutingGame(normed()).attribute(torch.randn(shape)), "needs a batch dimension", shape, "x[None]"
    )
    assert message.count("\n") <= 1 and "itself fails" not in message


def test_missing_batch_dimension_of_all_arguments():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x, mask):
            assert x.ndim == 3 and mask.ndim == 2
            return (self.fc(x) * mask[..., None]).sum(1)

    x, mask = torch.randn(5, 4), torch.ones(5)
    refused(lambda: bp.RoutingGame(Masked()).attribute(x, 0, additional_forward_args=mask), "batch dimension", (5, 4))
    assert bp.RoutingGame(Masked()).attribute(x[None], 0, additional_forward_args=mask[None]).shape == (1, 5, 4)


def test_no_sample():
    message = refused(lambda: bp.capture(normed(), torch.zeros(0, 3, 8, 8)), "at least one sample", (0, 3, 8, 8))
    assert "x[None]" not in message


@pytest.mark.parametrize(
    "given, kind", [(np.asarray, "ndarray"), (lambda t: {"logits": t.numpy()}, "ndarray"), (lambda t: "no", "str")]
)
def test_no_tensor_comes_out(given, kind):
    """What to return is the one advice; the input is not at fault."""

    class Returning(nn.Module):
        def forward(self, x):
            return given(x)

    for batch in (1, 2):
        message = refused(lambda batch=batch: bp.RoutingGame(Returning()).attribute(torch.randn(batch, 4)), kind)
        assert message == f"the model returns {kind} without a tensor; return the logits."


def test_one_sample_alone():
    """A model that takes no two samples says so; what the exporter needs is not the caller's doing."""

    class Lone(nn.Module):
        def forward(self, x):
            return x.view(1, 4)

    message = refused(lambda: bp.capture(Lone(), torch.randn(1, 2, 2)), "(1, 2, 2)", "fails on two", "any number")
    assert message.count("\n") == 1


def test_a_trial_leaves_the_model_as_it_was():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            x.mul_(2)
            return x.reshape(7, 7)

    model, x = Counting().train(), torch.ones(2, 4)
    refused(lambda: bp.capture(model, x), "itself fails")
    assert model.training and float(model.calls) == 0 and bool((x == 1).all())
