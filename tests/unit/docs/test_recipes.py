"""The recipes of docs/verbs/read.md, run as they stand on a file that `read` wrote, compared with what was put in.

DuckDB and polars are not among what the tests install. Their recipes run where `bench merge` has put them, below
var/bench/peers; elsewhere the one of pyarrow stands for them, which reads the same file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.small_files import sealed, source

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "verbs" / "read.md"
PEERS = ROOT / "var" / "bench" / "peers"
RECIPE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HOUR = 3_600_000
A1, A2 = "root.plant1.line1.a1", "root.plant1.line1.a2"
POINTS = {
    A1: {"a_floa3": [(HOUR, 1), (HOUR + 1, 2), (2 * HOUR, 6)], "b": [(HOUR, 1)]},
    A2: {"a_floa3": [(HOUR + 5, 4)]},
}
HOURLY = [[A1, "1970-01-01T01", 1.5], [A1, "1970-01-01T02", 6.0], [A2, "1970-01-01T01", 4.0]]
ROWS = {  # how each package gives its result away
    "pandas": "hourly.reset_index().values.tolist()",
    "duckdb": "hourly.fetchall()",
    "polars": "hourly.rows()",
    "pyarrow": "[list(row.values()) for row in hourly.to_pylist()]",
}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("package", ROWS)
def test_a_recipe_gives_the_mean_of_each_device_and_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    if PathFinder.find_spec(package, [*sys.path, str(PEERS)]) is None:
        pytest.skip(f"{package} is not here: ./tidemark bench merge fetches it")
    edge = Commanded(tmp_path, monkeypatch)
    edge.put(source(1), sealed(POINTS))
    assert edge.sync().code == 0
    assert edge.run("read", "--out", str(tmp_path / "points.parquet")).code == 0

    [recipe] = [text for text in RECIPE.findall(PAGE.read_text(encoding="utf-8")) if text.startswith(f"import {package}")]
    told = f"import json; print(json.dumps([[d, t.strftime('%Y-%m-%dT%H'), m] for d, t, m in {ROWS[package]}]))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{recipe}\n{told}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PEERS), "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout.splitlines()[-1])) == HOURLY
