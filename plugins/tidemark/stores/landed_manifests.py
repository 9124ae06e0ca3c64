"""Which landings lie at a receiver, and their manifests: whoever fills a landing may put anything there under any name."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.errors import PermanentError, PermissionDeniedError
from tidemark.stores.landing import MANIFEST, Manifest, landing_folder
from tidemark.stores.landing_papers import decode_manifest
from tidemark.untrusted_files import MOST_PAPER, UntrustedFile

_LOOK = "ls -ld shows its rights: give the user that Tidemark runs as access, or move it away; then run again"


def read_manifest(root: Path, path: str) -> Manifest:
    """The manifest at `path` below `root`. Raises CorruptionError, FileNotFoundError, PermissionDeniedError."""
    return decode_manifest(UntrustedFile(str(root), path).read(MOST_PAPER))


def landings_of(root: Path, site_id: str) -> list[tuple[str, str]]:
    """(landing, path of its manifest below `root`) of a site's whole landings, by name, and of those that nobody may look
    into. PermanentError where they cannot be listed."""
    site = root / "landing" / site_id
    if site.is_symlink():
        return []
    names = folder_names(site)[0]
    paths = [(name, f"{landing_folder(site_id, name)}/{MANIFEST}") for name in names]
    return [(name, path) for name, path in paths if _is_there(root / path)]


def _is_there(paper: Path) -> bool:
    try:
        paper.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # whoever reads it says why it cannot be
        return True
    return True


def folder_names(place: Path) -> tuple[list[str], list[str]]:
    """The folders in `place` by name, symlinks passed over, and those whose name is not UTF-8, readably.

    PermanentError where it cannot be listed: whoever sends may close a folder of its own, which costs that alone.
    """
    try:
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as refused:
        kind = PermissionDeniedError if isinstance(refused, PermissionError) else PermanentError
        raise kind(f"cannot list {place}: {refused.strerror}", hint=_LOOK, subject=str(place)) from refused
    odd = [name for name in names if readable_name(name) != name]
    return sorted(set(names) - set(odd)), sorted(map(readable_name, odd))


def readable_name(name: str) -> str:
    r"""A name as the file system gives it, with `\x..` for each byte that is not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
