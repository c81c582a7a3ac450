"""One report as one HTML file: it asks nobody for anything and runs no script.

Pieces of markup go in, and rows of tables as plain values; a whole page comes out. Everything
that is not markup already is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from html import escape
from typing import Any

from twinbus.spark.report.charts import amount

Row = Mapping[str, Any]


class FirstRows(list[dict[str, Any]]):
    """The rows of a table that are shown, and how many it has in all."""

    def __init__(self, rows: Iterable[dict[str, Any]], total: int) -> None:
        super().__init__(rows)
        self.total = total


def total(rows: Sequence[Row]) -> int:
    return rows.total if isinstance(rows, FirstRows) else len(rows)


#: More rows than this are not shown; the tables as Parquet have them all.
ROWS_MAX = 500
# A text that should have some width of its own.
_LONG_CHARS = 40

_LIGHT = ("#2f6fde", "#e08a1e", "#2e9e6b", "#c8453b", "#7d5bd0", "#1a9aa8", "#b8578f", "#7a7f87")
_DARK = ("#6ea0ff", "#f3ad55", "#58c793", "#ef7a70", "#a98bf0", "#4cc3d0", "#df86b9", "#a5abb5")


def _colours(values: Sequence[str]) -> str:
    return "".join(f"--c{number}:{value};" for number, value in enumerate(values))


_CLASSES = "".join(
    f".s{n}{{fill:var(--c{n})}}.b{n}{{background:var(--c{n})}}"
    f".l{n}{{stroke:var(--c{n});fill:none;stroke-width:2}}"
    for n in range(len(_LIGHT))
)

_STYLE = (
    ":root{color-scheme:light dark;--back:#fff;--front:#1d2126;--soft:#667;--line:#dde1e6;"
    f"--good:#1f8a53;--bad:#c0352b;{_colours(_LIGHT)}}}"
    "@media(prefers-color-scheme:dark){:root{--back:#14171b;--front:#e4e7eb;--soft:#98a1ac;"
    f"--line:#30363e;--good:#58c793;--bad:#ef7a70;{_colours(_DARK)}}}}}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:1rem;"
    "background:var(--back);color:var(--front);font:16px/1.5 system-ui,sans-serif}"
    "h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}"
    "p.made{color:var(--soft)}.scroll{overflow-x:auto}"
    "svg{width:100%;min-width:34rem;height:auto;display:block}"
    "svg text{fill:var(--soft);font-size:12px}.grid{stroke:var(--line);fill:none}"
    ".mark{fill:var(--front)}"
    "table{border-collapse:collapse;width:100%;font-size:.9rem}"
    "th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);"
    "vertical-align:top;overflow-wrap:break-word;max-width:24rem}"
    "th{white-space:nowrap}td.number,th.number{text-align:right}"
    "td.number,td.time{white-space:nowrap}td.long{min-width:16rem}"
    "ul.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.4rem 0}"
    "ul.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}"
    ".verdict{font-size:2.2rem;font-weight:700;margin:1rem 0}.good{color:var(--good)}"
    ".bad{color:var(--bad)}" + _CLASSES
)


def page(title: str, parts: Sequence[str], made_at: datetime) -> str:
    """The whole file."""
    made = made_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        " style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="made">Made by Twinbus, {made}. Times are UTC.</p>'
        f"{''.join(parts)}</body></html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A part of the page; without any content it is left out."""
    inside = "".join(parts)
    return f"<section><h2>{escape(heading)}</h2>{inside}</section>" if inside else ""


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{escape(kind)}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """Rows as a table; all columns of the first row unless told which."""
    if not rows:
        return ""
    shown = list(columns or rows[0])
    kinds = {name: _kind([row.get(name) for row in rows[:ROWS_MAX]]) for name in shown}
    head = "".join(_cell("th", name.replace("_", " "), kinds[name]) for name in shown)
    body = "".join(
        f"<tr>{''.join(_cell('td', text(row.get(name)), kinds[name]) for name in shown)}</tr>"
        for row in rows[:ROWS_MAX]
    )
    more = total(rows) - ROWS_MAX
    rest = paragraph(f"{more:,} more rows are in the table's Parquet files.") if more > 0 else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{rest}"
    )


def text(value: Any) -> str:
    """A value as people read it, in a page and in a terminal alike."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_number(value):
        return amount(float(value))
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    if isinstance(value, list | tuple):
        return ", ".join(text(each) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{name}: {text(each)}" for name, each in value.items())
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _kind(values: Sequence[Any]) -> str:
    """How a column is laid out."""
    given = [value for value in values if value is not None]
    if given and all(_is_number(value) for value in given):
        return "number"
    if any(isinstance(value, date) for value in given):
        return "time"
    return "long" if any(len(text(value)) > _LONG_CHARS for value in given) else ""


def _cell(tag: str, inside: str, kind: str) -> str:
    return f'<{tag} class="{kind}">{escape(inside)}</{tag}>'
