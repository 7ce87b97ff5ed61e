"""torchvision's classifiers, with the transforms and categories of their weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch import nn

from backplay.errors import ModelError, suggestion
from backplay.models.checkpoints import RANDOM, Weights, drawn, fit, in_hub, no_local, read_weights
from backplay.models.loaded import Loaded, library


def names() -> list[str]:
    """Every classifier of the installed torchvision."""
    models = _models()
    return models.list_models(module=models)


def load(name: str, weights: Weights = None) -> Loaded:
    """A classifier; a file of weights with the name that torchvision gave it brings the transforms of its recipe."""
    models = _models()
    if name not in models.list_models(module=models):
        other = name in models.list_models()
        why = "no classifier, which is what can be explained" if other else "not in torchvision"
        raise ModelError(
            f"torchvision:{name} is {why}{suggestion(name, names())}; `backplay models --json` lists the names."
        )
    recipes = models.get_model_weights(name)
    recipe, path = _choose(name, recipes, weights)
    settings = _settings(name, recipe)
    if path is None:
        model = drawn(lambda: models.get_model(name, weights=None, **settings))
    else:
        state = read_weights(path)
        model = models.get_model(name, weights=None, **settings)
        _drop_auxiliary(model, state)
        fit(model, state, path, f"torchvision:{name}")
    transforms = recipe.transforms()
    side = transforms.crop_size[0]
    return Loaded(
        model.eval(),
        transforms,
        tuple(recipe.meta["categories"]),
        (side, side),
        f"torchvision:{name} ({'random weights' if path is None else path.name})",
    )


def _models() -> Any:
    return library("torchvision", "vision", "a torchvision network").models


def _choose(name: str, recipes: Any, weights: Weights) -> tuple[Any, Path | None]:
    """The recipe whose transforms are used, and the file; None for random weights."""
    if weights == RANDOM:
        return recipes.DEFAULT, None
    best_first = sorted(recipes, key=lambda recipe: recipe is not recipes.DEFAULT)
    if weights is not None:
        path = Path(weights)
        named = [r for r in recipes if os.path.basename(urlsplit(r.url).path) == path.name]
        return (named or best_first)[0], path
    for recipe in best_first:
        path = in_hub(recipe.url)
        if path is not None:
            return recipe, path
    wanted = os.path.basename(urlsplit(recipes.DEFAULT.url).path)
    raise no_local(f"torchvision:{name}", f"torch.hub's cache has no {wanted}")


def _settings(name: str, recipe: Any) -> dict[str, Any]:
    """What torchvision's own builders set where they are given trained weights."""
    if name.startswith("vit_"):
        return {"image_size": recipe.meta["min_size"][0]}
    if name in ("googlenet", "inception_v3"):
        return {"transform_input": True, "init_weights": False}
    return {}


def _drop_auxiliary(model: nn.Module, state: dict[str, Any]) -> None:
    """Auxiliary heads serve training alone; a state dict of a model in use has none."""
    for name in ("aux1", "aux2", "AuxLogits"):
        if hasattr(model, name) and not any(f"{name}." in key for key in state):
            setattr(model, name, None)
            model.aux_logits = False  # type: ignore[assignment]
