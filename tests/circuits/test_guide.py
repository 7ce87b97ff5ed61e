"""The guide's examples run as they stand, one after the other."""

import re
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "inside.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert {p.name for p in tmp_path.iterdir()} == {"concepts.png", "circuit.png"}
    whole = names["play"].attribution()
    assert 0 < float(names["part"].share) < 1 and names["part"].attribution().shape == whole.shape
    parts = sum(names["play"].through("features.9", range(k, k + 32)).attribution() for k in range(0, 128, 32))
    assert torch.allclose(parts, whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))
