"""The command line as a user types it: what it prints, how it ends."""

import textwrap

from backplay.cli import main

NETWORKS = textwrap.dedent("""
    import time
    import torch
    from torch import nn

    def small():
        torch.manual_seed(3)
        layers = [nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 15 * 15, 5)]
        names = ["ant", "bee", "cat", "dog", "elk"]
        return nn.Sequential(*layers), {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3, "classes": names}

    def cubic():
        class Cubic(nn.Module):
            def forward(self, x):
                return torch.special.bessel_j0(x).mean((2, 3))
        return Cubic(), {"size": 8}

    def several():
        class Bent(nn.Module):
            def forward(self, x):
                return torch.special.bessel_j0(x)
        class Airy(nn.Module):
            def forward(self, x):
                return torch.special.airy_ai(x)
        layers = [nn.Conv2d(3, 4, 3), Bent(), nn.Conv2d(4, 4, 3), Airy(), Bent(), nn.Flatten(), nn.Linear(64, 2)]
        return nn.Sequential(*layers), {"size": 8}

    def wrong():
        return small()[0], {"size": 16}

    def dense():
        return nn.Conv2d(3, 4, 3), {"size": 8}

    def slow():
        print("started", flush=True)
        time.sleep(60)
""")


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def fails(capsys, *arguments, words=(), code=None):
    """One clear line on standard error, nothing on standard output."""
    found, out, err = run(capsys, *arguments)
    assert found not in (0, None) and (code is None or found == code), (found, out, err)
    assert out == "" and err.count("\n") == 1 and err.startswith("backplay"), err
    assert all(word in err for word in words), err
