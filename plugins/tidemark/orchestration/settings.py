"""The settings behind the DAGs: `tidemark.toml`, or its last valid edition while the file is broken.

A broken edit must not hide every link's DAG and stop every link. As with a server's reload, the last valid edition stays in
force, and `dags/tidemark_settings.py` shows the error with its line as an import error until it is corrected. The edition is
kept in AIRFLOW_HOME, which the DAG processor and the tasks share, with its relative paths resolved.

Editors save in place: for a moment the file is empty, or ends early, and is valid with fewer links. So what was read counts
only if nobody wrote the file, or one that it includes, for a moment before.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import time
from collections.abc import Mapping
from pathlib import Path

from tidemark.errors import UsageError
from tidemark.settings import model
from tidemark.settings.load import find_settings, load_settings
from tidemark.settings.model import Settings

log = logging.getLogger(__name__)
EDITION = "settings.last-sound"
STILL_SECONDS = 0.3  # without writes for so long, a file is whole: editors do not pause longer
PATIENCE_SECONDS = 5.0  # for a file that is written without end


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Return the present settings. Raises UsageError that names file, line and key."""
    return load_settings(None, environ)


def load_sound_settings(environ: Mapping[str, str]) -> Settings:
    """Return the present settings, or the last valid ones. Raises UsageError if there never were any."""
    try:
        settings = _read_still(environ)
    except UsageError as broken:
        settings = _read_edition(environ) or _raise_error(broken)
        log.warning("%s\nGoing on with the last sound edition of these settings.", broken.message)
        return settings
    _keep_edition(settings, environ)
    return settings


def _read_still(environ: Mapping[str, str]) -> Settings:
    """Read the settings from files that nobody wrote meanwhile. Errors as `read_settings`."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        seen: dict[Path, float] = {}
        now, over = time.time(), time.monotonic() > give_up
        found = _try_read(environ, seen)
        still = not any(0 <= now - written < STILL_SECONDS for written in seen.values())
        if over or (still and all(written == _read_mtime(path) for path, written in seen.items())):
            break
        time.sleep(STILL_SECONDS / 3)
    if isinstance(found, UsageError):
        raise found
    return found


def _try_read(environ: Mapping[str, str], seen: dict[Path, float]) -> Settings | UsageError:
    try:
        return load_settings(None, environ, seen)
    except UsageError as broken:
        return broken


def _read_mtime(path: Path) -> float:
    """Return the mtime; 0 if the file is missing."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _raise_error(broken: UsageError) -> Settings:
    raise broken


def _keep_edition(settings: Settings, environ: Mapping[str, str]) -> None:
    edition = _edition_path(environ)
    if edition is None:
        return
    sound = pickle.dumps((_digest_model(), settings))
    with contextlib.suppress(OSError):  # only the last valid edition is lost if the home is not writable
        if not edition.exists() or edition.read_bytes() != sound:
            fresh = edition.with_name(f"{edition.name}.{os.getpid()}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(sound)
            fresh.replace(edition)


def _read_edition(environ: Mapping[str, str]) -> Settings | None:
    """Return the kept edition of the same file; None if there is none or another Tidemark wrote it."""
    edition = _edition_path(environ)
    if edition is None or not edition.exists():
        return None
    try:
        shape, settings = pickle.loads(edition.read_bytes())
    except Exception as torn:
        log.warning("%s cannot be read: %s", edition, torn)
        return None
    same = shape == _digest_model() and isinstance(settings, Settings) and settings.path == find_settings(None, environ)[0]
    return settings if same else None


def _digest_model() -> str:
    """Return a digest of the settings' fields, so that an upgrade never loads an edition of another shape."""
    return hashlib.sha256(Path(model.__file__).read_bytes()).hexdigest()


def _edition_path(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("AIRFLOW_HOME", "")
    return Path(home) / EDITION if home else None
