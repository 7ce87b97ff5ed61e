"""Text models by name, each with its own tokenizer: `zoo:text`, and folders that `save_pretrained` wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from backplay.errors import ModelError
from backplay.models.bundled import TEXTS, text_model
from backplay.models.checkpoints import Weights
from backplay.models.huggingface import SAFELY, loading, model_of

_HEADS = (  # how the names of transformers' classes end, and who loads them
    ("ForSequenceClassification", "AutoModelForSequenceClassification"),
    ("ForTokenClassification", "AutoModelForTokenClassification"),
    ("ForMaskedLM", "AutoModelForMaskedLM"),
    ("LMHeadModel", "AutoModelForCausalLM"),
    ("ForCausalLM", "AutoModelForCausalLM"),
)


@dataclass(frozen=True, repr=False)
class LoadedText:
    """A text model, and the tokenizer that it was trained with."""

    model: nn.Module  # in eval mode, on the CPU
    tokenizer: Any
    source: str  # the name under which it was loaded, and where the weights come from

    def __repr__(self) -> str:
        return f"LoadedText({type(self.model).__name__} from {self.source})"


def load_text(name: str, weights: Weights = None) -> LoadedText:
    """A text model by name: `zoo:text`, `zoo:text-spurious`, or `hf:PATH` with its tokenizer; nothing is downloaded."""
    prefix, _, rest = name.partition(":")
    if prefix == "zoo" and rest in TEXTS:
        model, source = text_model(rest, weights)
        return LoadedText(model, model.tokenizer, f"{name} ({source})")
    if prefix == "hf" and rest:
        return _folder(Path(rest), weights)
    raise ModelError(f"{name!r} reads no text; give {', '.join(f'zoo:{t}' for t in TEXTS)} or hf:PATH, a text model.")


def reads_text(name: str) -> bool:
    """Whether a name is that of a text model: of the zoo, or a folder whose configuration says so."""
    prefix, _, rest = name.partition(":")
    if prefix != "hf":
        return prefix == "zoo" and rest in TEXTS
    try:
        known = json.loads((Path(rest) / "config.json").read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, ValueError, AttributeError):  # whoever loads it says what is wrong
        return False
    return any(str(kind).endswith(ending) for kind in known for ending, _ in _HEADS)


def _folder(folder: Path, weights: Weights) -> LoadedText:
    with loading(folder, " as a text model") as transformers:
        config = transformers.AutoConfig.from_pretrained(folder, **SAFELY)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **SAFELY)
        model, source = model_of(_auto(transformers, folder, config), folder, config, weights)
    return LoadedText(model.float().eval(), tokenizer, f"hf:{folder} ({source})")


def _auto(transformers: Any, folder: Path, config: Any) -> Any:
    """Who loads the model: by the name of its class, which the configuration keeps."""
    names = list(getattr(config, "architectures", None) or [])
    for ending, auto in _HEADS:
        if any(name.endswith(ending) for name in names):
            return getattr(transformers, auto)
    kinds = ", ".join(ending for ending, _ in _HEADS)
    raise ModelError(f"hf:{folder} holds {', '.join(names) or 'a model of unknown kind'}; text models are {kinds}.")
