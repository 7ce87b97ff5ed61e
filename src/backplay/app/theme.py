"""The looks of the page: fonts of the visitor's own system, quiet colours, light or dark as the system is."""

from __future__ import annotations

from gradio.themes import Base


def theme() -> Base:
    """Gradio's theme with nothing to fetch."""
    return Base(
        primary_hue="indigo",
        neutral_hue="slate",
        font=("system-ui", "-apple-system", "Segoe UI", "sans-serif"),
        font_mono=("ui-monospace", "Consolas", "monospace"),
        spacing_size="sm",
        text_size="md",
        radius_size="md",
    )
