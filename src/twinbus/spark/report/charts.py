"""Charts as inline SVG: numbers and names go in, markup goes out.

Colours are classes (`s0`, `s1`, …) that the page's style gives a value for light and dark.
Every name that comes from outside is escaped here. Nothing needs a script: what the pointer
rests on is explained by the shape's own `<title>`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import count

WIDTH = 720
COLOURS = 8
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 26
_LABEL_CHARS_MAX = 28
_LANE_HEIGHT = 34


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a lane, from one time to another (seconds since 1970)."""

    start_s: float
    end_s: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a timeline; marks are moments with a text."""

    name: str
    spans: Sequence[Span]
    marks: Sequence[tuple[float, str]]


def stacked_bars(labels: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """A bar for each label, made up of a part for each series."""
    totals = [sum(values[i] for values in series.values()) for i in range(len(labels))]
    height = 240
    top = _nice_max(max(totals, default=0))
    plot_height = height - _TOP - _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    parts = [_grid(height, top)]
    for index, label in enumerate(labels):
        x = _LEFT + step * index
        y = float(height - _BOTTOM)
        for number, (name, values) in enumerate(series.items()):
            tall = plot_height * values[index] / top
            if tall <= 0:
                continue
            y -= tall
            parts.append(
                f'<rect class="s{number % COLOURS}" x="{x + step * 0.12:.1f}" y="{y:.1f}"'
                f' width="{step * 0.76:.1f}" height="{tall:.1f}">'
                f"<title>{escape(f'{label}, {name}: {amount(values[index])}')}</title></rect>"
            )
        if _is_labelled(index, len(labels)):
            parts.append(_text(x + step / 2, height - 8, label, "middle"))
    return _svg(height, "".join(parts)) + legend(list(series))


def bars(values: Sequence[tuple[str, float]]) -> str:
    """A lying bar for each name, the longest as wide as the picture."""
    top = max((value for _, value in values), default=0) or 1
    row, left = 26, 230
    parts = []
    for index, (name, value) in enumerate(values):
        y = index * row
        wide = (WIDTH - left - 90) * value / top
        parts.append(
            f"<g><title>{escape(f'{name}: {amount(value)}')}</title>"
            f"{_text(left - 8, y + 17, _short(name), 'end')}"
            f'<rect class="s0" x="{left}" y="{y + 5}" width="{max(1.0, wide):.1f}" height="16"/>'
            f"{_text(left + wide + 6, y + 17, amount(value), 'start')}</g>"
        )
    return _svg(max(row, row * len(values)), "".join(parts))


def curves(series: Mapping[str, Sequence[tuple[float, float]]], stepped: bool = False) -> str:
    """Values over time: points are (seconds since 1970, value). Stepped: they hold until the
    next one."""
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    height = 240
    first, last = _extent([at for at, _ in points])
    top = _nice_max(max(value for _, value in points))
    scale = _scale(first, last)
    parts = [_grid(height, top), _time_axis(first, last, height)]
    for number, (name, line) in enumerate(series.items()):
        path: list[str] = []
        for at, value in sorted(line):
            x = scale(at)
            y = height - _BOTTOM - (height - _TOP - _BOTTOM) * value / top
            if path and stepped:
                path.append(f"H{x:.1f}")
            path.append(f"{'L' if path else 'M'}{x:.1f},{y:.1f}")
        drawn = "".join(path)
        if len(line) == 1:
            drawn += "h3"
        parts.append(
            f'<path class="l{number % COLOURS}" d="{drawn}"><title>{escape(name)}</title></path>'
        )
    return _svg(height, "".join(parts)) + legend(list(series))


def heat(
    rows: Sequence[str], columns: Sequence[str], values: Mapping[tuple[int, int], float]
) -> str:
    """A field for each row and column, the stronger the larger; on a scale of logarithms."""
    row, left, width = 26, 230, WIDTH
    step = (width - left - _RIGHT) / max(1, len(columns))
    weights = {place: math.log1p(max(0.0, value)) for place, value in values.items()}
    low, high = min(weights.values(), default=0), max(weights.values(), default=0)
    parts = []
    for index, name in enumerate(rows):
        label = _text(left - 8, index * row + 17, _short(name), "end")
        parts.append(f"<g><title>{escape(name)}</title>{label}</g>")
    for (y, x), value in sorted(values.items()):
        strength = 0.1 + 0.9 * ((weights[y, x] - low) / (high - low) if high > low else 1)
        told = f"{rows[y]}, {columns[x]}: {amount(value)} ms"
        parts.append(
            f'<rect class="s0" x="{left + x * step:.1f}" y="{y * row + 2}"'
            f' width="{max(1.0, step - 1):.1f}" height="{row - 4}" opacity="{strength:.2f}">'
            f"<title>{escape(told)}</title></rect>"
        )
    height = row * len(rows) + 22
    for index, name in enumerate(columns):
        if _is_labelled(index, len(columns)):
            parts.append(_text(left + (index + 0.5) * step, height - 5, name, "middle"))
    return _svg(height, "".join(parts))


def timeline(lanes: Sequence[Lane], colours: Mapping[str, int]) -> str:
    """Lanes one above the other over one axis of time; `colours` has each kind of span."""
    moments = [at for lane in lanes for span in lane.spans for at in (span.start_s, span.end_s)]
    moments += [at for lane in lanes for at, _ in lane.marks]
    if not moments:
        return ""
    first, last = _extent(moments)
    scale = _scale(first, last)
    height = _LANE_HEIGHT * len(lanes) + _TOP + _BOTTOM
    parts = [_time_axis(first, last, height)]
    for index, lane in enumerate(lanes):
        y = _TOP + index * _LANE_HEIGHT
        parts.append(_text(_LEFT, y + 10, _short(lane.name, 80), "start"))
        for span in lane.spans:
            x = scale(span.start_s)
            parts.append(
                f'<rect class="s{colours[span.kind]}" x="{x:.1f}" y="{y + 14}"'
                f' width="{max(1.5, scale(span.end_s) - x):.1f}" height="14">'
                f"<title>{escape(span.text)}</title></rect>"
            )
        for at, text in lane.marks:
            parts.append(
                f'<circle class="mark" cx="{scale(at):.1f}" cy="{y + 21}" r="3">'
                f"<title>{escape(text)}</title></circle>"
            )
    return _svg(height, "".join(parts)) + legend(colours)


def legend(names: Sequence[str] | Mapping[str, int]) -> str:
    """What the colours mean; names in order have the colours in order."""
    numbered = names if isinstance(names, Mapping) else dict(zip(names, count(), strict=False))
    entries = "".join(
        f'<li><i class="b{number % COLOURS}"></i>{escape(name)}</li>'
        for name, number in numbered.items()
    )
    return f'<ul class="legend">{entries}</ul>'


def amount(value: float) -> str:
    """A number for people: whole where it is whole, else with three figures."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def clock(at_s: float, span_s: float) -> str:
    """A moment as it is written on an axis that covers so many seconds."""
    moment = datetime.fromtimestamp(at_s, UTC)
    if span_s > 2 * 86_400:
        return moment.strftime("%d %b %H:%M" if span_s < 14 * 86_400 else "%Y-%m-%d")
    return moment.strftime("%H:%M:%S" if span_s < 2 * 3600 else "%H:%M")


def _svg(height: float, inside: str) -> str:
    picture = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{inside}</svg>'
    return f'<div class="scroll">{picture}</div>'


def _grid(height: int, top: float) -> str:
    parts = []
    for quarter in range(5):
        y = height - _BOTTOM - (height - _TOP - _BOTTOM) * quarter / 4
        parts.append(f'<path class="grid" d="M{_LEFT},{y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, y + 4, amount(top * quarter / 4), "end"))
    return "".join(parts)


def _time_axis(first: float, last: float, height: int) -> str:
    scale = _scale(first, last)
    parts = []
    for fifth in range(5):
        at = first + (last - first) * fifth / 4
        anchor = ("start", "middle", "middle", "middle", "end")[fifth]
        parts.append(
            f'<path class="grid" d="M{scale(at):.1f},{_TOP}V{height - _BOTTOM}"/>'
            f"{_text(scale(at), height - 8, clock(at, last - first), anchor)}"
        )
    return "".join(parts)


def _scale(first: float, last: float) -> Callable[[float], float]:
    """Turns seconds into units of the picture."""
    per_second = (WIDTH - _LEFT - _RIGHT) / (last - first)
    return lambda at: _LEFT + (at - first) * per_second


def _extent(moments: Sequence[float]) -> tuple[float, float]:
    first, last = min(moments), max(moments)
    return first, last if last > first else first + 1


def _nice_max(value: float) -> float:
    """The next of 1, 2, 4, 5 or 8 times a power of ten: quarters of it read well."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 4, 5, 8, 10) if power * step >= value * 0.999)


def _is_labelled(index: int, count: int) -> bool:
    return index % max(1, math.ceil(count / 8)) == 0


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(name: str, chars_max: int = _LABEL_CHARS_MAX) -> str:
    return name if len(name) <= chars_max else name[: chars_max - 1] + "…"
