"""Compile the package's C sources into libraries, for speed alone, and tune Python's garbage collector.

Each machine builds a library once with its own C compiler. Every caller has the same function in Python for machines
without a compiler. `TIDEMARK_PURE=1` selects Python alone. A library is kept in the user's cache under the digest of
its source and flags (docs/decisions/0012). `TIDEMARK_CFLAGS` adds flags, such as those of sanitizers.

The garbage collector would scan millions of rows and facts that hold no cycles, again and again. `collect_seldom`
makes it run rarely. `without_collector` turns it off inside a block. Both cost memory where cycles exist.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

_FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-fvisibility=hidden")
_BUILD_SECONDS = 120


def load_library(package: str, *sources: str) -> ctypes.CDLL | None:
    """Build and load the library of a package's concatenated C sources. None without a C compiler or a safe cache folder."""
    if os.environ.get("TIDEMARK_PURE", "") not in ("", "0"):
        return None
    import pkgutil  # here and below: imported only when a library is needed, for a quick start
    import subprocess

    texts = [pkgutil.get_data(package, source) for source in sources]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return ctypes.CDLL(str(_build_library(Path(sources[0]).stem, b"".join(text or b"" for text in texts))))
    return None


@lru_cache(maxsize=1)
def load_libcrypto() -> ctypes.CDLL | None:
    """The libcrypto that `hashlib` uses in this process, None if no shared libcrypto is loaded."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="surrogateescape")
        return ctypes.CDLL(next(line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libcrypto.so" in line))
    except (OSError, StopIteration):
        return None


def _build_library(name: str, source: bytes) -> Path:
    """The path of the built library. Raises OSError or SubprocessError if it cannot be built."""
    import platform

    flags = (*_FLAGS, *os.environ.get("TIDEMARK_CFLAGS", "").split())
    digest = hashlib.sha256(source + " ".join(flags).encode()).hexdigest()[:16]
    folder = _cache_folder()
    made = folder / f"{name}-{platform.machine()}-{digest}.so"
    if made.exists():
        return made
    import shutil
    import subprocess
    import tempfile

    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler")
    with tempfile.TemporaryDirectory(dir=folder) as work:
        text, built = Path(work, "source.c"), Path(work, "built.so")
        text.write_bytes(source)
        command = [compiler, *flags, "-o", str(built), str(text)]
        subprocess.run(command, check=True, capture_output=True, timeout=_BUILD_SECONDS)
        built.replace(made)  # atomic: several processes may build the same library at once
    return made


def _cache_folder() -> Path:
    """The cache folder, made if it is missing. Raises OSError if others can write to it."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    folder = Path(home, "tidemark")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"others can write to {folder}")
    return folder


def collect_seldom() -> None:
    """Make the garbage collector run rarely in this process. For processes that create many rows."""
    gc.set_threshold(100_000, 50, 50)


@contextmanager
def without_collector() -> Iterator[None]:
    """Turn the garbage collector off inside the block. For creating a million tuples at once."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
