"""The compiled pieces: no compiler has a warning for them; under sanitizers their own tests touch no byte beyond theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.native import load_library

ROOT = Path(__file__).parents[2]
TESTS = {
    ("packets", "small_files"): ("tests/unit/stores/test_packets.py", "tests/unit/transfer/test_small_files.py"),
    ("kernels",): (
        "tests/property/test_binlog_batches.py",
        "tests/property/test_plain_transactions.py",
        "tests/unit/changes/connection/test_results.py",
    ),
}


PIECES = (
    ("tidemark.stores.ssh", "packets.c"),
    ("tidemark.transfer.stream", "small_files.c"),
    ("tidemark.changes.binlog", "kernels.c"),
    ("tidemark.tsfiles.points", "kernels.c", "kernels_write.c", "kernels_index.c", "kernels_pages.c"),
)


@pytest.mark.real("C compiler")
def test_no_source_has_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a warning today is an error of the next compiler, and then Python silently does the work."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    monkeypatch.setenv("TIDEMARK_CFLAGS", "-O1 -Wall -Wextra -Werror")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [piece for piece in PIECES if load_library(*piece) is None] == []
    known = {f"{package.replace('.', '/')}/{source}" for package, *sources in PIECES for source in sources}
    assert known == {str(path.relative_to(ROOT / "plugins")) for path in (ROOT / "plugins").rglob("*.c")}


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
