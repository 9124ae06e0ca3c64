"""A deployment of small files, and the command run in this process: `run("sync", "plant1")` as a user would type it.

Files are checked and merged in this process too (the pool's children take a second to start). For tests of what goes
wrong around a run; `assert_in_step` is what must be true once it went right.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.centre import run_inline
from tests.small_files import sealed
from tidemark.cli.main import main
from tidemark.formats.layout import MANIFEST, RECEIPT, landed_path

SITE_ID = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
HALF = (".part", ".blocks", ".tmp")  # ends of names that are not final
Row = tuple[str, str, str, str, str]


def run_here(config: Path, *words: str) -> Said:
    """`./tidemark --config CONFIG WORDS --json` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["--config", str(config), *words, "--json"])
    return Said(code, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return answer

    def refused(self, code: int, *says: str) -> None:
        """It failed as CONTRACT §1 wants: the code, one JSON object, the thing named, a next step, no traceback."""
        assert self.code == code, self
        assert (self.json["ok"], self.json["kind"]) == (False, code)
        assert self.json["hint"], self
        assert all(text in self.json["error"] for text in says), self
        assert "Traceback" not in self.out + self.err, self


@dataclass
class Commanded:
    """One site, one receiver, one link `plant1`. `store`: the site's address where it is not this folder."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    store: str = "site"
    centre: str = "centre"
    site_keys: Mapping[str, Any] = field(default_factory=dict)
    link_keys: Mapping[str, Any] = field(default_factory=dict)
    receiver_keys: Mapping[str, Any] = field(default_factory=dict)
    ledger: str = ""
    sealed: dict[str, dict[str, bytes]] = field(default_factory=dict)  # what the site holds now
    ever: set[bytes] = field(default_factory=set)  # every TsFile it ever held

    def __post_init__(self) -> None:
        run_inline(self.monkeypatch)
        for data in ("sequence", "unsequence"):
            (self.site / "data" / data).mkdir(parents=True)
        self.write_settings()

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def root(self) -> Path:
        """The receiver's folder."""
        return self.folder / "centre"

    def write_settings(self) -> None:
        tables = {
            "receivers.centre": {"store": self.centre, **self.receiver_keys},
            "sites.plant1": {"id": SITE_ID, "store": self.store, **self.site_keys},
            "links.plant1": {"site": "plant1", **self.link_keys},
            **({"ledger": {"url": self.ledger}} if self.ledger else {}),
        }
        lines = [
            f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()) for name, keys in tables.items()
        ]
        (self.folder / "tidemark.toml").write_text("".join(lines))

    def seal(self, number: int, database: str = "root.sg", points: int = 3, device: str = "") -> str:
        """A sealed file of one device of its own; its source path."""
        device = device or f"{database}.d{number}"
        parts = sealed({device: {"s": [(t, 100 * number + t) for t in range(1, points + 1)]}})
        path = f"data/sequence/{database}/0/0/{1_600_000_000_000 + number}-{number}-0-0.tsfile"
        self.put(path, parts)
        return path

    def put(self, path: str, parts: Mapping[str, bytes]) -> None:
        self.sealed[path] = dict(parts)
        self.ever.add(parts[""])
        for end, data in parts.items():
            place = self.site / (path + end)
            place.parent.mkdir(parents=True, exist_ok=True)
            before = place.stat().st_mtime if place.exists() else 0.0
            place.write_bytes(data)
            if before:  # a file is known by the second it was written in: a later content comes in a later one
                later = max(before + 1, place.stat().st_mtime)
                os.utime(place, (later, later))

    def run(self, *words: str) -> Said:
        """`./tidemark WORDS --json`."""
        return run_here(self.folder / "tidemark.toml", *words)

    def sync(self, *words: str) -> Said:
        return self.run("sync", "plant1", *words)

    def rows(self) -> list[Row]:
        out = self.folder / "read.csv"
        assert self.run("read", "--tall", "--out", str(out)).code == 0
        with out.open(newline="") as file:
            return [(r[0], r[1], r[2], r[3], r[4]) for r in list(csv.reader(file))[1:]]

    def devices(self) -> list[str]:
        return sorted({row[0] for row in self.rows()})

    def assert_no_half_file(self) -> None:
        """Whatever bears a final name at the receiver is whole: it is what the site had, or a paper that can be read."""
        known = {landed_path(path + end): data for path, parts in self.sealed.items() for end, data in parts.items()}
        for place in (self.root / "landing").rglob("*"):
            if place.is_dir() or place.name.endswith(HALF):
                continue
            if place.name in (MANIFEST, RECEIPT):
                json.loads(place.read_bytes())
                continue
            source = "/".join(place.relative_to(self.root / "landing").parts[2:])
            assert place.read_bytes() == known[source], place
        for place in (self.root / "data").rglob("*.tsfile"):
            assert place.read_bytes() in self.ever, place

    def assert_in_step(self, *without: str) -> None:
        """A further run has nothing to do, nothing is half or twice, and readers see every sealed file but `without`."""
        again = self.sync()
        assert (again.code, again.json["state"]) == (0, "nothing"), again
        self.assert_no_half_file()
        assert not [p for p in self.root.rglob("*") if p.name.endswith(HALF)]
        rows = self.rows()
        assert len(rows) == len(set(rows))
        papers = [json.loads(p.read_bytes()) for p in (self.root / "landing").rglob(MANIFEST)]
        sent = [(f["path"], f["generation"]) for paper in papers for f in paper["files"]]
        assert len(sent) == len(set(sent)), "sent twice"
        assert sorted(paper["sequence"] for paper in papers) == list(range(1, len(papers) + 1))
        wanted = self.run("coverage").json
        assert wanted["complete"] is not bool(without), wanted
        assert {path for path, _ in sent} >= set(self.sealed) - set(without)


def row(database: str, number: int, time: int) -> Row:
    """A point of the file that `seal(number, database)` makes."""
    return (f"{database}.d{number}", "s", str(time), "INT64", str(100 * number + time))
