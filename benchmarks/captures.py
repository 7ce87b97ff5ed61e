"""Captures: how long a network is read, beside what torch.export takes for the same, and for each node of the game."""

import warnings

import torch

import backplay as bp
from cases import Case
from networks import Subject, subject
from rounds import Pace, Row, Say, Timed, measure

FAMILIES = (
    *("VGG-16", "ResNet-50", "SqueezeNet", "GoogLeNet", "DenseNet-121", "MobileNetV3", "EfficientNet-B0"),
    *("ConvNeXt-T", "ViT-B/16", "Swin-T", "BERT", "GhostNetV2", "HRNet-W18", "NASNet-A", "MViTv2-T"),
)


def cases(small: bool) -> list[Case]:
    return [_case(name) for name in (("tiny CNN", "tiny MLP") if small else FAMILIES)]


def _case(name: str) -> Case:
    def run(pace: Pace, say: Say) -> list[Row]:
        asked, counts = subject(name, batch=2), dict[str, int]()
        tiny = subject("tiny MLP", batch=2)  # what the exporter imports at its first use is no time of a network

        def capture() -> None:
            counts["nodes"] = len(bp.capture(asked.model, asked.given).nodes)

        calls = {
            "torch.export": Timed(lambda: export(asked), warm=lambda: export(tiny)),
            "capture": Timed(capture, warm=lambda: bp.capture(tiny.model, tiny.given), least=2),
        }
        rows = measure(calls, "torch.export", pace, say)
        taken = rows[1].seconds
        assert taken is not None
        rows[1].facts = {"nodes": counts["nodes"], "milliseconds a node": 1e3 * taken / counts["nodes"]}
        return rows

    return Case("capture", name, "batch", 2, run)


def export(asked: Subject) -> object:
    """torch's own program of the network, for any number of samples, as a capture asks for it."""
    words = isinstance(asked.given, dict)
    given = asked.given if words else {}
    some = {k: {0: torch.export.Dim.DYNAMIC} for k in given} if words else ({0: torch.export.Dim.DYNAMIC},)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = () if words else (asked.given,)
        return torch.export.export(asked.model, args, given, dynamic_shapes=some, strict=False)
