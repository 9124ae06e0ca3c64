"""Draw what `./tidemark bench cluster` found: python -m bench.cluster_picture [PAPER] [SVG]

Two curves a contender over the size of the cluster, a point a doubling of it: how much the fullest group holds of what it
would hold if slots were spread as evenly as can be, and how many bytes a change moves to the share of one node.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {
    "bytes": "#0072b2",
    "slots": "#009e73",
    "compat": "#d55e00",
    "ring with 128 virtual nodes": "#8c6bb1",
    "rendezvous hashing": "#b8860b",
    "jump hashing": "#777777",
}
NAMES = {
    "bytes": 'balance = "bytes"',
    "slots": 'balance = "slots"',
    "compat": 'balance = "compat"',
    "ring with 128 virtual nodes": "ring, 128 virtual nodes",
}
WIDTH, HEIGHT, LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT, GAP = 1100, 400, 56, 66, 340, 270, 204
Point = tuple[float, float]


def draw(arguments: Sequence[str]) -> int:
    paper, picture = (*arguments, *("var/bench/cluster.json", "docs/pictures/cluster-scale.svg")[len(arguments) :])
    found = json.loads(Path(paper).read_text(encoding="utf-8"))
    Path(picture).write_text(drawn({**found["ours"], **found["peers"]}), encoding="utf-8")
    return 0


def drawn(contenders: Mapping[str, Any]) -> str:
    rows = {name: contenders[name]["by_size"] for name in COLOURS}
    level = {name: [(_middle(row), row["above_level"]["median"]) for row in found] for name, found in rows.items()}
    moved = {name: [(_middle(row), row["moved_to_share"]) for row in found] for name, found in rows.items()}
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            '<text x="16" y="26" font-size="16" fill="#222222">A cluster from 3 to 1,000 nodes, 10,000 slots, '
            "bytes by Zipf's law</text>",
            *_plot(LEFT, "fullest group to the level, median (1: as even as can be)", level, (1, 1.5, 2, 3, 4)),
            *_plot(
                LEFT + PLOT_WIDTH + GAP, "bytes moved by a change, to the share of one node", moved, (0.5, 1, 2, 5, 10, 20)
            ),
            "</svg>\n",
        ]
    )


def _middle(row: Mapping[str, Any]) -> float:
    """Nodes, in the middle of a doubling; the first one begins with 3, the last one ends with 1,000."""
    return math.sqrt(max(3, row["from_nodes"]) * min(1000, 2 * row["from_nodes"]))


def _plot(left: int, title: str, curves: Mapping[str, Sequence[Point]], ticks: Sequence[float]) -> list[str]:
    """Both axes logarithmic. Names stand at the ends of their curves, moved apart where they would meet."""
    low, high = ticks[0] * 0.93, max([ticks[-1], *(y for points in curves.values() for _, y in points)]) * 1.05
    bottom = TOP + PLOT_HEIGHT

    def at(point: Point) -> Point:
        x = left + PLOT_WIDTH * math.log(point[0] / 3) / math.log(1000 / 3)
        return x, bottom - PLOT_HEIGHT * math.log(max(point[1], low) / low) / math.log(high / low)

    marks = [f'<text x="{left}" y="{TOP - 14}" fill="#222222" font-weight="bold">{title}</text>']
    for tick in ticks:
        _, y = at((3, tick))
        marks.append(f'<line x1="{left}" x2="{left + PLOT_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        marks.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{tick:g}</text>')
    for nodes in (3, 10, 30, 100, 300, 1000):
        x, _ = at((nodes, low))
        marks.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="#999999"/>')
        marks.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle" fill="#555555">{nodes:,}</text>')
    marks.append(f'<text x="{left + PLOT_WIDTH}" y="{bottom + 40}" text-anchor="end" fill="#555555">nodes</text>')
    ends = {name: at(points[-1]) for name, points in curves.items()}
    for name, points in curves.items():
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, points))
        width = 3 if name == "bytes" else 1.7
        marks.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}" stroke-width="{width}"/>')
    for name, y in _apart(ends).items():
        x = left + PLOT_WIDTH + 14
        marks.append(f'<line x1="{ends[name][0]:.1f}" y1="{ends[name][1]:.1f}" x2="{x - 3}" y2="{y - 4:.1f}" ')
        marks[-1] += f'stroke="{COLOURS[name]}" stroke-width="0.7"/>'
        marks.append(f'<text x="{x}" y="{y:.1f}" fill="{COLOURS[name]}">{NAMES.get(name, name)}</text>')
    return marks


def _apart(ends: Mapping[str, Point], least: float = 16) -> dict[str, float]:
    """Where names are written, from the lowest curve up."""
    placed: dict[str, float] = {}
    above = math.inf
    for name in sorted(ends, key=lambda name: -ends[name][1]):
        above = min(ends[name][1] + 4, above - least)
        placed[name] = above
    return placed


if __name__ == "__main__":
    sys.exit(draw(sys.argv[1:]))
