"""A page in one file: sections with pictures first, a few words, numbers below; nothing is fetched from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

# nothing may be loaded but what the page itself holds
_ALONE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:68rem;padding:1rem;background:#fff;color:#111;
  font:1rem/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.5rem;margin:.3rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-top:1px solid #ddd;padding-top:1rem}
p{max-width:44rem;margin:.6rem 0}
.pictures{display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-start}
figure{margin:0;flex:1 1 24rem;max-width:32rem;min-width:0}
img{display:block;width:100%;height:auto}
figcaption{font-size:.85rem;color:#444;margin-top:.2rem}
.numbers{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem .2rem 0;text-align:right;border-bottom:1px solid #eee;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
"""


@dataclass(frozen=True)
class Shot:
    """A picture, or a piece of HTML in its place, with what it shows."""

    caption: str
    png: bytes = b""
    html: str = ""

    def write(self) -> str:
        encoded = base64.b64encode(self.png).decode()
        shown = f'<img alt="{escape(self.caption)}" src="data:image/png;base64,{encoded}">' if self.png else self.html
        return f"<figure>{shown}<figcaption>{escape(self.caption)}</figcaption></figure>"


@dataclass(frozen=True)
class Section:
    """Pictures, two sentences, and a table of numbers: its first row is the head."""

    title: str
    shots: Sequence[Shot]
    words: str
    numbers: Sequence[Sequence[str]] = field(default_factory=list[Sequence[str]])

    def write(self) -> str:
        shots = "".join(shot.write() for shot in self.shots)
        return (
            f'<section><h2>{escape(self.title)}</h2><div class="pictures">{shots}</div>'
            f"<p>{escape(self.words)}</p>{self._table()}</section>"
        )

    def _table(self) -> str:
        if not self.numbers:
            return ""
        head, *rows = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in self._rows()]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div class="numbers"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

    def _rows(self) -> list[tuple[str, Sequence[str]]]:
        return [("th" if k == 0 else "td", row) for k, row in enumerate(self.numbers)]


def write_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page as a whole."""
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_ALONE)}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(section.write() for section in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><h1>{escape(title)}</h1><p>{escape(lead)}</p>\n{body}\n</body></html>\n"
    )
