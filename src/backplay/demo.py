"""Explain generated pictures with a small network of its own: `python -m backplay.demo`.

Nothing is downloaded. Pictures of a textured disc, triangle or flower before a textured background are drawn from a
seed, a small convolutional network learns in seconds to tell the shapes apart, and both games explain one unseen
picture of each shape. Colours and textures are drawn alike for all classes: the outline alone tells them apart.
"""

import argparse
import importlib.util
import json
import math
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import backplay as bp

SHAPES = ("disc", "triangle", "flower")
SIZE, RIM = 64, 3
POOL, STEPS, BATCH, HELD_OUT = 768, 180, 32, 300


class Pictures(NamedTuple):
    x: Tensor  # (N, 3, SIZE, SIZE), colours less one half
    target: Tensor  # (N,)
    mask: Tensor  # (N, SIZE, SIZE) bool, true on the object and on a rim around it, where its outline shows


def texture(colour: Tensor, generator: torch.Generator) -> Tensor:
    """(n, 3, SIZE, SIZE): each picture's colour (n, 3, 1, 1) under brightness noise of several wavelengths."""
    brightness = torch.ones(())
    for cells, strength in ((3, 0.14), (7, 0.12), (16, 0.10), (40, 0.08)):
        noise = torch.randn(len(colour), 1, cells, cells, generator=generator)
        smooth = F.interpolate(noise, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
        brightness = brightness + strength * smooth
    return colour * brightness


def draw(n: int, generator: torch.Generator) -> Pictures:
    """`n` pictures: the shapes in turn, at a random place, size and angle, lit from one side and with a soft shadow."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, 1, 1, generator=generator)

    target = torch.arange(n) % len(SHAPES)
    line = torch.linspace(-1, 1, SIZE)
    radius, turn = uniform(0.38, 0.55), uniform(0, math.tau)
    centre_y, centre_x = uniform(-0.35, 0.35), uniform(-0.35, 0.35)

    def coverage(shift: float, softness: float) -> Tensor:
        """(n, 1, SIZE, SIZE) in [0, 1]: how much of each pixel the shape, moved by `shift`, covers."""
        y, x = line[:, None] - centre_y - shift, line[None, :] - centre_x - shift
        angle = torch.atan2(y, x) + turn
        third = math.tau / 3
        outlines = torch.stack(
            [
                torch.full_like(angle, 0.9),
                0.6 / torch.cos((angle % third) - third / 2),
                0.85 + 0.3 * torch.cos(5 * angle),
            ]
        )
        outline = outlines[target, torch.arange(n)] * radius
        return torch.sigmoid((outline - torch.hypot(x, y)) / softness)[:, None]

    body = coverage(0.0, 0.012)
    light = 1 + 0.25 * (line[:, None] + line[None, :]) * torch.sign(uniform(-1, 1))[:, None]
    ground = 0.2 + 0.6 * torch.rand(n, 3, 1, 1, generator=generator)
    paint = (ground + 0.25 + 0.5 * torch.rand(n, 3, 1, 1, generator=generator)) % 1.0  # never the ground's own colour
    behind = texture(ground, generator) * (1 - 0.4 * coverage(0.07, 0.05))
    x = behind * (1 - body) + texture(paint, generator) * light * body
    x = x + 0.02 * torch.randn(x.shape, generator=generator)
    rim = F.max_pool2d(body, 2 * RIM + 1, stride=1, padding=RIM)
    return Pictures(x.clamp(0, 1) - 0.5, target, rim[:, 0] > 0.5)


def build() -> nn.Sequential:
    """Four times convolution, batch norm, ReLU and max pooling, then one linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 12), (12, 24), (24, 48), (48, 48)):
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * (SIZE // 16) ** 2, len(SHAPES)))


def train(seed: int) -> nn.Sequential:
    """The network, trained for a few seconds; people see how far it is, on standard error."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
    pool = draw(POOL, generator)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=6e-3, total_steps=STEPS)
    begin, shown = time.perf_counter(), False
    for step in range(STEPS):
        chosen = torch.randint(POOL, (BATCH,), generator=generator)
        quarters, mirror = torch.randint(4, (2,), generator=generator).tolist()
        x = torch.rot90(pool.x[chosen], quarters, (2, 3))
        x = x.flip(3) if mirror % 2 else x
        x = x.contiguous(memory_format=torch.channels_last)  # a third faster on a CPU
        loss = F.cross_entropy(model(x), pool.target[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if sys.stderr.isatty() and time.perf_counter() - begin > 2:
            shown = True
            print(f"\rtraining {100 * (step + 1) // STEPS:3d} % ", end="", file=sys.stderr, flush=True)
    if shown:
        print(file=sys.stderr)
    return model.eval()


def inside_share(heat: Tensor, mask: Tensor) -> Tensor:
    """(N,): how much of each map's absolute mass lies on the object and its rim."""
    mass = heat.abs()
    return (mass * mask).sum((1, 2)) / mass.sum((1, 2))


def save_figure(path: Path, pictures: Pictures, predicted: list[str], columns: dict[str, Tensor]) -> None:
    """One row a picture: the picture, then each map (N, SIZE, SIZE); red speaks for the class, blue against it."""
    from matplotlib.figure import Figure  # the `view` extra

    rows, width = len(predicted), 1 + len(columns)
    figure = Figure(figsize=(2.6 * width, 2.7 * rows), layout="constrained")
    axes = figure.subplots(rows, width, squeeze=False)
    for row, name in enumerate(predicted):
        axes[row, 0].imshow((pictures.x[row] + 0.5).permute(1, 2, 0).numpy())
        axes[row, 0].set_title(f"seen as: {name}")
        for axis, (title, maps) in zip(axes[row, 1:], columns.items(), strict=True):
            reach = float(maps[row].abs().quantile(0.995)) or 1.0
            axis.imshow(maps[row].numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach)
            axis.set_title(title)
    for axis in axes.flat:
        axis.set_axis_off()
    figure.savefig(path, dpi=120)


def run(out: Path, seed: int) -> dict[str, Any]:
    """Train, explain, write the picture; the report that `main` prints."""
    model = train(seed)
    unseen = draw(HELD_OUT, torch.Generator().manual_seed(seed + 1))
    with torch.no_grad():
        chosen = model(unseen.x).argmax(1)

    shown = Pictures(*(part[: len(SHAPES)] for part in unseen))
    plays = {
        "Stopping Game (gradient)": bp.StoppingGame(model).play(shown.x),
        "Routing Game (anchor)": bp.RoutingGame(model, alpha=2.0, beta=1.0, epsilon=0.5, tau=1.0).play(shown.x),
    }
    maps = {name: play.attribution().sum(1) for name, play in plays.items()}
    predicted = [SHAPES[k] for k in chosen[: len(SHAPES)].tolist()]
    path = out / "heatmap.png"
    save_figure(path, shown, predicted, maps)
    healths = {name: play.health() for name, play in plays.items()}
    return {
        "figure": str(path),
        "accuracy": (chosen == unseen.target).double().mean().item(),
        "shapes": [SHAPES[k] for k in shown.target.tolist()],
        "predicted": predicted,
        "object_share_of_picture": shown.mask.double().mean((1, 2)).tolist(),
        "object_share_of_map": {name: inside_share(heat, shown.mask).tolist() for name, heat in maps.items()},
        "health": {name: {"ok": h.ok, "summary": str(h), **asdict(h)} for name, h in healths.items()},
    }


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="backplay.demo", description="Explain generated pictures with a small network of its own.")
    parser.add_argument("--out", type=Path, default="out/demo", help="folder for heatmap.png (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="fixes pictures and training (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    if not 0 <= options.seed < 2**62:
        parser.error(f"--seed {options.seed}: give a whole number from 0 up, below 2**62")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("drawing needs matplotlib: pip install 'backplay[view]'")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=options.out):
            pass
    except OSError as error:
        parser.error(f"cannot write to --out {options.out}: {error.strerror}; name a folder that you may write to")

    torch.set_num_threads(1)  # quick enough, steady on a busy machine, and the same result whatever the number of cores
    report = run(options.out, options.seed)
    if options.json:
        print(json.dumps(report))
    else:
        print_report(report)
    return 0 if all(health["ok"] for health in report["health"].values()) else 1


def print_report(report: dict[str, Any]) -> None:
    print(f"network: {report['accuracy']:.1%} of {HELD_OUT} unseen pictures right")
    size = report["object_share_of_picture"]
    for name, shares in report["object_share_of_map"].items():
        mean, covered = sum(shares) / len(shares), sum(size) / len(size)
        print(f"{name}: {mean:.0%} of the map's mass on the object and its rim, {covered:.0%} of the picture")
    for name, health in report["health"].items():
        print(f"{name}: {health['summary']}")
    print(f"heat-map: {report['figure']}")


if __name__ == "__main__":
    sys.exit(main())
