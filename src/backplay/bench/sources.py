"""What every config names: networks, data, methods with their parameters, paths (docs/benchmark.md lists the keys)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import backplay as bp
from backplay.bench.data import KINDS
from backplay.bench.reading import ConfigError, Item, compose, yaml
from backplay.errors import MissingFileError, instead

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Contender:
    """A network of the run: its name in tables, and how it is loaded."""

    name: str
    load: str
    weights: str | None = None


KEYS = {"bench": ("models", "data", "tables"), "sanity": ("models", "data", "experiments")}  # that a config must have
_EXAMPLES = {"bench": "configs/quick.yaml", "sanity": "configs/sanity/zoo-quick.yaml"}


def opened(path: Path, command: str = "bench") -> Item:
    """The top of a config in a file, for a command: one of KEYS; a config of another command is refused."""
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist; give the path of a config, {_EXAMPLES[command]} for one.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}.") from error
    top = compose(text, str(path), KEYS[command])
    if top.node.id == "mapping":
        names = {str(key.value) for key, _ in top.node.value}
        for other, keys in KEYS.items():
            if keys[-1] in names and KEYS[command][-1] not in names:
                raise ConfigError(
                    f"{path} has {keys[-1]} and no {KEYS[command][-1]}: it is a config of backplay {other}, "
                    f"not of backplay {command}; call backplay {other} with it, or with the folder of its run."
                )
    return top


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What every run is given, checked."""

    name: str
    paper: str  # the label of the table or figure that it reproduces, or nothing
    seed: int
    threads: int
    retries: int
    networks: tuple[Contender, ...]
    data: dict[str, Any]
    text: str  # what the run is known by: equal texts are equal runs

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


COMMON = ("name", "paper", "seed", "threads", "retries")  # keys that every config may have


def common(
    path: Path, top: Item, keys: dict[str, Item], zoo: bool, limits: Mapping[str, int], **looked_up: str
) -> dict[str, Any]:
    """The fields of a `RunConfig`; `zoo` puts the bundled networks and pictures in place of the config's own."""
    data = ({"kind": "zoo", "name": "zoo"} if zoo else data_of(keys["data"], path.parent)) | dict(limits)
    networks = networks_of(keys["models"], path.parent)
    networks = relatives(networks) if zoo else networks
    name = keys["name"].text() if "name" in keys else path.stem
    return {
        "name": name,
        "paper": keys["paper"].text() if "paper" in keys else "",
        "seed": whole(keys, "seed", 0, 0),
        "threads": whole(keys, "threads", 1, 1),
        "retries": whole(keys, "retries", 0, 2),
        "networks": networks,
        "data": data,
        "text": _text_of(top.plain | {"name": name} | looked_up, networks, data),
    }


def _text_of(plain: dict[str, Any], networks: Sequence[Contender], data: dict[str, Any]) -> str:
    """The config with everything that was replaced or looked up, in one spelling."""
    models = [{k: v for k, v in asdict(network).items() if v is not None} for network in networks]
    return yaml().safe_dump(plain | {"models": models, "data": data}, sort_keys=True, allow_unicode=True)


def whole(keys: dict[str, Item], name: str, least: int, default: int) -> int:
    return keys[name].whole(least) if name in keys else default


# the bundled network that is built like the named one; a plain convolutional one where none is
FAMILIES = {"vgg": "zoo:vgg", "resnet": "zoo:resnet", "vit": "zoo:vit", "deit": "zoo:vit"}


def relatives(networks: Sequence[Contender]) -> tuple[Contender, ...]:
    """The zoo's relatives of some networks: any config can be tried without a download."""
    names = [f"{network.name} {network.load}".lower() for network in networks]
    found = [next((ours for word, ours in FAMILIES.items() if word in name), "zoo:vgg") for name in names]
    return tuple(Contender(name, name) for name in dict.fromkeys(found))


def networks_of(item: Item, home: Path) -> tuple[Contender, ...]:
    found: list[Contender] = []
    for inner in item.items():
        if inner.node.id == "scalar":
            name = inner.text()
            found.append(Contender(name, _found(name, home)))
            continue
        keys = inner.mapping(("name", "load"), ("weights",))
        weights = path_of(keys["weights"], home) if "weights" in keys else None
        found.append(Contender(keys["name"].text(), _found(keys["load"].text(), home), weights))
    names = [network.name for network in found]
    if len(set(names)) < len(names):
        raise item.error("names a network twice; each name once.")
    return tuple(found)


def _found(name: str, home: Path) -> str:
    """A model's name; a `path.py:factory` is looked for beside the config."""
    file, colon, function = name.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{(home / os.path.expandvars(file)).resolve()}:{function}"
    return name


def path_of(item: Item, home: Path) -> str:
    """A path, from the config's folder on; variables of the environment stand for themselves."""
    written = item.text()
    expanded = os.path.expandvars(os.path.expanduser(written))
    if "$" in expanded:
        raise item.error(f"{written!r} names a variable of the environment that is not set; set it or write the path.")
    return str((home / expanded).resolve())


_DATA_KEYS = {
    "zoo": ("seed",),
    "imagenet-s": ("root", "classes", "resize"),
    "voc": ("root", "resize"),
    "pets": ("root", "targets", "resize"),
    "folder": ("root", "resize"),
}


def data_of(item: Item, home: Path) -> dict[str, Any]:
    kind = item.mapping(("kind",), None)["kind"].choice(KINDS)
    needed = [key for key in _DATA_KEYS[kind] if key in ("root", "classes")]
    keys = item.mapping(("kind", *needed), ("name", "validation", "test", *_DATA_KEYS[kind]))
    found: dict[str, Any] = {"kind": kind, "name": keys["name"].text() if "name" in keys else kind}
    for name in ("validation", "test", "resize"):
        if name in keys:
            found[name] = keys[name].whole(1)
    if "seed" in keys:
        found["seed"] = keys["seed"].whole(0)
    if "targets" in keys:
        found["targets"] = keys["targets"].choice(("breeds", "imagenet"))
    return found | {name: path_of(keys[name], home) for name in needed}


def method_of(item: Item) -> str:
    name, known = item.text(), bp.methods()
    if name not in known:
        raise item.error(f"no method named {name!r}{instead(name, known, where='`backplay methods` lists them')}.")
    return name


def check_params(item: Item, keys: Mapping[str, Item], method: str, params: Params) -> None:
    """Refuse parameters that the method does not take, at the line of the one that is wrong."""
    info = bp.methods()[method]
    for name, value in params.items():
        place = keys.get(name, item)
        place.checked(lambda name=name, value=value: info.check({name: value}))
