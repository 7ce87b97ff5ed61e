"""The guide: its examples run, in order."""

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "text.md"


def test_examples_run(capsys):
    """Each block goes on where the one before it ended."""
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    said = capsys.readouterr().out.splitlines()[-2:]
    decisive = names["reviews"].decisive[0]
    assert any(f"because of {word!r}" in said[0] for word in decisive), said
    assert f"because of {names['reviews'].cue[0]!r}" in said[1], said
