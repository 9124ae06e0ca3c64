"""The coverage as one HTML file: device × day, readable without network, script or colour vision.

Green: complete. Amber with a stroke: some files are missing. Red with a stroke: all are missing. Hollow with a dashed
border: unknown, after the site's last whole listing. Empty: nothing is expected. Days without any data are cut out of the
axis at a mark. A long axis is drawn in weeks or months. Consecutive cells of one kind are one rectangle, so a page of a
thousand devices and a year stays small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

from tidemark.proof.as_of import day_text
from tidemark.proof.coverage.cells import Coverage, SiteCoverage, Stretch
from tidemark.proof.page_style import STYLE, escape_html

_COLUMNS = 420  # at most; for more days, a column is a week, a month, a year …
_STEPS = (1, 7, 28, 91, 364)
_CELL, _ROW, _BREAK, _TOP = 14, 18, 10, 34
_LABEL = 76  # room for one date over a run of columns
_ROWS = 1_000  # devices drawn at most, those with red first
_WHYS = 200  # rows of the list below the map


@dataclass(frozen=True, slots=True)
class Axis:
    """Columns of `step` days each. `place`: column number → its x. `cuts`: x of places where days are left out."""

    step: int
    place: Mapping[int, int]
    cuts: tuple[int, ...]
    width: int

    def columns_of(self, stretch: Stretch) -> range:
        return range(stretch.first // self.step, stretch.last // self.step + 1)


@dataclass(frozen=True, slots=True)
class Bar:
    """Consecutive columns of a device with the same counts. `expected` and `present` are those of the worst day."""

    first: int
    last: int
    expected: int
    present: int
    unknown: bool = False


def render_page(coverage: Coverage) -> str:
    """Render the whole HTML page. Pure."""
    at = datetime.fromtimestamp(coverage.made, UTC).strftime("%Y-%m-%d %H:%M UTC")
    gaps = sum(len(s.gaps) for s in coverage.sites)
    totals = [
        ("ok" if coverage.is_complete else "bad", _format_percent(coverage.share), "of device-days complete"),
        ("", f"{coverage.cells:,}", "device-days expected"),
        ("bad" if coverage.red_cells else "", f"{coverage.red_cells:,}", "missing or incomplete"),
        ("bad" if gaps else "", f"{gaps:,}", "gaps in what was told"),
        ("unsure" if coverage.unknown_cells else "", f"{coverage.unknown_cells:,}", "unknown: after the last whole listing"),
    ]
    if (nodes := coverage.replicas) is not None:
        kind = "bad" if nodes.differ else "ok" if nodes.proved == nodes.copies else "unsure"
        totals.append((kind, f"{nodes.proved:,} of {nodes.copies:,}", "copies at data nodes proved"))
    boxes = "".join(f'<div class="{kind}"><b>{number}</b>{text}</div>' for kind, number, text in totals)
    sites = "".join(_render_site(site) for site in coverage.sites) or "<p>No site has told anything yet.</p>"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>Tidemark coverage: {escape_html(coverage.receiver)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>Coverage of {escape_html(coverage.receiver)}</h1>"
        f"<div class='faint'>device × day (UTC) · expected by the sites' inventories, present in the catalog · {at}</div>"
        f"<div class='totals'>{boxes}</div>{_LEGEND}{sites}</main></body></html>\n"
    )


_LEGEND = (
    "<div class='legend'>"
    "<span><svg width='14' height='14'><rect width='14' height='14' rx='2' class='ok'/></svg>every file is there</span>"
    "<span><svg width='14' height='14'><rect width='14' height='14' rx='2' class='some'/>"
    "<path d='M2 12L12 2' class='stroke'/></svg>some files are missing</span>"
    "<span><svg width='14' height='14'><rect width='14' height='14' rx='2' class='bad'/>"
    "<path d='M2 12L12 2' class='stroke'/></svg>all are missing</span>"
    "<span><svg width='14' height='14'><rect width='14' height='14' rx='2' class='unsure'/></svg>"
    "unknown: after the site's last whole listing</span>"
    "<span><svg width='14' height='14'><path d='M7 0V14' class='cut'/></svg>days without data left out</span>"
    "<span>empty: nothing expected</span></div>"
)


def _render_site(site: SiteCoverage) -> str:
    red = sum(1 for s in site.stretches if s.is_red)
    known = site.known_cells
    share = 1.0 - site.red_cells / known if known else float(not site.unknown_cells)
    date = f"<span class='{'late' if site.as_of.stale else 'faint'}'>{escape_html(site.as_of.text)}</span>"
    days = f"<span class='faint'>{_format_percent(share)} of {known:,} device-days</span>"
    head = f"<h2>{escape_html(site.site)} {days} {date}</h2>"
    gaps = "".join(f"<div class='gap'>{escape_html(gap)}</div>" for gap in site.gaps)
    gaps += "".join(f"<p class='faint'>{escape_html(note)}</p>" for note in site.notes)
    if not site.stretches:
        return f"{head}{gaps}<p class='faint'>Nothing is expected of this site.</p>"
    by_device = {d: list(group) for d, group in groupby(site.stretches, key=lambda s: s.device)}
    shown = sorted(by_device, key=lambda d: (not any(s.is_red for s in by_device[d]), d))[:_ROWS]
    more = (
        f"<p class='faint'>{len(by_device) - len(shown):,} more devices are complete.</p>" if len(by_device) > _ROWS else ""
    )
    table = _render_table(site) if red else ""
    return head + gaps + _render_map({d: by_device[d] for d in sorted(shown)}) + more + table


def _render_map(devices: Mapping[str, Sequence[Stretch]]) -> str:
    axis = axis_of([s for found in devices.values() for s in found])
    height = _TOP + _ROW * len(devices) + 6
    wide = f"{max(len(d) for d in devices) * 6.7 + 22:.0f}"
    names: list[str] = []
    rows: list[str] = []
    for number, (device, found) in enumerate(devices.items()):
        y = _TOP + number * _ROW
        bad = " class='bad'" if any(s.is_red for s in found) else ""
        names.append(f"<text x='10' y='{y + 13}'{bad}>{escape_html(device)}</text>")
        rows.extend(_render_bar(device, bar, y, axis) for bar in build_bars(found, axis))
    return (
        f"<div class='map'><div class='names'><svg width='{wide}' height='{height}'>{''.join(names)}</svg></div>"
        f"<div class='cells'><svg width='{axis.width + 12}' height='{height}' role='img' aria-label='coverage map'>"
        f"{''.join(_render_ticks(axis, height))}<g class='rows'>{''.join(rows)}</g></svg></div></div>"
    )


def axis_of(found: Sequence[Stretch]) -> Axis:
    """Build an axis of the columns that hold something, with the finest step that gives few enough columns."""
    days = sum(last - first + 1 for first, last in _merge_columns(found, 1))
    for step in (*_STEPS, 364 * (days // (364 * _COLUMNS) + 1)):
        spans = _merge_columns(found, step)
        if sum(last - first + 1 for first, last in spans) <= _COLUMNS:
            break
    place: dict[int, int] = {}
    cuts: list[int] = []
    x = 4
    for first, last in spans:
        if place:
            cuts.append(x + _BREAK // 2)
            x += _BREAK
        for column in range(first, last + 1):
            place[column] = x
            x += _CELL
        x = max(x, place[first] + _LABEL)
    return Axis(step, place, tuple(cuts), x)


def build_bars(found: Sequence[Stretch], axis: Axis) -> Iterator[Bar]:
    """Yield the stretches of one device as bars. A column of several days shows its worst one."""
    worst: dict[int, tuple[int, int, bool]] = {}
    for stretch in found:
        for column in axis.columns_of(stretch):
            cell = (stretch.expected, stretch.present, stretch.unknown)
            if column not in worst or _rank_badness(cell) > _rank_badness(worst[column]):
                worst[column] = cell
    bar: Bar | None = None
    for column in sorted(worst):
        fresh = Bar(column, column, *worst[column])
        if bar is not None and bar == replace(fresh, first=bar.first, last=column - 1):
            bar = replace(bar, last=column)
            continue
        if bar is not None:
            yield bar
        bar = fresh
    if bar is not None:
        yield bar


def _rank_badness(cell: tuple[int, int, bool]) -> tuple[int, bool]:
    """Return a sort key, more is worse: missing files rank above unknown days."""
    expected, present, unknown = cell
    return expected - present, unknown


def _merge_columns(found: Sequence[Stretch], step: int) -> list[tuple[int, int]]:
    """Return runs of columns with something in them, ordered."""
    spans: list[tuple[int, int]] = []
    for first, last in sorted((s.first // step, s.last // step) for s in found):
        if spans and first <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))
    return spans


def _render_bar(device: str, bar: Bar, y: int, axis: Axis) -> str:
    x, right = axis.place[bar.first], axis.place[bar.last] + _CELL
    first, last = day_text(bar.first * axis.step), day_text((bar.last + 1) * axis.step - 1)
    days = first if first == last else f"{first} … {last}"
    files = f"{bar.present} of {bar.expected} file{'s' if bar.expected != 1 else ''}"
    if bar.unknown:
        files = f"{files}, and nobody knows what else" if bar.expected else "unknown: after the last whole listing"
    title = f"<title>{escape_html(device)}\n{days}\n{files}</title>"
    box = f"x='{x}' y='{y + 2}' width='{right - x - 2}' height='{_ROW - 4}' rx='2'"
    if bar.present == bar.expected:
        return f"<rect {box} class='{'unsure' if bar.unknown else 'ok'}'>{title}</rect>"
    lefts = [axis.place[c] for c in range(bar.first, bar.last + 1)]
    strokes = "".join(f"M{left + 2} {y + _ROW - 4}L{left + _CELL - 4} {y + 4}" for left in lefts)
    kind = "some" if bar.present else "bad"
    return f"<g><rect {box} class='{kind}'>{title}</rect><path d='{strokes}' class='stroke' pointer-events='none'/></g>"


def _render_ticks(axis: Axis, height: int) -> Iterator[str]:
    """Yield dates over the columns, as many as fit, and marks of left-out days."""
    free = -1
    previous = None
    for column, x in axis.place.items():
        text = day_text(column * axis.step)
        month = text[:7]
        label = text if previous is None or column != previous + 1 else month if text[8:] == "01" else ""
        previous = column
        if label and x >= free:
            free = x + _LABEL
            yield f"<path d='M{x - 1} {_TOP - 10}V{height}' class='rule'/>"
            yield f"<text x='{x}' y='{_TOP - 14}' class='tick'>{label}</text>"
    for x in axis.cuts:
        yield f"<path d='M{x - 1} {_TOP - 6}V{height}' class='cut'/>"


def _render_table(site: SiteCoverage) -> str:
    red = [s for s in site.stretches if s.is_red]
    rows = []
    for s in red[:_WHYS]:
        days = day_text(s.first) if s.first == s.last else f"{day_text(s.first)} … {day_text(s.last)}"
        whys = [escape_html(why) for why in s.whys[:3]]
        whys += [f"and {len(s.whys) - 3} more"] if len(s.whys) > 3 else []
        counts = f"{s.present} of {s.expected}"
        cells = f"<td class='mono'>{escape_html(s.device)}</td><td>{days}</td><td>{counts}</td><td>{'<br>'.join(whys)}</td>"
        rows.append(f"<tr>{cells}</tr>")
    hidden = len(red) - len(rows)
    more = f"<p class='faint'>{hidden:,} more; all of them: ./tidemark coverage --json</p>" if hidden else ""
    head = "<tr><th>device</th><th>days</th><th>files</th><th>why</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>{more}"


def _format_percent(share: float) -> str:
    return "100 %" if share == 1.0 else f"{min(int(share * 10_000), 9_999) / 100:.2f} %"
