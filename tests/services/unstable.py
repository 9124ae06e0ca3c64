"""Servers of the versions that Debian's unstable suite has, beside those of this machine.

The packages are fetched once into a cache, by apt with a list of its own, and unpacked there; nothing is installed. Their
programs are started by the loader of that tree.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.services.processes import PartMissing

FETCH_SECONDS = 300.0
_NOT_UNPACKED = re.compile(r"(lib)?perl")  # scripts of the packages need it, the programs do not
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def fetch_packages(name: str, packages: tuple[str, ...]) -> Path:
    """The folder with the files of packages and of what they need, in the cache `~/.cache/tidemark-<name>` or the one that
    `TIDEMARK_TEST_<NAME>_CACHE` names. Raises PartMissing where they cannot be fetched."""
    found = _try_fetch(name, packages)
    if isinstance(found, str):
        raise PartMissing(found)
    return found


def start_by_loader(root: Path, program: str, *words: str) -> list[str]:
    """The words that start a program below `root`, such as `usr/bin/mysqlbinlog`."""
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(root / program), *words]


@functools.cache
def _try_fetch(name: str, packages: tuple[str, ...]) -> Path | str:
    """The folder with the packages' files; or why there is none."""
    cache = Path(os.environ.get(f"TIDEMARK_TEST_{name.upper()}_CACHE", f"~/.cache/tidemark-{name}")).expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = cache / "root"
        if root.exists():
            return root
        work = Path(tempfile.mkdtemp(prefix=".fetch.", dir=cache))
        try:
            _fetch(work, packages)
            (work / "root").rename(root)
        except (OSError, subprocess.SubprocessError) as error:
            return f"{packages[0]} cannot be fetched from Debian's unstable suite: {error}"
        finally:
            shutil.rmtree(work)
    return root


def _fetch(work: Path, packages: Sequence[str]) -> None:
    listed = "\n".join(path.read_text() for path in Path("/etc/apt").glob("sources.list*/*") if path.is_file())
    listed += Path("/etc/apt/sources.list").read_text() if Path("/etc/apt/sources.list").exists() else ""
    mirror = re.search(r"https?://\S+/debian/?(?=\s|$)", listed)
    if mirror is None:
        raise OSError("apt has no source of Debian's packages")
    for folder in ("lists/partial", "cache/archives/partial", "root"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "list").write_text(f"deb [signed-by={_KEYS}] {mirror[0]} unstable main\n")
    settings = {
        "Dir::Etc::SourceList": work / "list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::State::Status": work / "status",
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
        "Acquire::http::Timeout": "30",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
    }
    apt = ["apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in settings.items())]
    _run([*apt, "update"])
    _run([*apt, "--download-only", "install", *packages])
    for package in sorted((work / "cache/archives").glob("*.deb")):
        if not _NOT_UNPACKED.match(package.name):
            _run(["dpkg-deb", "-x", str(package), str(work / "root")])


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    if done.returncode:
        raise OSError(f"{words[0]}: {(done.stderr or done.stdout)[-400:]}")
