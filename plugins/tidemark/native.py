"""C sources of this package as libraries, for speed alone; and Python's collector of cycles.

A library is built once a machine with its own compiler. Whoever uses one has the same in Python for a machine where
none can be built. `TIDEMARK_PURE=1` asks for Python alone. A library lies in the user's cache under the digest of
its source and flags (docs/decisions/0012). `TIDEMARK_CFLAGS` adds flags, such as those of sanitizers.

The collector of cycles would go through millions of rows and facts that hold no cycles, again and again.
`collect_seldom` makes it run rarely, and `without_collector` not at all inside a block. Both cost memory where cycles
exist.
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
    """The library made of C sources that lie in a package, one after another. None without a C compiler, or without a place
    of our own for it."""
    if os.environ.get("TIDEMARK_PURE", "") not in ("", "0"):
        return None
    import pkgutil  # here and below: what only who builds needs is not loaded at every start
    import subprocess

    texts = [pkgutil.get_data(package, source) for source in sources]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return ctypes.CDLL(str(_build_library(Path(sources[0]).stem, b"".join(text or b"" for text in texts))))
    return None


@lru_cache(maxsize=1)
def load_libcrypto() -> ctypes.CDLL | None:
    """The library that `hashlib` itself uses; None where that is not a library of its own."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="surrogateescape")
        return ctypes.CDLL(next(line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libcrypto.so" in line))
    except (OSError, StopIteration):
        return None


def _build_library(name: str, source: bytes) -> Path:
    """OSError, SubprocessError where it cannot be made."""
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
        built.replace(made)  # several processes may build at once: each has a whole library to give
    return made


def _cache_folder() -> Path:
    """A folder that only this user can write to. OSError where there is none."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    folder = Path(home, "tidemark")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"others can write to {folder}")
    return folder


def collect_seldom() -> None:
    """For a process that makes many rows: looking for cycles among them was a tenth of a sync, of a check, of a transfer."""
    gc.set_threshold(100_000, 50, 50)


@contextmanager
def without_collector() -> Iterator[None]:
    """For a million new tuples at once."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
