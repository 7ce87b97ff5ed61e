"""A part of the page that is written in HTML, with the script that makes its buttons work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

_HERE = Path(__file__).parent
SCRIPT = (_HERE / "panel.js").read_text(encoding="utf-8")
STYLE = (_HERE / "page.css").read_text(encoding="utf-8")


def panel(value: str = "", **options: Any) -> Any:
    """An empty part of the page; its events are `pick`, `layer`, `choose` and `stop`."""
    return gr.HTML(value, js_on_load=SCRIPT, apply_default_css=False, **options)
