"""Tables in Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import backplay as bp
from backplay.bench.metrics import Metric
from backplay.bench.rows import SECONDS
from backplay.bench.tables import SYMBOLS, Entry, Finished, Row, number, words
from backplay.errors import KeywordError, instead

ARROWS = {"higher": "↑", "lower": "↓"}
LEGEND = (
    "Bold: best of the column. Italic: best of its block. In brackets: 95 % bootstrap interval of the mean. "
    "*: differs from the Routing anchor (paired sign-flip test, p < 0.05 after Holm). Time per image: median."
)


def write(tables: Sequence[Finished], form: str, time: bool = True) -> str:
    """All tables in a format; `time=False` leaves the time per image out, which no two runs have in common."""
    if form not in FORMATS:
        raise KeywordError(f"no format named {form!r}{instead(form, FORMATS)}.")
    return FORMATS[form](tables if time else [_timeless(table) for table in tables])


def _timeless(table: Finished) -> Finished:
    keep = [k for k, column in enumerate(table.columns) if column.name != SECONDS]
    rows = [Row(r.title, r.line, r.block, [r.entries[k] for k in keep]) for r in table.rows]
    columns = [table.columns[k] for k in keep]
    return Finished(table.title, table.network, table.data, table.split, table.varied, columns, rows, table.notes)


def value_text(entry: Entry, column: Metric) -> str:
    """The mean, three decimals; a time with three digits."""
    return _shown(entry.value, column)


def _shown(value: float | None, column: Metric) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.3g}" if column.name == SECONDS else f"{value:.3f}"


def interval_text(entry: Entry) -> str:
    return "" if math.isnan(entry.low) else f"[{entry.low:.3f}, {entry.high:.3f}]"


def heading(table: Finished) -> str:
    return f"{table.title}: {table.network} on {table.data} ({table.split})"


def labels(table: Finished, row: Row) -> list[str]:
    """The first columns of a row: method and parameters, or the values of what is varied."""
    if not table.varied:
        return [row.title, words(row.line.params) or "–"]
    info = bp.methods()[row.line.method]
    defaults = {name: param.default for name, param in info.params.items()}
    texts = [number((defaults | dict(row.line.params)).get(name, "–")) for name in table.varied]
    texts[0] += " (anchor)" if row.line.anchor else ""
    return texts


def first_columns(table: Finished) -> list[str]:
    return [SYMBOLS.get(name, name) for name in table.varied] or ["Method", "Config"]


def markdown(tables: Sequence[Finished]) -> str:
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Finished) -> str:
    head = [*first_columns(table), *(f"{c.title} {ARROWS[c.better]}" for c in table.columns)]
    lines = [f"### {heading(table)}", "", barred(head), barred(["---"] * len(head))]
    for row, before in zip(table.rows, [None, *table.rows[:-1]], strict=True):
        if before is not None and before.block != row.block and not table.varied:
            lines.append(barred([""] * len(head)))
        lines.append(barred([*labels(table, row), *map(_markdown_entry, row.entries, table.columns)]))
    lines += ["", LEGEND, *(f"- {note}" for note in table.notes), ""]
    return "\n".join(lines)


def barred(words: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(word.replace('|', chr(92) + '|') for word in words)} |"


def _markdown_entry(entry: Entry, column: Metric) -> str:
    text = value_text(entry, column)
    if text != "–":
        text = f"**{text}**" if entry.best else f"*{text}*" if entry.best_in_block else text
    text += "\\*" if entry.significant else ""
    span = interval_text(entry)
    text = f"{text} {span}" if span else text
    return text if entry.toggled is None else f"{_shown(entry.toggled, column)} / {text}"


def latex(tables: Sequence[Finished]) -> str:
    return "\n\n".join(_latex(table) for table in tables) + "\n"


def _latex(table: Finished) -> str:
    first = first_columns(table)
    head = [*map(tex, first), *(f"{tex(c.title)} ${_TEX_ARROWS[c.better]}$" for c in table.columns)]
    lines = [
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{tex(heading(table))}. {tex(_LATEX_LEGEND)}}}",
        "\\resizebox{\\textwidth}{!}{%",
        f"\\begin{{tabular}}{{@{{}}{'l' * len(first)} {'c' * len(table.columns)}@{{}}}}",
        "\\toprule",
        f"{' & '.join(head)} \\\\",
        "\\midrule",
    ]
    groups = _groups(table)
    for k, group in enumerate(groups):
        if k and not table.varied:
            new_block = group[0].block != groups[k - 1][0].block
            lines.append("\\specialrule{1.2pt}{2pt}{2pt}" if new_block else "\\midrule")
        lines += [_latex_row(table, row, len(group), place) for place, row in enumerate(group)]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "}%", "\\end{table}"])


_TEX_ARROWS = {"higher": "\\uparrow", "lower": "\\downarrow"}
_LATEX_LEGEND = (
    "Red: best of the column. Gray: best of its block. Small: 95 % bootstrap interval. "
    "*: differs from the Routing anchor, paired sign-flip test, p < 0.05 after Holm"
)


def _groups(table: Finished) -> list[list[Row]]:
    """Rows of the same method, which follow each other."""
    groups: list[list[Row]] = []
    for row in table.rows:
        if groups and groups[-1][0].line.method == row.line.method:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _latex_row(table: Finished, row: Row, of: int, place: int) -> str:
    first = [tex(label) for label in labels(table, row)]
    if not table.varied and of > 1:
        first[0] = f"\\multirow{{{of}}}{{*}}{{{first[0]}}}" if place == 0 else ""
    return f"{' & '.join([*first, *map(_latex_entry, row.entries, table.columns)])} \\\\"


def _latex_entry(entry: Entry, column: Metric) -> str:
    text = value_text(entry, column)
    if text == "–":
        return "--"
    if entry.best:
        text = f"\\textcolor{{red}}{{\\textbf{{{text}}}}}"
    elif entry.best_in_block:
        text = f"\\textcolor{{black!60}}{{\\textbf{{{text}}}}}"
    text += "*" if entry.significant else ""
    span = interval_text(entry)
    if entry.toggled is not None:
        on = _shown(entry.toggled, column)
        return (
            f"\\begin{{tabular}}[c]{{@{{}}c@{{}}}}{on}\\\\\\textcolor{{gray!70}}{{\\scriptsize {text}}}\\end{{tabular}}"
        )
    return f"{text} {{\\tiny {span}}}" if span else text


_TEX = {
    "τ": r"$\tau$", "λ_sm": r"$\lambda_{\mathrm{sm}}$", "λ_ent": r"$\lambda_{\mathrm{ent}}$", "λ": r"$\lambda$",
    "σ²": r"$\sigma^2$", "σ": r"$\sigma$", "ε_attn": r"$\varepsilon_{\mathrm{attn}}$", "ε": r"$\varepsilon$",
    "γ_conv": r"$\gamma_{\mathrm{conv}}$", "γ_lin": r"$\gamma_{\mathrm{lin}}$", "γ": r"$\gamma$", "α": r"$\alpha$",
    "β": r"$\beta$", "Φ̃": r"$\tilde\Phi$", "N_steps": r"$N_{\mathrm{steps}}$", "w_r": r"$w_r$", "×": r"$\times$",
    "PF_5": "PF$_5$", "PF_20": "PF$_{20}$", "PF_100": "PF$_{100}$", "|z|": r"$|z|$", "–": "--", "%": r"\%",
    "&": r"\&", "#": r"\#", "_": r"\_", "<": "$<$", "|ρ|": r"$|\rho|$", "↓": r"$\downarrow$",
    "H_surv": r"$H_{\mathrm{surv}}$", "H_perm": r"$H_{\mathrm{perm}}$", "BC_ord": r"$BC_{\mathrm{ord}}$",
}  # fmt: skip
_TEX_PATTERN = re.compile("|".join(map(re.escape, sorted(_TEX, key=len, reverse=True))))


def tex(text: str) -> str:
    """Text as LaTeX writes it, symbols as mathematics."""
    return _TEX_PATTERN.sub(lambda found: _TEX[found.group()], text)


def comma_separated(tables: Sequence[Finished]) -> str:
    """One line a row and metric: everything that the other formats show, and the numbers behind it in full."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(RECORD)
    for record in records(tables):
        writer.writerow([_csv(value) for value in record.values()])
    return out.getvalue()


def _csv(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return "" if value is None else str(value)


RECORD = (
    *("table", "model", "data", "split", "block", "method", "params", "metric"),
    *("mean", "low", "high", "samples", "p_anchor", "best", "best_in_block", "toggled"),
)


def records(tables: Sequence[Finished], time: bool = True) -> list[dict[str, Any]]:
    """One record a row and metric, by the names in RECORD; a number that is not there is NaN or None."""
    found: list[dict[str, Any]] = []
    for table in tables if time else map(_timeless, tables):
        for row in table.rows:
            where = (table.title, table.network, table.data, table.split, row.block, row.line.method)
            for entry, column in zip(row.entries, table.columns, strict=True):
                numbers = (entry.value, entry.low, entry.high, entry.count, entry.p)
                marks = (entry.best, entry.best_in_block, entry.toggled)
                values = (*where, row.line.cell.params, column.name, *numbers, *marks)
                found.append(dict(zip(RECORD, values, strict=True)))
    return found


def page(tables: Sequence[Finished], after: Callable[[Finished, Row], str] | None = None) -> str:
    """One page with all tables; `after` adds something behind the table for each row: its maps."""
    body = "\n".join(_html(table, after) for table in tables)
    return f"{_PAGE}<body>\n{body}\n<p>{html.escape(LEGEND)}</p>\n</body></html>\n"


_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>backplay bench</title><style>
body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:100em}table{border-collapse:collapse}
td,th{padding:.2em .6em;text-align:right;white-space:nowrap}td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}
thead th{border-bottom:2px solid #000}tr.block td{border-top:2px solid #000}tr.method td{border-top:1px solid #bbb}
.best{color:#c00;font-weight:bold}.in-block{color:#666;font-weight:bold}small{color:#777}
figure{display:inline-block;margin:.5em}figcaption{font-size:12px}</style></head>
"""


def _html(table: Finished, after: Callable[[Finished, Row], str] | None) -> str:
    head = [*first_columns(table), *(f"{c.title} {ARROWS[c.better]}" for c in table.columns)]
    lines = [f"<h2>{html.escape(heading(table))}</h2>", "<table><thead><tr>"]
    lines += [f"<th>{html.escape(word)}</th>" for word in head]
    lines.append("</tr></thead><tbody>")
    before: Row | None = None
    for row in table.rows:
        new = before is not None and before.line.method != row.line.method
        kind = "block" if before is not None and before.block != row.block else "method" if new else ""
        cells = [html.escape(label) for label in labels(table, row)]
        cells += [_html_entry(entry, column) for entry, column in zip(row.entries, table.columns, strict=True)]
        lines.append(f'<tr class="{kind}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
        before = row
    lines.append("</tbody></table>")
    lines += [f"<p><small>{html.escape(note)}</small></p>" for note in table.notes]
    lines += [after(table, row) for row in table.rows] if after is not None else []
    return "\n".join(lines)


def _html_entry(entry: Entry, column: Metric) -> str:
    kind = "best" if entry.best else "in-block" if entry.best_in_block else ""
    text = f'<span class="{kind}">{value_text(entry, column)}</span>' if kind else value_text(entry, column)
    text += "*" if entry.significant else ""
    if entry.toggled is not None:
        return f"{_shown(entry.toggled, column)}<br><small>{text}</small>"
    span = interval_text(entry)
    return f"{text} <small>{span}</small>" if span else text


FORMATS: dict[str, Callable[[Sequence[Finished]], str]] = {
    "md": markdown,
    "latex": latex,
    "csv": comma_separated,
    "html": page,
}
