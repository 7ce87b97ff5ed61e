"""Loaders on real files of the real layouts; whatever they do, nothing goes to the network and no pickle runs."""

import json
import os
import pickle
import socket
import sys
import textwrap

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

import backplay as bp
from backplay import models

SMALL = "squeezenet1_1"  # the smallest network of torchvision
TIMM = "test_vit"  # timm's own test network


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Empty caches, and no connection whatsoever."""
    tried = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: tried.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **how: tried.append(where) or [])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    yield
    assert not tried


def picture(width=300, height=200):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


def same(model, other):
    ours, theirs = model.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def refused(kind, *words, name, weights=None):
    with pytest.raises(bp.BackplayError) as caught:
        models.load(name, weights)
    message = str(caught.value)
    assert isinstance(caught.value, kind) and "\n" not in message, message
    assert all(word in message for word in words), message


class Harm:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


# ---------------------------------------------------------------- torchvision


@pytest.fixture(scope="module")
def squeezenet():
    torch.manual_seed(1)
    return torchvision.models.get_model(SMALL).eval()


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_torchvision_with_a_file(tmp_path, squeezenet, suffix):
    path = tmp_path / f"weights.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(squeezenet.state_dict(), path)
    loaded = models.load(f"torchvision:{SMALL}", path)
    assert same(loaded.model, squeezenet) and not loaded.model.training
    recipe = torchvision.models.get_model_weights(SMALL).DEFAULT
    assert torch.equal(loaded.preprocess(picture()), recipe.transforms()(picture()))
    assert loaded.preprocess(picture()).shape == (3, *loaded.size)
    assert len(loaded.classes) == 1000 and loaded.class_name(281) == "tabby" and "weights." in loaded.source


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state, "optimizer": {"state": {}, "lr": 0.1}},
        lambda state: {"model_state_dict": {f"module.{k}": v for k, v in state.items()}},
        lambda state: {"state_dict": {f"model._orig_mod.{k}": v for k, v in state.items()}},
        lambda state: {f"module.{k}": v for k, v in state.items()},
    ],
)
def test_wrappers_of_training_scripts(tmp_path, squeezenet, wrap):
    torch.save(wrap(squeezenet.state_dict()), tmp_path / "checkpoint.pth")
    assert same(models.load(f"torchvision:{SMALL}", str(tmp_path / "checkpoint.pth")).model, squeezenet)


def test_the_cache_of_torch_hub_is_used(tmp_path, squeezenet):
    name = f"torchvision:{SMALL}"
    file = "squeezenet1_1-b8a52dc0.pth"
    refused(ValueError, file, "nothing is downloaded", "'random'", name=name)
    folder = tmp_path / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(squeezenet.state_dict(), folder / file)
    loaded = models.load(name)
    assert same(loaded.model, squeezenet) and file in loaded.source


def test_a_file_brings_the_transforms_of_its_recipe(tmp_path):
    """The first weights of MobileNet-V3 resize to 256, the second to 232; the file's name tells which these are."""
    recipes = torchvision.models.MobileNet_V3_Large_Weights
    state = torchvision.models.mobilenet_v3_large().state_dict()
    for recipe, resized in ((recipes.IMAGENET1K_V1, [256]), (recipes.IMAGENET1K_V2, [232])):
        path = tmp_path / recipe.url.rpartition("/")[2]
        torch.save(state, path)
        assert models.load("torchvision:mobilenet_v3_large", path).preprocess.resize_size == resized
    path = path.rename(tmp_path / "mine.pth")
    assert models.load("torchvision:mobilenet_v3_large", path).preprocess.resize_size == [232]


@pytest.mark.parametrize("auxiliary", [True, False])
def test_googlenet_as_trained(tmp_path, auxiliary):
    """The trained weights want the input transformed; files come with and without the auxiliary heads."""
    torch.save(torchvision.models.googlenet(init_weights=False, aux_logits=auxiliary).state_dict(), tmp_path / "g.pth")
    model = models.load("torchvision:googlenet", tmp_path / "g.pth").model
    assert model.transform_input and model(torch.zeros(1, 3, 224, 224)).shape == (1, 1000)


@pytest.mark.slow
def test_random_weights_are_the_same_every_time_and_leave_no_head_at_zero():
    first = models.load("torchvision:vit_b_32", "random")
    torch.manual_seed(7)
    state = torch.get_rng_state()
    second = models.load("torchvision:vit_b_32", "random")
    assert same(first.model, second.model) and torch.equal(torch.get_rng_state(), state)
    assert "random" in first.source
    assert not torchvision.models.vit_b_32().heads.head.weight.any(), "if torchvision fills it now, drop this"
    assert 0.015 < first.model.heads.head.weight.std() < 0.025


def test_names_that_are_not_there():
    refused(ValueError, "did you mean", "resnet18", name="torchvision:resnet81", weights="random")
    refused(ValueError, "no classifier", name="torchvision:fasterrcnn_resnet50_fpn", weights="random")
    refused(ValueError, "torchvision:resnet18", "timm:resnet18", name="resnet18")
    refused(ValueError, "torchvision:resnet18", name="torchvison:resnet18")
    refused(ValueError, "vgg-spurious", name="zoo:vgg-spuriuos")
    refused(ValueError, "(did you mean torchvision:resnet50?)", name="rsnet50")
    for name in ("nonsense", "mynet", "model"):
        refused(ValueError, f"no model named '{name}'; models are named zoo:NAME", name=name)
    for name in ("", ":", "nothing at all"):
        refused(ValueError, "hf:PATH", "path.py:factory", name=name)
    for name in ("mynet.py", "some/mynet.py:"):
        refused(ValueError, "add :factory", f"{name.removesuffix(':')}:build", name=name)
    for name in ("timm:", "torchvision:"):
        refused(ValueError, "lacks the name behind the colon", f"{name}NAME", name=name)


def test_misfits_are_listed_in_one_line(tmp_path, squeezenet):
    name = f"torchvision:{SMALL}"
    state = dict(squeezenet.state_dict())
    first = state.pop("features.0.weight")
    torch.save(state | {"stem.weight": first}, tmp_path / "renamed.pth")
    words = ("1 missing (features.0.weight)", "1 unexpected (stem.weight)", "renamed.pth")
    refused(ValueError, *words, name=name, weights=tmp_path / "renamed.pth")
    torch.save({"features.0.weight": first}, tmp_path / "few.pth")
    refused(ValueError, "51 missing", "…", name=name, weights=tmp_path / "few.pth")
    ten = squeezenet.state_dict() | {"classifier.1.weight": torch.zeros(10, 512, 1, 1)}
    torch.save(ten, tmp_path / "ten.pth")
    shape = "1 of another shape (classifier.1.weight (10, 512, 1, 1) for (1000, 512, 1, 1))"
    refused(ValueError, shape, "factory", name=name, weights=tmp_path / "ten.pth")


# ---------------------------------------------------------------- files of weights


def test_pickled_code_is_refused_and_never_runs(tmp_path, squeezenet):
    trap = tmp_path / "harmed"
    torch.save({"state_dict": squeezenet.state_dict(), "extra": Harm(trap)}, tmp_path / "zip.pth")
    torch.save({"x": Harm(trap)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(Harm(trap)))
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(Harm(trap), protocol=2))
    for file, word in (("zip.pth", "mkdir"), ("old.pth", "mkdir"), ("plain.pkl", "mkdir"), ("bare.pkl", "pickle")):
        refused(ValueError, file, word, name=f"torchvision:{SMALL}", weights=tmp_path / file)
        assert not trap.exists()
    torch.load(tmp_path / "zip.pth", weights_only=False)
    assert trap.exists(), "the file would have done harm"


def test_a_whole_pickled_model_is_refused(tmp_path, squeezenet):
    torch.save(squeezenet, tmp_path / "model.pt")
    words = ("SqueezeNet", "state dict")
    refused(ValueError, *words, name=f"torchvision:{SMALL}", weights=tmp_path / "model.pt")


def test_files_that_hold_no_weights(tmp_path, squeezenet):
    def gives(kind, *words, file):
        refused(kind, *words, name=f"torchvision:{SMALL}", weights=tmp_path / file)

    gives(FileNotFoundError, "does not exist", file="nowhere.pth")
    gives(OSError, "no file", file=".")
    for suffix in ("pth", "safetensors"):
        (tmp_path / f"empty.{suffix}").touch()
        gives(ValueError, "empty", file=f"empty.{suffix}")
        (tmp_path / f"text.{suffix}").write_text("not weights at all, " * 50)
        gives(ValueError, f"text.{suffix}", file=f"text.{suffix}")
    torch.save(squeezenet.state_dict(), tmp_path / "cut.pth")
    save_file(squeezenet.state_dict(), tmp_path / "cut.safetensors")
    for path in tmp_path.glob("cut.*"):
        path.write_bytes(path.read_bytes()[:100_000])
        gives(ValueError, path.name, file=path.name)
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    gives(ValueError, "list", "state dict", file="list.pth")
    torch.save({"epoch": 3, "loss": 0.5}, tmp_path / "log.pth")
    gives(ValueError, "epoch, loss", file="log.pth")
    torch.save({}, tmp_path / "nothing.pth")
    gives(ValueError, "no state dict", file="nothing.pth")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "script.pt")
    gives(ValueError, "TorchScript", file="script.pt")


def test_tied_weights_are_written_once(tmp_path):
    code = """
        from torch import nn
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
                self.b.weight = self.a.weight
            def forward(self, x):
                return self.b(self.a(x.mean((2, 3))))
    """
    name = factory(tmp_path, code, "Tied")
    tied = {"a.weight": torch.eye(3), "a.bias": torch.ones(3), "b.bias": torch.ones(3)}
    save_file(tied, tmp_path / "tied.safetensors")
    assert torch.equal(models.load(name, tmp_path / "tied.safetensors").model.b.weight, torch.eye(3))


# ---------------------------------------------------------------- timm


def test_timm_with_a_file(tmp_path):
    torch.manual_seed(1)
    model = timm.create_model(TIMM).eval()
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    loaded = models.load(f"timm:{TIMM}", tmp_path / "vit.safetensors")
    assert same(loaded.model, model) and not loaded.model.training
    config = timm.data.resolve_model_data_config(model)
    expected = timm.data.create_transform(**config, is_training=False)(picture())
    assert torch.equal(loaded.preprocess(picture()), expected) and expected.shape == (3, *loaded.size)
    assert loaded.class_name(281).startswith("tabby") and len(loaded.classes) == 1000


def test_timm_converts_what_it_knows(tmp_path):
    """A patch embedding saved as a matrix: timm's own filter for vision transformers makes it a convolution."""
    model = timm.create_model(TIMM).eval()
    state = dict(model.state_dict())
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].flatten(1)
    torch.save({"model": state}, tmp_path / "matrix.pth")
    loaded = models.load(f"timm:{TIMM}", tmp_path / "matrix.pth").model
    assert same(loaded, model) and "state_dict" not in loaded.pretrained_cfg
    del state["head.weight"]
    torch.save({"model": state}, tmp_path / "headless.pth")
    refused(ValueError, "1 missing (head.weight)", name=f"timm:{TIMM}", weights=tmp_path / "headless.pth")


def test_the_cache_of_the_hub_is_used(tmp_path):
    model = timm.create_model(TIMM)
    name, repository = f"timm:{TIMM}", model.pretrained_cfg["hf_hub_id"]
    refused(ValueError, repository, "nothing is downloaded", name=name)
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    save_file(model.state_dict(), folder / "snapshots" / commit / "model.safetensors")
    assert same(models.load(name).model, model)


def test_timm_names():
    assert models.load(f"timm:{TIMM}.r160_in1k", "random").size == (160, 160)
    refused(ValueError, "did you mean", "resnet18", name="timm:resnet81", weights="random")
    for elsewhere in ("hf-hub:timm/resnet18.a1_in1k", "local-dir:somewhere"):
        refused(ValueError, "not in timm", name=f"timm:{elsewhere}", weights="random")


# ---------------------------------------------------------------- Hugging Face


@pytest.fixture(scope="module")
def tiny_vit():
    torch.manual_seed(1)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "newt"},
        label2id={"cat": 0, "dog": 1, "newt": 2},
    )
    return ViTForImageClassification(config).eval()


@pytest.fixture
def folder(tmp_path, tiny_vit):
    tiny_vit.save_pretrained(tmp_path / "vit")
    ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def pickled(folder, state):
    """The layout before safetensors."""
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")


@pytest.mark.parametrize("layout", ["safetensors", "bin"])
def test_a_folder_of_transformers(folder, tiny_vit, layout):
    if layout == "bin":
        pickled(folder, tiny_vit.state_dict())
    loaded = models.load(f"hf:{folder}")
    assert same(loaded.model, tiny_vit) and not loaded.model.training
    assert loaded.classes == ("cat", "dog", "newt") and loaded.size == (32, 32)
    red = loaded.preprocess(Image.new("RGB", (50, 40), (255, 0, 0)))
    expected = (torch.tensor([1.0, 0.0, 0.0]) - torch.tensor([0.1, 0.2, 0.3])) / 0.5
    assert red.shape == (3, 32, 32) and torch.allclose(red, expected[:, None, None].expand(3, 32, 32), atol=1e-5)


def test_a_folder_with_other_weights(folder, tiny_vit, tmp_path):
    other = ViTForImageClassification(tiny_vit.config)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    assert same(models.load(f"hf:{folder}", tmp_path / "other.safetensors").model, other)
    first, second = (models.load(f"hf:{folder}", "random").model for _ in range(2))
    assert same(first, second) and not same(first, tiny_vit)


def test_half_precision_is_widened(folder, tiny_vit):
    half = {k: v.bfloat16() for k, v in tiny_vit.state_dict().items()}
    pickled(folder, half)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"dtype": "bfloat16"}))
    model = models.load(f"hf:{folder}").model
    assert model.dtype == torch.float32
    assert torch.equal(model.classifier.weight, half["classifier.weight"].float())


def test_a_folder_without_its_head_is_refused(folder, tiny_vit, capfd):
    state = {k: v for k, v in tiny_vit.state_dict().items() if not k.startswith("classifier")}
    pickled(folder, state | {"pooler.weight": torch.zeros(2)})
    refused(ValueError, "2 missing (classifier.bias, classifier.weight)", "pooler.weight", name=f"hf:{folder}")
    pickled_again = dict(tiny_vit.state_dict()) | {"classifier.weight": torch.zeros(5, 16)}
    torch.save(pickled_again, folder / "pytorch_model.bin")
    refused(ValueError, "classifier.weight (5, 16) for (3, 16)", name=f"hf:{folder}")
    assert capfd.readouterr().err == "", "transformers' own report is no part of one line"


def test_a_folder_with_pickled_code_is_refused(folder, tiny_vit, tmp_path):
    trap = tmp_path / "harmed"
    pickled(folder, tiny_vit.state_dict() | {"x": Harm(trap)})
    refused(ValueError, "refused", name=f"hf:{folder}")
    assert not trap.exists()


def test_a_folder_with_code_of_its_own_is_refused(folder, tmp_path):
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "mine.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'harmed')!r})\n")
    refused(ValueError, "cannot be loaded", name=f"hf:{folder}")
    assert not (tmp_path / "harmed").exists()


def test_folders_that_are_none(folder, tmp_path):
    refused(FileNotFoundError, "no folder", "nothing is downloaded", name="hf:google/vit-base-patch16-224")
    (folder / "preprocessor_config.json").rename(tmp_path / "elsewhere.json")
    refused(FileNotFoundError, "preprocessor_config.json", name=f"hf:{folder}")
    (tmp_path / "elsewhere.json").rename(folder / "preprocessor_config.json")
    (folder / "model.safetensors").unlink()
    refused(ValueError, "cannot be loaded", name=f"hf:{folder}")
    (folder / "config.json").write_text("{ no json")
    refused(ValueError, "cannot be loaded", name=f"hf:{folder}")


def test_folders_with_wrong_contents(folder):
    """The libraries' own errors are of every kind; each becomes one line that names the folder."""

    def gives(file, contents, *words):
        before = (folder / file).read_bytes()
        (folder / file).write_bytes(contents if isinstance(contents, bytes) else json.dumps(contents).encode())
        refused(ValueError, f"hf:{folder} cannot be loaded", *words, name=f"hf:{folder}")
        (folder / file).write_bytes(before)

    config, processor = (json.loads((folder / f).read_text()) for f in ("config.json", "preprocessor_config.json"))
    gives("model.safetensors", (folder / "model.safetensors").read_bytes()[:3000], "incomplete")
    gives("config.json", config | {"hidden_size": "a"}, "hidden_size")
    gives("config.json", config | {"num_attention_heads": 0}, "ZeroDivisionError")
    gives("preprocessor_config.json", [])
    gives("preprocessor_config.json", processor | {"image_mean": [0.5, 0.5]})


# ---------------------------------------------------------------- factories

NETWORK = """
    from dataclasses import dataclass
    from torch import nn

    def network():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))

    def told():
        return network(), {"mean": [0.0, 0.0, 0.0], "std": (1, 1, 2), "size": (20, 30), "classes": ["cat", "dog"]}

    def helped():
        import neighbour
        return neighbour.network
"""


def factory(folder, code, function):
    path = folder / "mine.py"
    path.write_text(textwrap.dedent(code))
    return f"{path}:{function}"


def test_a_factory(tmp_path):
    loaded = models.load(factory(tmp_path, NETWORK, "network"))
    assert loaded.size == (224, 224) and loaded.classes is None and loaded.class_name(1) == "class 1"
    assert not loaded.model.training and loaded.model(loaded.preprocess(picture())[None]).shape == (1, 2)
    grey = loaded.preprocess(Image.new("RGB", (9, 9), (128, 128, 128)))[:, 0, 0]
    expected = (128 / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    assert torch.allclose(grey, expected, atol=1e-5)


def test_a_factory_that_tells_more(tmp_path):
    name = factory(tmp_path, NETWORK, "told")
    loaded = models.load(name)
    assert loaded.size == (20, 30) and loaded.classes == ("cat", "dog")
    assert torch.allclose(loaded.preprocess(Image.new("RGB", (9, 9), "white"))[:, 0, 0], torch.tensor([1.0, 1.0, 0.5]))
    state = {k: torch.full_like(v, 2.0) for k, v in loaded.model.state_dict().items()}
    torch.save(state, tmp_path / "two.pth")
    assert (models.load(name, tmp_path / "two.pth").model[0].weight == 2).all()
    first, second = (models.load(name, "random").model for _ in range(2))
    assert same(first, second)


def test_a_factory_may_import_its_neighbours(tmp_path):
    (tmp_path / "neighbour.py").write_text("from torch import nn\nnetwork = nn.Linear(2, 2)\n")
    before = list(sys.path)
    assert isinstance(models.load(factory(tmp_path, NETWORK, "helped")).model, nn.Linear)
    assert sys.path == before
    del sys.modules["neighbour"]


def test_a_factory_that_fails(tmp_path):
    def gives(kind, *words, code=NETWORK, function="make"):
        refused(kind, *words, name=factory(tmp_path, code, function))

    refused(FileNotFoundError, "does not exist", name=f"{tmp_path / 'nowhere.py'}:make")
    gives(ValueError, "no function 'netwrok'", "did you mean network", function="netwrok")
    gives(ValueError, "SyntaxError", code="def make(:\n")
    gives(ValueError, "ZeroDivisionError", "line 2", code="def make():\n    return 1 / 0\n")
    gives(ValueError, "ModuleNotFoundError", "line 1", code="import surely_not_there\n")
    gives(ValueError, "returned int", code="def make():\n    return 3\n")
    gives(ValueError, "beside the model", code="from torch import nn\ndef make():\n    return nn.ReLU(), 3\n")
    settings = "from torch import nn\ndef make():\n    return nn.ReLU(), {}\n"
    gives(ValueError, "'sizes'", "did you mean size", code=settings.format({"sizes": 3}))
    gives(ValueError, "mean", "3 numbers", code=settings.format({"mean": 0.5}))
    gives(ValueError, "positive", code=settings.format({"size": 0}))
    gives(ValueError, "positive", code=settings.format({"std": (1, 0, 1)}))
    gives(ValueError, "mean", "3 numbers", code=settings.format('{"mean": [float("nan")] * 3}'))
    gives(ValueError, "classes to 5", code=settings.format({"classes": 5}))
    gives(ValueError, "classes to 'cat'", code=settings.format({"classes": "cat"}))
    gives(ValueError, "SystemExit: 3", code="def make():\n    raise SystemExit(3)\n")


# ---------------------------------------------------------------- the zoo


@pytest.mark.parametrize("name", ["vgg", "resnet", "vit"])
def test_the_zoo(name):
    from backplay import zoo

    loaded = models.load(f"zoo:{name}")
    assert same(loaded.model, zoo.load(name)) and loaded.classes == tuple(zoo.CLASSES) and loaded.size == (96, 96)
    spurious = models.load(f"zoo:{name}-spurious").model
    assert same(spurious, zoo.load(name, spurious=True)) and not same(spurious, loaded.model)
    assert not same(models.load(f"zoo:{name}", "random").model, loaded.model)


def test_the_zoo_sees_a_photograph_as_its_own_pictures():
    """A picture of the zoo that went through a file is what the network was trained on, to the rounding of 8 bits."""
    from backplay import zoo

    x = zoo.images(4).x
    shown = (zoo.picture(x) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    loaded = models.load("zoo:vgg", "random")
    again = torch.stack([loaded.preprocess(Image.fromarray(image)) for image in shown])
    assert (again - x).abs().max() < 0.01


def test_the_zoo_with_other_weights(tmp_path):
    torch.save(models.load("zoo:resnet-spurious").model.state_dict(), tmp_path / "mine.pth")
    loaded = models.load("zoo:resnet", tmp_path / "mine.pth")
    assert same(loaded.model, models.load("zoo:resnet-spurious").model) and "mine.pth" in loaded.source


@pytest.mark.parametrize("missing", ["torchvision", "timm", "transformers"])
def test_a_library_that_is_not_there(monkeypatch, folder, missing):
    """None in `sys.modules` is how Python itself notes that a module cannot be imported."""
    monkeypatch.setitem(sys.modules, missing, None)
    name = {"torchvision": f"torchvision:{SMALL}", "timm": f"timm:{TIMM}", "transformers": f"hf:{folder}"}[missing]
    refused(ImportError, missing, "pip install 'backplay[", name=name, weights="random")


def test_every_source_can_be_listed():
    for source in models.SOURCES.values():
        assert source.installed
        assert source.names is None or len(source.names()) >= 6
