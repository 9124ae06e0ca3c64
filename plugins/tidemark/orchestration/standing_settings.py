"""The settings that DAGs stand on: `tidemark.toml`, or its last sound edition while the file is broken.

A broken edit must not hide every link's DAG and stop every link: as with a server's reload, the last sound edition stays
in force, and `dags/tidemark_settings.py` shows the error with its line as an import error until it is mended. The edition
is kept in AIRFLOW_HOME, which the DAG processor and the tasks share, as it was read: its relative paths are resolved.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import tidemark.settings
from tidemark.errors import UsageError
from tidemark.settings import Settings
from tidemark.settings_file import find, load

log = logging.getLogger(__name__)
EDITION = "settings.last-sound"


def read(environ: Mapping[str, str]) -> Settings:
    """The settings as they are now. Raises UsageError that names file, line and key."""
    return load(None, environ)


def standing(environ: Mapping[str, str]) -> Settings:
    """The settings as they are now, or as they last were sound. Raises UsageError when they never were."""
    try:
        settings = read(environ)
    except UsageError as broken:
        settings = _kept(environ) or _raise(broken)
        log.warning("%s\nGoing on with the last sound edition of these settings.", broken.message)
        return settings
    _keep(settings, environ)
    return settings


def _raise(broken: UsageError) -> Settings:
    raise broken


def _keep(settings: Settings, environ: Mapping[str, str]) -> None:
    edition = _edition(environ)
    if edition is None:
        return
    sound = pickle.dumps((_shape(), settings))
    with contextlib.suppress(OSError):  # a home that cannot be written only loses the comfort of this module
        if not edition.exists() or edition.read_bytes() != sound:
            fresh = edition.with_name(f"{edition.name}.{os.getpid()}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(sound)
            fresh.replace(edition)


def _kept(environ: Mapping[str, str]) -> Settings | None:
    """The kept edition of the same file, None where there is none or another Tidemark wrote it."""
    edition = _edition(environ)
    if edition is None or not edition.exists():
        return None
    try:
        shape, settings = pickle.loads(edition.read_bytes())
    except Exception as torn:
        log.warning("%s cannot be read: %s", edition, torn)
        return None
    same = shape == _shape() and isinstance(settings, Settings) and settings.path == find(None, environ)[0]
    return settings if same else None


def _shape() -> str:
    """Changes with the settings' fields, so that an upgrade never revives an edition of another shape."""
    return hashlib.sha256(Path(tidemark.settings.__file__).read_bytes()).hexdigest()


def _edition(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("AIRFLOW_HOME", "")
    return Path(home) / EDITION if home else None
