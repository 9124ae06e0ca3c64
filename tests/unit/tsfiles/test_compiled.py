"""The compiled decoders: memory-safe on any bytes, built once, and not missed where they cannot be built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.tsfiles.points import kernels as compiled

HERE = Path(__file__).parent
KERNELS = Path(compiled.__file__).with_name("kernels.c")
PROGRAM = "from tidemark.tsfiles.points.kernels import kernels; print(kernels() is not None)"


def ask(tmp_path: Path, **environment: str) -> str:
    """Whether a fresh process with an empty cache has compiled decoders."""
    paths = {"PYTHONPATH": str(KERNELS.parents[3]), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=paths | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.full
def test_no_page_leads_beyond_its_bytes(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path / "fuzz"
    names = {"KERNELS": "kernels.c", "INDEX": "kernels_index.c", "PAGES": "kernels_pages.c"}
    sources = [f'-D{word}="{KERNELS.with_name(name)}"' for word, name in names.items()]
    flags = ["-std=gnu11", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *sources]
    built = subprocess.run(
        [compiler, *flags, "-o", program, HERE / "kernels_fuzz.c"], capture_output=True, text=True, check=False
    )
    if built.returncode:
        pytest.skip(f"no sanitizers: {built.stderr[-200:]}")
    done = subprocess.run([program, "20000"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.full
def test_built_once_and_found_again(tmp_path: Path) -> None:
    if shutil.which("cc", path="/usr/bin:/bin") is None:
        pytest.skip("no C compiler")
    assert ask(tmp_path) == "True"
    (library,) = (tmp_path / "cache" / "tidemark").iterdir()
    made = library.stat().st_mtime_ns
    assert ask(tmp_path, PATH="/nowhere") == "True"
    assert library.stat().st_mtime_ns == made


@pytest.mark.full
def test_without_a_compiler_or_a_safe_cache_python_decodes(tmp_path: Path) -> None:
    assert ask(tmp_path, PATH="/nowhere") == "False"
    assert ask(tmp_path, TIDEMARK_PURE="1") == "False"
    (tmp_path / "cache" / "tidemark").chmod(0o777)  # somebody else could put a library there
    assert ask(tmp_path) == "False"
