"""Compare the recorded answers of the sites' own servers with what readers of the centre's catalog see."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from demo.stage import DemoSite
from tests.expected import SITES as ANSWERS


@dataclass(frozen=True)
class Verdict:
    """The comparison of a site: `rows` points read, `missing` ones of the server, `duplicates` and `foreign` ones read."""

    rows: int
    missing: int
    duplicates: int
    foreign: int

    @property
    def right(self) -> bool:
        return not (self.missing or self.duplicates or self.foreign)


def judge(read: Path, site: DemoSite) -> Verdict:
    """Compare a `read --tall` CSV with the server's answer, point by point: device, measurement, time, type and value."""
    with read.open(newline="", encoding="utf-8") as lines:
        got = Counter(tuple(row) for row in list(csv.reader(lines))[1:])
    expected = Counter(tuple(str(cell) for cell in row) for row in ANSWERS[site.version].rows())
    seen = set(got)
    cells = Counter(row[:3] for row in got.elements())
    return Verdict(
        rows=sum(got.values()),
        missing=sum((expected - got).values()),
        duplicates=sum(n - 1 for n in cells.values()),
        foreign=len(seen - set(expected)),
    )
