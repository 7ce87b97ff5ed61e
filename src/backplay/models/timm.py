"""timm's models, with the data configuration of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from backplay.errors import ModelError, WeightsError, suggestion
from backplay.models.checkpoints import RANDOM, Weights, drawn, fit, in_hub, no_local, read_weights
from backplay.models.loaded import Loaded, library


def names() -> list[str]:
    """Every architecture of the installed timm; weights of one are told apart by a tag, `resnet18.a1_in1k`."""
    return _timm().list_models()


def load(name: str, weights: Weights = None) -> Loaded:
    """A model of timm; weights in another layout that timm itself converts are converted."""
    timm = _timm()
    known = {*timm.list_models(), *timm.list_pretrained()}
    if name not in known:
        raise ModelError(
            f"timm:{name} is not in timm{suggestion(name, known)}; `backplay models --json` lists the names."
        )
    path = None
    if weights == RANDOM:
        model = drawn(lambda: timm.create_model(name, pretrained=False))
    else:
        model = timm.create_model(name, pretrained=False)
        path = _cached(name, model.pretrained_cfg) if weights is None else Path(weights)
        model = _fitted(timm, name, model, path)
    data: Any = library("timm.data", "models", "a timm network")
    config = data.resolve_model_data_config(model)
    return Loaded(
        model.eval(),
        data.create_transform(**config, is_training=False),
        _classes(data, model),
        tuple(config["input_size"][1:]),
        f"timm:{name} ({'random weights' if path is None else path.name})",
    )


def _timm() -> Any:
    return library("timm", "models", "a timm network")


def _cached(name: str, config: dict[str, Any]) -> Path:
    """Where the Hugging Face cache or torch.hub's keeps the trained weights."""
    hub: Any = library("huggingface_hub", "models", "a timm network")
    repository = config.get("hf_hub_id")
    if repository:
        given = config.get("hf_hub_filename")
        for file in [given] if given else ["model.safetensors", "pytorch_model.bin"]:
            found = hub.try_to_load_from_cache(repository, file)
            if isinstance(found, str):
                return Path(found)
    found = in_hub(config["url"]) if config.get("url") else None
    if found is None:
        looked = f"the Hugging Face cache has no {repository}" if repository else "timm names no file of them"
        raise no_local(f"timm:{name}", looked)
    return found


def _fitted(timm: Any, name: str, model: nn.Module, path: Path) -> Any:
    state = read_weights(path)
    try:
        fit(model, state, path, f"timm:{name}")
        return model
    except WeightsError as misfit:
        try:  # the layout in which its authors published it, which timm knows how to rename
            overlay = {"state_dict": state, "custom_load": False}
            converted = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
        except Exception:
            raise misfit from None
        converted.pretrained_cfg.pop("state_dict", None)  # timm would keep a second copy there
        return converted


def _classes(data: Any, model: Any) -> tuple[str, ...] | None:
    """The names that the weights bring along, else those of the ImageNet with as many classes."""
    named = model.pretrained_cfg.get("label_names")
    if named and len(named) == model.num_classes:
        return tuple(named)
    subset = data.infer_imagenet_subset(model)
    return tuple(data.ImageNetInfo(subset).label_descriptions()) if subset else None
