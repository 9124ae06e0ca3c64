"""The compiled pieces that receive files and changes, under sanitizers: their own tests, and no byte beyond theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = {
    ("packets", "small_files"): ("tests/unit/stores/test_packets.py", "tests/unit/transfer/test_small_files.py"),
    ("kernels",): (
        "tests/property/test_binlog_batches.py",
        "tests/property/test_plain_transactions.py",
        "tests/unit/changes/connection/test_results.py",
    ),
}


def sanitizers() -> str:
    """The libraries that have to be there before any other."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    found = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(path).is_absolute() for path in found):
        pytest.skip("no sanitizers")
    return " ".join(found)


@pytest.mark.real("C compiler")
@pytest.mark.parametrize("libraries", [("packets", "small_files"), ("kernels",)])
@pytest.mark.full
def test_compiled_pieces_touch_nothing_that_is_not_theirs(libraries: tuple[str, ...], tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": sanitizers(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "TIDEMARK_CFLAGS": "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all",
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "plugins"),
    }
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[libraries]]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert {path.name.split("-")[0] for path in (tmp_path / "tidemark").iterdir()} == set(libraries)
