"""Boxes, arrows and words as SVG. A picture has a ground of its own, so it can be read on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

STYLE = """
    .ground { fill: #ffffff; stroke: #d0d7de }
    .box { fill: #f6f8fa; stroke: #8c959f }
    .edge { fill: #ddf4ff; stroke: #218bff }
    .centre { fill: #dafbe1; stroke: #2da44e }
    .proof { fill: #fff8c5; stroke: #bf8700 }
    .faint { fill: none; stroke: #8c959f; stroke-dasharray: 4 3 }
    text { fill: #1f2328; font: 13px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif }
    .head { font-weight: 600; font-size: 14px }
    .small { font-size: 12px; fill: #57606a }
    .mono { font-family: ui-monospace, 'DejaVu Sans Mono', monospace; font-size: 12px }
    .way { stroke: #57606a; stroke-width: 1.6; fill: none }
    .back { stroke: #57606a; stroke-width: 1.4; fill: none; stroke-dasharray: 5 4 }
    .tip { fill: #57606a }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #161b22; stroke: #30363d }
      .box { fill: #21262d; stroke: #6e7681 }
      .edge { fill: #0c2d6b; stroke: #388bfd }
      .centre { fill: #0f5323; stroke: #3fb950 }
      .proof { fill: #4b2900; stroke: #d29922 }
      .faint { stroke: #6e7681 }
      text { fill: #e6edf3 }
      .small { fill: #9da7b3 }
      .way, .back { stroke: #9da7b3 }
      .tip { fill: #9da7b3 }
    }"""
LINE = 18  # from one line of words to the next


@dataclass
class Picture:
    """`says` is read out where the picture cannot be seen."""

    width: int
    height: int
    says: str
    parts: list[str] = field(default_factory=list)

    def box(self, place: tuple[int, int, int, int], head: str = "", lines: Sequence[str] = (), kind: str = "box") -> None:
        """A box at `place` (x, y, width, height), with a heading and lines below it, all centred."""
        x, y, width, height = place
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="7"/>')
        words = [(head, "head")] * bool(head) + [(line, "small") for line in lines]
        top = y + height / 2 - LINE * len(words) / 2 + 13
        for row, (text, look) in enumerate(words):
            self.words(x + width / 2, top + row * LINE, text, look, "middle")

    def words(self, x: float, y: float, text: str, look: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text class="{look}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def way(self, *corners: tuple[float, float], back: bool = False) -> None:
        """A line over these corners with a tip at its end; `back`: dashed."""
        tip = "M" + " L".join(f"{x:g} {y:g}" for x, y in corners)
        self.parts.append(f'<path class="{"back" if back else "way"}" d="{tip}" marker-end="url(#tip)"/>')

    def line(self, *corners: tuple[float, float]) -> None:
        self.parts.append('<path class="back" d="M' + " L".join(f"{x:g} {y:g}" for x, y in corners) + '"/>')

    def svg(self) -> str:
        inside = "\n  ".join(self.parts)
        return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" role="img">
  <title>{escape(self.says)}</title>
  <style>{STYLE}
  </style>
  <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
    <path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>
  <rect class="ground" x="1" y="1" width="{self.width - 2}" height="{self.height - 2}" rx="9"/>
  {inside}
</svg>
"""

    def write(self, path: Path) -> None:
        path.write_text(self.svg(), encoding="utf-8")
