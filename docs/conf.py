"""How Sphinx builds these pages: `make docs`, or `python -m sphinx -W docs out/docs`.

Nothing is fetched while they are built or read: no inventories of other projects, no fonts or scripts from elsewhere.
Notebooks are executed at every build, and an error in one of them ends it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of notebooks, which run side by side

import fields  # noqa: E402
import make_scaling  # noqa: E402
import make_tables  # noqa: E402

import backplay  # noqa: E402

project = "backplay"
author = "The backplay authors"
version = release = backplay.__version__

extensions = ["sphinx.ext.autodoc", "myst_nb", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_generated/*.md"]  # parts of other pages
# pages that stand in the contents once they are there
MAYBE = ("app", "results", "games", "questions", "inputs", "models", "rivals", "errors-and-health")

# ---------------------------------------------------------------- pages

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300  # seconds a cell; they take a few, and machines may be busy
nb_merge_streams = True
nb_ipywidgets_js = {}  # the default names scripts of other hosts

# ---------------------------------------------------------------- docstrings

default_role = "code"  # `x` in a docstring is code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

# ---------------------------------------------------------------- looks

html_theme = "furo"
html_title = f"backplay {release}"
html_static_path = ["_static"]
html_css_files = ["backplay.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#a3132f", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#f2837b", "color-brand-content": "#7fb3ea"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True


def setup(app: Any) -> None:
    """Tables and plots come from the source and from measurements, before any page is read."""
    folder = HERE / "_generated"
    make_tables.write(folder)
    make_scaling.write(folder)
    app.connect("autodoc-process-docstring", fields.add)
    app.connect("source-read", leave_out)


def leave_out(app: Any, page: str, source: list[str]) -> None:
    """Take pages that are not there out of the contents."""
    if page == "index":
        absent = {name for name in MAYBE if not (HERE / f"{name}.md").is_file()}
        source[0] = "".join(line for line in source[0].splitlines(keepends=True) if line.strip() not in absent)
