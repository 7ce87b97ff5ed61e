"""Every refusal (S1, S38, api): its type, what its message names, and that nothing is half done."""

import json
import logging
import re
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx import config as tracing

import backplay as bp
from backplay.errors import instead, near_names
from backplay.kernels.contributions import Together
from backplay.network.linear import Dense
from refusals import refused

pytestmark = pytest.mark.capture

F64 = torch.float64


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()


def image_net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).double().eval()


def x(batch=2):
    return torch.randn(batch, 4, dtype=F64)


def test_what_a_part_cannot_do_is_a_refusal_too():
    """Every error of the package is a `BackplayError`, those for who writes kernels and maps of their own included."""
    refused(lambda: Dense().row_weight(x()), "Dense", "differ in weight", kind=RuntimeError)
    refused(lambda: Together([]).factors(1), "two plays", kind=RuntimeError)
    for path in Path(bp.__file__).parent.rglob("*.py"):
        assert "NotImplementedError" not in path.read_text(), path.name


# capture -------------------------------------------------------------------------------------------
class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn = kind(4, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.rnn(x[:, None])[0][:, 0])


class Inverse(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.linalg.inv(x.view(-1, 2, 2)).flatten(1))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x) if x.sum() > 0 else self.head(-x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=["lstm", "gru", "rnn"])
def test_recurrent(kind):
    """S1: the op and the module path are named, and why, in two lines."""
    model = Recurrent(kind).double()
    name = kind.__name__.lower()
    for action in (lambda: bp.capture(model, x()), lambda: bp.StoppingGame(model).attribute(x(), 0)):
        message = refused(action, name, "'rnn'", "recurrent")
        assert message.count("\n") == 1 and len(message) < 300


def test_unknown_function():
    """S1: ops outside any layer are named too."""
    message = refused(lambda: bp.capture(Inverse().double(), x()), "inv", "kind", "rewrite")
    assert message.count("\n") <= 1 and len(message) < 300, "no list of all operators"


@pytest.mark.parametrize(
    "rows",
    [lambda h: h.flatten(0, 1), lambda h: h.transpose(0, 1), lambda h: h[:, 0].repeat(2, 1)],
    ids=["tokens as rows", "sequence first", "twice"],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_rows_that_are_no_samples(rows, batch):
    """S1: each sample has logits of its own; of three tokens and three samples sizes cannot tell."""

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, x):
            return rows(self.fc(x))

    example = torch.randn(batch, 3, 4, dtype=F64)
    message = refused(lambda: bp.RoutingGame(Rows().double()).attribute(example, 1), "for each sample", "shape")
    assert message.count("\n") == 1


LOUD = """
import torch
from torch import nn
import backplay as bp

class Loud(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

class Branching(Loud):
    def forward(self, x):
        return self.head(x) if x.sum() > 0 else self.head(-x)

class Views(Loud):
    def forward(self, x):
        h = self.head(x)
        h[:, 0].mul_(2)
        return h

class Counted(Loud):
    def forward(self, x):
        return torch.stack([self.head(x[k]) for k in range(len(x))])

for model, kept in ((Branching(), False), (Views(), True), (Counted(), False)):
    try:
        bp.capture(model, torch.ones(3, 4))
        assert kept
    except bp.BackplayError:
        assert not kept
print("done")
"""


@pytest.mark.slow
def test_the_exporter_says_nothing():
    """Graphs, warnings and logs of torch's exporter stay off the terminal; the refusal says what matters."""
    ran = subprocess.run([sys.executable, "-c", LOUD], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("done\n", "", 0)


@pytest.mark.parametrize("model", [Recurrent(), Branching()], ids=["unknown op", "not exportable"])
def test_model_untouched_by_a_failed_capture(model):
    """Nothing half done: the module comes back in its own mode, with its own state."""
    model = model.double().train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    refused(lambda: bp.capture(model, x()))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_not_exportable():
    """S1: control flow that depends on data is refused with its reason, not with a stack of tracing frames."""
    message = refused(lambda: bp.capture(Branching().double(), x()), "export", "Branching")
    assert len(message) < 1200


@pytest.mark.parametrize("thing", [3, "vgg16", nn.Linear, lambda t: t, None])
def test_not_a_module(thing):
    """`model` is an nn.Module or a Network."""
    refused(lambda: bp.capture(thing, x()), "Module", kind=TypeError)
    refused(lambda: bp.RoutingGame(thing).attribute(x(), 0), "Module", kind=TypeError)


def test_input_not_a_tensor():
    """A list is no input."""
    refused(lambda: bp.StoppingGame(net()).attribute([[1.0, 2.0, 3.0, 4.0]], 0), "list", "tensor", kind=TypeError)


# inputs --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(2, 5), (4,), (2, 4, 1), (2, 2, 2)])
def test_wrong_shape(shape):
    """Both shapes are named."""
    network = bp.capture(net(), x())
    for game in (bp.StoppingGame(network), bp.RoutingGame(network)):
        refused(
            lambda game=game: game.attribute(torch.randn(*shape, dtype=F64), 0), "shape", shape[-1], 4, kind=ValueError
        )


@pytest.mark.parametrize("shape", [(1, 3, 9, 8), (1, 1, 8, 8), (3, 8, 8)])
def test_wrong_image_shape(shape):
    """An image of another size or channel count than the captured one."""
    network = bp.capture(image_net(), torch.randn(2, 3, 8, 8, dtype=F64))
    refused(lambda: bp.RoutingGame(network).play(torch.randn(*shape, dtype=F64), 0), "shape", kind=ValueError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool])
def test_wrong_dtype(dtype):
    """The given dtype and the expected one are named."""
    network = bp.capture(net(), x())
    refused(
        lambda: bp.StoppingGame(network).attribute(torch.ones(2, 4, dtype=dtype), 0),
        str(dtype).removeprefix("torch."),
        "float64",
        kind=(TypeError, ValueError),
    )


def test_empty_batch():
    """A batch of no samples is no input."""
    refused(
        lambda: bp.StoppingGame(bp.capture(net(), x())).attribute(torch.zeros(0, 4, dtype=F64), 0),
        "batch",
        kind=ValueError,
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_input(bad):
    """S38: NaN or Inf in the input is an error, never a map; the game still works afterwards."""
    game, data = bp.RoutingGame(net()), x()
    good = game.attribute(data, 0)
    spoilt = data.clone()
    spoilt[1, 2] = bad
    refused(lambda: game.attribute(spoilt, 0), "input", kind=ValueError)
    refused(lambda: game.play(spoilt, 0), "input", kind=ValueError)
    torch.testing.assert_close(game.attribute(data, 0), good)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["2.weight", "0.bias"])
def test_non_finite_weights(name, bad):
    """S38: NaN or Inf in the weights is an error that names the tensor, at once and for a kept game."""
    model, data = net(), x()
    kept = bp.StoppingGame(model)
    kept.attribute(data, 0)
    with torch.no_grad():
        dict(model.named_parameters())[name].view(-1)[0] = bad
    for game in (kept, bp.StoppingGame(model), bp.RoutingGame(model)):
        refused(lambda game=game: game.attribute(data, 0), name, kind=ValueError)


def test_non_finite_statistics():
    """S38 for buffers: a NaN in a batch norm's running variance."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double().eval()
    model[1].running_var[0] = float("nan")
    refused(lambda: bp.RoutingGame(model).attribute(x(), 0), "1.running_var", kind=ValueError)


# targets -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", [3, 99, -4, [0, 3], torch.tensor([0, 7])])
def test_target_out_of_range(target):
    """The target and the number of classes are named."""
    offender = (
        max(target, key=abs)
        if isinstance(target, list)
        else int(target.max())
        if isinstance(target, torch.Tensor)
        else target
    )
    refused(lambda: bp.StoppingGame(net()).attribute(x(), target), "target", offender, 3, kind=ValueError)


@pytest.mark.parametrize("target", [[0], [0, 1, 2], torch.tensor([0, 1, 2])])
def test_target_of_wrong_length(target):
    """One target for each sample."""
    refused(lambda: bp.StoppingGame(net()).attribute(x(), target), "target", len(target), 2, kind=ValueError)


@pytest.mark.parametrize("target", [1.5, "cat", torch.tensor([0.5, 1.0]), [0.5, 1]])
def test_target_of_wrong_type(target):
    """Classes are integers."""
    refused(lambda: bp.RoutingGame(net()).attribute(x(), target), "target", kind=(TypeError, ValueError))


# keywords ------------------------------------------------------------------------------------------
NAN, INF = float("nan"), float("inf")
BAD_KEYWORDS = [
    ("alpha", -1.0),
    ("alpha", NAN),
    ("alpha", INF),
    ("beta", -0.5),
    ("beta", NAN),
    ("epsilon", -1e-9),
    ("epsilon", NAN),
    ("epsilon", INF),
    ("tau", 0.0),
    ("tau", -1.0),
    ("tau", NAN),
    ("tau", INF),
    ("residual", "half"),
    ("bias", "keep"),
    ("empty_stream", "drop"),
    ("output", "prob"),
    ("risk", NAN),
    ("input_variance", -1.0),
    ("entropy_bias", -0.1),
    ("gate", "soft"),
    ("gate_noise", 0.0),
    ("attention", "rollout"),
    ("attention_risk", "low"),
    ("attention_score", "query"),
    ("tau_forward", 2),
]


@pytest.mark.parametrize("keyword, value", BAD_KEYWORDS)
def test_routing_keyword_out_of_range(keyword, value):
    """A ValueError that names the keyword, the value and the range, when the game is made, not when it is played."""
    refused(lambda: bp.RoutingGame(net(), **{keyword: value}), keyword, repr(value), kind=ValueError)
    game = bp.RoutingGame(net())
    refused(lambda: game.replace(**{keyword: value}), keyword, repr(value), kind=ValueError)


@pytest.mark.parametrize(
    "choices",
    [
        ("residual", "uniform", "proportional"),
        ("bias", "ignore", "absorb"),
        ("empty_stream", "cemetery", "reroute"),
        ("output", "logit", "one"),
    ],
)
def test_message_lists_the_choices(choices):
    """What is accepted stands in the message."""
    refused(lambda: bp.RoutingGame(net(), **{choices[0]: "nonsense"}), *choices, "nonsense", kind=ValueError)


@pytest.mark.parametrize("theta", [0.0, -1.0, NAN, INF])
def test_stopping_keyword_out_of_range(theta):
    """Softplus(θ) needs θ > 0."""
    refused(lambda: bp.StoppingGame(net(), softplus=theta), "softplus", theta, kind=ValueError)


@pytest.mark.parametrize("keyword", ["epsilon", "tau", "alpha"])
def test_keyword_of_wrong_type(keyword):
    """A word where a number belongs."""
    refused(lambda: bp.RoutingGame(net(), **{keyword: "large"}), keyword, "large", kind=(TypeError, ValueError))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"kind": "spectral"}, ("spectral", "stopping", "mixing", "softplus")),
        ({"kind": "mixing", "eta": 1.5}, ("eta", 1.5)),
        ({"kind": "mixing", "eta": -0.1}, ("eta", -0.1)),
        ({"kind": "mixing", "eta": NAN}, ("eta", "nan")),
        ({"kind": "softplus", "theta": 0.0}, ("theta", 0.0)),
        ({"kind": "softplus", "theta": -2.0}, ("theta", -2.0)),
    ],
)
def test_decomposition_keywords(options, words):
    """S10: kinds and parameters of the decompositions."""
    refused(lambda: bp.decompose(net(), x(), **options), *words, kind=ValueError)


@pytest.mark.slow
def test_unbalanced_streams_warn_once():
    """`alpha - beta != 1` warns, once."""
    code = (
        "import warnings, torch, backplay as bp\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    game = bp.RoutingGame(torch.nn.Linear(2, 2), alpha=3.0, beta=1.0)\n"
        "    game.attribute(torch.randn(1, 2), 0); game.attribute(torch.randn(1, 2), 0)\n"
        "    balanced = bp.RoutingGame(torch.nn.Linear(2, 2), alpha=2.0, beta=1.0)\n"
        "print(sum('alpha' in str(w.message) and 'beta' in str(w.message) for w in seen))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().splitlines()[-1] == "1"


def test_a_family_of_games_warns_once():
    """Games that come of one another by `replace` or in a sweep warn once together; others for themselves."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        game = bp.RoutingGame(net(), alpha=3.0)
        game.replace(tau=0.5).replace(alpha=4.0)
        bp.sweep(game, x(), 0, tau=[0.5, 1.0])
        assert ["alpha - beta = 2" in str(w.message) for w in seen] == [True] and seen[0].filename == __file__
        bp.sweep(bp.RoutingGame(net()), x(), 0, alpha=[2.0, 3.0, 4.0])
    assert ["alpha - beta = 2" in str(w.message) for w in seen] == [True, True]


def test_numbers_of_numpy():
    """They are taken where numbers are, and kept as plain ones."""
    game = bp.RoutingGame(net(), tau=np.float32(0.5), epsilon=np.int64(1), risk=Fraction(-1, 2), input_variance=1)
    assert json.loads(json.dumps(game.to_dict())) == game.to_dict()
    assert (game.tau, game.epsilon, game.risk) == (0.5, 1, -0.5) and type(game.tau) is float
    average = bp.Reynolds(game, n=np.int32(3), seed=np.uint8(7))
    assert type(average.n) is int and type(average.seed) is int
    assert len(bp.StoppingGame(net()).play(x(), 0).sample(np.int64(5), seed=np.int64(1)).ends[0]) == 5


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**400])
def test_seeds_have_64_bits(seed):
    """torch takes no more; a larger one is refused before any work."""
    game, image = bp.RoutingGame(net()), torch.randn(1, 3, 8, 8)
    asked = [
        lambda: bp.Reynolds(game, seed=seed),
        lambda: bp.Reynolds(game, n=abs(seed)),
        lambda: game.play(x(), 0).sample(2, seed=seed),
        lambda: bp.explain(net(), image, 0, method="smoothgrad", seed=seed),
        lambda: bp.explain(net(), image, 0, method="lime", seed=seed),
    ]
    for ask in asked:
        refused(ask, "out of range", "64 bits", kind=ValueError)
    refused(lambda: bp.RoutingGame(net(), tau=10**400), "tau", kind=ValueError)


@pytest.mark.parametrize("name", [["rg"], None, 3])
def test_a_method_is_named_by_a_word(name):
    refused(lambda: bp.explain(net(), x(), 0, method=name), "no method named", kind=ValueError)


@pytest.mark.parametrize(
    "ask, message",
    [
        (
            lambda: bp.explain(net(), x(), method="grad_cam"),
            "no method named 'grad_cam' (did you mean gradcam?); bp.met",
        ),
        (
            lambda: bp.explain(net(), x(), method="IntegratedGradients"),
            "(did you mean integrated_gradients?); bp.metho",
        ),
        (lambda: bp.explain(net(), x(), method="nothing near"), "no method named 'nothing near'; bp.methods() lists"),
        (lambda: bp.RoutingGame(net(), taus=1), "unknown keyword 'taus' (did you mean tau?); help(bp.RoutingGame) lis"),
        (lambda: bp.RoutingGame(net(), TAU=1), "(did you mean tau?)"),
        (
            lambda: bp.RoutingGame(net(), attention_risks=1),
            "(did you mean attention_risk?); help(bp.RoutingGame) lists",
        ),
        (lambda: bp.StoppingGame(net(), tau=1), "unknown keyword 'tau': this game takes risk, input_variance, entropy"),
        (
            lambda: bp.RoutingGame(net(), layers={"0": {"taus": 1}}),
            "unknown keyword 'taus' at '0' (did you mean tau?).",
        ),
        (lambda: bp.RoutingGame(net(), layers={"0": {"qqq": 1}}), "by layer there are risk, entropy_bias, gate, "),
        (lambda: bp.explain(net(), x(), method="rg", taus=1), "(did you mean tau?); bp.methods()['rg'].params lists"),
        (lambda: bp.explain(net(), x(), method="integrated_gradients", q=1), "'integrated_gradients' takes steps."),
        (lambda: bp.preset("anchor"), "(did you mean rg-anchor?); bp.presets lists"),
    ],
)
def test_a_name_that_is_none(ask, message):
    """What is near and where the list is; the list itself only where nothing is near, and if it is short."""
    said = refused(ask, message, kind=ValueError)
    assert len(said) <= 160 and "\n" not in said


def test_near_names():
    """The nearest comes first, and others only if they are about as near."""
    assert near_names("taus", ["status", "tau_forward", "tau"]) == ["tau"]
    assert near_names("gradcan", ["gradcam_pp", "gradcam", "gradcat"]) == ["gradcat", "gradcam"]
    assert near_names("nothing", ["tau"]) == [] and instead("q", []) == ": there are none"
    assert instead("q", [f"name{k}" for k in range(40)]).endswith("name5, … 40 in all")


# names ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ask", ["occupation", "marginal"])
def test_unknown_node(ask):
    """A name that does not exist: the message says so and offers names that do."""
    play = bp.StoppingGame(net()).play(x(), 0)
    refused(lambda: getattr(play, ask)("features.99"), "features.99", "name")


def test_unknown_node_of_a_decomposition():
    """The same for `decompose`."""
    found = bp.decompose(net(), x(), kind="stopping")
    refused(lambda: found["features.99"], "features.99", "name")


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.shared(torch.relu(self.shared(x)))))


def test_ambiguous_node():
    """A module that is called twice: the message lists both names, each of which works."""
    network = bp.capture(Twice().double(), x())
    assert [node.name for node in network.nodes if node.name.split("#")[0] == "shared"] == ["shared", "shared#2"]
    play = bp.StoppingGame(network).play(x(), 0)
    message = refused(lambda: play.occupation("shared"), "shared#2", kind=ValueError)
    listed = sorted(set(re.findall(r"shared(?:#\d)", message)))
    assert len(listed) >= 2, "every call is listed by a name of its own"
    first, second = (play.occupation(name).difference for name in listed[:2])
    assert first.shape == second.shape == (2, 4) and not torch.equal(first, second)


def test_torch_s_own_log_is_as_it_was(monkeypatch):
    """It is silent while a model is followed, and speaks again afterwards; so do the stack traces of its exporter."""
    monkeypatch.setattr(tracing, "do_not_emit_stack_traces", settings := object())
    handlers = [h for name in ("torch", "torch._subclasses.fake_tensor") for h in logging.getLogger(name).handlers]
    before = [list(handler.filters) for handler in handlers]
    model, during = net(), []
    model.register_forward_pre_hook(lambda *_: during.append(tracing.do_not_emit_stack_traces))
    bp.capture(model, x())
    assert True in during, "the exporter notes nothing"
    refused(lambda: bp.capture(net(), torch.randn(2, 5, dtype=F64)), "itself fails")
    assert handlers and [list(handler.filters) for handler in handlers] == before
    assert tracing.do_not_emit_stack_traces is settings


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_other_precision_before_capture(dtypes):
    """S38: an input of another precision than the model's is named so by every door, captured before or not."""
    model, x = nn.Linear(4, 2).to(dtypes[0]), torch.randn(2, 4, dtype=dtypes[1])
    for door in (bp.capture, bp.explain, bp.StoppingGame(model).play):
        with pytest.raises(bp.BackplayError, match=rf"convert the input with x.to\({dtypes[0]}\)"):
            door(x) if door not in (bp.capture, bp.explain) else door(model, x)
