"""Peers: zennit and captum on the same network and input, beside the gradient and the Routing anchor.

A peer is asked for one map, registration of its hooks included, as a caller would write it. What does not run is a row
that says why.
"""

import copy
import warnings
from typing import Any

import torch

import backplay as bp
from cases import Case
from games import LARGE, SMALL
from networks import Subject, subject
from rounds import Pace, Row, Say, Timed, measure

STEPS = 5  # of integrated gradients, each stated alone
HALF_BLIND = "its hooks do not reach the projections inside nn.MultiheadAttention"


def cases(small: bool) -> list[Case]:
    if small:
        return [_case("tiny CNN", 1)]
    return [*(_case(name, 1) for name in LARGE + SMALL), *(_case(name, 8) for name in LARGE)]


def _case(name: str, batch: int) -> Case:
    def run(pace: Pace, say: Say) -> list[Row]:
        asked = subject(name, batch)
        return measure(_calls(asked, every=batch == 1), "gradient", pace, say)

    return Case("peers", name, "batch", batch, run)


def _calls(asked: Subject, every: bool) -> dict[str, Timed]:
    """The peers on one input; on a batch those alone that are closest to the games: a round of all takes minutes."""
    one, anchor = asked.of(1), bp.RoutingGame(bp.capture(asked.model, asked.given))
    blind = HALF_BLIND if asked.name == "ViT-B/16" else None
    timed: dict[str, Timed] = {
        "gradient": Timed(asked.gradient, warm=one.gradient),
        "Routing anchor": Timed(
            lambda: anchor.attribute(asked.given, 0),
            warm=lambda: anchor.attribute(one.given, 0),
            least=3 if every else 1,
        ),
        "zennit AlphaBeta(2, 1)": Timed(
            lambda: zennit(asked, "ab"), warm=lambda: zennit(one, "ab"), why=blind, least=3 if every else 1
        ),
        "zennit Epsilon": Timed(lambda: zennit(asked, "epsilon"), warm=lambda: zennit(one, "epsilon"), why=blind),
    }
    if every:
        # networks of their own: where one does not run, hooks stay behind that would slow all others
        lrp, deeplift = copy.deepcopy(asked), copy.deepcopy(asked)
        timed |= {
            "captum LRP": Timed(lambda: captum(lrp, "LRP")),
            "captum DeepLift": Timed(lambda: captum(deeplift, "DeepLift")),
            "captum IG, a step": Timed(
                lambda: captum(asked, "IntegratedGradients", n_steps=STEPS), parts=STEPS, why="50 steps by default"
            ),
        }
    return timed


def zennit(asked: Subject, kind: str) -> torch.Tensor:
    """One rule on every convolution and linear layer, batch norm merged and skips canonised where that is meant."""
    from zennit.attribution import Gradient
    from zennit.canonizers import SequentialMergeBatchNorm
    from zennit.composites import LayerMapComposite
    from zennit.rules import AlphaBeta, Epsilon
    from zennit.torchvision import ResNetCanonizer
    from zennit.types import Convolution, Linear

    rule = AlphaBeta(2.0, 1.0) if kind == "ab" else Epsilon()
    canonizers = [ResNetCanonizer() if asked.name.startswith("ResNet") else SequentialMergeBatchNorm()]
    composite = LayerMapComposite([((Convolution, Linear), rule)], canonizers=canonizers)
    with Gradient(model=asked.model, composite=composite) as attributor:
        _, relevance = attributor(asked.x.clone(), _first_class)
    return relevance


def _first_class(logits: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(logits[:, :1], (0, logits.shape[1] - 1))


def captum(asked: Subject, name: str, **options: Any) -> torch.Tensor:
    import captum.attr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that hooks are set, at every call
        method: Any = getattr(captum.attr, name)(asked.model)
        return method.attribute(asked.x.clone().requires_grad_(), target=0, **options)
