"""One library answers the questions of the table: `python benchmarks/peers_asked.py captum` prints them as JSON.

Each function below is called `LIBRARY_QUESTION`, runs the library as its users do, and tells whether that what is asked
holds, and in a few words what came instead. Where there is no function there is no answer. The exit code is 3 if the
library cannot be imported.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from peers_table import LIBRARIES, QUESTIONS, version

Answer = tuple[bool, str]
Map = Callable[[nn.Module, Tensor, int], Tensor]  # model, x (B, …) and class: a map like x
F64 = torch.float64
CLASSES = {kind: kind.forward for kind in (nn.LayerNorm, nn.GELU, nn.MultiheadAttention, nn.Linear, nn.ReLU)}
ROWS, IMAGE = (2, 6), (1, 3, 64, 64)  # shapes of inputs


# the networks ---------------------------------------------------------------------------------------------------------
def plain_network() -> nn.Module:
    sizes = 6, 7, 5, 3
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b, bias=False), nn.ReLU())]
    return _fresh(lambda: nn.Sequential(*layers[:-1]))


class AsFunctions(nn.Module):
    """The plain network without modules for its layers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.third = (m.weight for m in model.modules() if isinstance(m, nn.Linear))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(F.linear(x, self.first).relu(), self.second).relu(), self.third)


class Reused(nn.Module):
    """One ReLU module behind two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head, self.relu = nn.Linear(6, 7), nn.Linear(7, 5), nn.Linear(5, 3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.second(self.relu(self.first(x)))))


class Recurrent(nn.Module):
    """An LSTM over rows of two numbers, and a layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.unflatten(1, (3, 2)))[0][:, -1])


class Refused(nn.Module):
    """A network that LRP has no rules for: a sine between two layers."""

    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin()

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), self.Sine(), nn.Linear(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def residual_network() -> nn.Module:
    """torchvision's ResNet-18 as it is built, without biases that could absorb."""
    from backplay.interop.torchvision import ensure

    return _fresh(lambda: _without_biases(ensure().models.resnet18(num_classes=10)))


def attention_network() -> nn.Module:
    """torchvision's vision transformer, a small one without biases."""
    from backplay.interop.torchvision import ensure

    ensure()
    from torchvision.models.vision_transformer import VisionTransformer

    def build() -> nn.Module:
        model = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5)
        nn.init.normal_(model.heads.head.weight)
        return _without_biases(model)

    return _fresh(build)


def convolutions() -> nn.Module:
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    return _fresh(lambda: nn.Sequential(*layers))


def _fresh(build: Callable[[], nn.Module]) -> nn.Module:
    return build().double().eval()


def _without_biases(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias"):
                value.zero_()
    return model


# what is asked of a map -----------------------------------------------------------------------------------------------
def plain(lrp: Map) -> Answer:
    """LRP-ε at a tiny ε is, on a ReLU network without biases, weights and activations multiplied out by hand."""
    model, x = plain_network(), torch.randn(ROWS, dtype=F64)
    weights = [m.weight.detach() for m in model.modules() if isinstance(m, nn.Linear)]
    inputs = [x]
    for weight in weights[:-1]:
        inputs.append((inputs[-1] @ weight.T).relu())
    relevance = F.one_hot(torch.tensor([1, 1]), 3) * (inputs[-1] @ weights[-1].T)
    for a, weight in zip(reversed(inputs), reversed(weights), strict=True):
        z = a @ weight.T
        relevance = a * ((relevance / torch.where(z == 0, 1.0, z)) @ weight)
    return _close(lrp(model, x, 1), relevance, 1e-4), ""


def residual(lrp: Map) -> Answer:
    """The relevance of all pixels beside the logit."""
    model, x = residual_network(), torch.randn(IMAGE, dtype=F64)
    share = float(lrp(model, x, 1).sum() / model(x)[0, 1])
    return abs(share - 1) < 0.01, "" if abs(share - 1) < 0.01 else f"Σ = {_figure(share)} × logit"


def spelled(lrp: Map) -> Answer:
    model, x = plain_network(), torch.randn(ROWS, dtype=F64)
    return _close(lrp(AsFunctions(model), x, 1), lrp(model, x, 1), 1e-8), ""


def reused(deeplift: Map) -> Answer:
    """DeepLift adds up to f(x) − f(0)."""
    model, x = _fresh(Reused), torch.randn(ROWS, dtype=F64)
    change = model(x)[:, 1] - model(torch.zeros_like(x))[:, 1]
    return _close(deeplift(model, x, 1).sum(1), change, 1e-6), ""


def recurrent(integrated: Map) -> Answer:
    """Integrated gradients add up to f(x) − f(0), the better the more steps."""
    model, x = _fresh(Recurrent), torch.randn(ROWS, dtype=F64)
    change = model(x)[:, 1] - model(torch.zeros_like(x))[:, 1]
    try:
        return _close(integrated(model, x, 1).sum(1), change, 0.05), ""
    except RuntimeError:
        return False, "refused"


def units(gradcam: Map) -> Answer:
    """Twice the logits are twice the map."""
    model, x = convolutions(), torch.randn(2, 3, 8, 8, dtype=F64)
    once = gradcam(model, x, 1)
    with torch.no_grad():
        for value in model[-1].parameters():
            value.mul_(2)
    twice = gradcam(model, x, 1)
    holds = _close(twice, 2 * once, 1e-6) and float(once.abs().max()) > 0
    scaled = _close(twice, once, 1e-3) and abs(float(once.max()) - 1) < 1e-3
    return holds, "" if holds else "scaled to [0, 1]" if scaled else "neither scaled nor in its units"


def untouched(*calls: tuple[Map, nn.Module, tuple[int, ...]]) -> Answer:
    """Hooks, mode, weights and the classes of torch.nn after each call, also after one that the library refuses."""
    for call, model, shape in calls:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        try:
            call(model, torch.randn(shape, dtype=F64), 1)
            when = ""
        except (TypeError, RuntimeError, ValueError, AssertionError):
            when = " after an error"
        if any(kind.forward is not forward for kind, forward in CLASSES.items()):
            return False, "torch.nn's classes stay changed"
        if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules()):
            return False, f"hooks stay{when}"
        if model.training or any(not torch.equal(before[name], value) for name, value in model.state_dict().items()):
            return False, f"the model stays changed{when}"
    return True, ""


# backplay -------------------------------------------------------------------------------------------------------------
def _backplay(method: str, **params: Any) -> Map:
    import backplay as bp

    return lambda model, x, target: bp.explain(model, x, target, method=method, **params)


def backplay_plain() -> Answer:
    return plain(_backplay("lrp_epsilon", epsilon=1e-6))


def backplay_residual() -> Answer:
    return residual(_backplay("lrp_epsilon", epsilon=1e-6))


def backplay_attention() -> Answer:
    model, x = attention_network(), torch.randn(2, 3, 32, 32, dtype=F64)
    return _close(_backplay("cp_lrp")(model, x, 1), detached_gradient_times_input(model, x, 1), 1e-8), ""


def backplay_spelled() -> Answer:
    return spelled(_backplay("lrp_epsilon", epsilon=0.1))


def backplay_reused() -> Answer:
    return reused(_backplay("deeplift"))


def backplay_recurrent() -> Answer:
    return recurrent(_backplay("integrated_gradients"))


def backplay_units() -> Answer:
    return units(_backplay("gradcam"))


def backplay_untouched() -> Answer:
    lrp, deeplift = _backplay("lrp_epsilon"), _backplay("deeplift")
    return untouched((lrp, residual_network(), IMAGE), (lrp, _fresh(Refused), ROWS), (deeplift, _fresh(Reused), ROWS))


def backplay_metrics() -> Answer:
    """Quantus asks for the map itself, and finds in it what it finds in one that it is given."""
    from backplay.interop.quantus import explain

    model, x, inside = convolutions(), torch.randn(2, 3, 8, 8, dtype=F64), torch.zeros(2, 1, 8, 8).bool()
    inside[..., :4, :] = True
    given = {"x_batch": x.numpy(), "y_batch": torch.ones(2).long().numpy(), "s_batch": inside.numpy()}
    asked = _mass_accuracy(model=model, explain_func=explain, explain_func_kwargs={"method": "rg"}, **given)
    handed = _mass_accuracy(model=None, a_batch=explain(model, x.numpy(), given["y_batch"], "rg"), **given)
    return _close(torch.tensor(asked), torch.tensor(handed), 1e-6), "through Quantus"


def backplay_walks() -> Answer:
    """Two networks with different weights are apart, one is at no distance from itself, and walks can be drawn."""
    import backplay as bp

    x = torch.randn(1, 3, 8, 8, dtype=F64)
    one, other = (bp.RoutingGame(convolutions()).play(x, 1) for _ in range(2))
    apart, same = float(bp.hellinger(one, other).distance), float(bp.hellinger(one, one).distance)
    return apart > 0.1 and same < 1e-6 and len(one.sample(10)) == 10, ""


# captum ---------------------------------------------------------------------------------------------------------------
def _captum(name: str) -> Map:
    import captum.attr

    def call(model: nn.Module, x: Tensor, target: int) -> Tensor:
        return getattr(captum.attr, name)(model).attribute(x.clone().requires_grad_(), target=target).detach()

    return call


def captum_plain() -> Answer:
    return plain(_captum("LRP"))


def captum_residual() -> Answer:
    return residual(_captum("LRP"))


def captum_attention() -> Answer:
    return _refusal(lambda: _captum("LRP")(attention_network(), torch.randn(2, 3, 32, 32, dtype=F64), 1))


def captum_spelled() -> Answer:
    return spelled(_captum("LRP"))


def captum_reused() -> Answer:
    try:
        return reused(_captum("DeepLift"))
    except RuntimeError:
        return False, "refused"


def captum_recurrent() -> Answer:
    return recurrent(_captum("IntegratedGradients"))


def captum_units() -> Answer:
    from captum.attr import LayerGradCam

    def call(model: Any, x: Tensor, target: int) -> Tensor:
        return LayerGradCam(model, model[2]).attribute(x, target=target).detach()

    return units(call)


def captum_untouched() -> Answer:
    lrp, deeplift = _captum("LRP"), _captum("DeepLift")
    return untouched((lrp, residual_network(), IMAGE), (lrp, _fresh(Refused), ROWS), (deeplift, _fresh(Reused), ROWS))


def captum_metrics() -> Answer:
    """Infidelity of the gradient of a linear model is 0."""
    import captum.metrics

    model, x = _fresh(lambda: nn.Linear(6, 3)), torch.randn(ROWS, dtype=F64)

    def noise(inputs: Tensor) -> tuple[Tensor, Tensor]:
        change = 0.1 * torch.randn_like(inputs)
        return change, inputs - change

    found = captum.metrics.infidelity(model, noise, x, model.weight[1].detach().expand(2, 6), target=1)
    return float(found.abs().max()) < 1e-8, ", ".join(n for n in captum.metrics.__all__ if "decorator" not in n)


# zennit ---------------------------------------------------------------------------------------------------------------
def _zennit(*canonizers: Any) -> Map:
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite, layer_map_base
    from zennit.rules import Epsilon
    from zennit.types import Convolution, Linear

    def call(model: nn.Module, x: Tensor, target: int) -> Tensor:
        layers = [*layer_map_base(), ((Convolution, Linear), Epsilon(1e-6))]
        composite = LayerMapComposite(layers, canonizers=list(canonizers))
        with Gradient(model=model, composite=composite) as attributor:
            return attributor(x.clone(), lambda logits: logits * F.one_hot(torch.tensor(target), logits.shape[1]))[1]

    return call


def zennit_plain() -> Answer:
    return plain(_zennit())


def zennit_residual() -> Answer:
    """As the network is, and with the canonizer that is written for torchvision's ResNets."""
    from zennit.torchvision import ResNetCanonizer

    alone, prepared = residual(_zennit()), residual(_zennit(ResNetCanonizer()))
    if alone[0] or not prepared[0]:
        return alone
    return True, f"with its ResNet canonizer ({alone[1]} without)"


def zennit_attention() -> Answer:
    """With the rules for layers that its composites share; none is for attention."""
    model, x = attention_network(), torch.randn(2, 3, 32, 32, dtype=F64)
    try:
        found = _zennit()(model, x, 1)
    except RuntimeError:
        return False, "fails"
    return _close(found, detached_gradient_times_input(model, x, 1), 1e-4), ""


def zennit_spelled() -> Answer:
    return spelled(_zennit())


def zennit_recurrent() -> Answer:
    from zennit.attribution import IntegratedGradients

    def call(model: nn.Module, x: Tensor, target: int) -> Tensor:
        with IntegratedGradients(model=model, n_iter=50) as attributor:
            return attributor(x.clone(), lambda logits: F.one_hot(torch.full((len(logits),), target), 3).to(logits))[1]

    return recurrent(call)


def zennit_untouched() -> Answer:
    return untouched((_zennit(), residual_network(), IMAGE), (_zennit(), _fresh(Refused), ROWS))


# LXT ------------------------------------------------------------------------------------------------------------------
def lxt_attention() -> Answer:
    """Its own map for torchvision's vision transformers, with rules put in place of torch's methods."""
    model, x = attention_network(), torch.randn(2, 3, 32, 32, dtype=F64)
    expected = detached_gradient_times_input(model, x, 1)
    return _close(_lxt(model, x, 1), expected, 1e-4), "with transformers 4"  # its quotients have a stabiliser


def lxt_untouched() -> Answer:
    return untouched((_lxt, attention_network(), (2, 3, 32, 32)))


def _lxt(model: nn.Module, x: Tensor, target: int) -> Tensor:
    from lxt.efficient import monkey_patch
    from torchvision.models import vision_transformer

    monkey_patch(vision_transformer)
    x = x.clone().requires_grad_()
    model(x)[:, target].sum().backward()
    assert x.grad is not None
    return (x * x.grad).detach()


# grad-cam -------------------------------------------------------------------------------------------------------------
def _gradcam(model: Any, x: Tensor, target: int) -> Tensor:
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    with GradCAM(model=model, target_layers=[model[2]]) as cam:
        return torch.as_tensor(cam(input_tensor=x.clone(), targets=[ClassifierOutputTarget(target)] * len(x)))


def gradcam_units() -> Answer:
    return units(_gradcam)


def gradcam_untouched() -> Answer:
    return untouched((_gradcam, convolutions(), (2, 3, 8, 8)))


# Quantus --------------------------------------------------------------------------------------------------------------
def quantus_metrics() -> Answer:
    """All relevance inside the mask is 1, all outside 0."""
    import quantus

    inside = torch.zeros(2, 1, 8, 8)
    inside[..., :4, :] = 1
    given = {"x_batch": torch.zeros(2, 1, 8, 8).numpy(), "y_batch": torch.zeros(2).long().numpy()}
    given["s_batch"] = inside.bool().numpy()
    all_in, none_in = (_mass_accuracy(model=None, a_batch=a.numpy(), **given) for a in (inside, 1 - inside))
    count = sum(len(metrics) for metrics in quantus.AVAILABLE_METRICS.values())
    return all_in == [1, 1] and none_in == [0, 0], f"{count} of them"


def _mass_accuracy(**given: Any) -> list[float]:
    """The share of the relevance that lies inside the mask, of each sample."""
    import quantus

    metric = quantus.RelevanceMassAccuracy(disable_warnings=True, display_progressbar=False)
    return [float(value) for value in metric(**given)]


# shared ---------------------------------------------------------------------------------------------------------------
def detached_gradient_times_input(model: Any, x: Tensor, target: int) -> Tensor:
    """CP-LRP of a vision transformer of torchvision, written out.

    The gradient times the input of a network whose attention weights and norms' deviations are constants, and whose
    GELU is z · Φ(z) with Φ held fixed.
    """
    x = x.clone().requires_grad_()
    h = model._process_input(x)
    h = torch.cat([model.class_token.expand(len(h), -1, -1), h], 1) + model.encoder.pos_embedding
    for block in model.encoder.layers:
        h = h + _attended(block.self_attention, _normed(block.ln_1, h))
        first, second = block.mlp[0], block.mlp[3]
        z = first(_normed(block.ln_2, h))
        h = h + second(z * (F.gelu(z) / z).detach())
    logits = model.heads(_normed(model.encoder.ln, h)[:, 0])
    (gradient,) = torch.autograd.grad(logits[:, target].sum(), x)
    return (x * gradient).detach()


def _normed(norm: Any, h: Tensor) -> Tensor:
    deviation = (h.var(-1, correction=0, keepdim=True) + norm.eps).sqrt().detach()
    return (h - h.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


def _attended(attention: Any, h: Tensor) -> Tensor:
    q, k, v = (
        F.linear(h, attention.in_proj_weight, attention.in_proj_bias)
        .unflatten(-1, (3, attention.num_heads, -1))
        .permute(2, 0, 3, 1, 4)
    )
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).detach()
    return attention.out_proj((weights @ v).transpose(1, 2).flatten(2))


def _refusal(call: Callable[[], object]) -> Answer:
    try:
        call()
    except (TypeError, RuntimeError, AssertionError):
        return False, "refused"
    return True, ""


def _close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Up to a part of the largest entry."""
    return float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


def _figure(share: float) -> str:
    return f"{share:.2f}" if 0.01 <= abs(share) < 1000 else f"{share:.0e}".replace("e+0", "e").replace("e+", "e")


def answers(library: str) -> dict[str, Any]:
    """Every question that the library has a function for."""
    prefix = library.lower().replace("-", "")
    found: dict[str, Any] = {}
    for question in QUESTIONS:
        asked = globals().get(f"{prefix}_{question}")
        if asked is not None:
            torch.manual_seed(0)
            holds, said = asked()
            found[question] = {"holds": holds, "said": said}
    return {"version": "" if library == "backplay" else version(library), "answers": found}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    from backplay.interop.torchvision import ensure

    ensure()  # before the peers import torchvision on their own
    try:
        importlib.import_module(LIBRARIES[sys.argv[1]][0])
    except ImportError as absent:
        print(absent, file=sys.stderr)
        sys.exit(3)
    print(json.dumps(answers(sys.argv[1]), ensure_ascii=False))
