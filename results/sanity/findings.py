"""What a run says of the paper's claims, as the tables of docs/sanity.md: `python results/sanity/findings.py RUN …`.

Each number is a mean over the samples of its cell; what a run has no rows of is left out.
"""

import sys

from backplay.bench.formats import barred
from backplay.sanity.config import Trial
from backplay.sanity.results import Results, Spread
from backplay.sanity.similarity import rank_correlations

PAIRS = ("intraclass", "interclass", "clean-random", "random-random")
GAMES = ("sg", "rg")


def numbers(found: list[Spread | None]) -> str:
    return ", ".join("–" if s is None else f"{s.mean:.3f} ± {s.std:.3f}" for s in found)


def shown(results: Results, network: str, kind: str) -> list[Trial]:
    """The experiments of a kind that have rows of a network."""
    return [trial for trial in results.trials(kind) if network in results.networks(trial)]


def walks(results: Results, network: str) -> dict[str, str]:
    """Lines of a network about its walks: the cascade, two random networks, noise, pairs of inputs."""
    lines: dict[str, str] = {}
    for trial in shown(results, network, "cascade"):
        cells = results.cells(trial, network)
        lines["images, steps"] = f"{len(results.samples(cells[-1], 'sg.distance'))}, {len(cells)}"
        for game in GAMES:
            ends = [results.spread(cells[k], f"{game}.distance") for k in (1, -1)]
            lines[f"{game.upper()} H after the first layer, at the end"] = numbers(ends)
            lines[f"{game.upper()} H_surv at the end"] = numbers([results.spread(cells[-1], f"{game}.surviving")])
    for trial in shown(results, network, "double-random"):
        for game in GAMES:
            spreads = [results.spread(results.cells(trial, network), f"{game}.{n}") for n in ("distance", "surviving")]
            count = spreads[0].count if spreads[0] else 0
            lines[f"{game.upper()} H, H_surv of two random networks"] = f"{numbers(spreads)} ({count})"
    for trial in shown(results, network, "separability"):
        for game in GAMES:
            for name, title in (("distance", "H"), ("surviving", "H_surv")):
                found = {c.given["pair"]: results.spread(c, f"{game}.{name}") for c in results.cells(trial, network)}
                lines[f"{game.upper()} {title} of pairs: {', '.join(PAIRS)}"] = numbers([found.get(p) for p in PAIRS])
    for trial in shown(results, network, "input-noise"):
        for game in GAMES:
            for cell in results.cells(trial, network):
                if cell.given["sigma"] == 0.1:
                    both = [results.spread(cell, f"{game}.{name}") for name in ("distance", "surviving")]
                    lines[f"{game.upper()} H, H_surv at σ = 0.1"] = numbers(both)
    return lines


def maps(results: Results, network: str) -> dict[str, str]:
    """Where the walks of both games are near their end and a map is not: the last such step of each method."""
    lines: dict[str, str] = {}
    for trial in shown(results, network, "cascade"):
        cells = results.cells(trial, network)
        for label in trial.methods:
            curve = [results.spread(cell, f"{label}.spearman") for cell in cells]
            if all(found is None for found in curve):
                continue
            far = [k for k in range(1, len(cells)) if curve[k] is not None and curve[k].mean > 0.5]
            lines[f"{label}: Spearman, HOG at the end"] = numbers(
                [results.spread(cells[-1], f"{label}.{n}") for n in ("spearman", "hog")]
            )
            if far:
                cell = cells[far[-1]]
                walked = [results.spread(cell, f"{game}.distance") for game in GAMES]
                step = f"step {cell.given['step']} of {cells[-1].given['step']}"
                lines[f"{label}: last step with Spearman above 0.5; SG H, RG H there"] = f"{step}; {numbers(walked)}"
    return lines


def overlaps(results: Results, network: str) -> dict[str, str]:
    """Whether BC_ord stays below its bound at every step and image, and H of the floor beside H at the end."""
    lines: dict[str, str] = {}
    for trial in shown(results, network, "cascade"):
        cells = results.cells(trial, network)
        for game in GAMES:
            pairs = [
                (results.samples(cell, f"{game}.ordinary").get(k), bound)
                for cell in cells[1:]
                for k, bound in results.samples(cell, f"{game}.bound").items()
            ]
            if pairs:
                above = sum(value is not None and value > bound for value, bound in pairs)
                lines[f"{game.upper()} BC_ord above its bound"] = f"{above} of {len(pairs)}"
        floors = [results.spread(cells[-1], f"sg.{name}") for name in ("floor", "distance")]
        lines["SG H of the floor, H at the end"] = numbers(floors)
    return lines


def ranks(results: Results, network: str) -> dict[str, str]:
    """Whether walks and maps rank images alike: the largest |ρ| between the two, and plain H beside H_surv."""
    lines: dict[str, str] = {}
    for trial in shown(results, network, "correlation"):
        cell = results.cells(trial, network)[-1]
        named = [f"{g}.{n}" for g in GAMES for n in ("distance", "surviving")]
        of_maps = [f"{label}.{n}" for label in trial.methods for n in ("spearman", "hog")]
        found = {metric: results.samples(cell, metric) for metric in (*named, *of_maps)}
        images = sorted(set().union(*found.values()))
        columns = {metric: [values.get(k, float("nan")) for k in images] for metric, values in found.items()}
        rho = dict(zip(columns, rank_correlations(columns).tolist(), strict=True))
        place = {metric: k for k, metric in enumerate(columns)}
        pairs = [(rho[a][place[b]], a, b) for a in named for b in of_maps]
        known = [pair for pair in pairs if pair[0] == pair[0]]
        value, a, b = max(known, key=lambda pair: abs(pair[0]))
        lines["ρ of a walk's and a map's readout, the largest"] = f"{value:+.2f} ({a}, {b}; {len(images)} images)"
        own = [rho[f"{game}.distance"][place[f"{game}.surviving"]] for game in GAMES]
        lines["ρ of H and H_surv: SG, RG"] = ", ".join(f"{value:+.2f}" for value in own)
    return lines


def main(folders: list[str]) -> None:
    columns: dict[str, dict[str, str]] = {}
    for folder in folders:
        results = Results(folder)
        for network in (n.name for n in results.config.networks):
            if any(network in results.networks(trial) for trial in results.config.trials):
                columns[network] = {}
                for part in (walks, maps, overlaps, ranks):
                    columns[network] |= part(results, network)
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(column.get(row, "–") for column in columns.values())] for row in rows]
    sys.stdout.write("".join(f"{barred(line)}\n" for line in lines))


if __name__ == "__main__":
    main(sys.argv[1:])
